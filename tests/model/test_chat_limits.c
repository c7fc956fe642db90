// SPDX-License-Identifier: Apache-2.0
// A chat template is a stranger's program: what it may cost, and what happens when memory runs out.
#include "base/mem.h"
#include "chat_support.h"
#include "tests/support/cmocka_all.h"
#include <pthread.h>
#include <string.h>

static void expect(const char *text, enum err want) {
    struct rendered r = render(text, "{\"s\": \"abc\", \"l\": [1, 2]}");
    if (r.e != want)
        fail_msg("%.200s: %s instead of %s: %s", text, err_name(r.e), err_name(want),
                 r.e ? r.info.message : "");
    rendered_fini(&r);
}

// `head`, then `part` that many times, then `tail`.
static void expect_repeated(const char *head, const char *part, size_t times, const char *tail,
                            enum err want) {
    struct buf b;
    buf_init(&b, 0);
    buf_puts(&b, head);
    for (size_t i = 0; i < times; i++)
        buf_puts(&b, part);
    buf_puts(&b, tail);
    expect(b.data, want);
    buf_fini(&b);
}

static void steps_are_bounded(void **state) {
    (void)state;
    expect("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           ERR_LIMIT);
    expect("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
           "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
           ERR_LIMIT);
    expect("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
           "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
           ERR_LIMIT);
    expect("{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}"
           "{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}{% endfor %}"
           "{{ ns.x == ns.y }}",
           ERR_LIMIT);
    expect("{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}"
           "{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
           ERR_LIMIT);
    // Searching a long text over and over, from both ends and for long needles.
    expect("{% set x = 'ab' * 500000 %}{% for i in range(99999) %}{{ 'c' in x }}{% endfor %}",
           ERR_LIMIT);
    expect("{% set x = 'a' * 1000000 %}{% set y = 'a' * 500000 + 'b' %}"
           "{% for i in range(999) %}{{ x.rfind(y) }}{% endfor %}",
           ERR_LIMIT);
    expect("{% set x = '\xc3\xa9' * 500000 %}{% for i in range(99999) %}{{ x[i] }}{% endfor %}",
           ERR_LIMIT);
    expect("{% set x = '\xc3\xa9' * 100000 %}{{ x.strip(x + 'a') }}", ERR_LIMIT);
    expect("{{ range(99999)|map('string')|sort|join|length }}", ERR_LIMIT);
}

// Each of these looks at all of a long text, so four hundred of them are not a few thousand steps.
static void long_texts_cost_steps(void **state) {
    (void)state;
    static const char *const uses[] = {
        "x|trim",
        "x[1:]",
        "x[::2]",
        "x.find('z')",
        "x.rfind('z')",
        "x.startswith(x)",
        "x.endswith(x)",
        "x.removeprefix(x)",
        "x == y",
        "x < y",
        "'z' in x",
        "x.count('z')",
        "x.split('z')",
        "x|replace('z', '')",
        "x|truncate(30000)",
        "'%.30000s' % x",
        "'{:.30000}'.format(x)",
        "{x: 1}",
        "x|wordcount",
        "x.isalpha()",
        "x is upper",
        "x[20000]",
        "x.splitlines()",
        "x.partition('z')",
        "d[x]",
        "[1]|map(attribute=x)|list",
        "[1]|sort(attribute=x)",
        "x|int",
        "x|float",
        "x|upper",
        "x ~ 'a'",
        "x|tojson",
        "[x]|string",
        "x|e",
        "strftime_now(x)",
        "x % 1 if false else x.format(1)",
    };
    const struct chat_limits limits = {.max_steps = 30000, .max_memory = 1 << 30};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{%% set x = '\xc3\xa9' * 40000 %%}{%% set y = x + 'a' %%}{%% set x = x + 'b' %%}"
                 "{%% set d = {} %%}{%% for i in range(400) %%}{%% set z = %s %%}{%% endfor %%}",
                 uses[i]);
        struct rendered r = render_json(text, strlen(text), NULL, 0, &limits);
        if (r.e != ERR_LIMIT)
            fail_msg("%s: %s %s", uses[i], err_name(r.e), r.e ? r.info.message : "");
        rendered_fini(&r);
    }
}

static void memory_and_output_are_bounded(void **state) {
    (void)state;
    static const char *const too_much[] = {
        "{{ 'a' * 99999999999 }}",
        "{{ [1, 2] * 99999999999 }}",
        "{{ (1,) * 9223372036854775807 }}",
        "{{ 'a'.center(99999999999) }}",
        "{{ 'a'.zfill(99999999999) }}",
        "{{ 'a\tb'.expandtabs(99999999999) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '%*d' % (99999999999, 1) }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ 'a\nb'|indent(99999999999, true) }}",
        "{{ s|center(99999999999) }}",
        "{{ l|batch(99999999999, 0)|list }}",
        "{{ l|slice(99999999999)|list }}",
        "{{ [[]]|tojson(indent=99999999999) }}",
        ("{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
         "{% endfor %}"),
        ("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
         "{% endfor %}"),
        ("{% set ns = namespace(x='a') %}{% for i in range(99) %}"
         "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}"),
        "{% set x = 'a' * 100000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof too_much / sizeof *too_much; i++)
        expect(too_much[i], ERR_LIMIT);
    expect("{{ range(100001) }}", ERR_TEMPLATE);
    expect("{{ '%.99999d' % 1 }}", ERR_TEMPLATE);
    expect("{{ '{:.99999f}'.format(1) }}", ERR_TEMPLATE);
    expect("{{ strftime_now('%999999999d') }}", ERR_TEMPLATE);
}

static void limits_can_be_set(void **state) {
    (void)state;
    const char *text = "{% for i in range(100) %}{{ 'x' * 10 }}{% endfor %}";
    static const struct {
        struct chat_limits limits;
        enum err want;
    } cases[] = {{{0, 0, 0}, ERR_OK},
                 {{100, 0, 0}, ERR_LIMIT},
                 {{0, 1000, 0}, ERR_OK},
                 {{0, 999, 0}, ERR_LIMIT},
                 {{0, 0, 2000}, ERR_LIMIT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rendered r = render_json(text, strlen(text), NULL, 0, &cases[i].limits);
        assert_int_equal(r.e, cases[i].want);
        rendered_fini(&r);
    }
}

static void growing_text_stays_cheap(void **state) {
    (void)state;
    // A history built up by appending is linear; copying it each round would take 25 GB.
    expect("{% set ns = namespace(x='', l=[]) %}{% for i in range(50000) %}"
           "{% set ns.x = ns.x + '0123456789' * 2 %}{% set ns.l = ns.l + [i] %}{% endfor %}"
           "{{ ns.x|length }}{{ ns.l|length }}",
           ERR_OK);
}

static void depth_is_bounded(void **state) {
    (void)state;
    expect("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ERR_LIMIT);
    expect("{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
           ERR_OK);
    expect("{% for x in l recursive %}{{ loop([1]) }}{% endfor %}", ERR_LIMIT);
    expect("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", ERR_LIMIT);
    expect("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}"
           "{% endfor %}{{ ns.x }}",
           ERR_LIMIT);
    expect("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}"
           "{% endfor %}{{ ns.x|tojson }}",
           ERR_LIMIT);
    expect("{% set ns = namespace(x=l) %}{% for i in range(5000) %}"
           "{% set ns.x = ns.x|map('string') %}{% endfor %}{{ ns.x|list }}",
           ERR_LIMIT);
    expect_repeated("{{ ", "(", 5000, "", ERR_TEMPLATE);
    expect_repeated("{{ ", "[", 90, "", ERR_TEMPLATE);
    expect_repeated("{{ ", "not ", 5000, "1 }}", ERR_TEMPLATE);
    expect_repeated("{{ ", "- ", 5000, "1 }}", ERR_TEMPLATE);
    expect_repeated("{{ 1", " + 1", 5000, " }}", ERR_TEMPLATE);
    expect_repeated("{{ 1", " + 1", 150, " }}", ERR_OK);
    expect_repeated("{{ s", "|trim", 5000, " }}", ERR_TEMPLATE);
    expect_repeated("{{ s", ".x", 5000, " }}", ERR_TEMPLATE);
    expect_repeated("{{ 1", " if 1 else 1", 5000, " }}", ERR_TEMPLATE);
    expect_repeated("", "{% if 1 %}", 5000, "", ERR_TEMPLATE);
    expect_repeated("{% if 0 %}", "{% elif 0 %}", 5000, "{% endif %}", ERR_OK);
    expect_repeated("{{ 'a'", " ~ 'a'", 5000, " }}", ERR_OK);
    expect_repeated("{{ '", "{0:", 5000, "'.format(1) }}", ERR_TEMPLATE);
    expect("{{ '{0:{0:{0:{0}}}}'.format(1) }}", ERR_TEMPLATE);
}

static void deep_variables_are_bounded(void **state) {
    (void)state;
    json_t *v = json_array();
    for (int i = 0; i < 1900; i++)
        v = json_pack("[o]", v);
    json_t *vars = json_pack("{s:o}", "x", v);
    struct rendered r = render_json("{{ x }}", 7, vars, 0, NULL);
    assert_int_equal(r.e, ERR_LIMIT);
    json_decref(vars);
}

static const char *everything =
    "{%- macro m(a, b='d') %}{{ a ~ b }}{{ caller() if caller else varargs }}{% endmacro %}"
    "{% set ns = namespace(t='', l=[]) %}{% set big %}{% for x in range(20) %}{{ x }},{% endfor %}"
    "{% endset %}"
    "{% for k, v in d.items() if v %}{% set ns.t = ns.t + k + '=' + v|string %}"
    "{% set ns.l = ns.l + [k] %}{{ loop.index }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}"
    "{% call m(s|upper, 2) %}x{{ s[1:] }}{% endcall %}{{ m('q', *[1, 2], **{}) }}"
    "{% filter indent(2) %}a\n{{ d|tojson(indent=2, sort_keys=true) }}{% endfilter %}"
    "{{ l|map('string')|join(';') }}{{ us|selectattr('a', 'gt', 1)|map(attribute='a')|list }}"
    "{{ us|sort(attribute='a')|groupby('a')|first }}{{ d|dictsort }}{{ l|batch(2)|list }}"
    "{{ '%s-%05.1f-%x' % (s, 1.5, 255) }}{{ '{:>5}{a!r}'.format(s, a=s) }}{{ s.split('b') }}"
    "{{ l|sum }}{{ l|reverse|list }}{{ ls|unique|list }}{{ s is string and 1 in l }}{{ u|title }}"
    "{{ strftime_now('%d %b') }}{{ dict(a=1) }}{{ {'x': 1, s: [u]} }}{{ range(3) }}{{ '7'|int }}"
    "{% with a=1 %}{{ a }}{% endwith %}{% set c = cycler(1, 2) %}{{ c.next() }}{{ joiner()() }}"
    "{{ s.replace('b', '<') ~ (s|e) + '<' }}{{ big|length }}{{ ns.t }}{{ ns.l }}{{ x.y is defined "
    "}}";
static const char *everything_vars =
    "{\"s\": \"abc\", \"u\": \"h\\u00e9 w\", \"l\": [3, 1, 2], \"ls\": [\"a\", \"A\"], \"x\": {},"
    " \"d\": {\"k1\": 1, \"k2\": \"v\", \"k3\": null, \"k4\": 4, \"k5\": 5, \"k6\": 6, \"k7\": 7,"
    " \"k8\": 8, \"k9\": 9, \"k10\": 10}, \"us\": [{\"a\": 2}, {\"a\": 1}]}";

static void each_failing_allocation_is_reported(void **state) {
    (void)state;
    json_error_t je;
    json_t *vars = json_loads(everything_vars, 0, &je);
    assert_non_null(vars);
    struct rendered whole = render_json(everything, strlen(everything), vars, 0, NULL);
    if (whole.e)
        fail_msg("%s", whole.info.message);
    bool reached_end = false;
    for (uint64_t n = 1; n < 10000 && !reached_end; n++) {
        int64_t before = mem_live_blocks();
        mem_fail_after(n, false);
        struct rendered r = render_json(everything, strlen(everything), vars, 0, NULL);
        reached_end = mem_fail_count() < n;
        mem_fail_after(0, false);
        if (reached_end) {
            assert_int_equal(r.e, ERR_OK);
            assert_string_equal(r.out.text.data, whole.out.text.data);
        } else {
            assert_int_equal(r.e, ERR_NOMEM);
        }
        rendered_fini(&r);
        assert_int_equal(mem_live_blocks(), before);
    }
    assert_true(reached_end);
    rendered_fini(&whole);
    json_decref(vars);
}

static void *render_many(void *arg) {
    struct chat_template *t = arg;
    for (int i = 0; i < 50; i++) {
        json_t *vars = json_pack("{s:[i,i,i]}", "l", i, i + 1, i + 2);
        struct chat_render_opts opts = {.vars = vars};
        struct chat_output out;
        char want[64];
        enum err e = chat_template_render(t, &opts, &out, NULL);
        json_decref(vars);
        if (e)
            return arg;
        snprintf(want, sizeof want, "<%d;%d;%d>%d", i, i + 1, i + 2, 3 * i + 3);
        bool same = strcmp(out.text.data, want) == 0;
        chat_output_fini(&out);
        if (!same)
            return arg;
    }
    return NULL;
}

static void threads_share_a_template(void **state) {
    (void)state;
    const char *text = "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(l|join(';')) }}{{ l|sum }}";
    struct chat_template *t;
    pthread_t threads[4];
    void *failed;
    assert_int_equal(chat_template_parse(text, strlen(text), &t, NULL), ERR_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, t), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    chat_template_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_bounded),
        cmocka_unit_test(long_texts_cost_steps),
        cmocka_unit_test(memory_and_output_are_bounded),
        cmocka_unit_test(limits_can_be_set),
        cmocka_unit_test(growing_text_stays_cheap),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(deep_variables_are_bounded),
        cmocka_unit_test(each_failing_allocation_is_reported),
        cmocka_unit_test(threads_share_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
