// SPDX-License-Identifier: Apache-2.0
// Training's operations on the CPU backend (kernels/train.h, the backward of kernels/lora.h):
// checks of their parameters, as in ops.c.
#include "kernels/cpu/ops_train.h"
#include "kernels/cpu/lora_layout.h"
#include "kernels/cpu/ops_internal.h"

// A range of [0, all): both ends 0, or not empty.
static bool span_ok(int64_t begin, int64_t end, int64_t all) {
    return begin == 0 && end == 0 ? true : begin >= 0 && begin < end && end <= all;
}

// ---- adapters

static bool wide_ok(int32_t n) {
    return n > 0 && n <= CPU_LORA_MOST_WIDE;
}

static bool rank_ok(int32_t r) {
    return r > 0 && r <= KN_LORA_MAX_RANK;
}

// Some row of k values after dropout lies in the scratch memory.
static bool dropout_ok(const struct kn_dropout *d, int32_t k) {
    const int32_t most = CPU_SCRATCH_BYTES / (int)sizeof(float);
    return d->p == 0 || (d->p > 0 && d->p < 1 && d->keys && k <= most);
}

enum err cpu_op_lora_shrink_back(struct kn_queue *q, const struct kn_lora_shrink_back *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || !wide_ok(p->k) || !wide_ok(p->n) || !rank_ok(p->r) || p->ldx < p->k ||
        p->lddy < p->n || !span_ok(p->row_begin, p->row_end, p->rows))
        return refuse(q, "lora_shrink_back", "a size, a row distance or the range is wrong");
    if (!dropout_ok(&p->dropout, p->k))
        return refuse(q, "lora_shrink_back", "dropout is wrong");
    if (!p->x || !p->dy || !p->a || !p->b || !p->u || !p->du)
        return refuse(q, "lora_shrink_back", "an address is missing");
    return cpu_record_op(q, "lora_shrink_back", isa_of(q)->lora_shrink_back, p, sizeof *p, NULL);
}

// A range of columns: its ends are multiples of a panel or the end of all.
static bool panels_ok(int32_t begin, int32_t end, int32_t all) {
    return span_ok(begin, end, all) && begin % CPU_LORA_PANEL == 0 &&
           (end % CPU_LORA_PANEL == 0 || end == all);
}

enum err cpu_op_lora_dx(struct kn_queue *q, const struct kn_lora_dx *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || !wide_ok(p->k) || !rank_ok(p->r) || p->lddx < p->k ||
        !panels_ok(p->k_begin, p->k_end, p->k))
        return refuse(q, "lora_dx", "a size, the row distance or the range is wrong");
    if (!dropout_ok(&p->dropout, p->k))
        return refuse(q, "lora_dx", "dropout is wrong");
    if (!p->du || !p->a || !p->dx)
        return refuse(q, "lora_dx", "an address is missing");
    return cpu_record_op(q, "lora_dx", isa_of(q)->lora_dx, p, sizeof *p, NULL);
}

enum err cpu_op_lora_grad(struct kn_queue *q, const struct kn_lora_grad *p) {
    if (p->rows < 0 || !wide_ok(p->width) || !rank_ok(p->r) || p->ld_right < p->width ||
        !panels_ok(p->begin, p->end, p->width))
        return refuse(q, "lora_grad", "a size, the row distance or the range is wrong");
    if ((p->side != KN_LORA_A && p->side != KN_LORA_B) || !dropout_ok(&p->dropout, p->width) ||
        (p->side == KN_LORA_B && p->dropout.p > 0))
        return refuse(q, "lora_grad", "the side or dropout is wrong");
    if (!p->left || !p->right || !p->grad)
        return refuse(q, "lora_grad", "an address is missing");
    return cpu_record_op(q, "lora_grad", isa_of(q)->lora_grad, p, sizeof *p, NULL);
}

// ---- rows

enum err cpu_op_xent(struct kn_queue *q, const struct kn_xent *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || p->vocab <= 0 || p->ld < p->vocab)
        return refuse(q, "xent", "rows, vocab or the row distance is wrong");
    if (!p->logits || !p->target || !p->loss || (p->grad && !p->weight))
        return refuse(q, "xent", "an address is missing");
    return cpu_record_op(q, "xent", isa_of(q)->xent, p, sizeof *p, NULL);
}

enum err cpu_op_rmsnorm_back(struct kn_queue *q, const struct kn_rmsnorm_back *p) {
    if (p->rows == 0)
        return ERR_OK;
    int64_t width = (int64_t)p->k * (p->heads > 0 ? p->heads : 1);
    if (p->rows < 0 || p->k <= 0 || p->heads < 0 || width > INT32_MAX || p->ldx < width ||
        p->lddy < width || p->lddx < width || !span_ok(p->row_begin, p->row_end, p->rows))
        return refuse(q, "rmsnorm_back", "rows, k, heads, a row distance or the range is wrong");
    if (!p->x || !p->dy || !p->dx || !p->weight)
        return refuse(q, "rmsnorm_back", "an address is missing");
    return cpu_record_op(q, "rmsnorm_back", isa_of(q)->rmsnorm_back, p, sizeof *p, NULL);
}

enum err cpu_op_swiglu_back(struct kn_queue *q, const struct kn_swiglu_back *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || p->k <= 0 || p->ldx / 2 < p->k || p->lddy < p->k || p->lddx / 2 < p->k ||
        !span_ok(p->row_begin, p->row_end, p->rows))
        return refuse(q, "swiglu_back", "rows, k, a row distance or the range is wrong");
    if (!p->x || !p->dy || !p->dx)
        return refuse(q, "swiglu_back", "an address is missing");
    return cpu_record_op(q, "swiglu_back", isa_of(q)->swiglu_back, p, sizeof *p, NULL);
}

enum err cpu_op_attn_back(struct kn_queue *q, const struct kn_attn_back *p) {
    const struct kn_batch *b = p->batch;
    if (!batch_ok(b))
        return refuse(q, "attn_back", "the batch is malformed");
    if (b->n_tokens == 0)
        return ERR_OK;
    if (!heads_ok(&p->shape, p->layer, p->heads) || p->window < 0)
        return refuse(q, "attn_back", "heads, layer or window is wrong");
    int64_t width = (int64_t)p->heads * p->shape.head_dim;
    if (p->ldq < width || p->ldout < width || p->lddout < width ||
        p->lddqkv < width + 2 * (int64_t)p->shape.kv_heads * p->shape.head_dim)
        return refuse(q, "attn_back", "a row distance is wrong");
    // Rows are counted in 32 bits, and so are pieces of work: there are fewer than rows of all
    // heads.
    if (!span_ok(p->token_begin, p->token_end, b->n_tokens) ||
        (int64_t)b->n_tokens * p->heads > INT32_MAX / 2)
        return refuse(q, "attn_back", "the range or the number of tokens is wrong");
    if (!p->q || !p->pool || !p->out || !p->dout || !p->dqkv || !b->seq_start || !b->kv_len ||
        !b->block_table)
        return refuse(q, "attn_back", "an address is missing");
    return RECORD_BATCH(q, attn_back, p);
}

enum err cpu_op_rope_back(struct kn_queue *q, const struct kn_rope_back *p) {
    if (!batch_ok(p->batch))
        return refuse(q, "rope_back", "the batch is malformed");
    if (p->batch->n_tokens == 0)
        return ERR_OK;
    if (p->heads <= 0 || p->kv_heads < 0 || p->head_dim <= 0 || p->head_dim % 2 ||
        p->heads > 1 << 12 || p->kv_heads > 1 << 12 || p->head_dim > KV_MAX_HEAD_DIM ||
        p->lddqkv < (int64_t)(p->heads + p->kv_heads) * p->head_dim)
        return refuse(q, "rope_back", "heads or the row distance is wrong");
    if (!p->dqkv || !p->table)
        return refuse(q, "rope_back", "an address is missing");
    return RECORD_BATCH(q, rope_back, p);
}

enum err cpu_op_scatter(struct kn_queue *q, const struct kn_scatter *p) {
    if (p->n_dst == 0 && p->n == 0)
        return ERR_OK;
    if (p->n < 0 || p->n_dst <= 0 || p->n > p->n_dst || p->k <= 0 || p->ld_src < p->k ||
        p->ld_dst < p->k)
        return refuse(q, "scatter", "n, k or a row distance is wrong");
    if (!p->dst || (p->n > 0 && (!p->src || !p->rows)))
        return refuse(q, "scatter", "an address is missing");
    return cpu_record_op(q, "scatter", isa_of(q)->scatter, p, sizeof *p, NULL);
}

enum { EXPONENT_MOST = 900 }; // f32 times its power of two is then a normal f64

enum err cpu_op_grad_add(struct kn_queue *q, const struct kn_grad_add *p) {
    if (p->n == 0)
        return ERR_OK;
    if (p->n < 0 || !span_ok(p->begin, p->end, p->n))
        return refuse(q, "grad_add", "the range is wrong");
    if (p->exponent < -EXPONENT_MOST || p->exponent > EXPONENT_MOST)
        return refuse(q, "grad_add", "the exponent is out of range");
    if (p->mode < KN_GRAD_ADD || p->mode > KN_GRAD_CHECK)
        return refuse(q, "grad_add", "the mode is unknown");
    if (!p->g || (!p->acc && p->mode != KN_GRAD_CHECK) || !p->flag)
        return refuse(q, "grad_add", "an address is missing");
    return cpu_record_op(q, "grad_add", isa_of(q)->grad_add, p, sizeof *p, NULL);
}

enum err cpu_op_sumsq(struct kn_queue *q, const struct kn_sumsq *p) {
    if (p->n == 0)
        return ERR_OK;
    if (p->n < 0 || !span_ok(p->begin, p->end, p->n) || p->begin % KN_SUMSQ_CHUNK ||
        (p->end % KN_SUMSQ_CHUNK && p->end != p->n))
        return refuse(q, "sumsq", "the range is wrong");
    if (!p->acc || !p->out || !p->largest)
        return refuse(q, "sumsq", "an address is missing");
    return cpu_record_op(q, "sumsq", isa_of(q)->sumsq, p, sizeof *p, NULL);
}

enum err cpu_op_adamw(struct kn_queue *q, const struct kn_adamw *p) {
    if (p->n == 0)
        return ERR_OK;
    if (p->n < 0 || !span_ok(p->begin, p->end, p->n))
        return refuse(q, "adamw", "the range is wrong");
    if (!(p->c1 > 0) || !(p->c2 > 0))
        return refuse(q, "adamw", "c1 and c2 must be positive");
    if (!p->w || !p->m || !p->v || !p->acc)
        return refuse(q, "adamw", "an address is missing");
    return cpu_record_op(q, "adamw", isa_of(q)->adamw, p, sizeof *p, NULL);
}
