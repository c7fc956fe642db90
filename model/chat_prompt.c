// SPDX-License-Identifier: Apache-2.0
#include "model/chat_prompt.h"
#include "base/mem.h"
#include "model/json_doc.h"
#include <stdio.h>
#include <string.h>

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory");
}

// A list of text parts becomes one string, lines joined as vLLM does.
static enum err flatten_parts(const json_t *parts, const char *field, json_t **out,
                              struct err_info *info) {
    struct buf text;
    buf_init(&text, 0);
    enum err rc = ERR_OK;
    for (size_t i = 0; !rc && i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *type = json_object_get(part, "type"), *t = json_object_get(part, "text");
        char where[128];
        snprintf(where, sizeof where, "%s[%zu]", field, i);
        if (!json_is_object(part) || !json_is_string(type)) {
            rc = err_set(info, ERR_INVALID, where, "%s must be an object with a type", where);
        } else if (strcmp(json_string_value(type), "text") != 0) {
            rc = err_set(info, ERR_INVALID, where, "%s.type '%.32s' is not supported; use text",
                         where, json_string_value(type));
        } else if (!json_is_string(t)) {
            rc = err_set(info, ERR_INVALID, where, "%s.text must be a string", where);
        } else {
            if (i)
                buf_putc(&text, '\n');
            buf_append(&text, json_string_value(t), json_string_length(t));
        }
    }
    if (!rc && buf_err(&text))
        rc = no_memory(info);
    if (!rc) {
        *out = json_stringn(text.data ? text.data : "", text.len);
        rc = *out ? ERR_OK : no_memory(info);
    }
    buf_fini(&text);
    return rc;
}

static enum err check_role(const json_t *role, const char *field, struct err_info *info) {
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer"};
    if (!json_is_string(role) || json_string_length(role) == 0 ||
        strlen(json_string_value(role)) != json_string_length(role))
        return err_set(info, ERR_INVALID, field, "%s.role must be a string", field);
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        if (!strcmp(json_string_value(role), roles[k]))
            return ERR_OK;
    return err_set(info, ERR_INVALID, field,
                   "%s.role '%.32s' is not one of system, user, assistant, tool, developer", field,
                   json_string_value(role));
}

enum err chat_message_check(json_t *m, const char *field, struct err_info *info) {
    if (!json_is_object(m))
        return err_set(info, ERR_INVALID, field, "%s must be an object, not %s", field,
                       json_doc_type_name(m));
    const json_t *role = json_object_get(m, "role");
    enum err rc = check_role(role, field, info);
    if (rc)
        return rc;
    json_t *content = json_object_get(m, "content");
    char where[96];
    snprintf(where, sizeof where, "%s.content", field);
    if (json_is_array(content)) {
        json_t *text;
        rc = flatten_parts(content, where, &text, info);
        if (!rc && json_object_set_new(m, "content", text))
            rc = no_memory(info);
        return rc;
    }
    if (!content || json_is_null(content)) { // an assistant's turn may be tool calls alone
        if (json_object_get(m, "tool_calls") && !strcmp(json_string_value(role), "assistant"))
            return ERR_OK;
        return err_set(info, ERR_INVALID, where, "%s is required", where);
    }
    if (!json_is_string(content))
        return err_set(info, ERR_INVALID, where,
                       "%s must be a string or a list of text parts, not %s", where,
                       json_doc_type_name(content));
    return ERR_OK;
}

enum err chat_messages_copy(const json_t *messages, const char *field, json_t **out,
                            struct err_info *info) {
    if (!messages || json_is_null(messages))
        return err_set(info, ERR_INVALID, field, "%s is required", field);
    if (!json_is_array(messages))
        return err_set(info, ERR_INVALID, field, "%s must be a list, not %s", field,
                       json_doc_type_name(messages));
    size_t n = json_array_size(messages);
    if (n == 0 || n > CHAT_MAX_MESSAGES)
        return err_set(info, ERR_INVALID, field, "%s must hold 1 to %d messages, got %zu", field,
                       CHAT_MAX_MESSAGES, n);
    json_t *copy = json_deep_copy(messages);
    if (!copy)
        return no_memory(info);
    for (size_t i = 0; i < n; i++) {
        char where[80];
        snprintf(where, sizeof where, "%s[%zu]", field, i);
        enum err rc = chat_message_check(json_array_get(copy, i), where, info);
        if (rc) {
            json_decref(copy);
            return rc;
        }
    }
    *out = copy;
    return ERR_OK;
}

static enum err add_extra(const struct chat_prompt *p, json_t *vars, struct err_info *info) {
    static const char *const reserved[] = {"chat_template", "tokenize", "tokenizer", "pad_token",
                                           "unk_token"};
    const char *key;
    json_t *value;
    json_object_foreach(p->extra, key, value) {
        bool taken = json_object_get(vars, key) != NULL;
        for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
            taken |= !strcmp(key, reserved[i]);
        if (taken)
            return err_set(info, ERR_INVALID, p->extra_field, "%s must not set '%.48s'",
                           p->extra_field, key);
        if (json_object_set(vars, key, value))
            return no_memory(info);
    }
    return ERR_OK;
}

static json_t *token_text(const struct tokenizer *t, int32_t id) {
    size_t len = 0;
    const char *bytes = id >= 0 ? tokenizer_token_bytes(t, id, &len) : "";
    return json_stringn(len ? bytes : "", len);
}

enum err chat_prompt_vars(const struct chat_prompt *p, json_t **out, struct err_info *info) {
    const struct tokenizer *t = p->tokenizer;
    json_t *vars = json_object();
    // Templates tell "not given" from "empty" as transformers shows it to them.
    json_t *tools = p->tools ? json_incref(p->tools) : json_null();
    bool bad = !vars;
    bad |= json_object_set(vars, "messages", p->messages) != 0;
    bad |= json_object_set_new(vars, "add_generation_prompt",
                               json_boolean(p->add_generation_prompt)) != 0;
    bad |= json_object_set_new(vars, "bos_token", token_text(t, tokenizer_bos(t))) != 0;
    bad |= json_object_set_new(vars, "eos_token", token_text(t, tokenizer_eos(t))) != 0;
    bad |= json_object_set_new(vars, "tools", tools) != 0;
    bad |= json_object_set_new(vars, "documents", json_null()) != 0;
    enum err rc = bad ? no_memory(info) : add_extra(p, vars, info);
    if (rc)
        json_decref(vars);
    else
        *out = vars;
    return rc;
}

enum err chat_prompt_encode(const struct tokenizer *t, const struct chat_output *o,
                            const struct tok_encode_opts *opts, struct tok_ids *out,
                            struct err_info *info) {
    struct tok_piece *pieces = mem_calloc(o->n_spans ? o->n_spans : 1, sizeof *pieces);
    if (!pieces)
        return no_memory(info);
    for (size_t i = 0; i < o->n_spans; i++)
        pieces[i] = (struct tok_piece){o->text.data + o->spans[i].begin,
                                       o->spans[i].end - o->spans[i].begin, o->spans[i].literal};
    enum err rc = tokenizer_encode_pieces(t, pieces, o->n_spans, opts, out, info);
    mem_free(pieces);
    return rc;
}
