// SPDX-License-Identifier: Apache-2.0
// Time-outs of one kind share one duration, so a queue of them in the order of setting is also the
// order of expiry: setting, moving and clearing cost a few pointers, and no timer call. Stateless
// beside the queues; one thread.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct gw_deadline {
    TAILQ_ENTRY(gw_deadline) link;
    struct gw_deadline_queue *queue; // NULL: not set
    int64_t at;
};

TAILQ_HEAD(gw_deadline_list, gw_deadline);

struct gw_deadline_queue {
    struct gw_deadline_list list;
    int64_t after_ns;
    void (*expired)(struct gw_deadline *d); // already cleared
};

void gw__deadline_queue_init(struct gw_deadline_queue *q, int64_t after_ns,
                             void (*expired)(struct gw_deadline *d));
// (Re)starts d in q: it expires after_ns from now.
void gw__deadline_set(struct gw_deadline_queue *q, struct gw_deadline *d, int64_t now);
void gw__deadline_clear(struct gw_deadline *d); // legal when not set
// Calls `expired` for all that are due; returns when the next one is due, or INT64_MAX.
int64_t gw__deadline_run(struct gw_deadline_queue *q, int64_t now);
