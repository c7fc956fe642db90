// SPDX-License-Identifier: Apache-2.0
#include "model/template/ctx.h"
#include "base/mem.h"
#include "base/utf8.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum err tpl_fail(struct tpl_ctx *c, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        text[0] = '\0';
    else if ((size_t)n >= sizeof text)
        text[utf8_valid_prefix(text, strlen(text))] = '\0';
    (void)err_set(c->info, ERR_TEMPLATE, NULL, "line %d: %s", c->line, text);
    return ERR_TEMPLATE;
}

enum err tpl_fail_limit(struct tpl_ctx *c, const char *what) {
    (void)err_set(c->info, ERR_LIMIT, NULL, "line %d: the chat template needs too %s", c->line,
                  what);
    return ERR_LIMIT;
}

// As much of a name as a message holds.
static int shown(const struct tpl_str *s) {
    return (int)(s->len <= 80 ? s->len : utf8_valid_prefix(s->p, 80));
}

enum err tpl_fail_undef(struct tpl_ctx *c, const struct tpl_val *v) {
    const struct tpl_undef *u = v->u.undef;
    if (u->hint)
        return tpl_fail(c, "%s", u->hint);
    if (!u->owner)
        return tpl_fail(c, "'%.*s' is undefined", u->name ? shown(u->name) : 0,
                        u->name ? u->name->p : "");
    if (u->name)
        return tpl_fail(c, "'%s' has no attribute '%.*s'", u->owner, shown(u->name), u->name->p);
    return tpl_fail(c, "%s has no element %" PRId64, u->owner, u->index);
}

enum err tpl_step(struct tpl_ctx *c, size_t work) {
    uint64_t cost = 1 + work / TPL_WORK_PER_STEP;
    if (cost > c->max_steps - c->steps)
        return tpl_fail_limit(c, "many steps");
    c->steps += cost;
    return ERR_OK;
}

enum err tpl_enter(struct tpl_ctx *c) {
    if (c->depth >= TPL_MAX_DEPTH)
        return tpl_fail_limit(c, "deep a recursion");
    c->depth++;
    return ERR_OK;
}

enum err tpl_alloc(struct tpl_ctx *c, size_t n, size_t size, void *out) {
    size_t bytes;
    bool fits = mem_mul(n, size, &bytes) && bytes < SIZE_MAX / 4;
    void *p = fits ? arena_zalloc(&c->arena, bytes) : NULL;
    memcpy(out, &p, sizeof p);
    if (p)
        return ERR_OK;
    if (!fits || (c->arena.max && bytes + 16 > c->arena.max - c->arena.used))
        return tpl_fail_limit(c, "much memory");
    (void)err_set(c->info, ERR_NOMEM, NULL, "out of memory");
    return ERR_NOMEM;
}

enum err tpl_undef_hint(struct tpl_ctx *c, const char *hint, struct tpl_val *out) {
    struct tpl_undef *u;
    enum err e = tpl_alloc(c, 1, sizeof *u, &u);
    if (e)
        return e;
    u->hint = hint;
    *out = (struct tpl_val){.kind = TPL_UNDEF, .u.undef = u};
    return ERR_OK;
}

static const char *owner_name(const struct tpl_val *v) {
    switch (v->kind) {
    case TPL_NONE:
        return "None";
    case TPL_BOOL:
        return "bool object";
    case TPL_INT:
        return "int object";
    case TPL_FLOAT:
        return "float object";
    case TPL_STR:
        return "str object";
    case TPL_LIST:
        return "list object";
    case TPL_TUPLE:
        return "tuple object";
    case TPL_DICT:
        return "dict object";
    case TPL_NS:
        return "namespace object";
    default:
        return "object";
    }
}

enum err tpl_undef_member(struct tpl_ctx *c, const struct tpl_val *owner,
                          const struct tpl_val *name, struct tpl_val *out) {
    enum err e = tpl_undef_hint(c, NULL, out);
    if (e)
        return e;
    struct tpl_undef u = {.owner = owner_name(owner)};
    if (name->kind == TPL_STR)
        u.name = name->u.s;
    else if (!tpl_as_int(name, &u.index))
        u.hint = "the object has no such element";
    struct tpl_undef *to;
    e = tpl_alloc(c, 1, sizeof *to, &to);
    if (e)
        return e;
    *to = u;
    out->u.undef = to;
    return ERR_OK;
}
