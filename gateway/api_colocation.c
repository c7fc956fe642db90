// SPDX-License-Identifier: Apache-2.0
// Who uses the engine's time and memory, serving or training: /admin/v1/colocation, and the same
// numbers for /metrics.
#include "base/json_write.h"
#include "gateway/api.h"
#include <math.h>

static void write_ms(struct json_w *w, const char *key, double s) {
    jw_knum(w, key, round(s * 1e9) / 1e6); // whole nanoseconds, as they were counted
}

static void write_target(struct json_w *w, const char *key, double s) {
    if (s > 0)
        write_ms(w, key, s);
    else
        jw_knull(w, key);
}

static void write_durations(struct json_w *w, const char *key, const struct eng_durations *d) {
    jw_key(w, key);
    jw_obj(w);
    jw_kint(w, "count", (int64_t)d->n);
    write_ms(w, "p50_ms", d->p50_s);
    write_ms(w, "p99_ms", d->p99_s);
    write_ms(w, "max_ms", d->most_s);
    jw_obj_end(w);
}

static double idle_of(const struct eng_shares *u) {
    double idle = u->wall_s - u->serving_s - u->background_s;
    return idle > 0 ? idle : 0;
}

static void write_shares(struct json_w *w, const char *key, const struct eng_shares *u) {
    double wall = u->wall_s > 0 ? u->wall_s : 1;
    jw_key(w, key);
    jw_obj(w);
    jw_knum(w, "seconds", u->wall_s);
    jw_knum(w, "serving_seconds", u->serving_s);
    jw_knum(w, "training_seconds", u->background_s);
    jw_knum(w, "idle_seconds", idle_of(u));
    jw_knum(w, "serving", u->serving_s / wall);
    jw_knum(w, "training", u->background_s / wall);
    jw_knum(w, "idle", idle_of(u) / wall);
    write_durations(w, "slices", &u->slices);
    write_durations(w, "inter_token", &u->gaps);
    jw_obj_end(w);
}

static void write_memory(struct json_w *w, const struct eng_colocation *c) {
    jw_key(w, "memory");
    jw_obj(w);
    jw_kint(w, "pool_bytes", (int64_t)c->pool_bytes);
    jw_kint(w, "lent_bytes", (int64_t)c->lent_bytes);
    jw_kint(w, "needed_bytes", (int64_t)c->need_bytes);
    jw_kint(w, "asked_back", (int64_t)c->asked_back);
    jw_kbool(w, "waits", c->lend_reason != ENG_LEND_ENOUGH);
    jw_knum(w, "waits_seconds", c->waits_for_memory_s);
    jw_knum(w, "waited_seconds", c->waited_for_memory_s);
    jw_obj_end(w);
}

static void write_engine(struct json_w *w, int32_t replica, struct eng *e) {
    struct eng_colocation c;
    eng_colocation(e, &c);
    jw_obj(w);
    jw_kint(w, "replica", replica);
    jw_key(w, "slo");
    jw_obj(w);
    write_target(w, "itl_ms", c.slo_itl_s);
    write_target(w, "ttft_ms", c.slo_ttft_s);
    jw_obj_end(w);
    write_ms(w, "margin_ms", c.margin_s);
    write_ms(w, "slice_ms", c.slice_s);
    write_shares(w, "recent", &c.recent);
    write_shares(w, "all", &c.all);
    write_memory(w, &c);
    jw_obj_end(w);
}

static struct app_training training_of(const struct app *app) {
    struct app_training t = {0};
    if (app->training)
        app->training(app->training_arg, &t);
    return t;
}

static void write_training(struct json_w *w, const struct app *app) {
    const struct app_training t = training_of(app);
    jw_key(w, "training");
    jw_obj(w);
    jw_kstr(w, "job", t.job[0] ? t.job : NULL);
    jw_kstr(w, "reason", t.reason[0] ? t.reason : NULL);
    jw_key(w, "memory");
    jw_obj(w);
    jw_kint(w, "state_bytes", (int64_t)t.state_bytes);
    jw_kint(w, "state_in_file_bytes", (int64_t)t.state_in_file_bytes);
    jw_kint(w, "activation_bytes", (int64_t)t.activation_bytes);
    jw_kint(w, "state_taken", (int64_t)t.taken);
    jw_obj_end(w);
    jw_obj_end(w);
}

void api_colocation(struct gw_request *r, void *arg) {
    const struct app *app = arg;
    struct err_info info;
    if (app_state(app) == APP_LOADING) {
        app_check_ready(app, &info);
        gw_reply_error(r, &info);
        return;
    }
    struct buf out;
    buf_init(&out, 0);
    struct json_w w = json_w_begin(&out);
    jw_obj(&w);
    jw_kstr(&w, "object", "colocation");
    write_training(&w, app);
    jw_key(&w, "engines");
    jw_arr(&w);
    for (int32_t i = 0; i < app->replicas->n; i++)
        write_engine(&w, i, app->replicas->engine[i]);
    jw_arr_end(&w);
    jw_obj_end(&w);
    if (buf_err(&out)) {
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
    } else {
        gw_reply(r, 200, "application/json", out.data, out.len);
    }
    buf_fini(&out);
}

// ---- /metrics

struct series {
    const char *name, *type, *help, *labels;
    double (*value)(const struct eng_colocation *c);
};

static double serving_s(const struct eng_colocation *c) {
    return c->all.serving_s;
}

static double training_s(const struct eng_colocation *c) {
    return c->all.background_s;
}

static double idle_s(const struct eng_colocation *c) {
    return idle_of(&c->all);
}

static double lent_bytes(const struct eng_colocation *c) {
    return (double)c->lent_bytes;
}

static double asked_back(const struct eng_colocation *c) {
    return (double)c->asked_back;
}

static double waited_s(const struct eng_colocation *c) {
    return c->waited_for_memory_s;
}

static double margin_s(const struct eng_colocation *c) {
    return c->margin_s;
}

static double slice_s(const struct eng_colocation *c) {
    return c->slice_s;
}

static const struct series all_series[] = {
    {"graft_engine_seconds_total", "counter", "Time of an engine, by who used it.",
     ",use=\"serving\"", serving_s},
    {"graft_engine_seconds_total", NULL, NULL, ",use=\"training\"", training_s},
    {"graft_engine_seconds_total", NULL, NULL, ",use=\"idle\"", idle_s},
    {"graft_background_lent_bytes", "gauge", "KV cache memory lent to training.", "", lent_bytes},
    {"graft_background_asked_back_total", "counter", "Times that training had to give memory back.",
     "", asked_back},
    {"graft_background_memory_wait_seconds_total", "counter",
     "Time that training has waited for memory.", "", waited_s},
    {"graft_background_margin_seconds", "gauge",
     "Time kept free in front of a step, where training has a target to hold.", "", margin_s},
    {"graft_background_slice_limit_seconds", "gauge", "How long a slice of training may be.", "",
     slice_s},
};

static void expose_training(const struct app *app, struct buf *out) {
    const struct app_training t = training_of(app);
    buf_printf(out,
               "# HELP graft_training_memory_bytes Memory of the job that trains: its state and "
               "its activations in the KV cache, what of the state is in a file.\n"
               "# TYPE graft_training_memory_bytes gauge\n"
               "graft_training_memory_bytes{what=\"state\"} %zu\n"
               "graft_training_memory_bytes{what=\"activations\"} %zu\n"
               "graft_training_memory_bytes{what=\"state_in_file\"} %zu\n"
               "# HELP graft_training_state_taken_total Times that serving took memory of a job's "
               "state.\n"
               "# TYPE graft_training_state_taken_total counter\n"
               "graft_training_state_taken_total %llu\n",
               t.state_bytes, t.activation_bytes, t.state_in_file_bytes,
               (unsigned long long)t.taken);
}

void api_colocation_expose(const struct app *app, struct buf *out) {
    expose_training(app, out);
    const struct replicas *r = app->replicas;
    for (size_t i = 0; i < sizeof all_series / sizeof *all_series; i++) {
        const struct series *s = &all_series[i];
        if (s->type)
            buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", s->name, s->help, s->name, s->type);
        for (int32_t k = 0; k < r->n; k++) {
            struct eng_colocation c;
            eng_colocation(r->engine[k], &c);
            char text[JW_NUM_TEXT];
            (void)jw_num_text(s->value(&c), text);
            buf_printf(out, "%s{replica=\"%d\"%s} %s\n", s->name, (int)k, s->labels, text);
        }
    }
}
