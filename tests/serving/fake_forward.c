// SPDX-License-Identifier: Apache-2.0
#include "tests/serving/fake_forward.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tests/support/must.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t broken_bit = UINT64_C(1) << 63;

struct kn_queue {
    struct kn_device *d;
    enum err sticky;
};

struct mdl_forward {
    struct kn_queue *q;
    struct mdl_forward_limits limits;
    const struct mdl_batch *b;
    struct mdl_kv kv;
    struct kn_sample_out *out; // of this step
    int32_t *previous;         // tokens of the last step
    int32_t n_previous;
    int64_t left_ns;
    bool begun;
    uint32_t *stamp; // [blocks * 16] step that wrote the position
    uint32_t step;
};

// The model.

static uint64_t kv_of(int32_t token, int32_t pos, int32_t slot, uint64_t acc, bool broken) {
    uint64_t h = hash_mix64((uint64_t)token + 1000003u * (uint64_t)pos +
                            0x5bd1e995u * (uint64_t)(slot + 2)) ^
                 acc;
    h = hash_mix64(h) & ~broken_bit;
    if (h == 0)
        h = 1;
    return broken || token == FAKE_NAN ? h | broken_bit : h;
}

static uint64_t contribution(uint64_t kv, int32_t pos) {
    return hash_mix64(kv ^ hash_mix64((uint64_t)pos));
}

static float logprob_of(uint64_t state, int32_t token) {
    return -(float)(hash_mix64(state ^ (uint64_t)(token + 7)) % 4096) / 256;
}

static bool allowed(const struct mdl_want *w, int32_t token) {
    if (w->mask && !(w->mask[token / 32] >> (token % 32) & 1))
        return false;
    for (int32_t i = 0; i < w->params.n_bias; i++)
        if (w->bias[i].id == token && isinf(w->bias[i].bias))
            return false;
    return true;
}

static void sample(uint64_t state, bool broken, const struct mdl_want *w,
                   struct kn_sample_out *out) {
    const struct kn_sample_row *p = &w->params;
    *out = (struct kn_sample_out){.token = p->target, .flags = broken ? KN_SAMPLE_NONFINITE : 0};
    if (p->target < 0) {
        uint64_t h = state;
        if (p->temperature > 0)
            h ^= hash_mix64(p->seed ^ hash_mix64(((uint64_t)p->choice << 32) + p->position));
        for (int32_t i = 0; i < p->n_bias; i++)
            if (!isinf(w->bias[i].bias))
                h += hash_mix64((uint64_t)w->bias[i].id * 77 + (uint64_t)(w->bias[i].bias * 16));
        for (int32_t i = 0; i < p->n_counts; i++)
            h += hash_mix64((uint64_t)w->counts[i].id * 31 + (uint64_t)w->counts[i].out * 1009 +
                            (uint64_t)w->counts[i].prompt * 7919);
        out->token = (int32_t)(hash_mix64(h) % FAKE_VOCAB);
        int32_t tries = 0;
        for (; tries < FAKE_VOCAB && (!allowed(w, out->token) || out->token == FAKE_NAN); tries++)
            out->token = (out->token + 1) % FAKE_VOCAB;
        if (tries == FAKE_VOCAB)
            out->flags |= KN_SAMPLE_EMPTY;
    }
    out->logprob = logprob_of(state, out->token);
    out->rank = 1 + (int32_t)(hash_mix64(state + (uint64_t)out->token) % 50);
    out->n_top = p->n_logprobs > 0 ? p->n_logprobs : 0;
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top_id[i] = (int32_t)((state + (uint64_t)i) % FAKE_VOCAB);
        out->top_logprob[i] = logprob_of(state, out->top_id[i]);
    }
}

void fake_plain_add(struct fake_plain *p, int32_t token, int32_t slot) {
    uint64_t kv = kv_of(token, p->n, slot, p->acc, p->broken);
    p->broken = kv & broken_bit;
    p->acc += contribution(kv, p->n);
    p->last = kv;
    p->n++;
}

void fake_plain_sample(const struct fake_plain *p, const struct mdl_want *want,
                       struct kn_sample_out *out) {
    sample(hash_mix64(p->last ^ p->acc), p->broken, want, out);
}

// The forward.

enum err mdl_forward_create(const struct mdl_weights *w, struct kn_queue *q,
                            const struct mdl_forward_limits *limits, const struct clock *clock,
                            struct mdl_forward **out, struct err_info *info) {
    (void)w;
    (void)clock;
    struct mdl_forward *f = mem_zalloc(sizeof *f);
    if (!f)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    f->q = q;
    f->limits = *limits;
    f->out = mem_calloc((size_t)limits->max_want, sizeof *f->out);
    f->previous = mem_calloc((size_t)limits->max_want, sizeof *f->previous);
    f->stamp = mem_calloc((size_t)q->d->blocks * KN_KV_BLOCK, sizeof *f->stamp);
    if (!f->out || !f->previous || !f->stamp) {
        mdl_forward_destroy(f);
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    }
    *out = f;
    return ERR_OK;
}

void mdl_forward_destroy(struct mdl_forward *f) {
    if (!f)
        return;
    mem_free(f->out);
    mem_free(f->previous);
    mem_free(f->stamp);
    mem_free(f);
}

size_t mdl_forward_bytes(const struct mdl_forward *f) {
    (void)f;
    return 0;
}

static struct fake_step describe(const struct mdl_batch *b) {
    struct fake_step s = {.rows = b->n_tokens, .sequences = b->n_seqs};
    for (int32_t i = 0; i < b->n_seqs; i++) {
        int32_t n = b->seq_start[i + 1] - b->seq_start[i];
        int64_t reads = 0;
        for (int32_t t = 0; t < n; t++)
            reads += b->kv_len[i] - t;
        // A sequence of one token that is not its first counts as a decode.
        bool decode = n == 1 && b->kv_len[i] > 1;
        s.decodes += decode;
        s.prefill += decode ? 0 : n;
        *(decode ? &s.decode_reads : &s.prefill_reads) += reads;
    }
    for (int32_t t = 0; t < b->n_tokens; t++)
        s.from_device += b->ids[t] < 0;
    return s;
}

static void check_batch(const struct mdl_forward *f, const struct mdl_batch *b) {
    MUST(b->n_tokens >= 1 && b->n_tokens <= f->limits.max_tokens);
    MUST(b->n_seqs >= 1 && b->n_seqs <= f->limits.max_seqs);
    MUST(b->n_want >= 0 && b->n_want <= f->limits.max_want);
    MUST(b->max_blocks >= 1 && b->max_blocks <= f->limits.max_blocks);
    MUST(b->seq_start[0] == 0 && b->seq_start[b->n_seqs] == b->n_tokens);
    for (int32_t i = 0; i < b->n_seqs; i++) {
        int32_t n = b->seq_start[i + 1] - b->seq_start[i];
        MUST(n >= 1 && b->kv_len[i] >= n && b->kv_len[i] <= b->max_blocks * KN_KV_BLOCK);
        for (int32_t t = 0; t < n; t++)
            MUST(b->pos[b->seq_start[i] + t] == b->kv_len[i] - n + t);
        for (int32_t p = 0; p < b->kv_len[i]; p += KN_KV_BLOCK) {
            int32_t block = b->block_table[i * b->max_blocks + p / KN_KV_BLOCK];
            MUST(block >= 0 && block < f->q->d->blocks);
        }
    }
    for (int32_t t = 0; t < b->n_tokens; t++)
        MUST(b->ids[t] < FAKE_VOCAB && (b->ids[t] >= 0 || ~b->ids[t] < f->n_previous));
    for (int32_t w = 0; w < b->n_want; w++)
        MUST(b->want[w].row >= 0 && b->want[w].row < b->n_tokens);
}

static bool count_down(int32_t *n) {
    return *n > 0 && --*n == 0;
}

enum err mdl_forward_begin(struct mdl_forward *f, const struct mdl_batch *b,
                           const struct mdl_kv *kv, const struct mdl_hooks *hooks,
                           const struct mdl_tape *tape, struct err_info *info) {
    (void)hooks;
    (void)tape;
    struct kn_device *d = f->q->d;
    check_batch(f, b);
    if (count_down(&d->fail_begin))
        return err_set(info, ERR_NOMEM, NULL, "begin was told to fail");
    void *scratch = mem_alloc(16); // an allocation that fail-the-Nth tests can hit
    if (!scratch)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    mem_free(scratch);
    f->b = b;
    f->kv = *kv;
    f->begun = true;
    struct fake_step s = describe(b);
    f->left_ns = d->cost ? d->cost(&s) : 0;
    if (d->on_step)
        d->on_step(d->on_step_arg, &s);
    return ERR_OK;
}

static uint64_t *kv_at(const struct mdl_forward *f, int32_t seq, int32_t pos) {
    const struct mdl_batch *b = f->b;
    int32_t block = b->block_table[seq * b->max_blocks + pos / KN_KV_BLOCK];
    return (uint64_t *)f->kv.pool + (size_t)block * KN_KV_BLOCK + pos % KN_KV_BLOCK;
}

static void run_sequence(struct mdl_forward *f, int32_t i) {
    const struct mdl_batch *b = f->b;
    int32_t n = b->seq_start[i + 1] - b->seq_start[i], first = b->kv_len[i] - n;
    uint64_t acc = 0;
    bool broken = false;
    for (int32_t p = 0; p < b->kv_len[i]; p++) {
        uint64_t *kv = kv_at(f, i, p);
        int32_t row = b->seq_start[i] + p - first;
        if (p >= first) {
            int32_t id = b->ids[row];
            *kv = kv_of(id < 0 ? f->previous[~id] : id, p, b->slot ? b->slot[i] : -1, acc, broken);
            uint32_t *stamp = &f->stamp[kv - (uint64_t *)f->kv.pool];
            MUST(*stamp != f->step); // two sequences write one position
            *stamp = f->step;
        }
        MUST(*kv != 0); // was written some time
        broken = *kv & broken_bit;
        acc += contribution(*kv, p);
        for (int32_t w = 0; p >= first && w < b->n_want; w++)
            if (b->want[w].row == row)
                sample(hash_mix64(*kv ^ acc), broken, &b->want[w], &f->out[w]);
    }
}

enum err mdl_forward_run(struct mdl_forward *f, int64_t deadline_ns, bool *done,
                         struct err_info *info) {
    struct kn_device *d = f->q->d;
    MUST(f->begun);
    int64_t take = f->left_ns, until = deadline_ns - d->clock.mono;
    if (deadline_ns != INT64_MAX && take > until)
        take = until > 0 ? until : 0;
    if (take)
        clock_manual_advance(&d->clock, take);
    f->left_ns -= take;
    *done = f->left_ns == 0;
    if (!*done) {
        atomic_fetch_add(&d->sliced, 1);
        return ERR_OK;
    }
    if (d->sleep_us)
        nanosleep(&(struct timespec){.tv_nsec = d->sleep_us * 1000L}, NULL);
    f->begun = false;
    atomic_fetch_add(&d->steps, 1);
    enum err sticky = f->q->sticky;
    f->q->sticky = ERR_OK;
    if (sticky || count_down(&d->fail_run))
        return err_set(info, ERR_INTERNAL, NULL, "run was told to fail");
    f->step++;
    for (int32_t i = 0; i < f->b->n_seqs; i++)
        run_sequence(f, i);
    f->n_previous = f->b->n_want;
    for (int32_t w = 0; w < f->b->n_want; w++)
        f->previous[w] = f->out[w].token;
    return ERR_OK;
}

const struct kn_sample_out *mdl_forward_samples(const struct mdl_forward *f) {
    return f->out;
}

void mdl_forward_capture_logits(struct mdl_forward *f, float *to) {
    (void)f;
    (void)to;
}

// The device.

static enum err dev_alloc(struct kn_device *d, size_t bytes, kn_addr *out) {
    MUST(bytes == (size_t)d->blocks * KN_KV_BLOCK * sizeof(uint64_t));
    d->pool_at = mem_zalloc(bytes);
    *out = (kn_addr)d->pool_at;
    return d->pool_at ? ERR_OK : ERR_NOMEM;
}

static void dev_free(struct kn_device *d, kn_addr a, size_t bytes) {
    (void)bytes;
    MUST(a == (kn_addr)d->pool_at);
    mem_free(d->pool_at);
    d->pool_at = NULL;
}

static void dev_discard(struct kn_device *d, kn_addr a, size_t bytes) {
    MUST(a >= (kn_addr)d->pool_at);
    memset((char *)d->pool_at + (a - (kn_addr)d->pool_at), 0, bytes);
}

static enum err dev_queue_create(struct kn_device *d, struct kn_queue **out) {
    *out = mem_zalloc(sizeof **out);
    if (!*out)
        return ERR_NOMEM;
    (*out)->d = d;
    return ERR_OK;
}

static void dev_queue_destroy(struct kn_queue *q) {
    mem_free(q);
}

static struct kn_device *dev_queue_device(const struct kn_queue *q) {
    return q->d;
}

static enum err dev_queue_wait(struct kn_queue *q, struct err_info *info) {
    (void)info;
    enum err e = q->sticky;
    q->sticky = ERR_OK;
    return e;
}

static size_t dev_block_bytes(const struct kn_kv_shape *s) {
    (void)s;
    return KN_KV_BLOCK * sizeof(uint64_t);
}

static enum err dev_kv_copy(struct kn_queue *q, const struct kn_kv_copy *p) {
    if (count_down(&q->d->fail_copy))
        q->sticky = ERR_DEVICE;
    if (q->sticky)
        return ERR_OK;
    uint64_t *pool = (uint64_t *)p->pool;
    for (int32_t i = 0; i < p->n; i++) {
        MUST(p->src[i] >= 0 && p->src[i] < q->d->blocks && p->dst[i] >= 0 &&
             p->dst[i] < q->d->blocks && p->src[i] != p->dst[i]);
        memcpy(pool + (size_t)p->dst[i] * KN_KV_BLOCK, pool + (size_t)p->src[i] * KN_KV_BLOCK,
               KN_KV_BLOCK * sizeof *pool);
    }
    return ERR_OK;
}

// Operations that only the real forward uses; the engine only asks whether they are there.
#define UNUSED_OP(op, type)                                                                        \
    static enum err dev_##op(struct kn_queue *q, const struct type *p) {                           \
        (void)q;                                                                                   \
        (void)p;                                                                                   \
        return ERR_UNSUPPORTED;                                                                    \
    }
UNUSED_OP(embed, kn_embed)
UNUSED_OP(rmsnorm, kn_rmsnorm)
UNUSED_OP(quantize, kn_quantize)
UNUSED_OP(gemm, kn_gemm)
UNUSED_OP(swiglu, kn_swiglu)
UNUSED_OP(rope_table, kn_rope_table)
UNUSED_OP(rope_kv, kn_rope_kv)
UNUSED_OP(attn, kn_attn)
UNUSED_OP(gather, kn_gather)
UNUSED_OP(sample, kn_sample)

static enum err dev_open(const struct kn_device_config *c, struct kn_device **o,
                         struct err_info *i) {
    (void)c;
    (void)o;
    return err_set(i, ERR_UNSUPPORTED, NULL, "made by fake_init");
}
static void dev_close(struct kn_device *d) {
    (void)d;
}
static void dev_info(const struct kn_device *d, struct kn_device_info *o) {
    (void)d;
    *o = (struct kn_device_info){.backend = "fake"};
}
static enum err dev_submit(struct kn_queue *q) {
    (void)q;
    return ERR_OK;
}
static enum err dev_upload(struct kn_queue *q, kn_addr a, const void *p, size_t n) {
    (void)q, (void)a, (void)p, (void)n;
    return ERR_OK;
}
static enum err dev_download(struct kn_queue *q, void *p, kn_addr a, size_t n) {
    (void)q, (void)a, (void)p, (void)n;
    return ERR_OK;
}
static enum err dev_weight_create(struct kn_device *d, const struct kn_weight_spec *s,
                                  struct kn_weight **o, struct err_info *i) {
    (void)d, (void)s, (void)o, (void)i;
    return ERR_UNSUPPORTED;
}
static void dev_weight_destroy(struct kn_weight *w) {
    (void)w;
}
static size_t dev_weight_bytes(const struct kn_weight *w) {
    (void)w;
    return 0;
}
static enum kn_form dev_weight_form(const struct kn_weight *w) {
    (void)w;
    return KN_FORM_PLAIN;
}
static enum err dev_weight_read(const struct kn_weight *w, int64_t r, int64_t n, float *o) {
    (void)w, (void)r, (void)n, (void)o;
    return ERR_UNSUPPORTED;
}
static size_t dev_form_row_bytes(enum kn_form f, int64_t k) {
    (void)f;
    return (size_t)k;
}

void fake_init(struct kn_device *d, int32_t blocks) {
    *d = (struct kn_device){.blocks = blocks};
    clock_manual_init(&d->clock, 1000000000, 0);
    d->ops = (struct kn_ops){
        .backend = "fake",
        .open = dev_open,
        .close = dev_close,
        .info = dev_info,
        .alloc = dev_alloc,
        .free = dev_free,
        .discard = dev_discard,
        .queue_create = dev_queue_create,
        .queue_destroy = dev_queue_destroy,
        .queue_device = dev_queue_device,
        .queue_submit = dev_submit,
        .queue_wait = dev_queue_wait,
        .upload = dev_upload,
        .download = dev_download,
        .weight_create = dev_weight_create,
        .weight_destroy = dev_weight_destroy,
        .weight_bytes = dev_weight_bytes,
        .weight_form = dev_weight_form,
        .weight_read = dev_weight_read,
        .form_row_bytes = dev_form_row_bytes,
        .kv_block_bytes = dev_block_bytes,
        .embed = dev_embed,
        .rmsnorm = dev_rmsnorm,
        .quantize = dev_quantize,
        .gemm = dev_gemm,
        .swiglu = dev_swiglu,
        .rope_table = dev_rope_table,
        .rope_kv = dev_rope_kv,
        .attn = dev_attn,
        .gather = dev_gather,
        .kv_copy = dev_kv_copy,
        .sample = dev_sample,
    };
    d->weights = (struct mdl_weights){
        .config = {.n_layers = 1,
                   .n_heads = 1,
                   .n_kv_heads = 1,
                   .head_dim = 2,
                   .hidden = 2,
                   .vocab = FAKE_VOCAB,
                   .context = 4096,
                   .eos = {FAKE_EOS},
                   .n_eos = 1},
        .ops = &d->ops,
        .device = d,
        .world = 1,
    };
}

size_t fake_kv_bytes(const struct kn_device *d) {
    return (size_t)d->blocks * KN_KV_BLOCK * sizeof(uint64_t);
}
