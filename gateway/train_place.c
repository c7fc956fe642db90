// SPDX-License-Identifier: Apache-2.0
#include "gateway/train_place.h"
#include <stdio.h>

enum { ASK_AGAIN_NS = 20000000 };
static const int64_t no_progress_ns = 2000000000; // from here on it is told

// ---- the engine's side

static int64_t run(void *arg, int64_t budget_us) {
    struct train_place *p = arg;
    int64_t used = 0;
    lock_take(&p->lock);
    if (p->leaving) {
        struct ft_exec_usage u;
        ft_exec_usage(p->exec, &u);
        p->taken += u.taken;
        ft_exec_drop(p->exec);
        p->exec = NULL;
        p->leaving = false;
        mailbox_wake(p->left);
        used = 1;
    } else if (p->exec) {
        used = ft_exec_run(p->exec, budget_us);
    }
    lock_drop(&p->lock);
    return used;
}

static void give_back(void *arg, size_t bytes) {
    struct train_place *p = arg;
    lock_take(&p->lock);
    if (p->exec)
        ft_exec_give_back(p->exec, bytes);
    lock_drop(&p->lock);
}

static bool urgent(void *arg) {
    struct train_place *p = arg;
    lock_take(&p->lock);
    bool is = p->leaving || (p->exec && ft_exec_urgent(p->exec));
    lock_drop(&p->lock);
    return is;
}

static size_t borrow(void *arg, const struct ft_memory_ask *ask, kn_addr *at) {
    const struct train_place *p = arg;
    const struct eng_borrow b = {.held = ask->held, .need = ask->need, .want = ask->want};
    return eng_background_borrow(p->engine, &b, at);
}

static void give(void *arg, size_t keep_bytes) {
    const struct train_place *p = arg;
    eng_background_return(p->engine, keep_bytes);
}

static void wake(void *arg) {
    const struct train_place *p = arg;
    eng_wake(p->engine);
}

struct eng_background train_place_background(struct train_place *p) {
    return (struct eng_background){.run = run, .give_back = give_back, .urgent = urgent, .arg = p};
}

// ---- the trainer's side

enum err train_place_init(struct train_place *p, struct err_info *info) {
    if (mailbox_create(1, 0, &p->left))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    lock_init(&p->lock);
    return ERR_OK;
}

void train_place_fini(struct train_place *p) {
    if (!p->left)
        return;
    lock_fini(&p->lock);
    mailbox_destroy(p->left);
    *p = (struct train_place){0};
}

static size_t mib(size_t bytes) { // of a need: rounded up
    return (bytes + (1 << 20) - 1) >> 20;
}

// What needs more than the engine ever has would wait without an end.
static enum err check_room(const struct train_place *p, const struct ft_exec_config *cfg,
                           struct err_info *info) {
    struct ft_exec_sizes n;
    enum err e = ft_exec_measure(cfg, &n, info);
    if (e)
        return e;
    if (n.state > p->memory)
        return err_set(info, ERR_LIMIT, "graft.lora.r",
                       "the state of training (adapter, gradient, sums, moments) needs %zu MiB "
                       "(%zu bytes), and the KV cache that lends them has %zu MiB (%zu bytes); "
                       "lower graft.lora.r, or raise --kv-cache-memory-bytes",
                       mib(n.state), n.state, p->memory >> 20, p->memory);
    return n.least <= p->memory - n.state
               ? ERR_OK
               : err_set(
                     info, ERR_LIMIT, "graft.max_seq_length",
                     "a training row of %d tokens needs %zu MiB (%zu bytes) beside %zu MiB (%zu "
                     "bytes) for the state of training, and the KV cache that lends them has "
                     "%zu MiB (%zu bytes); lower graft.max_seq_length, or raise "
                     "--kv-cache-memory-bytes",
                     (int)cfg->limits.max_tokens, mib(n.least), n.least, mib(n.state), n.state,
                     p->memory >> 20, p->memory);
}

enum err train_place_create(struct train_place *p, const struct ft_exec_config *cfg,
                            struct ft_exec **out, struct err_info *info) {
    struct ft_exec_config c = *cfg;
    c.memory = (struct ft_memory){borrow, give, eng_background_end(p->engine), p};
    c.device = p->device;
    c.wake = wake;
    c.wake_arg = p;
    enum err e = check_room(p, &c, info);
    if (!e)
        e = ft_exec_create(&c, out, info);
    if (e)
        return e;
    lock_take(&p->lock);
    p->exec = *out;
    lock_drop(&p->lock);
    return ERR_OK;
}

void train_place_destroy(struct train_place *p, struct ft_exec *x) {
    bool there;
    ft_exec_retire(x);
    lock_take(&p->lock);
    p->leaving = true;
    lock_drop(&p->lock);
    do {
        eng_wake(p->engine);
        (void)mailbox_wait(p->left, ASK_AGAIN_NS);
        lock_take(&p->lock);
        there = p->leaving;
        lock_drop(&p->lock);
    } while (there);
    ft_exec_destroy(x);
}

// ---- anybody's

void train_place_name(struct train_place *p, const char *job) {
    lock_take(&p->lock);
    snprintf(p->job, sizeof p->job, "%s", job);
    lock_drop(&p->lock);
}

static const char *memory_text(enum eng_lend_reason r) {
    switch (r) {
    case ENG_LEND_REQUESTS:
        return "requests wait for it";
    case ENG_LEND_CALM:
        return "serving took it back a moment ago";
    case ENG_LEND_HOT:
        return "cached prefixes that were used lately are spared for up to two minutes";
    case ENG_LEND_LIVE:
        return "running requests hold it";
    case ENG_LEND_ENOUGH:
    case ENG_LEND_GROWS:
        break;
    }
    return "it is being lent";
}

void train_place_read(struct train_place *p, struct train_place_state *out) {
    bool memory = false;
    int64_t waits = 0;
    *out = (struct train_place_state){0};
    lock_take(&p->lock);
    if (p->exec) {
        ft_exec_usage(p->exec, &out->memory);
        snprintf(out->job, sizeof out->job, "%s", p->job);
        waits = ft_exec_waits(p->exec, &memory);
    }
    out->taken = p->taken + out->memory.taken;
    lock_drop(&p->lock);
    if (waits < no_progress_ns)
        return;
    struct eng_colocation c;
    eng_colocation(p->engine, &c);
    if (memory)
        snprintf(out->reason, sizeof out->reason,
                 "waits for memory: training needs %zu MiB of the KV cache and has %zu; %s",
                 (c.need_bytes >> 20) + 1, c.lent_bytes >> 20, memory_text(c.lend_reason));
    else
        snprintf(out->reason, sizeof out->reason, "waits for time: serving leaves none%s",
                 c.slo_itl_s > 0 || c.slo_ttft_s > 0 ? " within its targets" : "");
}

void train_place_leave(struct train_place *p) {
    lock_take(&p->lock);
    if (p->exec)
        ft_exec_leave(p->exec);
    lock_drop(&p->lock);
}

void train_place_stop(struct train_place *p) {
    lock_take(&p->lock);
    if (p->exec)
        ft_exec_stop(p->exec);
    lock_drop(&p->lock);
}
