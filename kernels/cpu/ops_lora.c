// SPDX-License-Identifier: Apache-2.0
// Adapters in a batch: checks of the parameters, as in ops.c. What lies in device memory (slots,
// entries) is looked at when the operation runs.
#include "kernels/cpu/ops_lora.h"
#include "kernels/cpu/gemm_lora.h"
#include "kernels/cpu/lora_layout.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/weight.h"

// A row after dropout lies in scratch memory, beside the shrunk rows.
enum { MOST_DROPPED = (CPU_SCRATCH_BYTES / 2) / (int)sizeof(float) };

static bool parts_ok(const struct kn_lora *p) {
    if (p->n_parts < 1 || p->n_parts > KN_LORA_PARTS)
        return false;
    for (int32_t j = 0; j < p->n_parts; j++)
        if (p->n[j] <= 0 || p->n[j] > CPU_LORA_MOST_WIDE || p->col[j] < 0 ||
            p->col[j] > p->ldy - p->n[j])
            return false;
    return true;
}

// What is wrong with the parameters; NULL: nothing. The batch is well-formed, rows are not 0.
static const char *lora_wrong(const struct kn_lora *p) {
    const struct kn_batch *b = p->batch;
    if (p->rows < 0 || p->rows > b->n_tokens || p->k <= 0 || p->k > CPU_LORA_MOST_WIDE ||
        p->ldx < p->k || p->rows > INT32_MAX / KN_LORA_PARTS)
        return "rows, k or the row distance is wrong";
    if (!parts_ok(p) || p->n_slots <= 0)
        return "a part or the number of slots is wrong";
    if (!(p->dropout.p >= 0 && p->dropout.p < 1) ||
        (p->dropout.p > 0 && (!p->dropout.keys || p->k > MOST_DROPPED)))
        return "dropout must be at least 0 and below 1, and needs its keys";
    if (!p->x || !p->y || !p->entries || !b->seq || !b->slot)
        return "an address is missing";
    return NULL;
}

enum err cpu_op_lora(struct kn_queue *q, const struct kn_lora *p) {
    if (!batch_ok(p->batch))
        return refuse(q, "lora", "the batch is malformed");
    if (p->rows == 0)
        return ERR_OK;
    const char *wrong = lora_wrong(p);
    if (wrong)
        return refuse(q, "lora", wrong);
    return RECORD_BATCH(q, lora, p);
}

// ---- with the product that they follow

// Products of few rows wait for memory themselves, and of many rows each adapter's matrices are
// read once for several of them.
enum { FUSE_ROWS = 12 };

// Types whose products fetch beside their own.
static bool fetches(const struct kn_weight *w) {
    for (int i = 0; i < w->n_segments; i++)
        if (!cpu_dtype_quantised(w->segments[i].dtype) && w->segments[i].dtype != KN_BF16)
            return false;
    return true;
}

// The parts' columns follow one another in the weight's, and what they add has room.
static bool within(const struct kn_weight *w, const struct kn_lora *l) {
    for (int32_t j = 0, end = 0; j < l->n_parts; j++) {
        if (l->col[j] < end || l->col[j] > w->n - l->n[j])
            return false;
        end = l->col[j] + l->n[j];
    }
    return (size_t)l->rows * (size_t)w->n <= CPU_SHARED_BYTES / sizeof(float);
}

static bool fuses(const struct kn_gemm *g, const struct kn_lora *l) {
    return g->rows == l->rows && g->rows >= FUSE_ROWS && g->rows <= CPU_GEMM_LORA_ROWS &&
           batch_ok(l->batch) && !cpu_gemm_wrong(g) && !lora_wrong(l) && !(l->dropout.p > 0) &&
           g->epilogue != KN_GEMM_SWIGLU && g->n_end == 0 && l->y == g->y && l->ldy == g->ldy &&
           l->k == g->w->k && within(g->w, l) && fetches(g->w);
}

enum err cpu_op_gemm_lora(struct kn_queue *q, const struct kn_gemm *gemm,
                          const struct kn_lora *lora) {
    if (!fuses(gemm, lora)) {
        enum err e = cpu_op_gemm(q, gemm);
        return e ? e : cpu_op_lora(q, lora);
    }
    const struct cpu_gemm_lora both = {.gemm = *gemm, .lora = *lora};
    return record_batch(q, "gemm_lora", isa_of(q)->gemm_lora, &both, sizeof both,
                        offsetof(struct cpu_gemm_lora, lora.batch), lora->batch);
}
