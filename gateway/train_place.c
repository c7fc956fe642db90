// SPDX-License-Identifier: Apache-2.0
#include "gateway/train_place.h"

enum { ASK_AGAIN_NS = 20000000 }; // an engine that is busy has no time for us

// ---- the engine's side

static int64_t run(void *arg, int64_t budget_us) {
    struct train_place *p = arg;
    int64_t used = 0;
    lock_take(&p->lock);
    if (p->leaving) {
        ft_exec_give_back(p->exec, SIZE_MAX);
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

static size_t borrow(void *arg, size_t bytes, kn_addr *at) {
    const struct train_place *p = arg;
    return eng_background_borrow(p->engine, bytes, at);
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
    return (struct eng_background){.run = run, .give_back = give_back, .arg = p};
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

// A row that needs more than the engine ever has would wait without an end.
static enum err check_room(const struct train_place *p, struct ft_exec_config cfg,
                           struct err_info *info) {
    struct ft_exec *x;
    size_t resident, least;
    cfg.limits.keep = false;
    enum err e = ft_exec_create(&cfg, &x, info);
    if (e)
        return e;
    ft_exec_memory(x, &resident, &least);
    ft_exec_destroy(x);
    return least <= p->memory
               ? ERR_OK
               : err_set(info, ERR_LIMIT, "graft.max_seq_length",
                         "a training row of %d tokens needs %zu MiB, and the KV cache that lends "
                         "them has %zu MiB; lower graft.max_seq_length, or raise "
                         "--kv-cache-memory-bytes",
                         (int)cfg.limits.max_tokens, (least >> 20) + 1, p->memory >> 20);
}

enum err train_place_create(struct train_place *p, const struct ft_exec_config *cfg,
                            struct ft_exec **out, struct err_info *info) {
    struct ft_exec_config c = *cfg;
    c.memory = (struct ft_memory){borrow, give, p};
    c.device = p->device;
    c.wake = wake;
    c.wake_arg = p;
    enum err e = check_room(p, c, info);
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

void train_place_stop(struct train_place *p) {
    lock_take(&p->lock);
    if (p->exec)
        ft_exec_stop(p->exec);
    lock_drop(&p->lock);
}
