// SPDX-License-Identifier: Apache-2.0
#include "finetune/exec_memory.h"
#include "finetune/pager.h"

enum {
    ALIGN = 64,
    STARVED_POLL_NS = 20000000, // how often to ask for memory again
    TOUCH_BYTES = 256 << 10,    // between two looks at the clock
};

// ---- open

static enum err read_state(void *arg, size_t at, void *to, size_t n, struct err_info *info) {
    return ft_pager_read(arg, at, to, n, info);
}

static enum err write_state(void *arg, size_t at, const void *from, size_t n,
                            struct err_info *info) {
    return ft_pager_write(arg, at, from, n, info);
}

static void on_moved(void *arg) {
    const struct exec_memory *m = arg;
    m->moved(m->moved_arg);
}

static enum err open_lent(struct exec_memory *m, const struct ft_spill *spill, struct kn_queue *q,
                          struct err_info *info) {
    m->base = (m->lend.end - lora_params_bytes(m->params)) & ~(kn_addr)(ALIGN - 1);
    m->state = m->lend.end - m->base;
    const struct ft_pager_config cfg = {.ops = m->ops,
                                        .device = m->device,
                                        .base = m->base,
                                        .bytes = m->state,
                                        .spill = *spill,
                                        .moved = on_moved,
                                        .arg = m};
    enum err e = ft_pager_create(&cfg, &m->pager, info);
    if (e)
        return e;
    const struct lora_store store = {read_state, write_state, m->pager};
    return lora_params_place(m->params, q, m->base, &store, info);
}

enum err exec_memory_open(struct exec_memory *m, const struct ft_exec_config *cfg,
                          struct kn_queue *q, struct err_info *info) {
    m->ops = cfg->weights->ops;
    m->device = m->ops->queue_device(q);
    m->lend = cfg->memory;
    enum err e = m->lend.borrow
                     ? lora_params_describe(cfg->weights, q, &cfg->lora, &m->params, info)
                     : lora_params_create(cfg->weights, q, &cfg->lora, &m->params, info);
    if (!e && m->lend.borrow)
        e = open_lent(m, &cfg->spill, q, info);
    if (!e)
        m->want = lora_unit_bytes(cfg->weights, m->params, &cfg->limits, &m->least);
    return e;
}

void exec_memory_stop(struct exec_memory *m) {
    ft_pager_stop(m->pager);
}

void exec_memory_close(struct exec_memory *m) {
    ft_pager_destroy(m->pager);
    lora_params_destroy(m->params);
    if (m->own)
        m->ops->free(m->device, m->own, m->have);
}

// ---- finding it

static enum err find_own(struct exec_memory *m, struct exec_room *row, struct err_info *info) {
    for (int least = 0; least < 2 && !m->own; least++) {
        size_t n = least ? m->least : m->want;
        if (!m->ops->alloc(m->device, n, &m->own))
            m->have = n;
    }
    *row = (struct exec_room){m->own, m->have};
    return m->own ? ERR_OK
                  : err_set(info, ERR_NOMEM, NULL, "no memory for a training row (%zu MiB)",
                            m->least >> 20);
}

static size_t held(struct exec_memory *m) {
    return m->state - ft_pager_free(m->pager);
}

// Asks on as long as what is lent grows, a part in each slice.
static enum err borrow(struct exec_memory *m, const struct clock *clock, bool row, kn_addr *at) {
    int64_t now = clock_mono_ns(clock);
    if (atomic_load(&m->starved) && now - m->asked_ns < STARVED_POLL_NS)
        return ERR_AGAIN;
    size_t need = m->state + (row ? m->least : 0), want = m->state + (row ? m->want : 0);
    size_t had = m->have;
    const struct ft_memory_ask ask = {.held = held(m), .need = need, .want = want};
    atomic_store(&m->giving, false);
    m->have = m->lend.borrow(m->lend.arg, &ask, at);
    bool grows = m->have > had && m->have < want, starved = !grows && m->have < need;
    atomic_store(&m->starved, starved);
    m->asked_ns = now;
    return grows || starved ? ERR_AGAIN : ERR_OK;
}

// What a command changes, so that it is not taken for what the file has.
static void mark(struct exec_memory *m, bool row) {
    struct lora_ranges r;
    lora_params_ranges(m->params, &r);
    if (row) { // gradient, sums, flag
        ft_pager_changes(m->pager, 0, r.m - r.state);
        ft_pager_changes(m->pager, lora_params_flag(m->params) - r.state, m->state);
    } else {
        ft_pager_changes(m->pager, 0, m->state);
    }
}

enum err exec_memory_find(struct exec_memory *m, const struct clock *clock, struct exec_room *row,
                          struct err_info *info) {
    if (!m->lend.borrow)
        return row ? find_own(m, row, info) : ERR_OK;
    enum err e = ft_pager_failed(m->pager, info);
    if (e)
        return e;
    kn_addr at = 0;
    bool moving = ft_pager_busy(m->pager);
    if (!moving && (row || !ft_pager_there(m->pager))) {
        if ((e = borrow(m, clock, row != NULL, &at)))
            return e;
        if (!ft_pager_there(m->pager)) {
            ft_pager_in(m->pager);
            moving = true;
        }
    }
    atomic_store(&m->moving, moving);
    if (moving)
        return ERR_AGAIN;
    if (row)
        *row = (struct exec_room){at, m->have - m->state};
    mark(m, row != NULL);
    m->found = true;
    return ERR_OK;
}

// Memory that nobody has used yet comes page by page, cleared by the system, and a row's first
// large product would wait for all of its own. What is touched is one range, and starts anew where
// the row lies elsewhere. Each call gets on by a piece at least.
bool exec_memory_touch(struct exec_memory *m, kn_addr at, size_t bytes, const struct clock *clock,
                       int64_t deadline_ns) {
    kn_addr end = at + bytes;
    if (!m->lend.borrow || !m->ops->touch)
        return true;
    if (end < m->touched || at > m->touched_end)
        m->touched = m->touched_end = at;
    while (m->touched > at || m->touched_end < end) {
        bool up = m->touched <= at;
        size_t left = up ? end - m->touched_end : m->touched - at;
        size_t n = left < TOUCH_BYTES ? left : TOUCH_BYTES;
        m->touched -= up ? 0 : n;
        m->ops->touch(m->device, up ? m->touched_end : m->touched, n);
        m->touched_end += up ? n : 0;
        if (clock_mono_ns(clock) >= deadline_ns)
            return false;
    }
    return true;
}

bool exec_memory_there(const struct exec_memory *m) {
    return !m->pager || m->found;
}

// ---- giving it back

static void give(struct exec_memory *m, size_t keep) {
    m->have = keep;
    m->lend.give(m->lend.arg, keep);
}

void exec_memory_give_back(struct exec_memory *m, size_t bytes, bool gradient) {
    struct lora_ranges r;
    if (!m->pager)
        return;
    size_t have = m->have, keep = have > bytes ? have - bytes : 0, resident = held(m);
    if (keep >= resident) { // activations are enough; too little of them is of no use
        give(m, keep >= m->state + m->least ? keep : resident);
        return;
    }
    lora_params_ranges(m->params, &r);
    if (!gradient)
        ft_pager_unneeded(m->pager, 0, r.acc - r.state);
    m->found = false;
    ft_pager_out(m->pager, m->state - keep);
    atomic_store(&m->giving, true);
    resident = held(m);
    give(m, resident < have ? resident : have);
}

bool exec_memory_failed(struct exec_memory *m) {
    return m->pager && ft_pager_failed(m->pager, NULL);
}

static size_t not_needed(struct exec_memory *m) {
    size_t have = m->have;
    if (!m->pager || !have)
        return 0;
    if (exec_memory_failed(m))
        return have;
    size_t resident = held(m);
    return atomic_load(&m->giving) && have > resident ? have - resident : 0;
}

bool exec_memory_unsettled(struct exec_memory *m) {
    return not_needed(m) > 0;
}

bool exec_memory_settle(struct exec_memory *m) {
    size_t n = not_needed(m);
    if (n)
        give(m, m->have - n);
    return n > 0;
}

void exec_memory_drop(struct exec_memory *m) {
    if (m->pager)
        give(m, 0);
}

// ---- anybody's

void exec_memory_read(struct exec_memory *m, struct ft_exec_usage *out) {
    *out =
        (struct ft_exec_usage){.state_bytes = m->pager ? m->state : lora_params_bytes(m->params)};
    size_t have = m->have;
    if (!m->pager) {
        out->state_resident = out->state_bytes;
        out->activation_bytes = have;
        return;
    }
    size_t resident = held(m);
    out->state_resident = resident < have ? resident : have;
    out->activation_bytes = have - out->state_resident;
    out->taken = ft_pager_times(m->pager);
}

enum err exec_memory_clear_sums(struct exec_memory *m, struct err_info *info) {
    struct lora_ranges r;
    lora_params_ranges(m->params, &r);
    size_t bytes = (size_t)r.n * sizeof(int64_t);
    if (m->pager)
        return ft_pager_clear(m->pager, r.acc - r.state, bytes, info);
    m->ops->discard(m->device, r.acc, bytes);
    return ERR_OK;
}
