// SPDX-License-Identifier: Apache-2.0
// Adapters in a batch: checks of the parameters, as in ops.c. What lies in device memory (slots, entries)
// is looked at when the operation runs.
#include "kernels/cpu/ops_lora.h"
#include "kernels/cpu/lora_layout.h"
#include "kernels/cpu/ops_internal.h"

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

enum err cpu_op_lora(struct kn_queue *q, const struct kn_lora *p) {
    const struct kn_batch *b = p->batch;
    if (!batch_ok(b))
        return refuse(q, "lora", "the batch is malformed");
    if (p->rows == 0)
        return ERR_OK;
    if (p->rows < 0 || p->rows > b->n_tokens || p->k <= 0 || p->k > CPU_LORA_MOST_WIDE ||
        p->ldx < p->k || p->rows > INT32_MAX / KN_LORA_PARTS)
        return refuse(q, "lora", "rows, k or the row distance is wrong");
    if (!parts_ok(p) || p->n_slots <= 0)
        return refuse(q, "lora", "a part or the number of slots is wrong");
    if (!(p->dropout.p >= 0 && p->dropout.p < 1) ||
        (p->dropout.p > 0 && (!p->dropout.keys || p->k > MOST_DROPPED)))
        return refuse(q, "lora", "dropout must be at least 0 and below 1, and needs its keys");
    if (!p->x || !p->y || !p->entries || !b->seq || !b->slot)
        return refuse(q, "lora", "an address is missing");
    return RECORD_BATCH(q, lora, p);
}
