// SPDX-License-Identifier: Apache-2.0
// Where the text of a rendered chat came from: the template itself, or the variables. The expected
// runs are written out by hand: [T:...] is the template's, [L:...] literal.
#include "base/mem.h"
#include "chat_support.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

static const char *vars =
    "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"pad_token\": \"<p>\", \"unk_token\": "
    "\"<u>\","
    " \"role\": \"user\", \"text\": \"  <|im_end|> hi\\n\", \"list\": [\"a\", \"b\"], \"n\": 5,"
    " \"uni\": \"\\u00e9\\u4f60x\", \"map\": {\"k\": \"v\"}, \"own\": {\"bos_token\": \"<s>\"}}";

static void runs(const char *text, const char *want) {
    struct rendered r = render(text, vars);
    struct buf b;
    if (r.e)
        fail_msg("%s: %s", text, r.info.message);
    check_spans(&r.out);
    buf_init(&b, 0);
    for (size_t i = 0; i < r.out.n_spans; i++) {
        const struct chat_span *s = &r.out.spans[i];
        buf_printf(&b, "[%c:%.*s]", s->literal ? 'L' : 'T', (int)(s->end - s->begin),
                   r.out.text.data + s->begin);
    }
    buf_putc(&b, '\0');
    if (strcmp(b.data, want) != 0)
        fail_msg("%s\nwant %s\ngot  %s", text, want, b.data);
    buf_fini(&b);
    rendered_fini(&r);
}

static void text_and_variables(void **state) {
    (void)state;
    runs("plain", "[T:plain]");
    runs("{{ role }}", "[L:user]");
    runs("a{{ role }}b{{ 'c' }}d", "[T:a][L:user][T:bcd]");
    runs("{{ role }}{{ role }}", "[L:useruser]");
    runs("{{ n }}{{ true }}{{ none }}{{ 1.5 }}", "[T:5TrueNone1.5]");
    runs("{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}", "[T:<s></s><p><u>]");
    runs("{{ own.bos_token }}", "[L:<s>]");
    runs("{% for k in map %}{{ k }}={{ map[k] }}{% endfor %}", "[L:k][T:=][L:v]");
}

static void joining_keeps_each_part(void **state) {
    (void)state;
    runs("{{ '<|im_start|>' + role + '\\n' + text | trim + '<|im_end|>' }}",
         "[T:<|im_start|>][L:user][T:\n][L:<|im_end|> hi][T:<|im_end|>]");
    runs("{{ '<' ~ role ~ '>' ~ n ~ role }}", "[T:<][L:user][T:>5][L:user]");
    runs("{{ list | join(', ') }}", "[L:a][T:, ][L:b]");
    runs("{{ ', '.join(list) }}", "[L:a][T:, ][L:b]");
    runs("{{ ['x', role] | join(role) }}", "[T:x][L:useruser]");
    runs("{% set x = '<' + role %}{% set y = x + '>' %}{% set z = x + role %}{{ y }}{{ z }}{{ x }}",
         "[T:<][L:user][T:><][L:useruser][T:<][L:user]");
    runs("{{ (role + 'x') * 2 }}", "[L:user][T:x][L:user][T:x]");
}

static void captured_text_keeps_its_parts(void **state) {
    (void)state;
    runs("{% set x %}<{{ role }}>{% endset %}{{ x }}|{{ x | trim }}",
         "[T:<][L:user][T:>|<][L:user][T:>]");
    runs("{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(role) + m('c') }}", "[T:[][L:user][T:][c]]");
    runs("{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}a{{ role }}{% endcall %}",
         "[T:(a][L:user][T:)]");
    runs("{% filter trim %} a{{ role }} {% endfilter %}", "[T:a][L:user]");
    runs("{% generation %}a{{ role }}{% endgeneration %}", "[T:a][L:user]");
    runs("{% set ns = namespace(t='') %}{% for i in list %}{% set ns.t = ns.t + i + ';' %}"
         "{% endfor %}{{ ns.t }}",
         "[L:a][T:;][L:b][T:;]");
}

static void parts_keep_their_runs(void **state) {
    (void)state;
    runs("{% set x = 'ab' + role + 'cd' %}{{ x[1:4] }}|{{ x[2:6] }}|{{ x[6:] }}|{{ x[0] }}{{ x[-5] "
         "}}",
         "[T:b][L:us][T:|][L:user][T:|cd|a][L:s]");
    runs("{{ ('ab' + role)[::-1] }}", "[L:resu][T:ba]");
    runs("{{ (' ' + text + ' ') | trim }}", "[L:<|im_end|> hi]");
    runs("{{ ('a-' + role + '-b').split('-') | join('+') }}", "[T:a+][L:user][T:+b]");
    runs("{% for ch in 'x' + role[:2] %}{{ ch }}.{% endfor %}", "[T:x.][L:u][T:.][L:s][T:.]");
    runs("{{ ('<' + uni + '>')[1:3] }}{{ uni[1] }}", "[L:\xc3\xa9\xe4\xbd\xa0\xe4\xbd\xa0]");
    runs("{{ ('[' + role + ']').removeprefix('[') }}", "[L:user][T:]]");
    runs("{{ role.replace('s', '<|x|>') }}", "[L:u][T:<|x|>][L:er]");
    runs("{{ '<|a|>b'.replace('b', role) }}", "[T:<|a|>][L:user]");
}

static void conversions_stay_literal(void **state) {
    (void)state;
    runs("{{ role | upper }}{{ ('<' + role) | upper }}", "[L:USER][T:<][L:USER]");
    runs("{{ list }}", "[T:['][L:a][T:', '][L:b][T:']]");
    runs("{{ map | tojson }}", "[T:{\"][L:k][T:\": \"][L:v][T:\"}]");
    runs("{{ {'a': '<|x|>'} | tojson }}", "[T:{\"a\": \"<|x|>\"}]");
    runs("{{ '%s<%d' % (role, 3) }}{{ '{}!'.format(role) }}", "[L:user][T:<3][L:user][T:!]");
    runs("{{ role | e }}{{ text | length }}{{ role | default('x') }}", "[L:user][T:16][L:user]");
    runs("{{ role | indent }}{{ role.center(8, '*') }}", "[L:user][T:**][L:user][T:**]");
    runs("{{ '<|im_end|>' if role == 'user' else role }}", "[T:<|im_end|>]");
    runs("{{ list | string | length }}{{ role | list | first }}", "[T:10][L:u]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_variables),
        cmocka_unit_test(joining_keeps_each_part),
        cmocka_unit_test(captured_text_keeps_its_parts),
        cmocka_unit_test(parts_keep_their_runs),
        cmocka_unit_test(conversions_stay_literal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
