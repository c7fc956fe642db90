// SPDX-License-Identifier: Apache-2.0
// Models that are served once somebody asks for them: the checkpoints of fine-tuning jobs, by the
// names that the list of checkpoints gives ("ft:...:ckpt-step-20"). The first request that names
// one waits, on the adapters' thread, until its folder is found, checked and loaded; it is read
// where it lies, is not listed, and is forgotten when the folder goes, when too many others were
// asked for since, or when the process ends.
#pragma once
#include "gateway/adapter_host.h"
#include "gateway/http.h"

enum { ADAPTER_DEMAND_MAX = 16 }; // loaded at a time

struct adapter_demand {
    struct adapter_host *host;
    // Finds and checks the folder of a name; the error says why there is none. Adapters' thread;
    // blocks.
    enum err (*find)(void *arg, const char *name, char path[ADP_PATH_MAX], struct err_info *info);
    void *arg;
    // The adapters' thread's: what is loaded, the oldest first.
    struct adapter_demand_item {
        char name[ADP_NAME_MAX + 1], path[ADP_PATH_MAX];
    } items[ADAPTER_DEMAND_MAX];
    int n;
};

// Whether a name is of that kind.
bool adapter_demand_claims(const char *name);
// Whether a name, or what it is an alias of, is to be looked for by adapter_demand_wait.
bool adapter_demand_wants(const struct app *app, const char *name);

// Loop's thread. False: the name needs no wait (it is known, or none of these). True: the request
// was taken over; once the model is loaded, go_on runs on the loop, in the place of a handler, or
// the request is answered with the reason. `arg` lives as long as the request.
bool adapter_demand_wait(struct gw_request *r, const struct app *app, const char *name,
                         void (*go_on)(struct gw_request *r, void *arg), void *arg);

// Adapters' thread. Loads what the name stands for, if it is of that kind and not yet loaded;
// blocks. The error says why there is none.
enum err adapter_demand_load(struct adapter_demand *d, const char *name, struct err_info *info);
// Adapters' thread. Whether the name's versions were loaded here, and not by somebody's order.
bool adapter_demand_has(const struct adapter_demand *d, const char *name);
// Adapters' thread: of the model's checkpoints those are let go that find does not know any more.
void adapter_demand_recheck(struct adapter_demand *d, const char *model);

// Any thread: folders may have gone; what lay in them is let go soon.
void adapter_demand_sweep(struct adapter_demand *d);
