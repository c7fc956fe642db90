// SPDX-License-Identifier: Apache-2.0
// Second names of adapters.
#include "base/mem.h"
#include "serving/adapter_registry_internal.h"
#include <string.h>

enum err adp__check_alias(struct adp_registry *r, const char *alias, const char *target,
                          bool loaded, struct err_info *info) {
    const struct adp_alias_info *a = adp__find_alias(r, alias);
    if (!target)
        return a ? ERR_OK : err_set(info, ERR_NOT_FOUND, "alias", "there is no alias `%s`", alias);
    if (adp__find_name(r, alias))
        return err_set(info, ERR_INVALID, "alias", "`%s` is an adapter's name", alias);
    if (strlen(target) >= sizeof a->target ||
        (loaded && (adp__find_alias(r, target) || !adp__lookup(r, target))))
        return err_set(info, ERR_NO_MODEL, "target", "there is no adapter `%.64s`", target);
    if (!a && r->n_aliases == ADP_MAX_NAMES)
        return err_set(info, ERR_LIMIT, NULL, "at most %d aliases are supported",
                       (int)ADP_MAX_NAMES);
    return ERR_OK;
}

void adp__point(struct adp_alias_info *a, const char *target) {
    if (!strcmp(a->target, target))
        return;
    memcpy(a->former, a->target, sizeof a->former);
    memcpy(a->target, target, strlen(target) + 1);
}

enum err adp__alias_back(struct adp_registry *r, struct adp_alias_info *a, struct err_info *info) {
    char former[sizeof a->former];
    if (!a->former[0])
        return err_set(info, ERR_INVALID, "name",
                       "alias `%.160s` stands for `%.192s` and has no former target to go back to",
                       a->alias, a->target);
    if (!adp__lookup(r, a->former))
        return err_set(info, ERR_INVALID, "name",
                       "`%.192s`, which alias `%.160s` stood for before, is not served any more",
                       a->former, a->alias);
    memcpy(former, a->former, sizeof former);
    adp__point(a, former);
    return ERR_OK;
}

static enum err set_alias(struct adp_registry *r, const char *alias, const char *target,
                          bool loaded, struct err_info *info) {
    enum err e = adp__check_alias(r, alias, target, loaded, info);
    if (e)
        return e;
    struct adp_alias_info *a = adp__find_alias(r, alias);
    if (!target) {
        *a = r->aliases[--r->n_aliases];
        return ERR_OK;
    }
    if (!a && r->n_aliases == r->cap_aliases) {
        size_t cap = r->cap_aliases ? 2 * r->cap_aliases : 4;
        struct adp_alias_info *grown = mem_realloc(r->aliases, cap * sizeof *grown);
        if (!grown)
            return err_set(info, ERR_NOMEM, NULL, "out of memory for an alias");
        r->aliases = grown;
        r->cap_aliases = cap;
    }
    if (!a) {
        a = &r->aliases[r->n_aliases++];
        memset(a, 0, sizeof *a);
    }
    memcpy(a->alias, alias, strlen(alias) + 1);
    adp__point(a, target);
    return ERR_OK;
}

static enum err make_alias(struct adp_registry *r, const char *name, const char *target,
                           bool loaded, struct err_info *info) {
    enum err e = adp_check_name(r, name, info);
    if (e)
        return e;
    lock_take(&r->lock);
    e = set_alias(r, name, target, loaded, info);
    lock_drop(&r->lock);
    return e;
}

enum err adp_alias(struct adp_registry *r, const char *alias, const char *target,
                   struct err_info *info) {
    return make_alias(r, alias, target, true, info);
}

enum err adp_alias_again(struct adp_registry *r, const char *alias, const char *target,
                         const char *former, struct err_info *info) {
    enum err e = former && former[0] ? make_alias(r, alias, former, false, info) : ERR_OK;
    return e ? e : make_alias(r, alias, target, false, info);
}

enum err adp_no_model(struct adp_registry *r, const char *name, struct err_info *info) {
    char target[ADP_NAME_MAX + 32];
    return adp_alias_target(r, name, target)
               ? err_set(info, ERR_NO_MODEL, "model",
                         "alias `%.160s` stands for `%.192s`, which is not served any more", name,
                         target)
               : err_set(info, ERR_NO_MODEL, "model", "The model `%.64s` does not exist", name);
}

bool adp_alias_former(struct adp_registry *r, const char *alias, char out[ADP_NAME_MAX + 32]) {
    lock_take(&r->lock);
    const struct adp_alias_info *a = adp__find_alias(r, alias);
    bool any = a && a->former[0];
    if (any)
        memcpy(out, a->former, sizeof a->former);
    lock_drop(&r->lock);
    return any;
}

bool adp_alias_target(struct adp_registry *r, const char *alias, char out[ADP_NAME_MAX + 32]) {
    lock_take(&r->lock);
    const struct adp_alias_info *a = adp__find_alias(r, alias);
    if (a)
        memcpy(out, a->target, strlen(a->target) + 1);
    lock_drop(&r->lock);
    return a != NULL;
}
