// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize, as vLLM has them.
#include "base/json_write.h"
#include "base/mem.h"
#include "gateway/adapter_demand.h"
#include "gateway/api.h"
#include "gateway/api_json.h"
#include "gateway/api_prompt.h"
#include "gateway/chat_prompt.h"

typedef void (*handler_fn)(struct gw_request *r, void *arg);
typedef enum err (*body_fn)(const struct app *app, const json_t *body, struct arena *arena,
                            struct buf *out, struct err_info *info);

// A model that is not loaded yet has to be found first; then `again` handles the request anew.
static bool waits(struct gw_request *r, const struct app *app, const json_t *body, void *arg,
                  handler_fn again) {
    const char *name = json_string_value(json_object_get(body, "model"));
    return name && adapter_demand_wait(r, app, name, again, arg);
}

static void with_body(struct gw_request *r, void *arg, handler_fn again, body_fn fn) {
    const struct app *app = arg;
    struct err_info info = {0};
    struct buf out;
    buf_init(&out, 0);
    json_t *body = NULL;
    enum err rc = app_check_open(app, &info);
    if (!rc)
        rc = api_json_parse(r->body, r->body_len, &body, &info);
    if (!rc)
        rc = api_check_model(app, body, &info);
    if (!rc && waits(r, app, body, arg, again)) {
        json_decref(body);
        return;
    }
    if (!rc)
        rc = fn(app, body, &r->arena, &out, &info);
    if (!rc && buf_err(&out))
        rc = err_set(&info, ERR_NOMEM, NULL, "out of memory");
    json_decref(body);
    if (rc)
        gw_reply_error(r, &info);
    else
        gw_reply(r, 200, "application/json", out.data, out.len);
    buf_fini(&out);
}

static enum err tokenize_ids(const struct app *app, const json_t *body, struct arena *arena,
                             struct gen_prompt *prompt, struct err_info *info) {
    const struct api_params params = {0};
    if (api_json_has(body, "messages"))
        return chat_prompt_read(app, body, &params, arena, prompt, info);
    bool add_special;
    const char *text;
    enum err rc = api_json_bool(body, "add_special_tokens", true, &add_special, info);
    if (!rc)
        rc = api_json_str(body, "prompt", true, &text, NULL, info);
    if (rc)
        return rc;
    if (!text)
        return err_set(info, ERR_INVALID, "prompt", "prompt or messages is required");
    struct tok_ids ids = {0};
    struct tok_encode_opts opts = {add_special, true, 0};
    const json_t *v = json_object_get(body, "prompt");
    size_t len = json_string_length(v);
    rc = api_prompt_check_text(opts.max_ids, len, "prompt", info);
    if (!rc)
        rc = tokenizer_encode(app->tokenizer, text, len, &opts, &ids, info);
    if (!rc && ids.n > INT32_MAX)
        rc = err_set(info, ERR_INVALID, "prompt", "prompt is too long");
    if (!rc) {
        int32_t *copy = arena_alloc(arena, (ids.n ? ids.n : 1) * sizeof *copy);
        for (size_t i = 0; copy && i < ids.n; i++)
            copy[i] = ids.ids[i];
        prompt->ids = copy;
        prompt->n_ids = (int32_t)ids.n;
        rc = copy ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
    }
    tok_ids_fini(&ids);
    return rc;
}

static enum err tokenize(const struct app *app, const json_t *body, struct arena *arena,
                         struct buf *out, struct err_info *info) {
    struct gen_prompt prompt = {0};
    bool strings;
    enum err rc = api_json_bool(body, "return_token_strs", false, &strings, info);
    if (!rc)
        rc = tokenize_ids(app, body, arena, &prompt, info);
    if (rc)
        return rc;
    struct json_w w = json_w_begin(out);
    jw_obj(&w);
    jw_kint(&w, "count", prompt.n_ids);
    jw_kint(&w, "max_model_len", app->max_model_len);
    jw_key(&w, "tokens");
    jw_arr(&w);
    for (int32_t i = 0; i < prompt.n_ids; i++)
        jw_int(&w, prompt.ids[i]);
    jw_arr_end(&w);
    if (strings) {
        jw_key(&w, "token_strs");
        jw_arr(&w);
        for (int32_t i = 0; i < prompt.n_ids; i++) {
            size_t len;
            const char *bytes = tokenizer_token_bytes(app->tokenizer, prompt.ids[i], &len);
            jw_strn(&w, bytes, len);
        }
        jw_arr_end(&w);
    }
    jw_obj_end(&w);
    return ERR_OK;
}

static enum err detokenize(const struct app *app, const json_t *body, struct arena *arena,
                           struct buf *out, struct err_info *info) {
    (void)arena;
    const json_t *v = json_object_get(body, "tokens");
    if (!json_is_array(v))
        return err_set(info, ERR_INVALID, "tokens", "tokens must be a list of token ids");
    size_t n = json_array_size(v);
    int32_t *ids = mem_calloc(n ? n : 1, sizeof *ids);
    if (!ids)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err rc = ERR_OK;
    for (size_t i = 0; !rc && i < n; i++) {
        const json_t *id = json_array_get(v, i);
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x >= app->config->vocab)
            rc = err_set(info, ERR_INVALID, "tokens", "tokens[%zu] must be a token id from 0 to %d",
                         i, app->config->vocab - 1);
        else
            ids[i] = (int32_t)x;
    }
    struct buf text;
    buf_init(&text, 0);
    if (!rc) {
        rc = tokenizer_decode(app->tokenizer, ids, n, false, &text);
        if (!rc)
            rc = buf_err(&text);
        if (rc)
            err_set(info, rc, NULL, "%s", err_text(rc));
    }
    if (!rc) {
        struct json_w w = json_w_begin(out);
        jw_obj(&w);
        jw_key(&w, "prompt");
        jw_strn(&w, text.data ? text.data : "", text.len);
        jw_obj_end(&w);
    }
    buf_fini(&text);
    mem_free(ids);
    return rc;
}

void api_tokenize(struct gw_request *r, void *arg) {
    with_body(r, arg, api_tokenize, tokenize);
}

void api_detokenize(struct gw_request *r, void *arg) {
    with_body(r, arg, api_detokenize, detokenize);
}
