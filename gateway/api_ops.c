// SPDX-License-Identifier: Apache-2.0
// What operators and probes ask: /health, /ready, /metrics, /version, /admin/v1/drain.
#include "base/json_write.h"
#include "base/mem.h"
#include "gateway/api.h"
#include <stdio.h>

static void reply_buf(struct gw_request *r, const char *type, struct buf *out) {
    if (buf_err(out)) {
        struct err_info info;
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
    } else {
        gw_reply(r, 200, type, out->data ? out->data : "", out->len);
    }
    buf_fini(out);
}

// Live means: every replica's step loop makes progress. A process that still loads is alive too.
static enum err check_live(const struct app *app, struct err_info *info) {
    if (app_state(app) == APP_LOADING)
        return ERR_OK;
    return replicas_check(app->replicas, info);
}

static void reply_probe(struct gw_request *r, enum err rc, const struct err_info *info,
                        const char *word) {
    if (rc) {
        gw_reply_error(r, info);
        return;
    }
    char body[48];
    int n = snprintf(body, sizeof body, "{\"status\":\"%s\"}", word);
    gw_reply(r, 200, "application/json", body, (size_t)n);
}

void api_health(struct gw_request *r, void *arg) {
    struct err_info info;
    enum err rc = check_live(arg, &info);
    reply_probe(r, rc, &info, "ok");
}

void api_ready(struct gw_request *r, void *arg) {
    struct err_info info;
    enum err rc = app_check_ready(arg, &info);
    if (!rc)
        rc = check_live(arg, &info);
    reply_probe(r, rc, &info, "ready");
}

struct names { // of adapters with requests
    struct buf running, waiting, each;
    int64_t states[ADP_STATES]; // versions
};

static void list_name(struct buf *b, const char *name) {
    if (b->len)
        buf_putc(b, ',');
    metrics_escape_label(b, name);
}

static void each_adapter(void *arg, const struct adp_info *i) {
    struct names *n = arg;
    n->states[i->state]++;
    if (!i->pins)
        return;
    list_name(i->running ? &n->running : &n->waiting, i->name);
    buf_puts(&n->each, "graft_adapter_requests{adapter=\"");
    metrics_escape_label(&n->each, i->name);
    buf_printf(&n->each, "\",version=\"%llu\"} %d\n", (unsigned long long)i->version, i->pins);
}

// Series whose labels come and go.
static void expose_adapters(const struct app *app, struct buf *out) {
    struct names n = {0};
    buf_init(&n.running, 0);
    buf_init(&n.waiting, 0);
    buf_init(&n.each, 0);
    enum err e = adp_list(app->adapters, each_adapter, &n);
    if (e || buf_err(&n.running) || buf_err(&n.waiting) || buf_err(&n.each)) {
        out->failed = ERR_NOMEM;
    } else {
        buf_puts(out, "# HELP graft_adapter_requests References that requests hold to a version.\n"
                      "# TYPE graft_adapter_requests gauge\n");
        if (n.each.len)
            buf_append(out, n.each.data, n.each.len);
        buf_puts(out, "# HELP graft_adapter_versions Versions of adapters by status.\n"
                      "# TYPE graft_adapter_versions gauge\n");
        for (int s = 0; s < ADP_STATES; s++)
            buf_printf(out, "graft_adapter_versions{status=\"%s\"} %lld\n",
                       adp_state_name((enum adp_state)s), (long long)n.states[s]);
        if (app->vllm_metrics)
            buf_printf(out,
                       "# HELP vllm:lora_requests_info Running and waiting adapters.\n"
                       "# TYPE vllm:lora_requests_info gauge\n"
                       "vllm:lora_requests_info{max_lora=\"%d\",waiting_lora_adapters=\"%s\","
                       "running_lora_adapters=\"%s\"} %lld\n",
                       (int)app->max_loras, n.waiting.len ? n.waiting.data : "",
                       n.running.len ? n.running.data : "",
                       (long long)(clock_wall_ns(app->clock) / 1000000000));
    }
    buf_fini(&n.running);
    buf_fini(&n.waiting);
    buf_fini(&n.each);
}

void api_metrics(struct gw_request *r, void *arg) {
    const struct app *app = arg;
    struct buf out;
    buf_init(&out, 0);
    metrics_expose(app->metrics, &out);
    if (app_state(app) != APP_LOADING)
        api_colocation_expose(app, &out);
    if (app_state(app) != APP_LOADING && app->adapters)
        expose_adapters(app, &out);
    reply_buf(r, "text/plain; version=0.0.4; charset=utf-8", &out);
}

void api_version(struct gw_request *r, void *arg) {
    struct app *app = arg;
    struct buf out;
    buf_init(&out, 0);
    struct json_w w = json_w_begin(&out);
    jw_obj(&w);
    jw_kstr(&w, "version", GRAFT_VERSION);
    jw_kstr(&w, "kernel_set", app_state(app) == APP_LOADING ? NULL : app->kernel_set);
    jw_kstr(&w, "model", app_state(app) == APP_LOADING ? NULL : app->names[0]);
    jw_kint(&w, "replicas", app_state(app) == APP_LOADING ? 0 : app->replicas->n);
    jw_kstr(&w, "model_digest", atomic_load_explicit(&app->digest, memory_order_acquire));
    jw_obj_end(&w);
    reply_buf(r, "application/json", &out);
}

// A drain answers when nothing is in flight any more, or when its time is over.
struct drain {
    struct app *app;
    struct gw_request *r;
    int64_t deadline_ns;
    struct gw_timer *timer;
};

static void drain_closed(struct gw_request *r) {
    struct drain *d = r->handler;
    if (d->timer)
        gw_loop_timer_cancel(d->timer);
    mem_free(d);
}

static void drain_look(void *arg) {
    struct drain *d = arg;
    d->timer = NULL;
    int32_t left = replicas_in_flight(d->app->replicas);
    int64_t now = clock_mono_ns(d->app->clock);
    bool open = now < atomic_load_explicit(&d->app->accept_until_ns, memory_order_relaxed);
    if ((left > 0 || open) && now < d->deadline_ns)
        d->timer = gw_loop_timer(d->r->loop, 50 * 1000 * 1000, drain_look, d);
    if (d->timer)
        return;
    struct gw_request *r = d->r;
    mem_free(d);
    char body[64];
    int n = snprintf(body, sizeof body, "{\"drained\":%s,\"in_flight\":%d}",
                     left ? "false" : "true", left);
    gw_reply(r, 200, "application/json", body, (size_t)n);
}

void api_drain(struct gw_request *r, void *arg) {
    struct app *app = arg;
    struct err_info info;
    if (app_state(app) == APP_LOADING) {
        app_check_ready(app, &info);
        gw_reply_error(r, &info);
        return;
    }
    struct drain *d = mem_zalloc(sizeof *d);
    if (!d) {
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
        return;
    }
    app->begin_drain(app);
    int64_t now = clock_mono_ns(app->clock), until = atomic_load(&app->accept_until_ns);
    *d = (struct drain){app, r, (now > until ? now : until) + app->drain_timeout_ns, NULL};
    r->handler = d;
    r->on_close = drain_closed;
    drain_look(d);
}
