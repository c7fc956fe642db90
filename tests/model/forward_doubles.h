// SPDX-License-Identifier: Apache-2.0
// Stand-ins for what the layer walk talks to: a clock, LoRA hooks, a tape.
#pragma once
#include "model/forward.h"

// A clock that moves on by itself, by a random time at each look.
struct ticking_clock {
    struct clock clock;
    int64_t now;
    uint64_t seed, drawn;
};
void ticking_clock_init(struct ticking_clock *c, uint64_t seed);
uint64_t ticking_clock_draw(struct ticking_clock *c);

// Counts the calls; for rows [row_begin, row_end) the layer's own matrix plays the adapter, so that
// their product is added twice.
struct counting_hook {
    const struct mdl_weights *weights;
    kn_addr scratch; // for quantised rows
    size_t scratch_bytes;
    int32_t row_begin, row_end;
    int32_t calls[MDL_LINEARS];
    int32_t slots[2]; // as the batch in device memory has them
    bool in_order;    // layer by layer, qkv, o, gate and up, down
};
void counting_hook_init(struct counting_hook *h, const struct mdl_weights *w);
void counting_hook_fini(struct counting_hook *h);
enum err counting_hook_linear(void *arg, struct kn_queue *q, const struct mdl_linear_call *call);

// Fails at one kind of linear of layer 1: at once with ERR_DEVICE, or by an operation that the
// queue refuses with ERR_INVALID.
struct failing_hook {
    const struct kn_ops *ops;
    int which;
    bool record;
};
enum err failing_hook_linear(void *arg, struct kn_queue *q, const struct mdl_linear_call *call);

// Keeps every activation of every layer.
struct whole_tape {
    const struct mdl_weights *weights;
    int32_t rows;
    kn_addr at[MDL_TAPE_KINDS]; // [layer][rows][width]
    int32_t width[MDL_TAPE_KINDS];
    int32_t layers[MDL_TAPE_KINDS];
    uint32_t skip; // bit k: kind k is not wanted
    int32_t asked;
};
void whole_tape_init(struct whole_tape *t, const struct mdl_weights *w, int32_t rows);
void whole_tape_fini(struct whole_tape *t);
kn_addr whole_tape_place(void *arg, int32_t layer, enum mdl_tape_kind kind, int32_t rows,
                         int32_t width);
// Copies one row to the host.
void whole_tape_read(const struct whole_tape *t, struct kn_queue *q, int32_t layer,
                     enum mdl_tape_kind kind, int32_t row, float *to);
