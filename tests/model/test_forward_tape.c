// SPDX-License-Identifier: Apache-2.0
// What the tape keeps are the terms of the transformer's own equations: they are computed again
// here in double, on the dequantised matrices, from the terms before them.
#include "base/mem.h"
#include "model/source_internal.h"
#include "tests/model/forward_doubles.h"
#include "tests/model/model_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <string.h>

enum { ROWS = 12 };

// y = W x in double, on the dequantised matrix.
static void multiply(const struct fx *x, const struct mdl_matrix *m, const double *in,
                     double *out) {
    float *row = mem_alloc((size_t)m->k * sizeof *row);
    assert_non_null(row);
    for (int i = 0, at = 0; i < m->n_parts; i++)
        for (int32_t r = 0; r < m->part_n[i]; r++, at++) {
            assert_int_equal(x->ops->weight_read(m->part[i], r, 1, row), ERR_OK);
            out[at] = 0;
            for (int32_t k = 0; k < m->k; k++)
                out[at] += (double)row[k] * in[k];
        }
    mem_free(row);
}

static void assert_close(const double *expected, const float *found, int32_t n) {
    double scale = 0;
    for (int32_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(expected[i]));
    for (int32_t i = 0; i < n; i++)
        if (fabs(expected[i] - (double)found[i]) > TOL_WALK * scale)
            fail_msg("%g where %g was expected", (double)found[i], expected[i]);
}

enum { WIDEST = 4096 };

struct taped_row { // of one layer and token
    float attn_in[WIDEST], qkv[WIDEST], attn_out[WIDEST], ffn_in[WIDEST], gate_up[WIDEST],
        next[WIDEST], q[WIDEST];
};

static void read_row(const struct fx *x, const struct whole_tape *t, int32_t layer, int32_t row,
                     struct taped_row *to) {
    float *const at[] = {to->attn_in, to->qkv, to->attn_out, to->ffn_in, to->gate_up};
    for (int k = 0; k < MDL_TAPE_FINAL; k++)
        whole_tape_read(t, x->queue, layer, (enum mdl_tape_kind)k, row, at[k]);
    if (x->weights->config.qk_norm)
        whole_tape_read(t, x->queue, layer, MDL_TAPE_Q, row, to->q);
    if (layer + 1 < x->weights->config.n_layers)
        whole_tape_read(t, x->queue, layer + 1, MDL_TAPE_ATTN_IN, row, to->next);
    else
        whole_tape_read(t, x->queue, 0, MDL_TAPE_FINAL, row, to->next);
}

// x / rms(x) * weight
static void normed(const struct fx *x, kn_addr weight, const float *in, double *out) {
    const struct mdl_config *c = &x->weights->config;
    float w[WIDEST];
    struct err_info info;
    double sum = 0;
    assert_int_equal(x->ops->download(x->queue, w, weight, (size_t)c->hidden * sizeof *w), ERR_OK);
    assert_int_equal(x->ops->queue_wait(x->queue, &info), ERR_OK);
    for (int32_t i = 0; i < c->hidden; i++)
        sum += (double)in[i] * (double)in[i];
    double scale = 1 / sqrt(sum / c->hidden + (double)c->rms_eps);
    for (int32_t i = 0; i < c->hidden; i++)
        out[i] = (double)in[i] * scale * (double)w[i];
}

// Position 0 (`first`) is not rotated, and sees itself alone: its attention's output is its v, as
// the cache has rounded it.
static void check_layer(const struct fx *x, const struct taped_row *r, int32_t layer, bool first) {
    const struct mdl_config *c = &x->weights->config;
    const struct mdl_layer *y = &x->weights->layers[layer];
    double in[WIDEST], out[WIDEST];
    normed(x, y->ffn_norm, r->ffn_in, in);
    multiply(x, &y->gate_up, in, out);
    assert_close(out, r->gate_up, y->gate_up.n);

    for (int32_t i = 0; i < y->o.k; i++)
        in[i] = (double)r->attn_out[i];
    multiply(x, &y->o, in, out);
    for (int32_t i = 0; i < c->hidden; i++)
        out[i] += (double)r->attn_in[i];
    assert_close(out, r->ffn_in, c->hidden);

    for (int32_t i = 0; i < c->intermediate; i++) {
        double gate = (double)r->gate_up[i], up = (double)r->gate_up[c->intermediate + i];
        in[i] = gate / (1 + exp(-gate)) * up;
    }
    multiply(x, &y->down, in, out);
    for (int32_t i = 0; i < c->hidden; i++)
        out[i] += (double)r->ffn_in[i];
    assert_close(out, r->next, c->hidden);
    if (!first)
        return;

    normed(x, y->attn_norm, r->attn_in, in);
    multiply(x, &y->qkv, in, out);
    assert_close(out, r->qkv, y->qkv.n);

    int32_t group = c->n_heads / c->n_kv_heads, v = y->qkv.n - c->n_kv_heads * c->head_dim;
    for (int32_t h = 0; h < c->n_heads; h++) {
        double own[WIDEST];
        for (int32_t i = 0; i < c->head_dim; i++) {
            float bf = r->qkv[v + h / group * c->head_dim + i];
            own[i] = (double)kn_bf16_to_f32(kn_f32_to_bf16(bf));
        }
        assert_close(own, r->attn_out + h * c->head_dim, c->head_dim);
    }
}

static void check_tape(struct fx *x, struct whole_tape *t, const int32_t *ids, const float *logits,
                       enum fx_wants wants) {
    struct mdl_tape tape = {whole_tape_place, t};
    struct fx_batch b;
    struct fx_seq s;
    fx_seq_init(&s, ids, ROWS, 100);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, ROWS, wants, false);
    t->asked = 0;
    fx_run(x, &b, NULL, &tape);
    assert_int_equal(t->asked, MDL_TAPE_FINAL * x->weights->config.n_layers + 1);
    size_t row = (size_t)x->vocab;
    for (int i = 0; i < b.b.n_want; i++)
        assert_memory_equal(x->logits + (size_t)i * row, logits + (size_t)b.want[i].row * row,
                            row * sizeof(float));
}

static void test_tape(void **state) {
    (void)state;
    struct fx x;
    struct whole_tape t;
    int32_t ids[ROWS];
    fx_open(&x, "tests/golden/models/f32.gguf", &(struct fx_options){0});
    const struct mdl_config *c = &x.weights->config;
    assert_true(c->intermediate <= WIDEST / 2 && c->hidden <= WIDEST);
    float *logits = mem_alloc((size_t)ROWS * (size_t)x.vocab * sizeof *logits);
    struct taped_row *row = mem_zalloc(sizeof *row);
    assert_non_null(logits);
    assert_non_null(row);
    for (int32_t i = 0; i < ROWS; i++)
        ids[i] = (i * 37 + 11) % x.vocab;
    fx_run_plain(&x, ids, ROWS, ROWS, 0, logits);
    whole_tape_init(&t, x.weights, ROWS);
    for (int wants = FX_NONE; wants <= FX_ALL; wants++) {
        check_tape(&x, &t, ids, logits, (enum fx_wants)wants);
        for (int32_t l = 0; l < c->n_layers; l++) {
            read_row(&x, &t, l, 0, row);
            check_layer(&x, row, l, true);
            read_row(&x, &t, l, ROWS - 1, row);
            check_layer(&x, row, l, false);
        }
    }
    for (t.skip = 0; t.skip < 1u << MDL_TAPE_KINDS; t.skip++)
        check_tape(&x, &t, ids, logits, FX_ALL);
    whole_tape_fini(&t);
    mem_free(row);
    mem_free(logits);
    fx_close(&x);
}

static void prepare_norm(struct mdl_source *src) {
    src->config.qk_norm = true;
}

// A layer that goes through the walk once more, in slices, leaves what the tape had kept of it.
static void check_again(const char *model, bool norm) {
    struct ticking_clock clock;
    ticking_clock_init(&clock, 5);
    struct fx x;
    fx_open(&x, model,
            &(struct fx_options){.clock = &clock.clock, .prepare = norm ? prepare_norm : NULL});
    struct whole_tape t;
    whole_tape_init(&t, x.weights, ROWS);
    struct mdl_tape tape = {whole_tape_place, &t};
    int32_t ids[ROWS];
    for (int32_t i = 0; i < ROWS; i++)
        ids[i] = (i * 37 + 11) % x.vocab;
    struct fx_batch b;
    struct fx_seq s;
    fx_seq_init(&s, ids, ROWS, 100);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, ROWS, FX_NONE, false);
    struct err_info info;
    assert_int_equal(mdl_forward_again(x.forward, 0, t.at[0], &info), ERR_INVALID);
    fx_run(&x, &b, NULL, &tape);
    struct taped_row *before = mem_zalloc(sizeof *before), *after = mem_zalloc(sizeof *after);
    assert_non_null(before);
    assert_non_null(after);
    if (norm) {
        read_row(&x, &t, 0, ROWS - 1, before);
        assert_memory_not_equal(before->q, before->qkv, sizeof(float));
        assert_true(before->q[0] < 0 || before->q[0] > 0);
    }
    assert_int_equal(mdl_forward_again(x.forward, x.weights->config.n_layers, t.at[0], &info),
                     ERR_INVALID);
    for (int32_t l = x.weights->config.n_layers - 1; l >= 0; l--) {
        const int kinds[] = {MDL_TAPE_QKV, MDL_TAPE_ATTN_OUT, MDL_TAPE_FFN_IN, MDL_TAPE_GATE_UP,
                             MDL_TAPE_Q};
        read_row(&x, &t, l, ROWS - 1, before);
        for (int k = 0; k < 5; k++) {
            size_t bytes = (size_t)ROWS * (size_t)t.width[kinds[k]] * sizeof(float);
            x.ops->discard(x.device, t.at[kinds[k]] + (kn_addr)l * bytes, bytes);
        }
        kn_addr in = t.at[MDL_TAPE_ATTN_IN] +
                     (kn_addr)l * ROWS * (kn_addr)t.width[MDL_TAPE_ATTN_IN] * sizeof(float);
        assert_int_equal(mdl_forward_again(x.forward, l, in, &info), ERR_OK);
        for (bool done = false; !done;)
            assert_int_equal(mdl_forward_run(x.forward, clock.now, &done, &info), ERR_OK);
        read_row(&x, &t, l, ROWS - 1, after);
        assert_memory_equal(before, after, sizeof *before);
    }
    mem_free(before);
    mem_free(after);
    whole_tape_fini(&t);
    fx_close(&x);
}

static void test_again(void **state) {
    (void)state;
    check_again("tests/golden/models/q8_0.gguf", false);
    check_again("tests/golden/models/qwen3-q8_0.gguf", true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tape), cmocka_unit_test(test_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
