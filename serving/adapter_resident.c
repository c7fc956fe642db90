// SPDX-License-Identifier: Apache-2.0
// A version's matrices in device memory: made by whichever engine needs them first, shared by all
// that have it in a slot. The memory of the last one that nobody needs any more is kept for the
// next: fresh memory costs the kernel more than its filling costs us.
#include "serving/adapter_registry_internal.h"

static bool take_made(struct adp_version *v, struct mdl_lora **out) {
    if (!v->resident)
        return false;
    v->resident_users++;
    *out = v->resident;
    return true;
}

static struct mdl_lora *take_spare(struct adp_registry *r) {
    struct mdl_lora *l = r->spare;
    r->spare = NULL;
    return l;
}

static enum err make(struct adp_version *v, const struct adp_device *d, struct pace *pace,
                     struct mdl_lora *spare, struct mdl_lora **out, struct err_info *info) {
    const struct kn_ops *ops = d->weights->ops;
    const struct mdl_adapter *host;
    struct kn_queue *q;
    enum err e = adp_host_take_paced(v, pace, &host, info);
    if (e) {
        mdl_lora_destroy(spare);
        return e;
    }
    e = ops->queue_create(d->device, &q);
    if (e) {
        err_set(info, e, NULL, "no memory for an adapter's upload");
        mdl_lora_destroy(spare);
    } else {
        e = mdl_lora_create_in(d->weights, q, host, spare, pace, out, info);
        ops->queue_destroy(q);
    }
    adp_host_drop(v);
    return e;
}

enum err adp_resident_take(struct adp_version *v, const struct adp_device *d, struct pace *pace,
                           struct mdl_lora **out, struct err_info *info) {
    struct adp_registry *r = v->reg;
    struct mdl_lora *own = NULL, *spare;
    lock_take(&r->lock);
    bool made = take_made(v, out);
    spare = made ? NULL : take_spare(r);
    lock_drop(&r->lock);
    if (made)
        return ERR_OK;
    enum err e = make(v, d, pace, spare, &own, info);
    if (e)
        return e;
    lock_take(&r->lock);
    if (!v->resident) {
        v->resident = own;
        own = NULL;
    }
    (void)take_made(v, out);
    lock_drop(&r->lock);
    mdl_lora_destroy(own); // somebody else was faster
    return ERR_OK;
}

void adp_resident_drop(struct adp_version *v) {
    struct adp_registry *r = v->reg;
    struct mdl_lora *old = NULL;
    lock_take(&r->lock);
    if (--v->resident_users == 0) {
        old = r->spare;
        r->spare = v->resident;
        v->resident = NULL;
    }
    lock_drop(&r->lock);
    mdl_lora_destroy(old);
}

void adp_spare_free(struct adp_registry *r) {
    lock_take(&r->lock);
    struct mdl_lora *l = take_spare(r);
    lock_drop(&r->lock);
    mdl_lora_destroy(l);
}
