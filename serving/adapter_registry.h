// SPDX-License-Identifier: Apache-2.0
// Adapters by name. A name stands for an immutable version: what was read once, with a number that
// is never used again. A request resolves a name once, at its beginning, and pins the version until
// its end; `name@number` addresses one version. Versions go through the states of
// adapter_registry.c.
//
// A small lock of base/ guards everything here; it is never held while a file is read. Any thread
// may call; what reads files says so, and is not for the engine thread or an event loop. The engine
// makes versions resident by itself (engine_adapters.c).
//
//   adp_load -> adp_promote -> adp_resolve ... adp_unpin -> adp_retire
#pragma once
#include "base/log.h"
#include "model/lora.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum adp_state {
    ADP_STAGED,
    ADP_LOADING,
    ADP_VERIFYING,
    ADP_READY,  // may be promoted; name@number reaches it
    ADP_ACTIVE, // what its name stands for
    ADP_DRAINING,
    ADP_RETIRED,
    ADP_FAILED,
    ADP_ROLLED_BACK,
    ADP_STATES
};
const char *adp_state_name(enum adp_state s); // "staged"
bool adp_edge_is_legal(enum adp_state from, enum adp_state to);

enum {
    ADP_NAME_MAX = 160,
    ADP_PATH_MAX = 1024,
    ADP_MAX_NAMES = 4096,
    ADP_MAX_VERSIONS = 2 * ADP_MAX_NAMES, // neither retired nor failed
    ADP_MAX_OF_NAME = 1024,               // of these, versions of one name
    ADP_MAX_REPLICAS = 64
};

// Where a version is in one engine's slots.
enum adp_place { ADP_PLACE_NONE, ADP_PLACE_LOADING, ADP_PLACE_READY, ADP_PLACE_FAILED };
const char *adp_place_name(enum adp_place p); // "none"

struct adp_registry;
struct adp_version; // ended by the registry once nobody holds it

struct adp_config {
    const struct mdl_config *model;
    int32_t max_rank; // 0: what the kernels allow
    int32_t max_host; // versions whose matrices are kept in host memory; the rest is read again
    int32_t replicas; // engines that serve them; 0: 1
    uint64_t next_version;   // the first number to give; 0: 1
    const char *const *base; // names that the base has: no adapter may take one
    size_t n_base;
    const struct log *log; // NULL: silent
};
enum err adp_create(const struct adp_config *cfg, struct adp_registry **out, struct err_info *info);
void adp_destroy(struct adp_registry *r); // nobody holds a version any more; NULL is legal

// Names are 1 to 160 of letters, digits and "._-:/", begin with a letter or digit, have no empty,
// "." or ".." part between slashes, and are not one of the base's.
enum err adp_check_name(const struct adp_registry *r, const char *name, struct err_info *info);

// Reads and checks the folder as a new version of `name`, which ends READY, or FAILED with the
// reason. `source` is what listings show. `version` 0: the next number; else one that an earlier
// process gave, with the digest it had then ("": any). `verify`: it ends VERIFYING instead of
// READY, for the caller to try it on an engine. Reads files. *out is held until adp_release.
// ERR_LIMIT: there are ADP_MAX_VERSIONS, or ADP_MAX_OF_NAME of the name; never with a `version`,
// since that one was acknowledged.
// `created` 0: now. `rolled_back`: it ends ROLLED_BACK, as an earlier process had it.
struct adp_origin {
    const char *path, *source;
    uint64_t version;
    const char *digest;
    int64_t created;
    bool verify, rolled_back;
    struct pace *pace; // of the calling thread; NULL: none
};
enum err adp_load(struct adp_registry *r, const char *name, const struct adp_origin *from,
                  struct adp_version **out, struct err_info *info);
// Ends VERIFYING: e ERR_OK: READY; else FAILED, with the reason.
void adp_verified(struct adp_version *v, enum err e, const struct err_info *info);
// From now on the version is read again from this folder.
enum err adp_set_path(struct adp_version *v, const char *path);
// Ends what adp_load or adp_hold began; the registry keeps the version as long as its state says.
void adp_release(struct adp_version *v);

// The name stands for this version from now on; the one before is kept to be rolled back to, and
// the one before that is retired.
enum err adp_promote(struct adp_registry *r, const char *name, uint64_t version,
                     struct err_info *info);
// The former version at once; the active one becomes ROLLED_BACK. An alias goes back to its former
// target, and what it stood for is the former one then. ERR_INVALID: there is none, or it is not
// served any more.
enum err adp_roll_back(struct adp_registry *r, const char *name, struct err_info *info);
// What an earlier process acknowledged: the name's versions, READY; 0: none.
enum err adp_name_again(struct adp_registry *r, const char *name, uint64_t active, uint64_t former,
                        struct err_info *info);
// The version takes no new requests, and goes when none holds it. version 0: all of the name.
enum err adp_retire(struct adp_registry *r, const char *name, uint64_t version,
                    struct err_info *info);
// A second name; `target` is a name or name@number. NULL takes the alias away. What it stood for is
// kept as its former target.
enum err adp_alias(struct adp_registry *r, const char *alias, const char *target,
                   struct err_info *info);
// One that an earlier process acknowledged: its targets may come later, or not be there any more.
// `former`: NULL, none.
enum err adp_alias_again(struct adp_registry *r, const char *alias, const char *target,
                         const char *former, struct err_info *info);
// What the alias stands for, loaded or not. False: there is no such alias.
bool adp_alias_target(struct adp_registry *r, const char *alias, char out[ADP_NAME_MAX + 32]);
// What it stood for before. False: no alias, or none before.
bool adp_alias_former(struct adp_registry *r, const char *alias, char out[ADP_NAME_MAX + 32]);

// A name, an alias or name@number; pins. ERR_NO_MODEL.
enum err adp_resolve(struct adp_registry *r, const char *name, struct adp_version **out,
                     struct err_info *info);
// Says of a name that adp_resolve does not know why. ERR_NO_MODEL.
enum err adp_no_model(struct adp_registry *r, const char *name, struct err_info *info);
bool adp_knows(struct adp_registry *r, const char *name); // whether adp_resolve would succeed
void adp_pin(struct adp_version *v); // of one that the caller has pinned, or verifies
void adp_unpin(struct adp_version *v);

// Immutable parts.
uint64_t adp_number(const struct adp_version *v);
const char *adp_name(const struct adp_version *v);
const char *adp_digest(const struct adp_version *v); // SHA-256 of the matrices and scales

// The matrices, read again if host memory gave them up; what they are must be what they were. Reads
// files. Until adp_host_drop.
enum err adp_host_take(struct adp_version *v, const struct mdl_adapter **out,
                       struct err_info *info);
enum err adp_host_take_paced(struct adp_version *v, struct pace *pace,
                             const struct mdl_adapter **out, struct err_info *info);
void adp_host_drop(struct adp_version *v);
// Frees the host memory that nobody needs any more: of versions that ended, and beyond max_host.
// Whoever loads, promotes or retires does it; it takes its time, so no engine's thread does.
void adp_sweep(struct adp_registry *r);

// The matrices in device memory, one for all engines over the same weights: those share device
// memory. Made by the first that asks; while it is being made, another one may make it, too, and
// only one stays. Reads files, computes. Until adp_resident_drop, once no queue uses it any more;
// the version is held. That frees memory: for a job, not for an engine's thread.
struct adp_device {
    const struct mdl_weights *weights;
    struct kn_device *device;
};
enum err adp_resident_take(struct adp_version *v, const struct adp_device *d, struct pace *pace,
                           struct mdl_lora **out, struct err_info *info);
void adp_resident_drop(struct adp_version *v);
// Frees memory that is kept for the next one. Before the weights go.
void adp_spare_free(struct adp_registry *r);

// For the engine. Holds a version's memory without pinning it.
void adp_hold(struct adp_version *v);
// How many sequences of the replica run on it, for listings.
void adp_set_running(struct adp_version *v, int32_t replica, int32_t n);
// What the replica's slots have of it; `reason` of FAILED, else NULL.
void adp_set_place(struct adp_version *v, int32_t replica, enum adp_place p, const char *reason);
bool adp_is_verifying(const struct adp_version *v);
bool adp_is_over(const struct adp_version *v); // RETIRED or FAILED, and not pinned any more
// Numbers of versions that ended (retired, or failed after they were read) since the last call, up
// to `cap`; *seen is the caller's, 0 at first.
size_t adp_take_retired(struct adp_registry *r, uint64_t *seen, uint64_t *out, size_t cap);

enum adp_place adp_place(struct adp_version *v, int32_t replica);
// Why it is FAILED there; "" otherwise.
void adp_place_reason(struct adp_version *v, int32_t replica, char *out, size_t cap);

// ---- what is there

struct adp_info {
    uint64_t version;
    char name[ADP_NAME_MAX + 1];
    char source[ADP_PATH_MAX], path[ADP_PATH_MAX];
    char digest[65], base[256], reason[512];
    enum adp_state state;
    bool active, former, in_host_memory;
    int32_t pins, running, max_r; // requests that hold it; sequences that run
    int32_t replicas;
    struct {
        enum adp_place place;
        int32_t running;
    } replica[ADP_MAX_REPLICAS]; // [replicas]
    int64_t created;             // Unix seconds
};
// Calls `each` for every version, in the order of their numbers; retired ones are forgotten after a
// while. `each` gets a copy and may call anything. ERR_NOMEM.
enum err adp_list(struct adp_registry *r, void (*each)(void *arg, const struct adp_info *i),
                  void *arg);
struct adp_alias_info {
    char alias[ADP_NAME_MAX + 1], target[ADP_NAME_MAX + 32];
    char former[ADP_NAME_MAX + 32]; // what it stood for before; or empty
    bool served;                    // now, in what adp_aliases gives: adp_resolve knows the target
};
enum err adp_aliases(struct adp_registry *r,
                     void (*each)(void *arg, const struct adp_alias_info *i), void *arg);

// ---- changes as values, for whoever writes one down before anybody sees it

enum adp_change_kind {
    ADP_CHANGE_NONE,
    ADP_CHANGE_PROMOTE, // name, version
    ADP_CHANGE_RETIRE,  // name, version or 0
    ADP_CHANGE_ALIAS,   // name, target or NULL
};
struct adp_change {
    enum adp_change_kind kind;
    const char *name;
    uint64_t version;
    const char *target;
};
// Whether adp_make would succeed now, memory aside; the error says why not.
enum err adp_check(struct adp_registry *r, const struct adp_change *c, struct err_info *info);
// adp_promote, adp_retire or adp_alias.
enum err adp_make(struct adp_registry *r, const struct adp_change *c, struct err_info *info);
// As adp_list and adp_aliases, of what is there once the change is made; who leaves is DRAINING.
enum err adp_list_after(struct adp_registry *r, const struct adp_change *c,
                        void (*each)(void *arg, const struct adp_info *i), void *arg);
enum err adp_aliases_after(struct adp_registry *r, const struct adp_change *c,
                           void (*each)(void *arg, const struct adp_alias_info *a), void *arg);
// The number that the next version will have.
uint64_t adp_next_number(struct adp_registry *r);
