// SPDX-License-Identifier: Apache-2.0
// Sharing attention's backward among the threads: cpu_attn_back. attn_back.h has the order of the
// sums, which leaves two ways to do a unit (sequence, kv head), of equal bits:
//   whole   one thread goes over the tiles of rows in order and adds to dk and dv: five products
//   shared  first tiles of rows on any thread (softmax, dq), then, after a barrier, tiles of keys
//           (dk, dv): seven products, because scores and dp are made twice
// Units are done whole as long as each thread gets as much; what is left over is shared. Three kv
// heads on two threads: one whole unit for each thread, and one that they share.
//
// Invariants
// 1. Each thread plans by itself (struct plan), from the parameters and the number of threads only.
// 2. Between the phases of shared units their rows' statistics lie in the threads' scratch memory,
//    at its end; units whose rows do not fit are done whole.
// 3. No key beyond a row's position, before its window or outside the table is looked at.
#include "kernels/cpu/isa/attn_back.h"
#include "kernels/cpu/cpu_device.h"
#include <string.h>

enum {
    STATS = BACK_STATS_BYTES / (int)sizeof(struct back_stats), // rows, of each thread
    SHARED_ROWS = 48,                                          // rows of a tile of a shared unit
    PLAN_THREADS = 16, // with that many units per thread nothing needs to be shared
};

static bool unit_begin(const struct kn_attn_back *p, int32_t seq, struct back_unit *u) {
    const int32_t *start = (const int32_t *)p->batch->seq_start;
    int32_t begin = start[seq], end = start[seq + 1];
    *u = (struct back_unit){
        .p = p, .seq = seq, .start = begin, .group = p->heads / p->shape.kv_heads};
    if (p->token_end) {
        begin = begin > p->token_begin ? begin : p->token_begin;
        end = end < p->token_end ? end : p->token_end;
    }
    u->begin = begin - u->start;
    u->end = end - u->start;
    return begin < end;
}

static int64_t unit_rows(const struct back_unit *u) {
    return (int64_t)(u->end - u->begin) * u->group;
}

// Visible pairs.
static int64_t unit_work(const struct back_unit *u) {
    int64_t n = u->end - u->begin, mean2 = (int64_t)u->begin + u->end + 1, w = u->p->window;
    return w > 0 && 2 * w < mean2 ? n * w : n * mean2 / 2 + 1;
}

// Goes over all units in order and says which are shared.
struct plan {
    const struct kn_attn_back *p;
    int32_t nt, turn;      // the thread whose turn it is
    bool share;            // some units may be shared
    int64_t budget;        // work of one thread
    int64_t rows, most;    // of shared units so far; at most
    int32_t next;          // unit, of sequences * kv heads
    struct back_unit unit; // of the current sequence
    int64_t load[CPU_MAX_THREADS];
};

static void plan_rewind(struct plan *pl) {
    pl->turn = pl->next = 0;
    pl->rows = 0;
    memset(pl->load, 0, (size_t)pl->nt * sizeof *pl->load);
}

static void plan_init(struct plan *pl, const struct kn_attn_back *p, int32_t nt) {
    pl->p = p;
    pl->nt = nt;
    pl->most = (int64_t)nt * STATS;
    int64_t units = 0, work = 0;
    for (int32_t s = 0; s < p->batch->n_seqs; s++) {
        struct back_unit u;
        if (unit_begin(p, s, &u)) {
            units += p->shape.kv_heads;
            work += p->shape.kv_heads * unit_work(&u);
        }
    }
    pl->share = nt > 1 && units < (int64_t)PLAN_THREADS * nt;
    pl->budget = work / nt;
    plan_rewind(pl);
}

static bool plan_next(struct plan *pl, bool *shared, int64_t *stats) {
    int32_t kv = pl->p->shape.kv_heads;
    for (;; pl->next += kv) { // sequences that have nothing to do are passed over
        if (pl->next >= pl->p->batch->n_seqs * kv)
            return false;
        if (pl->next % kv || unit_begin(pl->p, pl->next / kv, &pl->unit))
            break;
    }
    pl->unit.head = pl->next++ % kv;
    int64_t work = unit_work(&pl->unit), rows = unit_rows(&pl->unit);
    *stats = pl->rows;
    *shared = pl->share && pl->load[pl->turn] + work > pl->budget && pl->rows + rows <= pl->most;
    if (*shared) {
        pl->rows += rows;
    } else {
        pl->load[pl->turn] += work;
        pl->turn = (pl->turn + 1) % pl->nt;
    }
    return true;
}

// ---- work on a unit

static struct back_stats *stats_at(const struct cpu_task *t, int64_t row) {
    char *end = t->device->scratch + (size_t)(row / STATS + 1) * CPU_SCRATCH_BYTES;
    return (struct back_stats *)(void *)(end - BACK_STATS_BYTES) + row % STATS;
}

static void move_stats(const struct cpu_task *t, const struct back_rows *r, int64_t first,
                       struct back_scratch *x, bool keep) {
    first += r->row - (int64_t)r->u->begin * r->u->group;
    for (int32_t i = 0; i < r->rows; i++)
        if (keep)
            *stats_at(t, first + i) = x->stats[i];
        else
            x->stats[i] = *stats_at(t, first + i);
}

// Rows of a tile that ends at position `end`: their weights for all keys have to fit. 0: too long.
static int32_t rows_of_tile(const struct back_unit *u, int32_t end, int32_t most) {
    int32_t tiles = (end - 1) / BACK_KEYS + 1;
    if (u->p->window > 0 && u->p->window / BACK_KEYS + BACK_ROWS / BACK_KEYS + 3 < tiles)
        tiles = u->p->window / BACK_KEYS + BACK_ROWS / BACK_KEYS + 3;
    int32_t fit = BACK_P_VALUES / BACK_KEYS / tiles;
    return fit < most ? fit : most;
}

// Some rows and all keys that they see. `whole`: dk and dv are done, too; otherwise the statistics
// go to the rows' places from `stats` on.
static enum err run_rows(const struct back_rows *r, bool whole, int64_t stats,
                         const struct cpu_task *t, struct back_scratch *x) {
    const struct back_unit *u = r->u;
    int32_t lo = back_first_seen(u->p, r->row / u->group);
    int32_t hi = (r->row + r->rows - 1) / u->group + 1;
    int32_t first = lo / BACK_KEYS * BACK_KEYS, tiles = (hi - 1 - first) / BACK_KEYS + 1;
    int32_t step = r->rows * BACK_KEYS;
    ISA(back_load_rows)(r, true, x);
    for (int32_t i = 0; i < tiles; i++) {
        int32_t at = first + i * BACK_KEYS;
        if (!ISA(back_load_keys)(u, at, lo, hi, false, false, x))
            return ERR_INTERNAL;
        ISA(back_scores)(r, at, x, x->p + i * step);
    }
    ISA(back_softmax)(r, first, tiles, x);
    memset(x->dq, 0, (size_t)(r->rows * kv_dims(u->p->shape.head_dim)) * sizeof *x->dq);
    if (whole) { // the tokens whose first row is here: nobody has added to their keys yet
        int32_t begin = (r->row + u->group - 1) / u->group;
        ISA(back_clear_keys)(u, begin, hi);
    } else {
        move_stats(t, r, stats, x, true);
    }
    for (int32_t i = 0; i < tiles; i++) {
        int32_t at = first + i * BACK_KEYS;
        if (!ISA(back_load_keys)(u, at, lo, hi, true, true, x))
            return ERR_INTERNAL;
        ISA(back_tile)(r, at, whole, true, x, x->p + i * step);
    }
    ISA(back_store_dq)(r, x);
    return ERR_OK;
}

static void run_whole(const struct back_unit *u, struct cpu_task *t) {
    struct back_rows r = {.u = u, .row = u->begin * u->group};
    for (int32_t end = u->end * u->group; r.row < end; r.row += r.rows) {
        int32_t most = end - r.row < BACK_ROWS ? end - r.row : BACK_ROWS;
        r.rows = rows_of_tile(u, (r.row + most - 1) / u->group + 1, most);
        enum err e = r.rows > 0 ? run_rows(&r, true, 0, t, t->scratch) : ERR_LIMIT;
        if (e) {
            cpu_fail(t, e);
            return;
        }
    }
}

// dk and dv of one tile of keys, from all rows that see some of it.
static void run_keys(const struct back_unit *u, int32_t at, int64_t stats, struct cpu_task *t) {
    struct back_scratch *x = t->scratch;
    int32_t hi = at + BACK_KEYS < u->end ? at + BACK_KEYS : u->end;
    int32_t from = at > u->begin ? at : u->begin, to = u->end;
    if (u->p->window > 0 && to - u->p->window > hi - 1)
        to = hi - 1 + u->p->window;
    ISA(back_clear_keys)(u, from < hi ? from : hi, hi);
    if (from >= to)
        return;
    if (!ISA(back_load_keys)(u, at, back_first_seen(u->p, from), hi, false, true, x)) {
        cpu_fail(t, ERR_INTERNAL);
        return;
    }
    struct back_rows r = {.u = u, .row = from * u->group};
    for (int32_t end = to * u->group; r.row < end; r.row += r.rows) {
        r.rows = end - r.row < BACK_ROWS ? end - r.row : BACK_ROWS;
        ISA(back_load_rows)(&r, false, x);
        move_stats(t, &r, stats, x, false);
        ISA(back_scores)(&r, at, x, x->p);
        ISA(back_softmax_tile)(&r, at, x, x->p);
        ISA(back_tile)(&r, at, true, false, x, x->p);
    }
}

// ---- phases

static int32_t row_tiles(const struct back_unit *u) {
    int32_t most = rows_of_tile(u, u->end, SHARED_ROWS);
    return most > 0 ? (int32_t)((unit_rows(u) - 1) / most + 1) : 1;
}

// Tiles from the last one, which sees most, to the first.
static void run_row_tile(const struct back_unit *u, int32_t i, int64_t stats, struct cpu_task *t) {
    int32_t most = rows_of_tile(u, u->end, SHARED_ROWS), n = row_tiles(u) - 1 - i;
    int32_t first = u->begin * u->group, left = u->end * u->group - first - n * most;
    struct back_rows r = {.u = u, .row = first + n * most, .rows = left < most ? left : most};
    enum err e = most > 0 ? run_rows(&r, false, stats, t, t->scratch) : ERR_LIMIT;
    if (e)
        cpu_fail(t, e);
}

// Keys that the unit's rows see.
static int32_t first_key_tile(const struct back_unit *u) {
    return back_first_seen(u->p, u->begin) / BACK_KEYS;
}
static int32_t key_tiles(const struct back_unit *u) {
    return (u->end - 1) / BACK_KEYS + 1 - first_key_tile(u);
}

// Pieces of work of the units that are shared, or of those that are not.
enum phase { WHOLE, ROW_TILES, KEY_TILES };

static int32_t pieces(const struct back_unit *u, enum phase phase) {
    return phase == WHOLE ? 1 : phase == ROW_TILES ? row_tiles(u) : key_tiles(u);
}

static void run_piece(const struct back_unit *u, enum phase phase, int32_t i, int64_t stats,
                      struct cpu_task *t) {
    if (phase == WHOLE)
        run_whole(u, t);
    else if (phase == ROW_TILES)
        run_row_tile(u, i, stats, t);
    else
        run_keys(u, (first_key_tile(u) + i) * BACK_KEYS, stats, t);
}

// Does piece *claimed and goes on claiming while the pieces are this phase's; `base`: those before.
// Returns how many there are with this phase's.
static int32_t run_phase(struct plan *pl, enum phase phase, int32_t base, int32_t *claimed,
                         struct cpu_task *t) {
    bool shared;
    int64_t stats;
    plan_rewind(pl);
    while (plan_next(pl, &shared, &stats)) {
        if (shared == (phase == WHOLE))
            continue;
        struct back_unit u = pl->unit;
        int32_t n = pieces(&u, phase);
        while (*claimed < base + n) {
            run_piece(&u, phase, *claimed - base, stats, t);
            cpu_claim(t, INT32_MAX, claimed);
        }
        base += n;
    }
    return base;
}

static bool has_room(const struct kn_attn_back *p) {
    const struct kn_batch *b = p->batch;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        struct back_unit u;
        if (unit_begin(p, s, &u) && (u.end > ((const int32_t *)b->kv_len)[s] ||
                                     u.end > (int64_t)b->max_blocks * KN_KV_BLOCK))
            return false;
    }
    return true;
}

void ISA(cpu_attn_back)(const void *params, struct cpu_task *t) {
    const struct kn_attn_back *p = params;
    struct plan pl;
    int32_t claimed;
    if (!has_room(p)) {
        cpu_fail(t, ERR_INTERNAL);
        return;
    }
    plan_init(&pl, p, t->nt);
    cpu_claim(t, INT32_MAX, &claimed);
    int32_t base = run_phase(&pl, WHOLE, 0, &claimed, t);
    run_phase(&pl, ROW_TILES, base, &claimed, t);
    if (!pl.share)
        return;
    cpu_barrier(t);
    cpu_claim(t, INT32_MAX, &claimed);
    run_phase(&pl, KEY_TILES, 0, &claimed, t);
}
