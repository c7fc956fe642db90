// SPDX-License-Identifier: Apache-2.0
// Backward of an adapter's module, on every ISA level: against sums in double precision, whose
// dropout draws its noise by the definition of kernels/lora.h, and bit by bit between ranges,
// threads and, for u, with serving's operation.
#include "base/mem.h"
#include "kernels/philox.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <string.h>

struct module {
    int32_t rows, k, n, r;
    float scale, p;
    float *x, *dy, *a, *b; // [rows][k], [rows][n], [r][k], [n][r]
    uint64_t *keys;
    double *u, *du, *ga, *gb, *dx; // as a, b, x; u, du [rows][r]
};

enum { MODULE = 77 };

static double kept(const struct module *m, int32_t row, int32_t f) {
    if (m->p <= 0)
        return 1;
    uint32_t counter[4] = {(uint32_t)(f / 64 * 16 + f % 16), MODULE, 0, 0}, noise[4];
    uint32_t key[2] = {(uint32_t)m->keys[row], (uint32_t)(m->keys[row] >> 32)};
    philox4x32(counter, key, noise);
    return (double)noise[f / 16 % 4] * 0x1p-32 >= (double)m->p ? 1 / (1 - (double)m->p) : 0;
}

static void solve(struct module *m) {
    int32_t k = m->k, n = m->n, r = m->r;
    for (int32_t t = 0; t < m->rows; t++)
        for (int32_t j = 0; j < r; j++) {
            double u = 0, du = 0;
            for (int32_t c = 0; c < k; c++)
                u += (double)m->a[j * k + c] * (double)m->x[t * k + c] * kept(m, t, c);
            for (int32_t c = 0; c < n; c++)
                du += (double)m->dy[t * n + c] * (double)m->b[c * r + j];
            m->u[t * r + j] = u;
            m->du[t * r + j] = du *= (double)m->scale;
            for (int32_t c = 0; c < k; c++) {
                m->dx[t * k + c] += du * (double)m->a[j * k + c] * kept(m, t, c);
                m->ga[j * k + c] += du * (double)m->x[t * k + c] * kept(m, t, c);
            }
            for (int32_t c = 0; c < n; c++)
                m->gb[c * r + j] += (double)m->scale * (double)m->dy[t * n + c] * u;
        }
}

static void module_init(struct module *m) {
    struct kn_rng rng = {(uint64_t)(m->k * 7 + m->r)};
    size_t rows = (size_t)m->rows, k = (size_t)m->k, n = (size_t)m->n, r = (size_t)m->r;
    m->x = kn_zeros(rows * k, 4);
    m->dy = kn_zeros(rows * n, 4);
    m->a = kn_zeros(r * k, 4);
    m->b = kn_zeros(n * r, 4);
    m->keys = kn_zeros(rows, 8);
    m->u = kn_zeros(rows * r, 8);
    m->du = kn_zeros(rows * r, 8);
    m->ga = kn_zeros(r * k, 8);
    m->gb = kn_zeros(n * r, 8);
    m->dx = kn_zeros(rows * k, 8);
    kn_rng_fill(&rng, m->x, rows * k, 1);
    kn_rng_fill(&rng, m->dy, rows * n, 0.5f);
    kn_rng_fill(&rng, m->a, r * k, 0.3f);
    kn_rng_fill(&rng, m->b, n * r, 0.3f);
    for (size_t i = 0; i < rows; i++)
        m->keys[i] = kn_rng_u64(&rng);
    solve(m);
}

static void module_free(struct module *m) {
    void *all[] = {m->x, m->dy, m->a, m->b, m->keys, m->u, m->du, m->ga, m->gb, m->dx};
    for (int i = 0; i < 10; i++)
        mem_free(all[i]);
}

struct result {
    float *u, *du, *dx, *ga, *gb; // as the device has them
    size_t u_bytes, dx_bytes, a_bytes, b_bytes;
};

static void result_free(struct result *r) {
    float *all[] = {r->u, r->du, r->dx, r->ga, r->gb};
    for (int i = 0; i < 5; i++)
        mem_free(all[i]);
}

// A random end of a range that begins at `begin`: a multiple of `unit` or all.
static int32_t cut(struct kn_rng *rng, int32_t begin, int32_t unit, int32_t all) {
    int32_t end = begin + unit * (1 + kn_rng_below(rng, 5));
    return end < all ? end : all;
}

static void run_grad(struct kn_fixture *f, const struct module *m, enum kn_lora_side side,
                     const struct result *out, bool cuts, struct kn_rng *rng) {
    bool a = side == KN_LORA_A;
    struct kn_lora_grad p = {.side = side,
                             .left = (kn_addr)(a ? out->du : out->u),
                             .right = (kn_addr)(a ? m->x : m->dy),
                             .ld_right = a ? m->k : m->n,
                             .rows = m->rows,
                             .width = a ? m->k : m->n,
                             .r = m->r,
                             .scale = m->scale,
                             .grad = (kn_addr)(a ? out->ga : out->gb)};
    if (a)
        p.dropout = (struct kn_dropout){m->p, MODULE, (kn_addr)m->keys};
    for (int32_t at = 0; at < p.width; at = p.end) {
        p.begin = at;
        p.end = cuts ? cut(rng, at, 16, p.width) : p.width;
        assert_int_equal(f->ops->lora_grad(f->q, &p), ERR_OK);
    }
}

static void run_dx(struct kn_fixture *f, const struct module *m, const struct result *out,
                   kn_addr a, bool cuts, struct kn_rng *rng) {
    struct kn_lora_dx p = {.du = (kn_addr)out->du,
                           .a = a,
                           .dx = (kn_addr)out->dx,
                           .lddx = m->k + 3,
                           .rows = m->rows,
                           .k = m->k,
                           .r = m->r,
                           .dropout = {m->p, MODULE, (kn_addr)m->keys}};
    for (int32_t at = 0; at < m->k; at = p.k_end) {
        p.k_begin = at;
        p.k_end = cuts ? cut(rng, at, 16, m->k) : m->k;
        assert_int_equal(f->ops->lora_dx(f->q, &p), ERR_OK);
    }
}

static void run_shrink(struct kn_fixture *f, const struct module *m, const struct result *out,
                       kn_addr a, kn_addr b, bool cuts, struct kn_rng *rng) {
    struct kn_lora_shrink_back p = {.x = (kn_addr)m->x,
                                    .dy = (kn_addr)m->dy,
                                    .ldx = m->k,
                                    .lddy = m->n,
                                    .a = a,
                                    .b = b,
                                    .rows = m->rows,
                                    .k = m->k,
                                    .n = m->n,
                                    .r = m->r,
                                    .scale = m->scale,
                                    .dropout = {m->p, MODULE, (kn_addr)m->keys},
                                    .u = (kn_addr)out->u,
                                    .du = (kn_addr)out->du};
    for (int32_t at = 0; at < m->rows; at = p.row_end) {
        p.row_begin = at;
        p.row_end = cuts ? cut(rng, at, 1, m->rows) : m->rows;
        assert_int_equal(f->ops->lora_shrink_back(f->q, &p), ERR_OK);
    }
}

static kn_addr put_matrix(struct kn_fixture *f, enum kn_lora_side side, int32_t rows, int32_t cols,
                          const float *src) {
    size_t bytes = f->ops->lora_bytes(side, rows, cols);
    float *packed = kn_zeros(bytes, 1);
    f->ops->lora_pack(side, rows, cols, src, packed);
    kn_addr at = kn_test_put(f, packed, bytes);
    mem_free(packed);
    return at;
}

static struct result run(struct kn_fixture *f, const struct module *m, bool cuts) {
    struct kn_rng rng = {5};
    size_t rp = (size_t)(m->r + 15) / 16 * 16, rows = (size_t)m->rows;
    struct result out = {.u_bytes = rows * rp * 4,
                         .dx_bytes = rows * (size_t)(m->k + 3) * 4,
                         .a_bytes = f->ops->lora_bytes(KN_LORA_A, m->r, m->k),
                         .b_bytes = f->ops->lora_bytes(KN_LORA_B, m->n, m->r)};
    out.u = kn_zeros(out.u_bytes, 1);
    out.du = kn_zeros(out.u_bytes, 1);
    out.dx = kn_zeros(out.dx_bytes, 1);
    out.ga = kn_zeros(out.a_bytes, 1);
    out.gb = kn_zeros(out.b_bytes, 1);
    memset(out.u, 0x55, out.u_bytes); // whatever was there before
    memset(out.du, 0x55, out.u_bytes);
    memset(out.ga, 0xff, out.a_bytes);
    memset(out.gb, 0xff, out.b_bytes);
    for (size_t i = 0; i < out.dx_bytes / 4; i++)
        out.dx[i] = 0.25f;
    kn_addr a = put_matrix(f, KN_LORA_A, m->r, m->k, m->a);
    kn_addr b = put_matrix(f, KN_LORA_B, m->n, m->r, m->b);
    run_shrink(f, m, &out, a, b, cuts, &rng);
    run_dx(f, m, &out, a, cuts, &rng);
    run_grad(f, m, KN_LORA_A, &out, cuts, &rng);
    run_grad(f, m, KN_LORA_B, &out, cuts, &rng);
    kn_test_wait(f);
    return out;
}

// Values within tolerance of the size of what was added up.
static void check_close(const char *what, const float *got, const double *want, size_t n,
                        double size) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <=
              TOL_GRAD_ATOL + TOL_GRAD_RTOL * fabs(want[i]) + TOL_SUM_NOISE * size))
            fail_msg("%s %zu: %.9g, not %.9g", what, i, (double)got[i], want[i]);
}

static void check_values(struct kn_fixture *f, const struct module *m, const struct result *out) {
    int32_t rp = (m->r + 15) / 16 * 16;
    for (int32_t t = 0; t < m->rows; t++) {
        check_close("u", out->u + t * rp, m->u + t * m->r, (size_t)m->r, 1);
        check_close("du", out->du + t * rp, m->du + t * m->r, (size_t)m->r, 1);
        for (int32_t j = m->r; j < rp; j++)
            assert_true(out->u[t * rp + j] == 0 && out->du[t * rp + j] == 0);
        for (int32_t c = 0; c < m->k + 3; c++) {
            double want = 0.25 + (c < m->k ? m->dx[t * m->k + c] : 0);
            check_close("dx", &out->dx[t * (m->k + 3) + c], &want, 1, c < m->k ? 1 : 0);
        }
    }
    float *plain = kn_zeros((size_t)(m->r * (m->k > m->n ? m->k : m->n)), 4), *back;
    f->ops->lora_unpack(KN_LORA_A, m->r, m->k, out->ga, plain);
    check_close("dA", plain, m->ga, (size_t)(m->r * m->k), sqrt(m->rows));
    back = kn_zeros(out->a_bytes, 1); // padding is zero: packing again gives the same bytes
    f->ops->lora_pack(KN_LORA_A, m->r, m->k, plain, back);
    kn_assert_same(out->ga, back, out->a_bytes);
    mem_free(back);
    f->ops->lora_unpack(KN_LORA_B, m->n, m->r, out->gb, plain);
    check_close("dB", plain, m->gb, (size_t)(m->r * m->n), sqrt(m->rows));
    back = kn_zeros(out->b_bytes, 1);
    f->ops->lora_pack(KN_LORA_B, m->n, m->r, plain, back);
    kn_assert_same(out->gb, back, out->b_bytes);
    mem_free(back);
    mem_free(plain);
}

static void check(const char *isa, struct module m) {
    struct result first = {0};
    module_init(&m);
    for (int threads = 1; threads <= 4; threads *= 2)
        for (int cuts = 0; cuts < 2; cuts++) {
            struct kn_fixture f;
            kn_fixture_open(&f, isa, threads);
            struct result out = run(&f, &m, cuts);
            if (!first.u) {
                first = out;
                check_values(&f, &m, &out);
            } else {
                kn_assert_same(out.u, first.u, out.u_bytes);
                kn_assert_same(out.du, first.du, out.u_bytes);
                kn_assert_same(out.dx, first.dx, out.dx_bytes);
                kn_assert_same(out.ga, first.ga, out.a_bytes);
                kn_assert_same(out.gb, first.gb, out.b_bytes);
                result_free(&out);
            }
            kn_fixture_close(&f);
        }
    result_free(&first);
    module_free(&m);
}

static void shapes(const char *isa) {
    check(isa, (struct module){.rows = 70, .k = 96, .n = 160, .r = 16, .scale = 2});
    check(isa, (struct module){.rows = 1, .k = 1, .n = 1, .r = 1, .scale = 1});
    check(isa, (struct module){.rows = 33, .k = 77, .n = 45, .r = 8, .scale = 0.5f});
    check(isa, (struct module){.rows = 129, .k = 200, .n = 33, .r = 33, .scale = 2});
    check(isa, (struct module){.rows = 9, .k = 640, .n = 31, .r = 256, .scale = 0.125f});
}
static void test_shapes(void **state) {
    (void)state;
    kn_for_levels(shapes);
}

static void dropout(const char *isa) {
    check(isa, (struct module){.rows = 70, .k = 150, .n = 40, .r = 16, .scale = 2, .p = 0.1f});
    check(isa, (struct module){.rows = 5, .k = 63, .n = 20, .r = 5, .scale = 1, .p = 0.75f});
}
static void test_dropout(void **state) {
    (void)state;
    kn_for_levels(dropout);
}

// Serving's y += scale * B u with B = 1 and scale = 1 shows its u.
static void same_u(const char *isa) {
    enum { R = 16 };
    for (int drop = 0; drop < 2; drop++) {
        struct module m = {.rows = 37, .k = 203, .n = R, .r = R, .scale = 1, .p = drop ? 0.3f : 0};
        struct kn_fixture f;
        module_init(&m);
        for (int i = 0; i < R * R; i++)
            m.b[i] = i % R == i / R;
        kn_fixture_open(&f, isa, 2);
        struct result out = run(&f, &m, true);
        struct kn_lora_entry e = {.a = put_matrix(&f, KN_LORA_A, R, m.k, m.a),
                                  .b = put_matrix(&f, KN_LORA_B, R, R, m.b),
                                  .r = R,
                                  .scale = 1};
        int32_t zeros[64] = {0};
        struct kn_batch b = {
            .n_tokens = m.rows, .n_seqs = 1, .seq = (kn_addr)zeros, .slot = (kn_addr)zeros};
        float *y = kn_zeros((size_t)(m.rows * R), 4);
        struct kn_lora p = {.batch = &b,
                            .x = (kn_addr)m.x,
                            .ldx = m.k,
                            .y = (kn_addr)y,
                            .ldy = R,
                            .rows = m.rows,
                            .k = m.k,
                            .entries = (kn_addr)&e,
                            .n_slots = 1,
                            .n_parts = 1,
                            .n = {R},
                            .dropout = {m.p, MODULE, (kn_addr)m.keys}};
        assert_int_equal(f.ops->lora(f.q, &p), ERR_OK);
        kn_test_wait(&f);
        for (int i = 0; i < m.rows * R; i++) // a sum with zeros: only the sign of a zero may differ
            assert_true(y[i] == out.u[i]);
        mem_free(y);
        result_free(&out);
        kn_fixture_close(&f);
        module_free(&m);
    }
}
static void test_same_u(void **state) {
    (void)state;
    kn_for_levels(same_u);
}

// A gradient of no rows is zero.
static void test_no_rows(void **state) {
    (void)state;
    struct kn_fixture f;
    float grad[32], x[32] = {0};
    memset(grad, 0xff, sizeof grad);
    kn_fixture_open(&f, NULL, 1);
    struct kn_lora_grad p = {.side = KN_LORA_B,
                             .left = (kn_addr)x,
                             .right = (kn_addr)x,
                             .ld_right = 16,
                             .width = 16,
                             .r = 2,
                             .scale = 1,
                             .grad = (kn_addr)grad};
    assert_int_equal(f.ops->lora_grad(f.q, &p), ERR_OK);
    kn_test_wait(&f);
    for (int i = 0; i < 32; i++)
        assert_true(grad[i] == 0);
    kn_fixture_close(&f);
}

static void test_refused(void **state) {
    (void)state;
    struct kn_fixture f;
    struct err_info info;
    float x[64] = {0};
    kn_addr a = (kn_addr)x;
    kn_fixture_open(&f, NULL, 1);
    const struct kn_lora_grad grad = {
        .left = a, .right = a, .ld_right = 40, .rows = 1, .width = 40, .r = 2, .grad = a};
    const struct kn_lora_dx dx = {.du = a, .a = a, .dx = a, .lddx = 40, .rows = 1, .k = 40, .r = 2};
    const struct kn_lora_shrink_back shrink = {.x = a,
                                               .dy = a,
                                               .ldx = 8,
                                               .lddy = 8,
                                               .a = a,
                                               .b = a,
                                               .rows = 2,
                                               .k = 8,
                                               .n = 8,
                                               .r = 2,
                                               .u = a,
                                               .du = a};
#define REFUSED(op, good, member, value)                                                           \
    do {                                                                                           \
        struct kn_##op p_ = good;                                                                  \
        p_.member = value;                                                                         \
        assert_int_equal(f.ops->op(f.q, &p_), ERR_OK);                                             \
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);                              \
        assert_non_null(strstr(info.message, #op));                                                \
    } while (0)
    REFUSED(lora_grad, grad, r, 257);
    REFUSED(lora_grad, grad, ld_right, 39);
    REFUSED(lora_grad, grad, end, 24);
    REFUSED(lora_grad, grad, end, 41);
    REFUSED(lora_grad, grad, dropout.p, 0.5f); // without keys
    REFUSED(lora_grad, grad, grad, 0);
    REFUSED(lora_dx, dx, k_end, 24);
    REFUSED(lora_dx, dx, lddx, 39);
    REFUSED(lora_dx, dx, r, 0);
    REFUSED(lora_dx, dx, dropout.p, 1.0f);
    REFUSED(lora_dx, dx, dropout.p, NAN);
    REFUSED(lora_dx, dx, du, 0);
    REFUSED(lora_shrink_back, shrink, ldx, 7);
    REFUSED(lora_shrink_back, shrink, row_end, 3);
    REFUSED(lora_shrink_back, shrink, n, 0);
    REFUSED(lora_shrink_back, shrink, b, 0);
#undef REFUSED
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_same_u),  cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
