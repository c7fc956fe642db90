// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic uint64_t attempts, fail_at;
static _Atomic bool fail_all;
static _Atomic int64_t live;
static _Thread_local uint64_t failures;

static bool must_fail(void) {
    uint64_t n = atomic_fetch_add_explicit(&attempts, 1, memory_order_relaxed) + 1;
    uint64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);
    return at && (n == at || (n > at && atomic_load_explicit(&fail_all, memory_order_relaxed)));
}

static void *counted(void *p) {
    if (p)
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    else
        failures++;
    return p;
}

void *mem_alloc(size_t bytes) {
    return counted(must_fail() ? NULL : malloc(bytes ? bytes : 1));
}

void *mem_zalloc(size_t bytes) {
    return counted(must_fail() ? NULL : calloc(1, bytes ? bytes : 1));
}

void *mem_calloc(size_t n, size_t size) {
    size_t bytes;
    return mem_mul(n, size, &bytes) ? mem_zalloc(bytes) : NULL;
}

void *mem_realloc(void *p, size_t bytes) {
    if (!p)
        return mem_alloc(bytes);
    void *grown = must_fail() ? NULL : realloc(p, bytes ? bytes : 1);
    failures += !grown;
    return grown;
}

void *mem_aligned(size_t align, size_t bytes) {
    if (must_fail())
        return NULL;
    void *p = NULL;
    return posix_memalign(&p, align, bytes ? bytes : 1) == 0 ? counted(p) : NULL;
}

void *mem_dup(const void *p, size_t n) {
    void *copy = mem_alloc(n);
    if (copy && n)
        memcpy(copy, p, n);
    return copy;
}

char *mem_strndup(const char *s, size_t n) {
    char *copy = mem_alloc(n + 1);
    if (!copy)
        return NULL;
    if (n)
        memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *mem_strdup(const char *s) {
    return mem_strndup(s, strlen(s));
}

uint64_t mem_failures(void) {
    return failures;
}

void mem_free(void *p) {
    if (!p)
        return;
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free(p);
}

bool mem_mul(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

bool mem_add(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

enum { HUGE_PAGE = 2 << 20 };

static size_t round_huge(size_t bytes) {
    return (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

void *mem_map(size_t bytes) {
    if (must_fail() || bytes == 0 || bytes > SIZE_MAX / 2)
        return NULL;
    size_t len = round_huge(bytes);
    char *p = mmap(NULL, len + HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t head = round_huge((uintptr_t)p) - (uintptr_t)p;
    if (head)
        munmap(p, head);
    munmap(p + head + len, HUGE_PAGE - head);
    (void)madvise(p + head, len, MADV_HUGEPAGE);
    return p + head;
}

void mem_unmap(void *p, size_t bytes) {
    if (p)
        munmap(p, round_huge(bytes));
}

void mem_map_discard(void *p, size_t bytes) {
    (void)madvise(p, bytes, MADV_DONTNEED);
}

void mem_fail_after(uint64_t n, bool all) {
    atomic_store(&attempts, 0);
    atomic_store(&fail_all, all);
    atomic_store(&fail_at, n);
}

uint64_t mem_fail_count(void) {
    return atomic_load(&attempts);
}

int64_t mem_live_blocks(void) {
    return atomic_load(&live);
}
