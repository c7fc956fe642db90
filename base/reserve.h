// SPDX-License-Identifier: Apache-2.0
// Room that is kept back for what must go on when the disk is full. A file in the data folder takes
// it up. When the disk is full it is given up: what changes states and what deletes has its room
// then, and new content is refused until there is room for the file again.
//
// Any thread; calls block on the disk.
#pragma once
#include "base/err.h"
#include "base/thread.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct reserve {
    int dir; // the caller's
    struct lock lock;
    _Atomic bool held;
    bool opened;
    _Atomic bool given; // it was held, and had to be given up
};

// The folder's reserve of an earlier process is held from the start. Makes none yet.
void reserve_open(struct reserve *r, int dir);
void reserve_close(struct reserve *r); // leaves the file; also of zeros
// True: it is held, perhaps only now. 4 MiB, less on a small disk; only where as much stays free.
bool reserve_take(struct reserve *r);
// Gives the room up. False: there was none to give.
bool reserve_give(struct reserve *r);
