// SPDX-License-Identifier: Apache-2.0
// POST /v1/load_lora_adapter and /v1/unload_lora_adapter as vLLM has them, and /admin/v1/adapters.
#include "gateway/api_adapters.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "gateway/adapter_demand.h"
#include "gateway/api_json.h"
#include "gateway/api_task.h"
#include <stdio.h>
#include <string.h>

struct change {
    struct api_task task; // first
    struct adapter_host *host;
    struct adapter_demand *demand; // or NULL
    enum err (*make)(struct change *c);
    bool plain; // vLLM's routes answer in plain text
    char name[ADP_NAME_MAX + 1], path[ADP_PATH_MAX], target[ADP_NAME_MAX + 32];
    bool in_place, promote, remove;
    bool is_alias; // what is rolled back: its name has no versions to list
    uint64_t version;
    struct err_info error;
};

static bool refuse(struct gw_request *r, const struct api_adapters *a) {
    struct err_info info;
    if (!app_check_open(a->app, &info)) {
        if (a->app->adapters)
            return false;
        err_set(&info, ERR_UNSUPPORTED, NULL,
                "this server serves no adapters; start it with --enable-lora");
    }
    gw_reply_error(r, &info);
    return true;
}

// ---- the changes, on the adapters' thread

static enum err make_load(struct change *c) {
    const struct adapter_load l = {
        .name = c->name, .path = c->path, .in_place = c->in_place, .promote = c->promote};
    return adapter_host_load(c->host, &l, &c->version, &c->error);
}

static enum err make_retire(struct change *c) {
    enum err e = adapter_host_retire(c->host, c->name, c->version, &c->error);
    if (!e && c->demand)
        adapter_demand_recheck(c->demand, c->name);
    return e;
}

static enum err make_unload(struct change *c) { // all versions: none is named
    enum err e = make_retire(c);
    if (e == ERR_NOT_FOUND)
        err_set(&c->error, e, "lora_name", "The lora adapter '%s' cannot be found.", c->name);
    return e;
}

static enum err make_promote(struct change *c) {
    return adapter_host_promote(c->host, c->name, c->version, &c->error);
}

static enum err make_rollback(struct change *c) { // the name has moved already
    enum err e = adapter_host_keep(c->host, &c->error);
    if (e)
        err_prefix(&c->error, "the name has moved back, but that does not outlast the process yet");
    return e;
}

// A checkpoint is loaded for its alias as it is for a request.
static enum err make_alias(struct change *c) {
    enum err e =
        !c->remove && c->demand ? adapter_demand_load(c->demand, c->target, &c->error) : ERR_OK;
    if (e) {
        snprintf(c->error.param, sizeof c->error.param, "target");
        return e;
    }
    return adapter_host_alias(c->host, c->name, c->remove ? NULL : c->target, &c->error);
}

// vLLM's names of fields, in routes that have others.
static void rename_param(const struct change *c, char *param, size_t cap) {
    if (c->plain)
        return;
    if (!strcmp(param, "lora_name"))
        snprintf(param, cap, "%s", c->make == make_alias ? "alias" : "name");
    else if (!strcmp(param, "lora_path"))
        snprintf(param, cap, "path");
}

static void work(struct api_task *t) {
    struct change *c = (struct change *)t;
    enum err e = c->make(c);
    if (e && c->error.code != e)
        err_set(&c->error, e, NULL, "%s", err_text(e));
    rename_param(c, c->error.param, sizeof c->error.param);
    if (!e)
        c->error.code = ERR_OK;
}

// ---- answers

static void reply_plain(struct gw_request *r, const struct change *c) {
    char text[ADP_NAME_MAX + 64];
    int n = snprintf(text, sizeof text, "Success: LoRA adapter '%s' %s successfully.", c->name,
                     c->make == make_load ? "added" : "removed");
    gw_reply(r, 200, "text/plain; charset=utf-8", text, (size_t)n);
}

static void reply_buf(struct gw_request *r, struct buf *out) {
    struct err_info info;
    if (buf_err(out)) {
        err_set(&info, ERR_NOMEM, NULL, "out of memory while answering");
        gw_reply_error(r, &info);
    } else {
        gw_reply(r, 200, "application/json", out->data, out->len);
    }
    buf_fini(out);
}

struct lister {
    struct json_w w;
    const char *name; // of this one alone; NULL: all
    size_t n;
};

static void write_version(void *arg, const struct adp_info *i) {
    struct lister *l = arg;
    if (l->name && strcmp(l->name, i->name) != 0)
        return;
    struct json_w *w = &l->w;
    l->n++;
    jw_obj(w);
    jw_kstr(w, "name", i->name);
    jw_kint(w, "version", (int64_t)i->version);
    jw_kstr(w, "status", adp_state_name(i->state));
    jw_kstr(w, "reason", i->reason[0] ? i->reason : NULL);
    jw_kbool(w, "active", i->active);
    jw_kbool(w, "former", i->former);
    jw_kstr(w, "source", i->source);
    jw_kstr(w, "base_model", i->base[0] ? i->base : NULL);
    jw_kstr(w, "sha256", i->digest[0] ? i->digest : NULL);
    jw_kint(w, "max_rank", i->max_r);
    jw_kint(w, "created", i->created);
    jw_kint(w, "references", i->pins);
    jw_kint(w, "running_sequences", i->running);
    jw_kbool(w, "in_host_memory", i->in_host_memory);
    jw_key(w, "replicas");
    jw_arr(w);
    for (int32_t k = 0; k < i->replicas; k++) {
        jw_obj(w);
        jw_kint(w, "replica", k);
        jw_kstr(w, "status", adp_place_name(i->replica[k].place));
        jw_kint(w, "running_sequences", i->replica[k].running);
        jw_obj_end(w);
    }
    jw_arr_end(w);
    jw_obj_end(w);
}

static void write_alias(void *arg, const struct adp_alias_info *a) {
    struct lister *l = arg;
    jw_obj(&l->w);
    jw_kstr(&l->w, "alias", a->alias);
    jw_kstr(&l->w, "target", a->target);
    jw_kstr(&l->w, "former", a->former[0] ? a->former : NULL);
    if (!a->served && adapter_demand_claims(a->target))
        jw_knull(&l->w, "served"); // loaded once somebody asks for it, if it is there then
    else
        jw_kbool(&l->w, "served", a->served);
    jw_obj_end(&l->w);
}

// Of aliases that stand for the name, or for one of its versions, in vain.
static void write_warning(void *arg, const struct adp_alias_info *a) {
    struct lister *l = arg;
    char text[sizeof a->alias + sizeof a->target + 64];
    size_t n = strlen(l->name);
    if (a->served || strncmp(a->target, l->name, n) != 0 || (a->target[n] && a->target[n] != '@'))
        return;
    snprintf(text, sizeof text, "alias `%s` stands for `%s`, which is not served any more",
             a->alias, a->target);
    jw_str(&l->w, text);
}

static void reply_list(struct gw_request *r, struct adp_registry *reg, const char *name,
                       bool retired) {
    struct buf out;
    buf_init(&out, 0);
    struct lister l = {json_w_begin(&out), name, 0};
    jw_obj(&l.w);
    jw_kstr(&l.w, "object", "list");
    jw_key(&l.w, "data");
    jw_arr(&l.w);
    enum err e = adp_list(reg, write_version, &l);
    jw_arr_end(&l.w);
    if (!name && !e) {
        jw_key(&l.w, "aliases");
        jw_arr(&l.w);
        e = adp_aliases(reg, write_alias, &l);
        jw_arr_end(&l.w);
    }
    if (retired && !e) {
        jw_key(&l.w, "warnings");
        jw_arr(&l.w);
        e = adp_aliases(reg, write_warning, &l);
        jw_arr_end(&l.w);
    }
    jw_obj_end(&l.w);
    if (e)
        out.failed = e;
    struct err_info info;
    if (!e && name && !l.n) {
        err_set(&info, ERR_NOT_FOUND, NULL, "there is no adapter `%.128s`", name);
        gw_reply_error(r, &info);
        buf_fini(&out);
        return;
    }
    reply_buf(r, &out);
}

static void done(struct api_task *t) {
    struct change *c = (struct change *)t;
    if (c->error.code)
        gw_reply_error(t->r, &c->error);
    else if (c->plain)
        reply_plain(t->r, c);
    else
        reply_list(t->r, c->host->registry, c->is_alias || c->make == make_alias ? NULL : c->name,
                   c->make == make_retire);
    api_task_end(t);
}

static void drop(struct api_task *t) {
    mem_free(t);
}

// ---- requests

static enum err take(const json_t *body, const char *field, char *to, size_t cap,
                     struct err_info *info) {
    const char *s;
    size_t n;
    enum err e = api_json_str(body, field, false, &s, &n, info);
    if (e)
        return e;
    if (!s || !n)
        return err_set(info, ERR_INVALID, field, "%s is required", field);
    if (n >= cap)
        return err_set(info, ERR_INVALID, field, "%s is longer than %zu bytes", field, cap - 1);
    memcpy(to, s, n + 1);
    return ERR_OK;
}

// An alias goes back as a name does. Where that is a checkpoint which has to be loaded first, the
// alias is pointed at it like at a new target.
static void look_for_alias(struct change *c) {
    struct adp_registry *reg = c->host->registry;
    c->is_alias = adp_alias_target(reg, c->name, c->target);
    if (c->is_alias && adp_alias_former(reg, c->name, c->target) && c->demand &&
        adapter_demand_claims(c->target) && !adp_knows(reg, c->target))
        c->make = make_alias;
}

typedef enum err (*read_fn)(struct change *c, const struct gw_request *r, const json_t *body,
                            struct err_info *info);

static void begin(struct gw_request *r, struct api_adapters *a, enum err (*make)(struct change *),
                  bool plain, read_fn read) {
    struct err_info info = {0};
    json_t *body = NULL;
    if (refuse(r, a))
        return;
    enum err e = r->body_len ? api_json_parse(r->body, r->body_len, &body, &info) : ERR_OK;
    struct change got = {.host = a->host, .demand = a->app->demand, .make = make, .plain = plain};
    if (!e)
        e = read(&got, r, body, &info);
    json_decref(body);
    if (e) {
        gw_reply_error(r, &info);
        return;
    }
    struct change *c = api_task_begin(r, a->host->admin, sizeof *c);
    if (!c)
        return;
    struct api_task task = c->task;
    *c = got;
    c->task = task;
    c->task.work = work;
    c->task.done = done;
    c->task.drop = drop;
    if (make == make_rollback)
        look_for_alias(c);
    if (c->make != make_rollback) {
        (void)api_task_start(&c->task);
    } else if (adapter_host_roll_back(a->host, c->name, &info)) {
        gw_reply_error(r, &info);
        api_task_end(&c->task);
    } else {
        api_task_go_on(&c->task); // it waits for its turn to be kept, not to be made
    }
}

static enum err read_vllm_load(struct change *c, const struct gw_request *r, const json_t *body,
                               struct err_info *info) {
    (void)r;
    if (!api_json_has(body, "lora_name") || !api_json_has(body, "lora_path"))
        return err_set(info, ERR_INVALID,
                       api_json_has(body, "lora_name") ? "lora_path" : "lora_name",
                       "Both 'lora_name' and 'lora_path' must be provided.");
    enum err e;
    c->promote = true;
    (void)((e = take(body, "lora_name", c->name, sizeof c->name, info)) ||
           (e = take(body, "lora_path", c->path, sizeof c->path, info)) ||
           (e = api_json_bool(body, "load_inplace", false, &c->in_place, info)));
    return e;
}

static enum err read_vllm_unload(struct change *c, const struct gw_request *r, const json_t *body,
                                 struct err_info *info) {
    (void)r;
    if (!api_json_has(body, "lora_name"))
        return err_set(info, ERR_INVALID, "lora_name",
                       "'lora_name' needs to be provided to unload a LoRA adapter.");
    return take(body, "lora_name", c->name, sizeof c->name, info);
}

static enum err read_load(struct change *c, const struct gw_request *r, const json_t *body,
                          struct err_info *info) {
    (void)r;
    enum err e;
    c->in_place = true;
    (void)((e = take(body, "name", c->name, sizeof c->name, info)) ||
           (e = take(body, "path", c->path, sizeof c->path, info)) ||
           (e = api_json_bool(body, "promote", true, &c->promote, info)));
    return e;
}

static enum err read_alias(struct change *c, const struct gw_request *r, const json_t *body,
                           struct err_info *info) {
    (void)r;
    c->remove = !api_json_has(body, "target");
    enum err e = take(body, "alias", c->name, sizeof c->name, info);
    return e || c->remove ? e : take(body, "target", c->target, sizeof c->target, info);
}

// The name is in the path, the version, where there is one, in the body.
static enum err read_named(struct change *c, const struct gw_request *r, const json_t *body,
                           struct err_info *info) {
    int64_t version;
    enum err e = api_json_int(body, "version", 1, INT64_MAX, 0, &version, info);
    if (e)
        return e;
    if (strlen(r->params[0]) > ADP_NAME_MAX)
        return err_set(info, ERR_NOT_FOUND, NULL, "there is no such adapter");
    memcpy(c->name, r->params[0], strlen(r->params[0]) + 1);
    c->version = (uint64_t)version;
    return ERR_OK;
}

static enum err read_version(struct change *c, const struct gw_request *r, const json_t *body,
                             struct err_info *info) {
    if (!api_json_has(body, "version"))
        return err_set(info, ERR_INVALID, "version", "version is required");
    return read_named(c, r, body, info);
}

#define HANDLER(fn, make, plain, read)                                                             \
    static void fn(struct gw_request *r, void *arg) {                                              \
        begin(r, arg, make, plain, read);                                                          \
    }
HANDLER(vllm_load, make_load, true, read_vllm_load)
HANDLER(vllm_unload, make_unload, true, read_vllm_unload)
HANDLER(admin_load, make_load, false, read_load)
HANDLER(admin_alias, make_alias, false, read_alias)
HANDLER(admin_promote, make_promote, false, read_version)
HANDLER(admin_rollback, make_rollback, false, read_named)
HANDLER(admin_retire, make_retire, false, read_named)

static void admin_list(struct gw_request *r, void *arg) {
    const struct api_adapters *a = arg;
    if (!refuse(r, a))
        reply_list(r, a->app->adapters, NULL, false);
}

static void admin_get(struct gw_request *r, void *arg) {
    const struct api_adapters *a = arg;
    if (!refuse(r, a))
        reply_list(r, a->app->adapters, r->params[0], false);
}

#define ADAPTERS "/admin/v1/adapters"
#define ROUTE(m, path, json, fn)                                                                   \
    {                                                                                              \
        .methods = m, .pattern = path, .auth = GW_AUTH_ADMIN, .json_body = json, .handle = fn,     \
        .arg = a                                                                                   \
    }

size_t api_adapters_routes(struct api_adapters *a, struct gw_route *out, size_t cap) {
    const struct gw_route routes[] = {
        ROUTE(GW_POST, "/v1/load_lora_adapter", true, vllm_load),
        ROUTE(GW_POST, "/v1/unload_lora_adapter", true, vllm_unload),
        ROUTE(GW_GET, ADAPTERS, false, admin_list),
        ROUTE(GW_POST, ADAPTERS, true, admin_load),
        ROUTE(GW_POST, ADAPTERS "/aliases", true, admin_alias),
        ROUTE(GW_POST, ADAPTERS "/{id*}/promote", true, admin_promote),
        ROUTE(GW_POST, ADAPTERS "/{id*}/rollback", true, admin_rollback),
        ROUTE(GW_POST, ADAPTERS "/{id*}/retire", true, admin_retire),
        ROUTE(GW_GET, ADAPTERS "/{id*}", false, admin_get),
        {.methods = GW_DELETE,
         .pattern = "/v1/models/{id*}",
         .auth = GW_AUTH_TRAIN,
         .handle = api_models_delete,
         .arg = a},
    };
    size_t n = sizeof routes / sizeof *routes;
    if (n > cap)
        return 0;
    memcpy(out, routes, sizeof routes);
    return n;
}
