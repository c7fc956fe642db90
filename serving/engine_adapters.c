// SPDX-License-Identifier: Apache-2.0
// Slots: who is in one, who gives way, who waits.
//
//   EMPTY --fill--> FILLING --collect--> READY --evict (and fill)--> FILLING
//                      \----- collect, failed or nothing to fill ---> EMPTY
//
// Invariants
// 1. Running sequences with an adapter stand on a READY slot that holds their version; such a slot
//    is never evicted.
// 2. A FILLING slot belongs to its job until `done`; nobody runs on it.
// 3. At most one slot is closing for one version.
#include "serving/engine_adapters.h"
#include "base/mem.h"
#include "serving/engine_internal.h"
#include <assert.h>

enum err eng__adapters_init(struct eng *e, struct err_info *info) {
    struct eng__adapters *a = &e->adapters;
    if (!e->cfg.adapters)
        return ERR_OK;
    if (!e->cfg.io || e->cfg.hooks || e->cfg.max_loras < 1)
        return err_set(info, ERR_INVALID, "max_loras",
                       "adapters need at least one slot, an I/O pool, and no other hooks");
    enum err err =
        mdl_lora_slots_create(e->cfg.weights, e->queue, e->cfg.max_loras, &a->table, info);
    if (err)
        return err;
    a->slots = mem_calloc((size_t)e->cfg.max_loras, sizeof *a->slots);
    if (!a->slots)
        return err_set(info, ERR_NOMEM, NULL, "no memory for %d adapter slots",
                       (int)e->cfg.max_loras);
    a->n = e->cfg.max_loras;
    for (int32_t i = 0; i < a->n; i++)
        a->slots[i].e = e;
    lock_init(&a->lock);
    e->cfg.hooks = mdl_lora_hooks(a->table);
    return ERR_OK;
}

// Why: NULL unless it could not be made resident. The caller has what the slot held of the version.
static struct adp_version *let_version_go(struct eng__slot *s, const char *why) {
    struct adp_version *v = s->version;
    adp_set_running(v, s->e->cfg.replica, 0);
    adp_set_place(v, s->e->cfg.replica, why ? ADP_PLACE_FAILED : ADP_PLACE_NONE, why);
    s->version = NULL;
    s->resident = NULL;
    s->number = 0;
    return v;
}

void eng__adapters_fini(struct eng *e) {
    struct eng__adapters *a = &e->adapters;
    for (int32_t i = 0; i < a->n; i++) {
        struct eng__slot *s = &a->slots[i];
        assert(s->state != ENG__SLOT_FILLING);
        mdl_lora_set(a->table, i, NULL);
        e->cfg.ops->queue_wait(e->queue, NULL);
        if (!s->version)
            continue;
        adp_resident_drop(s->version);
        adp_release(let_version_go(s, NULL));
    }
    if (e->cfg.adapters)
        adp_spare_free(e->cfg.adapters);
    if (a->n) {
        lock_take(&a->lock); // the last job may still be in its wake
        lock_drop(&a->lock);
        lock_fini(&a->lock);
    }
    mdl_lora_slots_destroy(a->table);
    mem_free(a->slots);
}

// ---- the job, in the I/O pool

static void work(struct io_job *job) {
    struct eng__slot *s = (struct eng__slot *)(void *)job;
    struct eng *e = s->e;
    const struct adp_device at = {e->cfg.weights, e->cfg.device};
    if (s->old) { // first: the memory of two adapters is not there
        adp_resident_drop(s->old);
        adp_release(s->old);
        s->old = NULL;
    }
    adp_sweep(e->cfg.adapters);
    enum err err = ERR_OK;
    if (s->version)
        err = adp_resident_take(s->version, &at, job->pace, &s->resident, &s->error);
    s->error.code = err;
    lock_take(&e->adapters.lock);
    s->done = true;
    mailbox_wake(e->mailbox);
    lock_drop(&e->adapters.lock);
}

// ---- filling and letting go

static int32_t index_of(const struct eng *e, const struct eng__slot *s) {
    return (int32_t)(s - e->adapters.slots);
}

static void start_job(struct eng *e, struct eng__slot *s, struct io_pool *io) {
    s->state = ENG__SLOT_FILLING;
    s->done = false;
    s->closing_for = 0;
    s->error = (struct err_info){0};
    s->job.run = work;
    e->adapters.filling++;
    io_pool_go_on(io, &s->job); // one per slot at most
}

// The slot holds nothing from the next step on.
static enum err clear(struct eng *e, struct eng__slot *s) {
    enum err err = mdl_lora_set(e->adapters.table, index_of(e, s), NULL);
    if (!err)
        err = e->cfg.ops->queue_wait(e->queue, NULL);
    if (err)
        return err;
    s->old = let_version_go(s, NULL);
    return ERR_OK;
}

static void fail_waiting(struct eng *e, uint64_t number, enum err error) {
    for (struct eng__req *q = e->all, *next; q; q = next) {
        next = q->all_next;
        if (q->r.adapter && q->r.adapter_version == number)
            eng__req_fail(e, q, error);
    }
}

static void fill(struct eng *e, struct eng__slot *s, const struct eng__req *q) {
    struct adp_version *v = q->r.adapter;
    bool evicts = s->state == ENG__SLOT_READY;
    enum err err = evicts ? clear(e, s) : ERR_OK;
    if (err) {
        fail_waiting(e, adp_number(v), err == ERR_NOMEM ? ERR_NOMEM : ERR_DEVICE);
        return;
    }
    metric_add(e->metrics.adapter_evictions, evicts);
    adp_hold(v);
    s->version = v;
    s->number = adp_number(v);
    adp_set_place(v, e->cfg.replica, ADP_PLACE_LOADING, NULL);
    start_job(e, s, q->r.kind == ENG_LOAD && e->cfg.io_gentle ? e->cfg.io_gentle : e->cfg.io);
}

static void collect(struct eng *e, struct eng__slot *s) {
    e->adapters.filling--;
    s->state = ENG__SLOT_EMPTY;
    if (!s->version)
        return;
    enum err err = s->error.code;
    if (!err)
        err = mdl_lora_set(e->adapters.table, index_of(e, s), s->resident);
    if (err) {
        log_write(e->cfg.log, LOG_ERROR, "adapter %s@%llu cannot be used: %s", adp_name(s->version),
                  (unsigned long long)s->number,
                  s->error.message[0] ? s->error.message : err_text(err));
        uint64_t number = s->number;
        bool made = s->resident != NULL;
        struct adp_version *v =
            let_version_go(s, s->error.message[0] ? s->error.message : err_text(err));
        if (made)
            adp_resident_drop(v);
        adp_release(v);
        fail_waiting(e, number, err);
        return;
    }
    s->state = ENG__SLOT_READY;
    s->fresh = true;
    s->users = 0;
    s->used = ++e->adapters.ticks;
    metric_add(e->metrics.adapter_loads, 1);
    adp_set_place(s->version, e->cfg.replica, ADP_PLACE_READY, NULL);
    // Its turn to be forgotten came while it was read.
    if (adp_is_over(s->version) && !clear(e, s))
        start_job(e, s, e->cfg.io);
}

static bool ended(struct eng *e, const struct eng__slot *s) {
    lock_take(&e->adapters.lock);
    bool done = s->done;
    lock_drop(&e->adapters.lock);
    return done;
}

static bool forget_retired(struct eng *e) {
    struct eng__adapters *a = &e->adapters;
    uint64_t numbers[16];
    size_t n = adp_take_retired(e->cfg.adapters, &a->retired_seen, numbers,
                                sizeof numbers / sizeof *numbers);
    for (size_t k = 0; k < n; k++) {
        kv_pool_forget(e->pool, numbers[k], false);
        for (int32_t i = 0; i < a->n; i++) {
            struct eng__slot *s = &a->slots[i];
            // One that is being filled goes when it is filled.
            if (s->state == ENG__SLOT_READY && s->number == numbers[k] && !clear(e, s))
                start_job(e, s, e->cfg.io);
        }
    }
    return n > 0;
}

bool eng__adapters_turn(struct eng *e) {
    struct eng__adapters *a = &e->adapters;
    if (!a->n)
        return false;
    bool any = false;
    for (int32_t i = 0; i < a->n && a->filling; i++) {
        struct eng__slot *s = &a->slots[i];
        if (s->state != ENG__SLOT_FILLING || !ended(e, s))
            continue;
        collect(e, s);
        any = true;
    }
    return forget_retired(e) || any;
}

// ---- admission

// Whether a sequence that can be admitted waits for this version.
static bool is_wanted(const struct eng *e, uint64_t number) {
    for (int32_t i = 0; i < e->sched.n_flows; i++) {
        const struct eng__flow *f = &e->sched.flows[i];
        if (f->n_requests && f->adapter_version == number && eng__flow_first(f))
            return true;
    }
    return false;
}

static void count_users(struct eng *e) {
    struct eng__adapters *a = &e->adapters;
    for (int32_t i = 0; i < a->n; i++)
        a->slots[i].users = 0;
    for (int32_t i = 0; i < e->sched.n_running; i++) {
        const struct eng__req *q = e->sched.running[i]->req;
        if (q->r.adapter)
            a->slots[q->r.adapter_slot].users++;
    }
    for (int32_t i = 0; i < a->n; i++)
        if (a->slots[i].state == ENG__SLOT_READY)
            adp_set_running(a->slots[i].version, e->cfg.replica, a->slots[i].users);
}

// Whoever does not read must not keep others from a slot.
static void displace_paused(struct eng *e) {
    for (int32_t i = e->sched.n_running; i-- > 0;) {
        struct eng__seq *s = e->sched.running[i];
        if (s->req->r.adapter && s->req->paused &&
            e->adapters.slots[s->req->r.adapter_slot].closing_for)
            eng__seq_preempt(e, s);
    }
}

void eng__adapters_begin(struct eng *e) {
    struct eng__adapters *a = &e->adapters;
    if (!a->n)
        return;
    for (int32_t i = 0; i < e->sched.n_flows; i++)
        e->sched.flows[i].held = false;
    bool closing = false;
    for (int32_t i = 0; i < a->n; i++) {
        struct eng__slot *s = &a->slots[i];
        if (s->closing_for && !is_wanted(e, s->closing_for))
            s->closing_for = 0;
        if (s->fresh && !is_wanted(e, s->number))
            s->fresh = false;
        closing |= s->closing_for != 0;
    }
    if (closing)
        displace_paused(e);
    count_users(e);
}

// The slot that a version which is in none may have: an empty one, else the one that is closing for
// it, else the least recently used of those that nobody needs.
static struct eng__slot *free_slot(struct eng *e, uint64_t number) {
    struct eng__adapters *a = &e->adapters;
    struct eng__slot *best = NULL;
    for (int32_t i = 0; i < a->n; i++) {
        struct eng__slot *s = &a->slots[i];
        if (s->state == ENG__SLOT_EMPTY)
            return s;
        if (s->state != ENG__SLOT_READY || s->users || s->fresh)
            continue;
        if (s->closing_for == number)
            return s;
        if (!s->closing_for && (!best || s->used < best->used))
            best = s;
    }
    return best;
}

// All slots are in use: one takes no more sequences, so that it becomes free (README.md, rule 31).
static void close_one(struct eng *e, uint64_t number) {
    struct eng__adapters *a = &e->adapters;
    struct eng__slot *best = NULL;
    for (int32_t i = 0; i < a->n; i++) {
        struct eng__slot *s = &a->slots[i];
        if (s->closing_for == number)
            return;
        if (s->state == ENG__SLOT_READY && !s->fresh && !s->closing_for &&
            (!best || s->users < best->users))
            best = s;
    }
    if (best)
        best->closing_for = number;
}

bool eng__adapters_ready(struct eng *e, struct eng__req *q) {
    struct eng__adapters *a = &e->adapters;
    if (!q->r.adapter)
        return true;
    uint64_t number = q->r.adapter_version;
    for (int32_t i = 0; i < a->n; i++) {
        struct eng__slot *s = &a->slots[i];
        if (s->state == ENG__SLOT_EMPTY || s->number != number)
            continue;
        q->r.adapter_slot = i;
        return s->state == ENG__SLOT_READY && !s->closing_for;
    }
    struct eng__slot *s = free_slot(e, number);
    if (s)
        fill(e, s, q);
    else
        close_one(e, number);
    return false;
}

void eng__adapters_admitted(struct eng *e, const struct eng__req *q) {
    if (!q->r.adapter)
        return;
    struct eng__slot *s = &e->adapters.slots[q->r.adapter_slot];
    s->users++;
    s->fresh = false;
    s->used = ++e->adapters.ticks;
}
