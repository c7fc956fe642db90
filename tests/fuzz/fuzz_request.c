// SPDX-License-Identifier: Apache-2.0
// A request's JSON body: parsing, and each field of a completion, against a model that is not
// there. Whatever comes in, the answer is a value in range or an error with a message.
#include "gateway/api_json.h"
#include "gateway/api_params.h"
#include <stdlib.h>

static void check_params(const struct api_params *p) {
    const struct eng_sampling *s = &p->sampling;
    bool ok = p->n >= 1 && p->n <= ENG_MAX_CHOICES && p->min_tokens >= 0 &&
              p->n_stop_ids <= ENG_MAX_STOP_IDS && p->stops.n_stops <= ASM_MAX_STOPS &&
              s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 &&
              s->min_p >= 0 && s->min_p <= 1 && s->top_k >= 0 && s->repetition > 0;
    for (int32_t i = 0; ok && i < s->n_bias; i++)
        ok = s->bias[i].id >= 0 && s->bias[i].id < 288;
    for (int32_t i = 0; ok && i < p->n_stop_ids; i++)
        ok = p->stop_ids[i] >= 0 && p->stop_ids[i] < 288;
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct mdl_config config = {.vocab = 288,
                                             .gen_temperature = -1,
                                             .gen_top_p = -1,
                                             .gen_min_p = -1,
                                             .gen_repetition_penalty = -1,
                                             .gen_top_k = -1};
    const struct app app = {.config = &config, .max_model_len = 256};
    struct err_info info = {0};
    json_t *body = NULL;
    enum err rc = api_json_parse((const char *)data, size, &body, &info);
    if (!rc) {
        struct arena arena;
        struct api_params p;
        arena_init(&arena, 0);
        rc = api_params_read(&app, body, &arena, &p, &info);
        if (!rc)
            check_params(&p);
        arena_fini(&arena);
        json_decref(body);
    }
    if (rc && !info.message[0])
        abort();
    return 0;
}
