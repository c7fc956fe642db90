// SPDX-License-Identifier: Apache-2.0
// What the registry holds, as copies.
#include "base/mem.h"
#include "serving/adapter_registry_internal.h"
#include <stdio.h>
#include <string.h>

static void describe(struct adp_registry *r, const struct adp_version *v, struct adp_info *i) {
    memset(i, 0, sizeof *i);
    i->version = v->number;
    i->state = v->state;
    i->pins = v->pins;
    i->replicas = r->cfg.replicas;
    for (int32_t k = 0; k < i->replicas; k++) {
        i->replica[k].place = v->replica[k].place;
        i->replica[k].running = atomic_load(&v->replica[k].running);
        i->running += i->replica[k].running;
    }
    i->max_r = v->max_r;
    i->created = v->created;
    i->in_host_memory = v->host;
    snprintf(i->name, sizeof i->name, "%s", v->name);
    snprintf(i->source, sizeof i->source, "%s", v->source);
    snprintf(i->path, sizeof i->path, "%s", v->path);
    snprintf(i->digest, sizeof i->digest, "%s", v->digest);
    snprintf(i->base, sizeof i->base, "%s", v->base);
    snprintf(i->reason, sizeof i->reason, "%s", v->reason ? v->reason : "");
    for (size_t k = 0; k < r->n_names; k++) {
        i->active |= r->names[k].active == v;
        i->former |= r->names[k].former == v;
    }
}

enum err adp__list(struct adp_registry *r, struct adp_info **out, size_t *n) {
    lock_take(&r->lock);
    struct adp_info *list = mem_calloc(r->n_versions ? r->n_versions : 1, sizeof *list);
    *n = list ? r->n_versions : 0;
    for (size_t i = 0; i < *n; i++)
        describe(r, r->versions[i], &list[i]);
    lock_drop(&r->lock);
    *out = list;
    return list ? ERR_OK : ERR_NOMEM;
}

enum err adp_list(struct adp_registry *r, void (*each)(void *arg, const struct adp_info *i),
                  void *arg) {
    static const struct adp_change none = {.kind = ADP_CHANGE_NONE};
    return adp_list_after(r, &none, each, arg);
}

enum err adp_aliases(struct adp_registry *r,
                     void (*each)(void *arg, const struct adp_alias_info *i), void *arg) {
    lock_take(&r->lock);
    size_t n = r->n_aliases;
    struct adp_alias_info *list = mem_calloc(n ? n : 1, sizeof *list);
    if (list && n)
        memcpy(list, r->aliases, n * sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i].served = adp__lookup(r, list[i].target);
    lock_drop(&r->lock);
    for (size_t i = 0; list && i < n; i++)
        each(arg, &list[i]);
    mem_free(list);
    return list ? ERR_OK : ERR_NOMEM;
}

uint64_t adp_next_number(struct adp_registry *r) {
    lock_take(&r->lock);
    uint64_t n = r->next;
    lock_drop(&r->lock);
    return n;
}
