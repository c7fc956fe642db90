// SPDX-License-Identifier: Apache-2.0
// Everything that serving adapters needs beside the engine: the registry, its threads, what the
// operator asked for at start, and the folder that keeps adapters over a restart.
//
// <data-dir>/adapters/state.json    which versions there are, what is active; written last
// <data-dir>/adapters/v<number>/    a version's files, copied when it was loaded, with a manifest
//
// Changes are made one after another on one thread of their own (`admin`), so they need no lock;
// what takes long of them is done by a thread of low priority (`gentle`) in short bursts while that
// one waits. The first are made on the main thread, before the server is ready.
#pragma once
#include "base/buf.h"
#include "base/io_pool.h"
#include "base/log.h"
#include "base/reserve.h"
#include "gateway/app.h"
#include "gateway/serve_options.h"
#include "serving/rollout.h"

// Numbers of versions in the state file are below it: each is exact in any reader of JSON.
#define ADAPTER_NUMBERS_END (INT64_C(1) << 53)

struct adapter_host {
    struct adp_registry *registry;  // NULL: none are served
    struct rollout_engines rollout; // zeros until the engines run
    struct io_pool *admin;          // changes; one thread
    struct io_pool *fetch;          // versions that become resident because requests wait for them
    struct io_pool *gentle;         // what is read, kept and made resident for a swap
    struct mailbox *gentle_done;    // only ever woken
    const struct serve_options *options;
    const struct mdl_config *config;
    const struct log *log;
    int dir; // <data-dir>/adapters; -1: nothing is kept
    char path[512];
    // Writes what the copy of a folder comes from, and its mark, into the copy; blocks. NULL:
    // nothing.
    enum err (*seal)(void *arg, int dir, const char *source, struct pace *pace,
                     struct err_info *info);
    void *seal_arg;
    struct reserve *reserve; // given up where the disk is full, or NULL; its owner's
    struct buf saved;        // what state.json holds; empty: it is not there
    bool unsaved;            // or is not known: a save failed, and then putting it back
    uint64_t reserved;       // numbers below are promised in the state file never to be given again
};

// After the model is loaded, before the engine is made. data_dir: a file descriptor, -1: none.
enum err adapter_host_open(struct adapter_host *h, const struct serve_options *o, int data_dir,
                           const struct mdl_config *config, struct app *app, const struct log *log,
                           struct err_info *info);
// The engines run: what is active is made resident on each of them, as far as slots go, before
// anybody asks.
enum err adapter_host_start(struct adapter_host *h, struct replicas *r, struct err_info *info);
void adapter_host_stop(struct adapter_host *h);  // no changes any more; before the engine ends
void adapter_host_close(struct adapter_host *h); // after the engine has ended

// The changes. When they return ERR_OK, they last; on an error nothing has changed, now or after a
// restart.
struct adapter_load {
    const char *name, *path;
    bool in_place;      // the name may be known
    bool promote;       // the name stands for it at once
    bool own;           // a folder of ours: no --lora-dir is asked
    bool in_its_folder; // read from there for ever, not copied: it does not outlast the process
    // Tries the version on an engine before anything may use it: once for each replica, in whose
    // slots it is then. It is VERIFYING; may block; any error ends the version FAILED, with the
    // reason. NULL: nothing is tried.
    enum err (*verify)(void *arg, struct eng *engine, struct adp_version *v, struct err_info *info);
    // Once, after that: whether it is promoted, or stays READY beside the active one. *promote is
    // what the field above says. An error as above. NULL: as the field says.
    enum err (*decide)(void *arg, struct eng *engine, struct adp_version *v, bool *promote,
                       struct err_info *info);
    void *arg;
};
enum err adapter_host_load(struct adapter_host *h, const struct adapter_load *l, uint64_t *version,
                           struct err_info *info);
enum err adapter_host_promote(struct adapter_host *h, const char *name, uint64_t version,
                              struct err_info *info);
// The name moves at once, whatever change is being made; any thread. It lasts after
// adapter_host_keep; where that fails the name stays moved, and is kept with the next change or at
// the end.
enum err adapter_host_roll_back(struct adapter_host *h, const char *name, struct err_info *info);
enum err adapter_host_keep(struct adapter_host *h, struct err_info *info);
enum err adapter_host_retire(struct adapter_host *h, const char *name, uint64_t version,
                             struct err_info *info);
// With a data folder `target` must outlast the process: no name@version of one that is not kept.
enum err adapter_host_alias(struct adapter_host *h, const char *alias, const char *target,
                            struct err_info *info);

// adapter_store.c: the folder.
enum err adapter_store_open(struct adapter_host *h, int data_dir, uint64_t *next_version,
                            struct err_info *info);
enum err adapter_store_apply(struct adapter_host *h, struct err_info *info); // the desired state
// What is there once the change is made; the caller makes it then. An error: the file is as it was.
enum err adapter_store_save(struct adapter_host *h, const struct adp_change *c,
                            struct err_info *info);
// Whether the name is name@version of a version that does not outlast the process.
bool adapter_store_forgets(const struct adapter_host *h, const char *name);
enum err adapter_store_copy(struct adapter_host *h, struct adp_version *v, const char *source,
                            struct pace *pace, struct err_info *info);
// Folders that nobody needs any more. pace: of the calling thread, or NULL.
void adapter_store_clean(struct adapter_host *h, struct pace *pace);
