// SPDX-License-Identifier: Apache-2.0
#include "gateway/chat_prompt.h"
#include "gateway/api_json.h"
#include "gateway/api_prompt.h"
#include "model/chat_prompt.h"
#include "model/json_doc.h"
#include <stdio.h>
#include <string.h>

static enum err make_vars(const struct app *app, const json_t *body, bool add_prompt, json_t **out,
                          struct err_info *info) {
    static const char field[] = "chat_template_kwargs";
    json_t *kwargs = json_object_get(body, field);
    if (json_is_null(kwargs))
        kwargs = NULL;
    json_t *messages = NULL;
    enum err rc =
        chat_messages_copy(json_object_get(body, "messages"), "messages", &messages, info);
    if (!rc && kwargs && !json_is_object(kwargs))
        rc = err_set(info, ERR_INVALID, field, "%s must be an object, not %s", field,
                     json_doc_type_name(kwargs));
    struct chat_prompt p = {
        .tokenizer = app->tokenizer,
        .messages = messages,
        .add_generation_prompt = add_prompt,
        .extra = kwargs,
        .extra_field = field,
    };
    if (!rc)
        rc = chat_prompt_vars(&p, out, info);
    json_decref(messages);
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
    struct tok_ids ids = {0};
    struct tok_encode_opts opts = {add_special, true, api_prompt_max_ids(app, p)};
    enum err rc = api_prompt_check_text(opts.max_ids, o->text.len, "messages", info);
    if (!rc)
        rc = chat_prompt_encode(app->tokenizer, o, &opts, &ids, info);
    if (rc == ERR_CONTEXT)
        rc = api_prompt_too_long(app, "messages", info);
    if (!rc)
        rc = api_prompt_take(app, &ids, "messages", p, arena, out, info);
    tok_ids_fini(&ids);
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
