// SPDX-License-Identifier: Apache-2.0
// The engine's life: creation, its thread, messages, drain and stop.
#include "serving/engine.h"
#include "base/mem.h"
#include "serving/engine_internal.h"

enum { POLL_NS = 5000000 }; // while memory that background work holds is waited for

static enum err check_config(const struct eng_config *c, struct err_info *info) {
    static const char text[] = "%s must be at least %d";
    if (c->max_num_seqs < 1)
        return err_set(info, ERR_INVALID, "max_num_seqs", text, "max_num_seqs", 1);
    if (c->max_num_batched_tokens < 1)
        return err_set(info, ERR_INVALID, "max_num_batched_tokens", text, "max_num_batched_tokens",
                       1);
    if (c->max_model_len < 2)
        return err_set(info, ERR_INVALID, "max_model_len", text, "max_model_len", 2);
    if (c->max_queue < 1 || c->max_queue > 1 << 20)
        return err_set(info, ERR_INVALID, "max_queue", "max_queue must be from 1 to %d", 1 << 20);
    if (c->prefill_stretch != 0 && !(c->prefill_stretch > 1))
        return err_set(info, ERR_INVALID, "prefill_stretch", "prefill_stretch must be above 1");
    return kn_require(c->ops, KN_NEED_SERVE, info);
}

static enum err make_pool(struct eng *e, struct err_info *info) {
    const struct mdl_config *m = &e->cfg.weights->config;
    e->kv.shape = (struct kn_kv_shape){
        .layers = m->n_layers,
        .kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
    };
    e->block_bytes = e->cfg.ops->kv_block_bytes(&e->kv.shape);
    size_t blocks = e->cfg.kv_bytes / e->block_bytes;
    if (blocks < 1)
        return err_set(info, ERR_INVALID, "kv_cache_memory_bytes",
                       "the KV cache needs at least %zu bytes, one block of %d tokens",
                       e->block_bytes, (int)KN_KV_BLOCK);
    if (blocks > INT32_MAX / KN_KV_BLOCK)
        blocks = INT32_MAX / KN_KV_BLOCK;
    e->blocks = (int32_t)blocks;
    struct kv_config cfg = {
        .blocks = e->blocks,
        .block_size = KN_KV_BLOCK,
        .prefix_cache = e->cfg.prefix_cache,
    };
    enum err err = kv_pool_create(&cfg, &e->pool);
    if (!err)
        err = e->cfg.ops->alloc(e->cfg.device, blocks * e->block_bytes, &e->kv.pool);
    return err ? err_set(info, err, NULL, "no memory for a KV cache of %zu blocks of %zu bytes",
                         blocks, e->block_bytes)
               : ERR_OK;
}

static enum err make_forward(struct eng *e, struct err_info *info) {
    int32_t seqs = e->cfg.max_num_seqs, tokens = e->cfg.max_num_batched_tokens;
    if (tokens < seqs + ENG__MIN_CHUNK) // a step of decodes alone must not keep prompts out
        tokens = seqs + ENG__MIN_CHUNK;
    struct mdl_forward_limits limits = {
        .max_tokens = tokens,
        .max_seqs = seqs,
        .max_want = seqs + ENG__SCORE_ROWS,
        .max_blocks = (e->cfg.max_model_len + KN_KV_BLOCK - 1) / KN_KV_BLOCK,
    };
    enum err err = e->cfg.ops->queue_create(e->cfg.device, &e->queue);
    if (!err)
        err = eng__batch_init(&e->batch, &limits);
    if (err)
        return err_set(info, err, NULL, "no memory for the engine's batch");
    return mdl_forward_create(e->cfg.weights, e->queue, &limits, e->clock, &e->forward, info);
}

static enum err make_lists(struct eng *e, struct err_info *info) {
    size_t seqs = (size_t)e->cfg.max_num_seqs;
    e->max_in_flight = 2 * (e->cfg.max_queue + e->cfg.max_num_seqs);
    e->order = mem_calloc(seqs, sizeof(struct eng__seq *));
    e->tables = mem_calloc(seqs, sizeof(struct kv_seq *));
    enum err err = e->order && e->tables ? ERR_OK : ERR_NOMEM;
    if (!err)
        err = eng__sched_init(&e->sched, e->cfg.max_num_seqs, e->max_in_flight);
    if (!err) // a request and an urgent message of each request in flight
        err = mailbox_create((size_t)e->max_in_flight, (size_t)e->max_in_flight, &e->mailbox);
    return err ? err_set(info, err, NULL, "no memory for the engine's queues") : ERR_OK;
}

enum err eng_create(const struct eng_config *cfg, struct eng **out, struct err_info *info) {
    *out = NULL;
    enum err err = check_config(cfg, info);
    if (err)
        return err;
    struct eng *e = mem_zalloc(sizeof *e);
    if (!e)
        return err_set(info, ERR_NOMEM, NULL, "no memory for the engine");
    e->cfg = *cfg;
    e->clock = cfg->clock ? cfg->clock : &clock_system;
    if (e->cfg.prefill_stretch == 0)
        e->cfg.prefill_stretch = 1.8;
    e->next_deadline = INT64_MAX;
    lock_init(&e->submit_lock);
    eng__usage_init(&e->usage, eng__now(e));
    gov_init(&e->gov, &(struct gov_config){cfg->slo_itl_ns, cfg->slo_ttft_ns});
    eng__usage_governor(&e->usage, e->gov.margin_ns, e->gov.slice_ns);
    if ((err = make_lists(e, info)) || (err = make_pool(e, info)) ||
        (err = make_forward(e, info)) || (err = eng__adapters_init(e, info))) {
        eng_destroy(e);
        return err;
    }
    eng__metrics_init(&e->metrics, cfg->metrics, cfg->model_label, cfg->replica, cfg->vllm_metrics);
    atomic_store(&e->last_turn_ns, eng__now(e));
    *out = e;
    return ERR_OK;
}

void eng_destroy(struct eng *e) {
    if (!e)
        return;
    if (e->mailbox)
        eng_stop(e);
    eng__adapters_fini(e);
    if (e->forward)
        mdl_forward_destroy(e->forward);
    if (e->queue)
        e->cfg.ops->queue_destroy(e->queue);
    if (e->kv.pool)
        e->cfg.ops->free(e->cfg.device, e->kv.pool, (size_t)e->blocks * e->block_bytes);
    kv_pool_destroy(e->pool);
    eng__batch_fini(&e->batch);
    eng__sched_fini(&e->sched);
    mailbox_destroy(e->mailbox);
    eng__usage_fini(&e->usage);
    lock_fini(&e->submit_lock);
    mem_free(e->order);
    mem_free(e->tables);
    mem_free(e);
}

// A finished request whose last message has come.
static void let_go(struct eng *e, struct eng__req *q) {
    atomic_fetch_sub(&e->in_flight, 1);
    eng__stream_unref(&q->stream);
}

bool eng__take_messages(struct eng *e) {
    bool any = false;
    for (struct eng__msg *m; (m = mailbox_take(e->mailbox)); any = true) {
        struct eng__req *q = eng__req_of(m->stream);
        if (m->kind == ENG__MSG_SUBMIT)
            eng__req_arrive(e, q);
        else if (q->finished && !q->dirty)
            let_go(e, q);
        else
            eng__req_attend(e, q);
    }
    return any;
}

// Ends everything; afterwards no consumer touches the engine any more (README.md, rule 22).
static void shut_down(struct eng *e) {
    eng__take_messages(e);
    while (e->all)
        eng__req_fail(e, e->all, ERR_DRAINING);
    eng__flush(e);
    while (atomic_load(&e->in_flight) > 0 || e->adapters.filling) {
        mailbox_wait(e->mailbox, POLL_NS);
        eng__adapters_turn(e);
        eng__take_messages(e);
        eng__flush(e);
    }
}

// How long an idle loop may sleep without looking.
static int64_t idle_ns(const struct eng *e) {
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    int64_t most = e->sched.n_waiting && st.lent ? POLL_NS : INT64_MAX;
    if (e->next_deadline != INT64_MAX) {
        int64_t left = e->next_deadline - eng__now(e);
        most = left < most ? left : most;
    }
    return most == INT64_MAX ? -1 : most > 0 ? most : 0;
}

static void *run(void *arg) {
    struct eng *e = arg;
    while (!atomic_load(&e->stop))
        if (!eng__turn(e))
            mailbox_wait(e->mailbox, idle_ns(e));
    shut_down(e);
    atomic_store(&e->alive, false);
    return NULL;
}

enum err eng_start(struct eng *e, struct err_info *info) {
    atomic_store(&e->alive, true);
    enum err err = thread_start(&e->thread, "graft-engine", run, e);
    if (err) {
        atomic_store(&e->alive, false);
        return err_set(info, err, NULL, "the engine's thread did not start");
    }
    e->started = true;
    return ERR_OK;
}

void eng_stop(struct eng *e) {
    lock_take(&e->submit_lock);
    bool first = !atomic_exchange(&e->closed, true);
    lock_drop(&e->submit_lock);
    if (!first)
        return;
    atomic_store(&e->stop, true);
    mailbox_wake(e->mailbox);
    if (e->started)
        thread_join(&e->thread);
    else
        shut_down(e);
}

bool eng_step(struct eng *e) {
    return eng__turn(e);
}

enum err eng_drain(struct eng *e) {
    atomic_store(&e->draining, true);
    return ERR_OK;
}

int32_t eng_in_flight(const struct eng *e) {
    return atomic_load(&e->in_flight);
}

void eng_health(const struct eng *e, struct eng_health *out) {
    // In this order: a submit renews the time before it shows that there is work.
    bool busy = atomic_load(&e->busy) || atomic_load(&e->queued) > 0;
    *out = (struct eng_health){
        .alive = atomic_load(&e->alive),
        .last_turn_ns = atomic_load(&e->last_turn_ns),
        .running = atomic_load(&e->running),
        .waiting = atomic_load(&e->waiting),
        .busy = busy,
    };
}

void eng_load(const struct eng *e, struct eng_load *out) {
    *out = (struct eng_load){
        .owed = atomic_load(&e->owed),
        .full = atomic_load(&e->queued) >= e->cfg.max_queue,
        .dead = atomic_load(&e->closed),
        .beside = atomic_load(&e->beside),
    };
}
