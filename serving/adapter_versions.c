// SPDX-License-Identifier: Apache-2.0
// A version's content: reading and checking it, its digest, host memory that is given up, least
// recently used first, and read again.
#include "base/clock.h"
#include "base/mem.h"
#include "serving/adapter_registry_internal.h"
#include <stdio.h>
#include <string.h>

// ---- host memory, under the lock

// A former version counts as used just before the active one of its name: as long as a name is in
// use, it can be rolled back without reading a file.
static void share_use(struct adp_registry *r) {
    for (size_t i = 0; i < r->n_names; i++) {
        const struct adp_version *active = r->names[i].active;
        struct adp_version *former = r->names[i].former;
        if (active && former && former->host_used + 1 < active->host_used)
            former->host_used = active->host_used - 1;
    }
}

static bool is_over(const struct adp_version *v) {
    return (v->state == ADP_RETIRED || v->state == ADP_FAILED) && !v->pins;
}

// Whose matrices are to go next; NULL: all may stay.
static struct adp_version *find_surplus(struct adp_registry *r) {
    int32_t n = 0;
    struct adp_version *oldest = NULL;
    share_use(r);
    for (size_t i = 0; i < r->n_versions; i++) {
        struct adp_version *v = r->versions[i];
        if (!v->host)
            continue;
        if (is_over(v) && !v->host_users)
            return v;
        n++;
        if (!v->host_users && (!oldest || v->host_used < oldest->host_used))
            oldest = v;
    }
    return n > r->cfg.max_host ? oldest : NULL;
}

// The lock is not held while memory goes back to the kernel: engines may want it meanwhile.
void adp_sweep(struct adp_registry *r) {
    struct mdl_adapter *a;
    do {
        lock_take(&r->lock);
        struct adp_version *v = find_surplus(r);
        a = v ? v->host : NULL;
        if (v)
            v->host = NULL;
        lock_drop(&r->lock);
        mdl_adapter_destroy(a);
    } while (a);
    lock_take(&r->lock);
    adp__trim_dead(r);
    lock_drop(&r->lock);
}

// ---- content

static enum err read_checked(const struct adp_registry *r, const char *path, struct pace *pace,
                             char sum[65], struct mdl_adapter **out, struct err_info *info) {
    const struct mdl_adapter_limits limits = {.max_rank = r->cfg.max_rank, .pace = pace};
    enum err e = mdl_adapter_read(path, r->cfg.model, &limits, out, info);
    if (e)
        return e;
    e = mdl_adapter_digest_paced(r->cfg.model, *out, pace, sum);
    if (e) {
        mdl_adapter_destroy(*out);
        *out = NULL;
        return err_set(info, e, NULL, "out of memory for an adapter's digest");
    }
    return ERR_OK;
}

// ---- loading

static struct adp_version *new_version(struct adp_registry *r, const char *name,
                                       const struct adp_origin *from) {
    struct adp_version *v = mem_zalloc(sizeof *v + (size_t)r->cfg.replicas * sizeof v->replica[0]);
    if (!v)
        return NULL;
    v->reg = r;
    v->refs = 1;
    v->state = ADP_STAGED;
    v->created = from->created ? from->created : clock_wall_ns(&clock_system) / 1000000000;
    memcpy(v->name, name, strlen(name) + 1);
    v->path = mem_strdup(from->path);
    v->source = mem_strdup(from->source ? from->source : from->path);
    if (!v->path || !v->source) {
        adp__unref(v);
        return NULL;
    }
    return v;
}

// What was rolled back or never promoted stays until it is retired: under the lock.
static enum err check_room(const struct adp_registry *r, const char *name, struct err_info *info) {
    size_t all = 0, of_name = 0;
    for (size_t i = 0; i < r->n_versions; i++) {
        const struct adp_version *v = r->versions[i];
        if (v->state == ADP_RETIRED || v->state == ADP_FAILED)
            continue;
        all++;
        of_name += !strcmp(v->name, name);
    }
    if (of_name >= ADP_MAX_OF_NAME)
        return err_set(info, ERR_LIMIT, "lora_name",
                       "`%s` has %d versions, the most that one name may have; retire some first",
                       name, (int)ADP_MAX_OF_NAME);
    if (all >= ADP_MAX_VERSIONS)
        return err_set(info, ERR_LIMIT, "lora_name",
                       "there are %d versions of adapters, the most that there may be; retire some "
                       "first",
                       (int)ADP_MAX_VERSIONS);
    return ERR_OK;
}

static enum err insert(struct adp_registry *r, struct adp_version *v, struct err_info *info) {
    enum err e = adp__insert(r, v);
    return e ? err_set(info, e, NULL, "out of memory for an adapter") : ERR_OK;
}

static enum err stage(struct adp_registry *r, const char *name, const struct adp_origin *from,
                      struct adp_version **out, struct err_info *info) {
    enum err e = adp_check_name(r, name, info);
    if (e)
        return e;
    if (strlen(from->path) >= ADP_PATH_MAX ||
        (from->source && strlen(from->source) >= ADP_PATH_MAX))
        return err_set(info, ERR_INVALID, "lora_path", "lora_path is longer than %d bytes",
                       ADP_PATH_MAX - 1);
    struct adp_version *v = new_version(r, name, from);
    if (!v)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter");
    lock_take(&r->lock);
    v->number = from->version ? from->version : r->next;
    if (!from->version)
        e = check_room(r, name, info);
    if (!e)
        e = insert(r, v, info);
    if (!e) {
        if (v->number >= r->next)
            r->next = v->number + 1;
        v->refs++; // the loader's, beside the list's
        adp__trim_dead(r);
    } else {
        adp__unref(v);
    }
    lock_drop(&r->lock);
    if (e)
        return e;
    *out = v;
    return ERR_OK;
}

static void set_state(struct adp_version *v, enum adp_state to) {
    lock_take(&v->reg->lock);
    adp__move(v, to);
    lock_drop(&v->reg->lock);
}

static enum err fail(struct adp_version *v, enum err e, const struct err_info *info) {
    lock_take(&v->reg->lock);
    adp__move(v, ADP_FAILED);
    v->reason = mem_strdup(info->message[0] ? info->message : err_text(e));
    if (!v->pins)
        adp__let_go(v);
    adp__trim_dead(v->reg);
    lock_drop(&v->reg->lock);
    adp_sweep(v->reg);
    if (v->reg->cfg.log)
        log_write(v->reg->cfg.log, LOG_WARN, "adapter %s@%llu: %s", v->name,
                  (unsigned long long)v->number, info->message);
    return e;
}

enum err adp_load(struct adp_registry *r, const char *name, const struct adp_origin *from,
                  struct adp_version **out, struct err_info *info) {
    struct adp_version *v = NULL;
    struct mdl_adapter *a = NULL;
    struct err_info own = {0};
    if (!info)
        info = &own;
    *out = NULL;
    enum err e = stage(r, name, from, &v, info);
    if (e || !v)
        return e;
    set_state(v, ADP_LOADING);
    char sum[65];
    e = read_checked(r, from->path, from->pace, sum, &a, info);
    if (!e) {
        set_state(v, ADP_VERIFYING);
        if (from->digest && from->digest[0] && strcmp(from->digest, sum) != 0) {
            mdl_adapter_destroy(a);
            e = err_set(info, ERR_FORMAT, NULL, "its content is not what it was (SHA-256 %s)", sum);
        }
    }
    if (e) {
        fail(v, e, info);
        adp_release(v);
        return e;
    }
    lock_take(&r->lock);
    memcpy(v->digest, sum, sizeof sum);
    memcpy(v->base, a->base, sizeof v->base);
    v->max_r = a->max_r;
    v->host = a;
    v->host_used = ++r->ticks;
    if (!from->verify)
        adp__move(v, from->rolled_back ? ADP_ROLLED_BACK : ADP_READY);
    lock_drop(&r->lock);
    adp_sweep(r);
    *out = v;
    return ERR_OK;
}

void adp_verified(struct adp_version *v, enum err e, const struct err_info *info) {
    if (e)
        fail(v, e, info);
    else
        set_state(v, ADP_READY);
}

enum err adp_set_path(struct adp_version *v, const char *path) {
    char *copy = mem_strdup(path);
    if (!copy)
        return ERR_NOMEM;
    lock_take(&v->reg->lock);
    mem_free(v->path);
    v->path = copy;
    lock_drop(&v->reg->lock);
    return ERR_OK;
}

// ---- places in engines

const char *adp_place_name(enum adp_place p) {
    static const char *const names[] = {"none", "loading", "ready", "failed"};
    return names[p];
}

void adp_set_running(struct adp_version *v, int32_t replica, int32_t n) {
    atomic_store(&v->replica[replica].running, n);
}

void adp_set_place(struct adp_version *v, int32_t replica, enum adp_place p, const char *reason) {
    char *copy = reason ? mem_strdup(reason) : NULL;
    struct adp__replica *r = &v->replica[replica];
    lock_take(&v->reg->lock);
    char *before = r->reason;
    r->place = p;
    r->reason = copy;
    lock_drop(&v->reg->lock);
    mem_free(before);
}

enum adp_place adp_place(struct adp_version *v, int32_t replica) {
    lock_take(&v->reg->lock);
    enum adp_place p = v->replica[replica].place;
    lock_drop(&v->reg->lock);
    return p;
}

void adp_place_reason(struct adp_version *v, int32_t replica, char *out, size_t cap) {
    lock_take(&v->reg->lock);
    const char *why = v->replica[replica].reason;
    snprintf(out, cap, "%s", why ? why : "");
    lock_drop(&v->reg->lock);
}

bool adp_is_verifying(const struct adp_version *v) {
    lock_take(&v->reg->lock);
    bool verifying = v->state == ADP_VERIFYING;
    lock_drop(&v->reg->lock);
    return verifying;
}

bool adp_is_over(const struct adp_version *v) {
    lock_take(&v->reg->lock);
    bool over = is_over(v);
    lock_drop(&v->reg->lock);
    return over;
}

// ---- again

static bool take_host(struct adp_version *v, const struct mdl_adapter **out) {
    if (!v->host)
        return false;
    v->host_users++;
    v->host_used = ++v->reg->ticks;
    *out = v->host;
    return true;
}

enum err adp_host_take_paced(struct adp_version *v, struct pace *pace,
                             const struct mdl_adapter **out, struct err_info *info) {
    struct adp_registry *r = v->reg;
    lock_take(&r->lock);
    bool there = take_host(v, out);
    char *path = there ? NULL : mem_strdup(v->path);
    lock_drop(&r->lock);
    if (there)
        return ERR_OK;
    if (!path)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter");
    struct mdl_adapter *a;
    char sum[65];
    enum err e = read_checked(r, path, pace, sum, &a, info);
    if (!e && strcmp(sum, v->digest) != 0) {
        mdl_adapter_destroy(a);
        e = err_set(info, ERR_FORMAT, NULL, "%s has changed since version %llu of `%s` was loaded",
                    path, (unsigned long long)v->number, v->name);
    }
    mem_free(path);
    if (e)
        return e;
    lock_take(&r->lock);
    if (!v->host) {
        v->host = a;
        a = NULL;
    }
    take_host(v, out);
    lock_drop(&r->lock);
    mdl_adapter_destroy(a); // somebody else was faster
    adp_sweep(r);
    return ERR_OK;
}

enum err adp_host_take(struct adp_version *v, const struct mdl_adapter **out,
                       struct err_info *info) {
    return adp_host_take_paced(v, NULL, out, info);
}

void adp_host_drop(struct adp_version *v) {
    struct adp_registry *r = v->reg;
    lock_take(&r->lock);
    v->host_users--;
    lock_drop(&r->lock);
    adp_sweep(r);
}
