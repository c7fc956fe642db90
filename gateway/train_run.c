// SPDX-License-Identifier: Apache-2.0
#include "gateway/train_run.h"
#include "base/durable.h"
#include "base/json_write.h"
#include "model/adapter.h"
#include <stdio.h>
#include <string.h>

enum { VERSION = 1, TEXT = 256 };
#define RUN_JSON "run.json"

// What decides the result, by the names of the manifest's hyperparameters; an option has '-' for
// '_'.
static const char *const hyper[] = {
    "epochs",       "batch_size",     "learning_rate", "lr_scheduler", "warmup_ratio",
    "weight_decay", "adam_beta1",     "adam_beta2",    "adam_epsilon", "max_grad_norm",
    "dpo_beta",     "lora_r",         "lora_alpha",    "lora_dropout", "use_rslora",
    "packing",      "max_seq_length", "truncation",    "seed"};
enum { N_HYPER = sizeof hyper / sizeof *hyper };

static const char *const saving[] = {"save_steps", "save_total_limit", "eval_steps",
                                     "eval_samples"};
enum { N_SAVING = sizeof saving / sizeof *saving };

// ---- targets

enum err train_targets(const struct opt_list *names, unsigned *out, struct err_info *info) {
    const unsigned all = (1U << MDL_TARGETS) - 1;
    *out = names->n ? 0 : all;
    for (size_t i = 0; i < names->n; i++) {
        unsigned bits = !strcmp(names->items[i], "all-linear") ? all : 0;
        for (int t = 0; t < MDL_TARGETS; t++)
            if (!strcmp(names->items[i], mdl_target_name((enum mdl_target)t)))
                bits = 1U << t;
        if (!bits)
            return err_set(info, ERR_INVALID, "target-modules",
                           "--target-modules %s: there is q_proj, k_proj, v_proj, o_proj, "
                           "gate_proj, up_proj, down_proj, and all-linear for all of them",
                           names->items[i]);
        *out |= bits;
    }
    return ERR_OK;
}

static bool take_targets(const json_t *list, unsigned *out) {
    size_t i;
    const json_t *v;
    *out = 0;
    json_array_foreach(list, i, v) {
        const char *name = json_string_value(v);
        int t = 0;
        while (t < MDL_TARGETS && (!name || strcmp(name, mdl_target_name((enum mdl_target)t)) != 0))
            t++;
        if (t == MDL_TARGETS)
            return false;
        *out |= 1U << t;
    }
    return *out != 0;
}

// ---- write

enum err train_run_hyperparameters(const struct train_options *o, unsigned targets,
                                   int32_t row_tokens, char **out, struct err_info *info) {
    struct buf b;
    size_t len;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kint(&w, "epochs", o->epochs);
    jw_kint(&w, "batch_size", o->batch_size);
    jw_knum(&w, "learning_rate", o->lr);
    jw_kstr(&w, "lr_scheduler", o->schedule);
    jw_knum(&w, "warmup_ratio", o->warmup_ratio);
    jw_knum(&w, "weight_decay", o->weight_decay);
    jw_knum(&w, "adam_beta1", o->beta1);
    jw_knum(&w, "adam_beta2", o->beta2);
    jw_knum(&w, "adam_epsilon", o->eps);
    jw_knum(&w, "max_grad_norm", o->max_grad_norm);
    jw_knum(&w, "dpo_beta", o->beta_dpo);
    jw_kint(&w, "lora_r", o->r);
    jw_knum(&w, "lora_alpha", o->alpha);
    jw_knum(&w, "lora_dropout", o->dropout);
    jw_kbool(&w, "use_rslora", o->rslora);
    jw_key(&w, "target_modules");
    jw_arr(&w);
    for (int t = 0; t < MDL_TARGETS; t++)
        if (targets >> t & 1)
            jw_str(&w, mdl_target_name((enum mdl_target)t));
    jw_arr_end(&w);
    jw_kint(&w, "max_seq_length", row_tokens);
    jw_kbool(&w, "packing", o->packing);
    jw_kstr(&w, "truncation", o->truncation);
    jw_kint(&w, "seed", o->seed);
    jw_obj_end(&w);
    enum err e = buf_err(&b);
    *out = e ? NULL : buf_take(&b, &len);
    buf_fini(&b);
    return e ? err_set(info, e, NULL, "out of memory") : ERR_OK;
}

enum err train_run_write(int dir, const struct ft_manifest *m, const struct train_options *o,
                         int64_t started_at, struct err_info *info) {
    const int64_t values[N_SAVING] = {o->save_steps, o->save_limit, o->eval_steps, o->eval_samples};
    struct buf b;
    buf_init(&b, TRAIN_RUN_BYTES);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kint(&w, "version", VERSION);
    jw_kint(&w, "started_at", started_at);
    ft_manifest_origin(&w, m);
    jw_key(&w, "saving");
    jw_obj(&w);
    for (int i = 0; i < N_SAVING; i++)
        jw_kint(&w, saving[i], values[i]);
    jw_obj_end(&w);
    jw_obj_end(&w);
    buf_putc(&b, '\n');
    enum err e = buf_err(&b)
                     ? err_set(info, buf_err(&b), NULL, RUN_JSON ": %s", err_text(buf_err(&b)))
                     : durable_put(dir, RUN_JSON, b.data, b.len, info);
    buf_fini(&b);
    return e;
}

// ---- read

static enum err bad(struct err_info *info, const char *what) {
    return err_set(info, ERR_FORMAT, NULL, RUN_JSON ": %s", what);
}

static bool is_digest(const json_t *v) {
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    return !v || json_is_null(v) ||
           (s && n == FT_SHA256_HEX - 1 && strspn(s, "0123456789abcdef") == n);
}

static bool is_id(const json_t *v) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    return s && n && n < TRAIN_RUN_ID && strspn(s, allowed) == n;
}

static enum err check(const json_t *o, struct err_info *info) {
    static const char *const digests[] = {"base_digest", "tokenizer_digest", "template_digest",
                                          "dataset_digest", "validation_digest"};
    const json_t *version = json_object_get(o, "version"), *at = json_object_get(o, "started_at");
    if (!json_is_integer(version) || json_integer_value(version) != VERSION)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       RUN_JSON ": version must be %d, the one that this build reads", VERSION);
    if (!is_id(json_object_get(o, "run_id")))
        return bad(info, "run_id must be a name of at most 39 letters, digits, '-' and '_'");
    if (!json_is_integer(at) || json_integer_value(at) < 0)
        return bad(info, "started_at must be a time in Unix seconds");
    for (size_t i = 0; i < sizeof digests / sizeof *digests; i++)
        if (!is_digest(json_object_get(o, digests[i])))
            return err_set(info, ERR_FORMAT, NULL, RUN_JSON ": %s must be 64 hex digits or null",
                           digests[i]);
    if (!json_is_object(json_object_get(o, "hyperparameters")))
        return bad(info, "hyperparameters must be an object");
    return ft_manifest_check_origin(o, RUN_JSON, info);
}

enum err train_run_parse(const char *text, size_t len, json_t **out, struct err_info *info) {
    enum err e = ft_json_object(text, len, RUN_JSON, out, info);
    if (e)
        return e;
    e = check(*out, info);
    if (e) {
        json_decref(*out);
        *out = NULL;
    }
    return e;
}

enum err train_run_read(int dir, json_t **out, struct err_info *info) {
    struct buf text;
    *out = NULL;
    buf_init(&text, TRAIN_RUN_BYTES);
    enum err e = ft_file_text(dir, RUN_JSON, &text, info);
    if (!e)
        e = train_run_parse(text.data ? text.data : "", text.len, out, info);
    buf_fini(&text);
    return e;
}

// ---- apply

static void option_name(const char *key, char out[TEXT]) {
    snprintf(out, TEXT, "%s", key);
    for (char *c = out; *c; c++)
        if (*c == '_')
            *c = '-';
}

static bool value_text(const json_t *v, char out[TEXT]) {
    const char *s = json_string_value(v);
    if (json_is_integer(v))
        snprintf(out, TEXT, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        (void)jw_num_text(json_real_value(v), out);
    else if (json_is_boolean(v))
        snprintf(out, TEXT, "%s", json_is_true(v) ? "true" : "false");
    else if (s && json_string_length(v) < TEXT && strlen(s) == json_string_length(v))
        snprintf(out, TEXT, "%s", s);
    else
        return false;
    return true;
}

static enum err take(const json_t *o, const char *key, struct opt_result *res,
                     struct train_options *to, struct err_info *info) {
    char name[TEXT], value[TEXT];
    if (!value_text(json_object_get(o, key), value))
        return err_set(info, ERR_FORMAT, NULL, RUN_JSON ": %s is missing, or no text or number",
                       key);
    option_name(key, name);
    return opt_take(&train_option_table, name, value, RUN_JSON, to, res, info);
}

static enum err apply_targets(const json_t *list, const struct opt_result *res,
                              const struct train_options *o, unsigned *targets,
                              struct err_info *info) {
    unsigned given;
    if (!take_targets(list, targets))
        return bad(info, "target_modules must name layers");
    if (!opt_given(&train_option_table, res, "target-modules"))
        return ERR_OK;
    enum err e = train_targets(&o->targets, &given, info);
    if (!e && given != *targets)
        e = err_set(info, ERR_INVALID, "target-modules",
                    "--target-modules names other layers than " RUN_JSON "; leave it out");
    return e;
}

enum err train_run_apply(const json_t *run, struct opt_result *res, struct train_options *o,
                         unsigned *targets, struct err_info *info) {
    const json_t *h = json_object_get(run, "hyperparameters"), *s = json_object_get(run, "saving");
    char name[TEXT];
    enum err e = take(run, "method", res, o, info);
    for (int i = 0; i < N_HYPER && !e; i++)
        e = take(h, hyper[i], res, o, info);
    if (!e)
        e = apply_targets(json_object_get(h, "target_modules"), res, o, targets, info);
    for (int i = 0; i < N_SAVING && !e; i++) {
        option_name(saving[i], name);
        if (!opt_given(&train_option_table, res, name))
            e = take(s, saving[i], res, o, info);
    }
    if (!e && json_object_size(h) != N_HYPER + 1)
        e = bad(info, "hyperparameters holds a field that this build does not know");
    return e;
}
