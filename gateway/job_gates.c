// SPDX-License-Identifier: Apache-2.0
// Release gates: whether a trained model may be served. Losses are the trainer's; outputs are
// answers of the version that is about to be promoted. All gates are looked at, whichever fail.
#include "base/json_write.h"
#include "finetune/evaluate.h"
#include "gateway/job_runner_internal.h"
#include <stdio.h>
#include <string.h>

enum {
    SHOWN = 120,        // bytes of a text in a message
    WHY_BYTES = 380,    // of all failures in a message
    DATA_BYTES = 32768, // of what an event lists, about
};

static const json_t *gate(const struct ft_job_spec *s, const char *key) {
    const json_t *v = json_object_get(s->evaluation, key);
    return v && !json_is_null(v) ? v : NULL;
}

// ---- losses

static enum err base_loss(struct job_runner *r, double *loss, struct err_info *info) {
    struct train_job *t = &r->run->train;
    const struct ft_evaluate_config cfg = {.exec = t->exec,
                                           .data = t->validation,
                                           .row_tokens = t->row_tokens,
                                           .row_seqs = t->row_seqs,
                                           .base = true,
                                           .beta_dpo = r->run->spec.dpo ? t->o.beta_dpo : 0,
                                           .stop = &t->stop};
    struct ft_evaluation v;
    enum err e = ft_evaluate(&cfg, &v, info);
    if (!e)
        *loss = v.loss / (double)(v.targets ? v.targets : 1);
    return e;
}

enum err job__find_losses(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    double before = 0;
    enum err e = gate(&run->spec, "min_improvement") ? base_loss(r, &before, info) : ERR_OK;
    run->improvement = before - run->train.state.valid_loss;
    return e;
}

// ---- outputs

enum err job__find_outputs(struct job_runner *r, struct eng *engine, struct adp_version *v,
                           struct err_info *info) {
    struct job_run *run = r->run;
    const struct ask a = {engine, v, run->tenant, &run->train.stop};
    const int32_t most = (int32_t)run->spec.answer_tokens;
    enum err e = job_prompts_ask(&run->required, &a, r->app->tokenizer, most, info);
    return e ? e : job_prompts_ask(&run->forbidden, &a, r->app->tokenizer, most, info);
}

// ---- what was found

struct finding {
    const char *gate;
    bool passed;
    double limit, found;        // of a loss
    const struct job_prompt *p; // of an output: number `at` of the gate; else NULL
    size_t at;
    const json_t *text;
    bool wanted;
};
typedef void (*finding_fn)(void *arg, const struct finding *f);

static void each_output(const char *name, const struct job_prompts *p, bool wanted, finding_fn each,
                        void *arg) {
    for (size_t i = 0; i < p->n; i++) {
        const struct job_prompt *x = &p->list[i];
        const json_t *output = json_object_get(x->item, "output");
        size_t n = json_is_array(output) ? json_array_size(output) : 1;
        for (size_t k = 0; k < n; k++) {
            const json_t *text = json_is_array(output) ? json_array_get(output, k) : output;
            bool has =
                memmem(x->answer, x->answer_len, json_string_value(text), json_string_length(text));
            const struct finding f = {.gate = name,
                                      .passed = has == wanted,
                                      .p = x,
                                      .at = i,
                                      .text = text,
                                      .wanted = wanted};
            each(arg, &f);
        }
    }
}

// Every gate of the job, once all is known.
static void each_gate(const struct job_run *run, finding_fn each, void *arg) {
    const json_t *most = gate(&run->spec, "max_valid_loss");
    const json_t *least = gate(&run->spec, "min_improvement");
    struct finding f = {.gate = "max_valid_loss",
                        .limit = json_number_value(most),
                        .found = run->train.state.valid_loss};
    f.passed = f.found <= f.limit;
    if (most)
        each(arg, &f);
    f = (struct finding){
        .gate = "min_improvement", .limit = json_number_value(least), .found = run->improvement};
    f.passed = f.found >= f.limit;
    if (least)
        each(arg, &f);
    each_output("required", &run->required, true, each, arg);
    each_output("forbidden", &run->forbidden, false, each, arg);
}

struct failures {
    size_t n;
    const char *gate; // the first; one of texts goes before one of losses
    bool texts;
    struct buf why;
};

static void add_failure(void *arg, const struct finding *f) {
    struct failures *x = arg;
    struct err_info one; // cuts at a character's end
    if (f->passed)
        return;
    if (!x->n++ || (f->p && !x->texts))
        x->gate = f->gate;
    x->texts |= f->p != NULL;
    if (x->why.len > WHY_BYTES)
        return;
    if (f->p)
        err_set(&one, ERR_INVALID, NULL, "%s[%zu]: the answer %s \"%.*s\": \"%.*s\"", f->gate,
                f->at, f->wanted ? "lacks" : "has", SHOWN, json_string_value(f->text), SHOWN,
                f->p->answer);
    else
        err_set(&one, ERR_INVALID, NULL, "%s is %g, and %g was found", f->gate, f->limit, f->found);
    buf_printf(&x->why, "%s%s", x->n > 1 ? "; " : "", one.message);
}

struct listing {
    struct json_w w;
    size_t left_off;
};

static void add_text(struct json_w *w, const char *key, const char *text) {
    struct err_info cut;
    err_set(&cut, ERR_INVALID, NULL, "%.*s", SHOWN, text);
    jw_kstr(w, key, cut.message);
}

static void list_finding(void *arg, const struct finding *f) {
    struct listing *l = arg;
    char name[48];
    if (l->w.out->len > DATA_BYTES) {
        l->left_off++;
        return;
    }
    jw_obj(&l->w);
    if (f->p) {
        snprintf(name, sizeof name, "%s[%zu]", f->gate, f->at);
        jw_kstr(&l->w, "gate", name);
        add_text(&l->w, "limit", json_string_value(f->text));
        add_text(&l->w, "found", f->p->answer);
    } else {
        jw_kstr(&l->w, "gate", f->gate);
        jw_knum(&l->w, "limit", f->limit);
        jw_knum(&l->w, "found", f->found);
    }
    jw_kbool(&l->w, "passed", f->passed);
    jw_obj_end(&l->w);
}

static void tell(const struct job_runner *r, const char *level, const char *message) {
    struct buf data;
    buf_init(&data, 0);
    struct listing l = {.w = json_w_begin(&data)};
    jw_obj(&l.w);
    jw_key(&l.w, "gates");
    jw_arr(&l.w);
    each_gate(r->run, list_finding, &l);
    jw_arr_end(&l.w);
    jw_kint(&l.w, "left_off", (int64_t)l.left_off);
    jw_obj_end(&l.w);
    job__tell(r, level, "message", message, buf_err(&data) ? NULL : data.data);
    buf_fini(&data);
}

// With on_failure "keep" what does not pass is published all the same, but not promoted.
enum err job__decide_gates(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    struct failures x = {0};
    struct err_info cut;
    char message[sizeof run->unreleased + 64], param[64];
    run->unreleased[0] = '\0';
    buf_init(&x.why, 0);
    each_gate(run, add_failure, &x);
    enum err e = buf_err(&x.why) ? err_set(info, ERR_NOMEM, NULL, "out of memory") : ERR_OK;
    if (!e && x.n) {
        err_set(&cut, ERR_INVALID, NULL, "%.*s", WHY_BYTES, x.why.data);
        snprintf(message, sizeof message, "Release gates not passed: %.399s", cut.message);
        tell(r, "warn", message);
        if (run->spec.keep_unreleased) {
            snprintf(run->unreleased, sizeof run->unreleased, "%.399s", cut.message);
        } else {
            snprintf(param, sizeof param, "graft.evaluation.%s", x.gate);
            run->code = "release_gate";
            e = err_set(info, ERR_INVALID, param,
                        "the model is not released: %s; the adapter is kept with the job",
                        cut.message);
        }
    }
    buf_fini(&x.why);
    return e;
}

// ---- passed

void job__tell_gates(const struct job_runner *r) {
    const struct job_run *run = r->run;
    const json_t *most = gate(&run->spec, "max_valid_loss");
    const json_t *least = gate(&run->spec, "min_improvement");
    struct buf b;
    buf_init(&b, 0);
    if (most)
        buf_printf(&b, ", max_valid_loss %g (%g)", json_number_value(most),
                   run->train.state.valid_loss);
    if (least)
        buf_printf(&b, ", min_improvement %g (%g)", json_number_value(least), run->improvement);
    if (run->required.n)
        buf_printf(&b, ", required (%zu)", run->required.n);
    if (run->forbidden.n)
        buf_printf(&b, ", forbidden (%zu)", run->forbidden.n);
    char message[400];
    if (b.len && !buf_err(&b)) {
        snprintf(message, sizeof message, "Release gates passed: %s", b.data + 2);
        tell(r, "info", message);
        job__log(r, LOG_INFO, "release gates passed");
    }
    buf_fini(&b);
}

// ---- at the beginning

enum err job__read_prompts(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    const struct job_prompt_opts o = {.tokenizer = r->app->tokenizer,
                                      .chat_template = r->app->template,
                                      .now = run->opts.now,
                                      .completion =
                                          ft_dataset_report(run->train.data)->kind == FT_COMPLETION,
                                      .max_prompt = r->app->max_model_len};
    const struct {
        const char *name;
        struct job_prompts *to;
    } lists[] = {{"required", &run->required},
                 {"forbidden", &run->forbidden},
                 {"sample_prompts", &run->samples}};
    enum err e = ERR_OK;
    for (size_t i = 0; i < sizeof lists / sizeof *lists && !e; i++)
        e = job_prompts_read(gate(&run->spec, lists[i].name), lists[i].name, &o, lists[i].to, info);
    return e;
}
