// SPDX-License-Identifier: Apache-2.0
// The life of an adapter version. The function behind each edge:
//
//   STAGED --adp_load--> LOADING --adp_load--> VERIFYING --adp_load, or adp_verified--> READY
//     any of the first three --adp_load--> FAILED; VERIFYING --adp_verified--> FAILED
//     VERIFYING --adp_load of one that an earlier process had so--> ROLLED_BACK
//   READY --adp_promote, adp_name_again--> ACTIVE --adp_promote of another--> READY
//   ACTIVE --adp_roll_back--> ROLLED_BACK --adp_promote--> ACTIVE
//   READY, ACTIVE, ROLLED_BACK --adp_retire, or superseded twice--> DRAINING
//   DRAINING --the last adp_unpin, or at once--> RETIRED
//
// Invariants
// 1. A number belongs to one version for ever; what it holds never changes (its digest says so).
// 2. Of a name at most one version is ACTIVE, and it is the one that names[].active points to.
// 3. Pins exist in VERIFYING (of whoever verifies), READY, ACTIVE, ROLLED_BACK and DRAINING, and
//    new ones in all of these but the last; those of one that FAILED end soon.
// 4. A version's memory lives while refs > 0; the list has one, and keeps what is pinned, so pins
//    need none.
#include "serving/adapter_registry.h"
#include "base/mem.h"
#include "serving/adapter_registry_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define EDGE(s) (1u << ADP_##s)
static const unsigned edges[ADP_STATES] = {
    [ADP_STAGED] = EDGE(LOADING) | EDGE(FAILED),
    [ADP_LOADING] = EDGE(VERIFYING) | EDGE(FAILED),
    [ADP_VERIFYING] = EDGE(READY) | EDGE(FAILED) | EDGE(ROLLED_BACK),
    [ADP_READY] = EDGE(ACTIVE) | EDGE(DRAINING),
    [ADP_ACTIVE] = EDGE(READY) | EDGE(ROLLED_BACK) | EDGE(DRAINING),
    [ADP_DRAINING] = EDGE(RETIRED),
    [ADP_ROLLED_BACK] = EDGE(ACTIVE) | EDGE(DRAINING),
};

const char *adp_state_name(enum adp_state s) {
    static const char *const names[ADP_STATES] = {
        [ADP_STAGED] = "staged",   [ADP_LOADING] = "loading", [ADP_VERIFYING] = "verifying",
        [ADP_READY] = "ready",     [ADP_ACTIVE] = "active",   [ADP_DRAINING] = "draining",
        [ADP_RETIRED] = "retired", [ADP_FAILED] = "failed",   [ADP_ROLLED_BACK] = "rolled_back",
    };
    return names[s];
}

bool adp_edge_is_legal(enum adp_state from, enum adp_state to) {
    return edges[from] >> to & 1;
}

bool adp__serves(const struct adp_version *v) {
    return v->state == ADP_READY || v->state == ADP_ACTIVE || v->state == ADP_ROLLED_BACK;
}

// ---- life

enum err adp_create(const struct adp_config *cfg, struct adp_registry **out,
                    struct err_info *info) {
    *out = NULL;
    if (cfg->replicas > ADP_MAX_REPLICAS)
        return err_set(info, ERR_INVALID, "replicas", "there can be 1 to %d replicas",
                       (int)ADP_MAX_REPLICAS);
    if (cfg->max_host < 1)
        return err_set(info, ERR_INVALID, "max-cpu-loras", "max-cpu-loras must be at least 1");
    struct adp_registry *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the adapters");
    r->cfg = *cfg;
    if (r->cfg.replicas < 1)
        r->cfg.replicas = 1;
    r->next = cfg->next_version ? cfg->next_version : 1;
    lock_init(&r->lock);
    *out = r;
    return ERR_OK;
}

void adp__unref(struct adp_version *v) {
    if (--v->refs > 0)
        return;
    mdl_adapter_destroy(v->host);
    mem_free(v->path);
    mem_free(v->source);
    mem_free(v->reason);
    for (int32_t i = 0; i < v->reg->cfg.replicas; i++)
        mem_free(v->replica[i].reason);
    mem_free(v);
}

void adp_destroy(struct adp_registry *r) {
    if (!r)
        return;
    for (size_t i = 0; i < r->n_versions; i++) {
        assert(r->versions[i]->refs == 1);
        adp__unref(r->versions[i]);
    }
    lock_fini(&r->lock);
    mem_free(r->versions);
    mem_free(r->names);
    mem_free(r->aliases);
    mem_free(r);
}

void adp__move(struct adp_version *v, enum adp_state to) {
    assert(adp_edge_is_legal(v->state, to));
    v->state = to;
}

enum err adp__insert(struct adp_registry *r, struct adp_version *v) {
    if (r->n_versions == r->cap_versions) {
        size_t cap = r->cap_versions ? 2 * r->cap_versions : 16;
        struct adp_version **grown = mem_realloc(r->versions, cap * sizeof(struct adp_version *));
        if (!grown)
            return ERR_NOMEM;
        r->versions = grown;
        r->cap_versions = cap;
    }
    size_t i = r->n_versions++;
    for (; i > 0 && r->versions[i - 1]->number > v->number; i--)
        r->versions[i] = r->versions[i - 1];
    r->versions[i] = v;
    return ERR_OK;
}

// One that still has host memory is left to adp_sweep.
static bool is_dead(const struct adp_version *v) {
    return (v->state == ADP_RETIRED || v->state == ADP_FAILED) && !v->pins && !v->host;
}

// Listings would grow for ever.
void adp__trim_dead(struct adp_registry *r) {
    size_t dead = 0;
    for (size_t i = 0; i < r->n_versions; i++)
        dead += is_dead(r->versions[i]);
    for (size_t i = 0; i < r->n_versions && dead > ADP__DEAD_MAX;) {
        struct adp_version *v = r->versions[i];
        if (!is_dead(v)) {
            i++;
            continue;
        }
        memmove(r->versions + i, r->versions + i + 1,
                (--r->n_versions - i) * sizeof(struct adp_version *));
        dead--;
        adp__unref(v);
    }
}

// ---- names, under the lock

struct adp__name *adp__find_name(struct adp_registry *r, const char *name) {
    for (size_t i = 0; i < r->n_names; i++)
        if (!strcmp(r->names[i].name, name))
            return &r->names[i];
    return NULL;
}

struct adp_alias_info *adp__find_alias(struct adp_registry *r, const char *alias) {
    for (size_t i = 0; i < r->n_aliases; i++)
        if (!strcmp(r->aliases[i].alias, alias))
            return &r->aliases[i];
    return NULL;
}

static struct adp_version *find_number(struct adp_registry *r, const char *name, size_t len,
                                       uint64_t number) {
    for (size_t i = 0; i < r->n_versions; i++) {
        struct adp_version *v = r->versions[i];
        if (v->number == number && strlen(v->name) == len && !memcmp(v->name, name, len))
            return v;
    }
    return NULL;
}

static enum err make_name(struct adp_registry *r, const char *name, struct adp__name **out) {
    *out = adp__find_name(r, name);
    if (*out)
        return ERR_OK;
    if (r->n_names == ADP_MAX_NAMES)
        return ERR_LIMIT;
    if (r->n_names == r->cap_names) {
        size_t cap = r->cap_names ? 2 * r->cap_names : 8;
        struct adp__name *grown = mem_realloc(r->names, cap * sizeof *grown);
        if (!grown)
            return ERR_NOMEM;
        r->names = grown;
        r->cap_names = cap;
    }
    *out = &r->names[r->n_names++];
    memset(*out, 0, sizeof **out);
    memcpy((*out)->name, name, strlen(name) + 1);
    return ERR_OK;
}

static void drop_empty_name(struct adp_registry *r, struct adp__name *n) {
    if (!n->active && !n->former)
        *n = r->names[--r->n_names];
}

struct adp_version *adp__lookup(struct adp_registry *r, const char *name) {
    const struct adp_alias_info *alias = adp__find_alias(r, name);
    if (alias)
        name = alias->target;
    const char *at = strrchr(name, '@');
    if (!at) {
        const struct adp__name *n = adp__find_name(r, name);
        return n ? n->active : NULL;
    }
    char *end;
    if (at[1] < '1' || at[1] > '9' || strlen(at + 1) > 19)
        return NULL;
    uint64_t number = strtoull(at + 1, &end, 10);
    struct adp_version *v = *end ? NULL : find_number(r, name, (size_t)(at - name), number);
    return v && adp__serves(v) ? v : NULL;
}

// Hubs and clients use names such as org/name and ft:base:org::id. What a path would take for a
// folder above or for none is no part of one: names stand in URLs.
static bool name_ok(const char *name) {
    static const char first[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = strlen(name);
    if (n > ADP_NAME_MAX || !n || !strchr(first, name[0]))
        return false;
    for (const char *s = name; *s; s += *s == '/') {
        size_t part = strcspn(s, "/");
        if (part == 0 || (part <= 2 && strspn(s, ".") >= part) || (s[part] && !s[part + 1]))
            return false;
        for (; part; part--, s++)
            if (!strchr(first, *s) && !strchr("._-:", *s))
                return false;
    }
    return true;
}

enum err adp_check_name(const struct adp_registry *r, const char *name, struct err_info *info) {
    if (!name_ok(name))
        return err_set(info, ERR_INVALID, "lora_name",
                       "an adapter's name must be 1 to %d letters, digits, '.', '_', '-', ':' or "
                       "'/', begin with a letter or digit, and have no part that is empty, '.' or "
                       "'..'",
                       (int)ADP_NAME_MAX);
    for (size_t i = 0; i < r->cfg.n_base; i++)
        if (!strcmp(r->cfg.base[i], name))
            return err_set(info, ERR_INVALID, "lora_name",
                           "`%s` is the name of the base model; an adapter needs another", name);
    return ERR_OK;
}

// ---- promote, roll back, retire

void adp__let_go(struct adp_version *v) {
    struct adp_registry *r = v->reg;
    r->retired[r->n_retired % ADP__RETIRED_MAX] = v->number;
    r->n_retired++;
}

static void end_version(struct adp_version *v) {
    adp__move(v, ADP_RETIRED);
    adp__let_go(v);
}

static void drain(struct adp_version *v) {
    adp__move(v, ADP_DRAINING);
    if (!v->pins)
        end_version(v);
}

static enum err no_version(const char *name, uint64_t version, struct err_info *info) {
    return err_set(info, ERR_NOT_FOUND, "version", "the adapter `%s` has no version %llu", name,
                   (unsigned long long)version);
}

enum err adp__check_promote(struct adp_registry *r, const char *name, uint64_t version,
                            struct adp_version **out, struct err_info *info) {
    struct adp_version *v = find_number(r, name, strlen(name), version);
    *out = v;
    if (!v)
        return no_version(name, version, info);
    if (v->state == ADP_ACTIVE)
        return ERR_OK;
    if (v->state != ADP_READY && v->state != ADP_ROLLED_BACK)
        return err_set(info, ERR_INVALID, "version", "version %llu of `%s` is %s, not ready",
                       (unsigned long long)version, name, adp_state_name(v->state));
    if (adp__find_alias(r, name))
        return err_set(info, ERR_INVALID, "name", "`%s` is an alias", name);
    return ERR_OK;
}

static enum err name_of(struct adp_registry *r, const char *name, struct adp__name **out,
                        struct err_info *info) {
    enum err e = make_name(r, name, out);
    if (!e)
        return e;
    return err_set(info, e, NULL,
                   e == ERR_LIMIT ? "at most %d adapters can be active"
                                  : "out of memory for the name (of %d)",
                   (int)ADP_MAX_NAMES);
}

static enum err promote(struct adp_registry *r, const char *name, uint64_t version,
                        struct err_info *info) {
    struct adp_version *v;
    struct adp__name *n;
    enum err e = adp__check_promote(r, name, version, &v, info);
    if (e || v->state == ADP_ACTIVE)
        return e;
    e = name_of(r, name, &n, info);
    if (e)
        return e;
    struct adp_version *former = n->former;
    if (n->active) {
        adp__move(n->active, ADP_READY);
        n->former = n->active;
    }
    n->active = v;
    adp__move(v, ADP_ACTIVE);
    if (n->former == v)
        n->former = NULL;
    if (former && former != v && former != n->former && adp__serves(former))
        drain(former);
    adp__trim_dead(r);
    return ERR_OK;
}

enum err adp_name_again(struct adp_registry *r, const char *name, uint64_t active, uint64_t former,
                        struct err_info *info) {
    size_t len = strlen(name);
    struct adp__name *n;
    lock_take(&r->lock);
    struct adp_version *a = active ? find_number(r, name, len, active) : NULL,
                       *f = former ? find_number(r, name, len, former) : NULL;
    bool wrong = (active && (!a || a->state != ADP_READY)) ||
                 (former && (!f || f->state != ADP_READY)) || (a && a == f);
    enum err e = wrong ? err_set(info, ERR_FORMAT, NULL, "`%s` has no such versions", name)
                       : name_of(r, name, &n, info);
    if (!e) {
        n->active = a;
        n->former = f;
        if (a)
            adp__move(a, ADP_ACTIVE);
        drop_empty_name(r, n);
    }
    lock_drop(&r->lock);
    return e;
}

enum err adp_promote(struct adp_registry *r, const char *name, uint64_t version,
                     struct err_info *info) {
    lock_take(&r->lock);
    enum err e = promote(r, name, version, info);
    lock_drop(&r->lock);
    adp_sweep(r);
    return e;
}

enum err adp_roll_back(struct adp_registry *r, const char *name, struct err_info *info) {
    enum err e = ERR_OK;
    lock_take(&r->lock);
    struct adp__name *n = adp__find_name(r, name);
    struct adp_alias_info *alias = adp__find_alias(r, name);
    if (alias) {
        e = adp__alias_back(r, alias, info);
    } else if (!n || !n->active) {
        e = err_set(info, ERR_NOT_FOUND, "name", "there is no adapter `%s`", name);
    } else if (!n->former) {
        e = err_set(info, ERR_INVALID, "name", "`%s` has no former version to go back to", name);
    } else {
        adp__move(n->active, ADP_ROLLED_BACK);
        n->active = n->former;
        adp__move(n->active, ADP_ACTIVE);
        n->former = NULL;
    }
    lock_drop(&r->lock);
    return e;
}

enum err adp__none_to_retire(const char *name, uint64_t version, struct err_info *info) {
    return version ? no_version(name, version, info)
                   : err_set(info, ERR_NOT_FOUND, "name", "there is no adapter `%s`", name);
}

enum err adp_retire(struct adp_registry *r, const char *name, uint64_t version,
                    struct err_info *info) {
    bool any = false;
    lock_take(&r->lock);
    for (size_t i = 0; i < r->n_versions; i++) {
        struct adp_version *v = r->versions[i];
        if (strcmp(v->name, name) != 0 || (version && v->number != version) || !adp__serves(v))
            continue;
        struct adp__name *n = adp__find_name(r, name);
        if (n && n->active == v)
            n->active = NULL;
        if (n && n->former == v)
            n->former = NULL;
        if (n)
            drop_empty_name(r, n);
        drain(v);
        any = true;
    }
    adp__trim_dead(r);
    lock_drop(&r->lock);
    adp_sweep(r);
    return any ? ERR_OK : adp__none_to_retire(name, version, info);
}

// ---- requests

enum err adp_resolve(struct adp_registry *r, const char *name, struct adp_version **out,
                     struct err_info *info) {
    lock_take(&r->lock);
    struct adp_version *v = adp__lookup(r, name);
    if (v)
        v->pins++;
    lock_drop(&r->lock);
    *out = v;
    return v ? ERR_OK : adp_no_model(r, name, info);
}

bool adp_knows(struct adp_registry *r, const char *name) {
    lock_take(&r->lock);
    bool known = adp__lookup(r, name);
    lock_drop(&r->lock);
    return known;
}

void adp_pin(struct adp_version *v) {
    lock_take(&v->reg->lock);
    v->pins++;
    lock_drop(&v->reg->lock);
}

void adp_unpin(struct adp_version *v) {
    struct adp_registry *r = v->reg;
    lock_take(&r->lock);
    assert(v->pins > 0);
    if (--v->pins == 0 && (v->state == ADP_DRAINING || v->state == ADP_FAILED)) {
        v->state == ADP_DRAINING ? end_version(v) : adp__let_go(v);
        adp__trim_dead(r);
    }
    lock_drop(&r->lock);
}

void adp_hold(struct adp_version *v) {
    lock_take(&v->reg->lock);
    v->refs++;
    lock_drop(&v->reg->lock);
}

void adp_release(struct adp_version *v) {
    struct adp_registry *r = v->reg;
    lock_take(&r->lock);
    adp__unref(v);
    lock_drop(&r->lock);
}

size_t adp_take_retired(struct adp_registry *r, uint64_t *seen, uint64_t *out, size_t cap) {
    size_t n = 0;
    // Asked in every turn of an engine: the lock may be held by a thread that has to wait for a
    // CPU.
    if (r->n_retired == *seen)
        return 0;
    lock_take(&r->lock);
    if (r->n_retired - *seen > ADP__RETIRED_MAX)
        *seen = r->n_retired - ADP__RETIRED_MAX;
    while (n < cap && *seen < r->n_retired)
        out[n++] = r->retired[(*seen)++ % ADP__RETIRED_MAX];
    lock_drop(&r->lock);
    return n;
}

uint64_t adp_number(const struct adp_version *v) {
    return v->number;
}

const char *adp_name(const struct adp_version *v) {
    return v->name;
}

const char *adp_digest(const struct adp_version *v) {
    return v->digest;
}
