// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "kernels/cpu/cpu_device.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Small allocations come from the heap, large ones are mappings of their own with huge pages.
enum { MAP_FROM_BYTES = 1 << 20, CACHE_LINE = 64 };

#if defined(KN_CPU_X86)
static const struct cpu_isa *const levels[] = {&cpu_isa_avx512bf16, &cpu_isa_avx512, &cpu_isa_avx2,
                                               &cpu_isa_portable};
#else
static const struct cpu_isa *const levels[] = {&cpu_isa_portable};
#endif
enum { N_LEVELS = sizeof levels / sizeof *levels };

static enum err choose_isa(const char *name, const struct cpu_isa **out, struct err_info *info) {
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (name && strcmp(name, levels[i]->name) != 0)
            continue;
        if (levels[i]->supported()) {
            *out = levels[i];
            return ERR_OK;
        }
        if (name)
            return err_set(info, ERR_UNSUPPORTED, "isa", "this CPU cannot run the ISA level '%s'",
                           name);
    }
    return err_set(
        info, ERR_INVALID, "isa",
        "no ISA level '%s' in this build; there is avx512bf16, avx512, avx2 and portable", name);
}

static enum err make_pool(struct kn_device *d, const struct kn_device_config *c,
                          struct err_info *info) {
    int cpu[CPUS_MAX], n = d->cpus.n, first = 0;
    if (c->parts > 1 && c->parts <= n) { // where there are fewer CPUs than parts, all share all
        first = n * c->part / c->parts;
        n = n * (c->part + 1) / c->parts - first;
    }
    for (int i = 0; i < n; i++)
        cpu[i] = d->cpus.cpu[first + i];
    struct pool_config cfg = {.threads = d->threads};
    if (c->pin) {
        cfg.cpus = cpu;
        cfg.n_cpus = n;
    }
    return pool_create(&cfg, &d->pool, info);
}

static size_t scratch_bytes(const struct kn_device *d) {
    return (size_t)d->threads * CPU_SCRATCH_BYTES + CPU_SHARED_BYTES;
}

enum err cpu_open(const struct kn_device_config *cfg, struct kn_device **out,
                  struct err_info *info) {
    *out = NULL;
    if (cfg->threads < 0 || cfg->threads > CPU_MAX_THREADS)
        return err_set(info, ERR_INVALID, "threads", "threads must be 0 to %d, not %d",
                       CPU_MAX_THREADS, cfg->threads);
    if (cfg->parts < 0 || cfg->part < 0 || (cfg->parts ? cfg->part >= cfg->parts : cfg->part > 0))
        return err_set(info, ERR_INVALID, "part", "there is no part %d of %d", cfg->part,
                       cfg->parts);
    const struct cpu_isa *isa = NULL;
    enum err e = choose_isa(cfg->isa, &isa, info);
    if (e)
        return e;
    struct kn_device *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_set(info, ERR_NOMEM, NULL, "no memory for the CPU device");
    d->isa = isa;
    cpus_read(&d->cpus, "");
    cpu_slabs_init(&d->slabs, &d->cpus);
    d->threads = cfg->threads ? cfg->threads : cpus_threads(&d->cpus);
    if (d->threads > CPU_MAX_THREADS)
        d->threads = CPU_MAX_THREADS;
    d->scratch = mem_map(scratch_bytes(d));
    d->shares = mem_aligned(CACHE_LINE, (size_t)d->threads * sizeof *d->shares);
    if (!d->scratch || !d->shares)
        e = err_set(info, ERR_NOMEM, NULL, "no memory for the scratch of %d threads", d->threads);
    else
        memset(d->shares, 0, (size_t)d->threads * sizeof *d->shares);
    atomic_store(&d->epoch, 1);
    if (!e)
        e = make_pool(d, cfg, info);
    if (e) {
        cpu_close(d);
        return e;
    }
    *out = d;
    return ERR_OK;
}

void cpu_close(struct kn_device *d) {
    if (!d)
        return;
    pool_destroy(d->pool);
    cpu_slabs_fini(&d->slabs);
    mem_unmap(d->scratch, scratch_bytes(d));
    mem_free(d->shares);
    mem_free(d);
}

void cpu_info(const struct kn_device *d, struct kn_device_info *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->backend, sizeof out->backend, "cpu");
    // Compilers may round alike, but nobody promises that.
#if defined(__clang__)
    const char *compiler = "clang";
    int major = __clang_major__;
#else
    const char *compiler = "gcc";
    int major = __GNUC__;
#endif
    snprintf(out->kernel_set, sizeof out->kernel_set, "cpu-%s-%s-%s%d", d->isa->name, GRAFT_VERSION,
             compiler, major);
    out->threads = d->threads;
    out->memory_bytes = d->cpus.memory;
}

const struct cpu_isa *cpu_device_isa(const struct kn_device *d) {
    return d->isa;
}

enum err cpu_alloc(struct kn_device *d, size_t bytes, kn_addr *out) {
    void *p;
    if (bytes >= MAP_FROM_BYTES) {
        p = mem_map(bytes);
        if (p)
            (void)cpus_interleave(&d->cpus, p, bytes);
    } else {
        p = mem_aligned(CACHE_LINE, bytes);
        if (p)
            memset(p, 0, bytes);
    }
    *out = (kn_addr)p;
    return p ? ERR_OK : ERR_NOMEM;
}

void cpu_free(struct kn_device *d, kn_addr a, size_t bytes) {
    (void)d;
    if (bytes >= MAP_FROM_BYTES)
        mem_unmap((void *)a, bytes);
    else
        mem_free((void *)a);
}

void cpu_discard(struct kn_device *d, kn_addr a, size_t bytes) {
    (void)d;
    // Only whole pages can go back; the rest of the range is cleared by hand.
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    kn_addr end = a + bytes, first = (a + page - 1) & ~(page - 1), last = end & ~(page - 1);
    if (first >= last) {
        memset((void *)a, 0, bytes);
        return;
    }
    memset((void *)a, 0, first - a);
    mem_map_discard((void *)first, last - first);
    memset((void *)last, 0, end - last);
}

// A byte of each page is written: reading would only bring the kernel's page of zeros.
void cpu_touch(struct kn_device *d, kn_addr a, size_t bytes) {
    (void)d;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (kn_addr p = a; p < a + bytes; p = (p & ~(page - 1)) + page)
        *(volatile char *)p = 0;
}
