// SPDX-License-Identifier: Apache-2.0
// The rolling swap: a version is brought to one replica after another, and its name moves when each
// has it ready. Until then the former version answers, and whatever fails leaves it so.
//
//   for each replica: load (into a slot) -> verify -> warm (a few tokens run on it)
//     all done   -> decide -> READY, and the name moves
//     any failed -> taken back everywhere, FAILED with the replica and the step in the reason
//
// A version that was READY before (promoted later, or again) stays what it was after a failure: it
// has been good once, and what failed may be for lack of a slot. README.md, rules 39 to 42.
//
// Blocks for as long as the replicas take; not for an engine's thread nor an event loop. Changes of
// one registry are made one after another.
#pragma once
#include "base/mailbox.h"
#include "serving/adapter_registry.h"
#include "serving/replicas.h"
#include <stdatomic.h>

// What is done on one replica. Each step may block, and on an error says why.
typedef enum err (*rollout_step)(void *arg, int32_t replica, struct adp_version *v,
                                 struct err_info *info);
struct rollout_ops {
    int32_t n_replicas;
    rollout_step load, verify, warm; // verify NULL: nothing is to be tried
    // Once, when all have it: whether the name moves. NULL: as the caller of rollout_run says.
    enum err (*decide)(void *arg, struct adp_version *v, bool *promote, struct err_info *info);
    // Takes back what was begun on the replica, however far it came.
    void (*drop)(void *arg, int32_t replica, struct adp_version *v);
    void *arg;
};

// The version is VERIFYING (adp_origin.verify), READY or ROLLED_BACK, and held by the caller; on
// success it is READY on every replica, and if *promote its name stands for it. *promote says on
// return whether it does.
enum err rollout_run(const struct rollout_ops *o, struct adp_registry *r, struct adp_version *v,
                     bool *promote, struct err_info *info);

// The steps over real engines. Used by one thread at a time, but for rollout_engines_stop.
struct rollout_engines {
    struct replicas *replicas;
    struct mailbox *wake; // only ever woken
    _Atomic bool stop;    // whoever waits ends with ERR_CANCELLED
    int64_t wait_ns;      // for a slot, and for an answer
    // Of the version in hand, set before each run; see struct adapter_load of the gateway.
    enum err (*verify)(void *arg, struct eng *engine, struct adp_version *v, struct err_info *info);
    enum err (*decide)(void *arg, struct eng *engine, struct adp_version *v, bool *promote,
                       struct err_info *info);
    void *hook_arg;
};
enum err rollout_engines_init(struct rollout_engines *e, struct replicas *r, struct err_info *info);
void rollout_engines_fini(struct rollout_engines *e); // also of zeros
void rollout_engines_stop(struct rollout_engines *e); // any thread; also of zeros
struct rollout_ops rollout_engines_ops(struct rollout_engines *e);
