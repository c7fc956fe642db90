// SPDX-License-Identifier: Apache-2.0
// What this process may use of the machine: CPUs (affinity mask and cgroup quota), memory (physical
// and cgroup limit) and the NUMA nodes behind them. Reads /proc and /sys; blocks for as long as
// that takes. Stateless, thread-safe.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CPUS_MAX = 1024, CPUS_MAX_NODES = 64 };

struct cpus {
    int n;                 // CPUs in the affinity mask
    int16_t cpu[CPUS_MAX]; // their numbers: one of each node in turn, so that the first few threads
                           // reach all of the memory
    int8_t node[CPUS_MAX]; // NUMA node of cpu[i], 0 where there is no NUMA
    int n_nodes;           // nodes that hold one of these CPUs
    uint64_t node_mask;    // bit per node number
    double quota;          // CPUs that the cgroup grants, 0: no limit
    size_t memory;         // bytes: the smaller of physical memory and the cgroups' limits
};

// `root` stands before /proc and /sys ("" but in tests).
void cpus_read(struct cpus *c, const char *root);
// Threads worth starting: the CPUs, at most the quota rounded down, at least 1. One thread more
// than the quota would be stopped for a part of every period, and the others wait for it.
int cpus_threads(const struct cpus *c);
// Spreads the pages of a fresh mapping over the nodes; does nothing with one node. False: refused.
bool cpus_interleave(const struct cpus *c, void *p, size_t bytes);
