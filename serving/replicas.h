// SPDX-License-Identifier: Apache-2.0
// Several engines over the same weights, and which of them takes a request. Each engine has a
// device (threads) and a KV pool of its own; answers do not depend on which one gives them.
// README.md, rules 35 to 38.
//
// Any thread may call. The engines are made, started and destroyed by the owner.
#pragma once
#include "serving/engine.h"

enum { REPLICAS_MAX = 64 };

struct replicas {
    int32_t n;
    struct eng *engine[REPLICAS_MAX];
    // An engine that owes progress and made none for this long gets no requests while another may
    // take them; 0: no limit.
    int64_t stall_ns;
    const struct clock *clock; // NULL: system
};

// eng_submit to the replica that has least to do, counted with the part of the prompt that another
// one may have in its cache. A full or a dead one is passed over: ERR_QUEUE_FULL and
// ERR_ENGINE_DEAD say that none is left.
enum err replicas_submit(struct replicas *r, const struct eng_request *q, struct eng_stream **out,
                         struct err_info *info);
// Where requests that begin like this one go as long as nobody is busy. For tests.
int32_t replicas_home(const struct replicas *r, const struct eng_request *q);

void replicas_drain(struct replicas *r);
int32_t replicas_in_flight(const struct replicas *r);
void replicas_wake(struct replicas *r); // each looks at what has changed
// ERR_OK: each is alive. Else what the first that is not lacks, with its number where there are
// several.
enum err replicas_check(const struct replicas *r, struct err_info *info);
