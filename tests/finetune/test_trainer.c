// SPDX-License-Identifier: Apache-2.0
// The loop: the same bits however often it was stopped and resumed, however coarse the sums began,
// with and without memory for activations; what it reports; a loss that is not finite names its
// line.
#include "base/mem.h"
#include "finetune/checkpoint.h"
#include "finetune/evaluate.h"
#include "model/source.h"
#include "tests/finetune/train_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALL_TARGETS = (1 << MDL_TARGETS) - 1, SAMPLES = 11, BATCH = 4, EPOCHS = 3, MAX_SAVES = 64 };

// ---- data

struct data {
    char folder[TEMP_PATH];
    struct ft_dataset *completions, *pairs;
};

static void path_in(const struct data *d, const char *name, char out[128]) {
    snprintf(out, 128, "%s/%s", d->folder, name);
}

static struct ft_dataset *build(const struct data *d, const char *name, const char *text,
                                const struct ft_dataset_opts *opts) {
    char file[128], cache[128], cache_name[64];
    struct err_info info = {0};
    struct ft_dataset_report report;
    struct ft_dataset *out;
    path_in(d, name, file);
    snprintf(cache_name, sizeof cache_name, "%s.cache", name);
    path_in(d, cache_name, cache);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_ok(ft_dataset_build(file, cache, opts, &report, &info), &info);
    assert_ok(ft_dataset_open(cache, &out, &info), &info);
    unlink(file);
    unlink(cache); // open already
    return out;
}

static void open_data(struct data *d, const char *model) {
    struct mdl_source *src;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    struct err_info info;
    const char *text;
    size_t len;
    char lines[8192] = "";
    temp_folder(d->folder, "trainer");
    assert_ok(mdl_source_open(model, &src, &info), &info);
    assert_ok(mdl_source_tokenizer(src, &tokenizer, &info), &info);
    mdl_source_chat_template(src, &text, &len);
    assert_ok(chat_template_parse(text, len, &template, &info), &info);
    struct ft_dataset_opts opts = {.tokenizer = tokenizer,
                                   .chat_template = template,
                                   .eos = -1,
                                   .max_seq_len = TF_TOKENS,
                                   .min_examples = 1};
    for (int i = 0; i < SAMPLES; i++)
        sprintf(lines + strlen(lines), "{\"prompt\":\"%d+%d=\",\"completion\":\"%.*s\"}\n", i,
                i * 7, 3 + i % 5, &"abcabcabcabc"[i % 3]);
    d->completions = build(d, "completions", lines, &opts);
    lines[0] = '\0';
    for (int i = 0; i < SAMPLES; i++)
        sprintf(lines + strlen(lines),
                "{\"input\":{\"messages\":[{\"role\":\"user\",\"content\":\"%d\"}]},"
                "\"preferred_output\":[{\"role\":\"assistant\",\"content\":\"y%d\"}],"
                "\"non_preferred_output\":[{\"role\":\"assistant\",\"content\":\"no\"}]}\n",
                i, i % 2);
    opts.preference = true;
    d->pairs = build(d, "pairs", lines, &opts);
    chat_template_destroy(template);
    tokenizer_destroy(tokenizer);
    mdl_source_close(src);
}

static void close_data(struct data *d) {
    ft_dataset_close(d->completions);
    ft_dataset_close(d->pairs);
    temp_remove(d->folder);
}

// ---- one run

struct run {
    struct fx fx;
    struct data data;
    struct ft_exec *exec;
    struct ft_plan *plan;
    struct ft_trainer t;
    struct ft_state state;
    _Atomic bool stop;
    int64_t stop_at, progressed, saves, evaluated;
    int64_t looks, cut; // of the clock; the last step after whose commit the run was stopped
    double first_loss, last_loss, lr_sum;
    // What a checkpoint would keep.
    struct ft_moments saved;
    struct ft_state saved_state;
};

static enum err on_progress(void *arg, const struct ft_progress *p, struct err_info *info) {
    struct run *r = arg;
    (void)info;
    assert_int_equal(p->state->step, r->progressed + 1);
    assert_true(p->lr > 0 && isfinite(p->state->train_loss) && p->steps == ft_plan_steps(r->plan));
    r->progressed = p->state->step;
    r->evaluated += p->evaluated;
    assert_int_equal(p->evaluated, isfinite(p->state->valid_loss) != 0);
    if (p->state->step == 1)
        r->first_loss = p->state->train_loss;
    r->last_loss = p->state->train_loss;
    r->lr_sum += p->lr;
    if (p->state->step == r->stop_at)
        atomic_store(&r->stop, true);
    return ERR_OK;
}

static struct mdl_adapter *adapter_of(const struct run *r) {
    struct mdl_adapter *a;
    struct err_info info;
    assert_ok(mdl_adapter_create(&r->fx.weights->config, ALL_TARGETS, 4, 8, false, &a, &info),
              &info);
    return a;
}

static enum err on_save(void *arg, const struct ft_state *s, bool stopping, struct err_info *info) {
    struct run *r = arg;
    assert_true(r->cut || stopping == (r->stop_at > 0 && s->step >= r->stop_at) ||
                s->step == ft_plan_steps(r->plan));
    ft_moments_fini(&r->saved);
    r->saved = (struct ft_moments){adapter_of(r), adapter_of(r), adapter_of(r)};
    r->saved_state = *s;
    r->saves++;
    return ft_exec_get(r->exec, r->saved.w, r->saved.m, r->saved.v, info);
}

struct how {
    bool keep, dpo, packing, validate;
    float dropout;
    int threads;
};

static void open_exec(struct run *r, const struct how *h) {
    struct err_info info;
    struct ft_exec_config cfg = {
        .weights = r->fx.weights,
        .lora = {.targets = ALL_TARGETS, .r = 4, .alpha = 8, .dropout = h->dropout, .seed = 3},
        .limits = {2 * TF_TOKENS, TF_SEQS, h->keep},
        .clock = &clock_system};
    assert_ok(ft_exec_create(&cfg, &r->exec, &info), &info);
    r->t.exec = r->exec;
}

static void open_run(struct run *r, const struct how *h) {
    const char *model = "tests/golden/models/q8_0.gguf";
    struct err_info info;
    *r = (struct run){.stop = false};
    fx_open(&r->fx, model, &(struct fx_options){.threads = h->threads});
    open_data(&r->data, model);
    struct ft_dataset *d = h->dpo ? r->data.pairs : r->data.completions;
    struct ft_plan_config plan = {.data = ft_dataset_lengths(d),
                                  .epochs = EPOCHS,
                                  .batch_size = BATCH,
                                  .row_tokens = 2 * TF_TOKENS,
                                  .row_samples = TF_SEQS / 2,
                                  .packing = h->packing,
                                  .shuffle = true,
                                  .seed = 9};
    assert_ok(ft_plan_create(&plan, &r->plan, &info), &info);
    int64_t steps = ft_plan_steps(r->plan);
    r->t = (struct ft_trainer){
        .data = d,
        .validation = h->validate ? d : NULL,
        .plan = r->plan,
        .hyper = {.method = h->dpo ? FT_DPO : FT_SUPERVISED,
                  .beta_dpo = 0.1,
                  .schedule = {FT_SCHEDULE_COSINE, 2e-3, 2, steps},
                  .beta1 = 0.9,
                  .beta2 = 0.99,
                  .eps = 1e-8,
                  .weight_decay = 0.01,
                  .max_grad_norm = 1,
                  .dropout = h->dropout > 0,
                  .seed = 9,
                  .row_tokens = 2 * TF_TOKENS,
                  .row_seqs = TF_SEQS,
                  .eval_steps = 4},
        .clock = &clock_system,
        .progress = on_progress,
        .save = on_save,
        .arg = r,
        .stop = &r->stop,
    };
    ft_state_init(&r->state);
    open_exec(r, h);
}

static void close_run(struct run *r) {
    ft_moments_fini(&r->saved);
    ft_exec_destroy(r->exec);
    ft_plan_destroy(r->plan);
    close_data(&r->data);
    fx_close(&r->fx);
}

// To the end, stopped after each `every` steps and gone on with by a new executor from what was
// saved.
static void run_to_end(struct run *r, const struct how *h, int64_t every) {
    struct err_info info = {0};
    for (;;) {
        r->stop_at = every ? r->state.step + every : 0;
        enum err e = ft_train(&r->t, &r->state, &info);
        if (!e)
            break;
        assert_int_equal(e, ERR_CANCELLED);
        atomic_store(&r->stop, false);
        ft_exec_destroy(r->exec);
        open_exec(r, h);
        r->state = r->saved_state;
        assert_ok(ft_exec_set(r->exec, r->saved.w, r->saved.m, r->saved.v, &info), &info);
    }
    assert_int_equal(r->state.step, ft_plan_steps(r->plan));
    assert_int_equal(r->saved_state.step, r->state.step);
}

static void assert_same(const struct run *a, const struct run *b) {
    assert_memory_equal(a->saved.w->memory, b->saved.w->memory, a->saved.w->values * sizeof(float));
    assert_memory_equal(a->saved.m->memory, b->saved.m->memory, a->saved.w->values * sizeof(float));
    assert_memory_equal(a->saved.v->memory, b->saved.v->memory, a->saved.w->values * sizeof(float));
    assert_memory_equal(&a->last_loss, &b->last_loss, sizeof a->last_loss);
    assert_int_equal(a->state.exponent, b->state.exponent);
    assert_int_equal(a->state.trained_tokens, b->state.trained_tokens);
}

static void test_resume(void **state) {
    (void)state;
    struct run a, b;
    struct how h = {.keep = true, .packing = true, .validate = true, .dropout = 0.2F};
    open_run(&a, &h);
    run_to_end(&a, &h, 0);
    assert_int_equal(a.saves, 1);
    assert_true(a.last_loss < a.first_loss - 0.5);
    assert_true(isfinite(a.state.valid_loss) && a.state.valid_accuracy >= 0);
    h.keep = false;
    h.threads = 3;
    open_run(&b, &h);
    run_to_end(&b, &h, 2);
    assert_true(b.saves > 3);
    assert_same(&a, &b);
    assert_memory_equal(&a.state.valid_loss, &b.state.valid_loss, sizeof a.state.valid_loss);
    close_run(&a);
    close_run(&b);
}

// The trainer looks at its clock before and after each step: here it is stopped between the step's
// commit and what follows, which is the evaluation where one is due.
static int64_t stop_behind_step(void *arg) {
    struct run *r = arg;
    if (r->looks++ % 2 && r->cut < r->state.step) {
        r->cut = r->state.step;
        atomic_store(&r->stop, true);
    }
    return 1;
}

static void test_stopped_in_evaluation(void **state) {
    (void)state;
    struct run a, b;
    struct how h = {.keep = true, .packing = true, .validate = true};
    open_run(&a, &h);
    run_to_end(&a, &h, 0);
    open_run(&b, &h);
    const struct clock stops = {stop_behind_step, NULL, &b};
    b.t.clock = &stops;
    run_to_end(&b, &h, 0);
    assert_int_equal(b.cut, ft_plan_steps(b.plan)); // the last step's, too
    assert_int_equal(b.progressed, ft_plan_steps(b.plan));
    assert_int_equal(a.evaluated, b.evaluated);
    assert_true(a.evaluated > 1);
    assert_memory_equal(&a.state.valid_loss, &b.state.valid_loss, sizeof a.state.valid_loss);
    assert_memory_equal(&b.saved_state.valid_loss, &b.state.valid_loss, sizeof(double));
    assert_same(&a, &b);
    close_run(&a);
    close_run(&b);
}

// Sums that begin too fine repeat the first step, and nothing else changes.
static void test_repeat(void **state) {
    (void)state;
    struct run a, b;
    struct how h = {.keep = true};
    open_run(&a, &h);
    a.state.exponent = 64 - 2 * 8;
    run_to_end(&a, &h, 0);
    open_run(&b, &h);
    b.state.exponent = 64;
    run_to_end(&b, &h, 0);
    assert_int_equal(a.state.repeats, 0);
    assert_int_equal(b.state.repeats, 2);
    assert_same(&a, &b);
    close_run(&a);
    close_run(&b);
}

static void test_packing(void **state) {
    (void)state;
    struct run a, b;
    struct how h = {.keep = true, .packing = true};
    open_run(&a, &h);
    run_to_end(&a, &h, 0);
    h.packing = false;
    open_run(&b, &h);
    run_to_end(&b, &h, 0);
    assert_true(fabs(a.last_loss - b.last_loss) < 0.01 * a.last_loss);
    assert_int_equal(a.state.trained_tokens, b.state.trained_tokens);
    close_run(&a);
    close_run(&b);
}

static void test_dpo(void **state) {
    (void)state;
    struct run r;
    struct how h = {.keep = true, .packing = true, .dpo = true};
    open_run(&r, &h);
    run_to_end(&r, &h, 0);
    assert_true(fabs(r.first_loss - log(2)) < 1e-12); // policy and reference are the same at first
    assert_true(r.last_loss < r.first_loss - 0.05);
    assert_true(r.state.train_accuracy > 0.9);
    close_run(&r);
}

static void test_not_finite(void **state) {
    (void)state;
    struct run r;
    struct err_info info;
    struct how h = {.keep = true};
    open_run(&r, &h);
    struct mdl_adapter *bad = adapter_of(&r);
    bad->modules[0][MDL_TARGET_UP].b[0] = NAN;
    assert_ok(ft_exec_set(r.exec, bad, NULL, NULL, &info), &info);
    assert_int_equal(ft_train(&r.t, &r.state, &info), ERR_NONFINITE);
    assert_int_equal(r.state.step, 0);
    struct ft_plan_step s;
    char line[32];
    assert_ok(ft_plan_at(r.plan, 0, &s, &info), &info);
    assert_int_equal(ft_train(&r.t, &r.state, &info), ERR_NONFINITE);
    snprintf(line, sizeof line, "line %lld ", (long long)ft_dataset_line(r.t.data, s.samples[0]));
    assert_non_null(strstr(info.message, line));
    assert_int_equal(r.saves, 0);
    mdl_adapter_destroy(bad);
    close_run(&r);
}

static void test_evaluate(void **state) {
    (void)state;
    struct run r;
    struct err_info info;
    struct how h = {.keep = false};
    open_run(&r, &h);
    struct ft_evaluate_config cfg = {
        .exec = r.exec, .data = r.data.completions, .row_tokens = 2 * TF_TOKENS, .row_seqs = 3};
    struct ft_evaluation packed, single, base;
    assert_ok(ft_evaluate(&cfg, &packed, &info), &info);
    cfg.row_seqs = 1;
    assert_ok(ft_evaluate(&cfg, &single, &info), &info);
    assert_memory_equal(&packed, &single, sizeof packed); // the same bits
    cfg.base = true;                                      // B is zero at first
    assert_ok(ft_evaluate(&cfg, &base, &info), &info);
    assert_memory_equal(&packed, &base, sizeof packed);
    assert_true(packed.targets > SAMPLES && packed.loss > 0);
    atomic_store(&r.stop, true);
    cfg.stop = &r.stop;
    assert_int_equal(ft_evaluate(&cfg, &packed, &info), ERR_CANCELLED);
    close_run(&r);
}

// ---- pure functions

static void test_schedule(void **state) {
    (void)state;
    struct ft_schedule s = {FT_SCHEDULE_COSINE, 1e-3, 0, 100};
    assert_true(ft_schedule_lr(&s, 1) == 1e-3); // no zero first step, warm-up 0 works
    for (int64_t t = 1; t <= 100; t++) {
        double x = (double)(t - 1) / 100;
        assert_true(fabs(ft_schedule_lr(&s, t) - 0.5e-3 * (1 + cos(3.14159265358979323846 * x))) <
                    1e-18);
    }
    assert_true(ft_schedule_lr(&s, 100) > 0);
    s.kind = FT_SCHEDULE_LINEAR;
    s.warmup = ft_schedule_warmup(0.025, 100);
    assert_int_equal(s.warmup, 3);
    assert_true(fabs(ft_schedule_lr(&s, 1) - 1e-3 / 3) < 1e-18);
    assert_true(ft_schedule_lr(&s, 3) == 1e-3 && ft_schedule_lr(&s, 4) == 1e-3);
    assert_true(fabs(ft_schedule_lr(&s, 100) - 1e-3 / 97) < 1e-18);
    s.kind = FT_SCHEDULE_CONSTANT;
    assert_true(ft_schedule_lr(&s, 100) == 1e-3);
    enum ft_schedule_kind k;
    assert_int_equal(ft_schedule_parse("linear", &k), ERR_OK);
    assert_int_equal(k, FT_SCHEDULE_LINEAR);
    assert_int_equal(ft_schedule_parse("step", &k), ERR_INVALID);
}

static void test_exponent(void **state) {
    (void)state;
    assert_int_equal(ft_exponent(0, 17), 17);
    assert_int_equal(ft_exponent((double)NAN, 17), 17);
    for (int e = -60; e < 80; e++) {
        double largest = ldexp(1.3, -e);
        double scaled = ldexp(largest, ft_exponent(largest, 0));
        assert_true(scaled >= 0x1p35 && scaled < 0x1p36);
    }
    assert_true(ft_exponent(1e-300, 0) <= 900 && ft_exponent(1e300, 0) >= -900);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),   cmocka_unit_test(test_stopped_in_evaluation),
        cmocka_unit_test(test_repeat),   cmocka_unit_test(test_packing),
        cmocka_unit_test(test_dpo),      cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_evaluate), cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_exponent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
