// SPDX-License-Identifier: Apache-2.0
// Training's device work, in commands that the trainer's thread gives and the thread that owns the
// queue runs in slices of bounded length: the engine's thread on idle time, or a thread of its own
// (`graft train`). One command is in hand at a time; the trainer's calls block until theirs is done
// or cancelled. State (get, set, clear) needs no slice: no command is in hand then, so the
// trainer's thread has the queue to itself and copies.
//
// Threads: ft_exec_run, ft_exec_give_back: the queue's thread. Everything else: the trainer's
// thread, but ft_exec_stop, _leave, _urgent and _waits: any. The queue's thread runs commands until
// the trainer's last call has returned: stop the executor, then the trainer, then the engine.
#pragma once
#include "finetune/lora/unit.h"
#include "finetune/pager.h"

struct ft_exec;

// Where the job's state and its activations lie: serving lends them in one range, `want` bytes in
// all if it can, and says how many there are now. With less than `need` the command waits, and all
// but `held` may be taken back at once.
struct ft_memory_ask {
    size_t held, need, want;
};
struct ft_memory {
    size_t (*borrow)(void *arg, const struct ft_memory_ask *ask, kn_addr *at);
    void (*give)(void *arg, size_t keep_bytes); // returns all but the upper keep_bytes
    kn_addr end;                                // *at + bytes, always
    void *arg;
};

struct ft_exec_config {
    const struct mdl_weights *weights;
    struct kn_queue *queue;   // nobody else's; NULL: made on `device`
    struct kn_device *device; // NULL: the weights'
    struct lora_config lora;
    struct lora_unit_limits limits;
    struct ft_memory memory; // zeros: allocated from the device
    struct ft_spill spill;   // where the state goes when `memory` wants it back
    const struct clock *clock;
    // Tells the queue's thread that there is work (eng_wake); NULL: the executor runs a thread of
    // its own.
    void (*wake)(void *arg);
    void *wake_arg;
};
enum err ft_exec_create(const struct ft_exec_config *cfg, struct ft_exec **out,
                        struct err_info *info);
void ft_exec_destroy(struct ft_exec *x);

// For eng_background: works for at most about budget_us, returns the microseconds used; 0: nothing
// to do.
int64_t ft_exec_run(struct ft_exec *x, int64_t budget_us);
// Activations are dropped (the unit in hand starts again later), and their memory is returned
// before this returns. Of the state, whatever is in its file already; the rest as it gets there,
// piece by piece: by later calls of this, or of ft_exec_run, which _urgent asks for.
void ft_exec_give_back(struct ft_exec *x, size_t bytes);
// The end, after ft_exec_retire: all memory is returned.
void ft_exec_drop(struct ft_exec *x);
// Ends the command in hand and all later ones with ERR_CANCELLED; any thread.
void ft_exec_stop(struct ft_exec *x);
// The trainer is about to stop: a row in hand and all later ones end with ERR_CANCELLED, and the
// sums are undefined until they are cleared. A step that has begun still ends, and state can be
// had. Any thread.
void ft_exec_leave(struct ft_exec *x);
// Whether a command waits that stop, leave or a lost state would end, or memory is to be returned:
// it needs a call of ft_exec_run. Any thread.
bool ft_exec_urgent(struct ft_exec *x);
// How long the command in hand has had no slice, 0 if there is none; *memory: because it has no
// memory. Any thread.
int64_t ft_exec_waits(const struct ft_exec *x, bool *memory);
int64_t ft_exec_trainable(const struct ft_exec *x); // values of the adapter
void ft_exec_retire(
    struct ft_exec *x); // no command will come any more, and the state stays where it is

// Device memory: of the state (adapter, gradient, sums, moments), beside it for a row, the least
// and the most.
struct ft_exec_sizes {
    size_t state, least, most;
};
void ft_exec_sizes(const struct ft_exec *x, struct ft_exec_sizes *out);
// The same for an executor that is not made.
enum err ft_exec_measure(const struct ft_exec_config *cfg, struct ft_exec_sizes *out,
                         struct err_info *info);
struct ft_exec_usage {
    size_t state_bytes, state_resident; // the rest is in a file
    size_t activation_bytes;
    uint64_t taken; // how often the state, or a part of it, was taken
};
void ft_exec_usage(struct ft_exec *x, struct ft_exec_usage *out); // any thread

// ---- commands, each blocks until slices have done it. ERR_CANCELLED after stop.
enum err ft_exec_unit(struct ft_exec *x, const struct lora_row *row, struct lora_row_result *out,
                      struct err_info *info);
struct ft_step {
    double divisor;       // supervised tokens (their weights' sum) of the whole step
    double max_grad_norm; // 0: no clipping
    double lr, beta1, beta2, eps, decay;
    int64_t t;    // from 1
    int exponent; // that the units were added with
};
struct ft_step_result {
    double grad_norm; // before clipping, after the division
    double largest;   // largest |gradient| as added, for the next exponent
    double clip;      // factor that was applied
};
enum err ft_exec_step(struct ft_exec *x, const struct ft_step *s, struct ft_step_result *out,
                      struct err_info *info);
// ---- state, on the calling thread. ERR_CANCELLED after stop.
enum err ft_exec_clear(struct ft_exec *x,
                       struct err_info *info); // sums to zero: the step is repeated
enum err ft_exec_get(struct ft_exec *x, struct mdl_adapter *w, struct mdl_adapter *m,
                     struct mdl_adapter *v, struct err_info *info);
enum err ft_exec_set(struct ft_exec *x, const struct mdl_adapter *w, const struct mdl_adapter *m,
                     const struct mdl_adapter *v, struct err_info *info);
