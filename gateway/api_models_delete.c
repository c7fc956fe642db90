// SPDX-License-Identifier: Apache-2.0
// DELETE /v1/models/{id}: a fine-tuned model is served no more. Whoever made it may do that, and
// administrators.
#include "base/json_write.h"
#include "base/mem.h"
#include "gateway/adapter_demand.h"
#include "gateway/api_adapters.h"
#include "gateway/api_task.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct deletion {
    struct api_answer a; // first
    const struct api_adapters *of;
    struct gw_identity who;
    char id[ADP_NAME_MAX + 32];
};

static enum err unknown(const char *id, struct err_info *info) {
    return err_set(info, ERR_NO_MODEL, "model", "The model `%.128s` does not exist", id);
}

// name or name@number, which stands for a version of its own.
static enum err split(const char *id, char name[ADP_NAME_MAX + 1], uint64_t *version) {
    const char *at = strrchr(id, '@');
    size_t n = at ? (size_t)(at - id) : strlen(id);
    char *end = NULL;
    *version = at ? strtoull(at + 1, &end, 10) : 0;
    if (n > ADP_NAME_MAX || (at && (*end || !*version)))
        return ERR_NO_MODEL;
    memcpy(name, id, n);
    name[n] = '\0';
    return ERR_OK;
}

static enum err may(const struct deletion *d, const char *name, struct err_info *info) {
    uint64_t tenant;
    if (d->who.admin)
        return ERR_OK;
    const struct api_adapters *of = d->of;
    if (of->owner && of->owner(of->owner_arg, name, &tenant) && tenant == d->who.tenant)
        return ERR_OK;
    return err_set(info, ERR_PERMISSION, "model",
                   "the model `%.128s` is not one that this key's tenant has made", d->id);
}

// Checkpoints go by their job's keep policy. What an administrator has loaded under such a name is
// none.
static enum err refuse_checkpoint(const struct deletion *d, const char *name,
                                  struct err_info *info) {
    const struct app *app = d->of->app;
    char path[ADP_PATH_MAX];
    bool known = adp_knows(app->adapters, d->id);
    if (!app->demand || !adapter_demand_claims(name) || (strcmp(name, d->id) != 0 && !known) ||
        (known && !adapter_demand_has(app->demand, name)))
        return ERR_OK;
    enum err e = app->demand->find(app->demand->arg, name, path, info);
    return e && e != ERR_FORMAT
               ? e
               : err_set(
                     info, ERR_INVALID, "model",
                     "`%.128s` is a checkpoint of a job; it goes when newer ones take its place, "
                     "or with its model",
                     d->id);
}

static enum err make(struct api_answer *a, struct err_info *info) {
    struct deletion *d = (struct deletion *)a;
    char name[ADP_NAME_MAX + 1];
    uint64_t version;
    const struct app *app = d->of->app;
    if (!app_check_model(app, d->id, NULL))
        return err_set(info, ERR_INVALID, "model",
                       "`%.128s` is the base model; only fine-tuned models can be deleted", d->id);
    if (!app->adapters || split(d->id, name, &version))
        return unknown(d->id, info);
    enum err e = refuse_checkpoint(d, name, info);
    if (e)
        return e;
    if (!adp_knows(app->adapters, d->id))
        return unknown(d->id, info);
    e = may(d, name, info);
    if (!e)
        e = adapter_host_retire(d->of->host, name, version, info);
    if (e == ERR_NOT_FOUND) // an alias, or somebody was faster
        return unknown(d->id, info);
    if (e)
        return e;
    if (app->demand)
        adapter_demand_recheck(app->demand, name);
    struct json_w w = json_w_begin(&a->body);
    jw_obj(&w);
    jw_kstr(&w, "id", d->id);
    jw_kstr(&w, "object", "model");
    jw_kbool(&w, "deleted", true);
    jw_obj_end(&w);
    return ERR_OK;
}

void api_models_delete(struct gw_request *r, void *arg) {
    const struct api_adapters *of = arg;
    struct err_info info;
    const char *id = r->params[0];
    enum err e = app_check_open(of->app, &info);
    // Without adapters there is no thread to ask, and nothing that could be deleted.
    if (!e && (!of->app->adapters || strlen(id) >= sizeof((struct deletion *)0)->id))
        e = app_check_model(of->app, id, NULL) ? unknown(id, &info)
                                               : err_set(&info, ERR_INVALID, "model",
                                                         "`%.128s` is the base model; only "
                                                         "fine-tuned models can be deleted",
                                                         id);
    if (e) {
        gw_reply_error(r, &info);
        return;
    }
    struct deletion *d = api_answer_begin(r, of->host->admin, sizeof *d, make);
    if (!d)
        return;
    d->of = of;
    d->who = r->who;
    snprintf(d->id, sizeof d->id, "%s", id);
    api_answer_start(&d->a);
}
