// SPDX-License-Identifier: Apache-2.0
#include "gateway/train.h"
#include "base/durable.h"
#include "base/hash.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/thread.h"
#include "gateway/train_job.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXIT_STOPPED = 3, MAX_RUN_JSON = 4096 };

// ---- signals: a thread of their own waits for them, all others have them blocked

struct signals {
    struct thread thread;
    bool runs;
    sigset_t set;
    _Atomic bool *stop;
};

static void *wait_for_signals(void *arg) {
    struct signals *s = arg;
    for (int sig = 0; !sigwait(&s->set, &sig) && sig != SIGUSR1;)
        if (atomic_exchange(s->stop, true))
            _exit(128 + sig); // the second one
        else
            fputs("\nstopping after the row in hand\n", stderr);
    return NULL;
}

static enum err catch_signals(struct signals *s, struct err_info *info) {
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGINT);
    sigaddset(&s->set, SIGTERM);
    sigaddset(&s->set, SIGUSR1); // ends the thread
    pthread_sigmask(SIG_BLOCK, &s->set, NULL);
    enum err e = thread_start(&s->thread, "graft-signals", wait_for_signals, s);
    s->runs = !e;
    return e ? err_set(info, e, NULL, "no thread for signals") : ERR_OK;
}

static void release_signals(struct signals *s) {
    if (!s->runs)
        return;
    pthread_kill(s->thread.id, SIGUSR1);
    thread_join(&s->thread);
}

// ---- the output folder and run.json: what a resumed run must know before it has read a checkpoint

static enum err new_run(struct train_job *j, int dir, struct err_info *info) {
    uint8_t random[16];
    struct buf b;
    if (random_bytes(random, sizeof random))
        return err_set(info, ERR_IO, NULL, "no random numbers");
    char hex[2 * sizeof random + 1];
    hex_encode(random, sizeof random, hex);
    snprintf(j->run_id, sizeof j->run_id, "run-%s", hex);
    j->started_at = clock_wall_ns(&clock_system) / 1000000000;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kstr(&w, "run_id", j->run_id);
    jw_kint(&w, "started_at", j->started_at);
    jw_obj_end(&w);
    enum err e = buf_err(&b) ? err_set(info, buf_err(&b), NULL, "out of memory")
                             : durable_put(dir, "run.json", b.data, b.len, info);
    buf_fini(&b);
    return e;
}

static enum err old_run(struct train_job *j, int dir, struct err_info *info) {
    char text[MAX_RUN_JSON];
    int fd = openat(dir, "run.json", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    if (fd >= 0)
        close(fd);
    json_t *o = n < 0 ? NULL : json_loadb(text, (size_t)n, 0, NULL);
    const char *id = json_string_value(json_object_get(o, "run_id"));
    const json_t *at = json_object_get(o, "started_at");
    enum err e = ERR_OK;
    if (id && json_is_integer(at)) {
        snprintf(j->run_id, sizeof j->run_id, "%s", id);
        j->started_at = json_integer_value(at);
    } else {
        e = err_set(info, ERR_NOT_FOUND, "output", "%s holds no run to go on with (run.json)",
                    j->o.output);
    }
    json_decref(o);
    return e;
}

static enum err open_output(struct train_job *j, struct err_info *info) {
    int dir, checkpoints = -1;
    enum err e = durable_make(j->o.output, 0755, &dir, info);
    if (e)
        return e;
    e = durable_clean(dir, info);
    if (!e)
        e = durable_folder(dir, "checkpoints", &checkpoints, info);
    if (!e && (size_t)snprintf(j->checkpoints, sizeof j->checkpoints, "%s/checkpoints",
                               j->o.output) >= sizeof j->checkpoints)
        e = err_set(info, ERR_INVALID, "output", "--output is too long");
    // What ended before its first step (a model or data file that is not right) was no run yet.
    bool there = !faccessat(dir, "run.json", F_OK, 0) && !faccessat(dir, "metrics.csv", F_OK, 0);
    if (!e && there && !j->o.resume)
        e = err_set(info, ERR_INVALID, "output",
                    "%s holds a run already; go on with it by --resume, or name another folder",
                    j->o.output);
    if (!e)
        e = j->o.resume ? old_run(j, dir, info) : new_run(j, dir, info);
    if (checkpoints >= 0)
        close(checkpoints);
    close(dir);
    return e;
}

// ---- main

static enum err check_options(const struct train_options *o, struct err_info *info) {
    const struct {
        const char *name, *value;
    } needed[] = {{"model", o->model}, {"data", o->data}, {"output", o->output}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!needed[i].value || !*needed[i].value)
            return err_set(info, ERR_INVALID, needed[i].name, "--%s is missing", needed[i].name);
    return ERR_OK;
}

static int run(struct train_job *j) {
    struct err_info info = {0};
    enum err e;
    j->report.terminal = isatty(STDERR_FILENO) != 0;
    if ((e = open_output(j, &info)) || (e = train_job_open_model(j, &info)) ||
        (e = train_job_open_data(j, &info)) || (e = train_job_open_run(j, &info)) ||
        (e = train_job_run(j, &info)) || (e = train_job_finish(j, &info))) {
        train_report_clear_line(&j->report);
        if (e == ERR_CANCELLED && *j->parent)
            fprintf(stderr, "stopped; --resume goes on from %s/%s\n", j->checkpoints, j->parent);
        else
            fprintf(stderr, "graft train: %s\n", info.message);
    }
    return e == ERR_CANCELLED ? EXIT_STOPPED : e ? 1 : 0;
}

static void print_help(void) {
    struct buf out;
    buf_init(&out, 0);
    opt_print_help(&train_option_table, &out, 100);
    if (!buf_err(&out))
        fputs(out.data, stdout);
    buf_fini(&out);
}

int train_main(int argc, char **argv) {
    struct opt_result res;
    struct err_info info = {0};
    struct train_job *j = mem_zalloc(sizeof *j);
    if (!j) {
        fputs("graft: out of memory\n", stderr);
        return 1;
    }
    if (opt_parse(&train_option_table, argc, argv, &j->o, &res, &info)) {
        fprintf(stderr, "graft train: %s\n", info.message);
        mem_free(j);
        return 2;
    }
    int status = 0;
    struct signals signals = {.stop = &j->stop};
    if (res.help) {
        print_help();
    } else if (check_options(&j->o, &info)) {
        fprintf(stderr, "graft train: %s\nusage: %s\nSee graft train --help.\n", info.message,
                train_option_table.usage);
        status = 2;
    } else {
        json_set_alloc_funcs(mem_alloc, mem_free);
        if (catch_signals(&signals, &info)) {
            fprintf(stderr, "graft train: %s\n", info.message);
            status = 1;
        } else {
            status = run(j);
        }
        train_job_close(j);
        release_signals(&signals);
    }
    opt_result_fini(&res);
    mem_free(j);
    return status;
}
