// SPDX-License-Identifier: Apache-2.0
// tokenizer.json's normalizer, pre_tokenizer, post_processor and decoder.
#include "model/tokenizer_hf.h"
#include <string.h>

enum { MAX_STEPS = 16 }; // of a Sequence

static const char *type_of(const json_t *v) {
    const char *type = json_string_value(json_object_get(v, "type"));
    return type ? type : "without a type";
}

static bool is_type(const json_t *v, const char *type) {
    return strcmp(type_of(v), type) == 0;
}

static enum err refuse(struct err_info *info, const char *field, const char *what) {
    return err_set(info, ERR_UNSUPPORTED, NULL, "%s %s is not supported", field,
                   tok__show(what, strlen(what)).text);
}

static enum err wrong(struct err_info *info, const char *field, const char *want) {
    return err_set(info, ERR_FORMAT, NULL, "%s must be %s", field, want);
}

enum err tok__hf_bool(const json_t *object, const char *key, bool absent, bool *out,
                      struct err_info *info) {
    const json_t *v = json_object_get(object, key);
    *out = absent;
    if (!v || json_is_null(v))
        return ERR_OK;
    if (!json_is_boolean(v))
        return wrong(info, key, "true or false");
    *out = json_is_true(v);
    return ERR_OK;
}

// A field is one step or a Sequence of steps: their number, and the k-th one.
static enum err steps_of(const json_t *v, const char *list, const char *field, size_t *n,
                         struct err_info *info) {
    *n = 0;
    if (!v || json_is_null(v))
        return ERR_OK;
    if (!json_is_object(v))
        return wrong(info, field, "an object or null");
    *n = 1;
    if (!is_type(v, "Sequence"))
        return ERR_OK;
    const json_t *steps = json_object_get(v, list);
    if (!json_is_array(steps) || json_array_size(steps) > MAX_STEPS)
        return err_set(info, ERR_FORMAT, NULL, "%s.%s must be a list of at most %d", field, list,
                       (int)MAX_STEPS);
    *n = json_array_size(steps);
    return ERR_OK;
}

static const json_t *step_at(const json_t *v, const char *list, size_t k) {
    return is_type(v, "Sequence") ? json_array_get(json_object_get(v, list), k) : v;
}

enum err tok__hf_normalizer(const json_t *v, struct err_info *info) {
    size_t n;
    enum err e = steps_of(v, "normalizers", "normalizer", &n, info);
    if (e == ERR_OK && n > 0)
        e = refuse(info, "normalizer", type_of(step_at(v, "normalizers", 0)));
    return e;
}

static enum err byte_level_step(struct tokenizer *t, const json_t *v, struct err_info *info) {
    bool prefix_space, use_regex;
    enum err e = tok__hf_bool(v, "add_prefix_space", true, &prefix_space, info);
    if (e == ERR_OK)
        e = tok__hf_bool(v, "use_regex", true, &use_regex, info);
    if (e == ERR_OK && prefix_space)
        e = err_set(info, ERR_UNSUPPORTED, NULL,
                    "pre_tokenizer ByteLevel with add_prefix_space is not supported");
    if (e == ERR_OK && use_regex)
        e = tok__add_stage(t, tok__pattern_gpt2, strlen(tok__pattern_gpt2), info);
    return e;
}

static enum err split_step(struct tokenizer *t, const json_t *v, struct err_info *info) {
    const json_t *regex = json_object_get(json_object_get(v, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(v, "behavior"));
    bool invert;
    enum err e = tok__hf_bool(v, "invert", false, &invert, info);
    if (e != ERR_OK)
        return e;
    if (!json_is_string(regex))
        return refuse(info, "pre_tokenizer", "Split by something else than a Regex");
    if (invert || !behavior || strcmp(behavior, "Isolated") != 0)
        return refuse(info, "pre_tokenizer", "Split other than Isolated");
    return tok__add_stage(t, json_string_value(regex), json_string_length(regex), info);
}

enum err tok__hf_pre_tokenizer(struct tokenizer *t, const json_t *v, struct err_info *info) {
    size_t n;
    bool byte_level = false;
    enum err e = steps_of(v, "pretokenizers", "pre_tokenizer", &n, info);
    for (size_t i = 0; i < n && e == ERR_OK; i++) {
        const json_t *step = step_at(v, "pretokenizers", i);
        bool individual;
        if (byte_level)
            return refuse(info, "pre_tokenizer", "a step after ByteLevel");
        if (is_type(step, "ByteLevel")) {
            byte_level = true;
            e = byte_level_step(t, step, info);
        } else if (is_type(step, "Split")) {
            e = split_step(t, step, info);
        } else if (is_type(step, "Digits")) {
            e = tok__hf_bool(step, "individual_digits", false, &individual, info);
            if (e == ERR_OK)
                e = tok__add_digits_stage(t, individual, info);
        } else {
            e = refuse(info, "pre_tokenizer", type_of(step));
        }
    }
    if (e == ERR_OK && !byte_level)
        e = err_set(info, ERR_UNSUPPORTED, NULL,
                    "a pre_tokenizer that does not end in ByteLevel is not supported");
    return e;
}

// --- post-processor

static enum err push_affix(struct tokenizer *t, bool after, json_int_t id, struct err_info *info) {
    int32_t *list = after ? t->suffix : t->prefix;
    size_t *n = after ? &t->n_suffix : &t->n_prefix;
    if (id < 0 || id >= (json_int_t)t->n_tokens || !(t->tokens[id].flags & TOK__USED))
        return err_set(info, ERR_FORMAT, NULL,
                       "post_processor names id %lld, which is not in the vocabulary",
                       (long long)id);
    if (*n == TOK__MAX_AFFIX)
        return err_set(info, ERR_LIMIT, NULL, "post_processor adds more than %d tokens",
                       (int)TOK__MAX_AFFIX);
    list[(*n)++] = (int32_t)id;
    return ERR_OK;
}

static enum err template_token(struct tokenizer *t, const json_t *v, const json_t *piece,
                               bool after, struct err_info *info) {
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *token = name ? json_object_get(json_object_get(v, "special_tokens"), name) : NULL;
    const json_t *ids = json_object_get(token, "ids");
    if (!json_is_array(ids))
        return wrong(info, "post_processor.special_tokens", "an entry with ids for each one used");
    enum err e = ERR_OK;
    for (size_t i = 0; i < json_array_size(ids) && e == ERR_OK; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id))
            return wrong(info, "post_processor.special_tokens ids", "integers");
        e = push_affix(t, after, json_integer_value(id), info);
    }
    return e;
}

static enum err template_step(struct tokenizer *t, const json_t *v, struct err_info *info) {
    const json_t *single = json_object_get(v, "single");
    bool seen = false;
    enum err e = ERR_OK;
    if (!json_is_array(single))
        return wrong(info, "post_processor.single", "a list");
    for (size_t i = 0; i < json_array_size(single) && e == ERR_OK; i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *sequence = json_object_get(piece, "Sequence");
        const json_t *special = json_object_get(piece, "SpecialToken");
        if (special) {
            e = template_token(t, v, special, seen, info);
        } else {
            const char *id = json_string_value(json_object_get(sequence, "id"));
            if (!id || strcmp(id, "A") != 0 || seen)
                return wrong(info, "post_processor.single", "special tokens around one Sequence A");
            seen = true;
        }
    }
    if (e == ERR_OK && !seen)
        e = wrong(info, "post_processor.single", "special tokens around one Sequence A");
    return e;
}

enum err tok__hf_post_processor(struct tokenizer *t, const json_t *v, struct err_info *info) {
    size_t n;
    bool have_template = false;
    enum err e = steps_of(v, "processors", "post_processor", &n, info);
    for (size_t i = 0; i < n && e == ERR_OK; i++) {
        const json_t *step = step_at(v, "processors", i);
        if (is_type(step, "ByteLevel")) // trims offsets; the ids stay
            continue;
        if (!is_type(step, "TemplateProcessing"))
            return refuse(info, "post_processor", type_of(step));
        if (have_template)
            return refuse(info, "post_processor", "a second TemplateProcessing");
        have_template = true;
        e = template_step(t, step, info);
    }
    return e;
}

enum err tok__hf_decoder(const json_t *v, struct err_info *info) {
    size_t n;
    enum err e = steps_of(v, "decoders", "decoder", &n, info);
    for (size_t i = 0; i < n && e == ERR_OK; i++)
        if (!is_type(step_at(v, "decoders", i), "ByteLevel"))
            e = refuse(info, "decoder", type_of(step_at(v, "decoders", i)));
    return e;
}
