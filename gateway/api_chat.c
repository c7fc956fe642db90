// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions
#include "gateway/api.h"
#include "gateway/api_json.h"
#include "gateway/api_prompt.h"
#include "gateway/chat_prompt.h"
#include <string.h>

static enum err refuse_unbuilt(const json_t *body, struct err_info *info) {
    enum err rc;
    const json_t *choice = json_object_get(body, "tool_choice");
    bool idle_choice =
        choice && json_is_string(choice) && !strcmp(json_string_value(choice), "none");
    (void)((rc = api_params_refuse(body, "tools", "[]", info)) ||
           (rc = idle_choice ? ERR_OK : api_params_refuse(body, "tool_choice", "\"auto\"", info)) ||
           (rc = api_params_refuse(body, "parallel_tool_calls", "true", info)) ||
           (rc = api_params_refuse(body, "functions", "[]", info)) ||
           (rc = api_params_refuse(body, "function_call", "\"none\"", info)) ||
           (rc = api_params_refuse(body, "response_format", "{\"type\":\"text\"}", info)));
    return rc;
}

static enum err read_limits(const struct app *app, const json_t *body, struct gen_spec *spec,
                            struct err_info *info) {
    bool logprobs;
    int64_t top, max_tokens, max_completion;
    enum err rc;
    if ((rc = api_json_bool(body, "logprobs", false, &logprobs, info)) ||
        (rc = api_json_int(body, "top_logprobs", 0, KN_MAX_TOP_LOGPROBS, 0, &top, info)) ||
        (rc = api_json_int(body, "max_tokens", 0, INT32_MAX, -1, &max_tokens, info)) ||
        (rc = api_json_int(body, "max_completion_tokens", 0, INT32_MAX, -1, &max_completion, info)))
        return rc;
    if (top && !logprobs)
        return err_set(info, ERR_INVALID, "top_logprobs",
                       "top_logprobs is only allowed when logprobs is true");
    spec->logprobs = logprobs ? (int32_t)top : -1;
    spec->max_tokens = (int32_t)(max_completion >= 0 ? max_completion : max_tokens);
    if (spec->max_tokens > 0 && spec->params->min_tokens > spec->max_tokens)
        return err_set(info, ERR_INVALID, "min_tokens",
                       "min_tokens must be at most max_tokens (%d)", spec->max_tokens);
    const char *field = max_completion >= 0 ? "max_completion_tokens"
                        : max_tokens >= 0   ? "max_tokens"
                                            : "messages";
    return api_prompt_check_room(app, spec->prompts, spec->max_tokens, field, info);
}

static enum err read_spec(const struct app *app, const json_t *body, struct arena *arena,
                          struct gen_spec *spec, struct err_info *info) {
    struct api_params *params = arena_zalloc(arena, sizeof *params);
    struct gen_prompt *prompt = arena_zalloc(arena, sizeof *prompt);
    if (!params || !prompt)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    spec->chat = true;
    spec->params = params;
    spec->prompts = prompt;
    spec->n_prompts = 1;
    enum err rc;
    (void)((rc = api_check_model(app, body, info)) || (rc = refuse_unbuilt(body, info)) ||
           (rc = api_params_read(app, body, arena, params, info)) ||
           (rc = chat_prompt_read(app, body, params, arena, prompt, info)) ||
           (rc = read_limits(app, body, spec, info)));
    return rc;
}

void api_chat_completions(struct gw_request *r, void *arg) {
    api_generate(r, arg, read_spec);
}
