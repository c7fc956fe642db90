// SPDX-License-Identifier: Apache-2.0
#include "limits.h"
#include "base/clock.h"
#include "base/mem.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
    BUFFERS = 4, // in turn, so that no cache holds the next one
    BUFFER_BYTES = 128 << 20,
    ROUNDS = 400000, // of twelve independent operations
    CHAINS = 12,
};

struct level {
    const char *name;
    void (*read)(const char *p, size_t n);
    void (*fma)(int64_t rounds);
    void (*dot)(int64_t rounds);
    double fma_ops, dot_ops;      // of one instruction
    void (*bf16)(int64_t rounds); // 64 operations each
};

struct limits {
    struct pool *pool;
    const struct level *level;
    char *buffers;
    unsigned turn;
    bool cpu_time;
    enum limit what; // of the run in progress
    const char *from;
};

const char *limit_name(enum limit what) {
    static const char *const names[LIMITS] = {"read", "fma", "int8 dot", "bf16 dot"};
    return names[what];
}

// Twelve chains hide the latency of two units. The statements are volatile: their results are not
// used.
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static void read_portable(const char *p, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += 64) {
        uint64_t v[8];
        memcpy(v, p + i, sizeof v);
        for (int j = 0; j < 8; j++)
            sum += v[j];
    }
    __asm__ volatile("" ::"r"(sum));
}

static void fma_portable(int64_t rounds) {
    typedef float v4 __attribute__((vector_size(16)));
    v4 a[CHAINS], x = {0.5f, 0.5f, 0.5f, 0.5f};
    for (int i = 0; i < CHAINS; i++)
        a[i] = x;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++)
            a[i] = a[i] * x + x;
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" ::"m"(a[i]));
}

static const struct level portable = {"portable", read_portable, fma_portable, NULL, 8, 0, NULL};

#if defined(__x86_64__)
#include <immintrin.h>

#define LOOP(target_isa, name, vector, clear, statement)                                           \
    __attribute__((target(target_isa))) static void name(int64_t rounds) {                         \
        const vector x = clear, y = clear;                                                         \
        TWELVE(DECLARE_##vector)                                                                   \
        for (int64_t r = 0; r < rounds; r++) {                                                     \
            TWELVE(statement)                                                                      \
        }                                                                                          \
        TWELVE(KEEP)                                                                               \
    }
#define DECLARE___m512(i) __m512 a##i = x;
#define DECLARE___m512i(i) __m512i a##i = x;
#define DECLARE___m256(i) __m256 a##i = x;
#define DECLARE___m256i(i) __m256i a##i = x;
#define KEEP(i) __asm__ volatile("" ::"x"(a##i));
#define FMA(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define DPBUSD(i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define FMA2(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(a##i) : "x"(x), "x"(y));
// The AVX2 kernels' dot product: one multiply of bytes and one 16-bit addition.
#define MADDUBS(i)                                                                                 \
    __asm__ volatile("vpmaddubsw %2, %1, %%ymm15\n\tvpaddw %%ymm15, %0, %0"                        \
                     : "+x"(a##i)                                                                  \
                     : "x"(x), "x"(y)                                                              \
                     : "xmm15");
LOOP("avx512f", fma_avx512, __m512, _mm512_set1_ps(0.5f), FMA)
LOOP("avx512f,avx512vnni", dot_avx512, __m512i, _mm512_set1_epi8(1), DPBUSD)
LOOP("avx2,fma", fma_avx2, __m256, _mm256_set1_ps(0.5f), FMA2)
LOOP("avx2", dot_avx2, __m256i, _mm256_set1_epi8(1), MADDUBS)

// The latency is longer here: twice as many chains, with half the rounds.
#define DECLARE2(i) __m512i a##i = x, b##i = x;
#define DPBF16(i)                                                                                  \
    __asm__ volatile("vdpbf16ps %2, %2, %0\n\tvdpbf16ps %2, %2, %1"                                \
                     : "+v"(a##i), "+v"(b##i)                                                      \
                     : "v"(x));
#define KEEP2(i) __asm__ volatile("" ::"v"(a##i), "v"(b##i));
__attribute__((target("avx512f,avx512bf16"))) static void bf16_avx512(int64_t rounds) {
    const __m512i x = _mm512_set1_epi16(0x3f00);
    TWELVE(DECLARE2)
    for (int64_t r = 0; r < rounds / 2; r++) {
        TWELVE(DPBF16)
    }
    TWELVE(KEEP2)
}

__attribute__((target("avx512f"))) static void read_avx512(const char *p, size_t n) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 256) {
        for (int j = 0; j < 4; j++)
            _mm_prefetch(p + i + j * 64 + 2048, _MM_HINT_T0);
        a = _mm512_add_epi64(a, _mm512_load_si512(p + i));
        b = _mm512_add_epi64(b, _mm512_load_si512(p + i + 64));
        c = _mm512_add_epi64(c, _mm512_load_si512(p + i + 128));
        d = _mm512_add_epi64(d, _mm512_load_si512(p + i + 192));
    }
    a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    __asm__ volatile("" ::"v"(a));
}

__attribute__((target("avx2"))) static void read_avx2(const char *p, size_t n) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t i = 0; i < n; i += 64) {
        const __m256i *v = (const __m256i *)(const void *)(p + i);
        _mm_prefetch(p + i + 2048, _MM_HINT_T0);
        a = _mm256_add_epi64(a, _mm256_load_si256(v));
        b = _mm256_add_epi64(b, _mm256_load_si256(v + 1));
    }
    a = _mm256_add_epi64(a, b);
    __asm__ volatile("" ::"x"(a));
}

static const struct level avx512bf16 = {"avx512bf16", read_avx512, fma_avx512, dot_avx512,
                                        32,           128,         bf16_avx512};
static const struct level avx512 = {"avx512", read_avx512, fma_avx512, dot_avx512, 32, 128, NULL};
static const struct level avx2 = {"avx2", read_avx2, fma_avx2, dot_avx2, 16, 64, NULL};
static const struct level *const levels[] = {&avx512bf16, &avx512, &avx2, &portable};
#else
static const struct level *const levels[] = {&portable};
#endif

enum err limits_create(struct limits **out, const char *isa, int threads, bool cpu_time) {
    struct limits *l = mem_zalloc(sizeof *l);
    if (!l)
        return ERR_NOMEM;
    l->level = &portable;
    l->cpu_time = cpu_time;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcmp(levels[i]->name, isa) == 0)
            l->level = levels[i];
    l->buffers = mem_map((size_t)BUFFERS * BUFFER_BYTES);
    struct pool_config cfg = {.threads = threads};
    enum err e = l->buffers ? pool_create(&cfg, &l->pool, NULL) : ERR_NOMEM;
    if (e) {
        limits_destroy(l);
        return e;
    }
    memset(l->buffers, 1, (size_t)BUFFERS * BUFFER_BYTES);
    *out = l;
    return ERR_OK;
}

void limits_destroy(struct limits *l) {
    if (!l)
        return;
    pool_destroy(l->pool);
    mem_unmap(l->buffers, (size_t)BUFFERS * BUFFER_BYTES);
    mem_free(l);
}

static void run(void *arg, int tid, int nt) {
    struct limits *l = arg;
    size_t share = (size_t)BUFFER_BYTES / (size_t)nt & ~(size_t)4095;
    if (l->what == LIMIT_READ)
        l->level->read(l->from + (size_t)tid * share, share);
    else if (l->what == LIMIT_FMA)
        l->level->fma(ROUNDS);
    else if (l->what == LIMIT_DOT)
        l->level->dot(ROUNDS);
    else
        l->level->bf16(ROUNDS);
}

int64_t limits_now_ns(const struct limits *l) {
    if (!l->cpu_time)
        return clock_mono_ns(&clock_system);
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool limits_has(const struct limits *l, enum limit what) {
    return what == LIMIT_DOT    ? l->level->dot != NULL
           : what == LIMIT_BF16 ? l->level->bf16 != NULL
                                : true;
}

double limits_measure(struct limits *l, enum limit what) {
    if (!limits_has(l, what))
        return 0;
    int nt = pool_threads(l->pool);
    l->what = what;
    l->from = l->buffers + (size_t)(l->turn++ % BUFFERS) * BUFFER_BYTES;
    int64_t t = limits_now_ns(l);
    pool_run(l->pool, run, l);
    double s = (double)(limits_now_ns(l) - t) * 1e-9;
    if (what == LIMIT_READ)
        return (double)((size_t)BUFFER_BYTES / (size_t)nt & ~(size_t)4095) * nt / s;
    double ops = what == LIMIT_FMA ? l->level->fma_ops : what == LIMIT_DOT ? l->level->dot_ops : 64;
    return (double)nt * ROUNDS * CHAINS * ops / s;
}
