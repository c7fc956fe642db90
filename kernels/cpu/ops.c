// SPDX-License-Identifier: Apache-2.0
// The operations of the CPU backend: each checks its parameters and is recorded. What a check
// refuses becomes the queue's sticky error. The table `kn_ops_cpu` is at the end.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/lora_layout.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/ops_lora.h"
#include "kernels/cpu/ops_train.h"
#include "kernels/cpu/weight.h"

enum {
    Q8_BLOCK = 32,
    STREAM_ROWS = 16, // up to here memory is what a product waits for
};

static enum err op_rmsnorm(struct kn_queue *q, const struct kn_rmsnorm *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || p->k <= 0 || p->ldx < p->k || (p->y && p->ldy < p->k))
        return refuse(q, "rmsnorm", "rows, k or a row distance is wrong");
    if (!p->x || !p->weight || (!p->y && !p->yq))
        return refuse(q, "rmsnorm", "an address is missing");
    if (p->yq && p->k % Q8_BLOCK)
        return refuse(q, "rmsnorm", "k must be a multiple of 32 for quantised rows");
    return cpu_record_op(q, "rmsnorm", isa_of(q)->rmsnorm, p, sizeof *p, NULL);
}

static enum err op_quantize(struct kn_queue *q, const struct kn_quantize *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || p->k <= 0 || p->k % Q8_BLOCK || p->ldx < p->k)
        return refuse(q, "quantize", "rows, k or the row distance is wrong");
    if (!p->x || !p->yq)
        return refuse(q, "quantize", "an address is missing");
    return cpu_record_op(q, "quantize", isa_of(q)->quantize, p, sizeof *p, NULL);
}

// Columns [begin, end) of `all`: both 0, or multiples of 32 or the end.
static bool range_ok(int32_t begin, int32_t end, int32_t all) {
    if (begin == 0 && end == 0)
        return true;
    return begin >= 0 && begin < end && end <= all && begin % CPU_PAIR == 0 &&
           (end % CPU_PAIR == 0 || end == all);
}

const char *cpu_gemm_wrong(const struct kn_gemm *p) {
    if (!p->w || !p->x || !p->y)
        return "the weight or an address is missing";
    bool swiglu = p->epilogue == KN_GEMM_SWIGLU;
    int32_t n = swiglu ? p->w->n / 2 : p->w->n;
    if (swiglu && !p->w->gate_up)
        return "the swiglu epilogue needs a weight made with KN_STACK_GATE_UP";
    if (p->rows < 0 || p->ldy < n || (p->w->form == KN_FORM_PLAIN && p->ldx < p->w->k))
        return "rows or a row distance is wrong";
    if (!range_ok(p->n_begin, p->n_end, p->w->gate_up ? p->w->n / 2 : n))
        return "the column range is wrong";
    return NULL;
}

enum err cpu_op_gemm(struct kn_queue *q, const struct kn_gemm *p) {
    if (p->rows == 0)
        return ERR_OK;
    const char *wrong = cpu_gemm_wrong(p);
    if (wrong)
        return refuse(q, "gemm", wrong);
    void *slot;
    enum err e = cpu_record_op(q, "gemm", isa_of(q)->gemm, p, sizeof *p, &slot);
    if (slot && p->rows <= STREAM_ROWS && p->n_end == 0)
        cpu_record_stream(slot, p->w->data, p->w->bytes);
    return e;
}

static enum err op_gemm_t(struct kn_queue *q, const struct kn_gemm_t *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (!p->w || !p->dy || !p->dx)
        return refuse(q, "gemm_t", "the weight or an address is missing");
    if (p->rows < 0 || p->lddy < p->w->n || p->lddx < p->w->k)
        return refuse(q, "gemm_t", "rows or a row distance is wrong");
    if (!range_ok(p->k_begin, p->k_end, p->w->k))
        return refuse(q, "gemm_t", "the column range is wrong");
    if ((p->n_begin || p->n_end) &&
        (p->n_begin < 0 || p->n_begin >= p->n_end || p->n_end > p->w->n))
        return refuse(q, "gemm_t", "the range of rows of W is wrong");
    return cpu_record_op(q, "gemm_t", isa_of(q)->gemm_t, p, sizeof *p, NULL);
}

static enum err op_swiglu(struct kn_queue *q, const struct kn_swiglu *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || p->k <= 0 || p->ldx / 2 < p->k || p->ldy < p->k)
        return refuse(q, "swiglu", "rows, k or a row distance is wrong");
    if (!p->x || !p->y)
        return refuse(q, "swiglu", "an address is missing");
    return cpu_record_op(q, "swiglu", isa_of(q)->swiglu, p, sizeof *p, NULL);
}

static enum err op_embed(struct kn_queue *q, const struct kn_embed *p) {
    if (!batch_ok(p->batch))
        return refuse(q, "embed", "the batch is malformed");
    if (p->batch->n_tokens == 0)
        return ERR_OK;
    if (!p->w || !p->x || !p->batch->ids)
        return refuse(q, "embed", "an address is missing");
    if (!tokens_ok(p->batch, p->token_begin, p->token_end))
        return refuse(q, "embed", "the range of tokens is wrong");
    return RECORD_BATCH(q, embed, p);
}

static enum err op_gather(struct kn_queue *q, const struct kn_gather *p) {
    if (p->n == 0)
        return ERR_OK;
    if (p->n < 0 || p->k <= 0 || p->ld_src < p->k || p->ld_dst < p->k)
        return refuse(q, "gather", "n, k or a row distance is wrong");
    if (!p->src || !p->dst || !p->rows)
        return refuse(q, "gather", "an address is missing");
    return cpu_record_op(q, "gather", isa_of(q)->gather, p, sizeof *p, NULL);
}

static enum err op_rope_table(struct kn_queue *q, const struct kn_rope_table *p) {
    if (!batch_ok(p->batch))
        return refuse(q, "rope_table", "the batch is malformed");
    if (p->batch->n_tokens == 0)
        return ERR_OK;
    if (p->dim <= 0 || p->dim % 2)
        return refuse(q, "rope_table", "dim must be even");
    if (!tokens_ok(p->batch, p->token_begin, p->token_end))
        return refuse(q, "rope_table", "the range of tokens is wrong");
    if (!p->inv_freq || !p->table || !p->batch->pos)
        return refuse(q, "rope_table", "an address is missing");
    return RECORD_BATCH(q, rope_table, p);
}

static enum err op_rope_kv(struct kn_queue *q, const struct kn_rope_kv *p) {
    if (!batch_ok(p->batch))
        return refuse(q, "rope_kv", "the batch is malformed");
    if (p->batch->n_tokens == 0)
        return ERR_OK;
    if (!heads_ok(&p->shape, p->layer, p->heads) ||
        p->ldqkv < (int64_t)(p->heads + 2 * p->shape.kv_heads) * p->shape.head_dim)
        return refuse(q, "rope_kv", "heads, layer or the row distance is wrong");
    if (!tokens_ok(p->batch, p->token_begin, p->token_end))
        return refuse(q, "rope_kv", "the range of tokens is wrong");
    if (!p->qkv || !p->table || !p->pool || !p->batch->pos || !p->batch->seq ||
        !p->batch->block_table)
        return refuse(q, "rope_kv", "an address is missing");
    return RECORD_BATCH(q, rope_kv, p);
}

static enum err op_attn(struct kn_queue *q, const struct kn_attn *p) {
    if (!batch_ok(p->batch))
        return refuse(q, "attn", "the batch is malformed");
    if (p->batch->n_tokens == 0)
        return ERR_OK;
    int64_t width = (int64_t)p->heads * p->shape.head_dim;
    if (!heads_ok(&p->shape, p->layer, p->heads) || p->ldq < width || p->ldout < width ||
        p->window < 0)
        return refuse(q, "attn", "heads, layer, window or a row distance is wrong");
    if (!tokens_ok(p->batch, p->token_begin, p->token_end))
        return refuse(q, "attn", "the range of tokens is wrong");
    if (p->outq && width % Q8_BLOCK)
        return refuse(q, "attn", "heads * head_dim must be a multiple of 32 for quantised rows");
    if (!p->q || !p->pool || !p->out || !p->batch->pos || !p->batch->seq || !p->batch->seq_start ||
        !p->batch->kv_len || !p->batch->block_table)
        return refuse(q, "attn", "an address is missing");
    return RECORD_BATCH(q, attn, p);
}

static enum err op_sample(struct kn_queue *q, const struct kn_sample *p) {
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || p->vocab <= 0 || p->ld < p->vocab)
        return refuse(q, "sample", "rows, vocab or the row distance is wrong");
    if (!p->logits || !p->params || !p->out)
        return refuse(q, "sample", "an address is missing");
    return cpu_record_op(q, "sample", isa_of(q)->sample, p, sizeof *p, NULL);
}

static enum err op_kv_copy(struct kn_queue *q, const struct kn_kv_copy *p) {
    if (p->n == 0)
        return ERR_OK;
    size_t bytes = cpu_kv_block_bytes(&p->shape);
    if (p->n < 0 || !bytes || !p->pool || !p->src || !p->dst)
        return refuse(q, "kv_copy", "shape, count or an address is wrong");
    int32_t *pairs = cpu_queue_stage(q, (size_t)p->n * 2 * sizeof *pairs);
    if (!pairs)
        return ERR_NOMEM;
    for (int32_t i = 0; i < p->n; i++) {
        if (p->src[i] < 0 || p->dst[i] < 0)
            return refuse(q, "kv_copy", "a block number is negative");
        pairs[2 * i] = p->src[i];
        pairs[2 * i + 1] = p->dst[i];
    }
    struct cpu_kv_copy c = {(char *)p->pool, bytes, pairs, p->n};
    return cpu_record_op(q, "kv_copy", cpu_run_kv_copy, &c, sizeof c, NULL);
}

static size_t form_row_bytes(enum kn_form form, int64_t k) {
    size_t n = k > 0 ? (size_t)k : 0;
    if (form == KN_FORM_PLAIN)
        return n * sizeof(float);
    return (n + Q8_BLOCK - 1) / Q8_BLOCK * sizeof(struct cpu_q8_block);
}

const struct kn_ops kn_ops_cpu = {
    .backend = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .discard = cpu_discard,
    .touch = cpu_touch,
    .queue_create = cpu_queue_create,
    .queue_device = cpu_queue_device,
    .queue_destroy = cpu_queue_destroy,
    .queue_submit = cpu_queue_submit,
    .queue_wait = cpu_queue_wait,
    .upload = cpu_upload,
    .download = cpu_download,
    .weight_create = cpu_weight_create,
    .weight_destroy = cpu_weight_destroy,
    .weight_bytes = cpu_weight_bytes,
    .weight_form = cpu_weight_form,
    .weight_read = cpu_weight_read,
    .form_row_bytes = form_row_bytes,
    .kv_block_bytes = cpu_kv_block_bytes,
    .embed = op_embed,
    .rmsnorm = op_rmsnorm,
    .quantize = op_quantize,
    .gemm = cpu_op_gemm,
    .gemm_t = op_gemm_t,
    .swiglu = op_swiglu,
    .rope_table = op_rope_table,
    .rope_kv = op_rope_kv,
    .attn = op_attn,
    .gather = op_gather,
    .kv_copy = op_kv_copy,
    .sample = op_sample,
    .lora_bytes = cpu_lora_bytes,
    .lora_pack = cpu_lora_pack,
    .lora_narrow = cpu_lora_narrow,
    .lora_widen = cpu_lora_widen,
    .lora_unpack = cpu_lora_unpack,
    .lora = cpu_op_lora,
    .gemm_lora = cpu_op_gemm_lora,
    .lora_shrink_back = cpu_op_lora_shrink_back,
    .lora_dx = cpu_op_lora_dx,
    .lora_grad = cpu_op_lora_grad,
    .xent = cpu_op_xent,
    .rmsnorm_back = cpu_op_rmsnorm_back,
    .swiglu_back = cpu_op_swiglu_back,
    .attn_back = cpu_op_attn_back,
    .rope_back = cpu_op_rope_back,
    .scatter = cpu_op_scatter,
    .grad_add = cpu_op_grad_add,
    .sumsq = cpu_op_sumsq,
    .adamw = cpu_op_adamw,
};
