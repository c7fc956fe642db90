// SPDX-License-Identifier: Apache-2.0
// The engine's adapter slots. A version is made resident by a job in the I/O pool (reading if host
// memory gave it up, packing, uploading on a queue of its own); the engine thread only sets a slot
// between two steps. Engine thread, but for the job. README.md, rules 27 to 34.
#pragma once
#include "base/io_pool.h"
#include "base/thread.h"
#include "model/lora.h"
#include "serving/adapter_registry.h"

struct eng;
struct eng__req;

struct eng__slot {
    struct io_job job; // first
    struct eng *e;
    enum { ENG__SLOT_EMPTY, ENG__SLOT_FILLING, ENG__SLOT_READY } state;
    struct adp_version *version; // held; NULL: none, or only `old` is to be freed
    uint64_t number;             // of the version
    struct mdl_lora *resident;   // of the version, shared with other engines; NULL while FILLING
    struct adp_version *old;     // the job drops what the slot had of it; held; NULL: nothing
    struct err_info error;       // of the job
    bool done;                   // the job has ended; under the lock
    bool fresh;                  // nobody was admitted since it was filled
    uint64_t closing_for;        // number of the version that waits for this slot; 0: none
    int32_t users;               // running sequences, as counted when admission began
    uint64_t used;               // tick of the last admission
};

struct eng__adapters {
    struct mdl_lora_slots *table;
    struct eng__slot *slots; // [n]
    int32_t n;               // 0: no adapters
    int32_t filling;
    uint64_t ticks;
    uint64_t retired_seen; // of the registry's list
    struct lock lock;      // around done and the wake that follows
};

enum err eng__adapters_init(struct eng *e, struct err_info *info);
void eng__adapters_fini(struct eng *e); // no job runs any more

// Takes what the jobs have made, lets go what was retired. True if something has changed.
bool eng__adapters_turn(struct eng *e);
// Before a round of admissions.
void eng__adapters_begin(struct eng *e);
// Whether the request's adapter is in a slot that takes sequences; if so the request names it. If
// not, what can be done about it has been begun.
bool eng__adapters_ready(struct eng *e, struct eng__req *q);
void eng__adapters_admitted(struct eng *e, const struct eng__req *q);
