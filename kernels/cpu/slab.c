// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/slab.h"
#include "base/mem.h"

enum {
    SLAB_BYTES = 32 << 20,
    OWN_FROM_BYTES = 8 << 20, // larger weights get a slab to themselves
    ALIGN = 64,
};

struct cpu_slab {
    uint8_t *data;
    size_t bytes, used;
    int weights; // alive in it
};

void cpu_slabs_init(struct cpu_slabs *s, const struct cpus *cpus) {
    lock_init(&s->lock);
    s->cpus = cpus;
    s->open = NULL;
}

static void slab_free(struct cpu_slab *slab) {
    mem_unmap(slab->data, slab->bytes);
    mem_free(slab);
}

void cpu_slabs_fini(struct cpu_slabs *s) {
    if (s->open && s->open->weights == 0)
        slab_free(s->open);
    lock_fini(&s->lock);
}

static struct cpu_slab *slab_new(const struct cpu_slabs *s, size_t bytes) {
    struct cpu_slab *slab = mem_zalloc(sizeof *slab);
    if (!slab)
        return NULL;
    slab->bytes = bytes;
    slab->data = mem_map(bytes);
    if (!slab->data) {
        mem_free(slab);
        return NULL;
    }
    // Refused in some containers; then the packing threads' first touch decides.
    (void)cpus_interleave(s->cpus, slab->data, bytes);
    return slab;
}

// The slab that takes `bytes` more: the open one, a new open one, or one of its own.
static struct cpu_slab *slab_for(struct cpu_slabs *s, size_t bytes) {
    if (bytes >= OWN_FROM_BYTES)
        return slab_new(s, bytes);
    if (s->open && s->open->bytes - s->open->used >= bytes)
        return s->open;
    struct cpu_slab *slab = slab_new(s, SLAB_BYTES);
    if (!slab)
        return NULL;
    if (s->open && s->open->weights == 0)
        slab_free(s->open);
    s->open = slab; // the old one lives on with its weights
    return slab;
}

uint8_t *cpu_slab_alloc(struct cpu_slabs *s, size_t bytes, struct cpu_slab **out) {
    *out = NULL;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    size_t need = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    lock_take(&s->lock);
    struct cpu_slab *slab = slab_for(s, need);
    uint8_t *p = NULL;
    if (slab) {
        p = slab->data + slab->used;
        slab->used += need;
        slab->weights++;
        *out = slab;
    }
    lock_drop(&s->lock);
    return p;
}

void cpu_slab_release(struct cpu_slabs *s, struct cpu_slab *slab) {
    if (!slab)
        return;
    lock_take(&s->lock);
    if (--slab->weights == 0) {
        // Used memory is not zero any more, so even the open slab cannot start again.
        if (s->open == slab)
            s->open = NULL;
        slab_free(slab);
    }
    lock_drop(&s->lock);
}
