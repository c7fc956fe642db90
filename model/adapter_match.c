// SPDX-License-Identifier: Apache-2.0
// Module names as PEFT matches them. Regular expressions are Python's; PCRE2 reads the common part
// alike. They come from outside: their size, their number and the work of a match are bounded.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/buf.h"
#include "base/mem.h"
#include "model/adapter_internal.h"
#include "model/shown.h"
#include <pcre2.h>
#include <string.h>

enum {
    MATCH_STEPS = 20000, // of one match; names have about 40 characters
    MATCH_KIB = 256,
};

struct mdl__regex {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

static void *regex_alloc(size_t n, void *unused) {
    (void)unused;
    return mem_alloc(n);
}

static void regex_release(void *p, void *unused) {
    (void)unused;
    mem_free(p);
}

static void regex_free(struct mdl__regex *r) {
    if (!r)
        return;
    pcre2_match_context_free(r->limits);
    pcre2_match_data_free(r->data);
    pcre2_code_free(r->code);
    mem_free(r);
}

static enum err no_memory(const struct mdl__matcher *m) {
    return err_set(m->info, ERR_NOMEM, NULL, "out of memory for a regular expression");
}

static enum err compile(const struct mdl__matcher *m, struct mdl__regex *r, const char *text,
                        size_t n, uint32_t options, const char *field,
                        pcre2_general_context *memory) {
    int code = 0;
    PCRE2_SIZE at;
    enum { NO_MEMORY = 121 }; // the compiler's own code for it
    pcre2_compile_context *ctx = pcre2_compile_context_create(memory);
    if (!ctx)
        return no_memory(m);
    r->code =
        pcre2_compile((PCRE2_SPTR)text, n,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_ANCHORED | options,
                      &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!r->code && (code == PCRE2_ERROR_NOMEMORY || code == NO_MEMORY))
        return no_memory(m);
    if (!r->code) {
        PCRE2_UCHAR why[128] = "";
        struct mdl_shown s;
        pcre2_get_error_message(code, why, sizeof why);
        return err_set(m->info, ERR_FORMAT, NULL, "%s: the regular expression %s: %s", field,
                       mdl_shown(&s, text, n), (const char *)why);
    }
    r->data = pcre2_match_data_create_from_pattern(r->code, memory);
    r->limits = pcre2_match_context_create(memory);
    if (!r->data || !r->limits)
        return no_memory(m);
    pcre2_set_match_limit(r->limits, MATCH_STEPS);
    pcre2_set_depth_limit(r->limits, MATCH_STEPS);
    pcre2_set_heap_limit(r->limits, MATCH_KIB);
    return ERR_OK;
}

// `text` matches at the begin of a name; with PCRE2_ENDANCHORED the whole of it.
static enum err regex_new(struct mdl__matcher *m, const char *text, size_t n, uint32_t options,
                          const char *field, struct mdl__regex **out) {
    *out = NULL;
    if (n > MDL__ADAPTER_PATTERN)
        return err_set(m->info, ERR_LIMIT, NULL, "%s: a regular expression has more than %d bytes",
                       field, MDL__ADAPTER_PATTERN);
    if (m->n_regexes++ == MDL__ADAPTER_REGEXES)
        return err_set(m->info, ERR_LIMIT, NULL, "more than %d regular expressions",
                       MDL__ADAPTER_REGEXES);
    struct mdl__regex *r = mem_zalloc(sizeof *r);
    pcre2_general_context *memory =
        r ? pcre2_general_context_create(regex_alloc, regex_release, NULL) : NULL;
    enum err e = memory ? compile(m, r, text, n, options, field, memory) : no_memory(m);
    pcre2_general_context_free(memory);
    if (e) {
        regex_free(r);
        return e;
    }
    *out = r;
    return ERR_OK;
}

static enum err regex_match(const struct mdl__matcher *m, const struct mdl__regex *r,
                            const char *name, bool *found) {
    int n = pcre2_match(r->code, (PCRE2_SPTR)name, strlen(name), 0, 0, r->data, r->limits);
    *found = n >= 0;
    if (n >= 0 || n == PCRE2_ERROR_NOMATCH)
        return ERR_OK;
    if (n == PCRE2_ERROR_NOMEMORY)
        return no_memory(m);
    return err_set(m->info, ERR_LIMIT, NULL, "a regular expression takes too long to match %s",
                   name);
}

// ---- lists

bool mdl__name_or_suffix(const char *entry, const char *name) {
    size_t n = strlen(entry), all = strlen(name);
    if (n > all || strcmp(name + all - n, entry) != 0)
        return false;
    return n == all || name[all - n - 1] == '.';
}

enum err mdl__names_init(struct mdl__matcher *m, json_t *v, const char *field,
                         struct mdl__names *out) {
    *out = (struct mdl__names){0};
    if (!v || json_is_null(v))
        return ERR_OK;
    if (json_is_string(v)) {
        if (!json_string_length(v)) // as Python sees it: no value
            return ERR_OK;
        return regex_new(m, json_string_value(v), json_string_length(v), PCRE2_ENDANCHORED, field,
                         &out->regex);
    }
    bool ok = json_is_array(v) && json_array_size(v) <= MDL__ADAPTER_ENTRIES;
    for (size_t i = 0; ok && i < json_array_size(v); i++)
        ok = json_is_string(json_array_get(v, i));
    if (!ok)
        return err_set(m->info, ERR_FORMAT, NULL,
                       "%s: must be a list of at most %d names or a regular expression", field,
                       MDL__ADAPTER_ENTRIES);
    out->list = v;
    return ERR_OK;
}

void mdl__names_fini(struct mdl__names *n) {
    regex_free(n->regex);
    *n = (struct mdl__names){0};
}

enum err mdl__names_match(const struct mdl__matcher *m, const struct mdl__names *n,
                          const char *name, bool *found) {
    *found = false;
    if (n->regex)
        return regex_match(m, n->regex, name, found);
    for (size_t i = 0; !*found && i < json_array_size(n->list); i++)
        *found = mdl__name_or_suffix(json_string_value(json_array_get(n->list, i)), name);
    return ERR_OK;
}

// ---- patterns

// Letters, digits, '_' and '.' alone: names, in which '.' also stands for any other character.
static bool is_plain(const char *s) {
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")] == '\0';
}

// What (.*\.)?(key)$ finds for a plain key.
static bool plain_match(const char *key, const char *name) {
    size_t n = strlen(key), all = strlen(name);
    if (n > all || (n < all && name[all - n - 1] != '.'))
        return false;
    for (size_t i = 0; i < n; i++)
        if (key[i] != '.' && key[i] != name[all - n + i])
            return false;
    return true;
}

static enum err pattern_regex(struct mdl__matcher *m, const char *key, const char *field,
                              struct mdl__regex **out) {
    struct buf b;
    buf_init(&b, 2 * MDL__ADAPTER_PATTERN);
    buf_printf(&b, "(.*\\.)?(%s)$", key);
    enum err e = buf_err(&b);
    if (e)
        err_set(m->info, e, NULL, "%s: a key is too long", field);
    else
        e = regex_new(m, b.data, b.len, 0, field, out);
    buf_fini(&b);
    return e;
}

enum err mdl__pattern_init(struct mdl__matcher *m, json_t *v, const char *field,
                           struct mdl__pattern *out) {
    *out = (struct mdl__pattern){0};
    if (!v || json_is_null(v))
        return ERR_OK;
    if (!json_is_object(v) || json_object_size(v) > MDL__ADAPTER_ENTRIES)
        return err_set(m->info, ERR_FORMAT, NULL, "%s: must be an object of at most %d values",
                       field, MDL__ADAPTER_ENTRIES);
    if (!json_object_size(v))
        return ERR_OK;
    out->regex = mem_calloc(json_object_size(v), sizeof(struct mdl__regex *));
    if (!out->regex)
        return err_set(m->info, ERR_NOMEM, NULL, "out of memory for %s", field);
    out->object = v;
    out->n = json_object_size(v);
    size_t i = 0;
    enum err e = ERR_OK;
    for (void *at = json_object_iter(v); at && !e; at = json_object_iter_next(v, at), i++) {
        const char *key = json_object_iter_key(at);
        if (!is_plain(key))
            e = pattern_regex(m, key, field, &out->regex[i]);
    }
    return e;
}

void mdl__pattern_fini(struct mdl__pattern *p) {
    for (size_t i = 0; i < p->n; i++)
        regex_free(p->regex[i]);
    mem_free(p->regex);
    *p = (struct mdl__pattern){0};
}

enum err mdl__pattern_find(const struct mdl__matcher *m, const struct mdl__pattern *p,
                           const char *name, json_t **value) {
    *value = NULL;
    if (!p->n)
        return ERR_OK;
    size_t i = 0;
    for (void *at = json_object_iter(p->object); at;
         at = json_object_iter_next(p->object, at), i++) {
        bool found = false;
        enum err e = p->regex[i] ? regex_match(m, p->regex[i], name, &found) : ERR_OK;
        if (e)
            return e;
        if (found || (!p->regex[i] && plain_match(json_object_iter_key(at), name))) {
            *value = json_object_iter_value(at);
            return ERR_OK;
        }
    }
    return ERR_OK;
}

// ---- layers

// The digits of group `idx`.
static int32_t group_number(const struct mdl__regex *r, const char *name) {
    int group = pcre2_substring_number_from_name(r->code, (PCRE2_SPTR) "idx");
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(r->data);
    int32_t n = 0;
    if (group < 0 || at[2 * group] == PCRE2_UNSET)
        return -1;
    for (PCRE2_SIZE i = at[2 * group]; i < at[2 * group + 1]; i++) {
        if (name[i] < '0' || name[i] > '9' || n > INT32_MAX / 10 - 1)
            return -1;
        n = n * 10 + (name[i] - '0');
    }
    return n;
}

static enum err number_by(struct mdl__matcher *m, const char *pattern, const char *name,
                          bool *found, int32_t *layer) {
    struct buf b;
    struct mdl__regex *r = NULL;
    buf_init(&b, 2 * MDL__ADAPTER_PATTERN);
    buf_printf(&b, "(?:^|.*?\\.)%s\\.(?P<idx>\\d+)\\.", pattern);
    enum err e = buf_err(&b);
    if (e)
        err_set(m->info, e, NULL, "layers_pattern: too long");
    else
        e = regex_new(m, b.data, b.len, 0, "layers_pattern", &r);
    if (!e)
        e = regex_match(m, r, name, found);
    if (!e && *found)
        *layer = group_number(r, name);
    regex_free(r);
    buf_fini(&b);
    return e;
}

enum err mdl__layer_number(struct mdl__matcher *m, const json_t *layers_pattern, const char *name,
                           int32_t *layer) {
    bool list = json_is_array(layers_pattern), found = false;
    size_t n = list ? json_array_size(layers_pattern) : 1;
    enum err e = ERR_OK;
    *layer = -1;
    if (n > MDL__ADAPTER_LAYER_PATTERNS)
        return err_set(m->info, ERR_LIMIT, NULL, "layers_pattern: more than %d patterns",
                       MDL__ADAPTER_LAYER_PATTERNS);
    for (size_t i = 0; i < n && !e && !found; i++) {
        const char *pattern =
            json_string_value(list ? json_array_get(layers_pattern, i) : layers_pattern);
        if (!pattern)
            return err_set(m->info, ERR_FORMAT, NULL,
                           "layers_pattern: must be a name or a list of names");
        int before = m->n_regexes;
        e = number_by(m, pattern, name, &found, layer);
        m->n_regexes = before; // it lived for this name only
    }
    return e;
}
