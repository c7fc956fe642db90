// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "finetune/dataset_internal.h"
#include "model/chat_prompt.h"
#include "model/json_doc.h"
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_ELEMENTS = 1 << 20, MAX_TOOLS = 1024 };

const char *ft__kind_name(enum ft_kind k) {
    static const char *const names[] = {"a chat line", "a completion line", "a preference line"};
    return names[k];
}

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory while reading the training data");
}

static enum err parse(const struct ft__line *line, json_t **doc, struct err_info *info) {
    static const struct json_doc_limits limits = {MAX_DEPTH, MAX_ELEMENTS, true};
    long long no = line->number;
    struct json_doc_error e;
    const char *nul = memchr(line->text, '\0', line->len);
    if (nul)
        return err_set(info, ERR_INVALID, NULL, "line %lld holds a NUL (byte %zu)", no,
                       (size_t)(nul - line->text) + 1);
    switch (json_doc_parse(line->text, line->len, &limits, doc, &e)) {
    case JSON_DOC_OK:
        break;
    case JSON_DOC_NOMEM:
        return no_memory(info);
    case JSON_DOC_UTF8:
        return err_set(info, ERR_INVALID, NULL, "line %lld is not valid UTF-8 (byte %zu)", no,
                       e.at + 1);
    case JSON_DOC_DEEP:
        return err_set(info, ERR_INVALID, NULL, "line %lld nests deeper than %d levels", no,
                       MAX_DEPTH);
    case JSON_DOC_MANY:
        return err_set(info, ERR_INVALID, NULL, "line %lld has more than %d elements", no,
                       MAX_ELEMENTS);
    case JSON_DOC_SYNTAX:
        if (json_error_code(&e.json) == json_error_premature_end_of_input)
            return err_set(info, ERR_INVALID, NULL, "line %lld ends before its JSON does", no);
        if (json_error_code(&e.json) == json_error_duplicate_key)
            return err_set(info, ERR_INVALID, NULL, "line %lld has a key twice (byte %d)", no,
                           e.json.position);
        return err_set(info, ERR_INVALID, NULL, "line %lld is not valid JSON (byte %d)", no,
                       e.json.position);
    }
    if (!json_is_object(*doc))
        return err_set(info, ERR_INVALID, NULL, "line %lld is not a JSON object", no);
    return ERR_OK;
}

static const json_t *present(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static enum err find_kind(const json_t *doc, enum ft_kind *kind, struct err_info *info) {
    bool chat = json_object_get(doc, "messages") != NULL;
    bool completion = json_object_get(doc, "prompt") || json_object_get(doc, "completion");
    bool preference = json_object_get(doc, "input") || json_object_get(doc, "preferred_output") ||
                      json_object_get(doc, "preferred_completion");
    if (chat + completion + preference == 0)
        return err_set(info, ERR_INVALID, NULL, "it has none of messages, prompt and input");
    if (chat + completion + preference > 1)
        return err_set(info, ERR_INVALID, NULL,
                       "it mixes messages, prompt and input; a line holds one of them");
    *kind = chat ? FT_CHAT : completion ? FT_COMPLETION : FT_PREFERENCE;
    return ERR_OK;
}

// Tools and their kin, of a chat line or of a preference line's input.
static enum err read_tools(const json_t *from, const char *where, json_t **out,
                           struct err_info *info) {
    static const char *const old[] = {"functions", "function_call"};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (present(from, old[i]))
            return err_set(info, ERR_INVALID, NULL, "%s%s is not supported; use tools", where,
                           old[i]);
    const json_t *parallel = present(from, "parallel_tool_calls");
    if (parallel && !json_is_boolean(parallel))
        return err_set(info, ERR_INVALID, NULL, "%sparallel_tool_calls must be a boolean, not %s",
                       where, json_doc_type_name(parallel));
    json_t *tools = json_object_get(from, "tools");
    if (!tools || json_is_null(tools))
        return ERR_OK;
    size_t n = json_array_size(tools);
    if (!json_is_array(tools))
        return err_set(info, ERR_INVALID, NULL, "%stools must be a list, not %s", where,
                       json_doc_type_name(tools));
    if (n > MAX_TOOLS)
        return err_set(info, ERR_INVALID, NULL, "%stools must hold at most %d tools, got %zu",
                       where, MAX_TOOLS, n);
    for (size_t i = 0; i < n; i++)
        if (!json_is_object(json_array_get(tools, i)))
            return err_set(info, ERR_INVALID, NULL, "%stools[%zu] must be an object, not %s", where,
                           i, json_doc_type_name(json_array_get(tools, i)));
    *out = n ? tools : NULL; // as serving: none and an empty list are the same
    return ERR_OK;
}

static bool is_assistant(const json_t *message) {
    return !strcmp(json_string_value(json_object_get(message, "role")), "assistant");
}

// Takes "weight" out of the message, since a template must not see it.
static enum err take_weight(json_t *message, const char *field, bool allowed, int *weight,
                            struct err_info *info) {
    const json_t *w = json_object_get(message, "weight");
    *weight = 1;
    if (!w)
        return ERR_OK;
    if (!json_is_null(w)) {
        double v = json_is_number(w) ? json_number_value(w) : -1;
        bool zero = !(v < 0) && !(v > 0), one = !(v < 1) && !(v > 1);
        if (!zero && !one)
            return err_set(info, ERR_INVALID, NULL, "%s.weight must be 0 or 1", field);
        if (!allowed)
            return err_set(info, ERR_INVALID, NULL,
                           "%s.weight is for assistant messages of chat lines only", field);
        *weight = one;
    }
    (void)json_object_del(message, "weight");
    return ERR_OK;
}

static enum err read_messages(struct ft__example *e, const json_t *from, const char *field,
                              struct err_info *info) {
    enum err rc = chat_messages_copy(json_object_get(from, "messages"), field, &e->messages, info);
    if (rc)
        return rc;
    size_t n = json_array_size(e->messages);
    e->target = mem_zalloc(n);
    if (!e->target)
        return no_memory(info);
    bool chat = e->kind == FT_CHAT, any = false;
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(e->messages, i);
        char where[64];
        int weight;
        snprintf(where, sizeof where, "%s[%zu]", field, i);
        rc = take_weight(m, where, chat && is_assistant(m), &weight, info);
        if (rc)
            return rc;
        any |= is_assistant(m);
        e->target[i] = chat && is_assistant(m) && weight;
    }
    if (chat && !any)
        return err_set(info, ERR_INVALID, NULL, "%s has no assistant message", field);
    if (e->target[0])
        return err_set(info, ERR_INVALID, NULL,
                       "%s[0] is the assistant's; put a message before it or give it weight 0",
                       field);
    return ERR_OK;
}

static enum err read_output(const json_t *doc, const char *name, const char *old_name, json_t **out,
                            struct err_info *info) {
    const json_t *v = present(doc, name), *old = present(doc, old_name);
    if (v && old)
        return err_set(info, ERR_INVALID, NULL, "%s and %s are the same field", name, old_name);
    if (old) {
        v = old;
        name = old_name;
    }
    if (!v)
        return err_set(info, ERR_INVALID, NULL, "%s is required", name);
    if (!json_is_array(v))
        return err_set(info, ERR_INVALID, NULL, "%s must be a list, not %s", name,
                       json_doc_type_name(v));
    if (json_array_size(v) != 1)
        return err_set(info, ERR_INVALID, NULL, "%s must hold 1 message, got %zu", name,
                       json_array_size(v));
    json_t *m = *out = json_deep_copy(json_array_get(v, 0));
    if (!m)
        return no_memory(info);
    char where[64];
    int weight;
    snprintf(where, sizeof where, "%s[0]", name);
    enum err rc = chat_message_check(m, where, info);
    if (!rc && !is_assistant(m))
        rc = err_set(info, ERR_INVALID, NULL, "%s.role must be assistant", where);
    return rc ? rc : take_weight(m, where, false, &weight, info);
}

static enum err read_preference(struct ft__example *e, struct err_info *info) {
    const json_t *input = present(e->doc, "input");
    if (!input)
        return err_set(info, ERR_INVALID, NULL, "input is required");
    if (!json_is_object(input))
        return err_set(info, ERR_INVALID, NULL, "input must be an object, not %s",
                       json_doc_type_name(input));
    enum err rc;
    (void)((rc = read_tools(input, "input.", &e->tools, info)) ||
           (rc = read_messages(e, input, "input.messages", info)) ||
           (rc = read_output(e->doc, "preferred_output", "preferred_completion", &e->output[0],
                             info)) ||
           (rc = read_output(e->doc, "non_preferred_output", "non_preferred_completion",
                             &e->output[1], info)));
    return rc;
}

static enum err read_completion(struct ft__example *e, struct err_info *info) {
    static const char *const names[] = {"prompt", "completion"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = present(e->doc, names[i]);
        if (!v)
            return err_set(info, ERR_INVALID, NULL, "%s is required", names[i]);
        if (!json_is_string(v))
            return err_set(info, ERR_INVALID, NULL, "%s must be a string, not %s", names[i],
                           json_doc_type_name(v));
        *(i ? &e->answer : &e->prompt) = v;
    }
    if (json_string_length(e->answer) == 0)
        return err_set(info, ERR_INVALID, NULL, "completion must not be empty");
    return ERR_OK;
}

static enum err read_fields(struct ft__example *e, struct err_info *info) {
    enum err rc = find_kind(e->doc, &e->kind, info);
    if (rc)
        return rc;
    if (e->kind == FT_COMPLETION)
        return read_completion(e, info);
    if (e->kind == FT_PREFERENCE)
        return read_preference(e, info);
    rc = read_tools(e->doc, "", &e->tools, info);
    return rc ? rc : read_messages(e, e->doc, "messages", info);
}

enum err ft__example_read(const struct ft__line *line, struct ft__example *out,
                          struct err_info *info) {
    *out = (struct ft__example){0};
    enum err rc = parse(line, &out->doc, info);
    if (!rc) {
        rc = read_fields(out, info);
        if (rc)
            err_prefix(info, "line %lld", (long long)line->number);
    }
    if (rc)
        ft__example_fini(out);
    return rc;
}

void ft__example_fini(struct ft__example *e) {
    json_decref(e->doc);
    json_decref(e->messages);
    json_decref(e->output[0]);
    json_decref(e->output[1]);
    mem_free(e->target);
    *e = (struct ft__example){0};
}
