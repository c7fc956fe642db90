// SPDX-License-Identifier: Apache-2.0
// A bump allocator whose blocks all end together: the life of one request, one parse, one render.
// Not thread-safe. Memory is 16-byte aligned. Failure returns NULL.
#pragma once
#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *head;
    size_t used; // bytes handed out in all
    size_t max;  // most that may be handed out; 0: no limit
};

void arena_init(struct arena *a, size_t max);
void arena_fini(struct arena *a);
void arena_reset(struct arena *a); // everything handed out is gone; one chunk is kept
void *arena_alloc(struct arena *a, size_t bytes) __attribute__((warn_unused_result));
void *arena_zalloc(struct arena *a, size_t bytes) __attribute__((warn_unused_result));
void *arena_calloc(struct arena *a, size_t n, size_t size) __attribute__((warn_unused_result));
char *arena_strndup(struct arena *a, const char *s, size_t n) __attribute__((warn_unused_result));
char *arena_strdup(struct arena *a, const char *s) __attribute__((warn_unused_result));
