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
    if (!a)
        a = &r->aliases[r->n_aliases++];
    memcpy(a->alias, alias, strlen(alias) + 1);
    memcpy(a->target, target, strlen(target) + 1);
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
                         struct err_info *info) {
    return make_alias(r, alias, target, false, info);
}

bool adp_alias_target(struct adp_registry *r, const char *alias, char out[ADP_NAME_MAX + 32]) {
    lock_take(&r->lock);
    const struct adp_alias_info *a = adp__find_alias(r, alias);
    if (a)
        memcpy(out, a->target, strlen(a->target) + 1);
    lock_drop(&r->lock);
    return a != NULL;
}
