// SPDX-License-Identifier: Apache-2.0
#include "gateway/deadline.h"
#include <stddef.h>

void gw__deadline_queue_init(struct gw_deadline_queue *q, int64_t after_ns,
                             void (*expired)(struct gw_deadline *d)) {
    TAILQ_INIT(&q->list);
    q->after_ns = after_ns;
    q->expired = expired;
}

void gw__deadline_set(struct gw_deadline_queue *q, struct gw_deadline *d, int64_t now) {
    gw__deadline_clear(d);
    d->queue = q;
    d->at = now + q->after_ns;
    TAILQ_INSERT_TAIL(&q->list, d, link);
}

void gw__deadline_clear(struct gw_deadline *d) {
    if (!d->queue)
        return;
    TAILQ_REMOVE(&d->queue->list, d, link);
    d->queue = NULL;
}

int64_t gw__deadline_run(struct gw_deadline_queue *q, int64_t now) {
    struct gw_deadline *d;
    while ((d = TAILQ_FIRST(&q->list)) != NULL && d->at <= now) {
        gw__deadline_clear(d);
        q->expired(d);
    }
    return d ? d->at : INT64_MAX;
}
