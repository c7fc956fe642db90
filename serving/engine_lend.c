// SPDX-License-Identifier: Apache-2.0
// What serving leaves: idle time and the top of the KV pool go to background work, and come back on
// demand.
#include "serving/engine_internal.h"

enum { SLICE_US = 3000, MAX_MOVES = 64 };
// After memory had to come back, none is lent for this long: no ping-pong.
static const int64_t calm_ns = 5000000000;

bool eng__background_slice(struct eng *e) {
    const struct eng_background *b = &e->cfg.background;
    return b->run && b->run(b->arg, SLICE_US) > 0;
}

bool eng__ask_back(struct eng *e, int32_t blocks) {
    const struct eng_background *b = &e->cfg.background;
    struct kv_stats before, after;
    kv_pool_stats(e->pool, &before);
    if (!before.lent || !b->give_back)
        return false;
    e->asked_back_ns = eng__now(e);
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

size_t eng_background_borrow(struct eng *e, size_t bytes, kn_addr *at) {
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    int32_t lent = st.lent;
    size_t want = bytes / e->block_bytes;
    bool calm = !e->asked_back_ns || eng__now(e) - e->asked_back_ns >= calm_ns;
    if (calm && !e->sched.n_waiting && want > 0) {
        struct kv_copy moves[MAX_MOVES];
        int32_t n_moves = 0, n = e->sched.n_running;
        for (int32_t i = 0; i < n; i++)
            e->tables[i] = &e->sched.running[i]->kv;
        lent = kv_pool_lend(e->pool, want < (size_t)st.total ? (int32_t)want : st.total, moves,
                            MAX_MOVES, &n_moves, e->tables, n, eng__now(e));
        if (move_blocks(e, moves, n_moves)) {
            // What moved may be broken: its owners fail, its cached content is forgotten.
            while (e->sched.n_running)
                eng__req_fail(e, e->sched.running[0]->req, ERR_DEVICE);
            kv_pool_forget(e->pool, 0, true);
        }
    }
    *at = e->kv.pool + (kn_addr)(st.total - lent) * e->block_bytes;
    return (size_t)lent * e->block_bytes;
}

void eng_background_return(struct eng *e, size_t keep_bytes) {
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    size_t blocks = (keep_bytes + e->block_bytes - 1) / e->block_bytes;
    if (blocks >= (size_t)st.lent)
        return;
    int32_t keep = (int32_t)blocks;
    // What training left there could be read as NaN by whoever reads a whole block.
    e->cfg.ops->discard(e->cfg.device, e->kv.pool + (kn_addr)(st.total - st.lent) * e->block_bytes,
                        (size_t)(st.lent - keep) * e->block_bytes);
    kv_pool_return(e->pool, keep);
}

void eng_wake(struct eng *e) {
    mailbox_wake(e->mailbox);
}
