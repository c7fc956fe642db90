// SPDX-License-Identifier: Apache-2.0
// Sampling, one row of logits per claim; a row is one thread's work from begin to end. See kernels/sample.h
// for the order of the steps.
//
// The raw row is never changed: it gives the log-probabilities. Where anything modifies logits, a copy in the
// thread's scratch is worked on. Sums run over fixed blocks in f64, so that their value does not depend on where a
// row lies in the batch.
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/philox.h"
#include <math.h>

enum {
    SUM_BLOCK = 1024, // values summed in f32 before the sum goes on in f64
    BOUND_BLOCK = 64, // top-k: the maximum of each block bounds the k-th largest value from below
    MAX_VOCAB = CPU_SCRATCH_BYTES / 8, // one float and one id each
    GREEDY_BELOW_MICRO = 10,           // temperatures below 1e-5 are greedy
};

struct row {
    const struct kn_sample_row *p;
    const float *raw; // the model's logits
    float *work;      // what is chosen from: raw, or the copy in scratch
    int32_t *ids;     // scratch: candidates
    int32_t vocab;
    float max; // of work
    struct kn_sample_out *out;
};

// ---- passes over a whole row

// The largest value and the lowest id that has it. False if a value is NaN or infinite.
static bool scan_raw(const float *x, int32_t n, float *max) {
    v16i abs_bits = vi_set1(0x7fffffff), worst = vi_zero();
    v16f top = v_set1(-INFINITY);
    int32_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) {
        v16f v = v_load(x + i);
        worst = vi_max(worst, vi_and(v_bits(v), abs_bits));
        top = v_max(v, top);
    }
    if (i < n) {
        v16f v = v_select(vm_first(n - i), v_load_n(x + i, n - i), v_set1(x[i]));
        worst = vi_max(worst, vi_and(v_bits(v), abs_bits));
        top = v_max(v, top);
    }
    if (vi_hmax(worst) >= 0x7f800000)
        return false;
    *max = v_hmax(top);
    return true;
}

static float row_max(const float *x, int32_t n) {
    v16f top = v_set1(-INFINITY);
    int32_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        top = v_max(v_load(x + i), top);
    float max = v_hmax(top);
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static int32_t first_equal(const float *x, int32_t n, float value) {
    v16f v = v_set1(value);
    int32_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) {
        uint32_t hits = vm_bits(v_eq(v_load(x + i), v));
        if (hits)
            return i + __builtin_ctz(hits);
    }
    for (; i < n; i++)
        if (x[i] == value)
            return i;
    return -1;
}

static int32_t count_greater(const float *x, int32_t n, float value) {
    v16f v = v_set1(value);
    int32_t i = 0, count = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        count += __builtin_popcount(vm_bits(v_gt(v_load(x + i), v)));
    for (; i < n; i++)
        count += x[i] > value;
    return count;
}

// Sum of e^((x - max) * scale) over a block of at most SUM_BLOCK values, without the terms below `least`; `to`, if not
// NULL, takes the terms.
static double exp_sum_block(const float *x, int32_t n, float max, float scale, float least,
                            float *to) {
    v16f m = v_set1(max), s = v_set1(scale), low = v_set1(least), sum = v_zero();
    for (int32_t i = 0; i < n; i += V_LANES) {
        int32_t left = n - i;
        v16f v = left >= V_LANES ? v_load(x + i) : v_load_n(x + i, left);
        v16f e = v_exp(v_mul(v_sub(v, m), s));
        e = v_select(v_lt(e, low), v_zero(), e);
        if (left < V_LANES)
            e = v_select(vm_first(left), e, v_zero());
        if (to && left >= V_LANES)
            v_store(to + i, e);
        else if (to)
            v_store_n(to + i, left, e);
        sum = v_add(sum, e);
    }
    return (double)v_sum(sum);
}

static double exp_term(const struct row *r, int32_t id, float scale) {
    return exp_sum_block(r->work + id, 1, r->max, scale, 0.0f, NULL);
}

static int32_t block_size(int32_t n, int32_t at) {
    return n - at < SUM_BLOCK ? n - at : SUM_BLOCK;
}

static double exp_sum(const float *x, int32_t n, float max, float scale) {
    double sum = 0;
    for (int32_t i = 0; i < n; i += SUM_BLOCK)
        sum += exp_sum_block(x + i, block_size(n, i), max, scale, 0.0f, NULL);
    return sum;
}

// ---- log-probabilities

// The n most likely ids of the raw row, most likely first, ties to the lower id.
static void find_top(const struct row *r, int32_t n, double lse) {
    struct kn_sample_out *o = r->out;
    float least = -INFINITY; // once n are held: what a newcomer must exceed
    int32_t held = 0;
    for (int32_t i = 0; i < r->vocab; i += V_LANES) {
        int32_t left = r->vocab - i;
        v16f v = left >= V_LANES ? v_load(r->raw + i) : v_load_n(r->raw + i, left);
        uint32_t hits = vm_bits(vm_and(v_gt(v, v_set1(least)), vm_first(left)));
        for (; hits; hits &= hits - 1) {
            int32_t id = i + __builtin_ctz(hits);
            float x = r->raw[id];
            if (held == n && !(x > least))
                continue;
            int32_t at = held < n ? held++ : n - 1;
            for (; at > 0 && o->top_logprob[at - 1] < x; at--) {
                o->top_logprob[at] = o->top_logprob[at - 1];
                o->top_id[at] = o->top_id[at - 1];
            }
            o->top_logprob[at] = x;
            o->top_id[at] = id;
            if (held == n)
                least = o->top_logprob[n - 1];
        }
    }
    o->n_top = held;
    for (int32_t i = 0; i < held; i++)
        o->top_logprob[i] = (float)((double)o->top_logprob[i] - lse);
}

static void add_logprobs(const struct row *r, float raw_max) {
    const struct kn_sample_row *p = r->p;
    struct kn_sample_out *o = r->out;
    if ((p->n_logprobs < 0 && p->target < 0) || o->token < 0)
        return;
    double lse = (double)raw_max + m_log(exp_sum(r->raw, r->vocab, raw_max, 1.0f));
    float x = r->raw[o->token];
    o->logprob = (float)((double)x - lse);
    o->rank = 1 + count_greater(r->raw, r->vocab, x);
    int32_t n = p->n_logprobs < KN_MAX_TOP_LOGPROBS ? p->n_logprobs : KN_MAX_TOP_LOGPROBS;
    if (n > r->vocab)
        n = r->vocab;
    if (n > 0)
        find_top(r, n, lse);
}

// ---- what changes logits

static bool in_vocab(const struct row *r, int32_t id) {
    return id >= 0 && id < r->vocab;
}

static void apply_mask(const struct row *r) {
    const uint32_t *mask = (const uint32_t *)r->p->mask;
    v16f no = v_set1(-INFINITY);
    for (int32_t i = 0; i < r->vocab; i += V_LANES) {
        int32_t left = r->vocab - i;
        v16m ok = vm_from_bits(mask[i / 32] >> (i % 32) & 0xffff);
        if (left >= V_LANES)
            v_store(r->work + i, v_select(ok, v_load(r->work + i), no));
        else
            v_store_n(r->work + i, left, v_select(ok, v_load_n(r->work + i, left), no));
    }
}

static void apply_penalties(const struct row *r) {
    const struct kn_sample_row *p = r->p;
    const struct kn_token_count *c = (const struct kn_token_count *)p->counts;
    for (int32_t i = 0; i < p->n_counts; i++) {
        if (!in_vocab(r, c[i].id))
            continue;
        float *x = &r->work[c[i].id];
        if (p->repetition != 1.0f)
            *x = *x > 0.0f ? *x / p->repetition : *x * p->repetition;
        if (c[i].out > 0) {
            *x -= p->frequency * (float)c[i].out;
            *x -= p->presence;
        }
    }
}

static bool changes_logits(const struct kn_sample_row *p) {
    return p->mask || p->n_bias > 0 ||
           (p->n_counts > 0 &&
            (p->repetition != 1.0f || p->frequency != 0.0f || p->presence != 0.0f));
}

static void change_logits(struct row *r) {
    const struct kn_sample_row *p = r->p;
    const struct kn_token_bias *bias = (const struct kn_token_bias *)p->bias;
    if (p->mask)
        apply_mask(r);
    for (int32_t i = 0; i < p->n_bias; i++)
        if (in_vocab(r, bias[i].id))
            r->work[bias[i].id] += bias[i].bias;
    apply_penalties(r);
    r->max = row_max(r->work, r->vocab);
}

// ---- candidates, sorted by value, ties by id

static bool before(const float *x, int32_t a, int32_t b) {
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void sift_down(const float *x, int32_t *ids, int32_t at, int32_t n) {
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(x, ids[child], ids[child + 1]))
            child++; // the one that sorts last stays on top
        if (!before(x, ids[at], ids[child]))
            return;
        int32_t t = ids[at];
        ids[at] = ids[child];
        ids[child] = t;
    }
}

static void sort_ids(const float *x, int32_t *ids, int32_t n) {
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift_down(x, ids, i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        int32_t t = ids[0];
        ids[0] = ids[end];
        ids[end] = t;
        sift_down(x, ids, 0, end);
    }
}

// Ids whose value is at least `bound` (and not -inf), in the order of ids.
static int32_t collect(const struct row *r, float bound) {
    int32_t n = 0;
    v16f below = v_set1(bound), none = v_set1(-INFINITY);
    for (int32_t i = 0; i < r->vocab; i += V_LANES) {
        int32_t left = r->vocab - i;
        v16f v = left >= V_LANES ? v_load(r->work + i) : v_load_n(r->work + i, left);
        v16m ok = vm_and(vm_not(v_lt(v, below)), v_gt(v, none));
        for (uint32_t hits = vm_bits(vm_and(ok, vm_first(left))); hits; hits &= hits - 1)
            r->ids[n++] = i + __builtin_ctz(hits);
    }
    return n;
}

// Sorted ids of the k largest values. The k-th largest of the block maxima bounds the k-th largest value from below,
// so that few ids need sorting.
static int32_t take_top_k(const struct row *r, int32_t k) {
    int32_t blocks = r->vocab / BOUND_BLOCK;
    float bound = -INFINITY;
    if (k <= blocks) {
        float *maxima =
            (float *)(void *)r->ids + r->vocab - blocks; // behind the candidates' place for now
        for (int32_t b = 0; b < blocks; b++) {
            maxima[b] = row_max(r->work + b * BOUND_BLOCK, BOUND_BLOCK);
            r->ids[b] = b;
        }
        sort_ids(maxima, r->ids, blocks);
        bound = maxima[r->ids[k - 1]];
    }
    int32_t n = collect(r, bound);
    sort_ids(r->work, r->ids, n);
    return n < k ? n : k;
}

// Sorted ids that hold at least `share` of the whole probability, whose sum of terms is `total`: the likeliest come
// first, further ones only as they are needed.
static int32_t take_mass(const struct row *r, double share, double total, float scale) {
    static const float depths[] = {6.0f, 12.0f, 24.0f, INFINITY}; // powers of e below the maximum
    int32_t n = 0;
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
        n = collect(r, r->max - depths[d] / scale);
        double mass = 0;
        for (int32_t i = 0; i < n; i++)
            mass += exp_term(r, r->ids[i], scale);
        if (mass >= share * total)
            break;
    }
    sort_ids(r->work, r->ids, n);
    return n;
}

// ---- the choice

// Among sorted candidates: as many as hold `share` of `total`, cut at min-p.
static int32_t choose_sorted(const struct row *r, int32_t n, double share, float scale,
                             double total, double u) {
    float *term = r->work; // in place: an id's value is replaced by its term
    double kept = 0;
    int32_t m = 0;
    for (; m < n && (m == 0 || kept < share * total); m++) {
        double e = exp_term(r, r->ids[m], scale);
        if (m > 0 && e < (double)r->p->min_p)
            break;
        term[r->ids[m]] = (float)e;
        kept += e;
    }
    double target = u * kept, sum = 0;
    for (int32_t i = 0; i < m; i++) {
        sum += (double)term[r->ids[i]];
        if (sum > target)
            return r->ids[i];
    }
    return r->ids[m - 1];
}

// Among all ids but those below min-p: first the block, then the id in it.
static int32_t choose_all(const struct row *r, float scale, double u) {
    double sums[MAX_VOCAB / SUM_BLOCK], total = 0, sum = 0;
    int32_t n = 0, last = 0;
    for (int32_t i = 0; i < r->vocab; i += SUM_BLOCK, n++) {
        sums[n] = exp_sum_block(r->work + i, block_size(r->vocab, i), r->max, scale, r->p->min_p,
                                r->work + i);
        total += sums[n];
        if (sums[n] > 0)
            last = n;
    }
    int32_t b = 0;
    for (; b < last && !(sum + sums[b] > u * total); b++)
        sum += sums[b];
    const float *term = r->work + b * SUM_BLOCK;
    int32_t found = 0;
    for (int32_t i = 0; i < block_size(r->vocab, b * SUM_BLOCK); i++) {
        if (!(term[i] > 0))
            continue;
        found = i; // the last one stands in where rounding leaves the target above the block's sum
        sum += (double)term[i];
        if (sum > u * total)
            break;
    }
    return b * SUM_BLOCK + found;
}

static int32_t choose(struct row *r) {
    const struct kn_sample_row *p = r->p;
    if (p->temperature < GREEDY_BELOW_MICRO * 1e-6f || p->top_k == 1)
        return first_equal(r->work, r->vocab, r->max);
    float scale = 1.0f / p->temperature;
    double u = philox_uniform(p->seed, p->choice, p->position);
    if (p->top_k > 0 && p->top_k < r->vocab) {
        int32_t n = take_top_k(r, p->top_k);
        double total = 0;
        for (int32_t i = 0; i < n; i++)
            total += exp_term(r, r->ids[i], scale);
        return choose_sorted(r, n, p->top_p < 1.0f ? (double)p->top_p : 2.0, scale, total, u);
    }
    if (p->top_p < 1.0f) {
        double total = exp_sum(r->work, r->vocab, r->max, scale);
        int32_t n = take_mass(r, (double)p->top_p, total, scale);
        return choose_sorted(r, n, (double)p->top_p, scale, total, u);
    }
    return choose_all(r, scale, u);
}

static void sample_row(const struct kn_sample *s, int32_t index, void *scratch) {
    struct row r = {
        .p = (const struct kn_sample_row *)s->params + index,
        .raw = (const float *)s->logits + index * s->ld,
        .ids = (int32_t *)scratch + s->vocab,
        .vocab = s->vocab,
        .out = (struct kn_sample_out *)s->out + index,
    };
    *r.out = (struct kn_sample_out){.token = -1};
    if (!scan_raw(r.raw, r.vocab, &r.max)) {
        r.out->flags = KN_SAMPLE_NONFINITE;
        return;
    }
    float raw_max = r.max;
    bool greedy = r.p->temperature < GREEDY_BELOW_MICRO * 1e-6f;
    if (r.p->target >= 0) {
        r.out->token = in_vocab(&r, r.p->target) ? r.p->target : -1;
    } else if (greedy && !changes_logits(r.p)) {
        r.out->token = first_equal(r.raw, r.vocab, raw_max);
    } else {
        r.work = scratch;
        memcpy(r.work, r.raw, (size_t)r.vocab * sizeof *r.work);
        if (changes_logits(r.p))
            change_logits(&r);
        if (r.max == -INFINITY)
            r.out->flags = KN_SAMPLE_EMPTY;
        else
            r.out->token = choose(&r);
    }
    add_logprobs(&r, raw_max);
}

void ISA(cpu_sample)(const void *params, struct cpu_task *t) {
    const struct kn_sample *s = params;
    if (s->vocab > MAX_VOCAB) {
        cpu_fail(t, ERR_UNSUPPORTED);
        return;
    }
    for (int32_t i; cpu_claim(t, s->rows, &i);) {
        sample_row(s, i, t->scratch);
        if (s->tokens)
            ((int32_t *)s->tokens)[i] = ((const struct kn_sample_out *)s->out)[i].token;
    }
}
