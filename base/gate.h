// SPDX-License-Identifier: Apache-2.0
// A word that some threads change and others wait for: they spin for some tens of microseconds at
// most, then sleep on a futex, so that a waiter leaves its core to one that was pushed off its own.
// Any thread may call any of these.
#pragma once
#include <stdatomic.h>
#include <stdint.h>

struct gate {
    _Alignas(64) _Atomic uint32_t word; // readers look at it directly
    _Alignas(64) _Atomic int sleepers;
};

// Stores the word and wakes those who sleep. What was written before is visible to them.
void gate_set(struct gate *g, uint32_t word);
void gate_add(struct gate *g, uint32_t n); // the same with word + n
// Returns when the word is no longer `old`, after `spins` pauses (gate_spins) asleep.
void gate_wait(struct gate *g, uint32_t old, int spins);
// Pauses that take about as long as going to sleep and waking do. Takes some microseconds.
int gate_spins(void);
