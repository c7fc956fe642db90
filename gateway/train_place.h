// SPDX-License-Identifier: Apache-2.0
// Where a server's training does its device work: on the engine's thread in idle time, with
// activations in the spare top of the KV pool. Joins the engine's background and one executor at a
// time.
//
// Threads: the trainer's creates and destroys the executor; the engine's runs it. The engine lives
// longer than any executor here.
#pragma once
#include "base/mailbox.h"
#include "base/thread.h"
#include "finetune/executor.h"
#include "finetune/home.h"
#include "serving/engine.h"

struct train_place_state {
    char job[FT_ID_MAX]; // that trains; empty: none
    char reason[200];    // why it makes no progress; empty: it does
    struct ft_exec_usage memory;
    uint64_t taken; // how often a state was taken, since the start
};

struct train_place {
    struct eng *engine;       // set before the first executor is made, and its device
    struct kn_device *device; //
    size_t memory;            // the most that the engine can lend
    struct lock lock;         // guards the two below; held by the engine while a slice runs
    struct ft_exec *exec;
    uint64_t taken;       // of executors that have ended; guarded, as what follows
    char job[FT_ID_MAX];  // whose it is
    bool leaving;         // the engine shall give its memory back and forget it
    struct mailbox *left; // only ever woken
};

enum err train_place_init(struct train_place *p, struct err_info *info);
void train_place_fini(struct train_place *p); // also of zeros
// What the engine is made with.
struct eng_background train_place_background(struct train_place *p);

// Memory, wake and thread are filled in. ERR_LIMIT: the engine never has room for a row.
enum err train_place_create(struct train_place *p, const struct ft_exec_config *cfg,
                            struct ft_exec **out, struct err_info *info);
// Of which job the next executor is.
void train_place_name(struct train_place *p, const char *job);
void train_place_read(struct train_place *p, struct train_place_state *out); // any thread
void train_place_destroy(struct train_place *p, struct ft_exec *x);
// The executor that is there, if any: its rows end, its state can still be had; any thread.
void train_place_leave(struct train_place *p);
// Ends all commands of the executor that is there, if any; any thread.
void train_place_stop(struct train_place *p);
