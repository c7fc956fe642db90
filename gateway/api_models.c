// SPDX-License-Identifier: Apache-2.0
// GET /v1/models and /v1/models/{id}
#include "base/json_write.h"
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
    jw_arr_end(&w);
    jw_obj_end(&w);
    reply_json(r, &out);
}

void api_models_get(struct gw_request *r, void *arg) {
    const struct app *app = arg;
    struct err_info info;
    if (refuse_loading(r, app))
        return;
    if (app_check_model(app, r->params[0], &info)) {
        gw_reply_error(r, &info);
        return;
    }
    struct buf out;
    buf_init(&out, 0);
    struct json_w w = json_w_begin(&out);
    write_model(app, r->params[0], &w);
    reply_json(r, &out);
}
