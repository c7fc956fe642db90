// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_params.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "gateway/api_json.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BIAS = 1024 };

uint64_t api_params_random_seed(void) {
    uint64_t seed = 0;
    (void)random_bytes(&seed, sizeof seed);
    return seed;
}

enum err api_params_refuse(const json_t *body, const char *name, const char *dflt_json,
                           struct err_info *info) {
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v))
        return ERR_OK;
    json_t *dflt =
        dflt_json ? json_load_text(dflt_json, strlen(dflt_json), JSON_DECODE_ANY, NULL) : NULL;
    if (dflt_json && !dflt)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    bool same = dflt && json_equal(v, dflt);
    json_decref(dflt);
    if (same)
        return ERR_OK;
    return err_set(info, ERR_INVALID, name, "%s is not supported by this server%s%s", name,
                   dflt_json ? " unless it is " : "; leave it out", dflt_json ? dflt_json : "");
}

static const double least_top_p = 1e-9;

static enum err read_sampling(const struct app *app, const json_t *body, struct eng_sampling *s,
                              struct err_info *info) {
    const struct mdl_config *c = app->config;
    double temperature, top_p, min_p, presence, frequency, repetition;
    int64_t top_k, seed;
    double d_temp = c->gen_temperature >= 0 ? (double)c->gen_temperature : 1;
    double d_top_p = c->gen_top_p >= 0 ? (double)c->gen_top_p : 1;
    double d_min_p = c->gen_min_p >= 0 ? (double)c->gen_min_p : 0;
    double d_rep = c->gen_repetition_penalty > 0 ? (double)c->gen_repetition_penalty : 1;
    int64_t d_top_k = c->gen_top_k >= 0 ? c->gen_top_k : 0;
    enum err rc;
    if ((rc = api_json_num(body, "temperature", 0, 2, d_temp, &temperature, info)) ||
        (rc = api_json_num(body, "top_p", 0, 1, d_top_p, &top_p, info)) ||
        (rc = api_json_num(body, "min_p", 0, 1, d_min_p, &min_p, info)) ||
        (rc = api_json_num(body, "presence_penalty", -2, 2, 0, &presence, info)) ||
        (rc = api_json_num(body, "frequency_penalty", -2, 2, 0, &frequency, info)) ||
        (rc = api_json_num(body, "repetition_penalty", 0.01, 100, d_rep, &repetition, info)) ||
        (rc = api_json_int(body, "top_k", -1, INT32_MAX, d_top_k, &top_k, info)) ||
        (rc = api_json_int(body, "seed", INT64_MIN, INT64_MAX, 0, &seed, info)))
        return rc;
    *s = (struct eng_sampling){
        .temperature = (float)temperature,
        // 0 is legal: the likeliest token alone. So is what a float would round to 0.
        .top_p = top_p > least_top_p ? (float)top_p : (float)least_top_p,
        .min_p = (float)min_p,
        .top_k = top_k < 0 ? 0 : (int32_t)top_k,
        .presence = (float)presence,
        .frequency = (float)frequency,
        .repetition = (float)repetition,
        .seed = api_json_has(body, "seed") ? (uint64_t)seed : api_params_random_seed(),
        .n_logprobs = -1,
    };
    return ERR_OK;
}

static bool parse_token_id(const char *s, uint32_t vocab, int32_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (*s < '0' || *s > '9' || *end || errno || v >= (long long)vocab)
        return false;
    *out = (int32_t)v;
    return true;
}

static enum err read_bias(const struct app *app, const json_t *body, struct arena *arena,
                          struct eng_sampling *s, struct err_info *info) {
    json_t *map = json_object_get(body, "logit_bias");
    if (!map || json_is_null(map))
        return ERR_OK;
    if (!json_is_object(map))
        return err_set(info, ERR_INVALID, "logit_bias", "logit_bias must be an object, not %s",
                       api_json_type_name(map));
    size_t n = json_object_size(map);
    if (n > MAX_BIAS)
        return err_set(info, ERR_INVALID, "logit_bias", "logit_bias has %zu entries, at most %d", n,
                       MAX_BIAS);
    struct kn_token_bias *bias = arena_calloc(arena, n ? n : 1, sizeof *bias);
    if (!bias)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    uint32_t vocab = (uint32_t)app->config->vocab;
    const char *key;
    json_t *value;
    int32_t i = 0;
    json_object_foreach(map, key, value) {
        if (!parse_token_id(key, vocab, &bias[i].id))
            return err_set(info, ERR_INVALID, "logit_bias",
                           "logit_bias key '%.32s' is not a token id from 0 to %u", key, vocab - 1);
        double b = json_number_value(value);
        if (!json_is_number(value) || !(b >= -100 && b <= 100))
            return err_set(info, ERR_INVALID, "logit_bias",
                           "logit_bias[%.32s] must be a number from -100 to 100", key);
        bias[i++].bias = (float)b;
    }
    s->bias = bias;
    s->n_bias = i;
    return ERR_OK;
}

static enum err add_stop(const json_t *v, struct arena *arena, struct api_params *p,
                         struct err_info *info) {
    if (!json_is_string(v))
        return err_set(info, ERR_INVALID, "stop", "stop must hold strings, not %s",
                       api_json_type_name(v));
    size_t len = json_string_length(v);
    if (len == 0)
        return err_set(info, ERR_INVALID, "stop", "a stop string must not be empty");
    if (len > 1024)
        return err_set(info, ERR_INVALID, "stop", "a stop string has %zu bytes, at most 1024", len);
    const char **stops = (const char **)(uintptr_t)p->stops.stops;
    size_t *lens = (size_t *)(uintptr_t)p->stops.stop_lens;
    stops[p->stops.n_stops] = arena_strndup(arena, json_string_value(v), len);
    lens[p->stops.n_stops] = len;
    return stops[p->stops.n_stops++] ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
}

static enum err read_stops(const json_t *body, struct arena *arena, struct api_params *p,
                           struct err_info *info) {
    p->stops.include_stop = p->include_stop;
    const json_t *v = json_object_get(body, "stop");
    if (!v || json_is_null(v))
        return ERR_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > ASM_MAX_STOPS)
        return err_set(info, ERR_INVALID, "stop", "stop has %zu strings, at most %d", n,
                       ASM_MAX_STOPS);
    p->stops.stops = arena_calloc(arena, ASM_MAX_STOPS, sizeof *p->stops.stops);
    p->stops.stop_lens = arena_calloc(arena, ASM_MAX_STOPS, sizeof *p->stops.stop_lens);
    if (!p->stops.stops || !p->stops.stop_lens)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (!json_is_array(v))
        return add_stop(v, arena, p, info);
    for (size_t i = 0; i < n; i++) {
        enum err rc = add_stop(json_array_get(v, i), arena, p, info);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static enum err read_stop_ids(const struct app *app, const json_t *body, struct arena *arena,
                              struct api_params *p, struct err_info *info) {
    const json_t *v = json_object_get(body, "stop_token_ids");
    if (!v || json_is_null(v))
        return ERR_OK;
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > ENG_MAX_STOP_IDS)
        return err_set(info, ERR_INVALID, "stop_token_ids",
                       "stop_token_ids must be an array of at most %d token ids", ENG_MAX_STOP_IDS);
    p->stop_ids = arena_calloc(arena, n ? n : 1, sizeof *p->stop_ids);
    if (!p->stop_ids)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x >= app->config->vocab)
            return err_set(info, ERR_INVALID, "stop_token_ids",
                           "stop_token_ids[%zu] must be a token id from 0 to %d", i,
                           app->config->vocab - 1);
        p->stop_ids[p->n_stop_ids++] = (int32_t)x;
    }
    return ERR_OK;
}

static enum err read_stream_options(const json_t *body, struct api_params *p,
                                    struct err_info *info) {
    const json_t *o = json_object_get(body, "stream_options");
    if (!o || json_is_null(o))
        return ERR_OK;
    if (!json_is_object(o))
        return err_set(info, ERR_INVALID, "stream_options",
                       "stream_options must be an object, not %s", api_json_type_name(o));
    if (!p->stream)
        return err_set(info, ERR_INVALID, "stream_options",
                       "stream_options is only allowed when stream is true");
    return api_json_bool(o, "include_usage", false, &p->include_usage, info);
}

static enum err read_salt(const json_t *body, struct api_params *p, struct err_info *info) {
    const char *salt;
    size_t len;
    enum err rc = api_json_str(body, "cache_salt", false, &salt, &len, info);
    if (rc || !salt)
        return rc;
    if (len == 0 || len > 256)
        return err_set(info, ERR_INVALID, "cache_salt",
                       "cache_salt must have 1 to 256 bytes, got %zu", len);
    // Equal salts must meet, so the key is fixed; the domain stays apart from tenants by the hash's
    // size.
    static const struct hash_key key = {0x67726166742d7361, 0x6c742d6b65793031};
    p->cache_salt = hash_bytes(&key, salt, len) | 1;
    return ERR_OK;
}

enum err api_params_read(const struct app *app, const json_t *body, struct arena *arena,
                         struct api_params *p, struct err_info *info) {
    *p = (struct api_params){0};
    int64_t n, min_tokens, prompt_logprobs, truncate, priority;
    int64_t context = app->max_model_len;
    enum err rc;
    if ((rc = api_json_bool(body, "stream", false, &p->stream, info)) ||
        (rc = api_json_int(body, "n", 1, ENG_MAX_CHOICES, 1, &n, info)) ||
        (rc = api_json_int(body, "min_tokens", 0, context, 0, &min_tokens, info)) ||
        (rc = api_json_bool(body, "ignore_eos", false, &p->ignore_eos, info)) ||
        (rc = api_json_bool(body, "include_stop_str_in_output", false, &p->include_stop, info)) ||
        (rc = api_json_bool(body, "skip_special_tokens", true, &p->skip_special, info)) ||
        (rc = api_json_bool(body, "return_tokens_as_token_ids", false, &p->tokens_as_ids, info)) ||
        (rc = api_json_int(body, "prompt_logprobs", 0, KN_MAX_TOP_LOGPROBS, -1, &prompt_logprobs,
                           info)) ||
        (rc = api_json_int(body, "truncate_prompt_tokens", -1, context, 0, &truncate, info)) ||
        (rc = api_json_int(body, "priority", INT32_MIN, INT32_MAX, 0, &priority, info)) ||
        (rc = read_sampling(app, body, &p->sampling, info)) ||
        (rc = read_bias(app, body, arena, &p->sampling, info)) ||
        (rc = read_stops(body, arena, p, info)) ||
        (rc = read_stop_ids(app, body, arena, p, info)) ||
        (rc = read_stream_options(body, p, info)) || (rc = read_salt(body, p, info)))
        return rc;
    if (api_json_has(body, "truncate_prompt_tokens") && truncate == 0)
        return err_set(info, ERR_INVALID, "truncate_prompt_tokens",
                       "truncate_prompt_tokens must be -1 or from 1 to %d", app->max_model_len);
    if (p->stream && prompt_logprobs >= 0)
        return err_set(info, ERR_INVALID, "prompt_logprobs",
                       "prompt_logprobs is not available when stream is true");
    const char *user;
    if ((rc = api_json_str(body, "user", true, &user, NULL, info)))
        return rc;
    p->n = (int32_t)n;
    p->max_tokens = -1;
    p->min_tokens = (int32_t)min_tokens;
    p->prompt_logprobs = (int32_t)prompt_logprobs;
    p->truncate_prompt = (int32_t)truncate;
    p->priority = (int32_t)priority;
    return ERR_OK;
}
