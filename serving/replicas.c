// SPDX-License-Identifier: Apache-2.0
#include "serving/replicas.h"
#include "base/hash.h"
#include "kernels/device.h"
#include "serving/adapter_registry.h"

// What a replica with background work counts for more: with targets its tokens come as late as
// these allow.
enum { BESIDE = 256 };

struct place {
    int64_t cost; // in tokens of a prompt
    int32_t replica;
    int rank; // 0: may be asked, 1: stalled, 2: full, 3: dead
};

static int64_t now_of(const struct replicas *r) {
    return clock_mono_ns(r->clock ? r->clock : &clock_system);
}

static int64_t stalled_for(const struct replicas *r, int32_t i) {
    struct eng_health h;
    eng_health(r->engine[i], &h);
    return h.busy ? now_of(r) - h.last_turn_ns : 0;
}

static bool is_stalled(const struct replicas *r, int32_t i) {
    return r->stall_ns && stalled_for(r, i) > r->stall_ns;
}

// The prefix cache finds whole blocks of equal tokens, version and salt.
int32_t replicas_home(const struct replicas *r, const struct eng_request *q) {
    uint64_t h = hash_mix64(q->cache_salt ^ hash_mix64(q->adapter ? adp_number(q->adapter) : 0));
    for (int32_t i = 0; i < q->n_prompt && i < KN_KV_BLOCK; i++)
        h = hash_mix64(h ^ (uint32_t)q->prompt[i]);
    return (int32_t)(h % (uint64_t)r->n);
}

static struct place look(const struct replicas *r, int32_t i, const struct eng_request *q,
                         int32_t home) {
    struct eng_load l;
    eng_load(r->engine[i], &l);
    int32_t cached = q->n_prompt / KN_KV_BLOCK * KN_KV_BLOCK;
    return (struct place){
        .replica = i,
        .cost = l.owed + (i == home ? 0 : cached) + (l.beside ? BESIDE : 0),
        .rank = l.dead   ? 3
                : l.full ? 2
                         : is_stalled(r, i),
    };
}

static bool is_before(const struct place *a, const struct place *b, int32_t home) {
    if (a->rank != b->rank)
        return a->rank < b->rank;
    return a->cost != b->cost ? a->cost < b->cost : a->replica == home;
}

enum err replicas_submit(struct replicas *r, const struct eng_request *q, struct eng_stream **out,
                         struct err_info *info) {
    struct place places[REPLICAS_MAX];
    int32_t home = r->n > 1 ? replicas_home(r, q) : 0;
    for (int32_t i = 0; i < r->n; i++) {
        struct place p = look(r, i, q, home);
        int32_t at = i;
        for (; at > 0 && is_before(&p, &places[at - 1], home); at--)
            places[at] = places[at - 1];
        places[at] = p;
    }
    struct err_info why = {.code = ERR_ENGINE_DEAD}, refusal = {.code = ERR_OK};
    enum err e = ERR_ENGINE_DEAD;
    for (int32_t i = 0; i < r->n; i++) {
        if (refusal.code && places[i].rank >= 2)
            break; // it would only count the refusal once more
        e = eng_submit(r->engine[places[i].replica], q, out, &why);
        if (e == ERR_QUEUE_FULL)
            refusal = why;
        else if (e != ERR_ENGINE_DEAD)
            break;
    }
    if (refusal.code && (e == ERR_QUEUE_FULL || e == ERR_ENGINE_DEAD))
        why = refusal;
    else if (!e)
        return ERR_OK;
    if (info)
        *info = why;
    return why.code;
}

void replicas_drain(struct replicas *r) {
    for (int32_t i = 0; i < r->n; i++)
        eng_drain(r->engine[i]);
}

int32_t replicas_in_flight(const struct replicas *r) {
    int32_t n = 0;
    for (int32_t i = 0; i < r->n; i++)
        n += eng_in_flight(r->engine[i]);
    return n;
}

void replicas_wake(struct replicas *r) {
    for (int32_t i = 0; i < r->n; i++)
        eng_wake(r->engine[i]);
}

static enum err check_one(const struct replicas *r, int32_t i, struct err_info *info) {
    struct eng_health h;
    eng_health(r->engine[i], &h);
    if (!h.alive)
        return err_set(info, ERR_ENGINE_DEAD, NULL, "the engine has stopped");
    int64_t still = stalled_for(r, i);
    if (r->stall_ns && still > r->stall_ns)
        return err_set(info, ERR_ENGINE_DEAD, NULL, "the step loop has made no progress for %.1f s",
                       (double)still * 1e-9);
    return ERR_OK;
}

enum err replicas_check(const struct replicas *r, struct err_info *info) {
    for (int32_t i = 0; i < r->n; i++) {
        enum err e = check_one(r, i, info);
        if (e && r->n > 1)
            err_prefix(info, "replica %d", (int)i);
        if (e)
            return e;
    }
    return ERR_OK;
}
