// SPDX-License-Identifier: Apache-2.0
// /v1/fine_tuning/jobs: create, list, get, cancel, pause, resume; all but the first for
// administrators under /admin/v1/jobs, too.
#include "gateway/api_jobs.h"
#include "base/durable.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "base/mem.h"
#include "gateway/api_data.h"
#include "gateway/api_json.h"
#include "gateway/api_task.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LIST_MAX = 100 };

enum err api_page_read(const struct api_query *q, int64_t dflt, int64_t *limit,
                       char after[FT_ID_MAX], struct err_info *info) {
    const char *s = api_query_get(q, "after");
    snprintf(after, FT_ID_MAX, "%s", s ? s : "");
    return api_query_int(q, "limit", 1, LIST_MAX, dflt, limit, info);
}

static struct ft_job_owner owner_of(const struct gw_request *r, bool admin) {
    return (struct ft_job_owner){r->who.tenant, admin};
}

// ---- create

struct creation {
    struct api_answer a;
    struct api_data *d;
    uint64_t tenant;
    json_t *body;
    struct ft_job_spec spec;
    int64_t seed;
    char *request;
};

static const char *wait_of(const struct api_data *d) {
    return d->jobs_wait ? d->jobs_wait(d->arg) : NULL;
}

// As a tenant or an administrator sees it. A job that runs waits for nothing, but may make no
// progress.
static void write_job(const struct api_data *d, const struct ft_job *j, const char *wait,
                      bool admin, const json_t *samples, struct json_w *w) {
    char stall[FT_JOB_REASON_MAX] = "";
    bool runs = j->state == FT_JOB_RUNNING || j->state == FT_JOB_EVALUATING;
    if (runs && d->stalls)
        d->stalls(d->stalls_arg, j->id, stall, sizeof stall);
    wait = !runs ? wait : stall[0] ? stall : NULL;
    if (admin)
        api_job_admin_write(j, gw_keys_tenant(d->keys, j->tenant), wait, samples, w);
    else
        api_job_write(j, wait, w);
}

static enum err make_creation(struct api_answer *a, struct err_info *info) {
    struct creation *c = (struct creation *)a;
    struct ft_job j;
    enum err e = c->d->check_job ? c->d->check_job(c->d->arg, &c->spec, info) : ERR_OK;
    if (!e)
        e = ft_job_create(c->d->home, c->tenant, &c->spec, c->seed, c->request, &j, info);
    if (e)
        return e;
    struct json_w w = json_w_begin(&a->body);
    write_job(c->d, &j, wait_of(c->d), false, NULL, &w);
    ft_job_fini(&j);
    ft_control_wake(c->d->control);
    return ERR_OK;
}

static void creation_fini(struct api_answer *a) {
    struct creation *c = (struct creation *)a;
    json_decref(c->body);
    mem_free(c->request);
}

static enum err make_seed(int64_t *seed, struct err_info *info) {
    uint32_t x;
    if (random_bytes(&x, sizeof x))
        return err_set(info, ERR_IO, NULL, "no random numbers");
    *seed = x >> 1;
    return ERR_OK;
}

static enum err read_creation(struct creation *c, const struct gw_request *r,
                              struct err_info *info) {
    enum err e = api_json_parse(r->body, r->body_len, &c->body, info);
    if (!e)
        e = ft_job_spec_read(c->body, &c->spec, info);
    c->seed = c->spec.seed;
    if (!e && !c->spec.has_seed)
        e = make_seed(&c->seed, info);
    return e ? e : ft_job_spec_store(c->body, c->seed, &c->request, info);
}

void api_jobs_create(struct gw_request *r, void *arg) {
    struct api_data *d = arg;
    struct err_info info = {0};
    if (api_data_missing(r, d))
        return;
    struct creation *c = api_answer_begin(r, d->io, sizeof *c, make_creation);
    if (!c)
        return;
    c->d = d;
    c->tenant = r->who.tenant;
    c->a.fini = creation_fini;
    if (read_creation(c, r, &info)) {
        gw_reply_error(r, &info);
        api_task_end(&c->a.task);
        return;
    }
    api_answer_start(&c->a);
}

// ---- one job

struct one {
    struct api_answer a;
    struct api_data *d;
    struct ft_job_owner owner;
    enum ft_job_action action;
    bool admin;
    char id[96];  // longer than any id: what does not fit is none
    char by[144]; // who asks, for the log
};

// Sample prompts and their answers, which the runner has left; NULL: none.
static json_t *read_samples(const struct ft_home *h, const char *id) {
    char name[FT_ID_MAX + 16];
    snprintf(name, sizeof name, "%s/" FT_SAMPLES_FILE, id);
    int fd;
    if (durable_open(h->jobs, name, &fd, NULL))
        return NULL;
    json_t *doc = json_load_fd(fd, FT_SAMPLES_BYTES, 0);
    json_t *list = json_incref(json_object_get(doc, "samples"));
    json_decref(doc);
    close(fd);
    return list;
}

static enum err reply_job(struct one *o, struct ft_job *j) {
    struct json_w w = json_w_begin(&o->a.body);
    json_t *samples = o->admin ? read_samples(o->d->home, j->id) : NULL;
    write_job(o->d, j, wait_of(o->d), o->admin, samples, &w);
    json_decref(samples);
    ft_job_fini(j);
    return ERR_OK;
}

static enum err make_get(struct api_answer *a, struct err_info *info) {
    struct one *o = (struct one *)a;
    struct ft_job j;
    enum err e = ft_job_get(o->d->home, o->owner, o->id, &j, info);
    return e ? e : reply_job(o, &j);
}

// An administrator may do it to anybody's job, so there must be a trace of who it was.
static void log_action(const struct one *o, const struct ft_job *j) {
    static const char *const verbs[] = {
        [FT_JOB_CANCEL] = "cancelled", [FT_JOB_PAUSE] = "paused", [FT_JOB_RESUME] = "resumed"};
    const char *tenant = gw_keys_tenant(o->d->keys, j->tenant);
    log_write(o->d->log, LOG_INFO, "job %s of tenant %016llx%s%s%s was %s by an administrator, %s",
              j->id, (unsigned long long)j->tenant, tenant ? " (" : "", tenant ? tenant : "",
              tenant ? ")" : "", verbs[o->action], o->by);
}

static void name_asker(const struct gw_request *r, char *out, size_t cap) {
    char key[32] = "without a key";
    if (r->who.domain)
        snprintf(key, sizeof key, "key %08x", r->who.key_id);
    snprintf(out, cap, "%s, from %s, request %s", key, r->client_ip, r->id);
}

static enum err make_action(struct api_answer *a, struct err_info *info) {
    struct one *o = (struct one *)a;
    struct ft_job j;
    enum err e = ft_job_act(o->d->home, o->owner, o->id, o->action, &j, info);
    if (e)
        return e;
    ft_control_wake(o->d->control);
    if (o->admin)
        log_action(o, &j);
    return reply_job(o, &j);
}

static struct one *begin_one(struct gw_request *r, struct api_data *d, bool admin,
                             enum err (*make)(struct api_answer *a, struct err_info *info)) {
    struct one *o = api_data_missing(r, d) ? NULL : api_answer_begin(r, d->io, sizeof *o, make);
    if (!o)
        return NULL;
    o->d = d;
    o->owner = owner_of(r, admin);
    o->admin = admin;
    snprintf(o->id, sizeof o->id, "%s", r->params[0]);
    return o;
}

void api_jobs_get(struct gw_request *r, void *arg) {
    struct one *o = begin_one(r, arg, false, make_get);
    if (o)
        api_answer_start(&o->a);
}

void api_admin_jobs_get(struct gw_request *r, void *arg) {
    struct one *o = begin_one(r, arg, true, make_get);
    if (o)
        api_answer_start(&o->a);
}

static void act(struct gw_request *r, void *arg, bool admin, enum ft_job_action action) {
    struct one *o = begin_one(r, arg, admin, make_action);
    if (!o)
        return;
    o->action = action;
    name_asker(r, o->by, sizeof o->by);
    api_answer_start(&o->a);
}

void api_jobs_cancel(struct gw_request *r, void *arg) {
    act(r, arg, false, FT_JOB_CANCEL);
}

void api_jobs_pause(struct gw_request *r, void *arg) {
    act(r, arg, false, FT_JOB_PAUSE);
}

void api_jobs_resume(struct gw_request *r, void *arg) {
    act(r, arg, false, FT_JOB_RESUME);
}

void api_admin_jobs_cancel(struct gw_request *r, void *arg) {
    act(r, arg, true, FT_JOB_CANCEL);
}

void api_admin_jobs_pause(struct gw_request *r, void *arg) {
    act(r, arg, true, FT_JOB_PAUSE);
}

void api_admin_jobs_resume(struct gw_request *r, void *arg) {
    act(r, arg, true, FT_JOB_RESUME);
}

// ---- lists

struct list {
    struct api_answer a;
    struct api_data *d;
    struct ft_job_query query;
    bool admin;
    char after[FT_ID_MAX];
    const char *wait;
    char *filters; // memory of the metadata's keys and values
    struct json_w w;
};

static void add_job(void *arg, const struct ft_job *j) {
    struct list *l = arg;
    write_job(l->d, j, l->wait, l->admin, NULL, &l->w);
}

static enum err make_list(struct api_answer *a, struct err_info *info) {
    struct list *l = (struct list *)a;
    bool more;
    l->w = json_w_begin(&a->body);
    l->wait = wait_of(l->d);
    jw_obj(&l->w);
    jw_kstr(&l->w, "object", "list");
    jw_key(&l->w, "data");
    jw_arr(&l->w);
    enum err e = ft_job_list(l->d->home, &l->query, add_job, l, &more, info);
    if (e)
        return e;
    jw_arr_end(&l->w);
    jw_kbool(&l->w, "has_more", more);
    jw_obj_end(&l->w);
    return ERR_OK;
}

static void list_fini(struct api_answer *a) {
    mem_free(((struct list *)a)->filters);
}

// metadata[key]=value, any number of them; metadata=null: jobs without any.
static enum err read_filters(const struct api_query *q, struct list *l, struct err_info *info) {
    size_t bytes = 1;
    const char *none = api_query_get(q, "metadata");
    if (none && strcmp(none, "null") != 0)
        return err_set(info, ERR_INVALID, "metadata",
                       "metadata must be metadata[key]=value or null");
    l->query.no_metadata = none != NULL;
    for (size_t i = 0; i < q->n; i++)
        bytes += strlen(q->items[i].name) + strlen(q->items[i].value) + 2;
    char *to = l->filters = mem_alloc(bytes);
    if (!to)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (size_t i = 0; i < q->n; i++) {
        const char *name = q->items[i].name;
        size_t n = strlen(name), v = strlen(q->items[i].value);
        if (strncmp(name, "metadata[", 9) != 0 || name[n - 1] != ']')
            continue;
        if (l->query.n_metadata == FT_METADATA_MAX)
            return err_set(info, ERR_INVALID, "metadata", "metadata has more than %d filters",
                           FT_METADATA_MAX);
        memcpy(to, name + 9, n - 10);
        to[n - 10] = '\0';
        l->query.metadata[l->query.n_metadata].key = to;
        to += n - 9;
        l->query.metadata[l->query.n_metadata++].value = memcpy(to, q->items[i].value, v + 1);
        to += v + 1;
    }
    return ERR_OK;
}

static enum err read_list(struct gw_request *r, struct list *l, struct err_info *info) {
    struct api_query q;
    enum err e = api_query_parse(&r->arena, r->query, &q, info);
    if (!e)
        e = api_page_read(&q, 20, &l->query.limit, l->after, info);
    if (l->after[0])
        l->query.after = l->after;
    return e ? e : read_filters(&q, l, info);
}

static void list_jobs(struct gw_request *r, struct api_data *d, bool admin) {
    struct err_info info = {0};
    struct list *l =
        api_data_missing(r, d) ? NULL : api_answer_begin(r, d->io, sizeof *l, make_list);
    if (!l)
        return;
    l->d = d;
    l->admin = admin;
    l->query.owner = owner_of(r, admin);
    l->a.fini = list_fini;
    if (read_list(r, l, &info)) {
        gw_reply_error(r, &info);
        api_task_end(&l->a.task);
        return;
    }
    api_answer_start(&l->a);
}

void api_jobs_list(struct gw_request *r, void *arg) {
    list_jobs(r, arg, false);
}

void api_admin_jobs_list(struct gw_request *r, void *arg) {
    list_jobs(r, arg, true);
}
