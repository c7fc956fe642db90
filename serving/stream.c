// SPDX-License-Identifier: Apache-2.0
// The event ring and its wake, block and release protocols. head is written by the consumer, tail
// by the engine. `armed` and `blocked` are each one half of the same handshake: whoever goes to
// sleep sets its flag and looks once more; whoever makes progress publishes it and then takes the
// flag. Both sides use sequentially consistent operations, so at least one of them sees the other.
#include "serving/stream.h"
#include "base/mem.h"
#include <assert.h>
#include <string.h>

enum { RING_PLAIN = 64, RING_SCORES = 256 };

// An event as it lies in the ring; n_top pairs of id and log-probability follow.
struct element {
    uint8_t type, finish, n_top;
    int32_t choice, index, token, rank;
    float logprob;
};
struct top {
    int32_t id;
    float logprob;
};

uint32_t eng__stream_capacity(int32_t n_choices, bool scores) {
    // Half of it must hold one token of each choice beside the reserved ENDs (rule 20).
    uint32_t need = 4 * (uint32_t)n_choices, cap = scores ? RING_SCORES : RING_PLAIN;
    while (cap < need)
        cap *= 2;
    return cap;
}

uint32_t eng__stream_element(int32_t n_top) {
    return (uint32_t)(sizeof(struct element) + (size_t)n_top * sizeof(struct top));
}

void eng__stream_init(struct eng_stream *s, struct mailbox *m, const struct eng_request *r,
                      char *ring, uint32_t capacity, uint32_t element, _Atomic bool *stops) {
    s->mailbox = m;
    s->wake = r->wake;
    s->wake_arg = r->wake_arg;
    s->n_choices = r->n;
    s->ring = ring;
    s->ring_mask = capacity - 1;
    s->ring_bytes = element;
    s->stops = stops;
    atomic_init(&s->armed, true);
    atomic_init(&s->refs, 2);
    lock_init(&s->lock);
    s->submit_msg = (struct eng__msg){ENG__MSG_SUBMIT, s};
    s->attention_msg = (struct eng__msg){ENG__MSG_ATTENTION, s};
}

void eng__stream_unref(struct eng_stream *s) {
    if (atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    lock_fini(&s->lock);
    mem_free(s);
}

static uint32_t used(const struct eng_stream *s) {
    return atomic_load(&s->tail) - atomic_load(&s->head);
}

int32_t eng__stream_room(const struct eng_stream *s, int32_t unended) {
    return (int32_t)(s->ring_mask + 1 - used(s)) - unended;
}

bool eng__stream_half_empty(const struct eng_stream *s) {
    return used(s) <= (s->ring_mask + 1) / 2;
}

bool eng__stream_block(struct eng_stream *s) {
    atomic_store(&s->blocked, true);
    if (!eng__stream_half_empty(s))
        return true;
    atomic_store(&s->blocked, false);
    return false;
}

static char *at(const struct eng_stream *s, uint32_t i) {
    return s->ring + (size_t)(i & s->ring_mask) * s->ring_bytes;
}

void eng__stream_push(struct eng_stream *s, const struct eng_event *ev) {
    uint32_t tail = atomic_load_explicit(&s->tail, memory_order_relaxed);
    assert(used(s) <= s->ring_mask);
    struct element x = {
        .type = (uint8_t)ev->type,
        .choice = ev->choice,
        .index = ev->index,
        .token = ev->token,
        .rank = ev->rank,
        .logprob = ev->logprob,
        .n_top = (uint8_t)ev->n_top,
    };
    if (ev->type == ENG_EVENT_END) {
        x.finish = (uint8_t)ev->finish;
        x.n_top = 0;
        x.index = ev->n_tokens;
        x.token = ev->stop_id;
        x.rank = (int32_t)ev->error;
    }
    char *to = at(s, tail);
    memcpy(to, &x, sizeof x);
    for (int32_t i = 0; i < x.n_top; i++) {
        struct top t = {ev->top_id[i], ev->top_logprob[i]};
        memcpy(to + sizeof x + (size_t)i * sizeof t, &t, sizeof t);
    }
    atomic_store(&s->tail, tail + 1);
}

static void call_wake(struct eng_stream *s) {
    lock_take(&s->lock);
    if (!s->released)
        s->wake(s->wake_arg, s);
    lock_drop(&s->lock);
}

void eng__stream_flush(struct eng_stream *s, bool last) {
    if (atomic_exchange(&s->armed, false) || last)
        call_wake(s);
}

// Consumer's side.

// One message at most is on its way for a stream, so the mailbox's reserved places suffice.
static void call_attention(struct eng_stream *s) {
    if (atomic_exchange(&s->attention, true))
        return;
    enum err e = mailbox_send_urgent(s->mailbox, &s->attention_msg);
    assert(e == ERR_OK);
    (void)e;
}

static void unpack(const char *from, struct eng_event *ev) {
    struct element x;
    memcpy(&x, from, sizeof x);
    *ev = (struct eng_event){
        .type = (enum eng_event_type)x.type,
        .choice = x.choice,
        .stop_id = -1,
    };
    if (ev->type == ENG_EVENT_END) {
        ev->finish = (enum eng_finish)x.finish;
        ev->n_tokens = x.index;
        ev->stop_id = x.token;
        ev->error = (enum err)x.rank;
        return;
    }
    ev->index = x.index;
    ev->token = x.token;
    ev->rank = x.rank;
    ev->logprob = x.logprob;
    ev->n_top = x.n_top;
    for (int32_t i = 0; i < x.n_top; i++) {
        struct top t;
        memcpy(&t, from + sizeof x + (size_t)i * sizeof t, sizeof t);
        ev->top_id[i] = t.id;
        ev->top_logprob[i] = t.logprob;
    }
}

bool eng_stream_next(struct eng_stream *s, struct eng_event *ev) {
    uint32_t head = atomic_load_explicit(&s->head, memory_order_relaxed);
    if (head == atomic_load(&s->tail)) {
        atomic_store(&s->armed, true);
        if (head == atomic_load(&s->tail))
            return false;
        // An event came in between. If the engine was quicker here, one wake comes for nothing.
        atomic_exchange(&s->armed, false);
    }
    unpack(at(s, head), ev);
    atomic_store(&s->head, head + 1);
    if (atomic_load(&s->blocked) && eng__stream_half_empty(s) &&
        atomic_exchange(&s->blocked, false))
        call_attention(s);
    return true;
}

void eng_stream_usage(const struct eng_stream *s, struct eng_usage *out) {
    *out = (struct eng_usage){
        .prompt_tokens = atomic_load(&s->prompt_tokens),
        .cached_tokens = atomic_load(&s->cached_tokens),
        .queued_ns = atomic_load(&s->queued_ns),
        .prefill_ns = atomic_load(&s->prefill_ns),
    };
}

void eng_stream_stop(struct eng_stream *s, int32_t choice) {
    if (choice < 0 || choice >= s->n_choices)
        return;
    atomic_store(&s->stops[choice], true);
    call_attention(s);
}

void eng_stream_cancel(struct eng_stream *s) {
    atomic_store(&s->cancelled, true);
    call_attention(s);
}

void eng_stream_release(struct eng_stream *s) {
    lock_take(&s->lock);
    s->released = true;
    lock_drop(&s->lock);
    eng_stream_cancel(s);
    eng__stream_unref(s);
}
