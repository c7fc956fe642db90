// SPDX-License-Identifier: Apache-2.0
#include "finetune/job_spec.h"
#include "base/json_value.h"
#include "base/mem.h"
#include "base/utf8.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    NAME_MAX_BYTES = 200,
    GATES_MAX = 64, // of required, and of forbidden
    OUTPUTS_MAX = 16,
    MESSAGES_MAX = 64,
    PROMPT_MAX = 8192, // characters
};

static const char *const targets[FT_JOB_TARGETS] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                    "gate_proj", "up_proj", "down_proj"};

const char *ft_job_target_name(int t) {
    return targets[t];
}

// ---- one field of an object that stands at `path` ("" for the body)

struct at {
    const json_t *o;
    const char *path;
    struct err_info *info;
};

static const char *param(const struct at *a, const char *key, char out[96]) {
    snprintf(out, 96, "%s%s%s", a->path, a->path[0] ? "." : "", key);
    return out;
}

static enum err bad(const struct at *a, const char *key, const char *what) {
    char p[96];
    param(a, key, p);
    return err_set(a->info, ERR_INVALID, p, "%s %s", p, what);
}

static const json_t *field(const struct at *a, const char *key) {
    const json_t *v = json_object_get(a->o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static enum err get_object(const struct at *a, const char *key, const json_t **out) {
    *out = field(a, key);
    return *out && !json_is_object(*out) ? bad(a, key, "must be an object") : ERR_OK;
}

static enum err get_str(const struct at *a, const char *key, size_t max, const char **out) {
    const json_t *v = field(a, key);
    char what[64];
    *out = NULL;
    if (!v)
        return ERR_OK;
    if (!json_is_string(v))
        return bad(a, key, "must be a string");
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n == 0 || strlen(s) != n || utf8_count(s, n) > max) {
        snprintf(what, sizeof what, "must be a text of 1 to %zu characters", max);
        return bad(a, key, what);
    }
    *out = s;
    return ERR_OK;
}

static enum err get_bool(const struct at *a, const char *key, bool *out) {
    const json_t *v = field(a, key);
    if (v && !json_is_boolean(v))
        return bad(a, key, "must be a boolean");
    if (v)
        *out = json_is_true(v);
    return ERR_OK;
}

static enum err get_int(const struct at *a, const char *key, int64_t min, int64_t max,
                        int64_t *out) {
    const json_t *v = field(a, key);
    char what[96];
    if (!v)
        return ERR_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= (double)min && x <= (double)max) || x != floor(x)) {
        snprintf(what, sizeof what, "must be an integer from %lld to %lld", (long long)min,
                 (long long)max);
        return bad(a, key, what);
    }
    *out = (int64_t)x;
    return ERR_OK;
}

// min itself is allowed only if `closed`.
static enum err get_num(const struct at *a, const char *key, double min, bool closed, double max,
                        double *out) {
    const json_t *v = field(a, key);
    char what[96];
    if (!v)
        return ERR_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max) || (!closed && x <= min)) {
        snprintf(what, sizeof what, "must be a number %s %g and at most %g",
                 closed ? "of at least" : "greater than", min, max);
        return bad(a, key, what);
    }
    *out = x;
    return ERR_OK;
}

static enum err get_choice(const struct at *a, const char *key, const char *choices,
                           const char **out) {
    const json_t *v = field(a, key);
    char what[128];
    if (!v)
        return ERR_OK;
    const char *s = json_string_value(v);
    for (const char *c = choices; s && *c; c += strcspn(c, "|"), c += *c == '|')
        if (strcspn(c, "|") == strlen(s) && !strncmp(c, s, strlen(s))) {
            *out = s;
            return ERR_OK;
        }
    snprintf(what, sizeof what, "must be one of %s", choices);
    return bad(a, key, what);
}

static bool is_auto(const struct at *a, const char *key) {
    const char *s = json_string_value(field(a, key));
    return s && !strcmp(s, "auto");
}

// A field of ours that is not known is a mistake, not an extension of somebody else's.
static enum err only(const struct at *a, const char *keys) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)a->o, key, v) {
        size_t n = strlen(key);
        bool known = false;
        for (const char *k = keys; *k && !known; k += strcspn(k, " "), k += *k == ' ')
            known = strcspn(k, " ") == n && !strncmp(k, key, n);
        if (!known)
            return bad(a, key, "is not known");
    }
    return ERR_OK;
}

// ---- hyperparameters

static enum err read_hyper(const struct at *a, struct ft_job_spec *s) {
    enum err e = ERR_OK;
    if (!is_auto(a, "batch_size"))
        e = get_int(a, "batch_size", 1, 256, &s->batch_size);
    if (!e && !is_auto(a, "n_epochs"))
        e = get_int(a, "n_epochs", 1, 50, &s->n_epochs);
    if (!e && !is_auto(a, "learning_rate_multiplier"))
        e = get_num(a, "learning_rate_multiplier", 0, false, 1e6, &s->learning_rate_multiplier);
    if (!e && s->dpo && !is_auto(a, "beta"))
        e = get_num(a, "beta", 0, false, 2, &s->beta);
    return e;
}

static enum err read_method(const struct at *body, struct ft_job_spec *s) {
    const json_t *method, *old, *of_type, *hyper;
    const char *type = NULL;
    char path[64];
    enum err e = get_object(body, "method", &method);
    if (!e)
        e = get_object(body, "hyperparameters", &old);
    if (e)
        return e;
    if (!method) {
        const struct at a = {old, "hyperparameters", body->info};
        return old ? read_hyper(&a, s) : ERR_OK;
    }
    const struct at a = {method, "method", body->info};
    e = get_choice(&a, "type", "supervised|dpo|reinforcement", &type);
    if (e)
        return e;
    if (!type)
        return bad(&a, "type", "is required");
    if (!strcmp(type, "reinforcement"))
        return err_set(body->info, ERR_UNSUPPORTED, "method.type",
                       "method.type reinforcement is not supported; supervised and dpo are");
    s->dpo = !strcmp(type, "dpo");
    e = get_object(&a, type, &of_type);
    if (e || !of_type)
        return !e && old ? bad(body, "hyperparameters", "must stand under method when it is given")
                         : e;
    snprintf(path, sizeof path, "method.%s", type);
    const struct at b = {of_type, path, body->info};
    e = get_object(&b, "hyperparameters", &hyper);
    if (e)
        return e;
    if (old)
        return bad(body, "hyperparameters", "must stand under method when it is given");
    snprintf(path, sizeof path, "method.%s.hyperparameters", type);
    const struct at c = {hyper, path, body->info};
    return hyper ? read_hyper(&c, s) : ERR_OK;
}

// ---- "graft"

static enum err read_targets(const struct at *a, struct ft_job_spec *s) {
    const json_t *v = field(a, "target_modules");
    if (!v)
        return ERR_OK;
    const char *all = json_string_value(v);
    if (all && !strcmp(all, "all-linear"))
        return ERR_OK;
    s->lora_targets = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        int t = 0;
        while (t < FT_JOB_TARGETS && (!name || strcmp(name, targets[t]) != 0))
            t++;
        if (t == FT_JOB_TARGETS) {
            char p[96];
            snprintf(p, sizeof p, "%s.target_modules[%zu]", a->path, i);
            return err_set(a->info, ERR_INVALID, p,
                           "%s must be one of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
                           "down_proj",
                           p);
        }
        s->lora_targets |= 1u << t;
    }
    return s->lora_targets ? ERR_OK
                           : bad(a, "target_modules",
                                 "must be all-linear or a list of at least one layer's name");
}

static enum err read_lora(const struct at *a, struct ft_job_spec *s) {
    enum err e = only(a, "r alpha dropout target_modules use_rslora");
    if (!e)
        e = get_int(a, "r", 1, 256, &s->lora_r);
    s->lora_alpha = 2 * (double)s->lora_r; // unless given
    if (!e)
        e = get_num(a, "alpha", 0, false, 1e6, &s->lora_alpha);
    if (!e)
        e = get_num(a, "dropout", 0, true, 0.95, &s->lora_dropout);
    if (!e)
        e = get_bool(a, "use_rslora", &s->lora_rslora);
    return e ? e : read_targets(a, s);
}

// {"prompt": text} or {"messages": [...]}; what a message may be is looked at where it is rendered.
static enum err read_asked(const struct at *a) {
    const char *text;
    const json_t *messages = field(a, "messages");
    if ((field(a, "prompt") != NULL) == (messages != NULL))
        return bad(a, "prompt", "or messages is required, one of the two");
    if (!messages)
        return get_str(a, "prompt", PROMPT_MAX, &text);
    bool ok = json_is_array(messages) && json_array_size(messages) >= 1 &&
              json_array_size(messages) <= MESSAGES_MAX;
    for (size_t i = 0; ok && i < json_array_size(messages); i++)
        ok = json_is_string(json_object_get(json_array_get(messages, i), "role"));
    return ok ? ERR_OK : bad(a, "messages", "must be a list of 1 to 64 messages, each with a role");
}

static bool is_text(const json_t *v) {
    size_t n = json_string_length(v);
    return json_is_string(v) && n && n <= PROMPT_MAX && strlen(json_string_value(v)) == n;
}

// One text, or several.
static enum err read_outputs(const struct at *a) {
    const json_t *v = field(a, "output");
    bool ok = v && json_array_size(v) <= OUTPUTS_MAX;
    if (ok && json_is_array(v)) {
        ok = json_array_size(v) > 0;
        for (size_t i = 0; ok && i < json_array_size(v); i++)
            ok = is_text(json_array_get(v, i));
    } else if (ok) {
        ok = is_text(v);
    }
    return ok ? ERR_OK
              : bad(a, "output", "must be a text of 1 to 8192 bytes, or a list of 1 to 16 of them");
}

static enum err read_prompts(const struct at *a, const char *key, size_t most, bool outputs) {
    const json_t *v = field(a, key);
    char what[64];
    if (!v)
        return ERR_OK;
    snprintf(what, sizeof what, "must be a list of at most %zu entries", most);
    if (!json_is_array(v) || json_array_size(v) > most)
        return bad(a, key, what);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char path[64];
        const json_t *item = json_array_get(v, i);
        snprintf(path, sizeof path, "%s.%s[%zu]", a->path, key, i);
        const struct at b = {item, path, a->info};
        if (!outputs && is_text(item))
            continue;
        if (!json_is_object(item))
            return err_set(a->info, ERR_INVALID, path,
                           outputs ? "%s must be an object with prompt or messages, and output"
                                   : "%s must be a text, or an object with prompt or messages",
                           path);
        enum err e = only(&b, outputs ? "prompt messages output" : "prompt messages");
        if (!e)
            e = read_asked(&b);
        if (!e && outputs)
            e = read_outputs(&b);
        if (e)
            return e;
    }
    return ERR_OK;
}

static enum err read_evaluation(const struct at *graft, struct ft_job_spec *s) {
    double x;
    int64_t n;
    const char *on_failure = "fail";
    enum err e = get_object(graft, "evaluation", &s->evaluation);
    if (e || !s->evaluation)
        return e;
    const struct at a = {s->evaluation, "graft.evaluation", graft->info};
    e = only(&a, "max_valid_loss min_improvement eval_samples required forbidden sample_prompts "
                 "max_tokens on_failure");
    if (!e)
        e = get_num(&a, "max_valid_loss", 0, false, 1e9, &x);
    if (!e)
        e = get_num(&a, "min_improvement", -1e9, true, 1e9, &x);
    if (!e)
        e = get_int(&a, "eval_samples", 0, 1 << 30, &n);
    if (!e)
        e = get_int(&a, "max_tokens", 1, 1024, &s->answer_tokens);
    if (!e)
        e = get_choice(&a, "on_failure", "fail|keep", &on_failure);
    s->keep_unreleased = !e && !strcmp(on_failure, "keep");
    if (!e)
        e = read_prompts(&a, "required", GATES_MAX, true);
    if (!e)
        e = read_prompts(&a, "forbidden", GATES_MAX, true);
    return e ? e : read_prompts(&a, "sample_prompts", FT_SAMPLES_MAX, false);
}

static enum err read_graft(const struct at *body, struct ft_job_spec *s) {
    const json_t *graft, *lora;
    enum err e = get_object(body, "graft", &graft);
    if (e || !graft)
        return e;
    const struct at a = {graft, "graft", body->info};
    e = only(&a, "lora learning_rate warmup_ratio lr_scheduler weight_decay max_grad_norm "
                 "max_seq_length packing truncation save_steps eval_steps priority "
                 "retention_class evaluation");
    if (!e)
        e = get_object(&a, "lora", &lora);
    if (!e && lora) {
        const struct at b = {lora, "graft.lora", body->info};
        e = read_lora(&b, s);
    }
    if (!e)
        e = get_num(&a, "learning_rate", 0, false, 10, &s->learning_rate);
    if (!e)
        e = get_num(&a, "warmup_ratio", 0, true, 1, &s->warmup_ratio);
    if (!e)
        e = get_choice(&a, "lr_scheduler", "cosine|linear|constant", &s->lr_scheduler);
    if (!e)
        e = get_num(&a, "weight_decay", 0, true, 1, &s->weight_decay);
    if (!e)
        e = get_num(&a, "max_grad_norm", 0, true, 1e9, &s->max_grad_norm);
    if (!e)
        e = get_int(&a, "max_seq_length", 2, 1 << 20, &s->max_seq_length);
    if (!e)
        e = get_bool(&a, "packing", &s->packing);
    if (!e)
        e = get_choice(&a, "truncation", "error|truncate|drop", &s->truncation);
    if (!e)
        e = get_int(&a, "save_steps", 0, 1 << 30, &s->save_steps);
    if (!e)
        e = get_int(&a, "eval_steps", 0, 1 << 30, &s->eval_steps);
    if (!e)
        e = get_int(&a, "priority", -1000, 1000, &s->priority);
    if (!e)
        e = get_str(&a, "retention_class", 64, &s->retention_class);
    return e ? e : read_evaluation(&a, s);
}

// ---- the body

static enum err read_metadata(const struct at *body, struct ft_job_spec *s) {
    const char *key;
    json_t *v;
    enum err e = get_object(body, "metadata", &s->metadata);
    if (e || !s->metadata)
        return e;
    if (json_object_size(s->metadata) > FT_METADATA_MAX)
        return bad(body, "metadata", "must have at most 16 pairs");
    json_object_foreach((json_t *)(uintptr_t)s->metadata, key, v) {
        if (utf8_count(key, strlen(key)) > 64)
            return bad(body, "metadata", "must have keys of at most 64 characters");
        const char *text = json_string_value(v);
        if (!text || strlen(text) != json_string_length(v) ||
            utf8_count(text, strlen(text)) > 512) {
            char p[96];
            snprintf(p, sizeof p, "metadata.%.64s", key);
            return err_set(body->info, ERR_INVALID, p,
                           "%s must be a string of at most 512 characters", p);
        }
    }
    return ERR_OK;
}

static enum err read_integrations(const struct at *body) {
    const json_t *v = field(body, "integrations");
    if (!v)
        return ERR_OK;
    if (!json_is_array(v))
        return bad(body, "integrations", "must be a list");
    if (json_array_size(v) == 0)
        return ERR_OK;
    const char *type = json_string_value(json_object_get(json_array_get(v, 0), "type"));
    return err_set(body->info, type ? ERR_UNSUPPORTED : ERR_INVALID, "integrations[0].type",
                   "integrations[0].type: %s%.32s%s is not a supported integration",
                   type ? "'" : "this", type ? type : "", type ? "'" : "");
}

static enum err read_suffix(const struct at *body, struct ft_job_spec *s) {
    enum err e = get_str(body, "suffix", FT_SUFFIX_MAX, &s->suffix);
    if (e || !s->suffix)
        return e;
    // It becomes a part of a model's name, whose parts colons divide.
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return s->suffix[strspn(s->suffix, allowed)]
               ? bad(body, "suffix", "may hold letters, digits, '.', '_' and '-' only")
               : ERR_OK;
}

// What looks at validation losses must not seem to have been heard where there are none.
static enum err check_validation(const struct ft_job_spec *s, struct err_info *info) {
    static const char *const fields[] = {"max_valid_loss", "min_improvement", "eval_samples"};
    const char *of = s->eval_steps ? "graft.eval_steps" : NULL;
    char path[64];
    for (size_t i = 0; !of && i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(s->evaluation, fields[i]);
        if (!v || json_is_null(v))
            continue;
        snprintf(path, sizeof path, "graft.evaluation.%s", fields[i]);
        of = path;
    }
    return of && !s->validation_file
               ? err_set(info, ERR_INVALID, "validation_file",
                         "validation_file is required: %s has nothing to look at without it", of)
               : ERR_OK;
}

enum err ft_job_spec_read(const json_t *body, struct ft_job_spec *s, struct err_info *info) {
    const struct at a = {body, "", info};
    *s = (struct ft_job_spec){
        .lora_r = 16,
        .lora_alpha = 32,
        .lora_targets = (1u << FT_JOB_TARGETS) - 1,
        .warmup_ratio = 0.03,
        .max_grad_norm = 1,
        .lr_scheduler = "cosine",
        .truncation = "error",
        .packing = true,
        .answer_tokens = 128,
    };
    enum err e = get_str(&a, "model", NAME_MAX_BYTES, &s->model);
    if (!e && !s->model)
        e = bad(&a, "model", "is required");
    if (!e)
        e = get_str(&a, "training_file", NAME_MAX_BYTES, &s->training_file);
    if (!e && !s->training_file)
        e = bad(&a, "training_file", "is required");
    if (!e)
        e = get_str(&a, "validation_file", NAME_MAX_BYTES, &s->validation_file);
    if (!e)
        e = read_suffix(&a, s);
    s->has_seed = field(&a, "seed") != NULL;
    if (!e)
        e = get_int(&a, "seed", 0, INT32_MAX, &s->seed);
    if (!e)
        e = read_metadata(&a, s);
    if (!e)
        e = read_integrations(&a);
    if (!e)
        e = read_method(&a, s);
    if (!e)
        e = read_graft(&a, s);
    return e ? e : check_validation(s, info);
}

enum err ft_job_spec_store(const json_t *body, int64_t seed, char **out, struct err_info *info) {
    static const char *const known[] = {"model",    "training_file",   "validation_file", "suffix",
                                        "metadata", "hyperparameters", "method",          "graft"};
    json_t *o = json_object();
    bool ok = o && !json_object_set_new(o, "seed", json_integer(seed));
    *out = NULL;
    for (size_t i = 0; ok && i < sizeof known / sizeof *known; i++) {
        json_t *v = json_object_get(body, known[i]);
        if (v && !json_is_null(v))
            ok = !json_object_set(o, known[i], v);
    }
    enum err e = ok ? json_value_text(o, FT_REQUEST_MAX, out) : ERR_NOMEM;
    if (e == ERR_LIMIT)
        e = err_set(info, ERR_TOO_LARGE, NULL, "the job's fields take more than %d bytes",
                    FT_REQUEST_MAX);
    else if (e)
        err_set(info, e, NULL, "out of memory");
    json_decref(o);
    return e;
}
