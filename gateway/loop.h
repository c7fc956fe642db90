// SPDX-License-Identifier: Apache-2.0
// One event loop on one thread: an event base, a queue of posted calls with a coalesced wake-up,
// one-shot timers, and a hook that runs at the end of each turn (all callbacks of one wake-up).
// The public part is in http.h: gw_loop_post, gw_loop_timer, gw_loop_timer_cancel.
//
// gw_loop_post, gw__loop_stop and gw__loop_join: any thread. Everything else: the loop's thread, or
// the creating thread before gw__loop_start and after gw__loop_join.
#pragma once
#include "base/err.h"
#include "base/thread.h"
#include "gateway/http.h"
#include <event2/event.h>
#include <event2/event_struct.h>
#include <sys/queue.h>

struct gw_post {
    void (*fn)(void *arg);
    void *arg;
};

struct gw_post_list {
    struct gw_post *items;
    size_t n, cap;
};

LIST_HEAD(gw_timer_list, gw_timer);

struct gw_loop_hooks {
    void (*turn)(void *arg);     // at the end of each turn
    void (*stopping)(void *arg); // once, after the last post and before the last turn
};

struct gw_loop {
    struct event_base *base;
    const struct gw_loop_hooks *hooks;
    void *hooks_arg;
    bool again; // the next turn must not wait: work was left over
    bool stop;
    struct gw_timer_list timers;
    struct gw_timer *firing;
    struct gw_post_list running; // taken from `posts`, owned by the loop's thread
    struct event wake_event;
    int wake_fd;
    struct thread thread;
    bool started;
    // Shared with posting threads, under the lock.
    struct lock lock;
    struct gw_post_list posts;
    bool woken; // a wake-up is on its way
    bool closed;
};

enum err gw__loop_init(struct gw_loop *l, const struct gw_loop_hooks *hooks, void *arg,
                       struct err_info *info);
void gw__loop_fini(struct gw_loop *l); // not running any more; timers are dropped unfired
// Signals stay blocked on the loop's thread; writing to a closed socket is an error code there.
enum err gw__loop_start(struct gw_loop *l, const char *name, struct err_info *info);
// No posts from now on; those accepted before are run, then the thread ends.
void gw__loop_stop(struct gw_loop *l);
void gw__loop_wake(struct gw_loop *l); // a turn will run soon; any thread
void gw__loop_join(struct gw_loop *l);
