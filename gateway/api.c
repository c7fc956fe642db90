// SPDX-License-Identifier: Apache-2.0
// The route table and what the handlers share.
#include "gateway/api.h"
#include "gateway/adapter_demand.h"
#include "gateway/api_json.h"
#include <stdio.h>
#include <string.h>

enum { NAMES_SHOWN = 3 }; // of the served ones, to who asks for none of them

enum err app_check_ready(const struct app *a, struct err_info *info) {
    switch (app_state(a)) {
    case APP_LOADING:
        return err_set(info, ERR_LOADING, NULL, "the model is still loading");
    case APP_DRAINING:
        return err_set(info, ERR_DRAINING, NULL, "the server is shutting down");
    case APP_READY:
        break;
    }
    return ERR_OK;
}

enum err app_check_open(const struct app *a, struct err_info *info) {
    if (app_state(a) == APP_DRAINING &&
        clock_mono_ns(a->clock) < atomic_load_explicit(&a->accept_until_ns, memory_order_relaxed))
        return ERR_OK;
    return app_check_ready(a, info);
}

enum err app_check_model(const struct app *a, const char *name, struct err_info *info) {
    for (size_t i = 0; i < a->n_names; i++)
        if (!strcmp(a->names[i], name))
            return ERR_OK;
    if (!info)
        return ERR_NO_MODEL;
    char stood_for[ADP_NAME_MAX + 32];
    if (a->adapters && adp_alias_target(a->adapters, name, stood_for))
        return adp_no_model(a->adapters, name, info);
    char served[NAMES_SHOWN * 70 + 1] = "";
    for (size_t i = 0, at = 0; i < a->n_names && i < NAMES_SHOWN; i++)
        at += (size_t)snprintf(served + at, sizeof served - at, "%s`%.64s`", i ? ", " : "",
                               a->names[i]);
    return err_set(info, ERR_NO_MODEL, "model",
                   "The model `%.64s` does not exist; served here: %s (/v1/models lists adapters, "
                   "too)",
                   name, served);
}

enum err api_check_model(const struct app *app, const json_t *body, struct err_info *info) {
    const char *name;
    enum err rc = api_json_str(body, "model", false, &name, NULL, info);
    if (rc || !name || (app->adapters && adp_knows(app->adapters, name)))
        return rc;
    // Whether there is such a checkpoint is found out where it is loaded.
    if (adapter_demand_wants(app, name))
        return ERR_OK;
    return app_check_model(app, name, info);
}

// An adapter's name goes on to where it is resolved: the last moment before the engine.
static enum err take_name(const struct app *app, const json_t *body, struct arena *arena,
                          struct gen_spec *spec, struct err_info *info) {
    const char *name = json_string_value(json_object_get(body, "model"));
    if (!name || !app->adapters || !app_check_model(app, name, NULL))
        return ERR_OK;
    spec->adapter = arena_strndup(arena, name, strlen(name));
    return spec->adapter ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
}

struct generate {
    struct app *app;
    struct gen_spec *spec;
};

static void go_on(struct gw_request *r, void *arg) {
    const struct generate *g = arg;
    generation_start(r, g->app, g->spec);
}

// The model may have to be loaded first.
static void start(struct gw_request *r, struct app *app, struct gen_spec *spec) {
    struct generate *g = arena_zalloc(&r->arena, sizeof *g);
    struct err_info info;
    if (!g) {
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
        return;
    }
    *g = (struct generate){app, spec};
    if (!spec->adapter || !adapter_demand_wait(r, app, spec->adapter, go_on, g))
        generation_start(r, app, spec);
}

void api_generate(struct gw_request *r, struct app *app, api_read_spec read) {
    struct err_info info = {0};
    struct gen_spec *spec = arena_zalloc(&r->arena, sizeof *spec);
    json_t *body = NULL;
    enum err rc = app_check_open(app, &info);
    if (!rc && !spec)
        rc = err_set(&info, ERR_NOMEM, NULL, "out of memory");
    if (!rc)
        rc = api_json_parse(r->body, r->body_len, &body, &info);
    if (!rc)
        rc = read(app, body, &r->arena, spec, &info);
    if (!rc)
        rc = take_name(app, body, &r->arena, spec, &info);
    json_decref(body);
    if (rc)
        gw_reply_error(r, &info);
    else
        start(r, app, spec);
}

#define ROUTE(m, path, key, json, fn)                                                              \
    { .methods = m, .pattern = path, .auth = key, .json_body = json, .handle = fn, .arg = app }

size_t api_routes(struct app *app, struct gw_route *out, size_t cap) {
    const struct gw_route routes[] = {
        ROUTE(GW_POST, "/v1/completions", GW_AUTH_KEY, true, api_completions),
        ROUTE(GW_POST, "/v1/chat/completions", GW_AUTH_KEY, true, api_chat_completions),
        ROUTE(GW_GET, "/v1/models", GW_AUTH_KEY, false, api_models_list),
        ROUTE(GW_GET, "/v1/models/{id*}", GW_AUTH_KEY, false, api_models_get),
        ROUTE(GW_POST, "/tokenize", GW_AUTH_KEY, true, api_tokenize),
        ROUTE(GW_POST, "/detokenize", GW_AUTH_KEY, true, api_detokenize),
        ROUTE(GW_GET | GW_HEAD, "/health", GW_AUTH_NONE, false, api_health),
        ROUTE(GW_GET | GW_HEAD, "/ready", GW_AUTH_NONE, false, api_ready),
        ROUTE(GW_GET, "/metrics", GW_AUTH_KEY, false, api_metrics),
        ROUTE(GW_GET, "/version", GW_AUTH_KEY, false, api_version),
        ROUTE(GW_POST, "/admin/v1/drain", GW_AUTH_ADMIN, false, api_drain),
        ROUTE(GW_GET, "/admin/v1/colocation", GW_AUTH_ADMIN, false, api_colocation),
    };
    size_t n = sizeof routes / sizeof *routes;
    if (n > cap)
        return 0;
    memcpy(out, routes, sizeof routes);
    return n;
}
