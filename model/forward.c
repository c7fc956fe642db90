// SPDX-License-Identifier: Apache-2.0
// The cursor's life: mdl_forward_create lays out the workspace, mdl_forward_begin takes a batch,
// mdl_forward_run records stages and waits for them, all at once or in slices.
//
//   NONE --begin--> EMBED --run--> ... --run--> DONE --begin--> EMBED
//     ^                             |
//     +----------- error -----------+
#include "base/mem.h"
#include "model/forward_internal.h"
#include <math.h>
#include <string.h>

enum {
    SLICE_NS = 250000,
    CUT_ROWS = 256,      // stay in the nearest caches
    SLICE_WANTS = 32,    // rows of logits in memory
    EXTRA_BYTES = 65536, // to start with
    ROW_ALIGN = 16,      // elements
    BUFFER_ALIGN = 4096, // bytes
};

// Rows that lie a multiple of 1 KiB apart would share few sets of the caches.
static int64_t padded_row(int64_t n) {
    n = (n + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    return n % 256 ? n : n + ROW_ALIGN;
}

// Hands out rows * row_bytes at *used, which sticks at SIZE_MAX when the sum overflows.
static size_t take(size_t *used, size_t rows, size_t row_bytes) {
    size_t at = *used, bytes, end;
    if (!mem_mul(rows, row_bytes, &bytes) || !mem_add(at, bytes, &end) ||
        !mem_add(end, BUFFER_ALIGN - 1, &end))
        *used = SIZE_MAX;
    else
        *used = end & ~(size_t)(BUFFER_ALIGN - 1);
    return at;
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

// Sets every buffer to its offset and returns the size of the whole.
static size_t lay_out(struct mdl_forward *f) {
    const struct mdl_weights *w = f->w;
    const struct mdl_config *c = &w->config;
    const struct mdl_forward_limits *l = &f->limits;
    struct mdl__buffers *b = &f->buf;
    int64_t attn = (int64_t)w->n_heads * c->head_dim;
    int64_t qkv = attn + 2 * (int64_t)w->n_kv_heads * c->head_dim;
    b->ld_hidden = padded_row(c->hidden);
    b->ld_qkv = padded_row(qkv);
    b->ld_attn = padded_row(attn);
    b->ld_inter = padded_row(w->intermediate);
    b->ld_gate_up = padded_row(2 * (int64_t)w->intermediate);
    b->ld_vocab = padded_row(c->vocab);
    size_t plain = f->plain_bytes;
    size_t hidden = (size_t)b->ld_hidden * plain;
    size_t hiddenq = f->ops->form_row_bytes(KN_FORM_Q8, c->hidden);
    size_t tokens = (size_t)l->max_tokens, wants = (size_t)l->max_want, s = (size_t)f->slice_rows;

    size_t used = 0;
    b->x = take(&used, tokens, hidden);
    b->xn = take(&used, tokens, hidden);
    b->xnq = take(&used, tokens, hiddenq);
    b->h = take(&used, s, hidden);
    b->hn = take(&used, s, hidden);
    b->hnq = take(&used, s, hiddenq);
    b->rope = take(&used, tokens, (size_t)c->head_dim * sizeof(float));
    b->identity = take(&used, tokens, sizeof(int32_t));
    b->meta = take(&used, 1, f->meta.bytes);
    b->block_table = take(&used, (size_t)l->max_seqs, (size_t)l->max_blocks * sizeof(int32_t));
    b->sample_rows = take(&used, wants, sizeof(struct kn_sample_row));
    b->sample_outs = take(&used, wants, sizeof(struct kn_sample_out));
    b->tokens = take(&used, wants, sizeof(int32_t));

    size_t attn_end = used, mlp_end = used, head_end = used;
    b->qkv = take(&attn_end, tokens, (size_t)b->ld_qkv * plain);
    b->attn = take(&attn_end, tokens, (size_t)b->ld_attn * plain);
    b->attnq = take(&attn_end, tokens, f->ops->form_row_bytes(KN_FORM_Q8, attn));
    b->gate_up = take(&mlp_end, tokens, (size_t)b->ld_gate_up * plain);
    b->actq = take(&mlp_end, tokens, f->ops->form_row_bytes(KN_FORM_Q8, w->intermediate));
    b->logits = take(&head_end, s, (size_t)b->ld_vocab * plain);
    return max_size(max_size(attn_end, mlp_end), head_end);
}

static void add_base(struct mdl__buffers *b, kn_addr base) {
    kn_addr *const all[] = {&b->x,     &b->xn,       &b->xnq,  &b->qkv,  &b->attn,
                            &b->attnq, &b->h,        &b->hn,   &b->hnq,  &b->logits,
                            &b->rope,  &b->identity, &b->meta, &b->actq, &b->tokens};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] += base;
    b->gate_up += base;
    b->block_table += base;
    b->sample_rows += base;
    b->sample_outs += base;
}

static enum err alloc_host(struct mdl_forward *f) {
    size_t wants = f->limits.max_want ? (size_t)f->limits.max_want : 1;
    f->stage = mem_zalloc(f->meta.bytes);
    f->rows = mem_calloc(wants, sizeof *f->rows);
    f->samples = mem_calloc(wants, sizeof *f->samples);
    f->extra_stage = mem_alloc(EXTRA_BYTES);
    return f->stage && f->rows && f->samples && f->extra_stage ? ERR_OK : ERR_NOMEM;
}

static enum err alloc_device(struct mdl_forward *f) {
    f->workspace_bytes = lay_out(f);
    if (f->workspace_bytes == SIZE_MAX)
        return ERR_NOMEM;
    enum err e = f->ops->alloc(f->device, f->workspace_bytes, &f->workspace);
    if (e)
        return e;
    if (f->ops->touch) // else the first steps would wait for it
        f->ops->touch(f->device, f->workspace, f->workspace_bytes);
    add_base(&f->buf, f->workspace);
    e = f->ops->alloc(f->device, EXTRA_BYTES, &f->extra);
    if (!e)
        f->extra_bytes = EXTRA_BYTES;
    return e;
}

static enum err upload_identity(struct mdl_forward *f, struct err_info *info) {
    int32_t *rows = mem_calloc((size_t)f->limits.max_tokens, sizeof *rows);
    if (!rows)
        return ERR_NOMEM;
    for (int32_t i = 0; i < f->limits.max_tokens; i++)
        rows[i] = i;
    enum err e =
        f->ops->upload(f->q, f->buf.identity, rows, (size_t)f->limits.max_tokens * sizeof *rows);
    enum err waited = f->ops->queue_wait(f->q, info);
    mem_free(rows);
    return e ? e : waited;
}

enum err mdl_forward_create(const struct mdl_weights *w, struct kn_queue *q,
                            const struct mdl_forward_limits *limits, const struct clock *clock,
                            struct mdl_forward **out, struct err_info *info) {
    enum err e = kn_require(w->ops, KN_NEED_SERVE, info);
    if (e)
        return e;
    if (w->world != 1)
        return err_set(info, ERR_UNSUPPORTED, NULL, "the layer walk runs unsharded weights only");
    if (limits->max_tokens < 1 || limits->max_seqs < 1 || limits->max_want < 0 ||
        limits->max_blocks < 1)
        return err_set(info, ERR_INVALID, NULL, "the layer walk needs room for a token");
    struct mdl_forward *f = mem_zalloc(sizeof *f);
    if (!f)
        return err_set(info, ERR_NOMEM, NULL, "no memory for the layer walk");
    f->w = w;
    f->ops = w->ops;
    f->q = q;
    f->device = w->ops->queue_device(q);
    f->clock = clock;
    f->limits = *limits;
    f->slice_ns = SLICE_NS;
    f->cut_rows = CUT_ROWS;
    f->scale = 1.0;
    f->plain_bytes = w->ops->form_row_bytes(KN_FORM_PLAIN, 32) / 32;
    f->slice_rows = limits->max_want < SLICE_WANTS ? limits->max_want : SLICE_WANTS;
    mdl__forward_meta_layout(limits, &f->meta);
    e = alloc_host(f);
    if (!e)
        e = alloc_device(f);
    if (!e)
        e = upload_identity(f, info);
    if (e) {
        mdl_forward_destroy(f);
        return err_set(info, e, NULL, "no memory for the layer walk's workspace");
    }
    *out = f;
    return ERR_OK;
}

void mdl_forward_destroy(struct mdl_forward *f) {
    if (!f)
        return;
    if (f->workspace)
        f->ops->free(f->device, f->workspace, f->workspace_bytes);
    if (f->extra)
        f->ops->free(f->device, f->extra, f->extra_bytes);
    mem_free(f->stage);
    mem_free(f->rows);
    mem_free(f->samples);
    mem_free(f->extra_stage);
    mem_free(f);
}

size_t mdl_forward_bytes(const struct mdl_forward *f) {
    return f->workspace_bytes + f->extra_bytes;
}

// Lets the queue run dry, so that nothing of a lost batch is left on it.
static enum err lose(struct mdl_forward *f, enum err e, struct err_info *info) {
    struct err_info first = {.code = ERR_OK};
    enum err waited = f->ops->queue_wait(f->q, &first);
    f->at.stage = STAGE_NONE;
    f->previous = 0;
    if (e)
        return err_set(info, e, NULL, "recording layer %d failed: %s", f->at.layer, err_text(e));
    if (info)
        *info = first;
    return waited;
}

enum err mdl_forward_begin(struct mdl_forward *f, const struct mdl_batch *b,
                           const struct mdl_kv *kv, const struct mdl_hooks *hooks,
                           const struct mdl_tape *tape, struct err_info *info) {
    enum err e = mdl__forward_check(f, b, kv, info);
    if (e)
        return e;
    f->kv = *kv;
    f->hooks = hooks && hooks->linear ? hooks : NULL;
    f->tape = tape && tape->place ? tape : NULL;
    f->residual = f->buf.x;
    f->spare = f->buf.xn;
    memset(f->taped, 0, sizeof f->taped);
    f->at = (struct mdl__cursor){.stage = STAGE_EMBED, .rows = b->n_tokens};
    e = mdl__forward_upload(f, b);
    return e ? lose(f, e, info) : ERR_OK;
}

enum err mdl_forward_again(struct mdl_forward *f, int32_t layer, kn_addr residual,
                           struct err_info *info) {
    if (f->at.stage != STAGE_DONE || !f->tape || layer < 0 || layer >= f->w->config.n_layers)
        return err_set(info, ERR_INVALID, NULL, "the layer walk has no taped batch to repeat");
    f->at = (struct mdl__cursor){
        .stage = STAGE_ATTN_NORM, .layer = layer, .rows = f->batch.n_tokens, .again = true};
    f->again_from = residual;
    return ERR_OK;
}

static bool ended(const struct mdl_forward *f) {
    return f->at.stage == STAGE_DONE;
}

// Draws the estimates towards what the slice took. Outliers (a lost core, a clock that a test
// moves) count for little.
static void correct_scale(struct mdl_forward *f, double estimate, int64_t ns) {
    if (estimate <= 0)
        return;
    double ratio = fmin(fmax((double)ns / estimate, 0.25), 4.0);
    f->scale = fmin(fmax(f->scale * (0.9 + 0.1 * ratio), 0.05), 20.0);
}

enum err mdl_forward_run(struct mdl_forward *f, int64_t deadline_ns, bool *done,
                         struct err_info *info) {
    bool sliced = deadline_ns != INT64_MAX;
    *done = ended(f);
    if (f->at.stage == STAGE_NONE)
        return err_set(info, ERR_INVALID, NULL, "the layer walk has no batch");
    int64_t now = sliced ? clock_mono_ns(f->clock) : 0;
    while (!ended(f)) {
        struct mdl__account a = {0, sliced ? f->slice_ns : MDL__UNLIMITED};
        enum err e = ERR_OK;
        while (!e && !ended(f) && a.spent < a.budget)
            e = mdl__forward_stage(f, &a);
        if (e)
            return lose(f, e, info);
        e = f->ops->queue_wait(f->q, info);
        if (e) {
            f->at.stage = STAGE_NONE;
            f->previous = 0;
            return e;
        }
        if (!sliced)
            continue;
        int64_t start = now;
        now = clock_mono_ns(f->clock);
        correct_scale(f, a.spent, now - start);
        if (now >= deadline_ns)
            break;
    }
    *done = ended(f);
    if (ended(f))
        f->previous = f->batch.n_out;
    return ERR_OK;
}

void mdl_forward_view(const struct mdl_forward *f, struct mdl_forward_view *out) {
    *out = (struct mdl_forward_view){f->batch, f->buf.rope};
}

const struct kn_sample_out *mdl_forward_samples(const struct mdl_forward *f) {
    return f->samples;
}

void mdl_forward_capture_logits(struct mdl_forward *f, float *to) {
    f->capture = to;
}
