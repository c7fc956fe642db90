// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in the half-split convention and the only writer of the KV cache
// (kv.h has its layout). A token is one thread's work; neighbours in a block may be different
// threads' work, so that stores touch the token's own values and nothing else.
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/isa/rowops.h"
#include "kernels/cpu/kv.h"

// table [n_tokens, 2, dim / 2]: the cosines of a token, then its sines.
void ISA(cpu_rope_table)(const void *params, struct cpu_task *t) {
    const struct kn_rope_table *p = params;
    const int32_t *pos = (const int32_t *)p->batch->pos;
    const float *freq = (const float *)p->inv_freq;
    int32_t half = p->dim / 2;
    int32_t first = p->token_begin;
    int32_t n = (p->token_end ? p->token_end : p->batch->n_tokens) - first;
    // A sine costs about as much as sixteen values of a plain row.
    for (int32_t begin, end; row_claim(t, n, 16 * p->dim, &begin, &end);)
        for (int32_t r = first + begin; r < first + end; r++) {
            float *out = (float *)p->table + (int64_t)r * p->dim;
            for (int32_t i = 0; i < half; i++) {
                double s, c;
                m_sincos((double)pos[r] * (double)freq[i], &s, &c);
                out[i] = p->scale * (float)c;
                out[half + i] = p->scale * (float)s;
            }
        }
}

// One head of d values, from x to y (which may be the same), normalised first where w is given.
static void rotate_head(const float *x, float *y, int32_t d, const float *table, const float *w,
                        float eps) {
    int32_t half = d / 2;
    v16f scale = v_set1(w ? row_rms_scale(x, d, eps) : 1.0f);
    for (int32_t i = 0; i < half; i += V_LANES) {
        int32_t n = half - i;
        v16f a = v_load_n(x + i, n), b = v_load_n(x + half + i, n);
        v16f c = v_load_n(table + i, n), s = v_load_n(table + half + i, n);
        if (w) {
            a = v_mul(v_mul(a, scale), v_load_n(w + i, n));
            b = v_mul(v_mul(b, scale), v_load_n(w + half + i, n));
        }
        v_store_n(y + i, n, v_fnma(b, s, v_mul(a, c)));
        v_store_n(y + half + i, n, v_fma(a, s, v_mul(b, c)));
    }
}

static void round_row(const float *x, int32_t d, uint16_t *out) { // out: kv_dims(d) values
    for (int32_t i = 0; i < d; i += V_LANES)
        v_store_bf16(out + i, v_load_n(x + i, d - i));
}

// Stores k and v of one position and head.
static void write_kv(uint16_t *part, int32_t d, int32_t at, const float *k, const float *v) {
    uint16_t row[KV_MAX_HEAD_DIM];
    round_row(k, d, row);
    uint16_t *dst = part + 2 * at;
    for (int32_t i = 0; i < d; i += 2, dst += KV_K_STEP)
        memcpy(dst, row + i, 2 * sizeof *row);
    round_row(v, d, row);
    dst = part + kv_v_offset(d) + at / 2 * (2 * kv_dims(d)) + (at & 1);
    for (int32_t i = 0; i < d; i++)
        dst[2 * i] = row[i];
}

static void rope_token(const struct kn_rope_kv *p, int32_t token, struct cpu_task *t) {
    const struct kn_batch *b = p->batch;
    int32_t d = p->shape.head_dim;
    int32_t pos = ((const int32_t *)b->pos)[token], seq = ((const int32_t *)b->seq)[token];
    if (pos < 0 || pos / KN_KV_BLOCK >= b->max_blocks || seq < 0 || seq >= b->n_seqs) {
        cpu_fail(t, ERR_INTERNAL);
        return;
    }
    const int32_t *blocks = (const int32_t *)b->block_table + (int64_t)seq * b->max_blocks;
    int32_t block = blocks[pos / KN_KV_BLOCK];
    if (block < 0) {
        cpu_fail(t, ERR_INTERNAL);
        return;
    }
    const float *table = (const float *)p->table + (int64_t)token * d;
    float *q = (float *)p->qkv + token * p->ldqkv, *k = q + p->heads * d;
    float *v = k + p->shape.kv_heads * d;
    size_t width = (size_t)p->heads * (size_t)d;
    if (p->q_in)
        memcpy((float *)p->q_in + (size_t)token * width, q, width * sizeof *q);
    for (int32_t h = 0; h < p->heads; h++)
        rotate_head(q + h * d, q + h * d, d, table, (const float *)p->q_norm, p->eps);
    for (int32_t h = 0; h < p->shape.kv_heads; h++) {
        float rotated[KV_MAX_HEAD_DIM];
        rotate_head(k + h * d, rotated, d, table, (const float *)p->k_norm, p->eps);
        write_kv(kv_part(p->pool, &p->shape, block, p->layer, h), d, pos % KN_KV_BLOCK, rotated,
                 v + h * d);
    }
}

void ISA(cpu_rope_kv)(const void *params, struct cpu_task *t) {
    const struct kn_rope_kv *p = params;
    int32_t first = p->token_begin;
    int32_t n = (p->token_end ? p->token_end : p->batch->n_tokens) - first;
    // Chunks of a block's length keep two threads off the same lines of the cache.
    int32_t chunk = n >= KN_KV_BLOCK * t->nt ? KN_KV_BLOCK : 4;
    for (int32_t c; cpu_claim(t, (n - 1) / chunk + 1, &c);)
        for (int32_t i = c * chunk; i < n && i < (c + 1) * chunk; i++)
            rope_token(p, first + i, t);
}
