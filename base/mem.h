// SPDX-License-Identifier: Apache-2.0
// Memory wrappers. Every allocation of the project's own code goes through here, so that tests can
// make the Nth one fail and count what is live. Thread-safe. Failure returns NULL; nothing ever
// exits.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes) __attribute__((malloc, warn_unused_result));
void *mem_zalloc(size_t bytes) __attribute__((malloc, warn_unused_result));
// n * size with an overflow check (overflow is NULL), zeroed.
void *mem_calloc(size_t n, size_t size) __attribute__((malloc, warn_unused_result));
// On failure NULL; the old block stays valid.
void *mem_realloc(void *p, size_t bytes) __attribute__((warn_unused_result));
// 64-byte aligned (or more), not zeroed; freed with mem_free.
void *mem_aligned(size_t align, size_t bytes) __attribute__((malloc, warn_unused_result));
char *mem_strdup(const char *s) __attribute__((malloc, warn_unused_result));
char *mem_strndup(const char *s, size_t n) __attribute__((malloc, warn_unused_result));
void *mem_dup(const void *p, size_t n) __attribute__((malloc, warn_unused_result));
void mem_free(void *p); // NULL is legal

// Allocations of the calling thread that have failed so far: tells whether code that hides it, as a
// library may, ran short of memory. mem_aligned and mem_map are not counted.
uint64_t mem_failures(void);

// Checked arithmetic: false on overflow, *out then untouched.
bool mem_mul(size_t a, size_t b, size_t *out);
bool mem_add(size_t a, size_t b, size_t *out);

// Anonymous pages, zeroed, 2 MiB aligned, transparent huge pages asked for. `bytes` is rounded up
// to 2 MiB; physical pages appear on first touch. Free with the same size.
void *mem_map(size_t bytes) __attribute__((warn_unused_result));
void mem_unmap(void *p, size_t bytes);
// Gives the physical pages of a range inside a mapping back; its content is then zero.
void mem_map_discard(void *p, size_t bytes);

// Tests only. The Nth allocation from now on fails (1 = the next one), and with `all` each later
// one too; 0 switches it off. Process-wide.
void mem_fail_after(uint64_t n, bool all);
// Allocations attempted since the last mem_fail_after call, and blocks alive now.
uint64_t mem_fail_count(void);
int64_t mem_live_blocks(void);
