// SPDX-License-Identifier: Apache-2.0
// A unit's life: lora_unit_begin copies a row and starts the layer walk on it, lora_unit_run goes
// through the stages, lora_unit_drop leaves no trace.
#include "base/mem.h"
#include "finetune/lora/unit_internal.h"
#include <math.h>
#include <string.h>

enum {
    SLICE_NS = 250000,       // work recorded between two looks at the clock
    LONG_SLICE_NS = 4000000, // where the deadline is far
    SLICES = 8,              // of the time to the deadline
};

// What a two-core server does; `scale` corrects it as slices are measured.
static const double NS_PER_BYTE = 0.05, NS_PER_FLOP = 0.008;

static double cost(const struct lora_unit *u, double bytes, double flops) {
    return (bytes * NS_PER_BYTE + flops * NS_PER_FLOP) * u->scale;
}

void lora__spend(const struct lora_unit *u, struct lora__account *a, double bytes, double flops) {
    a->spent += cost(u, bytes, flops);
}

int32_t lora__cut(const struct lora_unit *u, const struct lora__account *a, int32_t n, double bytes,
                  double flops, int32_t unit) {
    double ns = cost(u, bytes, flops), left = a->budget - a->spent;
    // A short rest goes along; a slice that is nearly spent still does a decent piece.
    if (ns <= 1.25 * left)
        return n;
    double share = fmax(left, a->budget / 2) / ns * n;
    if (share >= n)
        return n;
    int32_t units = (int32_t)share / unit;
    int32_t count = (units > 0 ? units : 1) * unit;
    return count < n ? count : n;
}

struct kn_dropout lora__dropout(const struct lora_unit *u, int32_t layer, enum mdl_target t) {
    return (struct kn_dropout){.p = u->row.keys ? lora_params_dropout(u->params) : 0,
                               .module = (uint32_t)(layer * MDL_TARGETS) + (uint32_t)t,
                               .keys = u->buf.keys};
}

// ---- create

static enum lora__group group_of(enum mdl_target t) {
    return t == MDL_TARGET_DOWN                         ? GROUP_DOWN
           : t == MDL_TARGET_GATE || t == MDL_TARGET_UP ? GROUP_GATE_UP
           : t == MDL_TARGET_O                          ? GROUP_O
                                                        : GROUP_QKV;
}

static enum err check_model(const struct mdl_weights *w, const struct lora_unit_limits *l,
                            struct err_info *info) {
    enum err e = kn_require(w->ops, KN_NEED_SERVE | KN_NEED_TRAIN, info);
    if (e)
        return e;
    if (w->world != 1)
        return err_set(info, ERR_UNSUPPORTED, NULL, "training does not support sharded weights");
    if (l->max_tokens < 1 || l->max_seqs < 1)
        return err_set(info, ERR_INVALID, NULL, "a training row needs room for a token");
    return ERR_OK;
}

static enum err alloc_host(struct lora_unit *u) {
    size_t n = (size_t)u->limits.max_tokens, s = (size_t)u->limits.max_seqs;
    size_t blocks = (n + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
    int32_t **const per_token[] = {&u->ids, &u->pos, &u->wants, &u->targets, &u->hits};
    int32_t **const per_seq[] = {&u->seq_start, &u->kv_len, &u->slot};
    bool ok = true;
    for (size_t i = 0; i < sizeof per_token / sizeof *per_token; i++)
        ok = (*per_token[i] = mem_calloc(n, sizeof(int32_t))) && ok;
    for (size_t i = 0; i < sizeof per_seq / sizeof *per_seq; i++)
        ok = (*per_seq[i] = mem_calloc(s + 1, sizeof(int32_t))) && ok;
    size_t table;
    ok = ok && mem_mul(s, blocks, &table) && (u->blocks = mem_calloc(table, sizeof(int32_t)));
    ok = ok && (u->keys = mem_calloc(n, sizeof *u->keys));
    ok = ok && (u->weights = mem_calloc(n, sizeof *u->weights));
    ok = ok && (u->losses = mem_calloc(n, sizeof *u->losses));
    return ok ? ERR_OK : ERR_NOMEM;
}

static enum err create_walk(struct lora_unit *u, struct err_info *info) {
    int32_t n = u->limits.max_tokens;
    struct mdl_forward_limits limits = {.max_tokens = n,
                                        .max_seqs = u->limits.max_seqs,
                                        .max_blocks = (n + KN_KV_BLOCK - 1) / KN_KV_BLOCK};
    enum err e = mdl_lora_slots_create(u->w, u->q, 1, &u->slots, info);
    if (!e)
        e = mdl_lora_set(u->slots, 0, lora_params_resident(u->params));
    if (e)
        return err_set(info, e, NULL, "the adapter's slot: %s", err_text(e));
    return mdl_forward_create(u->w, u->q, &limits, u->clock, &u->forward, info);
}

enum err lora_unit_create(const struct mdl_weights *w, struct kn_queue *q, struct lora_params *p,
                          const struct lora_unit_limits *limits, const struct clock *clock,
                          struct lora_unit **out, struct err_info *info) {
    enum err e = check_model(w, limits, info);
    if (e)
        return e;
    struct lora_unit *u = mem_zalloc(sizeof *u);
    if (!u)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    *u = (struct lora_unit){.w = w,
                            .ops = w->ops,
                            .q = q,
                            .clock = clock,
                            .params = p,
                            .limits = *limits,
                            .tape = {lora__tape_place, u},
                            .slice_rows = lora__slice_rows(w, limits->max_tokens),
                            .scale = 1.0};
    for (int t = 0; t < MDL_TARGETS; t++) {
        struct lora_module m;
        lora_params_module(p, 0, (enum mdl_target)t, &m);
        enum lora__group g = group_of((enum mdl_target)t);
        if (m.r && g > u->last_group)
            u->last_group = g;
    }
    e = alloc_host(u) ? err_set(info, ERR_NOMEM, NULL, "out of memory") : create_walk(u, info);
    if (e) {
        lora_unit_destroy(u);
        return e;
    }
    *out = u;
    return ERR_OK;
}

void lora_unit_destroy(struct lora_unit *u) {
    if (!u)
        return;
    mdl_forward_destroy(u->forward);
    mdl_lora_slots_destroy(u->slots);
    void *const all[] = {u->ids,    u->pos,  u->wants,  u->targets, u->hits,    u->seq_start,
                         u->kv_len, u->slot, u->blocks, u->keys,    u->weights, u->losses};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    mem_free(u);
}

// ---- begin

static enum err check_row(const struct lora_unit *u, const struct lora_row *r,
                          struct err_info *info) {
    if (r->n_tokens < 1 || r->n_tokens > u->limits.max_tokens || r->n_seqs < 1 ||
        r->n_seqs > u->limits.max_seqs)
        return err_set(info, ERR_LIMIT, NULL,
                       "a row of %d tokens in %d sequences, where %d in %d are the most",
                       r->n_tokens, r->n_seqs, u->limits.max_tokens, u->limits.max_seqs);
    if (r->backward && r->base)
        return err_set(info, ERR_INVALID, NULL, "backward needs the adapter");
    if (r->seq_start[0] != 0 || r->seq_start[r->n_seqs] != r->n_tokens)
        return err_set(info, ERR_INVALID, NULL, "the sequences do not cover the row");
    for (int32_t s = 0; s < r->n_seqs; s++)
        if (r->seq_start[s + 1] <= r->seq_start[s] || r->seq_start[s + 1] > r->n_tokens ||
            r->mask[r->seq_start[s]])
            return err_set(info, ERR_INVALID, NULL,
                           "sequence %d is empty, or its first token is a target", s);
    return ERR_OK;
}

// Sequences become a batch of prefills from position 0, each in blocks of its own.
static void copy_row(struct lora_unit *u, const struct lora_row *r) {
    u->row = *r;
    memcpy(u->ids, r->ids, (size_t)r->n_tokens * sizeof *u->ids);
    memcpy(u->seq_start, r->seq_start, ((size_t)r->n_seqs + 1) * sizeof *u->seq_start);
    if (r->keys)
        memcpy(u->keys, r->keys, (size_t)r->n_tokens * sizeof *u->keys);
    int32_t next = 0, longest = 1;
    for (int32_t s = 0; s < r->n_seqs; s++) {
        int32_t n = r->seq_start[s + 1] - r->seq_start[s];
        longest = n > longest ? n : longest;
    }
    u->max_blocks = (longest + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
    memset(u->blocks, 0, (size_t)r->n_seqs * (size_t)u->max_blocks * sizeof *u->blocks);
    for (int32_t s = 0; s < r->n_seqs; s++) {
        int32_t begin = r->seq_start[s], n = r->seq_start[s + 1] - begin;
        u->kv_len[s] = n;
        u->slot[s] = r->base ? -1 : 0;
        for (int32_t i = 0; i < n; i++)
            u->pos[begin + i] = i;
        for (int32_t i = 0; i < (n + KN_KV_BLOCK - 1) / KN_KV_BLOCK; i++)
            u->blocks[s * u->max_blocks + i] = next++;
    }
    u->n_targets = 0;
    for (int32_t t = 1; t < r->n_tokens; t++)
        if (r->mask[t]) { // what row t - 1 predicts
            u->wants[u->n_targets] = t - 1;
            u->targets[u->n_targets] = r->ids[t];
            u->weights[u->n_targets++] = r->weights ? r->weights[t] : r->weight;
        }
}

static enum err upload_row(struct lora_unit *u) {
    size_t n = (size_t)u->n_targets;
    const int32_t clear = 0;
    struct lora_ranges r;
    lora_params_ranges(u->params, &r);
    enum err e = ERR_OK;
    if (u->row.keys)
        e = u->ops->upload(u->q, u->buf.keys, u->keys, (size_t)u->row.n_tokens * sizeof *u->keys);
    if (!e)
        e = u->ops->upload(u->q, u->buf.targets, u->targets, n * sizeof *u->targets);
    if (!e)
        e = u->ops->upload(u->q, u->buf.weights, u->weights, n * sizeof *u->weights);
    if (!e)
        e = u->ops->upload(u->q, u->buf.rows, u->wants, n * sizeof *u->wants);
    if (!e)
        e = u->ops->upload(u->q, lora_params_flag(u->params), &clear, sizeof clear);
    return e;
}

struct fit {
    kn_addr first;
    size_t used;
    int32_t n_kept; // -1: there is not room enough
};

// As many layers as the range has room for.
static struct fit fit_range(const struct lora_unit *u, const struct lora_row *r, kn_addr range,
                            size_t bytes, struct lora__buffers *buf) {
    struct fit f = {.first = (range + 63) & ~(kn_addr)63};
    size_t room = bytes > f.first - range ? bytes - (f.first - range) : 0;
    f.n_kept = u->limits.keep && r->backward ? u->w->config.n_layers : 0;
    while (f.n_kept >= 0 && (f.used = lora__layout(u->w, u->params, &u->limits, r->n_tokens,
                                                   f.n_kept, u->slice_rows, buf)) > room)
        f.n_kept--;
    return f;
}

static enum err use_range(struct lora_unit *u, kn_addr range, size_t bytes, struct err_info *info) {
    struct fit f = fit_range(u, &u->row, range, bytes, &u->buf);
    if (f.n_kept < 0)
        return err_set(info, ERR_LIMIT, NULL, "a training row of %d tokens does not fit %zu MiB",
                       u->row.n_tokens, bytes >> 20);
    u->n_kept = f.n_kept;
    lora__place(u, f.first);
    return ERR_OK;
}

size_t lora_unit_uses(const struct lora_unit *u, const struct lora_row *row, kn_addr range,
                      size_t range_bytes) {
    struct lora__buffers buf;
    if (check_row(u, row, NULL))
        return 0;
    struct fit f = fit_range(u, row, range, range_bytes, &buf);
    return f.n_kept < 0 ? 0 : f.first - range + f.used;
}

enum err lora_unit_begin(struct lora_unit *u, const struct lora_row *row, kn_addr range,
                         size_t range_bytes, struct err_info *info) {
    lora_unit_drop(u);
    enum err e = check_row(u, row, info);
    if (e)
        return e;
    copy_row(u, row);
    e = use_range(u, range, range_bytes, info);
    if (e)
        return e;
    u->at = (struct lora__cursor){.stage = UNIT_FORWARD};
    u->holds = true;
    u->bad = 0;
    u->flag = 0;
    const struct mdl_config *c = &u->w->config;
    struct mdl_kv kv = {u->buf.kv, {c->n_layers, u->w->n_kv_heads, c->head_dim}};
    struct mdl_batch b = {.n_tokens = row->n_tokens,
                          .n_seqs = row->n_seqs,
                          .ids = u->ids,
                          .pos = u->pos,
                          .seq_start = u->seq_start,
                          .kv_len = u->kv_len,
                          .block_table = u->blocks,
                          .max_blocks = u->max_blocks,
                          .slot = u->slot};
    const struct mdl_hooks *hooks = row->base ? NULL : mdl_lora_hooks(u->slots);
    mdl_lora_dropout(u->slots, row->keys ? lora_params_dropout(u->params) : 0, u->buf.keys);
    e = upload_row(u);
    if (!e)
        e = mdl_forward_begin(u->forward, &b, &kv, hooks, &u->tape, info);
    if (e)
        lora_unit_drop(u);
    return e;
}

void lora_unit_drop(struct lora_unit *u) {
    if (u->at.stage == UNIT_ADD)
        lora__undo_sums(u);
    lora_unit_abandon(u);
}

void lora_unit_abandon(struct lora_unit *u) {
    u->ops->queue_wait(u->q, NULL); // what begin has recorded may still want its arrays
    u->at.stage = UNIT_NONE;
    u->holds = false;
}

bool lora_unit_holds(const struct lora_unit *u) {
    return u->holds;
}

// ---- run

static bool ended(const struct lora_unit *u) {
    return u->at.stage == UNIT_DONE;
}

static bool walks(const struct lora_unit *u) {
    return u->at.stage == UNIT_FORWARD || (u->at.stage == UNIT_AGAIN && u->at.done);
}

static enum err record_stage(struct lora_unit *u, struct lora__account *a) {
    if (u->at.stage <= UNIT_SCATTER)
        return lora__stage_head(u, a);
    if (u->at.stage < UNIT_RESULTS)
        return lora__stage_layer(u, a);
    return lora__stage_sums(u, a);
}

// The layer walk's part of the unit.
static enum err run_walk(struct lora_unit *u, int64_t deadline_ns, struct err_info *info) {
    bool done;
    enum err e = mdl_forward_run(u->forward, deadline_ns, &done, info);
    if (e || !done)
        return e;
    if (u->at.stage == UNIT_AGAIN)
        lora__next(u);
    else
        lora__goto(u, u->n_targets ? UNIT_HEAD_NORM : UNIT_RESULTS);
    return ERR_OK;
}

static void correct_scale(struct lora_unit *u, double estimate, int64_t ns) {
    if (estimate <= 0)
        return;
    double ratio = fmin(fmax((double)ns / estimate, 0.25), 4.0);
    u->scale = fmin(fmax(u->scale * (0.9 + 0.1 * ratio), 0.02), 50.0);
}

static double slice_ns(int64_t now, int64_t deadline_ns) {
    double share = (double)(deadline_ns - now) / SLICES;
    return fmin(fmax(share, SLICE_NS), LONG_SLICE_NS);
}

static enum err run_slice(struct lora_unit *u, int64_t deadline_ns, int64_t now,
                          struct err_info *info) {
    if (walks(u))
        return run_walk(u, deadline_ns, info);
    bool sliced = deadline_ns != INT64_MAX;
    struct lora__account a = {.budget = sliced ? slice_ns(now, deadline_ns) : LORA__UNLIMITED};
    enum err e = ERR_OK;
    while (!e && !ended(u) && !walks(u) && a.spent < a.budget)
        e = record_stage(u, &a);
    enum err waited = u->ops->queue_wait(u->q, info);
    if (e)
        return err_set(info, e, NULL, "recording backward of layer %d failed: %s", u->at.layer,
                       err_text(e));
    if (!waited && sliced && !a.synced)
        correct_scale(u, a.spent, clock_mono_ns(u->clock) - now);
    return waited;
}

enum err lora_unit_run(struct lora_unit *u, int64_t deadline_ns, bool *done,
                       struct err_info *info) {
    *done = ended(u);
    if (u->at.stage == UNIT_NONE)
        return err_set(info, ERR_INVALID, NULL, "no training row is in hand");
    int64_t now = deadline_ns == INT64_MAX ? 0 : clock_mono_ns(u->clock);
    if (deadline_ns != INT64_MAX) // the last piece ends as often before as after the deadline
        deadline_ns -= SLICE_NS / 2;
    while (!ended(u)) {
        enum err e = run_slice(u, deadline_ns, now, info);
        if (e) {
            lora_unit_drop(u);
            return e;
        }
        if (deadline_ns == INT64_MAX)
            continue;
        now = clock_mono_ns(u->clock);
        if (now >= deadline_ns)
            break;
    }
    *done = ended(u);
    return ERR_OK;
}

void lora_unit_result(const struct lora_unit *u, struct lora_row_result *out) {
    *out = (struct lora_row_result){.targets = u->n_targets, .losses = u->losses};
    for (int32_t i = 0; i < u->n_targets; i++) {
        out->loss += (double)u->losses[i];
        out->hits += u->hits[i];
    }
    out->overflow = u->flag != 0;
    out->finite = isfinite(out->loss) && !u->bad;
}
