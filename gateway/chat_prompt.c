// SPDX-License-Identifier: Apache-2.0
#include "gateway/chat_prompt.h"
#include "base/mem.h"
#include "gateway/api_json.h"
#include "gateway/api_prompt.h"
#include <stdio.h>
#include <string.h>

enum { MAX_MESSAGES = 16384 };

// A list of text parts becomes one string, lines joined as vLLM does.
static enum err flatten_parts(const json_t *parts, const char *field, json_t **out,
                              struct err_info *info) {
    struct buf text;
    buf_init(&text, 0);
    enum err rc = ERR_OK;
    for (size_t i = 0; !rc && i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *type = json_object_get(part, "type"), *t = json_object_get(part, "text");
        char where[96];
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
        rc = err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (!rc) {
        *out = json_stringn(text.data ? text.data : "", text.len);
        rc = *out ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
    }
    buf_fini(&text);
    return rc;
}

static enum err check_message(json_t *m, size_t i, struct err_info *info) {
    char field[64];
    snprintf(field, sizeof field, "messages[%zu]", i);
    if (!json_is_object(m))
        return err_set(info, ERR_INVALID, field, "%s must be an object, not %s", field,
                       api_json_type_name(m));
    const json_t *role = json_object_get(m, "role");
    if (!json_is_string(role) || json_string_length(role) == 0 ||
        strlen(json_string_value(role)) != json_string_length(role))
        return err_set(info, ERR_INVALID, field, "%s.role must be a string", field);
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer"};
    bool known = false;
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        known |= !strcmp(json_string_value(role), roles[k]);
    if (!known)
        return err_set(info, ERR_INVALID, field,
                       "%s.role '%.32s' is not one of system, user, assistant, tool, developer",
                       field, json_string_value(role));
    json_t *content = json_object_get(m, "content");
    snprintf(field, sizeof field, "messages[%zu].content", i);
    if (json_is_array(content)) {
        json_t *text;
        enum err rc = flatten_parts(content, field, &text, info);
        if (rc)
            return rc;
        return json_object_set_new(m, "content", text)
                   ? err_set(info, ERR_NOMEM, NULL, "out of memory")
                   : ERR_OK;
    }
    if (!content || json_is_null(content)) { // an assistant's turn may be tool calls alone
        if (json_object_get(m, "tool_calls") && !strcmp(json_string_value(role), "assistant"))
            return ERR_OK;
        return err_set(info, ERR_INVALID, field, "%s is required", field);
    }
    if (!json_is_string(content))
        return err_set(info, ERR_INVALID, field,
                       "%s must be a string or a list of text parts, not %s", field,
                       api_json_type_name(content));
    return ERR_OK;
}

// A checked copy of the messages: the request's own stays as it came.
static enum err copy_messages(const json_t *body, json_t **out, struct err_info *info) {
    const json_t *messages = json_object_get(body, "messages");
    if (!messages || json_is_null(messages))
        return err_set(info, ERR_INVALID, "messages", "messages is required");
    if (!json_is_array(messages))
        return err_set(info, ERR_INVALID, "messages", "messages must be a list, not %s",
                       api_json_type_name(messages));
    size_t n = json_array_size(messages);
    if (n == 0 || n > MAX_MESSAGES)
        return err_set(info, ERR_INVALID, "messages",
                       "messages must hold 1 to %d messages, got %zu", MAX_MESSAGES, n);
    json_t *copy = json_deep_copy(messages);
    if (!copy)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        enum err rc = check_message(json_array_get(copy, i), i, info);
        if (rc) {
            json_decref(copy);
            return rc;
        }
    }
    *out = copy;
    return ERR_OK;
}

static enum err add_kwargs(const json_t *body, json_t *vars, struct err_info *info) {
    json_t *kwargs = json_object_get(body, "chat_template_kwargs");
    if (!kwargs || json_is_null(kwargs))
        return ERR_OK;
    if (!json_is_object(kwargs))
        return err_set(info, ERR_INVALID, "chat_template_kwargs",
                       "chat_template_kwargs must be an object, not %s",
                       api_json_type_name(kwargs));
    static const char *const reserved[] = {"chat_template", "tokenize", "tokenizer", "pad_token",
                                           "unk_token"};
    const char *key;
    json_t *value;
    json_object_foreach(kwargs, key, value) {
        bool taken = json_object_get(vars, key) != NULL;
        for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
            taken |= !strcmp(key, reserved[i]);
        if (taken)
            return err_set(info, ERR_INVALID, "chat_template_kwargs",
                           "chat_template_kwargs must not set '%.48s'", key);
        if (json_object_set(vars, key, value))
            return err_set(info, ERR_NOMEM, NULL, "out of memory");
    }
    return ERR_OK;
}

static json_t *token_text(const struct tokenizer *t, int32_t id) {
    size_t len = 0;
    const char *bytes = id >= 0 ? tokenizer_token_bytes(t, id, &len) : "";
    return json_stringn(len ? bytes : "", len);
}

static enum err make_vars(const struct app *app, const json_t *body, bool add_prompt, json_t **out,
                          struct err_info *info) {
    json_t *messages = NULL;
    enum err rc = copy_messages(body, &messages, info);
    if (rc)
        return rc;
    json_t *vars = json_object();
    bool bad = !vars;
    bad |= json_object_set_new(vars, "messages", messages) != 0;
    bad |= json_object_set_new(vars, "add_generation_prompt", json_boolean(add_prompt)) != 0;
    bad |= json_object_set_new(vars, "bos_token",
                               token_text(app->tokenizer, tokenizer_bos(app->tokenizer))) != 0;
    bad |= json_object_set_new(vars, "eos_token",
                               token_text(app->tokenizer, tokenizer_eos(app->tokenizer))) != 0;
    // Templates tell "not given" from "empty" as transformers shows it to them.
    bad |= json_object_set_new(vars, "tools", json_null()) != 0;
    bad |= json_object_set_new(vars, "documents", json_null()) != 0;
    rc = bad ? err_set(info, ERR_NOMEM, NULL, "out of memory") : add_kwargs(body, vars, info);
    if (rc)
        json_decref(vars);
    else
        *out = vars;
    return rc;
}

// Cuts the rendered text right after the final message, so that the model goes on with it.
static enum err cut_after_final(const json_t *vars, struct chat_output *o, struct err_info *info) {
    const json_t *messages = json_object_get(vars, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    const char *s = json_string_value(content);
    size_t n = s ? json_string_length(content) : 0;
    while (n && strchr(" \n\r\t", s[n - 1]))
        n--;
    while (n && strchr(" \n\r\t", *s)) {
        s++;
        n--;
    }
    for (size_t at = o->text.len; n && at >= n; at--)
        if (!memcmp(o->text.data + at - n, s, n)) {
            o->text.len = at;
            while (o->n_spans && o->spans[o->n_spans - 1].begin >= at)
                o->n_spans--;
            if (o->n_spans)
                o->spans[o->n_spans - 1].end = at;
            return ERR_OK;
        }
    return err_set(
        info, ERR_INVALID, "continue_final_message",
        "continue_final_message: the chat template does not show the final message's text");
}

static enum err encode(const struct app *app, const struct chat_output *o,
                       const struct api_params *p, bool add_special, struct arena *arena,
                       struct gen_prompt *out, struct err_info *info) {
    struct tok_piece *pieces = mem_calloc(o->n_spans ? o->n_spans : 1, sizeof *pieces);
    if (!pieces)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (size_t i = 0; i < o->n_spans; i++)
        pieces[i] = (struct tok_piece){o->text.data + o->spans[i].begin,
                                       o->spans[i].end - o->spans[i].begin, o->spans[i].literal};
    struct tok_ids ids = {0};
    struct tok_encode_opts opts = {add_special, true, api_prompt_max_ids(app, p)};
    enum err rc = api_prompt_check_text(opts.max_ids, o->text.len, "messages", info);
    if (!rc)
        rc = tokenizer_encode_pieces(app->tokenizer, pieces, o->n_spans, &opts, &ids, info);
    if (rc == ERR_CONTEXT)
        rc = api_prompt_too_long(app, "messages", info);
    if (!rc)
        rc = api_prompt_take(app, &ids, "messages", p, arena, out, info);
    tok_ids_fini(&ids);
    mem_free(pieces);
    return rc;
}

enum err chat_prompt_read(const struct app *app, const json_t *body, const struct api_params *p,
                          struct arena *arena, struct gen_prompt *out, struct err_info *info) {
    bool go_on, add_prompt, add_special;
    enum err rc;
    if ((rc = api_json_bool(body, "continue_final_message", false, &go_on, info)) ||
        (rc = api_json_bool(body, "add_generation_prompt", !go_on, &add_prompt, info)) ||
        (rc = api_json_bool(body, "add_special_tokens", false, &add_special, info)))
        return rc;
    if (go_on && add_prompt)
        return err_set(info, ERR_INVALID, "continue_final_message",
                       "continue_final_message and add_generation_prompt exclude each other");
    json_t *vars = NULL;
    rc = make_vars(app, body, add_prompt, &vars, info);
    if (rc)
        return rc;
    if (!app->template) {
        json_decref(vars);
        return err_set(info, ERR_TEMPLATE, "messages",
                       "this model has no chat template; use /v1/completions");
    }
    struct chat_render_opts opts = {.vars = vars, .now = clock_wall_ns(app->clock) / 1000000000};
    struct chat_output text = {0};
    rc = chat_template_render(app->template, &opts, &text, info);
    if (rc == ERR_TEMPLATE && info && !info->param[0])
        snprintf(info->param, sizeof info->param, "messages");
    if (!rc && go_on)
        rc = cut_after_final(vars, &text, info);
    if (!rc)
        rc = encode(app, &text, p, add_special, arena, out, info);
    if (!rc) {
        out->text = arena_strndup(arena, text.text.data ? text.text.data : "", text.text.len);
        out->text_len = text.text.len;
        if (!out->text)
            rc = err_set(info, ERR_NOMEM, NULL, "out of memory");
    }
    chat_output_fini(&text);
    json_decref(vars);
    return rc;
}
