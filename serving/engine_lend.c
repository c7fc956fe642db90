// SPDX-License-Identifier: Apache-2.0
// What serving leaves of memory: the top of the KV pool goes to background work, and comes back on
// demand.
#include "serving/engine_internal.h"

enum { MAX_MOVES = 64, MOVE_BYTES = 8 << 20 }; // of one call: it is part of a slice
// After memory had to come back, none is lent for this long: no ping-pong.
static const int64_t calm_ns = 5000000000;
// Cached blocks that were hit within this time are spared; while background work waits for memory,
// the time shrinks to nothing over `patience_ns`.
static const int64_t hot_ns = 60000000000, patience_ns = 120000000000;

// What others may read of lending.
static void note(struct eng *e, size_t lent, size_t need, enum eng_lend_reason why, int64_t now) {
    bool waits = lent < need;
    lock_take(&e->usage.lock);
    e->lend.lent_bytes = lent;
    e->lend.need_bytes = need;
    e->lend.reason = why;
    if (!waits && e->lend.waits_since_ns)
        e->lend.waited_ns += now - e->lend.waits_since_ns;
    if (!waits)
        e->lend.waits_since_ns = 0;
    else if (!e->lend.waits_since_ns)
        e->lend.waits_since_ns = now;
    lock_drop(&e->usage.lock);
}

bool eng__ask_back(struct eng *e, int32_t blocks) {
    const struct eng_background *b = &e->cfg.background;
    struct kv_stats before, after;
    kv_pool_stats(e->pool, &before);
    if (!before.lent || !b->give_back)
        return false;
    int64_t now = eng__now(e);
    lock_take(&e->usage.lock);
    e->lend.asked_back_ns = now;
    e->lend.asked_back++;
    lock_drop(&e->usage.lock);
    // More than asked for: pressure seldom ends with one block.
    int32_t want = blocks + before.lent / 4;
    b->give_back(b->arg, (size_t)(want < before.lent ? want : before.lent) * e->block_bytes);
    kv_pool_stats(e->pool, &after);
    return after.lent < before.lent;
}

static enum err move_blocks(struct eng *e, const struct kv_copy *moves, int32_t n) {
    enum err err = ERR_OK;
    for (int32_t i = 0; i < n && !err; i++) {
        struct kn_kv_copy c = {
            .pool = e->kv.pool,
            .shape = e->kv.shape,
            .src = &moves[i].src,
            .dst = &moves[i].dst,
            .n = 1,
        };
        err = e->cfg.ops->kv_copy(e->queue, &c);
    }
    enum err waited = e->cfg.ops->queue_wait(e->queue, NULL);
    return err ? err : waited;
}

// Blocks that were hit within `spared_ns` are not taken.
static struct kv_lending terms(struct eng *e, int64_t spared_ns, bool coldest, int64_t now) {
    for (int32_t i = 0; i < e->sched.n_running; i++)
        e->tables[i] = &e->sched.running[i]->kv;
    return (struct kv_lending){
        .now_ns = now,
        .hot_ns = spared_ns,
        .coldest = coldest,
        .seqs = e->tables,
        .n_seqs = e->sched.n_running,
    };
}

static int32_t lend(struct eng *e, int32_t blocks, const struct kv_lending *on) {
    struct kv_copy moves[MAX_MOVES];
    struct kv_lending how = *on;
    size_t most = MOVE_BYTES / e->block_bytes;
    int32_t n_moves = 0;
    how.moves = moves;
    how.max_moves = most < 1 ? 1 : most < MAX_MOVES ? (int32_t)most : MAX_MOVES;
    int32_t lent = kv_pool_lend(e->pool, blocks, &how, &n_moves);
    if (move_blocks(e, moves, n_moves)) {
        // What moved may be broken: its owners fail, its cached content is forgotten.
        while (e->sched.n_running)
            eng__req_fail(e, e->sched.running[0]->req, ERR_DEVICE);
        kv_pool_forget(e->pool, 0, true);
    }
    return lent;
}

static int32_t blocks_of(const struct eng *e, size_t bytes) {
    size_t n = (bytes + e->block_bytes - 1) / e->block_bytes;
    return n < (size_t)e->blocks ? (int32_t)n : e->blocks;
}

// How long ago a cached block must have been hit to be dropped for what the background needs.
static int64_t spared(const struct eng *e, int64_t now) {
    int64_t waited = e->lend.waits_since_ns ? now - e->lend.waits_since_ns : 0;
    return waited < patience_ns ? hot_ns - waited / (patience_ns / hot_ns) : 0;
}

// Hysteresis: where memory had to come back before, it is lent again only when so much more than is
// needed could be had, so that the next request does not take it at once. A quarter of the need, or
// half of what the pool has beside it; the longer the background has waited, the less.
static int32_t to_spare(const struct eng *e, int32_t need, int64_t now) {
    int64_t waited = e->lend.waits_since_ns ? now - e->lend.waits_since_ns : 0;
    if (!e->lend.asked_back_ns || waited >= patience_ns)
        return 0;
    int32_t half = (e->blocks - need) / 2, spare = need / 4 < half ? need / 4 : half;
    return spare > 0 ? (int32_t)((double)spare * (1 - (double)waited / (double)patience_ns)) : 0;
}

static enum eng_lend_reason lend_needed(struct eng *e, int32_t need, int64_t now) {
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    int32_t lacks = need - st.lent;
    if (lacks <= 0)
        return ENG_LEND_ENOUGH;
    int32_t all = lacks + to_spare(e, need, now);
    if (e->sched.n_waiting)
        return ENG_LEND_REQUESTS;
    if (e->lend.asked_back_ns && now - e->lend.asked_back_ns < calm_ns)
        return ENG_LEND_CALM;
    const struct kv_lending how = terms(e, spared(e, now), e->lend.waits_since_ns > 0, now);
    if (kv_pool_lendable(e->pool, all, &how) < all)
        return st.free + st.cached < all ? ENG_LEND_LIVE : ENG_LEND_HOT;
    int32_t lent = lend(e, lacks, &how);
    return lent >= need ? ENG_LEND_ENOUGH : lent > st.lent ? ENG_LEND_GROWS : ENG_LEND_LIVE;
}

// Beyond what is needed: nothing that was hit lately, nothing while serving is short of memory.
static void lend_wanted(struct eng *e, int32_t want, int64_t now) {
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    if (want <= st.lent || e->sched.n_waiting ||
        (e->lend.asked_back_ns && now - e->lend.asked_back_ns < calm_ns))
        return;
    const struct kv_lending how = terms(e, hot_ns, false, now);
    lend(e, want - st.lent, &how);
}

static void return_blocks(struct eng *e, int32_t keep) {
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    if (keep >= st.lent)
        return;
    // What training left there stays: no position is read before it was written (paged_kv, rule
    // 15).
    kv_pool_return(e->pool, keep);
}

size_t eng_background_borrow(struct eng *e, const struct eng_borrow *b, kn_addr *at) {
    int64_t now = eng__now(e);
    enum eng_lend_reason why = lend_needed(e, blocks_of(e, b->need), now);
    if (why == ENG_LEND_ENOUGH)
        lend_wanted(e, blocks_of(e, b->want), now);
    else if (why != ENG_LEND_GROWS)
        return_blocks(e, blocks_of(e, b->held)); // less than is needed is of no use
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    size_t lent = (size_t)st.lent * e->block_bytes;
    note(e, lent, b->need, why, now);
    *at = e->kv.pool + (kn_addr)(st.total - st.lent) * e->block_bytes;
    return lent;
}

void eng_background_return(struct eng *e, size_t keep_bytes) {
    struct kv_stats st;
    return_blocks(e, blocks_of(e, keep_bytes));
    kv_pool_stats(e->pool, &st);
    note(e, (size_t)st.lent * e->block_bytes, 0, ENG_LEND_ENOUGH, eng__now(e));
}

kn_addr eng_background_end(const struct eng *e) {
    return e->kv.pool + (kn_addr)e->blocks * e->block_bytes;
}

void eng_wake(struct eng *e) {
    mailbox_wake(e->mailbox);
}

static double seconds(int64_t ns) {
    return (double)ns * 1e-9;
}

void eng_colocation(struct eng *e, struct eng_colocation *out) {
    int64_t now = eng__now(e);
    *out = (struct eng_colocation){
        .slo_itl_s = seconds(e->cfg.slo_itl_ns),
        .slo_ttft_s = seconds(e->cfg.slo_ttft_ns),
        .pool_bytes = (size_t)e->blocks * e->block_bytes,
    };
    eng__usage_read(&e->usage, now, &out->recent, &out->all);
    lock_take(&e->usage.lock);
    int64_t since = e->lend.waits_since_ns;
    out->margin_s = seconds(e->usage.margin_ns);
    out->slice_s = seconds(e->usage.slice_ns);
    out->lent_bytes = e->lend.lent_bytes;
    out->need_bytes = e->lend.need_bytes;
    out->asked_back = e->lend.asked_back;
    out->waits_for_memory_s = since ? seconds(now - since) : 0;
    out->waited_for_memory_s = seconds(e->lend.waited_ns) + out->waits_for_memory_s;
    out->lend_reason = e->lend.reason;
    lock_drop(&e->usage.lock);
}
