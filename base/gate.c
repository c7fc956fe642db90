// SPDX-License-Identifier: Apache-2.0
#include "base/gate.h"
#include "base/clock.h"
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPIN_NS = 30000 };

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long futex(_Atomic uint32_t *word, int op, uint32_t val) {
    return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, val, NULL, NULL, 0);
}

static void wake(struct gate *g) {
    // A sleeper counts itself before the kernel compares the word, so either it is seen here or its
    // futex call returns at once.
    if (atomic_load(&g->sleepers))
        futex(&g->word, FUTEX_WAKE, INT_MAX);
}

void gate_set(struct gate *g, uint32_t word) {
    atomic_store(&g->word, word);
    wake(g);
}

void gate_add(struct gate *g, uint32_t n) {
    atomic_fetch_add(&g->word, n);
    wake(g);
}

void gate_wait(struct gate *g, uint32_t old, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != old)
            return;
        cpu_pause();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->word) == old)
        futex(&g->word, FUTEX_WAIT, old);
    atomic_fetch_sub(&g->sleepers, 1);
}

// The length of a pause differs by a factor of ten between CPUs.
int gate_spins(void) {
    enum { SAMPLE = 200 };
    int64_t best = INT64_MAX;
    for (int round = 0; round < 3; round++) {
        int64_t t0 = clock_mono_ns(&clock_system);
        for (int i = 0; i < SAMPLE; i++)
            cpu_pause();
        int64_t t = clock_mono_ns(&clock_system) - t0;
        best = t < best ? t : best;
    }
    int64_t n = (int64_t)SPIN_NS * SAMPLE / (best > 0 ? best : 1);
    return n < 100 ? 100 : n > 30000 ? 30000 : (int)n;
}
