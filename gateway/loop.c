// SPDX-License-Identifier: Apache-2.0
#include "gateway/loop.h"
#include "base/mem.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { POSTS_KEPT = 4096 }; // a queue that grew beyond this gives its memory back

struct gw_timer {
    LIST_ENTRY(gw_timer) link;
    struct event event;
    struct gw_loop *loop;
    void (*fn)(void *arg);
    void *arg;
};

static bool posts_reserve(struct gw_post_list *p) {
    if (p->n < p->cap)
        return true;
    size_t cap = p->cap ? p->cap * 2 : 64, bytes;
    struct gw_post *items =
        mem_mul(cap, sizeof *items, &bytes) ? mem_realloc(p->items, bytes) : NULL;
    if (!items)
        return false;
    p->items = items;
    p->cap = cap;
    return true;
}

void gw__loop_wake(struct gw_loop *l) {
    uint64_t one = 1;
    // EAGAIN would mean that the counter is full, and then the loop is awake anyway.
    while (write(l->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

bool gw_loop_post(struct gw_loop *l, void (*fn)(void *arg), void *arg) {
    bool first = false;
    lock_take(&l->lock);
    bool ok = !l->closed && posts_reserve(&l->posts);
    if (ok) {
        l->posts.items[l->posts.n++] = (struct gw_post){fn, arg};
        first = !l->woken;
        l->woken = true;
    }
    lock_drop(&l->lock);
    if (first)
        gw__loop_wake(l);
    return ok;
}

// The wake-up is edge-triggered, so the counter never needs to be read back.
static void on_wake(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    struct gw_loop *l = arg;
    lock_take(&l->lock);
    struct gw_post_list taken = l->posts;
    l->posts = l->running;
    l->posts.n = 0;
    l->woken = false;
    bool closed = l->closed;
    lock_drop(&l->lock);
    for (size_t i = 0; i < taken.n; i++)
        taken.items[i].fn(taken.items[i].arg);
    if (taken.cap > POSTS_KEPT) {
        mem_free(taken.items);
        taken = (struct gw_post_list){0};
    }
    l->running = taken;
    if (closed && !l->stop) {
        l->stop = true;
        l->hooks->stopping(l->hooks_arg);
    }
}

enum err gw__loop_init(struct gw_loop *l, const struct gw_loop_hooks *hooks, void *arg,
                       struct err_info *info) {
    *l = (struct gw_loop){.hooks = hooks, .hooks_arg = arg, .wake_fd = -1};
    LIST_INIT(&l->timers);
    lock_init(&l->lock);
    struct event_config *cfg = event_config_new();
    if (!cfg)
        return err_set(info, ERR_NOMEM, NULL, "out of memory while making an event loop");
    event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
    event_config_require_features(cfg, EV_FEATURE_ET | EV_FEATURE_EARLY_CLOSE);
    l->base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    if (!l->base)
        return err_set(info, ERR_IO, NULL, "cannot make an event loop: %s", strerror(errno));
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->wake_fd < 0)
        return err_set(info, ERR_IO, NULL, "cannot make an eventfd: %s", strerror(errno));
    if (event_assign(&l->wake_event, l->base, l->wake_fd, EV_READ | EV_PERSIST | EV_ET, on_wake,
                     l) != 0 ||
        event_add(&l->wake_event, NULL) != 0)
        return err_set(info, ERR_IO, NULL, "cannot watch an eventfd");
    return ERR_OK;
}

void gw__loop_fini(struct gw_loop *l) {
    struct gw_timer *t;
    while ((t = LIST_FIRST(&l->timers)) != NULL) {
        LIST_REMOVE(t, link);
        event_del(&t->event);
        mem_free(t);
    }
    if (event_initialized(&l->wake_event))
        event_del(&l->wake_event);
    if (l->base)
        event_base_free(l->base);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    mem_free(l->posts.items);
    mem_free(l->running.items);
    lock_fini(&l->lock);
}

static void *loop_main(void *arg) {
    struct gw_loop *l = arg;
    thread_wake_soon();
    while (!l->stop) {
        bool again = l->again;
        l->again = false;
        if (event_base_loop(l->base, again ? EVLOOP_NONBLOCK : EVLOOP_ONCE) < 0)
            break;
        l->hooks->turn(l->hooks_arg);
    }
    return NULL;
}

enum err gw__loop_start(struct gw_loop *l, const char *name, struct err_info *info) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    enum err e = thread_start(&l->thread, name, loop_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    l->started = e == ERR_OK;
    return e ? err_set(info, e, NULL, "cannot start a thread") : ERR_OK;
}

void gw__loop_stop(struct gw_loop *l) {
    lock_take(&l->lock);
    l->closed = true;
    lock_drop(&l->lock);
    gw__loop_wake(l);
}

void gw__loop_join(struct gw_loop *l) {
    if (l->started)
        thread_join(&l->thread);
    l->started = false;
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    struct gw_timer *t = arg;
    struct gw_loop *l = t->loop;
    LIST_REMOVE(t, link);
    l->firing = t;
    t->fn(t->arg);
    l->firing = NULL;
    mem_free(t);
}

struct gw_timer *gw_loop_timer(struct gw_loop *l, int64_t delay_ns, void (*fn)(void *arg),
                               void *arg) {
    struct gw_timer *t = mem_zalloc(sizeof *t);
    if (!t)
        return NULL;
    t->loop = l;
    t->fn = fn;
    t->arg = arg;
    if (delay_ns < 0)
        delay_ns = 0;
    // Rounded up: a timer never fires early.
    int64_t us = delay_ns / 1000 + (delay_ns % 1000 != 0);
    struct timeval tv = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};
    if (event_assign(&t->event, l->base, -1, 0, on_timer, t) != 0 ||
        event_add(&t->event, &tv) != 0) {
        mem_free(t);
        return NULL;
    }
    LIST_INSERT_HEAD(&l->timers, t, link);
    return t;
}

void gw_loop_timer_cancel(struct gw_timer *t) {
    if (!t || t->loop->firing == t)
        return;
    LIST_REMOVE(t, link);
    event_del(&t->event);
    mem_free(t);
}
