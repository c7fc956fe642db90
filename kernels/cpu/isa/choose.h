// SPDX-License-Identifier: Apache-2.0
// The choice of one token: temperature, top-k, top-p, min-p, then a draw.
//
// The tokens' order is: larger logit first, lower id first among equals. top-k keeps the first k of
// it; top-p keeps, of those, the shortest beginning that has the share p of their weight; min-p
// keeps those with at least that share of the largest weight. All three keep a beginning of the
// order, so nothing is sorted: a radix selection finds the last token kept. It runs over a list of
// the likely tokens, which one pass over the row chooses by a ladder of thresholds; where none of
// them is enough (a very flat distribution), over the whole row.
//
// Weights are 2^((x - max) * scale), scale = log2(e) / temperature. Sums over them are in the order
// of ids. One thread does a whole row.
#pragma once
#include "kernels/cpu/isa/logits.h"

enum {
    CHOOSE_LIST = 8192, // longest list of likely tokens
    CHOOSE_LEVELS = 7,  // thresholds; the last one is min-p's
};

struct choose_params {
    float max, scale; // of the row
    int32_t best;     // where the maximum is
    int32_t top_k;    // 0: off
    float top_p;      // >= 1: off
    float min_p;      // <= 0: off
    double u;         // uniform in [0, 1)
};

struct choose_scratch {
    float x[CHOOSE_LIST];
    int32_t id[CHOOSE_LIST];
    double chunks[LOGITS_CHUNKS];
    double mass[256];
    int32_t count[256];
};

V_FN v16f choose_weights(const struct choose_params *p, v16f x) {
    return v_exp2_neg(v_mul(v_sub(x, v_set1(p->max)), v_set1(p->scale)));
}

// 16 values and weights in memory; returns how many there are.
V_FN int32_t choose_read(const struct logits *l, const struct choose_params *p, int32_t i,
                         float x[V_LANES], float w[V_LANES]) {
    v16f v = logits_load(l, i);
    v_store(x, v);
    v_store(w, choose_weights(p, v));
    return l->n - i < V_LANES ? l->n - i : V_LANES;
}

V_FN int32_t choose_id(const struct logits *l, int32_t i) {
    return l->id ? l->id[i] : i;
}

// Orders as the floats do; x is not NaN.
V_FN uint32_t choose_key(float x) {
    uint32_t u;
    x += 0.0f; // -0 and 0 are equal
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// ---- without filters

static int32_t choose_plain(const struct logits *l, const struct choose_params *p,
                            struct choose_scratch *s) {
    double goal = p->u * logits_sum(l, p->max, p->scale, s->chunks), at = 0.0;
    int32_t chunk = logits_chunk(l), c = 0;
    while ((c + 1) * (int64_t)chunk < l->n && at + s->chunks[c] <= goal)
        at += s->chunks[c++];
    int32_t last = -1;
    for (int32_t i = c * chunk; i < l->n; i += V_LANES) {
        float x[V_LANES], w[V_LANES];
        int32_t n = choose_read(l, p, i, x, w);
        for (int32_t j = 0; j < n; j++) {
            if (!(w[j] > 0.0f))
                continue;
            at += (double)w[j];
            last = choose_id(l, i + j);
            if (at > goal)
                return last;
        }
        // The chunk's sum was made in another order; what rounding left over is its last token's.
        if (last >= 0 && (i + V_LANES) % chunk == 0)
            return last;
    }
    return last;
}

// ---- with filters

// The last token kept: those above `key`, and the first `ties` of those equal to it.
struct choose_cut {
    uint32_t key;
    int32_t ties;
    double mass; // of what is kept
};

// Keeps the first `count` tokens, or (count 0) those that reach `mass`.
static struct choose_cut choose_select(const struct logits *l, const struct choose_params *p,
                                       int32_t count, double mass, struct choose_scratch *s) {
    uint32_t prefix = 0;
    int32_t above = 0;
    double mass_above = 0.0;
    struct choose_cut cut = {0, INT32_MAX, 0.0};
    for (int shift = 24; shift >= 0; shift -= 8) {
        memset(s->mass, 0, sizeof s->mass);
        memset(s->count, 0, sizeof s->count);
        for (int32_t i = 0; i < l->n; i += V_LANES) {
            float x[V_LANES], w[V_LANES];
            int32_t n = choose_read(l, p, i, x, w);
            for (int32_t j = 0; j < n; j++) {
                uint32_t key = choose_key(x[j]);
                if (!(w[j] > 0.0f) || (shift < 24 && key >> (shift + 8) != prefix))
                    continue;
                s->count[key >> shift & 255]++;
                s->mass[key >> shift & 255] += (double)w[j];
            }
        }
        int bin = 255;
        for (; bin >= 0; bin--) {
            bool here = count ? above + s->count[bin] >= count : mass_above + s->mass[bin] >= mass;
            if (here && s->count[bin] > 0)
                break;
            above += s->count[bin];
            mass_above += s->mass[bin];
        }
        if (bin < 0) { // there are no more than that
            cut.mass = mass_above;
            return cut;
        }
        prefix = prefix << 8 | (uint32_t)bin;
    }
    int32_t equal = s->count[prefix & 255], ties = count - above;
    double each = s->mass[prefix & 255] / equal;
    if (!count)
        for (ties = 1; ties < equal && mass_above + ties * each < mass;)
            ties++;
    cut.key = prefix;
    cut.ties = ties;
    cut.mass = mass_above + ties * each;
    return cut;
}

// Draws from what the cut and min-p leave, in the order of ids.
static int32_t choose_draw(const struct logits *l, const struct choose_params *p,
                           const struct choose_cut *cut) {
    double goal = 0.0, at = 0.0;
    int32_t last = -1;
    for (int pass = 0; pass < 2; pass++) {
        int32_t ties = 0;
        for (int32_t i = 0; i < l->n; i += V_LANES) {
            float x[V_LANES], w[V_LANES];
            int32_t n = choose_read(l, p, i, x, w);
            for (int32_t j = 0; j < n; j++) {
                uint32_t key = choose_key(x[j]);
                if (!(w[j] > 0.0f) || w[j] < p->min_p || key < cut->key ||
                    (key == cut->key && ties++ >= cut->ties))
                    continue;
                at += (double)w[j];
                last = choose_id(l, i + j);
                if (pass && at > goal)
                    return last;
            }
        }
        goal = p->u * at;
        at = 0.0;
    }
    return last;
}

struct choose_level {
    float floor; // values from here on
    int32_t count;
    double mass;
};

// One pass: the row's weight, and of each level how many tokens it has and their weight.
static double choose_ladder(const struct logits *l, const struct choose_params *p,
                            struct choose_level level[CHOOSE_LEVELS]) {
    int32_t chunk = logits_chunk(l);
    double total = 0.0;
    v16i count[CHOOSE_LEVELS], one = vi_set1(1);
    for (int k = 0; k < CHOOSE_LEVELS; k++)
        count[k] = vi_zero();
    for (int32_t i = 0; i < l->n;) {
        int32_t end = l->n - i < chunk ? l->n : i + chunk;
        v16f mass[CHOOSE_LEVELS], sum = v_zero();
        V_UNROLL
        for (int k = 0; k < CHOOSE_LEVELS; k++)
            mass[k] = v_zero();
        for (; i < end; i += V_LANES) {
            v16f x = logits_load(l, i), w = choose_weights(p, x);
            sum = v_add(sum, w);
            V_UNROLL
            for (int k = 0; k < CHOOSE_LEVELS; k++) {
                v16m in = vm_not(v_lt(x, v_set1(level[k].floor)));
                count[k] = vi_add(count[k], vi_select(in, one, vi_zero()));
                mass[k] = v_add(mass[k], v_select(in, w, v_zero()));
            }
        }
        i = end;
        total += (double)v_sum(sum);
        for (int k = 0; k < CHOOSE_LEVELS; k++)
            level[k].mass += (double)v_sum(mass[k]);
    }
    for (int k = 0; k < CHOOSE_LEVELS; k++)
        level[k].count = vi_sum(count[k]);
    return total;
}

// Values at or above the floor -> scratch, in the order of ids. There must be room.
static void choose_gather(const struct logits *l, float floor, struct choose_scratch *s,
                          struct logits *list) {
    int32_t n = 0;
    for (int32_t i = 0; i < l->n; i += V_LANES) {
        v16f v = logits_load(l, i);
        uint32_t bits = vm_bits(vm_not(v_lt(v, v_set1(floor))));
        if (!bits)
            continue;
        float x[V_LANES];
        v_store(x, v);
        for (; bits; bits &= bits - 1) {
            int b = __builtin_ctz(bits);
            s->x[n] = x[b];
            s->id[n++] = choose_id(l, i + b);
        }
    }
    *list = (struct logits){.x = s->x, .id = s->id, .n = n};
}

// The shortest list that holds everything the filters can keep, or the row itself.
static void choose_list(const struct logits *l, const struct choose_params *p, double *total,
                        struct choose_scratch *s, struct logits *list) {
    static const float depth[CHOOSE_LEVELS - 1] = {1.0f, 2.5f, 4.5f, 7.0f, 10.0f, 15.0f};
    bool by_k = p->top_k > 0, by_p = p->top_p < 1.0f;
    float temperature = 0x1.715476p+0f / p->scale;
    struct choose_level level[CHOOSE_LEVELS] = {{0.0f, 0, 0.0}};
    for (int k = 0; k < CHOOSE_LEVELS - 1; k++)
        level[k].floor = p->max - depth[k] * temperature;
    float low = p->min_p > 0.0f ? (float)m_log((double)p->min_p) * 1.0001f - 0.0001f : 0.0f;
    level[CHOOSE_LEVELS - 1].floor = p->max + low * temperature;
    *total = choose_ladder(l, p, level);
    int best = -1;
    for (int k = 0; k < CHOOSE_LEVELS; k++) {
        bool enough = by_k ? level[k].count >= p->top_k
                           : by_p && level[k].mass >= (double)p->top_p * *total + 1e-5 * *total;
        // Below min-p's level nothing is kept; but the weight of the first k must be known to
        // top-p.
        if (k == CHOOSE_LEVELS - 1 && p->min_p > 0.0f && !(by_k && by_p))
            enough = true;
        if (enough && level[k].count <= CHOOSE_LIST &&
            (best < 0 || level[k].count < level[best].count))
            best = k;
    }
    *list = *l;
    if (best >= 0)
        choose_gather(l, level[best].floor, s, list);
}

static int32_t choose_filtered(const struct logits *l, const struct choose_params *p,
                               struct choose_scratch *s) {
    bool by_k = p->top_k > 0 && p->top_k < l->n, by_p = p->top_p < 1.0f;
    struct choose_params q = *p;
    if (!by_k)
        q.top_k = 0;
    struct logits list;
    double total;
    choose_list(l, &q, &total, s, &list);
    struct choose_cut cut = {0, INT32_MAX, total};
    if (by_k)
        cut = choose_select(&list, p, p->top_k, 0.0, s);
    if (by_p) {
        struct choose_cut c = choose_select(&list, p, 0, (double)p->top_p * cut.mass, s);
        if (c.key > cut.key || (c.key == cut.key && c.ties < cut.ties))
            cut = c;
    }
    return choose_draw(&list, p, &cut);
}

// The chosen token of a row whose maximum is finite.
static int32_t choose_token(const struct logits *l, const struct choose_params *p,
                            struct choose_scratch *s) {
    bool filters = (p->top_k > 0 && p->top_k < l->n) || p->top_p < 1.0f || p->min_p > 0.0f;
    int32_t token = filters ? choose_filtered(l, p, s) : choose_plain(l, p, s);
    return token >= 0 ? token : p->best; // rounding may leave nothing at the end of the sum
}
