// SPDX-License-Identifier: Apache-2.0
// Chat templates against jinja2: tests/golden/chat_template/cases.json, made by make_golden.py
// there.
#include "chat_support.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

static const char *golden = "tests/golden/chat_template/cases.json";

static json_t *load(void) {
    json_error_t je;
    json_t *j = json_load_file(golden, JSON_ALLOW_NUL, &je);
    if (!j)
        fail_msg("%s: %s", golden, je.text);
    return j;
}

static bool is_literal(const struct chat_output *o, size_t at) {
    for (size_t i = 0; i < o->n_spans; i++) {
        if (at < o->spans[i].end)
            return o->spans[i].literal;
    }
    return false;
}

// The users of the golden scenarios write <|im_end|> after "Hi " and never <|im_start|>.
static void check_provenance(const struct chat_output *o) {
    for (size_t at = 0; at + 12 <= o->text.len; at++) {
        if (memcmp(o->text.data + at, "<|im_start|>", 12) == 0)
            assert_false(is_literal(o, at));
        if (memcmp(o->text.data + at, "Hi <|im_end|>", 12) == 0)
            assert_true(is_literal(o, at + 3) && is_literal(o, at + 11));
    }
}

// True if the case came out as jinja2 has it.
static bool run_case(json_t *file, json_t *c) {
    json_t *text = json_array_get(c, 1), *expected = json_array_get(c, 4);
    json_t *sets = json_object_get(file, "sets"), *error = json_array_get(c, 5);
    bool whole = json_is_integer(text), same;
    if (whole)
        text = json_array_get(json_object_get(file, "templates"), (size_t)json_integer_value(text));
    json_t *vars = json_object_get(sets, json_string_value(json_array_get(c, 2)));
    assert_non_null(vars);
    struct rendered r = render_json(json_string_value(text), json_string_length(text), vars,
                                    json_integer_value(json_array_get(c, 3)), NULL);
    if (json_is_null(expected)) {
        same = r.e == ERR_TEMPLATE || r.e == ERR_LIMIT;
        if (json_is_string(error))
            same = same && strcmp(r.info.message, json_string_value(error)) == 0;
    } else {
        same = !r.e && r.out.text.len == json_string_length(expected) &&
               (r.out.text.len == 0 ||
                memcmp(r.out.text.data, json_string_value(expected), r.out.text.len) == 0);
    }
    if (!r.e) {
        check_spans(&r.out);
        if (whole)
            check_provenance(&r.out);
    }
    if (!same) {
        print_error("%s\n  template: %.200s\n  want: %s\n  got:  %s\n",
                    json_string_value(json_array_get(c, 0)), json_string_value(text),
                    json_is_null(expected) ? "an error" : json_string_value(expected),
                    r.e              ? r.info.message
                    : r.out.text.len ? r.out.text.data
                                     : "");
    }
    rendered_fini(&r);
    return same;
}

static void equals_jinja2(void **state) {
    (void)state;
    json_t *file = load(), *cases = json_object_get(file, "cases"), *c;
    size_t i, wrong = 0;
    assert_true(json_array_size(cases) > 1000);
    json_array_foreach(cases, i, c) {
        wrong += !run_case(file, c);
    }
    json_decref(file);
    assert_int_equal(wrong, 0);
}

static void expect_error(const char *text, const char *message) {
    struct rendered r = render(text, "{\"x\": {\"a\": 1}, \"l\": [1]}");
    assert_int_equal(r.e, ERR_TEMPLATE);
    if (strcmp(r.info.message, message) != 0)
        fail_msg("want: %s\ngot: %s", message, r.info.message);
}

static void errors_name_the_line(void **state) {
    (void)state;
    expect_error("a\n\n{{ y.z }}", "line 3: 'y' is undefined");
    expect_error("{{ x.b.c }}", "line 1: 'dict object' has no attribute 'b'");
    expect_error("\n{{ l[3] + 1 }}", "line 2: list object has no element 3");
    expect_error("{% if true %}\n{% for i in l %}\n{{ 1 + 'a' }}\n{% endfor %}{% endif %}",
                 "line 3: unsupported operand type(s) for +: 'int' and 'str'");
    expect_error("{% macro m(a) %}\n{{ a + 1 }}{% endmacro %}\n\n{{ m('x') }}",
                 "line 2: can only concatenate str (not \"int\") to str");
    expect_error("x\n{{ 1 | nosuch }}", "line 2: No filter named 'nosuch'.");
    expect_error("x\n{% nosuch %}", "line 2: Encountered unknown tag 'nosuch'");
    expect_error("\n\n{{ (1 }}", "line 3: unexpected '}', expected ')'");
    expect_error("{% for i in l %}\n\n",
                 "line 2: Unexpected end of template. Looking for 'endfor'.");
    expect_error("{{ l.append(1) }}",
                 "line 1: access to attribute 'append' of 'list' object is unsafe.");
    expect_error("{# \n", "line 1: Missing end of comment tag");
    // The template's own message stands alone.
    expect_error("\n\n{{ raise_exception('Only \"user\", please: ' ~ x.a) }}",
                 "Only \"user\", please: 1");
}

static void missing_variables_are_an_empty_object(void **state) {
    (void)state;
    struct rendered r = render("[{{ messages }}{{ messages is defined }}]", NULL);
    assert_int_equal(r.e, ERR_OK);
    assert_string_equal(r.out.text.data, "[False]");
    rendered_fini(&r);
    r = render("", "{}");
    assert_int_equal(r.e, ERR_OK);
    assert_int_equal(r.out.text.len, 0);
    assert_int_equal(r.out.n_spans, 0);
    rendered_fini(&r);
}

static void strange_input_is_refused(void **state) {
    (void)state;
    struct rendered r = render_json("a\xff", 2, NULL, 0, NULL);
    assert_int_equal(r.e, ERR_TEMPLATE);
    json_t *list = json_array();
    r = render_json("a", 1, list, 0, NULL);
    assert_int_equal(r.e, ERR_INVALID);
    json_decref(list);
    json_t *bad = json_pack("{s:o}", "x", json_stringn_nocheck("\xf0\x9f", 2));
    r = render_json("{{ x }}", 7, bad, 0, NULL);
    assert_int_equal(r.e, ERR_TEMPLATE);
    json_decref(bad);
}

static void nul_bytes_pass_through(void **state) {
    (void)state;
    const char text[] = "a\0{{ x }}\0{{ x|length }}{{ '\\0'|length }}";
    json_t *vars = json_pack("{s:s#}", "x", "b\0c", (int)3);
    struct rendered r = render_json(text, sizeof text - 1, vars, 0, NULL);
    json_decref(vars);
    assert_int_equal(r.e, ERR_OK);
    assert_int_equal(r.out.text.len, 8);
    assert_memory_equal(r.out.text.data,
                        "a\0b\0c\0"
                        "31",
                        8);
    rendered_fini(&r);
}

static void a_template_renders_again_and_again(void **state) {
    (void)state;
    struct chat_template *t;
    const char *text = "{% set ns = namespace(n=0) %}{% for i in l %}{% set ns.n = ns.n + i %}"
                       "{% endfor %}{{ ns.n }}";
    assert_int_equal(chat_template_parse(text, strlen(text), &t, NULL), ERR_OK);
    for (int i = 1; i <= 3; i++) {
        json_t *vars = json_pack("{s:[i,i]}", "l", i, 1);
        struct chat_render_opts opts = {.vars = vars};
        struct chat_output out;
        char want[8];
        assert_int_equal(chat_template_render(t, &opts, &out, NULL), ERR_OK);
        snprintf(want, sizeof want, "%d", i + 1);
        assert_string_equal(out.text.data, want);
        chat_output_fini(&out);
        json_decref(vars);
    }
    chat_template_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_jinja2),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(missing_variables_are_an_empty_object),
        cmocka_unit_test(strange_input_is_refused),
        cmocka_unit_test(nul_bytes_pass_through),
        cmocka_unit_test(a_template_renders_again_and_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
