// SPDX-License-Identifier: Apache-2.0
// The registry's state, shared by adapter_registry.c (states, names), adapter_aliases.c,
// adapter_versions.c (reading, host memory), adapter_resident.c (device memory), adapter_list.c
// (listings) and adapter_change.c.
#pragma once
#include "base/thread.h"
#include "serving/adapter_registry.h"
#include <stdatomic.h>

enum {
    ADP__DEAD_MAX = 64,     // retired and failed versions that are still listed
    ADP__RETIRED_MAX = 256, // that an engine may not know of yet
};

struct adp__replica {
    _Atomic int32_t running;
    enum adp_place place; // the rest is guarded by the registry's lock
    char *reason;         // of FAILED; NULL: out of memory for it
};

struct adp_version {
    struct adp_registry *reg;
    uint64_t number;
    int64_t created;
    char name[ADP_NAME_MAX + 1];
    char digest[65];
    char base[256];
    char *source;
    int32_t max_r;
    // The rest is guarded by the registry's lock.
    char *path;
    enum adp_state state;
    char *reason; // of FAILED; NULL: out of memory for it
    int32_t refs; // of this memory: the registry's list, engine slots, whoever loads it
    int32_t pins; // requests
    struct mdl_adapter *host;
    int32_t host_users;
    uint64_t host_used;            // tick of the last use
    struct mdl_lora *resident;     // NULL: in no slot
    int32_t resident_users;        // slots, and who is about to fill one
    struct adp__replica replica[]; // [cfg.replicas]
};

struct adp__name {
    char name[ADP_NAME_MAX + 1];
    struct adp_version *active, *former; // NULL: none
};

struct adp_registry {
    struct adp_config cfg;
    struct lock lock;
    uint64_t next, ticks;
    struct mdl_lora *spare;        // memory for the next resident adapter, or NULL
    struct adp_version **versions; // [n_versions], by number
    size_t n_versions, cap_versions;
    struct adp__name *names;
    size_t n_names, cap_names;
    struct adp_alias_info *aliases;
    size_t n_aliases, cap_aliases;
    // The last numbers that ended, number i at [i % max]; one that an engine does not see any more
    // costs cache space until its blocks age, nothing else.
    uint64_t retired[ADP__RETIRED_MAX];
    _Atomic uint64_t n_retired; // changed with the lock held
};

// With the lock held.
struct adp__name *adp__find_name(struct adp_registry *r, const char *name);        // NULL: none
struct adp_alias_info *adp__find_alias(struct adp_registry *r, const char *alias); // NULL: none
struct adp_version *adp__lookup(struct adp_registry *r, const char *name); // see adp_resolve
bool adp__serves(const struct adp_version *v);
// Whether adp_promote, adp_alias would be accepted; *out is the version, or NULL.
enum err adp__check_promote(struct adp_registry *r, const char *name, uint64_t version,
                            struct adp_version **out, struct err_info *info);
enum err adp__check_alias(struct adp_registry *r, const char *alias, const char *target,
                          bool loaded, struct err_info *info);
void adp__point(struct adp_alias_info *a, const char *target); // the former target is kept
enum err adp__alias_back(struct adp_registry *r, struct adp_alias_info *a, struct err_info *info);
enum err adp__none_to_retire(const char *name, uint64_t version, struct err_info *info);
void adp__move(struct adp_version *v, enum adp_state to);
void adp__unref(struct adp_version *v);
enum err adp__insert(struct adp_registry *r, struct adp_version *v);
void adp__trim_dead(struct adp_registry *r);
// No request will use it any more: the engines are told. Its host memory goes with the next
// adp_sweep.
void adp__let_go(struct adp_version *v);
// All versions as copies, freed by the caller; takes the lock. ERR_NOMEM: *n 0.
enum err adp__list(struct adp_registry *r, struct adp_info **out, size_t *n);
