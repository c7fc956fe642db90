// SPDX-License-Identifier: Apache-2.0
// Methods of strings that ask about their characters.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/unicode.h"

static enum err all_are(struct tpl_ctx *c, const struct tpl_call *call, enum tpl_uc_prop prop,
                        bool when_empty, struct tpl_val *out) {
    const struct tpl_str *s = call->self.u.s;
    bool all = s->len ? true : when_empty;
    for (size_t at = 0; all && at < s->len;) {
        uint32_t cp;
        at += tpl_uc_next(s->p + at, s->len - at, &cp);
        all = tpl_uc_is(prop, cp);
    }
    *out = tpl_bool(all);
    return tpl_step(c, s->len * 4);
}

static enum err is_alpha(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return all_are(c, call, TPL_UC_ALPHA, false, out);
}

static enum err is_digit(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return all_are(c, call, TPL_UC_DIGIT, false, out);
}

static enum err is_decimal(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return all_are(c, call, TPL_UC_DECIMAL, false, out);
}

static enum err is_numeric(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return all_are(c, call, TPL_UC_NUMERIC, false, out);
}

static enum err is_alnum(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return all_are(c, call, TPL_UC_ALNUM, false, out);
}

static enum err is_space(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return all_are(c, call, TPL_UC_SPACE, false, out);
}

static enum err is_printable(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return all_are(c, call, TPL_UC_PRINTABLE, true, out);
}

static enum err is_ascii(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    (void)c;
    *out = tpl_bool(call->self.u.s->chars == call->self.u.s->len);
    return ERR_OK;
}

// Some character is of this case, and none is of the other or in title case.
static enum err one_case(struct tpl_ctx *c, const struct tpl_call *call, enum tpl_uc_prop want,
                         enum tpl_uc_prop other, struct tpl_val *out) {
    const struct tpl_str *s = call->self.u.s;
    bool some = false;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp;
        at += tpl_uc_next(s->p + at, s->len - at, &cp);
        if (tpl_uc_is(other, cp) || tpl_uc_is(TPL_UC_TITLE, cp)) {
            some = false;
            break;
        }
        some = some || tpl_uc_is(want, cp);
    }
    *out = tpl_bool(some);
    return tpl_step(c, s->len * 4);
}

static enum err is_upper(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return one_case(c, call, TPL_UC_UPPER, TPL_UC_LOWER, out);
}

static enum err is_lower(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return one_case(c, call, TPL_UC_LOWER, TPL_UC_UPPER, out);
}

static enum err is_title(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s = call->self.u.s;
    bool title = true, some = false, inside = false;
    for (size_t at = 0; title && at < s->len;) {
        uint32_t cp;
        at += tpl_uc_next(s->p + at, s->len - at, &cp);
        bool upper = tpl_uc_is(TPL_UC_UPPER, cp) || tpl_uc_is(TPL_UC_TITLE, cp);
        bool lower = tpl_uc_is(TPL_UC_LOWER, cp);
        title = !(upper && inside) && !(lower && !inside);
        inside = upper || lower;
        some = some || inside;
    }
    *out = tpl_bool(title && some);
    return tpl_step(c, s->len * 4);
}

static enum err is_identifier(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s = call->self.u.s;
    bool ok = s->len > 0;
    for (size_t at = 0; ok && at < s->len;) {
        uint32_t cp;
        size_t len = tpl_uc_next(s->p + at, s->len - at, &cp);
        ok = cp == '_' || tpl_uc_is(at ? TPL_UC_ALNUM : TPL_UC_ALPHA, cp);
        at += len;
    }
    *out = tpl_bool(ok);
    return tpl_step(c, s->len * 4);
}

const struct tpl_fn tpl_methods_is[] = {
    {"isalpha", is_alpha, 0, 0, {NULL}},
    {"isdigit", is_digit, 0, 0, {NULL}},
    {"isdecimal", is_decimal, 0, 0, {NULL}},
    {"isnumeric", is_numeric, 0, 0, {NULL}},
    {"isalnum", is_alnum, 0, 0, {NULL}},
    {"isspace", is_space, 0, 0, {NULL}},
    {"isprintable", is_printable, 0, 0, {NULL}},
    {"isascii", is_ascii, 0, 0, {NULL}},
    {"isupper", is_upper, 0, 0, {NULL}},
    {"islower", is_lower, 0, 0, {NULL}},
    {"istitle", is_title, 0, 0, {NULL}},
    {"isidentifier", is_identifier, 0, 0, {NULL}},
    {.name = NULL},
};
