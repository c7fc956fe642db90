// SPDX-License-Identifier: Apache-2.0
// Paged attention over a ragged batch: cpu_attn.
//
// A unit of work is (sequence, kv head, some of its query heads, up to ATTN_ROWS / heads tokens);
// its rows share the keys and values they read. Units are claimed. Positions are cut into spans of
// ATTN_SPAN, counted from 0; within a span a row's softmax runs over the tiles in order from a
// fresh start, and the spans' results are added in order. When there are few units for the
// threads, the spans of a unit are claimed one by one and added after a barrier: the same
// operations, so the same bits.
//
// Invariants
// 1. What is done for a row depends on its position, the window and the cache alone.
// 2. No block beyond a sequence's table or kv_len is read, and no value that a row does not see.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa/attn_tile.h"
#include "kernels/cpu/isa/rowops.h"

enum {
    ATTN_ROWS = 48,
    ATTN_SPAN = 512,
    ATTN_PART_BYTES = CPU_SCRATCH_BYTES / 2, // of each thread's scratch: results of spans
};

struct scratch {
    _Alignas(64) attn_num q[ATTN_ROWS * ATTN_LD]; // scaled by log2(e) too
    float o[ATTN_ROWS * ATTN_LD];                 // of the current span
    float sum[ATTN_ROWS * ATTN_LD];               // of the spans before it
    float l[ATTN_ROWS * V_LANES], sum_l[ATTN_ROWS * V_LANES];
    float m[ATTN_ROWS], sum_m[ATTN_ROWS];
    float s[ATTN_MR * ATTN_TILE];         // scores
    attn_num p[ATTN_MR * ATTN_TILE];      // weights
    int32_t lo[ATTN_ROWS], hi[ATTN_ROWS]; // positions [lo, hi) that a token sees
    bool begun[ATTN_ROWS];                // token: `sum` holds something
    const uint16_t *after[ATTN_BLOCKS];   // what will be read after this unit; NULL: unknown
};
_Static_assert(sizeof(struct scratch) <= CPU_SCRATCH_BYTES - ATTN_PART_BYTES, "scratch too small");

struct unit {
    int32_t seq, head;     // kv head
    int32_t first, heads;  // query heads first..first + heads - 1
    int32_t token, tokens; // in the batch
    int32_t span, spans;   // spans that some token of it sees
};

// Units in order, for indices that grow.
struct cursor {
    const struct kn_attn *p;
    int32_t group, heads; // query heads per kv head; at most that many in a unit
    int32_t parts;        // units that share a kv head's group
    int32_t tokens;       // at most that many in a unit
    bool by_span;         // an index is (unit, span), not a unit
    int32_t seq, at;      // current sequence, unit within it
    int32_t base;         // index of the current unit
    int32_t ordinal;      // units before it
};

static int32_t clip_len(const struct kn_batch *b, int32_t seq) {
    int32_t len = ((const int32_t *)b->kv_len)[seq];
    int64_t table = (int64_t)b->max_blocks * KN_KV_BLOCK;
    return len < table ? len : (int32_t)table;
}

static void seen_by(const struct kn_attn *p, int32_t seq, int32_t token, int32_t *lo, int32_t *hi) {
    int32_t pos = ((const int32_t *)p->batch->pos)[token], len = clip_len(p->batch, seq);
    *lo = p->window > 0 && pos >= p->window ? pos - p->window + 1 : 0;
    *hi = pos < len ? pos + 1 : len;
}

static void cursor_init(struct cursor *c, const struct kn_attn *p, bool by_span) {
    int32_t group = p->heads / p->shape.kv_heads;
    int32_t heads = group < ATTN_ROWS ? group : ATTN_ROWS;
    *c = (struct cursor){.p = p,
                         .group = group,
                         .heads = heads,
                         .parts = (group - 1) / heads + 1,
                         .tokens = ATTN_ROWS / heads,
                         .by_span = by_span};
}

// The tokens of a sequence that are to be done: how many, from *first on. Not positive: none.
static int32_t seq_tokens(const struct kn_attn *p, int32_t seq, int32_t *first) {
    const int32_t *start = (const int32_t *)p->batch->seq_start;
    int32_t begin = start[seq], end = start[seq + 1];
    if (p->token_end > 0) {
        begin = begin > p->token_begin ? begin : p->token_begin;
        end = end < p->token_end ? end : p->token_end;
    }
    *first = begin;
    return end - begin;
}

static int32_t seq_units(const struct cursor *c, int32_t seq) {
    int32_t first, n = seq_tokens(c->p, seq, &first);
    return n <= 0 ? 0 : ((n - 1) / c->tokens + 1) * c->parts * c->p->shape.kv_heads;
}

// The cursor's unit. Tokens run from the last ones, which see most, to the first.
static void cursor_unit(const struct cursor *c, struct unit *u) {
    int32_t start, n = seq_tokens(c->p, c->seq, &start), tiles = (n - 1) / c->tokens + 1;
    int32_t tile = tiles - 1 - c->at % tiles, part = c->at / tiles % c->parts;
    u->seq = c->seq;
    u->head = c->at / tiles / c->parts;
    u->first = u->head * c->group + part * c->heads;
    u->heads = c->group - part * c->heads < c->heads ? c->group - part * c->heads : c->heads;
    u->token = start + tile * c->tokens;
    u->tokens = n - tile * c->tokens < c->tokens ? n - tile * c->tokens : c->tokens;
    int32_t first = INT32_MAX, last = 0;
    for (int32_t i = 0; i < u->tokens; i++) {
        int32_t lo, hi;
        seen_by(c->p, u->seq, u->token + i, &lo, &hi);
        first = lo < first ? lo : first;
        last = hi > last ? hi : last;
    }
    u->span = first / ATTN_SPAN;
    u->spans = last > first ? (last - 1) / ATTN_SPAN - u->span + 1 : 1;
}

// Finds the unit of an index not below the last one asked for; false beyond the end.
static bool cursor_find(struct cursor *c, int32_t index, struct unit *u) {
    while (c->seq < c->p->batch->n_seqs) {
        int32_t units = seq_units(c, c->seq);
        if (!c->by_span && index - c->base >= units - c->at) { // skip the sequence's rest
            c->base += units - c->at;
            c->seq++;
            c->at = 0;
            continue;
        }
        while (c->at < units) {
            cursor_unit(c, u);
            int32_t width = c->by_span ? u->spans : 1;
            if (index < c->base + width)
                return true;
            c->base += width;
            c->ordinal++;
            c->at++;
        }
        c->seq++;
        c->at = 0;
    }
    return false;
}

// ---- one unit, one span

static void load_q(const struct kn_attn *p, const struct unit *u, struct scratch *x) {
    int32_t d = p->shape.head_dim;
    v16f scale = v_set1(p->scale * 0x1.715476p+0f);
    for (int32_t i = 0; i < u->tokens; i++) {
        seen_by(p, u->seq, u->token + i, &x->lo[i], &x->hi[i]);
        x->begun[i] = false;
        const float *q = (const float *)p->q + (u->token + i) * p->ldq + u->first * d;
        for (int32_t h = 0; h < u->heads; h++)
            for (int32_t j = 0; j < d; j += V_LANES) // what follows d is not used
                attn_put_q(x->q + (i * u->heads + h) * ATTN_LD + j,
                           v_mul(v_load_n(q + h * d + j, d - j), scale));
    }
}

struct tile {
    const uint16_t *k[ATTN_BLOCKS], *v[ATTN_BLOCKS];
    const uint16_t *next[ATTN_BLOCKS]; // k of the next tile, or any valid address
    int32_t dims, pairs;               // of a head, rounded up to 16; half the head's own
};

// Rows first..first + n - 1 of a group, whose first one is row `row`, take in the values of [begin,
// end).
static void add_values(struct scratch *x, const struct tile *t, int32_t row, int32_t first,
                       int32_t n, int32_t begin, int32_t end, const float *corr) {
    if (begin >= end)
        return;
    struct attn_values val = {.step = 2 * t->dims, .begin = begin, .end = end};
    int32_t vecs = t->dims / V_LANES, calls = (vecs + ATTN_NV - 1) / ATTN_NV;
    float *o = x->o + (row + first) * ATTN_LD;
    for (int32_t c = 0; calls > 0; calls--) {
        int32_t nv = (vecs - c + calls - 1) / calls;
        for (int32_t b = begin / KN_KV_BLOCK; b * KN_KV_BLOCK < end; b++) {
            val.block[b] = t->v[b] + c * 2 * V_LANES;
            val.next[b] = t->next[b] + c * 2 * V_LANES;
        }
        attn_pv_table[n - 1][nv - 1](x->p + first * ATTN_TILE, &val, corr + first, o + c * V_LANES);
        c += nv;
    }
}

// The same for a group whose rows do not all see [first, last): all together what all see, in whole
// pairs of positions, and rows of one token what they see before and behind that.
static void add_uneven(struct scratch *x, const struct tile *t, int32_t row, struct attn_rows *g,
                       int32_t first, int32_t last) {
    static const float ones[V_LANES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    first = (first + ATTN_CUT - 1) / ATTN_CUT * ATTN_CUT;
    last = last / ATTN_CUT * ATTN_CUT;
    for (int32_t after = 0; after < 2; after++) {
        for (int32_t r = 0, n; r < g->n; r += n) {
            for (n = 1;
                 r + n < g->n && g->begin[r + n] == g->begin[r] && g->end[r + n] == g->end[r];)
                n++;
            if (first >= last) {
                if (!after)
                    add_values(x, t, row, r, n, g->begin[r], g->end[r], g->corr);
            } else if (after) {
                add_values(x, t, row, r, n, last, g->end[r], ones);
            } else if (g->begin[r] < first) {
                add_values(x, t, row, r, n, g->begin[r], first, g->corr);
                for (int32_t i = r; i < r + n; i++)
                    g->corr[i] = 1.0f;
            }
        }
        if (!after && first < last)
            add_values(x, t, row, 0, g->n, first, last, g->corr);
    }
}

static void tile_rows(struct scratch *x, const struct tile *t, int32_t row, struct attn_rows *g) {
    int32_t begin = 0, end = ATTN_TILE, first = 0, last = ATTN_TILE; // seen by one, seen by all
    if (!g->whole) {
        begin = ATTN_TILE;
        end = 0;
        for (int32_t r = 0; r < g->n; r++) {
            begin = g->begin[r] < begin ? g->begin[r] : begin;
            end = g->end[r] > end ? g->end[r] : end;
            first = g->begin[r] > first ? g->begin[r] : first;
            last = g->end[r] < last ? g->end[r] : last;
        }
    }
    int32_t stop = (end - 1) / KN_KV_BLOCK + 1;
    for (int32_t b = begin / KN_KV_BLOCK; b < stop; b += ATTN_NV) {
        int32_t nv = stop - b < ATTN_NV ? stop - b : ATTN_NV;
        attn_qk_table[g->n - 1][nv - 1](x->q + row * ATTN_LD, t->k + b, t->pairs,
                                        x->s + b * V_LANES);
    }
    g->m = x->m + row;
    g->l = x->l + row * V_LANES;
    attn_softmax(g, x->s, x->p);
    if (begin == first && end == last)
        add_values(x, t, row, 0, g->n, begin, end, g->corr);
    else
        add_uneven(x, t, row, g, first, last);
}

// The tile at position `at`, for all rows of a unit: in groups of rows that see something of it.
static void tile_all(struct scratch *x, const struct tile *t, const struct unit *u, int32_t at,
                     bool whole) {
    int32_t rows = u->tokens * u->heads, token = 0, head = 0;
    struct attn_rows g = {.whole = whole};
    for (int32_t r = 0; r < rows; r++) {
        int32_t begin = x->lo[token] > at ? x->lo[token] - at : 0;
        int32_t end = x->hi[token] - at < ATTN_TILE ? x->hi[token] - at : ATTN_TILE;
        bool seen = begin < end;
        if (seen) {
            g.begin[g.n] = begin;
            g.end[g.n] = end;
            g.seen[g.n++] = ~(uint64_t)0 >> (ATTN_TILE - end) & ~(uint64_t)0 << begin;
        }
        if (g.n > 0 && (!seen || g.n == ATTN_MR || r == rows - 1)) {
            tile_rows(x, t, r + seen - g.n, &g);
            g.n = 0;
        }
        if (++head == u->heads) {
            head = 0;
            token++;
        }
    }
}

// The blocks that hold positions [lo, hi) of the tile at `at`; false if the table has none there.
static bool find_blocks(const struct kn_attn *p, const struct unit *u, int32_t at, int32_t lo,
                        int32_t hi, const uint16_t *const *after, struct tile *t) {
    const struct kn_batch *b = p->batch;
    const int32_t *blocks = (const int32_t *)b->block_table + (int64_t)u->seq * b->max_blocks;
    for (int32_t i = 0; i < ATTN_BLOCKS; i++) {
        int32_t pos = at + i * KN_KV_BLOCK;
        if (pos + KN_KV_BLOCK <= lo || pos >= hi)
            continue;
        int32_t block = blocks[pos / KN_KV_BLOCK];
        if (block < 0)
            return false;
        t->k[i] = kv_part(p->pool, &p->shape, block, p->layer, u->head);
        t->v[i] = t->k[i] + kv_v_offset(p->shape.head_dim);
        int32_t then = pos + ATTN_TILE < hi ? blocks[(pos + ATTN_TILE) / KN_KV_BLOCK] : -1;
        t->next[i] = then >= 0  ? kv_part(p->pool, &p->shape, then, p->layer, u->head)
                     : after[i] ? after[i]
                                : t->k[i];
    }
    return true;
}

// One span of a unit from a fresh start -> o, l, m.
static void run_span(const struct kn_attn *p, const struct unit *u, int32_t span, struct scratch *x,
                     struct cpu_task *task) {
    int32_t dims = kv_dims(p->shape.head_dim), rows = u->tokens * u->heads;
    for (int32_t r = 0; r < rows; r++) {
        memset(x->o + r * ATTN_LD, 0, (size_t)dims * sizeof(float));
        x->m[r] = -__builtin_inff();
    }
    memset(x->l, 0, (size_t)rows * V_LANES * sizeof(float));
    int32_t lo_min = INT32_MAX, lo_max = 0, hi_min = INT32_MAX, hi_max = 0;
    for (int32_t i = 0; i < u->tokens; i++) {
        lo_min = x->lo[i] < lo_min ? x->lo[i] : lo_min;
        lo_max = x->lo[i] > lo_max ? x->lo[i] : lo_max;
        hi_min = x->hi[i] < hi_min ? x->hi[i] : hi_min;
        hi_max = x->hi[i] > hi_max ? x->hi[i] : hi_max;
    }
    struct tile t = {.dims = dims, .pairs = p->shape.head_dim / 2};
    int32_t first = span * ATTN_SPAN, last = first + ATTN_SPAN;
    for (int32_t at = first; at < last && at < hi_max; at += ATTN_TILE) {
        if (at + ATTN_TILE <= lo_min)
            continue;
        if (!find_blocks(p, u, at, lo_min, hi_max, x->after, &t)) {
            cpu_fail(task, ERR_INTERNAL);
            return;
        }
        tile_all(x, &t, u, at, lo_max <= at && hi_min >= at + ATTN_TILE);
    }
}

static bool sees_span(const struct scratch *x, int32_t token, int32_t span) {
    int64_t first = (int64_t)span * ATTN_SPAN;
    return x->lo[token] < x->hi[token] && x->lo[token] < first + ATTN_SPAN && x->hi[token] > first;
}

// A span's result of one row: [dims] values, 16 sums of weights, the maximum.
struct part {
    const float *o, *l;
    float m;
};

// Adds a span's result to a row's sum. The first one is taken as it is.
static void fold_row(struct scratch *x, int32_t row, int32_t dims, const struct part *part,
                     bool begun) {
    float *o = x->sum + row * ATTN_LD, *l = x->sum_l + row * V_LANES;
    if (!begun) {
        memcpy(o, part->o, (size_t)dims * sizeof(float));
        memcpy(l, part->l, V_LANES * sizeof(float));
        x->sum_m[row] = part->m;
        return;
    }
    float old = x->sum_m[row], m = old > part->m ? old : part->m;
    v16f a = v_exp2_neg(v_set1(old - m)), b = v_exp2_neg(v_set1(part->m - m));
    for (int32_t i = 0; i < dims; i += V_LANES)
        v_store(o + i, v_fma(v_load(part->o + i), b, v_mul(v_load(o + i), a)));
    v_store(l, v_fma(v_load(part->l), b, v_mul(v_load(l), a)));
    x->sum_m[row] = m;
}

static void fold_span(struct scratch *x, const struct unit *u, int32_t span, int32_t dims) {
    for (int32_t i = 0; i < u->tokens; i++) {
        if (!sees_span(x, i, span))
            continue;
        for (int32_t h = 0; h < u->heads; h++) {
            int32_t row = i * u->heads + h;
            struct part part = {x->o + row * ATTN_LD, x->l + row * V_LANES, x->m[row]};
            fold_row(x, row, dims, &part, x->begun[i]);
        }
        x->begun[i] = true;
    }
}

static bool fused_q8(const struct kn_attn *p, const struct cursor *c) {
    return p->outq && c->heads * p->shape.head_dim % Q8_VALUES == 0 &&
           c->group * p->shape.head_dim % Q8_VALUES == 0;
}

// sum / l -> out, and its Q8 form where a unit's columns are whole blocks.
static void write_out(const struct kn_attn *p, const struct unit *u, struct scratch *x, bool q8) {
    int32_t d = p->shape.head_dim;
    int64_t row_blocks = (int64_t)p->heads * d / Q8_VALUES;
    for (int32_t i = 0; i < u->tokens; i++) {
        float *out = (float *)p->out + (u->token + i) * p->ldout + u->first * d;
        for (int32_t h = 0; h < u->heads; h++) {
            int32_t row = i * u->heads + h;
            float inv = x->begun[i] ? 1.0f / v_sum(v_load(x->sum_l + row * V_LANES)) : 0.0f;
            for (int32_t j = 0; j < d; j += V_LANES) {
                v16f o = x->begun[i] ? v_load(x->sum + row * ATTN_LD + j) : v_zero();
                v_store_n(out + h * d + j, d - j, v_mul(o, v_set1(inv)));
            }
        }
        if (q8)
            row_quantize(out, u->heads * d,
                         (struct cpu_q8_block *)p->outq + (u->token + i) * row_blocks +
                             u->first * d / Q8_VALUES);
    }
}

// ---- by span: results wait in the threads' scratch until all are there

// Result `index`: rows * (dims + 17) floats.
static float *part_slot(const struct cpu_task *t, int32_t index, size_t slot_bytes) {
    size_t per = ATTN_PART_BYTES / slot_bytes, thread = (size_t)index / per;
    char *base =
        t->device->scratch + thread * CPU_SCRATCH_BYTES + CPU_SCRATCH_BYTES - ATTN_PART_BYTES;
    return (float *)(void *)(base + (size_t)index % per * slot_bytes);
}

static void keep_parts(const struct scratch *x, int32_t rows, int32_t dims, float *slot) {
    for (int32_t r = 0; r < rows; r++) {
        memcpy(slot, x->o + r * ATTN_LD, (size_t)dims * sizeof(float));
        memcpy(slot + dims, x->l + r * V_LANES, V_LANES * sizeof(float));
        slot[dims + V_LANES] = x->m[r];
        slot += dims + V_LANES + 1;
    }
}

static void fold_parts(struct scratch *x, const struct unit *u, int32_t span, int32_t dims,
                       const float *slot) {
    int32_t width = dims + V_LANES + 1;
    for (int32_t i = 0; i < u->tokens; i++) {
        if (!sees_span(x, i, span))
            continue;
        for (int32_t h = 0; h < u->heads; h++) {
            const float *at = slot + (i * u->heads + h) * width;
            struct part part = {at, at + dims, at[dims + V_LANES]};
            fold_row(x, i * u->heads + h, dims, &part, x->begun[i]);
        }
        x->begun[i] = true;
    }
}

// Notes where the unit that this thread will probably claim next begins to read, so that its first
// keys are fetched while the current unit ends. Only a hint.
static void look_ahead(const struct kn_attn *p, const struct cursor *c, int32_t index,
                       struct scratch *x) {
    struct cursor ahead = *c;
    struct unit u;
    memset(x->after, 0, sizeof x->after);
    if (!cursor_find(&ahead, index, &u))
        return;
    int32_t lo, hi;
    seen_by(p, u.seq, u.token, &lo, &hi);
    struct tile t = {0};
    const uint16_t *none[ATTN_BLOCKS] = {0};
    if (find_blocks(p, &u, lo / ATTN_TILE * ATTN_TILE, lo, hi, none, &t))
        memcpy(x->after, t.k, sizeof x->after);
}

static void run_by_span(const struct kn_attn *p, int32_t units, int32_t indices, size_t slot_bytes,
                        struct cpu_task *t) {
    struct scratch *x = t->scratch;
    int32_t dims = kv_dims(p->shape.head_dim);
    struct cursor c;
    struct unit u;
    cursor_init(&c, p, true);
    memset(x->after, 0, sizeof x->after);
    for (int32_t i; cpu_claim(t, indices, &i) && cursor_find(&c, i, &u);) {
        load_q(p, &u, x);
        run_span(p, &u, u.span + i - c.base, x, t);
        keep_parts(x, u.tokens * u.heads, dims, part_slot(t, i, slot_bytes));
    }
    cpu_barrier(t);
    cursor_init(&c, p, true);
    cursor_find(&c, 0, &u);
    for (int32_t i; cpu_claim(t, units, &i);) {
        while (c.ordinal < i)
            cursor_find(&c, c.base + u.spans, &u);
        load_q(p, &u, x);
        for (int32_t s = 0; s < u.spans; s++)
            fold_parts(x, &u, u.span + s, dims, part_slot(t, c.base + s, slot_bytes));
        write_out(p, &u, x, fused_q8(p, &c));
    }
}

static void run_units(const struct kn_attn *p, int32_t units, struct cpu_task *t) {
    struct scratch *x = t->scratch;
    struct cursor c;
    struct unit u;
    cursor_init(&c, p, false);
    memset(x->after, 0, sizeof x->after);
    for (int32_t i; cpu_claim(t, units, &i) && cursor_find(&c, i, &u);) {
        if (u.tokens == 1)
            look_ahead(p, &c, i + t->nt, x);
        load_q(p, &u, x);
        for (int32_t s = 0; s < u.spans; s++) {
            run_span(p, &u, u.span + s, x, t);
            fold_span(x, &u, u.span + s, kv_dims(p->shape.head_dim));
        }
        write_out(p, &u, x, fused_q8(p, &c));
    }
}

// How many indices there are by span; 0 if that does not pay or its results find no room.
static int32_t plan_spans(const struct kn_attn *p, int32_t units, const struct cpu_task *t,
                          size_t *slot_bytes) {
    enum { UNITS_PER_THREAD = 4 };
    if (t->nt == 1 || units >= UNITS_PER_THREAD * t->nt)
        return 0;
    struct cursor c;
    struct unit u;
    cursor_init(&c, p, true);
    int32_t indices = 0, rows = 0, most = 0;
    for (; cursor_find(&c, indices, &u); indices = c.base + u.spans) {
        rows = u.tokens * u.heads > rows ? u.tokens * u.heads : rows;
        most = u.spans > most ? u.spans : most;
    }
    *slot_bytes = (size_t)rows * (size_t)(kv_dims(p->shape.head_dim) + V_LANES + 1) * sizeof(float);
    if (most < 2 || (size_t)indices > ATTN_PART_BYTES / *slot_bytes * (size_t)t->nt)
        return 0;
    return indices;
}

void ISA(cpu_attn)(const void *params, struct cpu_task *t) {
    const struct kn_attn *p = params;
    struct cursor c;
    cursor_init(&c, p, false);
    int32_t units = 0;
    for (int32_t s = 0; s < p->batch->n_seqs; s++)
        units += seq_units(&c, s);
    size_t slot_bytes = 0;
    int32_t indices = plan_spans(p, units, t, &slot_bytes);
    if (indices > 0)
        run_by_span(p, units, indices, slot_bytes, t);
    else
        run_units(p, units, t);
    if (!p->outq || fused_q8(p, &c))
        return;
    cpu_barrier(t); // Q8 blocks that two units share
    int32_t width = p->heads * p->shape.head_dim, first = p->token_begin;
    int32_t n = (p->token_end > 0 ? p->token_end : p->batch->n_tokens) - first;
    for (int32_t begin, end; row_claim(t, n, width, &begin, &end);)
        for (int32_t r = first + begin; r < first + end; r++)
            row_quantize((const float *)p->out + r * p->ldout, width,
                         (struct cpu_q8_block *)p->outq + (int64_t)r * (width / Q8_VALUES));
}
