// SPDX-License-Identifier: Apache-2.0
#include "kernels/device.h"

struct need {
    const char *name;
    bool present;
    unsigned needs; // who cannot do without it
};

enum err kn_require(const struct kn_ops *ops, unsigned needs, struct err_info *info) {
#define NEED(op, who)                                                                              \
    { #op, ops->op != NULL, who }
    const unsigned any =
        KN_NEED_SERVE | KN_NEED_BACKWARD | KN_NEED_SHARDED | KN_NEED_LORA | KN_NEED_TRAIN;
    const unsigned lora = KN_NEED_LORA | KN_NEED_TRAIN;
    const unsigned back = KN_NEED_BACKWARD | KN_NEED_TRAIN;
    const struct need table[] = {
        NEED(open, any),
        NEED(close, any),
        NEED(info, any),
        NEED(alloc, any),
        NEED(free, any),
        NEED(discard, any),
        NEED(queue_create, any),
        NEED(queue_destroy, any),
        NEED(queue_device, any),
        NEED(queue_submit, any),
        NEED(queue_wait, any),
        NEED(upload, any),
        NEED(download, any),
        NEED(weight_create, any),
        NEED(weight_destroy, any),
        NEED(weight_bytes, any),
        NEED(weight_form, any),
        NEED(weight_read, any),
        NEED(form_row_bytes, any),
        NEED(kv_block_bytes, KN_NEED_SERVE),
        NEED(embed, KN_NEED_SERVE),
        NEED(rmsnorm, KN_NEED_SERVE),
        NEED(quantize, KN_NEED_SERVE),
        NEED(gemm, KN_NEED_SERVE),
        NEED(swiglu, KN_NEED_SERVE),
        NEED(rope_table, KN_NEED_SERVE),
        NEED(rope_kv, KN_NEED_SERVE),
        NEED(attn, KN_NEED_SERVE),
        NEED(gather, KN_NEED_SERVE),
        NEED(kv_copy, KN_NEED_SERVE),
        NEED(sample, KN_NEED_SERVE),
        NEED(gemm_t, back),
        NEED(lora_bytes, lora),
        NEED(lora_pack, lora),
        NEED(lora_unpack, lora),
        NEED(lora, lora),
        NEED(lora_shrink_back, KN_NEED_TRAIN),
        NEED(lora_dx, KN_NEED_TRAIN),
        NEED(lora_grad, KN_NEED_TRAIN),
        NEED(xent, KN_NEED_TRAIN),
        NEED(rmsnorm_back, KN_NEED_TRAIN),
        NEED(swiglu_back, KN_NEED_TRAIN),
        NEED(attn_back, KN_NEED_TRAIN),
        NEED(rope_back, KN_NEED_TRAIN),
        NEED(scatter, KN_NEED_TRAIN),
        NEED(grad_add, KN_NEED_TRAIN),
        NEED(sumsq, KN_NEED_TRAIN),
        NEED(adamw, KN_NEED_TRAIN),
        NEED(all_reduce, KN_NEED_SHARDED),
    };
#undef NEED
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if ((table[i].needs & needs) && !table[i].present)
            return err_set(info, ERR_UNSUPPORTED, NULL,
                           "the %s backend does not have the operation '%s'", ops->backend,
                           table[i].name);
    return ERR_OK;
}
