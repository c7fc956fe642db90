// SPDX-License-Identifier: Apache-2.0
#include "chat_support.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

struct rendered render_json(const char *text, size_t len, json_t *vars, int64_t now,
                            const struct chat_limits *limits) {
    struct rendered r = {.e = ERR_OK};
    struct chat_template *t = NULL;
    struct chat_render_opts opts = {.vars = vars, .now = now};
    if (limits)
        opts.limits = *limits;
    r.e = chat_template_parse(text, len, &t, &r.info);
    if (!r.e)
        r.e = chat_template_render(t, &opts, &r.out, &r.info);
    chat_template_destroy(t);
    return r;
}

struct rendered render(const char *text, const char *vars) {
    json_error_t je;
    json_t *v = vars ? json_loads(vars, JSON_ALLOW_NUL, &je) : NULL;
    if (vars)
        assert_non_null(v);
    struct rendered r = render_json(text, strlen(text), v, 0, NULL);
    json_decref(v);
    return r;
}

void rendered_fini(struct rendered *r) {
    if (!r->e)
        chat_output_fini(&r->out);
}

void check_spans(const struct chat_output *o) {
    size_t at = 0;
    for (size_t i = 0; i < o->n_spans; i++) {
        assert_int_equal(o->spans[i].begin, at);
        assert_true(o->spans[i].end > at);
        if (i)
            assert_true(o->spans[i].literal != o->spans[i - 1].literal);
        at = o->spans[i].end;
    }
    assert_int_equal(at, o->text.len);
}
