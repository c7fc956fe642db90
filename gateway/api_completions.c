// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions
#include "gateway/api.h"
#include "gateway/api_json.h"
#include "gateway/api_prompt.h"
#include <stdio.h>

static bool is_id_list(const json_t *v) {
    return json_is_array(v) && json_array_size(v) > 0 && json_is_number(json_array_get(v, 0));
}

static enum err read_prompts(const struct app *app, const json_t *body, bool add_special,
                             struct arena *arena, struct gen_spec *spec, struct err_info *info) {
    const json_t *v = json_object_get(body, "prompt");
    if (!v || json_is_null(v))
        return err_set(info, ERR_INVALID, "prompt", "prompt is required");
    bool many = json_is_array(v) && !is_id_list(v);
    size_t n = many ? json_array_size(v) : 1;
    if (n == 0 || n > (size_t)app->max_prompts)
        return err_set(info, ERR_INVALID, "prompt", "prompt must hold 1 to %d prompts, got %zu",
                       app->max_prompts, n);
    struct gen_prompt *prompts = arena_calloc(arena, n, sizeof *prompts);
    if (!prompts)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        char field[32] = "prompt";
        if (many)
            snprintf(field, sizeof field, "prompt[%zu]", i);
        enum err rc = api_prompt_read(app, many ? json_array_get(v, i) : v, field, spec->params,
                                      add_special, arena, &prompts[i], info);
        if (rc)
            return rc;
    }
    spec->prompts = prompts;
    spec->n_prompts = (int32_t)n;
    return ERR_OK;
}

static enum err read_limits(const struct app *app, const json_t *body, struct gen_spec *spec,
                            struct err_info *info) {
    int64_t max_tokens, best_of, logprobs;
    enum err rc;
    if ((rc = api_json_int(body, "max_tokens", 0, INT32_MAX, 16, &max_tokens, info)) ||
        (rc = api_json_int(body, "best_of", 1, ENG_MAX_CHOICES, spec->params->n, &best_of, info)) ||
        (rc = api_json_int(body, "logprobs", 0, KN_MAX_TOP_LOGPROBS, -1, &logprobs, info)) ||
        (rc = api_json_bool(body, "echo", false, &spec->echo, info)) ||
        (rc = api_params_refuse(body, "suffix", "\"\"", info)))
        return rc;
    if (best_of != spec->params->n)
        return err_set(info, ERR_INVALID, "best_of",
                       "best_of is not supported by this server unless it equals n (%d)",
                       spec->params->n);
    bool given = api_json_has(body, "max_tokens");
    spec->max_tokens = (int32_t)max_tokens;
    spec->logprobs = (int32_t)logprobs;
    if (max_tokens && spec->params->min_tokens > max_tokens)
        return err_set(info, ERR_INVALID, "min_tokens",
                       "min_tokens must be at most max_tokens (%d)", spec->max_tokens);
    for (int32_t i = 0; i < spec->n_prompts; i++) {
        int32_t room = app->max_model_len - spec->prompts[i].n_ids;
        if (!given && room > 0 && room < spec->max_tokens)
            spec->max_tokens = room;
        rc = api_prompt_check_room(app, &spec->prompts[i], spec->max_tokens,
                                   given ? "max_tokens" : "prompt", info);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static enum err read_spec(const struct app *app, const json_t *body, struct arena *arena,
                          struct gen_spec *spec, struct err_info *info) {
    struct api_params *params = arena_zalloc(arena, sizeof *params);
    if (!params)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    spec->params = params;
    bool add_special;
    enum err rc;
    (void)((rc = api_check_model(app, body, info)) ||
           (rc = api_params_read(app, body, arena, params, info)) ||
           (rc = api_json_bool(body, "add_special_tokens", true, &add_special, info)) ||
           (rc = read_prompts(app, body, add_special, arena, spec, info)) ||
           (rc = read_limits(app, body, spec, info)));
    return rc;
}

void api_completions(struct gw_request *r, void *arg) {
    api_generate(r, arg, read_spec);
}
