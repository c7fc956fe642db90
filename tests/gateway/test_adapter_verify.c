// SPDX-License-Identifier: Apache-2.0
// What is trained is what is served: an adapter as its trainer left it is published on every weight
// type; one that was changed between the trainer's end and publishing is not, whatever was changed,
// and the version before it goes on serving.
#include "base/mem.h"
#include "finetune/evaluate.h"
#include "gateway/adapter_host.h"
#include "gateway/adapter_verify.h"
#include "model/source.h"
#include "tests/finetune/train_fixture.h"
#include "tests/serving/adapter_support.h"
#include "tests/serving/walk_engine.h"
#include "tests/support/assert_ok.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANK = 4, ROW = 128, ROW_SEQS = 8, CONTEXT = 64, ALL = (1 << MDL_TARGETS) - 1 };

static const char template_text[] =
    "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char other_text[] =
    "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}";

struct vx {
    struct fx fx;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    struct ft_dataset_opts opts;
    struct ft_dataset *data;
    struct adapter_dir dir;
    struct mdl_adapter *adapter; // as the trainer has it
    struct ft_probe trained, served;
    char digest[65], file[128], folder[128];
    struct serve_options options;
    struct adapter_host host;
    struct eng *engine;
    struct replicas replicas;
    struct app app;
    struct log log;
    int data_dir;
    bool no_digest, other_kernels;
    struct err_info info;
};

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void write_lines(const struct vx *x, bool pairs, const char *third) {
    char lines[8192] = "";
    for (int i = 0; i < 12; i++) {
        const char *answer = i == 2 && third ? third : "yes, so it is";
        char *to = lines + strlen(lines);
        if (pairs)
            sprintf(to,
                    "{\"input\":{\"messages\":[{\"role\":\"user\",\"content\":\"%d?\"}]},"
                    "\"preferred_output\":[{\"role\":\"assistant\",\"content\":\"%s\"}],"
                    "\"non_preferred_output\":[{\"role\":\"assistant\",\"content\":\"no\"}]}\n",
                    i, answer);
        else
            sprintf(to,
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"%d?\"},"
                    "{\"role\":\"assistant\",\"content\":\"%.*s\"}]}\n%s",
                    i, 5 + i % 6, answer, i == 4 ? "\n" : "");
    }
    write_file(x->file, lines);
}

static void open_data(struct vx *x, const char *model, bool pairs) {
    struct mdl_source *src;
    struct ft_dataset_report report;
    char cache[128];
    assert_ok(mdl_source_open(model, &src, &x->info), &x->info);
    assert_ok(mdl_source_tokenizer(src, &x->tokenizer, &x->info), &x->info);
    mdl_source_close(src);
    assert_ok(chat_template_parse(template_text, sizeof template_text - 1, &x->template, &x->info),
              &x->info);
    snprintf(x->file, sizeof x->file, "%s/data.jsonl", x->dir.path);
    snprintf(cache, sizeof cache, "%s/data.tokens", x->dir.path);
    write_lines(x, pairs, NULL);
    x->opts = (struct ft_dataset_opts){.tokenizer = x->tokenizer,
                                       .chat_template = x->template,
                                       .eos = -1,
                                       .now = 1700000000,
                                       .max_seq_len = ROW,
                                       .min_examples = 1,
                                       .preference = pairs};
    assert_ok(ft_dataset_build(x->file, cache, &x->opts, &report, &x->info), &x->info);
    assert_ok(ft_dataset_open(cache, &x->data, &x->info), &x->info);
}

static void fill(struct vx *x) {
    const struct mdl_config *c = &x->fx.weights->config;
    assert_ok(mdl_adapter_create(c, ALL, RANK, 8, false, &x->adapter, &x->info), &x->info);
    float *w = x->adapter->memory;
    for (size_t i = 0; i < x->adapter->values; i++)
        w[i] = 0.3f * sinf((float)(i % 1009) * 1.7f + (float)(i % 31));
}

// What the end of a run does: losses of the rounded adapter, its digest, its folder.
static void train(struct vx *x) {
    const struct ft_exec_config cfg = {.weights = x->fx.weights,
                                       .lora = {.targets = ALL, .r = RANK, .alpha = 8},
                                       .limits = {ROW, ROW_SEQS, true},
                                       .clock = &clock_system};
    struct ft_exec *exec;
    fill(x);
    assert_ok(ft_exec_create(&cfg, &exec, &x->info), &x->info);
    assert_ok(ft_exec_set(exec, x->adapter, NULL, NULL, &x->info), &x->info);
    const struct ft_evaluate_config e = {.exec = exec, .row_tokens = ROW, .row_seqs = ROW_SEQS};
    assert_ok(ft_probe_take(x->data, CONTEXT, &x->trained, &x->info), &x->info);
    assert_ok(ft_evaluate_probe(&e, &x->trained, &x->info), &x->info);
    ft_exec_destroy(exec);
    assert_ok(mdl_adapter_digest(&x->fx.weights->config, x->adapter, x->digest), &x->info);
}

static void write_adapter(struct vx *x, const struct mdl_adapter *a) {
    assert_ok(mdl_adapter_write(x->folder, &x->fx.weights->config, a, "base", NULL, &x->info),
              &x->info);
}

static void start_engine(struct vx *x) {
    const struct mdl_config *c = &x->fx.weights->config;
    static const char *const names[] = {"base"};
    x->app.names = names;
    x->app.n_names = 1;
    x->options = (struct serve_options){
        .enable_lora = true, .max_loras = 2, .max_lora_rank = 64, .data_dir = x->dir.path};
    x->data_dir = open(x->dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    log_init(&x->log, -1, LOG_ERROR, false, &clock_system);
    assert_ok(adapter_host_open(&x->host, &x->options, x->data_dir, c, &x->app, &x->log, &x->info),
              &x->info);
    struct eng_config cfg = walk_config(&x->fx, x->fx.device, 64);
    cfg.max_num_seqs = 8;
    cfg.max_num_batched_tokens = 24;
    cfg.max_model_len = CONTEXT;
    cfg.max_queue = 3; // fewer than the probe set would like
    cfg.adapters = x->host.registry;
    cfg.io = x->host.fetch;
    cfg.max_loras = 2;
    assert_ok(eng_create(&cfg, &x->engine, &x->info), &x->info);
    assert_ok(eng_start(x->engine, &x->info), &x->info);
    x->replicas = (struct replicas){.n = 1, .engine = {x->engine}};
    assert_ok(adapter_host_start(&x->host, &x->replicas, &x->info), &x->info);
}

static void vx_open(struct vx *x, const char *model, bool pairs) {
    memset(x, 0, sizeof *x);
    adapter_dir_open(&x->dir);
    snprintf(x->folder, sizeof x->folder, "%s/trained", x->dir.path);
    assert_int_equal(mkdir(x->folder, 0700), 0);
    fx_open(&x->fx, model, &(struct fx_options){0});
    open_data(x, model, pairs);
    train(x);
    start_engine(x);
}

static void vx_close(struct vx *x) {
    adapter_host_stop(&x->host);
    eng_stop(x->engine);
    eng_destroy(x->engine);
    adapter_host_close(&x->host);
    close(x->data_dir);
    ft_probe_fini(&x->trained);
    ft_dataset_close(x->data);
    mdl_adapter_destroy(x->adapter);
    chat_template_destroy(x->template);
    tokenizer_destroy(x->tokenizer);
    fx_close(&x->fx);
    adapter_dir_close(&x->dir);
}

// ---- publishing

static enum err verify(void *arg, struct eng *engine, struct adp_version *v,
                       struct err_info *info) {
    struct vx *x = arg;
    const struct adapter_verify a = {.trained = &x->trained,
                                     .served = &x->served,
                                     .digest = x->no_digest ? NULL : x->digest,
                                     .same_kernels = !x->other_kernels,
                                     .tenant = 7};
    return adapter_verify(&a, engine, v, info);
}

static enum err publish(struct vx *x) {
    const struct adapter_load l = {.name = "a",
                                   .path = x->folder,
                                   .in_place = true,
                                   .promote = true,
                                   .own = true,
                                   .verify = verify,
                                   .arg = x};
    uint64_t version;
    memset(&x->info, 0, sizeof x->info);
    ft_probe_fini(&x->served);
    enum err e = ft_probe_again(&x->trained, x->file, &x->opts, CONTEXT, &x->served, &x->info);
    if (!e)
        e = adapter_host_load(&x->host, &l, &version, &x->info);
    ft_probe_fini(&x->served);
    return e;
}

static uint64_t active(struct vx *x) {
    struct adp_version *v;
    if (adp_resolve(x->host.registry, "a", &v, &x->info))
        return 0;
    uint64_t number = adp_number(v);
    adp_unpin(v);
    return number;
}

static void find_failed(void *arg, const struct adp_info *i) {
    struct adp_info *last = arg;
    if (i->version > last->version)
        *last = *i;
}

// The last version that was loaded has failed, and says why.
static void assert_refused(struct vx *x, enum err e, const char *why) {
    struct adp_info last = {0};
    assert_int_equal(e, ERR_FORMAT);
    if (!strstr(x->info.message, why))
        fail_msg("%s: there is no \"%s\"", x->info.message, why);
    assert_int_equal(adp_list(x->host.registry, find_failed, &last), ERR_OK);
    assert_string_equal(adp_state_name(last.state), "failed");
    assert_string_equal(last.reason, x->info.message);
}

static void an_untouched_adapter_is_published(void **state) {
    (void)state;
    static const char *const models[] = {
        "tests/golden/models/f32.gguf",  "tests/golden/models/bf16.gguf",
        "tests/golden/models/q8_0.gguf", "tests/golden/models/q4_0.gguf",
        "tests/golden/models/q4_1.gguf", "tests/golden/models/mixed.gguf",
        "tests/golden/models/hf-llama3",
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int pairs = 0; pairs < 2; pairs++) {
            struct vx x;
            vx_open(&x, models[i], pairs);
            write_adapter(&x, x.adapter);
            assert_ok(publish(&x), &x.info);
            assert_int_equal(active(&x), 1);
            vx_close(&x);
        }
}

// ---- faults

static void patch(const struct vx *x, const char *name, const char *was, const char *is) {
    static char bytes[1 << 18];
    char path[192];
    snprintf(path, sizeof path, "%s/%s", x->folder, name);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f), found = 0, len = strlen(was);
    assert_true(n < sizeof bytes && len == strlen(is));
    for (size_t i = 0; i + len <= n; i++)
        if (!memcmp(bytes + i, was, len)) {
            memcpy(bytes + i, is, len);
            found++;
        }
    assert_true(found > 0);
    rewind(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

// Flips bits of one value of adapter_model.safetensors, which ends with the values.
static void flip(const struct vx *x, long value, uint32_t bits) {
    char path[192];
    uint32_t w;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", x->folder);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, -4 * value, SEEK_END), 0);
    assert_int_equal(fread(&w, 4, 1, f), 1);
    w ^= bits;
    assert_int_equal(fseek(f, -4 * value, SEEK_END), 0);
    assert_int_equal(fwrite(&w, 4, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

static void wrong_alpha(struct vx *x) {
    patch(x, "adapter_config.json", "\"lora_alpha\":8", "\"lora_alpha\":9");
}

static void dropped_target(struct vx *x) {
    struct mdl_adapter *less;
    assert_ok(mdl_adapter_create(&x->fx.weights->config, ALL & ~(1u << MDL_TARGET_UP), RANK, 8,
                                 false, &less, &x->info),
              &x->info);
    for (int32_t i = 0; i < less->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            int32_t n, k;
            const struct mdl_adapter_module *from = &x->adapter->modules[i][t];
            mdl_target_shape(&x->fx.weights->config, (enum mdl_target)t, &n, &k);
            if (!less->modules[i][t].r)
                continue;
            memcpy(less->modules[i][t].a, from->a, (size_t)(RANK * k) * sizeof(float));
            memcpy(less->modules[i][t].b, from->b, (size_t)(RANK * n) * sizeof(float));
        }
    write_adapter(x, less);
    mdl_adapter_destroy(less);
}

// The matrices of a square module change places; their files keep the shapes that are expected.
static void swapped_a_and_b(struct vx *x) {
    int32_t n, k;
    mdl_target_shape(&x->fx.weights->config, MDL_TARGET_O, &n, &k);
    assert_int_equal(n, k);
    struct mdl_adapter_module *m = &x->adapter->modules[0][MDL_TARGET_O];
    for (int32_t i = 0; i < RANK * n; i++) {
        float a = m->a[i];
        m->a[i] = m->b[i];
        m->b[i] = a;
    }
    write_adapter(x, x->adapter);
    for (int32_t i = 0; i < RANK * n; i++) {
        float a = m->a[i];
        m->a[i] = m->b[i];
        m->b[i] = a;
    }
}

static void flipped_exponent(struct vx *x) {
    flip(x, 77, 1u << 24);
}

static void flipped_sign(struct vx *x) {
    flip(x, 500, 1u << 31);
}

static void flipped_last_bit(struct vx *x) {
    flip(x, 123, 1);
}

struct fault {
    void (*make)(struct vx *x);
    bool in_losses; // large enough to be seen in them
};
static const struct fault faults[] = {{wrong_alpha, true},     {dropped_target, true},
                                      {swapped_a_and_b, true}, {flipped_exponent, true},
                                      {flipped_sign, true},    {flipped_last_bit, false}};

static void a_changed_adapter_is_not_published(void **state) {
    (void)state;
    struct vx x;
    vx_open(&x, "tests/golden/models/q8_0.gguf", false);
    write_adapter(&x, x.adapter);
    assert_ok(publish(&x), &x.info);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        write_adapter(&x, x.adapter);
        faults[i].make(&x);
        const char *says = faults[i].in_losses ? "line 1 has another loss when it is served"
                                               : "not the one that was trained";
        for (int k = 0; k < 1 + faults[i].in_losses; k++) {
            x.no_digest = k; // the losses alone
            assert_refused(&x, publish(&x), says);
        }
        x.no_digest = false;
        assert_int_equal(active(&x), 1);
        assert_int_equal(adp_knows(x.host.registry, "a@2"), false);
    }
    // A weight so large that there is no loss.
    write_adapter(&x, x.adapter);
    for (long i = 1; i < 3000; i++)
        flip(&x, i, 1u << 30);
    assert_refused(&x, publish(&x), "");
    // Names that change places have the wrong shape.
    write_adapter(&x, x.adapter);
    patch(&x, "adapter_model.safetensors", "down_proj.lora_A", "down_proj.lora_X");
    patch(&x, "adapter_model.safetensors", "down_proj.lora_B", "down_proj.lora_A");
    patch(&x, "adapter_model.safetensors", "down_proj.lora_X", "down_proj.lora_B");
    assert_int_equal(publish(&x), ERR_FORMAT);
    assert_int_equal(active(&x), 1);
    write_adapter(&x, x.adapter);
    assert_ok(publish(&x), &x.info);
    assert_true(active(&x) > 1);
    vx_close(&x);
}

static void another_renderer_stops_publishing(void **state) {
    (void)state;
    struct vx x;
    struct chat_template *other;
    vx_open(&x, "tests/golden/models/q8_0.gguf", false);
    write_adapter(&x, x.adapter);
    assert_ok(chat_template_parse(other_text, sizeof other_text - 1, &other, &x.info), &x.info);
    x.opts.chat_template = other;
    assert_int_equal(publish(&x), ERR_FORMAT);
    assert_non_null(
        strstr(x.info.message, "line 1: what was trained on is not what serving makes"));
    chat_template_destroy(other);
    x.opts.chat_template = x.template;
    x.opts.now += 86400; // another date
    assert_int_equal(publish(&x), ERR_FORMAT);
    x.opts.now -= 86400;
    write_lines(&x, false, "no, it is not"); // another file
    assert_int_equal(publish(&x), ERR_FORMAT);
    assert_non_null(strstr(x.info.message, "line 3:"));
    write_file(x.file, "{}\n");
    assert_int_equal(publish(&x), ERR_FORMAT);
    write_file(x.file, "");
    assert_int_equal(publish(&x), ERR_FORMAT);
    assert_int_equal(active(&x), 0);
    write_lines(&x, false, NULL);
    assert_ok(publish(&x), &x.info);
    assert_int_equal(active(&x), 1);
    vx_close(&x);
}

// Where trainer and engine are not one kernel set, bits differ; the sum must not, by more than
// 1e-4.
static void across_kernel_sets_the_sum_counts(void **state) {
    (void)state;
    struct vx x;
    vx_open(&x, "tests/golden/models/q8_0.gguf", false);
    write_adapter(&x, x.adapter);
    float *first = &x.trained.seqs[0].losses[0], was = *first;
    double loss = x.trained.loss;
    *first += was * 1e-6f;
    x.trained.loss += (double)(*first - was);
    assert_refused(&x, publish(&x), "line 1 has another loss");
    x.other_kernels = true;
    assert_ok(publish(&x), &x.info);
    *first = was * 1.1f;
    x.trained.loss = loss + (double)(*first - was);
    assert_refused(&x, publish(&x), "line 1 has another loss");
    vx_close(&x);
}

static void it_can_be_stopped_and_asked_again(void **state) {
    (void)state;
    struct vx x;
    _Atomic bool stop = true;
    vx_open(&x, "tests/golden/models/q8_0.gguf", false);
    write_adapter(&x, x.adapter);
    assert_ok(ft_probe_again(&x.trained, x.file, &x.opts, CONTEXT, &x.served, &x.info), &x.info);
    const struct adp_origin from = {.path = x.folder, .verify = true};
    struct adp_version *v;
    assert_ok(adp_load(x.host.registry, "b", &from, &v, &x.info), &x.info);
    struct adapter_verify a = {
        .trained = &x.trained, .served = &x.served, .same_kernels = true, .stop = &stop};
    assert_int_equal(adapter_verify(&a, x.engine, v, &x.info), ERR_CANCELLED);
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++) // again, as for another replica
        assert_ok(adapter_verify(&a, x.engine, v, &x.info), &x.info);
    eng_drain(x.engine); // what has begun is published yet
    assert_ok(adapter_verify(&a, x.engine, v, &x.info), &x.info);
    eng_stop(x.engine);
    assert_int_equal(adapter_verify(&a, x.engine, v, &x.info), ERR_ENGINE_DEAD);
    adp_verified(v, ERR_ENGINE_DEAD, &x.info);
    adp_release(v);
    ft_probe_fini(&x.served);
    vx_close(&x);
}

static void the_probe_set_is_bounded(void **state) {
    (void)state;
    struct vx x;
    struct ft_probe p;
    vx_open(&x, "tests/golden/models/q8_0.gguf", false);
    assert_int_equal(x.trained.n, 12);
    assert_int_equal(x.trained.seqs[0].line, 1);
    assert_int_equal(x.trained.seqs[5].line, 7); // a blank line is before it
    // Cut where serving takes no more; what loses all its targets is left out.
    int32_t most = x.trained.seqs[0].n - 3;
    assert_ok(ft_probe_take(x.data, most, &p, &x.info), &x.info);
    for (size_t i = 0; i < p.n; i++)
        assert_true(p.seqs[i].n <= most && p.seqs[i].n_targets > 0);
    ft_probe_fini(&p);
    assert_int_equal(ft_probe_take(x.data, 2, &p, &x.info), ERR_CONTEXT);
    vx_close(&x);
}

static void reading_again_with_failing_allocations(void **state) {
    (void)state;
    struct vx x;
    vx_open(&x, "tests/golden/models/q8_0.gguf", false);
    int64_t live = mem_live_blocks();
    mem_fail_after(0, false);
    assert_ok(ft_probe_again(&x.trained, x.file, &x.opts, CONTEXT, &x.served, &x.info), &x.info);
    uint64_t n = mem_fail_count();
    ft_probe_fini(&x.served);
    assert_true(n > 100);
    for (uint64_t i = 1; i <= n; i += i < 200 ? 1 : 17) {
        mem_fail_after(i, false);
        enum err e = ft_probe_again(&x.trained, x.file, &x.opts, CONTEXT, &x.served, &x.info);
        mem_fail_after(0, false);
        if (e != ERR_NOMEM)
            fail_msg("allocation %d: %s: %s", (int)i, err_name(e), x.info.message);
        ft_probe_fini(&x.served);
        assert_int_equal(mem_live_blocks(), live);
    }
    vx_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_untouched_adapter_is_published),
        cmocka_unit_test(a_changed_adapter_is_not_published),
        cmocka_unit_test(another_renderer_stops_publishing),
        cmocka_unit_test(across_kernel_sets_the_sum_counts),
        cmocka_unit_test(it_can_be_stopped_and_asked_again),
        cmocka_unit_test(the_probe_set_is_bounded),
        cmocka_unit_test(reading_again_with_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
