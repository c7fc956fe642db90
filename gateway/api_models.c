// SPDX-License-Identifier: Apache-2.0
// GET /v1/models and /v1/models/{id}
#include "base/json_write.h"
#include "gateway/adapter_demand.h"
#include "gateway/api.h"

static void write_model(const struct app *app, const char *name, struct json_w *w) {
    jw_obj(w);
    jw_kstr(w, "id", name);
    jw_kstr(w, "object", "model");
    jw_kint(w, "created", app->created);
    jw_kstr(w, "owned_by", "graft");
    jw_kstr(w, "root", app->names[0]);
    jw_knull(w, "parent");
    jw_kint(w, "max_model_len", app->max_model_len);
    jw_obj_end(w);
}

static void write_adapter(const struct app *app, const struct adp_info *i, struct json_w *w) {
    jw_obj(w);
    jw_kstr(w, "id", i->name);
    jw_kstr(w, "object", "model");
    jw_kint(w, "created", i->created);
    jw_kstr(w, "owned_by", "graft");
    jw_kstr(w, "root", i->source);
    jw_kstr(w, "parent", app->names[0]);
    jw_kint(w, "version", (int64_t)i->version);
    jw_kint(w, "max_model_len", app->max_model_len);
    jw_obj_end(w);
}

struct adapters {
    const struct app *app;
    struct json_w *w;
    uint64_t version; // of the one that is wanted; 0: all that are active
};

static void each_adapter(void *arg, const struct adp_info *i) {
    const struct adapters *a = arg;
    if (a->version ? i->version == a->version : i->active && !adapter_demand_claims(i->name))
        write_adapter(a->app, i, a->w);
}

// What a name of an adapter stands for. False: no adapter, nothing was written.
static bool write_one(const struct app *app, const char *name, struct buf *out) {
    struct adp_version *v;
    struct json_w w = json_w_begin(out);
    if (!app->adapters || adp_resolve(app->adapters, name, &v, NULL))
        return false;
    struct adapters a = {app, &w, adp_number(v)};
    if (adp_list(app->adapters, each_adapter, &a))
        out->failed = ERR_NOMEM;
    adp_unpin(v);
    return true;
}

static void reply_json(struct gw_request *r, struct buf *out) {
    if (buf_err(out)) {
        struct err_info info;
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
    } else {
        gw_reply(r, 200, "application/json", out->data, out->len);
    }
    buf_fini(out);
}

static bool refuse_loading(struct gw_request *r, const struct app *app) {
    struct err_info info;
    if (app_state(app) != APP_LOADING)
        return false;
    app_check_ready(app, &info);
    gw_reply_error(r, &info);
    return true;
}

void api_models_list(struct gw_request *r, void *arg) {
    const struct app *app = arg;
    if (refuse_loading(r, app))
        return;
    struct buf out;
    buf_init(&out, 0);
    struct json_w w = json_w_begin(&out);
    jw_obj(&w);
    jw_kstr(&w, "object", "list");
    jw_key(&w, "data");
    jw_arr(&w);
    for (size_t i = 0; i < app->n_names; i++)
        write_model(app, app->names[i], &w);
    struct adapters a = {app, &w, 0};
    if (app->adapters && adp_list(app->adapters, each_adapter, &a))
        out.failed = ERR_NOMEM;
    jw_arr_end(&w);
    jw_obj_end(&w);
    reply_json(r, &out);
}

void api_models_get(struct gw_request *r, void *arg) {
    const struct app *app = arg;
    struct err_info info;
    if (refuse_loading(r, app) || adapter_demand_wait(r, app, r->params[0], api_models_get, arg))
        return;
    struct buf out;
    buf_init(&out, 0);
    if (write_one(app, r->params[0], &out)) {
        reply_json(r, &out);
        return;
    }
    if (app_check_model(app, r->params[0], &info)) {
        gw_reply_error(r, &info);
        return;
    }
    struct json_w w = json_w_begin(&out);
    write_model(app, r->params[0], &w);
    reply_json(r, &out);
}
