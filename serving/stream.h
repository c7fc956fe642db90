// SPDX-License-Identifier: Apache-2.0
// The way from the engine to the consumer of one request: a bounded ring of events with one
// producer (the engine thread) and one consumer, and the way back: cancel, stop, "there is room
// again". engine.h has the consumer's functions; these are the engine's. The protocol is in
// README.md, rules 16 to 22.
#pragma once
#include "base/mailbox.h"
#include "base/thread.h"
#include "serving/engine.h"
#include <stdatomic.h>

struct eng__msg { // what the mailbox carries
    enum { ENG__MSG_SUBMIT, ENG__MSG_ATTENTION } kind;
    struct eng_stream *stream;
};

// First member of the engine's request, and one allocation with it.
struct eng_stream {
    struct mailbox *mailbox;
    void (*wake)(void *arg, struct eng_stream *s);
    void *wake_arg;
    int32_t n_choices;
    char *ring;
    uint32_t ring_mask;  // capacity - 1
    uint32_t ring_bytes; // of one element
    _Atomic uint32_t head, tail;
    _Atomic bool armed;     // the consumer saw it empty: the next event wakes it
    _Atomic bool blocked;   // the engine waits for room
    _Atomic bool attention; // attention_msg is on its way, or nothing may be sent any more
    _Atomic bool cancelled;
    _Atomic bool *stops; // [n_choices] the consumer found a stop string
    _Atomic int32_t refs;
    struct lock lock; // around wake and released
    bool released;
    struct eng__msg submit_msg, attention_msg;
    _Atomic int32_t prompt_tokens, cached_tokens;
    _Atomic int64_t queued_ns, prefill_ns;
};

// Elements of the ring and their size, for a request of n choices with up to n_top alternatives.
uint32_t eng__stream_capacity(int32_t n_choices, bool scores);
uint32_t eng__stream_element(int32_t n_top);
// `ring` and `stops` point into the same allocation; both references are taken.
void eng__stream_init(struct eng_stream *s, struct mailbox *m, const struct eng_request *r,
                      char *ring, uint32_t capacity, uint32_t element, _Atomic bool *stops);
void eng__stream_unref(struct eng_stream *s); // the last one frees the allocation

// Engine thread.
// Events that fit now, if room for one END of each of `unended` choices is kept.
int32_t eng__stream_room(const struct eng_stream *s, int32_t unended);
bool eng__stream_half_empty(const struct eng_stream *s);
// Asks the consumer for attention once the ring is half empty. False: it is already.
bool eng__stream_block(struct eng_stream *s);
void eng__stream_push(struct eng_stream *s, const struct eng_event *ev); // there must be room
void eng__stream_flush(struct eng_stream *s, bool last); // wakes the consumer if it must be
