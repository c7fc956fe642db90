// SPDX-License-Identifier: Apache-2.0
// From a finished run to a served model and a result file. Changes of adapters are made on their
// own thread; the job's waits for it.
#include "base/buf.h"
#include "base/json_write.h"
#include "finetune/files.h"
#include "gateway/job_runner_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COPY_BYTES = 65536 };

struct publication {
    struct io_job io;
    struct adapter_host *host;
    struct adapter_load load;
    struct mailbox *done;
    struct lock lock; // around ended and the wake that follows
    bool ended;
    enum err result;
    struct err_info info;
};

static void load_adapter(struct io_job *io) {
    struct publication *p = (struct publication *)((char *)io - offsetof(struct publication, io));
    uint64_t version;
    p->result = adapter_host_load(p->host, &p->load, &version, &p->info);
    lock_take(&p->lock);
    p->ended = true;
    mailbox_wake(p->done);
    lock_drop(&p->lock);
}

static bool has_ended(struct publication *p) {
    lock_take(&p->lock);
    bool ended = p->ended;
    lock_drop(&p->lock);
    return ended;
}

static void tell_verified(const struct job_runner *r, const struct adp_version *v) {
    const struct ft_probe *p = &r->run->trained;
    int64_t n = 0;
    char message[200];
    struct buf b;
    for (size_t i = 0; i < p->n; i++)
        n += p->seqs[i].n_targets;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kint(&w, "version", (int64_t)adp_number(v));
    jw_kstr(&w, "sha256", adp_digest(v));
    jw_kint(&w, "sequences", (int64_t)p->n);
    jw_kint(&w, "supervised_tokens", n);
    jw_knum(&w, "loss", n ? p->loss / (double)n : 0);
    jw_obj_end(&w);
    snprintf(
        message, sizeof message,
        "Verified: serving computes the trainer's losses of %zu sequences (%lld supervised tokens)",
        p->n, (long long)n);
    job__tell(r, "info", "message", message, buf_err(&b) ? NULL : b.data);
    buf_fini(&b);
}

// The version is verified: shall it be promoted, kept, or go? After ft_job_publish it is the job's.
static enum err decide(void *arg, struct eng *engine, struct adp_version *v, bool *promote,
                       struct err_info *info) {
    struct job_runner *r = arg;
    struct job_run *run = r->run;
    bool moved;
    tell_verified(r, v);
    enum err e = job__samples_after(r, engine, v, info);
    if (!e)
        e = job__find_outputs(r, engine, v, info);
    if (!e)
        e = job__decide_gates(r, info);
    if (!e)
        e = ft_job_publish(job__home(r), run->id, adp_number(v), &moved, info);
    if (!e && !moved)
        e = err_set(info, ERR_CANCELLED, NULL, "the job was cancelled or paused");
    if (e)
        return e;
    run->version = adp_number(v);
    *promote = !run->unreleased[0];
    return ERR_OK;
}

// What the row says must not outlast a version that was not published after all.
static void withdraw(struct job_runner *r) {
    struct err_info info = {0};
    bool moved;
    if (!r->run->version)
        return;
    r->run->version = 0;
    if (ft_job_publish(job__home(r), r->run->id, 0, &moved, &info))
        log_write(job__home(r)->log, LOG_WARN, "%s: %s", r->run->id, info.message);
}

enum err job__publish(struct job_runner *r, struct err_info *info) {
    char path[TRAIN_PATH + 16];
    snprintf(path, sizeof path, "%s/adapter", r->run->path);
    struct publication p = {.io = {.run = load_adapter},
                            .host = &r->host->adapters,
                            .load = {.name = r->run->name,
                                     .path = path,
                                     .in_place = true,
                                     .promote = true,
                                     .own = true,
                                     .verify = job__verify,
                                     .decide = decide,
                                     .arg = r}};
    if (mailbox_create(1, 0, &p.done))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    lock_init(&p.lock);
    enum err e = io_pool_submit(p.host->admin, &p.io);
    if (e)
        err_set(info, e, NULL, "too many changes of adapters wait");
    while (!e && !has_ended(&p))
        (void)mailbox_wait(p.done, -1);
    lock_fini(&p.lock);
    mailbox_destroy(p.done);
    if (!e && p.result) {
        *info = p.info;
        e = p.result;
    }
    if (e)
        withdraw(r);
    else if (!r->run->unreleased[0])
        job__tell_gates(r); // now that it has been promoted: a promotion that fails is tried again
    // A folder that serving cannot even read is not what was written there either.
    bool unreadable = e == ERR_UNSUPPORTED || e == ERR_NONFINITE || e == ERR_NOT_FOUND;
    return job__unverified(r->run, unreadable ? ERR_FORMAT : e, info);
}

// ---- what an earlier process has published

struct search {
    const struct job_run *run;
    uint64_t version;
    bool found, promoted;
};

static void look(void *arg, const struct adp_info *i) {
    struct search *s = arg;
    bool serves = i->state == ADP_READY || i->state == ADP_ACTIVE || i->state == ADP_ROLLED_BACK;
    if (i->version != s->version || !serves || strcmp(i->name, s->run->name) != 0)
        return;
    s->found = true;
    s->promoted = i->active;
}

enum err job__find_published(struct job_runner *r, const struct ft_job *job,
                             struct err_info *info) {
    struct job_run *run = r->run;
    struct search s = {.run = run, .version = job->version};
    bool moved;
    if (!job->version)
        return ERR_OK;
    if (adp_list(r->host->adapters.registry, look, &s))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (!s.found) // it died before the version lasted
        return ft_job_publish(job__home(r), run->id, 0, &moved, info);
    run->version = job->version;
    if (!s.promoted)
        snprintf(run->unreleased, sizeof run->unreleased, "it did not pass the release gates");
    return ERR_OK;
}

// ---- the result file

static enum err copy_result(int fd, struct ft_upload *u, struct err_info *info) {
    char chunk[COPY_BYTES];
    enum err e = ERR_OK;
    ssize_t n;
    while (!e && (n = read(fd, chunk, sizeof chunk)) > 0)
        e = ft_upload_write(u, chunk, (size_t)n, info);
    return e || !n ? e : durable_errno(info, errno, "read", "metrics.csv");
}

static enum err store_result(struct job_runner *r, struct err_info *info) {
    struct ft_upload u = {0};
    struct ft_file f = {.tenant = r->run->tenant, .purpose = "fine-tune-results"};
    char path[TRAIN_PATH + 32];
    snprintf(f.filename, sizeof f.filename, "step_metrics.csv");
    snprintf(path, sizeof path, "%s/metrics.csv", r->run->path);
    int fd;
    enum err e = durable_open(AT_FDCWD, path, &fd, info);
    if (e)
        return e;
    e = ft_upload_begin(job__home(r), &u, info);
    u.own = true;
    if (!e)
        e = copy_result(fd, &u, info);
    close(fd);
    if (!e)
        e = ft_upload_commit_result(&u, &f, r->run->id, info);
    else
        ft_upload_abort(&u);
    return e;
}

// ---- the end

void job__served_name(const struct job_run *run, char *out, size_t cap) {
    if (run->unreleased[0])
        snprintf(out, cap, "%.128s@%llu", run->name, (unsigned long long)run->version);
    else
        snprintf(out, cap, "%s", run->name);
}

enum err job__finish(struct job_runner *r, struct err_info *info) {
    const struct job_run *run = r->run;
    char name[400], message[960];
    job__served_name(run, name, sizeof name);
    if (run->unreleased[0])
        snprintf(message, sizeof message, "the model is not released: %.400s; it is kept as %s",
                 run->unreleased, name);
    else
        snprintf(message, sizeof message, "New fine-tuned model created: %s", name);
    job__tell(r, run->unreleased[0] ? "warn" : "info", "message", message, NULL);
    snprintf(message, sizeof message, "%s %s",
             run->unreleased[0] ? "a release gate was not passed; kept as" : "published as", name);
    job__log(r, run->unreleased[0] ? LOG_WARN : LOG_INFO, message);
    enum err e = store_result(r, info);
    // The model lasts, and is served: for want of its metrics alone the job must not seem to have
    // failed.
    if (!e || run->attempts + 1 < FT_JOB_ATTEMPTS_MAX)
        return e;
    snprintf(message, sizeof message, "The result file is lost: %s", info->message);
    job__tell(r, "warn", "message", message, NULL);
    return ERR_OK;
}
