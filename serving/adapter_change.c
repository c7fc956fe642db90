// SPDX-License-Identifier: Apache-2.0
// Changes as values: whether one would be accepted, what would be there after it, and making it.
#include "base/mem.h"
#include "serving/adapter_registry_internal.h"
#include <stdio.h>
#include <string.h>

static bool any_serves(struct adp_registry *r, const char *name, uint64_t version) {
    for (size_t i = 0; i < r->n_versions; i++) {
        const struct adp_version *v = r->versions[i];
        if (!strcmp(v->name, name) && (!version || v->number == version) && adp__serves(v))
            return true;
    }
    return false;
}

enum err adp_check(struct adp_registry *r, const struct adp_change *c, struct err_info *info) {
    struct adp_version *v;
    enum err e = ERR_OK;
    if (c->kind == ADP_CHANGE_ALIAS && (e = adp_check_name(r, c->name, info)))
        return e;
    lock_take(&r->lock);
    switch (c->kind) {
    case ADP_CHANGE_NONE:
        break;
    case ADP_CHANGE_PROMOTE:
        e = adp__check_promote(r, c->name, c->version, &v, info);
        break;
    case ADP_CHANGE_RETIRE:
        if (!any_serves(r, c->name, c->version))
            e = adp__none_to_retire(c->name, c->version, info);
        break;
    case ADP_CHANGE_ALIAS:
        e = adp__check_alias(r, c->name, c->target, true, info);
        break;
    }
    lock_drop(&r->lock);
    return e;
}

enum err adp_make(struct adp_registry *r, const struct adp_change *c, struct err_info *info) {
    switch (c->kind) {
    case ADP_CHANGE_NONE:
        break;
    case ADP_CHANGE_PROMOTE:
        return adp_promote(r, c->name, c->version, info);
    case ADP_CHANGE_RETIRE:
        return adp_retire(r, c->name, c->version, info);
    case ADP_CHANGE_ALIAS:
        return adp_alias(r, c->name, c->target, info);
    }
    return ERR_OK;
}

// ---- what is there after it: the moves of adp_promote and adp_retire, on copies

static void leave(struct adp_info *i) {
    i->active = i->former = false;
    i->state = ADP_DRAINING;
}

static void after_promote(struct adp_info *list, size_t n, const struct adp_change *c) {
    struct adp_info *v = NULL, *active = NULL, *former = NULL;
    for (size_t i = 0; i < n; i++) {
        struct adp_info *x = &list[i];
        if (strcmp(x->name, c->name) != 0)
            continue;
        v = x->version == c->version ? x : v;
        active = x->active ? x : active;
        former = x->former ? x : former;
    }
    if (!v || v == active)
        return;
    if (active) {
        active->active = false;
        active->former = true;
        active->state = ADP_READY;
        if (former && former != v)
            leave(former);
    }
    v->active = true;
    v->former = false;
    v->state = ADP_ACTIVE;
}

static void after_retire(struct adp_info *list, size_t n, const struct adp_change *c) {
    for (size_t i = 0; i < n; i++) {
        struct adp_info *x = &list[i];
        bool serves =
            x->state == ADP_READY || x->state == ADP_ACTIVE || x->state == ADP_ROLLED_BACK;
        if (serves && !strcmp(x->name, c->name) && (!c->version || x->version == c->version))
            leave(x);
    }
}

enum err adp_list_after(struct adp_registry *r, const struct adp_change *c,
                        void (*each)(void *arg, const struct adp_info *i), void *arg) {
    size_t n;
    struct adp_info *list;
    enum err e = adp__list(r, &list, &n);
    if (c->kind == ADP_CHANGE_PROMOTE)
        after_promote(list, n, c);
    if (c->kind == ADP_CHANGE_RETIRE)
        after_retire(list, n, c);
    for (size_t i = 0; i < n; i++)
        each(arg, &list[i]);
    mem_free(list);
    return e;
}

struct aliases_after {
    const struct adp_change *c;
    struct adp_alias_info own; // as it is now
    void (*each)(void *arg, const struct adp_alias_info *a);
    void *arg;
};

static void other_alias(void *arg, const struct adp_alias_info *a) {
    struct aliases_after *x = arg;
    if (x->c->kind != ADP_CHANGE_ALIAS || strcmp(a->alias, x->c->name) != 0)
        x->each(x->arg, a);
    else
        x->own = *a;
}

enum err adp_aliases_after(struct adp_registry *r, const struct adp_change *c,
                           void (*each)(void *arg, const struct adp_alias_info *a), void *arg) {
    struct aliases_after x = {.c = c, .each = each, .arg = arg};
    enum err e = adp_aliases(r, other_alias, &x);
    if (e || c->kind != ADP_CHANGE_ALIAS || !c->target)
        return e;
    snprintf(x.own.alias, sizeof x.own.alias, "%s", c->name);
    adp__point(&x.own, c->target);
    x.own.served = adp_knows(r, c->target);
    each(arg, &x.own);
    return ERR_OK;
}
