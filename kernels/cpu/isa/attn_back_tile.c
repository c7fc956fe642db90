// SPDX-License-Identifier: Apache-2.0
// A tile of query rows times a tile of keys: attn_back.h.
#include "kernels/cpu/isa/attn_back.h"
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/transpose.h"

static const float log2_e = 0x1.715476p+0f;

static int32_t first_pos(const struct back_rows *r) {
    return r->row / r->u->group;
}
static int32_t last_pos(const struct back_rows *r) {
    return (r->row + r->rows - 1) / r->u->group;
}

// Where a row's head lies in [tokens, heads * head_dim].
static int64_t row_at(const struct back_rows *r, int32_t i, int64_t ld) {
    const struct back_unit *u = r->u;
    int32_t pos = (r->row + i) / u->group, h = (r->row + i) % u->group;
    return (u->start + pos) * ld + (u->head * u->group + h) * u->p->shape.head_dim;
}

void ISA(back_load_rows)(const struct back_rows *r, bool delta, struct back_scratch *x) {
    const struct kn_attn_back *p = r->u->p;
    int32_t d = p->shape.head_dim, dims = kv_dims(d);
    v16f scale = v_set1(p->scale);
    for (int32_t i = 0; i < r->rows; i++) {
        const float *q = (const float *)p->q + row_at(r, i, p->ldq);
        const float *g = (const float *)p->dout + row_at(r, i, p->lddout);
        const float *o = (const float *)p->out + row_at(r, i, p->ldout);
        v16f sum = v_zero();
        for (int32_t j = 0; j < d; j += V_LANES) {
            v16f gv = v_load_n(g + j, d - j);
            v_store(x->q + i * dims + j, v_mul(v_load_n(q + j, d - j), scale));
            v_store(x->dout + i * dims + j, gv);
            if (delta)
                sum = v_fma(gv, v_load_n(o + j, d - j), sum);
        }
        if (delta)
            x->stats[i].delta = v_sum(sum);
    }
}

// ---- keys and values as f32

static void load_k(const uint16_t *k, int32_t d, float *kt, float *rows) {
    int32_t dims = kv_dims(d);
    for (int32_t c = 0; c < d; c += V_LANES) {
        v16f v[V_LANES];
        int32_t n = d - c < V_LANES ? d - c : V_LANES;
        for (int32_t i = 0; i < V_LANES; i += 2) {
            v16i words = i < n ? vi_load(k + (c + i) / 2 * KV_K_STEP) : vi_zero();
            v[i] = v_bf16_even(words);
            v[i + 1] = v_bf16_odd(words);
        }
        for (int32_t i = 0; i < n; i++)
            v_store(kt + (c + i) * BACK_KEYS, v[i]);
        if (!rows)
            continue;
        v_transpose(v);
        for (int32_t i = 0; i < V_LANES; i++)
            v_store(rows + i * dims + c, v[i]);
    }
}

static void load_v(const uint16_t *values, int32_t d, float *vt) {
    int32_t dims = kv_dims(d);
    for (int32_t c = 0; c < dims; c += V_LANES) {
        v16f v[V_LANES];
        for (int32_t i = 0; i < V_LANES; i += 2) {
            v16i words = vi_load(values + i * dims + 2 * c);
            v[i] = v_bf16_even(words);
            v[i + 1] = v_bf16_odd(words);
        }
        v_transpose(v);
        for (int32_t i = 0; i < V_LANES; i++)
            v_store(vt + (c + i) * BACK_KEYS, v[i]);
    }
}

bool ISA(back_load_keys)(const struct back_unit *u, int32_t at, int32_t lo, int32_t hi, bool k,
                         bool vt, struct back_scratch *x) {
    const struct kn_attn_back *p = u->p;
    const struct kn_batch *b = p->batch;
    const int32_t *table = (const int32_t *)b->block_table + (int64_t)u->seq * b->max_blocks;
    int32_t d = p->shape.head_dim, dims = kv_dims(d);
    for (int32_t i = 0; i < BACK_BLOCKS; i++) {
        int32_t pos = at + i * KN_KV_BLOCK;
        float *rows = x->k + i * KN_KV_BLOCK * dims;
        if (pos + KN_KV_BLOCK <= lo || pos >= hi) { // not there, perhaps
            if (k)
                memset(rows, 0, (size_t)(KN_KV_BLOCK * dims) * sizeof *rows);
            continue;
        }
        int32_t block = table[pos / KN_KV_BLOCK];
        if (block < 0)
            return false;
        const uint16_t *part = kv_part(p->pool, &p->shape, block, p->layer, u->head);
        load_k(part, d, x->kt + i * KN_KV_BLOCK, k ? rows : NULL);
        if (vt)
            load_v(part + kv_v_offset(d), d, x->vt + i * KN_KV_BLOCK);
    }
    return true;
}

// ---- scores and softmax

// How many of the tile's keys row i sees, from its first one on; may be below 0 or above 64.
static int32_t keys_below(const struct back_rows *r, int32_t i, int32_t at) {
    return (r->row + i) / r->u->group + 1 - at;
}

static int32_t at_most(int32_t x, int32_t most) {
    return x < most ? x : most;
}

void ISA(back_scores)(const struct back_rows *r, int32_t at, const struct back_scratch *x,
                      float *scores) {
    int32_t d = r->u->p->shape.head_dim, dims = kv_dims(d);
    struct tile t = {.lda = dims, .b = x->kt, .ldb = BACK_KEYS, .ldo = BACK_KEYS, .len = d};
    for (int32_t i = 0; i < r->rows; i += TILE_MR) {
        int32_t n = at_most(r->rows - i, TILE_MR);
        int32_t keys = at_most(keys_below(r, i + n - 1, at), BACK_KEYS);
        if (keys <= 0)
            continue;
        t.a = x->q + i * dims;
        t.out = scores + i * BACK_KEYS;
        ISA(tile_rows)(&t, n, (keys + V_LANES - 1) & ~(V_LANES - 1));
    }
}

// Lanes of vector v of the tile at `at` that a row at `pos` sees.
V_FN v16m seen(const struct kn_attn_back *p, int32_t pos, int32_t at, int v) {
    int32_t lo = back_first_seen(p, pos) - at - v * V_LANES, hi = pos + 1 - at - v * V_LANES;
    return vm_and(vm_first(hi), vm_not(vm_first(lo)));
}

V_FN v16f weight(v16f score, v16f max, v16m mask) {
    v16f w = v_exp2_neg(v_mul(v_sub(score, max), v_set1(log2_e)));
    return v_select(mask, w, v_zero());
}

void ISA(back_softmax)(const struct back_rows *r, int32_t at, int32_t tiles,
                       struct back_scratch *x) {
    const struct kn_attn_back *p = r->u->p;
    int32_t step = r->rows * BACK_KEYS;
    v16f none = v_set1(-__builtin_inff());
    for (int32_t i = 0; i < r->rows; i++) {
        int32_t pos = (r->row + i) / r->u->group;
        float *row = x->p + i * BACK_KEYS;
        v16f top = none, sum = v_zero();
        for (int32_t t = 0; t < tiles; t++) {
            V_UNROLL
            for (int v = 0; v < BACK_BLOCKS; v++) {
                v16f s = v_load(row + t * step + v * V_LANES);
                top = v_max(top, v_select(seen(p, pos, at + t * BACK_KEYS, v), s, none));
            }
        }
        float max = v_hmax(top);
        v16f m = v_set1(max);
        for (int32_t t = 0; t < tiles; t++) {
            v16f w[BACK_BLOCKS];
            V_UNROLL
            for (int v = 0; v < BACK_BLOCKS; v++) {
                float *s = row + t * step + v * V_LANES;
                w[v] = weight(v_load(s), m, seen(p, pos, at + t * BACK_KEYS, v));
                v_store(s, w[v]);
            }
            sum = v_add(sum, v_add(v_add(w[0], w[1]), v_add(w[2], w[3])));
        }
        x->stats[i].max = max;
        x->stats[i].inv_sum = 1.0f / v_sum(sum);
    }
}

void ISA(back_softmax_tile)(const struct back_rows *r, int32_t at, struct back_scratch *x,
                            float *scores) {
    for (int32_t i = 0; i < r->rows; i++) {
        int32_t pos = (r->row + i) / r->u->group;
        V_UNROLL
        for (int v = 0; v < BACK_BLOCKS; v++) {
            float *s = scores + i * BACK_KEYS + v * V_LANES;
            v_store(s, weight(v_load(s), v_set1(x->stats[i].max), seen(r->u->p, pos, at, v)));
        }
    }
}

// ---- gradients

static float *key_row(const struct back_unit *u, int32_t pos, int32_t part) {
    const struct kn_attn_back *p = u->p;
    int32_t head = p->heads + part * p->shape.kv_heads + u->head;
    return (float *)p->dqkv + (u->start + pos) * p->lddqkv + head * p->shape.head_dim;
}

// out[key] += sum over the rows of w[row][key] * a[row], for the keys that some row sees. Rows
// before the first that sees a block of keys, and after the last, are left out.
static void add_to_keys(const struct back_rows *r, int32_t at, const float *w, const float *a,
                        float *out) {
    const struct kn_attn_back *p = r->u->p;
    int32_t d = p->shape.head_dim, dims = kv_dims(d), group = r->u->group;
    int32_t lo = back_first_seen(p, first_pos(r)) - at;
    int32_t hi = at_most(last_pos(r) + 1 - at, BACK_KEYS);
    struct tile t = {.lda = BACK_KEYS, .ldb = dims, .ldo = p->lddqkv, .go_on = true};
    for (int32_t key = lo > 0 ? lo : 0; key < hi; key += TILE_MR) {
        int32_t n = at_most(hi - key, TILE_MR);
        int64_t from = (int64_t)(at + key) * group - r->row, to = r->rows;
        from = from > 0 ? from : 0;
        if (p->window > 0 && ((int64_t)at + key + n - 1 + p->window) * group - r->row < to)
            to = ((int64_t)at + key + n - 1 + p->window) * group - r->row;
        if (from >= to)
            continue;
        t.a = w + from * BACK_KEYS + key;
        t.b = a + from * dims;
        t.len = (int32_t)(to - from);
        t.out = out + key * p->lddqkv;
        ISA(tile_cols)(&t, n, d);
    }
}

static void make_dp(const struct back_rows *r, int32_t at, struct back_scratch *x) {
    int32_t d = r->u->p->shape.head_dim, dims = kv_dims(d);
    struct tile t = {.lda = dims, .b = x->vt, .ldb = BACK_KEYS, .ldo = BACK_KEYS, .len = d};
    for (int32_t i = 0; i < r->rows; i += TILE_MR) {
        int32_t n = at_most(r->rows - i, TILE_MR);
        int32_t keys = at_most(keys_below(r, i + n - 1, at), BACK_KEYS);
        if (keys <= 0)
            continue;
        t.a = x->dout + i * dims;
        t.out = x->dp + i * BACK_KEYS;
        ISA(tile_rows)(&t, n, (keys + V_LANES - 1) & ~(V_LANES - 1));
    }
}

static void add_dq(const struct back_rows *r, int32_t at, struct back_scratch *x, const float *ds) {
    int32_t dims = kv_dims(r->u->p->shape.head_dim);
    struct tile t = {.lda = BACK_KEYS, .b = x->k, .ldb = dims, .ldo = dims, .go_on = true};
    for (int32_t i = 0; i < r->rows; i += TILE_MR) {
        int32_t n = at_most(r->rows - i, TILE_MR);
        t.len = at_most(keys_below(r, i + n - 1, at), BACK_KEYS);
        if (t.len <= 0)
            continue;
        t.a = ds + i * BACK_KEYS;
        t.out = x->dq + i * dims;
        ISA(tile_rows)(&t, n, dims);
    }
}

void ISA(back_tile)(const struct back_rows *r, int32_t at, bool keys, bool queries,
                    struct back_scratch *x, float *weights) {
    for (int32_t i = 0; i < r->rows; i++) {
        v16f inv = v_set1(x->stats[i].inv_sum);
        V_UNROLL
        for (int v = 0; v < BACK_BLOCKS; v++) {
            float *w = weights + i * BACK_KEYS + v * V_LANES;
            v_store(w, v_mul(v_load(w), inv));
        }
    }
    if (keys)
        add_to_keys(r, at, weights, x->dout, key_row(r->u, at, 1));
    make_dp(r, at, x);
    for (int32_t i = 0; i < r->rows; i++) {
        v16f delta = v_set1(x->stats[i].delta);
        V_UNROLL
        for (int v = 0; v < BACK_BLOCKS; v++) {
            float *w = weights + i * BACK_KEYS + v * V_LANES;
            v16f a = v_load(w), dp = v_load(x->dp + i * BACK_KEYS + v * V_LANES);
            v16f ds = v_mul(a, v_sub(dp, delta)); // where a is 0, dp may be anything
            v_store(w, v_select(v_eq(a, v_zero()), v_zero(), ds));
        }
    }
    if (keys)
        add_to_keys(r, at, weights, x->q, key_row(r->u, at, 0));
    if (queries)
        add_dq(r, at, x, weights);
}

void ISA(back_store_dq)(const struct back_rows *r, const struct back_scratch *x) {
    const struct kn_attn_back *p = r->u->p;
    int32_t d = p->shape.head_dim, dims = kv_dims(d);
    v16f scale = v_set1(p->scale);
    for (int32_t i = 0; i < r->rows; i++) {
        float *out = (float *)p->dqkv + row_at(r, i, p->lddqkv);
        for (int32_t j = 0; j < d; j += V_LANES)
            v_store_n(out + j, d - j, v_mul(v_load(x->dq + i * dims + j), scale));
    }
}

void ISA(back_clear_keys)(const struct back_unit *u, int32_t lo, int32_t hi) {
    size_t bytes = (size_t)u->p->shape.head_dim * sizeof(float);
    for (int32_t pos = lo; pos < hi; pos++) {
        memset(key_row(u, pos, 0), 0, bytes);
        memset(key_row(u, pos, 1), 0, bytes);
    }
}
