// SPDX-License-Identifier: Apache-2.0
#include "serving/rollout.h"

static enum err one_replica(const struct rollout_ops *o, int32_t replica, struct adp_version *v,
                            struct err_info *info) {
    const struct {
        rollout_step fn;
        const char *name;
    } steps[] = {{o->load, "load"}, {o->verify, "verify"}, {o->warm, "warm-up"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        *info = (struct err_info){.code = ERR_OK};
        enum err e = steps[i].fn ? steps[i].fn(o->arg, replica, v, info) : ERR_OK;
        if (!e)
            continue;
        if (info->code != e)
            err_set(info, e, NULL, "%s", err_text(e));
        if (o->n_replicas > 1)
            err_prefix(info, "replica %d, %s", (int)replica, steps[i].name);
        return e;
    }
    return ERR_OK;
}

static enum err decide(const struct rollout_ops *o, struct adp_version *v, bool *promote,
                       struct err_info *info) {
    *info = (struct err_info){.code = ERR_OK};
    enum err e = o->decide ? o->decide(o->arg, v, promote, info) : ERR_OK;
    if (e && info->code != e)
        err_set(info, e, NULL, "%s", err_text(e));
    return e;
}

enum err rollout_run(const struct rollout_ops *o, struct adp_registry *r, struct adp_version *v,
                     bool *promote, struct err_info *info) {
    struct err_info own;
    if (!info)
        info = &own;
    enum err e = ERR_OK;
    int32_t begun = 0;
    while (!e && begun < o->n_replicas)
        e = one_replica(o, begun++, v, info);
    if (!e)
        e = decide(o, v, promote, info);
    if (adp_is_verifying(v))
        adp_verified(v, e, info); // before it is dropped: then nobody makes it resident anew
    while (e && begun > 0)
        o->drop(o->arg, --begun, v);
    if (!e && *promote)
        e = adp_promote(r, adp_name(v), adp_number(v), info);
    *promote &= !e;
    return e;
}
