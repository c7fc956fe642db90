// SPDX-License-Identifier: Apache-2.0
#include "gateway/train.h"
#include "base/mem.h"
#include "base/thread.h"
#include "gateway/train_job.h"
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_STOPPED = 3 };

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

// ---- main

static enum err check_options(const struct train_options *o, struct err_info *info) {
    const struct {
        const char *name, *value;
        bool needed;
    } options[] = {{"model", o->model, true},
                   {"data", o->data, !o->resume},
                   {"output", o->output, !o->resume || !*o->resume}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].needed && (!options[i].value || !*options[i].value))
            return err_set(info, ERR_INVALID, options[i].name, "--%s is missing", options[i].name);
    return ERR_OK;
}

static int run(struct train_job *j, struct opt_result *res) {
    struct err_info info = {0};
    enum err e;
    j->report.terminal = isatty(STDERR_FILENO) != 0;
    if ((e = train_job_open_folder(j, res, &info)) || (e = train_job_open_model(j, &info)) ||
        (e = train_job_open_data(j, &info)) || (e = train_job_open_run(j, &info)) ||
        (e = train_job_run(j, &info)) || (e = train_job_finish(j, &info))) {
        train_report_clear_line(&j->report);
        if (e == ERR_CANCELLED && *j->parent)
            fprintf(stderr, "stopped at %s; graft train --model %s --resume %s goes on\n",
                    j->parent, j->o.model, j->o.output);
        else
            fprintf(stderr, "graft train: %s\n", info.message);
        train_job_drop_folder(j);
    }
    return e == ERR_CANCELLED ? EXIT_STOPPED : e ? 1 : 0;
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
        opt_show_help(&train_option_table);
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
            status = run(j, &res);
        }
        train_job_close(j);
        release_signals(&signals);
    }
    opt_result_fini(&res);
    mem_free(j);
    return status;
}
