// SPDX-License-Identifier: Apache-2.0
// Reads one answer as it arrives and checks it against the API's rules: framing of the event
// stream, JSON, one finish_reason, usage, [DONE] last.
#pragma once
#include "base/buf.h"
#include <stdbool.h>
#include <stdint.h>

enum lt_fault {
    LT_FAULT_NONE,
    LT_FAULT_CONNECT, // no connection, or it broke
    LT_FAULT_TIMEOUT,
    LT_FAULT_BUSY,    // 429 and 503
    LT_FAULT_CLIENT,  // other 4xx
    LT_FAULT_SERVER,  // other 5xx
    LT_FAULT_FRAMING, // not an event stream as the standard has it
    LT_FAULT_JSON,
    LT_FAULT_ERROR,  // an error event in the stream
    LT_FAULT_FINISH, // no finish_reason, a second one, one outside the enum, or no [DONE]
    LT_FAULT_USAGE,  // usage missing, or not what was counted
    LT_FAULTS
};
const char *lt_fault_name(enum lt_fault f);

struct lt_answer {
    bool stream, count_logprobs;
    struct buf pending; // bytes of an unfinished event, or of a whole body
    enum lt_fault fault;
    char detail[160];
    int32_t content_events;                   // chunks that carried text or logprobs
    int32_t logprob_tokens;                   // entries counted
    int64_t prompt_tokens, completion_tokens; // from usage; -1: not seen
    bool finished, done, length;
};

void lt_answer_init(struct lt_answer *a, bool stream, bool count_logprobs);
void lt_answer_fini(struct lt_answer *a);
// More bytes; returns how many events with content they completed.
int32_t lt_answer_feed(struct lt_answer *a, const char *p, size_t n);
// The answer is over (HTTP status 200); the last checks. max_tokens: what was asked for.
void lt_answer_end(struct lt_answer *a, int32_t max_tokens);
