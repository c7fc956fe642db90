// SPDX-License-Identifier: Apache-2.0
// From a finished run to a served model and a result file. Changes of adapters are made on their own thread;
// the job's waits for it.
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
    return job__unverified(r->run, e, info);
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

enum err job__store_result(struct job_runner *r, struct err_info *info) {
    struct ft_upload u = {0};
    struct ft_file f = {.tenant = r->run->tenant, .purpose = "fine-tune-results"};
    char path[TRAIN_PATH + 32];
    snprintf(f.filename, sizeof f.filename, "step_metrics.csv");
    snprintf(path, sizeof path, "%s/metrics.csv", r->run->path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return durable_errno(info, errno, "open", path);
    enum err e = ft_upload_begin(job__home(r), &u, info);
    if (!e)
        e = copy_result(fd, &u, info);
    close(fd);
    if (!e)
        e = ft_upload_commit_result(&u, &f, r->run->id, info);
    else
        ft_upload_abort(&u);
    return e;
}
