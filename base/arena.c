// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"
#include "base/mem.h"
#include <stdalign.h>
#include <stdint.h>
#include <string.h>

enum { ALIGN = 16, FIRST_CHUNK = 4096, TOP_CHUNK = 256 << 10 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, used;
    alignas(ALIGN) char data[];
};

void arena_init(struct arena *a, size_t max) {
    *a = (struct arena){.max = max};
}

static void free_chunks(struct arena_chunk *c) {
    while (c) {
        struct arena_chunk *next = c->next;
        mem_free(c);
        c = next;
    }
}

void arena_fini(struct arena *a) {
    free_chunks(a->head);
    *a = (struct arena){.max = a->max};
}

void arena_reset(struct arena *a) {
    if (a->head) {
        free_chunks(a->head->next);
        a->head->next = NULL;
        a->head->used = 0;
    }
    a->used = 0;
}

void *arena_alloc(struct arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return NULL;
    size_t need = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (a->max && (need > a->max || a->used > a->max - need))
        return NULL;
    struct arena_chunk *c = a->head;
    if (!c || c->cap - c->used < need) {
        size_t cap = !c ? FIRST_CHUNK : c->cap < TOP_CHUNK ? c->cap * 2 : TOP_CHUNK;
        if (cap < need)
            cap = need;
        struct arena_chunk *fresh = mem_alloc(sizeof *fresh + cap);
        if (!fresh)
            return NULL;
        fresh->next = c;
        fresh->cap = cap;
        fresh->used = 0;
        a->head = c = fresh;
    }
    void *p = c->data + c->used;
    c->used += need;
    a->used += need;
    return p;
}

void *arena_zalloc(struct arena *a, size_t bytes) {
    void *p = arena_alloc(a, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void *arena_calloc(struct arena *a, size_t n, size_t size) {
    size_t bytes;
    return mem_mul(n, size, &bytes) ? arena_zalloc(a, bytes) : NULL;
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    char *p = n == SIZE_MAX ? NULL : arena_alloc(a, n + 1);
    if (!p)
        return NULL;
    if (n)
        memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

char *arena_strdup(struct arena *a, const char *s) {
    return arena_strndup(a, s, strlen(s));
}
