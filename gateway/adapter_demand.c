// SPDX-License-Identifier: Apache-2.0
#include "gateway/adapter_demand.h"
#include "base/mem.h"
#include "gateway/api_task.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool adapter_demand_claims(const char *name) {
    return !strncmp(name, "ft:", 3) && strstr(name, ":ckpt-step-");
}

// What is to be loaded for a name: itself, or what it is an alias of.
static bool find_wanted(const struct app *app, const char *name, char out[ADP_NAME_MAX + 32]) {
    if (!app->demand || !app->adapters || strlen(name) > ADP_NAME_MAX)
        return false;
    if (!adp_alias_target(app->adapters, name, out))
        snprintf(out, ADP_NAME_MAX + 32, "%s", name);
    return adapter_demand_claims(out) && strlen(out) <= ADP_NAME_MAX &&
           !adp_knows(app->adapters, out);
}

bool adapter_demand_wants(const struct app *app, const char *name) {
    char wanted[ADP_NAME_MAX + 32];
    return find_wanted(app, name, wanted);
}

// ---- the adapters' thread

bool adapter_demand_has(const struct adapter_demand *d, const char *name) {
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->items[i].name, name))
            return true;
    return false;
}

static void let_go(struct adapter_demand *d, int i) {
    (void)adapter_host_retire(d->host, d->items[i].name, 0,
                              NULL); // may have been taken away already
    memmove(&d->items[i], &d->items[i + 1], (size_t)(--d->n - i) * sizeof d->items[0]);
}

static void drop_gone(struct adapter_demand *d) {
    for (int i = 0; i < d->n;)
        if (access(d->items[i].path, F_OK))
            let_go(d, i);
        else
            i++;
}

void adapter_demand_recheck(struct adapter_demand *d, const char *model) {
    char path[ADP_PATH_MAX];
    struct err_info gone;
    size_t len = strlen(model);
    for (int i = 0; i < d->n;) {
        const char *name = d->items[i].name;
        if (!strncmp(name, model, len) && adapter_demand_claims(name) && name[len] == ':' &&
            d->find(d->arg, name, path, &gone) == ERR_NO_MODEL)
            let_go(d, i);
        else
            i++;
    }
}

static enum err load(struct adapter_demand *d, const char *name, struct err_info *info) {
    uint64_t version;
    char path[ADP_PATH_MAX];
    if (adp_knows(d->host->registry, name)) // another request was faster
        return ERR_OK;
    drop_gone(d);
    enum err e = d->find(d->arg, name, path, info);
    if (e)
        return e;
    const struct adapter_load l = {.name = name,
                                   .path = path,
                                   .in_place = true,
                                   .promote = true,
                                   .own = true,
                                   .in_its_folder = true};
    if (d->n == ADAPTER_DEMAND_MAX)
        let_go(d, 0);
    e = adapter_host_load(d->host, &l, &version, info);
    if (e) {
        // It may have been taken away while it was read.
        struct err_info gone;
        if (d->find(d->arg, name, path, &gone) == ERR_NO_MODEL) {
            *info = gone;
            e = ERR_NO_MODEL;
        }
        return e;
    }
    struct adapter_demand_item *item = &d->items[d->n++];
    snprintf(item->name, sizeof item->name, "%s", name);
    snprintf(item->path, sizeof item->path, "%s", path);
    return ERR_OK;
}

enum err adapter_demand_load(struct adapter_demand *d, const char *name, struct err_info *info) {
    return adapter_demand_claims(name) && strlen(name) <= ADP_NAME_MAX && !strchr(name, '@')
               ? load(d, name, info)
               : ERR_OK;
}

struct sweep {
    struct io_job io; // first
    struct adapter_demand *d;
};

static void run_sweep(struct io_job *io) {
    struct sweep *s = (struct sweep *)(void *)io;
    drop_gone(s->d);
    mem_free(s);
}

void adapter_demand_sweep(struct adapter_demand *d) {
    struct sweep *s = mem_zalloc(sizeof *s);
    if (!s)
        return; // the next one does it
    s->io.run = run_sweep;
    s->d = d;
    if (io_pool_submit(d->host->admin, &s->io))
        mem_free(s);
}

// ---- requests

struct waiting {
    struct api_task task; // first
    struct adapter_demand *d;
    char name[ADP_NAME_MAX + 1];
    void (*go_on)(struct gw_request *r, void *arg);
    void *arg;
    struct err_info error;
};

static void work(struct api_task *t) {
    struct waiting *w = (struct waiting *)t;
    w->error.code = load(w->d, w->name, &w->error);
}

static void done(struct api_task *t) {
    struct waiting *w = (struct waiting *)t;
    struct gw_request *r = t->r;
    void (*go_on)(struct gw_request * r, void *arg) = w->go_on;
    void *arg = w->arg;
    bool failed = w->error.code != ERR_OK;
    if (failed)
        gw_reply_error(r, &w->error);
    // Where it goes on, the request is a fresh one for whoever takes it.
    if (!failed) {
        r->handler = NULL;
        r->on_close = NULL;
    }
    api_task_end(t);
    if (!failed)
        go_on(r, arg);
}

static void drop(struct api_task *t) {
    mem_free(t);
}

bool adapter_demand_wait(struct gw_request *r, const struct app *app, const char *name,
                         void (*go_on)(struct gw_request *r, void *arg), void *arg) {
    char wanted[ADP_NAME_MAX + 32];
    if (!find_wanted(app, name, wanted))
        return false;
    struct waiting *w = api_task_begin(r, app->demand->host->admin, sizeof *w);
    if (!w)
        return true;
    w->d = app->demand;
    memcpy(w->name, wanted, strlen(wanted) + 1);
    w->go_on = go_on;
    w->arg = arg;
    w->task.work = work;
    w->task.done = done;
    w->task.drop = drop;
    (void)api_task_start(&w->task);
    return true;
}
