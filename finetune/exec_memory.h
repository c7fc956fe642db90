// SPDX-License-Identifier: Apache-2.0
// The executor's memory. What is lent is one range whose upper end never moves:
//
//   [ activations of the row in hand | state: lora/params.h, through a pager ]
//   at                                base                                   end
//
// The state is needed for every command, activations for a row. When memory has to come back,
// activations go first and at once; then the state from its lower end, as fast as a file takes it.
// README.md, rules 42 to 49. Without a lender both are allocated, and this is a constant.
//
// Threads: those of the executor. Its queue's thread calls everything that is not said to be
// another's.
#pragma once
#include "finetune/executor.h"
#include <stdatomic.h>

struct exec_memory {
    const struct kn_ops *ops;
    struct kn_device *device;
    struct ft_memory lend; // borrow NULL: nothing is lent
    struct lora_params *params;
    struct ft_pager *pager; // NULL: nothing is lent
    void (*moved)(void *arg);
    void *moved_arg;
    size_t state;       // bytes of the range that stay from command to command
    size_t want, least; // for a row, beside it
    kn_addr base;       // of the state
    kn_addr own;        // activations, where nothing is lent
    kn_addr touched;    // [touched, touched_end) has had its physical memory
    kn_addr touched_end;
    _Atomic size_t have;  // bytes borrowed or allocated; written by the queue's thread
    _Atomic bool giving;  // more was asked back than is free so far
    bool found;           // the command in hand may go on
    int64_t asked_ns;     // when memory was last asked for in vain
    _Atomic bool starved; // there is not enough
    _Atomic bool moving;  // the state is on its way
};

// The trainer's thread: parameters with their first values, the pager, the sizes. What was made is
// destroyed by _close, also after an error.
enum err exec_memory_open(struct exec_memory *m, const struct ft_exec_config *cfg,
                          struct kn_queue *q, struct err_info *info);
void exec_memory_close(struct exec_memory *m);
void exec_memory_stop(struct exec_memory *m); // the trainer's thread: the state moves no more

struct exec_room { // for activations
    kn_addr at;
    size_t bytes;
};
// Before a command changes anything, and before it goes on when the state was away. ERR_AGAIN: not
// yet. For a row with room for its activations; else (NULL) the state will do.
enum err exec_memory_find(struct exec_memory *m, const struct clock *clock, struct exec_room *row,
                          struct err_info *info);
// Between _find and the row's begin: what it will use of its room gets physical memory, piece by
// piece. False: not all of it before the deadline. Undefines the room's content.
bool exec_memory_touch(struct exec_memory *m, kn_addr at, size_t bytes, const struct clock *clock,
                       int64_t deadline_ns);
bool exec_memory_there(
    const struct exec_memory *m); // still, since _find; false: it is to be called again
// `bytes` are wanted back. The row in hand has been dropped; `gradient`: a unit still needs its
// gradient.
void exec_memory_give_back(struct exec_memory *m, size_t bytes, bool gradient);
bool exec_memory_settle(struct exec_memory *m);    // gives what has become free since; true: it did
bool exec_memory_failed(struct exec_memory *m);    // any thread: the state is lost
bool exec_memory_unsettled(struct exec_memory *m); // any thread: there is something of that kind
void exec_memory_drop(struct exec_memory *m); // after _stop: gives everything, its content is lost
void exec_memory_read(struct exec_memory *m, struct ft_exec_usage *out); // any thread
enum err exec_memory_clear_sums(struct exec_memory *m,
                                struct err_info *info); // the trainer's thread
