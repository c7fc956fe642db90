// SPDX-License-Identifier: Apache-2.0
// What recording (queue.c) and running (run.c) of commands share.
#pragma once
#include "base/arena.h"
#include "base/gate.h"
#include "kernels/cpu/cpu_device.h"

enum { BLOCK_COMMANDS = 64 };

// A command's state: threads that have come, of these arrived at its end (or at its next barrier),
// and whether more may come.
enum { COME_ONE = 1, COME_MASK = 0x7fff, ARRIVED_SHIFT = 15, ARRIVED_ONE = 1 << ARRIVED_SHIFT };
#define CLOSED ((uint32_t)1 << 31)

struct cpu_command {
    _Alignas(64) _Atomic int32_t next; // claim counter, on one line with the state
    _Atomic uint32_t state;
    _Alignas(64) cpu_run_fn fn;
    const char *name;
    const char *stream; // memory that the command reads once, thread by thread in order; or NULL
    size_t stream_bytes;
    _Alignas(16) char params[CPU_PARAM_BYTES];
};

struct block {
    struct block *next;
    struct cpu_command commands[BLOCK_COMMANDS];
};

struct kn_queue {
    struct kn_device *device;
    struct block *first, *last; // last: where the next command goes
    int n;                      // commands recorded
    struct arena staged;
    struct err_info error; // code ERR_OK: none; set while recording or by the run
    // While the commands run:
    struct gate current; // index of the command that runs; n when all is over
    struct gate phase;   // counts barriers inside commands
    _Atomic int failed;  // enum err of the first failure
    const char *failed_name;
    uint64_t epoch; // of the first command
};

// Runs the recorded commands, of which there is at least one. The error that stopped it, with
// failed_name set.
enum err cpu_queue_run(struct kn_queue *q);
