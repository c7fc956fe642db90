// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_fixture.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

static void check(enum err e, const struct err_info *info, const char *what) {
    if (e)
        fail_msg("%s: %s: %s", what, err_name(e), info->message);
}

bool fx_slow_build(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#endif
#endif
    return false;
}

void fx_open(struct fx *x, const char *path, const struct fx_options *o) {
    struct err_info info = {.code = ERR_OK};
    *x = (struct fx){.ops = &kn_ops_cpu};
    struct kn_device_config cfg = {.threads = o->threads ? o->threads : 2, .isa = o->isa};
    check(x->ops->open(&cfg, &x->device, &info), &info, "device");
    check(x->ops->queue_create(x->device, &x->queue), &info, "queue");
    struct mdl_source *src;
    check(mdl_source_open(path, &src, &info), &info, path);
    if (o->prepare)
        o->prepare(src);
    check(mdl_weights_load(src, x->ops, x->device, 0, 1, NULL, &x->weights, &info), &info, path);
    mdl_source_close(src);

    const struct mdl_config *c = &x->weights->config;
    x->vocab = c->vocab;
    x->kv.shape = (struct kn_kv_shape){c->n_layers, c->n_kv_heads, c->head_dim};
    x->n_blocks = o->n_blocks ? o->n_blocks : 256;
    x->kv_bytes = (size_t)x->n_blocks * x->ops->kv_block_bytes(&x->kv.shape);
    check(x->ops->alloc(x->device, x->kv_bytes, &x->kv.pool), &info, "KV pool");
    struct mdl_forward_limits limits = {FX_TOKENS, FX_SEQS, FX_TOKENS, FX_BLOCKS};
    check(mdl_forward_create(x->weights, x->queue, &limits, o->clock ? o->clock : &clock_system,
                             &x->forward, &info),
          &info, "forward");
    x->logits = mem_alloc((size_t)FX_TOKENS * (size_t)x->vocab * sizeof(float));
    assert_non_null(x->logits);
    mdl_forward_capture_logits(x->forward, x->logits);
}

void fx_close(struct fx *x) {
    mem_free(x->logits);
    mdl_forward_destroy(x->forward);
    x->ops->free(x->device, x->kv.pool, x->kv_bytes);
    mdl_weights_destroy(x->weights);
    x->ops->queue_destroy(x->queue);
    x->ops->close(x->device);
}

void fx_seq_init(struct fx_seq *s, const int32_t *ids, int32_t n, int32_t first_block) {
    *s = (struct fx_seq){.ids = ids};
    assert_true((n + KN_KV_BLOCK - 1) / KN_KV_BLOCK <= FX_BLOCKS);
    for (int32_t i = 0; i < (n + KN_KV_BLOCK - 1) / KN_KV_BLOCK; i++)
        s->blocks[i] = first_block + i;
}

void fx_batch_init(struct fx_batch *b) {
    b->b = (struct mdl_batch){.ids = b->ids,
                              .pos = b->pos,
                              .seq_start = b->seq_start,
                              .kv_len = b->kv_len,
                              .block_table = b->table,
                              .max_blocks = FX_BLOCKS,
                              .slot = b->slot,
                              .want = b->want};
    b->seq_start[0] = 0;
}

static void add_want(struct fx_batch *b, int32_t row, int32_t position, int32_t target) {
    assert_true(b->b.n_want < FX_TOKENS);
    b->want[b->b.n_want++] = (struct mdl_want){.row = row,
                                               .params = {.position = (uint32_t)position,
                                                          .top_p = 1,
                                                          .repetition = 1,
                                                          .target = target,
                                                          .n_logprobs = -1}};
}

void fx_batch_add(struct fx_batch *b, const struct fx_seq *s, int32_t n, enum fx_wants wants,
                  bool score) {
    assert_true(b->b.n_tokens + n <= FX_TOKENS && b->b.n_seqs < FX_SEQS);
    for (int32_t i = 0; i < n; i++) {
        int32_t pos = s->n_cached + i, row = b->b.n_tokens + i;
        b->ids[row] = s->ids[pos];
        b->pos[row] = pos;
        if (wants == FX_ALL || (wants == FX_LAST && i == n - 1))
            add_want(b, row, pos, score ? s->ids[pos + 1] : -1);
    }
    int32_t i = b->b.n_seqs++;
    b->b.n_tokens += n;
    b->seq_start[i + 1] = b->b.n_tokens;
    b->kv_len[i] = s->n_cached + n;
    b->slot[i] = -1;
    memcpy(&b->table[i * FX_BLOCKS], s->blocks, sizeof s->blocks);
}

void fx_run(struct fx *x, struct fx_batch *b, const struct mdl_hooks *hooks,
            const struct mdl_tape *tape) {
    struct err_info info = {.code = ERR_OK};
    bool done;
    check(mdl_forward_begin(x->forward, &b->b, &x->kv, hooks, tape, &info), &info, "begin");
    check(mdl_forward_run(x->forward, INT64_MAX, &done, &info), &info, "run");
    assert_true(done);
}

void fx_run_plain(struct fx *x, const int32_t *ids, int32_t n, int32_t chunk, int32_t first_block,
                  float *to) {
    struct fx_batch b;
    struct fx_seq s;
    fx_seq_init(&s, ids, n, first_block);
    while (s.n_cached < n) {
        int32_t m = n - s.n_cached < chunk ? n - s.n_cached : chunk;
        fx_batch_init(&b);
        fx_batch_add(&b, &s, m, FX_ALL, false);
        fx_run(x, &b, NULL, NULL);
        memcpy(to + (size_t)s.n_cached * (size_t)x->vocab, x->logits,
               (size_t)m * (size_t)x->vocab * sizeof(float));
        s.n_cached += m;
    }
}
