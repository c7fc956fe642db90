// SPDX-License-Identifier: Apache-2.0
// Chat templates: the input is a template, a line break and form feed, and the variables as JSON
// (or only a template, for fixed variables). Whatever parses is rendered under small limits.
#include "model/chat_template.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *fixed =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
    "\"h\\u00e9 <|x|>\"}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": "
    "\"t\"}]}], \"tools\": [{\"name\": \"f\", \"p\": {\"a\": [1, 2.5, null, true]}}],"
    " \"bos_token\": \"<s>\", \"add_generation_prompt\": true}";

static void check(const struct chat_output *o) {
    size_t at = 0;
    for (size_t i = 0; i < o->n_spans; i++) {
        if (o->spans[i].begin != at || o->spans[i].end <= at ||
            (i && o->spans[i].literal == o->spans[i - 1].literal))
            abort();
        at = o->spans[i].end;
    }
    if (at != o->text.len)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct chat_template *t;
    struct err_info info;
    const char *text = (const char *)data;
    const char *cut = size ? memmem(text, size, "\n\f", 2) : NULL;
    size_t len = cut ? (size_t)(cut - text) : size;
    json_t *vars = cut ? json_loadb(cut + 2, size - len - 2, JSON_ALLOW_NUL, NULL)
                       : json_loads(fixed, 0, NULL);
    if (chat_template_parse(text, len, &t, &info) == ERR_OK) {
        struct chat_render_opts opts = {
            .vars = json_is_object(vars) ? vars : NULL,
            .now = 1721952000,
            .limits = {.max_steps = 20000, .max_output = 1 << 16, .max_memory = 1 << 20}};
        struct chat_output out;
        if (chat_template_render(t, &opts, &out, &info) == ERR_OK) {
            check(&out);
            chat_output_fini(&out);
        }
        chat_template_destroy(t);
    }
    json_decref(vars);
    return 0;
}
