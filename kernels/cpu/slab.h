// SPDX-License-Identifier: Apache-2.0
// Memory for weights: mappings with huge pages, from which weights are cut one after the other, so
// that many small weights do not each occupy whole huge pages. A slab goes back to the system when
// the last weight in it is gone. Thread-safe.
#pragma once
#include "base/cpus.h"
#include "base/thread.h"
#include <stddef.h>
#include <stdint.h>

struct cpu_slab;

struct cpu_slabs {
    struct lock lock;
    const struct cpus *cpus;
    struct cpu_slab *open; // where small weights go next; holds no reference of its own
};

void cpu_slabs_init(struct cpu_slabs *s, const struct cpus *cpus);
void cpu_slabs_fini(struct cpu_slabs *s); // every weight must be gone
// Zeroed, 64-byte aligned memory; *slab is what to release. NULL: out of memory.
uint8_t *cpu_slab_alloc(struct cpu_slabs *s, size_t bytes, struct cpu_slab **slab);
void cpu_slab_release(struct cpu_slabs *s, struct cpu_slab *slab);
