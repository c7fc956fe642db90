// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_prompt.h"
#include "base/mem.h"
#include "gateway/api_json.h"
#include <string.h>

size_t api_prompt_max_ids(const struct app *app, const struct api_params *p) {
    return p->truncate_prompt ? 0 : (size_t)app->max_model_len;
}

enum err api_prompt_check_text(size_t max_ids, size_t len, const char *field,
                               struct err_info *info) {
    if (max_ids || len <= API_PROMPT_MAX_FREE_TEXT)
        return ERR_OK;
    return err_set(info, ERR_INVALID, field, "%s has %zu bytes, at most %d are taken here", field,
                   len, (int)API_PROMPT_MAX_FREE_TEXT);
}

enum err api_prompt_too_long(const struct app *app, const char *field, struct err_info *info) {
    return err_set(info, ERR_CONTEXT, field,
                   "This model's maximum context length is %d tokens, but %s has more",
                   app->max_model_len, field);
}

enum err api_prompt_take(const struct app *app, const struct tok_ids *ids, const char *field,
                         const struct api_params *p, struct arena *arena, struct gen_prompt *out,
                         struct err_info *info) {
    size_t keep = ids->n, limit = SIZE_MAX;
    if (p->truncate_prompt)
        limit =
            p->truncate_prompt < 0 ? (size_t)app->max_model_len - 1 : (size_t)p->truncate_prompt;
    if (keep > limit)
        keep = limit;
    if (keep == 0)
        return err_set(info, ERR_INVALID, field, "%s must hold at least one token", field);
    if (keep > (size_t)app->max_model_len)
        return api_prompt_too_long(app, field, info);
    int32_t *copy = arena_alloc(arena, keep * sizeof *copy);
    if (!copy)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    memcpy(copy, ids->ids + (ids->n - keep), keep * sizeof *copy);
    out->ids = copy;
    out->n_ids = (int32_t)keep;
    return ERR_OK;
}

static enum err decode_text(const struct app *app, struct arena *arena, struct gen_prompt *out,
                            struct err_info *info) {
    struct buf text;
    buf_init(&text, 0);
    enum err rc = tokenizer_decode(app->tokenizer, out->ids, (size_t)out->n_ids, false, &text);
    if (!rc && buf_err(&text))
        rc = buf_err(&text);
    if (!rc) {
        out->text = arena_strndup(arena, text.data ? text.data : "", text.len);
        out->text_len = text.len;
        rc = out->text ? ERR_OK : ERR_NOMEM;
    }
    buf_fini(&text);
    return rc ? err_set(info, rc, NULL, "%s", err_text(rc)) : ERR_OK;
}

static enum err read_ids(const struct app *app, const json_t *v, const char *field,
                         struct tok_ids *ids, struct err_info *info) {
    size_t n = json_array_size(v);
    ids->ids = mem_calloc(n ? n : 1, sizeof *ids->ids);
    if (!ids->ids)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    ids->cap = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        if (!json_is_integer(id))
            return err_set(info, ERR_INVALID, field, "%s[%zu] must be a token id, not %s", field, i,
                           api_json_type_name(id));
        json_int_t x = json_integer_value(id);
        if (x < 0 || x >= app->config->vocab)
            return err_set(info, ERR_INVALID, field,
                           "%s[%zu] must be a token id from 0 to %d, got %lld", field, i,
                           app->config->vocab - 1, (long long)x);
        ids->ids[ids->n++] = (int32_t)x;
    }
    return ERR_OK;
}

enum err api_prompt_read(const struct app *app, const json_t *v, const char *field,
                         const struct api_params *p, bool add_special, struct arena *arena,
                         struct gen_prompt *out, struct err_info *info) {
    *out = (struct gen_prompt){0};
    struct tok_ids ids = {0};
    enum err rc;
    if (json_is_string(v)) {
        size_t len = json_string_length(v);
        struct tok_encode_opts opts = {add_special, true, api_prompt_max_ids(app, p)};
        rc = api_prompt_check_text(opts.max_ids, len, field, info);
        if (!rc)
            rc = tokenizer_encode(app->tokenizer, json_string_value(v), len, &opts, &ids, info);
        if (rc == ERR_CONTEXT)
            rc = api_prompt_too_long(app, field, info);
        out->text = arena_strndup(arena, json_string_value(v), len);
        out->text_len = len;
        if (!rc && !out->text)
            rc = err_set(info, ERR_NOMEM, NULL, "out of memory");
    } else if (json_is_array(v)) {
        rc = read_ids(app, v, field, &ids, info);
    } else {
        rc = err_set(info, ERR_INVALID, field, "%s must be a string or a list of token ids, not %s",
                     field, api_json_type_name(v));
    }
    if (!rc)
        rc = api_prompt_take(app, &ids, field, p, arena, out, info);
    if (!rc && (!out->text || p->truncate_prompt))
        rc = decode_text(app, arena, out, info);
    tok_ids_fini(&ids);
    return rc;
}

enum err api_prompt_check_room(const struct app *app, const struct gen_prompt *prompt,
                               int32_t max_tokens, const char *field, struct err_info *info) {
    int64_t want = max_tokens < 0 ? 1 : max_tokens; // no limit given: room for one is enough
    if (prompt->n_ids + want <= app->max_model_len)
        return ERR_OK;
    return err_set(info, ERR_CONTEXT, field,
                   "This model's maximum context length is %d tokens. However, you requested %lld "
                   "tokens (%d in the prompt, %lld in the completion)",
                   app->max_model_len, prompt->n_ids + (long long)want, prompt->n_ids,
                   (long long)want);
}
