// SPDX-License-Identifier: Apache-2.0
// adapter_config.json: which modules have a matrix pair, of what rank and scale. What would change
// the computation and is not known here is refused by its name; so is a field that is not known and
// set.
#include "base/json_load.h"
#include "base/mem.h"
#include "kernels/lora.h"
#include "model/adapter_internal.h"
#include "model/shown.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct reader {
    json_t *o;
    const struct mdl_config *c;
    struct mdl_adapter *a;
    int32_t max_rank;
    int32_t r;
    double alpha;
    struct mdl__matcher m;
    struct mdl__names targets, exclude;
    struct mdl__pattern ranks, alphas;
    bool all_linear;
};

static json_t *field(const struct reader *r, const char *name) {
    json_t *v = json_object_get(r->o, name);
    return json_is_null(v) ? NULL : v;
}

static enum err bad(const struct reader *r, const char *name, const char *why) {
    return err_set(r->m.info, ERR_FORMAT, NULL, "%s %s", name, why);
}

// Null, false, 0, "", [] and {}: what Python takes for no value.
static bool is_unset(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_NULL:
    case JSON_FALSE:
        return true;
    case JSON_STRING:
        return json_string_length(v) == 0;
    case JSON_ARRAY:
        return json_array_size(v) == 0;
    case JSON_OBJECT:
        return json_object_size(v) == 0;
    case JSON_INTEGER:
        return json_integer_value(v) == 0;
    case JSON_REAL:
        return fpclassify(json_real_value(v)) == FP_ZERO;
    default:
        return false;
    }
}

// Fields that are read, or that say nothing about the computation.
static const char *const known[] = {
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config", // how A and B began
    "ensure_weight_tying",
    "eva_config", // how A and B began
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config", // how A and B began
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config", // how A and B began
    "megatron_core",  // only with megatron_config
    "peft_type",
    "peft_version",
    "qalora_group_size", // only with use_qalora
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
};

static enum err check_unknown(const struct reader *r) {
    const char *key;
    json_t *v;
    json_object_foreach(r->o, key, v) {
        bool is_known = is_unset(v);
        for (size_t i = 0; !is_known && i < sizeof known / sizeof *known; i++)
            is_known = strcmp(key, known[i]) == 0;
        struct mdl_shown s;
        if (!is_known)
            return err_set(r->m.info, ERR_UNSUPPORTED, NULL, "%s is not supported",
                           mdl_shown(&s, key, strlen(key)));
    }
    return ERR_OK;
}

// A string field that must have the one value, or be absent.
static enum err must_be(const struct reader *r, const char *name, const char *value, bool needed) {
    json_t *v = field(r, name);
    struct mdl_shown s;
    if (!v && !needed)
        return ERR_OK;
    const char *text = json_string_value(v);
    if (!text)
        return bad(r, name, v ? "must be a string" : "is missing");
    if (strcmp(text, value) == 0)
        return ERR_OK;
    return err_set(r->m.info, ERR_UNSUPPORTED, NULL, "%s %s is not supported; %s is", name,
                   mdl_shown(&s, text, strlen(text)), value);
}

// Some ways to begin change the base's weights, to which A and B then belong.
static enum err check_init(const struct reader *r) {
    static const char *const changing[] = {"pissa", "olora", "corda", "loftq", "lora_ga", "mica"};
    const char *text = json_string_value(field(r, "init_lora_weights"));
    for (size_t i = 0; text && i < sizeof changing / sizeof *changing; i++)
        if (strncmp(text, changing[i], strlen(changing[i])) == 0)
            return err_set(r->m.info, ERR_UNSUPPORTED, NULL,
                           "init_lora_weights %s is not supported: such an adapter belongs to "
                           "changed base weights; save it as a plain LoRA adapter",
                           changing[i]);
    return ERR_OK;
}

static enum err check_supported(const struct reader *r) {
    static const struct {
        const char *name, *why;
    } refused[] = {
        {"use_dora", "DoRA is not supported"},
        {"modules_to_save", "modules_to_save is not supported: whole weights are no adapter"},
        {"fan_in_fan_out", "fan_in_fan_out is not supported: Llama's layers are linear layers"},
        {"lora_bias", "lora_bias is not supported"},
        {"layer_replication", "layer_replication is not supported"},
        {"trainable_token_indices", "trainable_token_indices is not supported"},
        {"target_parameters", "target_parameters is not supported"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json_t *v = field(r, refused[i].name);
        if (v && !is_unset(v))
            return err_set(r->m.info, ERR_UNSUPPORTED, NULL, "%s", refused[i].why);
    }
    enum err e = must_be(r, "peft_type", "LORA", true);
    if (!e)
        e = must_be(r, "task_type", "CAUSAL_LM", false);
    if (!e)
        e = must_be(r, "bias", "none", false);
    if (!e)
        e = check_init(r);
    return e ? e : check_unknown(r);
}

// ---- numbers

static enum err rank_value(const struct reader *r, const json_t *v, const char *name,
                           int32_t *out) {
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < 1)
        return bad(r, name, "must be a whole number of at least 1");
    if (i > r->max_rank)
        return err_set(r->m.info, ERR_LIMIT, NULL, "%s: rank %lld is over the limit of %d", name,
                       (long long)i, r->max_rank);
    *out = (int32_t)i;
    return ERR_OK;
}

static enum err alpha_value(const struct reader *r, const json_t *v, const char *name,
                            double *out) {
    double d = json_number_value(v);
    if (!json_is_number(v) || !isfinite(d) || fabs(d) > (double)FLT_MAX)
        return bad(r, name, "must be a finite number");
    *out = d;
    return ERR_OK;
}

static enum err read_numbers(struct reader *r) {
    json_t *rank = field(r, "r"), *alpha = field(r, "lora_alpha"), *v;
    enum err e = ERR_OK;
    if (!rank || !alpha)
        return bad(r, rank ? "lora_alpha" : "r", "is missing");
    e = rank_value(r, rank, "r", &r->r);
    if (!e)
        e = alpha_value(r, alpha, "lora_alpha", &r->alpha);
    if (!e && (v = field(r, "use_rslora"))) {
        r->a->rslora = json_is_true(v);
        if (!json_is_boolean(v))
            e = bad(r, "use_rslora", "must be true or false");
    }
    if (!e && (v = field(r, "lora_dropout"))) {
        double p = json_number_value(v);
        r->a->dropout = (float)p;
        if (!json_is_number(v) || !(p >= 0 && p <= 1))
            e = bad(r, "lora_dropout", "must be a number between 0 and 1");
    }
    if (!e && (v = field(r, "base_model_name_or_path"))) {
        const char *name = json_string_value(v);
        if (!name)
            e = bad(r, "base_model_name_or_path", "must be a string");
        else if (strlen(name) != json_string_length(v) || strlen(name) >= sizeof r->a->base)
            e = bad(r, "base_model_name_or_path", "is too long or holds a NUL");
        else
            memcpy(r->a->base, name, strlen(name) + 1);
    }
    return e;
}

// ---- targets

// Each entry of a list must name something, or the adapter belongs to another model.
static enum err check_entries(const struct reader *r) {
    char name[MDL__ADAPTER_NAME];
    for (size_t i = 0; i < json_array_size(r->targets.list); i++) {
        const char *entry = json_string_value(json_array_get(r->targets.list, i));
        bool found = false;
        for (int32_t layer = 0; !found && layer < r->c->n_layers; layer++)
            for (int t = 0; !found && t < MDL_TARGETS; t++) {
                mdl__adapter_module_name(name, layer, (enum mdl_target)t);
                found = mdl__name_or_suffix(entry, name);
            }
        struct mdl_shown s;
        if (!found)
            return err_set(
                r->m.info, ERR_UNSUPPORTED, NULL,
                "target_modules: %s is no linear layer of this model that an adapter can "
                "have; q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj are",
                mdl_shown(&s, entry, strlen(entry)));
    }
    return ERR_OK;
}

static enum err read_targets(struct reader *r) {
    json_t *v = field(r, "target_modules");
    const char *text = json_string_value(v);
    if (!v || is_unset(v))
        return bad(r, "target_modules", "is missing");
    if (text && (field(r, "layers_to_transform") || field(r, "layers_pattern")))
        return bad(r, "layers_to_transform",
                   "and layers_pattern cannot be used where target_modules is a string");
    if (field(r, "layers_pattern") && !is_unset(field(r, "layers_pattern")) &&
        !field(r, "layers_to_transform"))
        return bad(r, "layers_pattern", "needs layers_to_transform");
    r->all_linear = text && strcasecmp(text, "all-linear") == 0;
    enum err e = r->all_linear ? ERR_OK : mdl__names_init(&r->m, v, "target_modules", &r->targets);
    if (!e)
        e = mdl__names_init(&r->m, field(r, "exclude_modules"), "exclude_modules", &r->exclude);
    if (!e)
        e = mdl__pattern_init(&r->m, field(r, "rank_pattern"), "rank_pattern", &r->ranks);
    if (!e)
        e = mdl__pattern_init(&r->m, field(r, "alpha_pattern"), "alpha_pattern", &r->alphas);
    return e ? e : check_entries(r);
}

// Whether layers_to_transform has the layer, by the number that layers_pattern finds.
static enum err layer_wanted(struct reader *r, int32_t layer, bool *wanted) {
    json_t *list = field(r, "layers_to_transform"), *pattern = field(r, "layers_pattern");
    int32_t number = layer;
    *wanted = true;
    if (!list || (json_is_array(list) && !json_array_size(list)))
        return ERR_OK;
    if (!json_is_integer(list) &&
        (!json_is_array(list) || json_array_size(list) > MDL__ADAPTER_ENTRIES))
        return bad(r, "layers_to_transform", "must be a layer's number or a list of them");
    if (pattern && !is_unset(pattern)) {
        char name[MDL__ADAPTER_NAME];
        mdl__adapter_module_name(name, layer, MDL_TARGET_Q);
        enum err e = mdl__layer_number(&r->m, pattern, name, &number);
        if (e)
            return e;
    }
    size_t n = json_is_array(list) ? json_array_size(list) : 1;
    *wanted = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(list) ? json_array_get(list, i) : list;
        if (!json_is_integer(v))
            return bad(r, "layers_to_transform", "must be a layer's number or a list of them");
        *wanted = *wanted || json_integer_value(v) == number;
    }
    return ERR_OK;
}

static enum err is_target(const struct reader *r, const char *name, bool wanted_layer,
                          bool *target) {
    bool excluded;
    enum err e = mdl__names_match(&r->m, &r->exclude, name, &excluded);
    *target = false;
    if (e || excluded)
        return e;
    if (r->all_linear) {
        *target = true;
        return ERR_OK;
    }
    e = mdl__names_match(&r->m, &r->targets, name, target);
    if (e || !*target || wanted_layer)
        return e;
    // As PEFT has it: an entry that is the whole name counts in any layer.
    *target = false;
    for (size_t i = 0; !*target && i < json_array_size(r->targets.list); i++)
        *target = strcmp(json_string_value(json_array_get(r->targets.list, i)), name) == 0;
    return ERR_OK;
}

static enum err plan_module(struct reader *r, int32_t layer, enum mdl_target t, bool wanted) {
    char name[MDL__ADAPTER_NAME];
    bool target;
    json_t *rank, *alpha;
    int32_t rank_is = r->r;
    double alpha_is = r->alpha;
    mdl__adapter_module_name(name, layer, t);
    enum err e = is_target(r, name, wanted, &target);
    if (e || !target)
        return e;
    e = mdl__pattern_find(&r->m, &r->ranks, name, &rank);
    if (!e)
        e = mdl__pattern_find(&r->m, &r->alphas, name, &alpha);
    if (!e && rank)
        e = rank_value(r, rank, "rank_pattern", &rank_is);
    if (!e && alpha)
        e = alpha_value(r, alpha, "alpha_pattern", &alpha_is);
    if (!e)
        mdl__adapter_target(r->a, layer, t, rank_is, alpha_is);
    return e;
}

static enum err plan(struct reader *r) {
    enum err e = ERR_OK;
    for (int32_t i = 0; !e && i < r->c->n_layers; i++) {
        bool wanted;
        e = layer_wanted(r, i, &wanted);
        for (int t = 0; !e && t < MDL_TARGETS; t++)
            e = plan_module(r, i, (enum mdl_target)t, wanted);
    }
    if (!e && !r->a->max_r)
        e = err_set(r->m.info, ERR_UNSUPPORTED, NULL, "no module of this model is a target");
    return e;
}

static enum err parse(const char *json, size_t n, json_t **out, struct err_info *info) {
    json_error_t je;
    struct mdl_shown s;
    *out = json_load_text(json, n, JSON_REJECT_DUPLICATES, &je);
    if (!*out)
        return err_set(info, json_load_err(&je), NULL, "line %d: %s", je.line,
                       mdl_shown(&s, je.text, strlen(je.text)));
    if (!json_is_object(*out))
        return err_set(info, ERR_FORMAT, NULL, "must be an object");
    return ERR_OK;
}

enum err mdl__adapter_read_config(const char *json, size_t n, const struct mdl_config *c,
                                  const struct mdl_adapter_limits *limits, struct mdl_adapter **out,
                                  struct err_info *info) {
    struct reader r = {.c = c, .m = {.info = info}, .max_rank = KN_LORA_MAX_RANK};
    if (limits && limits->max_rank > 0 && limits->max_rank < KN_LORA_MAX_RANK)
        r.max_rank = limits->max_rank;
    enum err e = parse(json, n, &r.o, info);
    if (!e && !(r.a = mdl__adapter_new(c)))
        e = err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter");
    if (!e)
        e = check_supported(&r);
    if (!e)
        e = read_numbers(&r);
    if (!e)
        e = read_targets(&r);
    if (!e)
        e = plan(&r);
    if (e) {
        err_prefix(info, "%s", MDL__ADAPTER_CONFIG_NAME);
        mdl_adapter_destroy(r.a);
    } else {
        *out = r.a;
    }
    mdl__names_fini(&r.targets);
    mdl__names_fini(&r.exclude);
    mdl__pattern_fini(&r.ranks);
    mdl__pattern_fini(&r.alphas);
    json_decref(r.o);
    return e;
}
