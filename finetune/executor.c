// SPDX-License-Identifier: Apache-2.0
// Commands between the trainer's thread and the thread that owns the queue. The trainer writes one
// command, sends it and sleeps; whoever runs it has it alone until it is sent back. A unit in hand
// that loses its memory starts again from its begin, which changes no result.
#include "finetune/executor.h"
#include "base/mailbox.h"
#include "base/mem.h"
#include "base/thread.h"
#include "finetune/exec_memory.h"
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    OWN_BUDGET_US = 50000,      // of a run by the executor's own thread
    STARVED_POLL_NS = 20000000, // how often to ask for memory again
    PIECE_CHUNKS = 32,          // of sumsq's chunks: what one element-wise call does
};

enum command_kind { COMMAND_UNIT, COMMAND_STEP };

struct command {
    enum command_kind kind;
    bool begun;
    const struct lora_row *row;
    struct lora_row_result *row_result;
    const struct ft_step *step;
    struct ft_step_result *step_result;
    // cursor
    bool updating; // of a step: the norm is known
    int64_t at;    // element
    double factor;
    // answer
    enum err result;
    struct err_info info;
};

struct ft_exec {
    struct ft_exec_config cfg;
    const struct kn_ops *ops;
    struct kn_queue *queue;
    struct kn_device *device; // the queue's
    bool owns_queue;
    struct exec_memory memory;
    struct lora_params *params; // the memory's
    struct lora_unit *unit;
    kn_addr sums; // f64 [chunks] twice: squares, largest values
    double *host_sums;
    int64_t chunks;

    struct mailbox *todo, *done;
    struct command command; // the trainer's until sent, then the runner's until sent back
    struct command *in_hand;
    struct thread thread;
    bool threaded;
    _Atomic bool stop, leave, quit;
    _Atomic int64_t since_ns; // since when the command in hand has had no slice; 0: none is in hand
};

// ---- create

static void rouse(struct ft_exec *x) {
    mailbox_wake(x->todo);
    if (x->cfg.wake)
        x->cfg.wake(x->cfg.wake_arg);
}

static void on_moved(void *arg) {
    rouse(arg);
}

static void *own_thread(void *arg) {
    struct ft_exec *x = arg;
    while (!atomic_load(&x->quit))
        if (!ft_exec_run(x, OWN_BUDGET_US))
            mailbox_wait(x->todo, x->in_hand ? STARVED_POLL_NS : -1);
    return NULL;
}

static enum err create_sums(struct ft_exec *x, struct err_info *info) {
    struct lora_ranges r;
    lora_params_ranges(x->params, &r);
    x->chunks = (r.n + KN_SUMSQ_CHUNK - 1) / KN_SUMSQ_CHUNK;
    size_t bytes = 2 * (size_t)x->chunks * sizeof(double);
    x->host_sums = mem_alloc(bytes);
    enum err e = x->host_sums ? x->ops->alloc(x->device, bytes, &x->sums) : ERR_NOMEM;
    return e ? err_set(info, e, NULL, "no memory for training's sums") : ERR_OK;
}

static enum err create_parts(struct ft_exec *x, struct err_info *info) {
    const struct mdl_weights *w = x->cfg.weights;
    enum err e = kn_require(w->ops, KN_NEED_SERVE | KN_NEED_TRAIN, info);
    if (e)
        return e;
    x->queue = x->cfg.queue;
    if (!x->queue) {
        if ((e = x->ops->queue_create(x->cfg.device ? x->cfg.device : w->device, &x->queue)))
            return err_set(info, e, NULL, "no memory for a queue");
        x->owns_queue = true;
    }
    x->device = x->ops->queue_device(x->queue);
    if (mailbox_create(4, 0, &x->todo) || mailbox_create(4, 0, &x->done))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    x->memory.moved = on_moved;
    x->memory.moved_arg = x;
    e = exec_memory_open(&x->memory, &x->cfg, x->queue, info);
    x->params = x->memory.params;
    if (e ||
        (e = lora_unit_create(w, x->queue, x->params, &x->cfg.limits, x->cfg.clock, &x->unit,
                              info)) ||
        (e = create_sums(x, info)))
        return e;
    if (!x->cfg.wake && (e = thread_start(&x->thread, "graft-train", own_thread, x)))
        return err_set(info, e, NULL, "no thread for training");
    x->threaded = !x->cfg.wake;
    return ERR_OK;
}

enum err ft_exec_create(const struct ft_exec_config *cfg, struct ft_exec **out,
                        struct err_info *info) {
    struct ft_exec *x = mem_zalloc(sizeof *x);
    if (!x)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    x->cfg = *cfg;
    x->ops = cfg->weights->ops;
    enum err e = create_parts(x, info);
    if (e) {
        ft_exec_destroy(x);
        return e;
    }
    *out = x;
    return ERR_OK;
}

void ft_exec_destroy(struct ft_exec *x) {
    if (!x)
        return;
    if (x->threaded) {
        atomic_store(&x->quit, true);
        mailbox_wake(x->todo);
        thread_join(&x->thread);
    }
    lora_unit_destroy(x->unit);
    exec_memory_close(&x->memory);
    if (x->sums)
        x->ops->free(x->device, x->sums, 2 * (size_t)x->chunks * sizeof(double));
    if (x->owns_queue)
        x->ops->queue_destroy(x->queue);
    mailbox_destroy(x->todo);
    mailbox_destroy(x->done);
    mem_free(x->host_sums);
    mem_free(x);
}

int64_t ft_exec_trainable(const struct ft_exec *x) {
    return lora_params_count(x->params);
}

void ft_exec_sizes(const struct ft_exec *x, struct ft_exec_sizes *out) {
    const struct exec_memory *m = &x->memory;
    *out = (struct ft_exec_sizes){
        .state = m->pager ? m->state : lora_params_bytes(m->params),
        .least = m->least,
        .most = m->want,
    };
}

enum err ft_exec_measure(const struct ft_exec_config *cfg, struct ft_exec_sizes *out,
                         struct err_info *info) {
    const struct mdl_weights *w = cfg->weights;
    struct kn_queue *q;
    struct lora_params *p;
    if (w->ops->queue_create(cfg->device ? cfg->device : w->device, &q))
        return err_set(info, ERR_NOMEM, NULL, "no memory for a queue");
    enum err e = lora_params_describe(w, q, &cfg->lora, &p, info);
    if (!e) {
        out->state = lora_params_bytes(p);
        out->most = lora_unit_bytes(w, p, &cfg->limits, &out->least);
        lora_params_destroy(p);
    }
    w->ops->queue_destroy(q);
    return e;
}

void ft_exec_usage(struct ft_exec *x, struct ft_exec_usage *out) {
    exec_memory_read(&x->memory, out);
}

// ---- units

static enum err run_unit(struct ft_exec *x, struct command *c, int64_t deadline, bool *done) {
    enum err e = ERR_OK;
    if (!c->begun) {
        struct exec_room room;
        e = exec_memory_find(&x->memory, x->cfg.clock, &room, &c->info);
        if (e)
            return e;
        size_t bytes = lora_unit_uses(x->unit, c->row, room.at, room.bytes);
        if (!exec_memory_touch(&x->memory, room.at, bytes, x->cfg.clock, deadline))
            return ERR_AGAIN;
        e = lora_unit_begin(x->unit, c->row, room.at, room.bytes, &c->info);
        c->begun = !e;
    }
    if (!e)
        e = lora_unit_run(x->unit, deadline, done, &c->info);
    if (!e && *done)
        lora_unit_result(x->unit, c->row_result);
    return e;
}

void ft_exec_give_back(struct ft_exec *x, size_t bytes) {
    if (lora_unit_holds(x->unit)) {
        lora_unit_drop(x->unit);
        x->in_hand->begun = false;
    }
    const struct command *c = x->in_hand;
    exec_memory_give_back(&x->memory, bytes, c && c->kind == COMMAND_UNIT && c->begun);
}

void ft_exec_drop(struct ft_exec *x) {
    lora_unit_abandon(x->unit);
    exec_memory_drop(&x->memory);
}

// ---- the optimizer's step

static int64_t piece(const struct command *c, int64_t n) {
    int64_t left = n - c->at, most = (int64_t)PIECE_CHUNKS * KN_SUMSQ_CHUNK;
    return left < most ? left : most;
}

static enum err add_squares(struct ft_exec *x, struct command *c, const struct lora_ranges *r) {
    int64_t n = piece(c, r->n);
    struct kn_sumsq p = {.acc = r->acc,
                         .n = r->n,
                         .factor = ldexp(1.0, -c->step->exponent) / c->step->divisor,
                         .out = x->sums,
                         .largest = x->sums + (size_t)x->chunks * sizeof(double),
                         .begin = c->at,
                         .end = c->at + n};
    c->at += n;
    enum err e = x->ops->sumsq(x->queue, &p);
    if (!e && c->at == r->n)
        e = x->ops->download(x->queue, x->host_sums, x->sums,
                             2 * (size_t)x->chunks * sizeof(double));
    return e;
}

// Clips as torch.nn.utils.clip_grad_norm_ does.
static void find_norm(struct ft_exec *x, struct command *c) {
    double squares = 0, largest = 0;
    for (int64_t i = 0; i < x->chunks; i++) {
        squares += x->host_sums[i];
        largest = fmax(largest, x->host_sums[x->chunks + i]);
    }
    double norm = sqrt(squares), max = c->step->max_grad_norm;
    double clip = max > 0 ? fmin(max / (norm + 1e-6), 1.0) : 1.0;
    *c->step_result = (struct ft_step_result){norm, largest * c->step->divisor, clip};
    c->factor = ldexp(1.0, -c->step->exponent) / c->step->divisor * clip;
    c->updating = true;
    c->at = 0;
}

static enum err update(struct ft_exec *x, struct command *c, const struct lora_ranges *r) {
    const struct ft_step *s = c->step;
    int64_t n = piece(c, r->n);
    struct kn_adamw p = {.w = r->w,
                         .m = r->m,
                         .v = r->v,
                         .acc = r->acc,
                         .n = r->n,
                         .factor = c->factor,
                         .lr = s->lr,
                         .beta1 = s->beta1,
                         .beta2 = s->beta2,
                         .eps = s->eps,
                         .decay = s->decay,
                         .c1 = 1 - pow(s->beta1, (double)s->t),
                         .c2 = 1 - pow(s->beta2, (double)s->t),
                         .begin = c->at,
                         .end = c->at + n};
    c->at += n;
    return x->ops->adamw(x->queue, &p);
}

static enum err run_step(struct ft_exec *x, struct command *c, bool *done) {
    struct lora_ranges r;
    lora_params_ranges(x->params, &r);
    enum err e = c->updating ? update(x, c, &r) : add_squares(x, c, &r);
    enum err waited = x->ops->queue_wait(x->queue, &c->info);
    if (e || waited)
        return e ? e : waited;
    bool all = c->at == r.n;
    *done = all && c->updating;
    if (all && !c->updating)
        find_norm(x, c);
    return ERR_OK;
}

// ---- the runner's side

static void finish(struct ft_exec *x, enum err e) {
    struct command *c = x->in_hand;
    c->result = e;
    if (e && !c->info.code)
        err_set(&c->info, e, NULL, "training: %s", err_text(e));
    x->in_hand = NULL;
    atomic_store(&x->memory.starved, false);
    atomic_store(&x->memory.moving, false);
    atomic_store(&x->since_ns, 0);
    mailbox_send(x->done, c); // has room for the one command
}

static enum err run_command(struct ft_exec *x, struct command *c, int64_t deadline, bool *done) {
    bool unit = c->kind == COMMAND_UNIT;
    if (atomic_load(&x->stop) || (unit && atomic_load(&x->leave))) {
        lora_unit_abandon(x->unit);
        return ERR_CANCELLED;
    }
    // A unit that has not begun looks for all that it needs.
    if (c->begun ? !exec_memory_there(&x->memory) : !unit) {
        enum err e = exec_memory_find(&x->memory, x->cfg.clock, NULL, &c->info);
        if (e)
            return e;
        c->begun = true;
    }
    return unit ? run_unit(x, c, deadline, done) : run_step(x, c, done);
}

static bool waits_for_memory(const struct ft_exec *x) {
    return atomic_load(&x->memory.starved) || atomic_load(&x->memory.moving);
}

int64_t ft_exec_run(struct ft_exec *x, int64_t budget_us) {
    int64_t gave = exec_memory_settle(&x->memory) ? 1 : 0;
    if (!x->in_hand)
        x->in_hand = mailbox_take(x->todo);
    if (!x->in_hand)
        return gave;
    int64_t start = clock_mono_ns(x->cfg.clock), now = start, deadline = start + budget_us * 1000;
    bool done = false;
    enum err e = ERR_OK;
    while (!done && !e && now < deadline) {
        e = run_command(x, x->in_hand, deadline, &done);
        now = clock_mono_ns(x->cfg.clock);
    }
    if (e == ERR_AGAIN && waits_for_memory(x))
        return gave;
    atomic_store(&x->since_ns, now);
    if (done || (e && e != ERR_AGAIN))
        finish(x, e);
    return now - start >= 1000 ? (now - start) / 1000 : 1;
}

// ---- the trainer's side

void ft_exec_stop(struct ft_exec *x) {
    atomic_store(&x->stop, true);
    rouse(x);
}

void ft_exec_leave(struct ft_exec *x) {
    atomic_store(&x->leave, true);
    rouse(x);
}

void ft_exec_retire(struct ft_exec *x) {
    exec_memory_stop(&x->memory);
}

bool ft_exec_urgent(struct ft_exec *x) {
    bool ends = atomic_load(&x->stop) || atomic_load(&x->leave) || exec_memory_failed(&x->memory);
    return (ends && atomic_load(&x->since_ns)) || exec_memory_unsettled(&x->memory);
}

int64_t ft_exec_waits(const struct ft_exec *x, bool *memory) {
    int64_t since = atomic_load(&x->since_ns);
    *memory = waits_for_memory(x);
    return since ? clock_mono_ns(x->cfg.clock) - since : 0;
}

static enum err stopped(const struct ft_exec *x, struct err_info *info) {
    return atomic_load(&x->stop) ? err_set(info, ERR_CANCELLED, NULL, "training was cancelled")
                                 : ERR_OK;
}

static enum err command(struct ft_exec *x, const struct command *what, struct err_info *info) {
    enum err e = stopped(x, info);
    if (e)
        return e;
    x->command = *what;
    atomic_store(&x->since_ns, clock_mono_ns(x->cfg.clock));
    e = mailbox_send(x->todo, &x->command);
    if (e)
        return err_set(info, e, NULL, "training: %s", err_text(e));
    do {
        // Also when the runner found no memory: nothing else wakes it once there is some.
        if (x->cfg.wake)
            x->cfg.wake(x->cfg.wake_arg);
        while (!mailbox_wait(x->done, STARVED_POLL_NS) && !waits_for_memory(x))
            ;
    } while (!mailbox_take(x->done));
    if (x->command.result && info)
        *info = x->command.info;
    return x->command.result;
}

enum err ft_exec_unit(struct ft_exec *x, const struct lora_row *row, struct lora_row_result *out,
                      struct err_info *info) {
    struct command c = {.kind = COMMAND_UNIT, .row = row, .row_result = out};
    return command(x, &c, info);
}

enum err ft_exec_step(struct ft_exec *x, const struct ft_step *s, struct ft_step_result *out,
                      struct err_info *info) {
    struct command c = {.kind = COMMAND_STEP, .step = s, .step_result = out};
    return command(x, &c, info);
}

// ---- state

enum err ft_exec_clear(struct ft_exec *x, struct err_info *info) {
    enum err e = stopped(x, info);
    return e ? e : exec_memory_clear_sums(&x->memory, info);
}

enum err ft_exec_get(struct ft_exec *x, struct mdl_adapter *w, struct mdl_adapter *m,
                     struct mdl_adapter *v, struct err_info *info) {
    enum err e = ERR_OK;
    for (int32_t l = 0; l < x->cfg.weights->config.n_layers && !e; l++) {
        e = stopped(x, info);
        if (!e)
            e = lora_params_get(x->params, x->queue, l, w, m, v, info);
    }
    return e;
}

enum err ft_exec_set(struct ft_exec *x, const struct mdl_adapter *w, const struct mdl_adapter *m,
                     const struct mdl_adapter *v, struct err_info *info) {
    enum err e = ERR_OK;
    for (int32_t l = 0; l < x->cfg.weights->config.n_layers && !e; l++) {
        e = stopped(x, info);
        if (!e)
            e = lora_params_set(x->params, x->queue, l, w, m, v, info);
    }
    return e;
}
