// SPDX-License-Identifier: Apache-2.0
#include "model/template/lexer.h"
#include "base/utf8.h"
#include "model/template/ast.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <string.h>

struct lexer {
    struct arena *a, *scratch;
    struct err_info *info;
    const char *s; // line breaks are all \n
    size_t n, at;
    int line;
    bool line_start; // what was read last ended a line
    char open[TPL_MAX_NEST];
    size_t n_open; // brackets that wait for their closing one
    struct tpl_token *v;
    size_t n_tok, cap;
};

static enum err no_memory(struct lexer *x) {
    return err_set(x->info, ERR_NOMEM, NULL, "out of memory");
}

static enum err push(struct lexer *x, enum tpl_tok kind, size_t begin, size_t end,
                     struct tpl_val value) {
    if (x->n_tok == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 64;
        struct tpl_token *v = arena_calloc(x->scratch, cap, sizeof *v);
        if (!v)
            return no_memory(x);
        if (x->n_tok)
            memcpy(v, x->v, x->n_tok * sizeof *v);
        x->v = v;
        x->cap = cap;
    }
    x->v[x->n_tok++] = (struct tpl_token){
        .kind = kind, .line = x->line, .p = x->s + begin, .len = end - begin, .value = value};
    return ERR_OK;
}

static enum err push_data(struct lexer *x, size_t begin, size_t end) {
    if (begin == end)
        return ERR_OK;
    struct tpl_str *s = tpl_str_const(x->a, x->s + begin, end - begin);
    return s ? push(x, TPL_T_DATA, begin, end, tpl_str(s)) : no_memory(x);
}

// Moves on to `to`, counting lines.
static void advance(struct lexer *x, size_t to) {
    for (size_t i = x->at; i < to; i++)
        x->line += x->s[i] == '\n';
    if (to > x->at)
        x->line_start = x->s[to - 1] == '\n';
    x->at = to;
}

static size_t skip_space(const struct lexer *x, size_t at) {
    uint32_t cp;
    while (at < x->n) {
        size_t len = tpl_uc_next(x->s + at, x->n - at, &cp);
        if (!tpl_uc_is(TPL_UC_SPACE, cp))
            break;
        at += len;
    }
    return at;
}

static bool starts(const struct lexer *x, size_t at, const char *z) {
    size_t len = strlen(z);
    return x->n - at >= len && memcmp(x->s + at, z, len) == 0;
}

static size_t find(const struct lexer *x, size_t at, const char *z) {
    const char *hit = at < x->n ? memmem(x->s + at, x->n - at, z, strlen(z)) : NULL;
    return hit ? (size_t)(hit - x->s) : SIZE_MAX;
}

// The end of text [begin, end) once the white space before a tag is taken off: all of it for a `-`,
// else what stands alone between the line's start and the tag (never for {{, and not for a `+`).
static size_t strip_before(const struct lexer *x, size_t begin, size_t end, char sign,
                           bool is_var) {
    uint32_t cp;
    size_t at = end;
    if (sign == '+' || (sign != '-' && is_var))
        return end;
    while (at > begin) {
        size_t len = tpl_uc_prev(x->s + begin, at - begin, &cp);
        if (!tpl_uc_is(TPL_UC_SPACE, cp) || (sign != '-' && cp == '\n'))
            break;
        at -= len;
    }
    if (sign == '-')
        return at;
    bool line_start = at > begin ? x->s[at - 1] == '\n' : x->line_start;
    return line_start ? at : end;
}

static char sign_at(const struct lexer *x, size_t at) {
    return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : '\0';
}

// The end of a tag's closing mark at `at` ("%}", "-%}" with the space after it, "+%}"), or 0.
static size_t tag_end(const struct lexer *x, size_t at, const char *mark, bool plus, bool trim) {
    char sign = sign_at(x, at);
    if (sign == '+' && !plus)
        return 0;
    size_t body = at + (sign ? 1 : 0);
    if (!starts(x, body, mark))
        return 0;
    size_t end = body + strlen(mark);
    if (sign == '-')
        return skip_space(x, end);
    if (!sign && trim && end < x->n && x->s[end] == '\n')
        end++;
    return end;
}

// If {% at `at` opens a raw block, the position behind its tag, else 0.
static size_t raw_open(const struct lexer *x, size_t at) {
    size_t p = skip_space(x, at + 2 + (sign_at(x, at + 2) ? 1 : 0));
    if (!starts(x, p, "raw"))
        return 0;
    return tag_end(x, skip_space(x, p + 3), "%}", false, false);
}

static enum err lex_raw(struct lexer *x, size_t body) {
    advance(x, body);
    for (size_t tag = find(x, body, "{%"); tag != SIZE_MAX; tag = find(x, tag + 1, "{%")) {
        char sign = sign_at(x, tag + 2);
        size_t p = skip_space(x, tag + 2 + (sign ? 1 : 0));
        if (!starts(x, p, "endraw"))
            continue;
        size_t end = tag_end(x, skip_space(x, p + 6), "%}", true, true);
        if (!end)
            continue;
        enum err e = push_data(x, body, strip_before(x, body, tag, sign, false));
        advance(x, end);
        return e;
    }
    return err_set(x->info, ERR_TEMPLATE, NULL, "line %d: Missing end of raw directive", x->line);
}

static enum err lex_comment(struct lexer *x, size_t body) {
    for (size_t p = body; (p = find(x, p, "#}")) != SIZE_MAX;) {
        // A sign counts only where the comment's text has room for it.
        size_t mark = p > body && sign_at(x, p - 1) ? p - 1 : p;
        advance(x, tag_end(x, mark, "#}", true, true));
        return ERR_OK;
    }
    return err_set(x->info, ERR_TEMPLATE, NULL, "line %d: Missing end of comment tag", x->line);
}

static enum err unexpected(struct lexer *x) {
    uint32_t cp;
    size_t len = tpl_uc_next(x->s + x->at, x->n - x->at, &cp);
    return err_set(x->info, ERR_TEMPLATE, NULL, "line %d: unexpected char '%.*s' at %zu", x->line,
                   (int)len, x->s + x->at, x->at);
}

static enum err bracket(struct lexer *x, enum tpl_tok kind, char ch) {
    switch (kind) {
    case TPL_T_LPAREN:
    case TPL_T_LBRACKET:
    case TPL_T_LBRACE:
        if (x->n_open == TPL_MAX_NEST)
            return err_set(x->info, ERR_TEMPLATE, NULL, "line %d: brackets nested over %d deep",
                           x->line, TPL_MAX_NEST);
        x->open[x->n_open++] = ch == '(' ? ')' : ch == '[' ? ']' : '}';
        return ERR_OK;
    case TPL_T_RPAREN:
    case TPL_T_RBRACKET:
    case TPL_T_RBRACE:
        if (!x->n_open)
            return err_set(x->info, ERR_TEMPLATE, NULL, "line %d: unexpected '%c'", x->line, ch);
        if (x->open[--x->n_open] != ch)
            return err_set(x->info, ERR_TEMPLATE, NULL, "line %d: unexpected '%c', expected '%c'",
                           x->line, ch, x->open[x->n_open]);
        return ERR_OK;
    default:
        return ERR_OK;
    }
}

static const struct {
    char text[3];
    enum tpl_tok kind;
} operators[] = {
    {"//", TPL_T_FLOORDIV}, {"**", TPL_T_POW},      {"==", TPL_T_EQ},    {"!=", TPL_T_NE},
    {">=", TPL_T_GE},       {"<=", TPL_T_LE},       {"+", TPL_T_ADD},    {"-", TPL_T_SUB},
    {"/", TPL_T_DIV},       {"*", TPL_T_MUL},       {"%", TPL_T_MOD},    {"~", TPL_T_TILDE},
    {"[", TPL_T_LBRACKET},  {"]", TPL_T_RBRACKET},  {"(", TPL_T_LPAREN}, {")", TPL_T_RPAREN},
    {"{", TPL_T_LBRACE},    {"}", TPL_T_RBRACE},    {">", TPL_T_GT},     {"<", TPL_T_LT},
    {"=", TPL_T_ASSIGN},    {".", TPL_T_DOT},       {":", TPL_T_COLON},  {"|", TPL_T_PIPE},
    {",", TPL_T_COMMA},     {";", TPL_T_SEMICOLON},
};

static enum err lex_operator(struct lexer *x) {
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!starts(x, x->at, operators[i].text))
            continue;
        size_t end = x->at + strlen(operators[i].text);
        enum err e = bracket(x, operators[i].kind, operators[i].text[0]);
        if (!e)
            e = push(x, operators[i].kind, x->at, end, tpl_none());
        advance(x, end);
        return e;
    }
    return unexpected(x);
}

static size_t scan_name(const struct lexer *x) {
    size_t at = x->at;
    uint32_t cp;
    while (at < x->n) {
        size_t len = tpl_uc_next(x->s + at, x->n - at, &cp);
        bool first = at == x->at;
        if (cp != '_' && !tpl_uc_is(first ? TPL_UC_ALPHA : TPL_UC_ALNUM, cp))
            break;
        at += len;
    }
    return at;
}

// The end of a string literal that starts at x->at, or 0.
static size_t scan_string(const struct lexer *x) {
    char quote = x->s[x->at];
    for (size_t i = x->at + 1; i < x->n; i++) {
        if (x->s[i] == quote)
            return i + 1;
        if (x->s[i] == '\\')
            i++;
    }
    return 0;
}

static enum err lex_literal(struct lexer *x, size_t end, enum tpl_tok kind) {
    struct tpl_val v;
    enum err e =
        kind == TPL_T_STRING
            ? tpl_literal_string(x->a, x->s + x->at + 1, end - x->at - 2, &v, x->info)
            : tpl_literal_number(x->a, x->s + x->at, end - x->at, kind == TPL_T_FLOAT, &v, x->info);
    if (e) {
        err_prefix(x->info, "line %d", x->line);
        return e;
    }
    e = push(x, kind, x->at, end, v);
    advance(x, end);
    return e;
}

static enum err lex_in_tag(struct lexer *x) {
    bool is_float;
    char ch = x->s[x->at];
    size_t end = skip_space(x, x->at);
    if (end > x->at) {
        advance(x, end);
        return ERR_OK;
    }
    bool after_dot = x->at > 0 && x->s[x->at - 1] == '.';
    size_t len = tpl_scan_number(x->s + x->at, x->n - x->at, after_dot, &is_float);
    if (len)
        return lex_literal(x, x->at + len, is_float ? TPL_T_FLOAT : TPL_T_INTEGER);
    end = scan_name(x);
    if (end > x->at) {
        enum err e = push(x, TPL_T_NAME, x->at, end, tpl_none());
        advance(x, end);
        return e;
    }
    if (ch == '\'' || ch == '"') {
        end = scan_string(x);
        return end ? lex_literal(x, end, TPL_T_STRING) : unexpected(x);
    }
    return lex_operator(x);
}

// From behind {% or {{ to behind its closing mark, or to the end of the template.
static enum err lex_tag(struct lexer *x, bool is_var) {
    enum err e = push(x, is_var ? TPL_T_VAR_BEGIN : TPL_T_BLOCK_BEGIN, x->at, x->at, tpl_none());
    x->n_open = 0;
    while (!e && x->at < x->n) {
        size_t end = x->n_open ? 0 : tag_end(x, x->at, is_var ? "}}" : "%}", !is_var, !is_var);
        if (end) {
            e = push(x, is_var ? TPL_T_VAR_END : TPL_T_BLOCK_END, x->at, end, tpl_none());
            advance(x, end);
            return e;
        }
        e = lex_in_tag(x);
    }
    return e;
}

static size_t find_tag(const struct lexer *x) {
    for (size_t i = x->at; i + 1 < x->n; i++) {
        const char *hit = memchr(x->s + i, '{', x->n - 1 - i);
        if (!hit)
            break;
        i = (size_t)(hit - x->s);
        if (hit[1] == '%' || hit[1] == '{' || hit[1] == '#')
            return i;
    }
    return SIZE_MAX;
}

static enum err lex_all(struct lexer *x) {
    while (x->at < x->n) {
        size_t begin = x->at, tag = find_tag(x);
        if (tag == SIZE_MAX) {
            enum err e = push_data(x, begin, x->n);
            advance(x, x->n);
            if (e)
                return e;
            break;
        }
        char kind = x->s[tag + 1], sign = sign_at(x, tag + 2);
        size_t end = strip_before(x, begin, tag, sign, kind == '{');
        enum err e = push_data(x, begin, end);
        if (e)
            return e;
        size_t raw = kind == '%' ? raw_open(x, tag) : 0;
        advance(x, tag + 2 + (sign ? 1 : 0));
        if (raw)
            e = lex_raw(x, raw);
        else if (kind == '#')
            e = lex_comment(x, x->at);
        else
            e = lex_tag(x, kind == '{');
        if (e)
            return e;
    }
    return push(x, TPL_T_EOF, x->n, x->n, tpl_none());
}

enum err tpl_lex(struct arena *a, struct arena *scratch, const char *text, size_t len,
                 struct tpl_tokens *out, struct err_info *info) {
    char *s = arena_alloc(scratch, len + 1);
    if (!s)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            continue;
        s[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && s[n - 1] == '\n') // one trailing line break is not part of the template
        n--;
    s[n] = '\0';
    struct lexer x = {
        .a = a, .scratch = scratch, .info = info, .s = s, .n = n, .line = 1, .line_start = true};
    enum err e = lex_all(&x);
    *out = (struct tpl_tokens){.v = x.v, .n = x.n_tok};
    return e;
}
