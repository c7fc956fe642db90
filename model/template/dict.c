// SPDX-License-Identifier: Apache-2.0
// Dictionaries, lists and pairs. Hashes are keyed, since the keys of a request's JSON are not ours.
#include "base/hash.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include <math.h>
#include <string.h>

enum { LINEAR_MAX = 8 }; // entries that are looked through without an index

static enum err hash_tuple(struct tpl_ctx *c, const struct tpl_list *l, uint64_t *out) {
    uint64_t h = 0x9e3779b97f4a7c15u;
    enum err e = tpl_enter(c);
    if (e)
        return e;
    for (size_t i = 0; !e && i < l->n; i++) {
        uint64_t item = 0;
        e = tpl_hash(c, &l->v[i], &item);
        h = hash_mix64(h ^ item);
    }
    tpl_leave(c);
    *out = h;
    return e;
}

enum err tpl_hash(struct tpl_ctx *c, const struct tpl_val *v, uint64_t *out) {
    enum err e = tpl_step(c, v->kind == TPL_STR ? v->u.s->len : 0);
    int64_t i;
    if (e)
        return e;
    *out = hash_mix64((uint64_t)v->kind);
    if (tpl_as_int(v, &i)) {
        *out = hash_mix64((uint64_t)i ^ c->key.k0);
        return ERR_OK;
    }
    switch (v->kind) {
    case TPL_FLOAT:                                                         // 1 and 1.0 are one key
        if (v->u.f >= -9e18 && v->u.f <= 9e18 && v->u.f == floor(v->u.f)) { // NOLINT
            *out = hash_mix64((uint64_t)(int64_t)v->u.f ^ c->key.k0);
            return ERR_OK;
        }
        *out = hash_bytes(&c->key, &v->u.f, sizeof v->u.f);
        return ERR_OK;
    case TPL_STR:
        *out = hash_bytes(&c->key, v->u.s->p, v->u.s->len);
        return ERR_OK;
    case TPL_TUPLE:
        return hash_tuple(c, v->u.l, out);
    case TPL_LIST:
    case TPL_DICT:
    case TPL_VIEW:
        return tpl_fail(c, "unhashable type: '%s'", tpl_type_name(v));
    default:
        return ERR_OK;
    }
}

enum err tpl_dict_new(struct tpl_ctx *c, size_t room, struct tpl_dict **out) {
    struct tpl_dict *d;
    enum err e = tpl_alloc(c, 1, sizeof *d, &d);
    if (!e && room)
        e = tpl_alloc(c, room, sizeof *d->e, &d->e);
    if (e)
        return e;
    d->cap = room;
    *out = d;
    return ERR_OK;
}

static void index_put(struct tpl_dict *d, size_t entry) {
    size_t at = d->e[entry].hash & (d->index_cap - 1);
    while (d->index[at])
        at = (at + 1) & (d->index_cap - 1);
    d->index[at] = (uint32_t)entry + 1;
}

static enum err grow(struct tpl_ctx *c, struct tpl_dict *d) {
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct tpl_entry *v;
        enum err e = tpl_alloc(c, cap, sizeof *v, &v);
        if (e)
            return e;
        if (d->n)
            memcpy(v, d->e, d->n * sizeof *v);
        d->e = v;
        d->cap = cap;
    }
    if (d->n < LINEAR_MAX || (d->n + 1) * 2 <= d->index_cap)
        return ERR_OK;
    size_t cap = d->index_cap ? d->index_cap * 2 : 32;
    while (cap < d->cap * 2)
        cap *= 2;
    enum err e = tpl_alloc(c, cap, sizeof *d->index, &d->index);
    if (e)
        return e;
    d->index_cap = cap;
    for (size_t i = 0; i < d->n; i++)
        index_put(d, i);
    return ERR_OK;
}

static enum err find(struct tpl_ctx *c, const struct tpl_dict *d, const struct tpl_val *key,
                     uint64_t hash, struct tpl_entry **out) {
    bool same = false;
    *out = NULL;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            enum err e = ERR_OK;
            if (d->e[i].hash == hash)
                e = tpl_equal(c, &d->e[i].key, key, &same);
            if (e)
                return e;
            if (same) {
                *out = &d->e[i];
                break;
            }
        }
        return ERR_OK;
    }
    for (size_t at = hash & (d->index_cap - 1); d->index[at]; at = (at + 1) & (d->index_cap - 1)) {
        struct tpl_entry *entry = &d->e[d->index[at] - 1];
        if (entry->hash != hash)
            continue;
        enum err e = tpl_equal(c, &entry->key, key, &same);
        if (e)
            return e;
        if (same) {
            *out = entry;
            break;
        }
    }
    return ERR_OK;
}

enum err tpl_dict_get(struct tpl_ctx *c, const struct tpl_dict *d, const struct tpl_val *key,
                      const struct tpl_val **out) {
    struct tpl_entry *entry = NULL;
    uint64_t hash;
    enum err e = tpl_hash(c, key, &hash);
    if (!e)
        e = find(c, d, key, hash, &entry);
    *out = entry ? &entry->val : NULL;
    return e;
}

enum err tpl_dict_set(struct tpl_ctx *c, struct tpl_dict *d, const struct tpl_val *key,
                      const struct tpl_val *val) {
    struct tpl_entry *entry = NULL;
    uint64_t hash;
    enum err e = tpl_hash(c, key, &hash);
    if (!e)
        e = find(c, d, key, hash, &entry);
    if (e)
        return e;
    if (entry) { // the first key stays, as in Python
        entry->val = *val;
        return ERR_OK;
    }
    if (d->n >= UINT32_MAX / 2)
        return tpl_fail_limit(c, "much memory");
    e = grow(c, d);
    if (e)
        return e;
    d->e[d->n] = (struct tpl_entry){.hash = hash, .key = *key, .val = *val};
    if (d->index)
        index_put(d, d->n);
    d->n++;
    return ERR_OK;
}

enum err tpl_list_new(struct tpl_ctx *c, size_t n, struct tpl_list **out) {
    struct tpl_list *l;
    enum err e = tpl_alloc(c, 1, sizeof *l, &l);
    if (!e && n)
        e = tpl_alloc(c, n, sizeof *l->v, &l->v);
    if (e)
        return e;
    l->n = n;
    *out = l;
    return ERR_OK;
}

enum err tpl_pair(struct tpl_ctx *c, const struct tpl_val *a, const struct tpl_val *b,
                  struct tpl_val *out) {
    struct tpl_list *l;
    enum err e = tpl_list_new(c, 2, &l);
    if (e)
        return e;
    l->v[0] = *a;
    l->v[1] = *b;
    *out = tpl_tuple(l);
    return ERR_OK;
}

enum err tpl_list_push(struct tpl_ctx *c, struct tpl_list_builder *b, const struct tpl_val *v) {
    enum err e = b->list ? ERR_OK : tpl_list_new(c, 0, &b->list);
    if (!e)
        e = tpl_step(c, 0);
    if (e || !v)
        return e;
    if (b->list->n == b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 4;
        struct tpl_val *grown;
        e = tpl_alloc(c, cap, sizeof *grown, &grown);
        if (e)
            return e;
        if (b->list->n)
            memcpy(grown, b->list->v, b->list->n * sizeof *grown);
        b->list->v = grown;
        b->cap = cap;
    }
    b->list->v[b->list->n++] = *v;
    return ERR_OK;
}

enum err tpl_list_concat(struct tpl_ctx *c, const struct tpl_list *a, const struct tpl_list *b,
                         const struct tpl_list **out) {
    struct tpl_list *l;
    struct tpl_list_room *room = a->room;
    enum err e = tpl_step(c, b->n * sizeof *b->v);
    if (!e)
        e = tpl_list_new(c, 0, &l);
    if (e)
        return e;
    l->n = a->n + b->n;
    if (room && room->n == a->n && room->cap - a->n >= b->n) {
        l->v = a->v;
    } else {
        size_t cap = l->n < 4 ? l->n : l->n + l->n / 2;
        e = tpl_step(c, a->n * sizeof *a->v);
        if (!e)
            e = tpl_alloc(c, 1, sizeof *room, &room);
        if (!e && cap)
            e = tpl_alloc(c, cap, sizeof *l->v, &l->v);
        if (e)
            return e;
        room->cap = cap;
        if (a->n)
            memcpy(l->v, a->v, a->n * sizeof *a->v);
    }
    if (b->n)
        memcpy(l->v + a->n, b->v, b->n * sizeof *b->v);
    room->n = l->n;
    l->room = room;
    *out = l;
    return ERR_OK;
}
