// SPDX-License-Identifier: Apache-2.0
// The routes that change which adapters are served, and say how they are. All need an
// administrator's key: an adapter is everybody's. Handlers run on the request's loop; the changes
// on the adapters' own thread (adapter_host.h).
#pragma once
#include "gateway/adapter_host.h"

struct api_adapters {
    const struct app *app;
    struct adapter_host *host; // looked at once the model is loaded
    // Whose job made the model; false: no job did. Adapters' thread; blocks. NULL: there are no
    // jobs.
    bool (*owner)(void *arg, const char *name, uint64_t *tenant);
    void *owner_arg;
};

void api_models_delete(struct gw_request *r, void *arg); // api_models_delete.c

// The routes; `a` outlives the server. Returns how many, 0 if `cap` is too small.
size_t api_adapters_routes(struct api_adapters *a, struct gw_route *out, size_t cap);
