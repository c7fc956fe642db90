// SPDX-License-Identifier: Apache-2.0
// What the files of a job's run share; everything runs on the job's thread but where it says
// otherwise.
//
//   job_runner.c    the thread, the order of the run, how it ended
//   job_prepare.c   what the job asks for: options, files, model (control thread)
//   job_events.c    what is told of it: events, progress, checkpoints
//   job_gates.c     release gates
//   job_samples.c   sample prompts, before and after
//   job_verify.c    whether serving computes what the trainer does
//   job_publish.c   the adapter into service, the result file
#pragma once
#include "gateway/job_runner.h"

static inline struct ft_home *job__home(const struct job_runner *r) {
    return r->validator->home;
}

// job_prepare.c. Fills r->run, which is zeros; what it opened is closed by train_job_close_run.
enum err job__prepare(struct job_runner *r, const struct ft_job *job, struct err_info *info);

// job_events.c. An event that cannot be written is a line in the log. `data`: a JSON object, or
// NULL.
void job__tell(const struct job_runner *r, const char *level, const char *type, const char *message,
               const char *data);
// A line of the server's log. Nothing that users wrote, nor what a model answered.
void job__log(const struct job_runner *r, enum log_level level, const char *text);
// Moves the job on. It may have been paused or cancelled meanwhile: then it stays so, and the end
// tells.
void job__enter(const struct job_runner *r, enum ft_job_state to, const char *message);
enum err job__tell_resolved(struct job_runner *r, struct err_info *info); // what "auto" became
// Of struct train_hooks; arg is the struct job_runner.
void job__on_tell(void *arg, const char *message);
enum err job__on_step(void *arg, const struct ft_progress *p, struct err_info *info);
void job__drop_tokens(const struct job_run *run); // damaged: the next start makes them again
enum err job__room(void *arg, struct err_info *info);
// Of struct ft_spill; the pager's thread.
void job__on_taken(void *arg, bool taken);
enum err job__on_saved(void *arg, const struct ft_state *s, struct err_info *info);

// job_gates.c. Control thread: the prompts of gates and samples, rendered.
enum err job__read_prompts(struct job_runner *r, struct err_info *info);
// What gates need: the base's loss, on the trainer's device; answers of the new version.
enum err job__find_losses(struct job_runner *r, struct err_info *info);
enum err job__find_outputs(struct job_runner *r, struct eng *engine, struct adp_version *v,
                           struct err_info *info);
// Once both are found. ERR_INVALID, and the run's code: the model is not released. Where such a
// model is to be kept, ERR_OK, and run->unreleased says why. An event tells of each gate.
enum err job__decide_gates(struct job_runner *r, struct err_info *info);
// That all have been passed; nothing if there are none.
void job__tell_gates(const struct job_runner *r);

// job_samples.c. Nothing for a job without samples.
enum err job__samples_before(struct job_runner *r, struct err_info *info);
enum err job__samples_after(struct job_runner *r, struct eng *engine, struct adp_version *v,
                            struct err_info *info);
void job__samples_fini(struct job_run *run);

// job_verify.c. The probe set: at the beginning (control thread), and what the trainer finds at the
// end.
enum err job__choose_probe(struct job_runner *r, const struct ft_job *job, struct err_info *info);
enum err job__score_probe(struct job_runner *r, struct err_info *info);
// Of struct adapter_load; arg is the struct job_runner. ERR_FORMAT: serving computes something
// else.
enum err job__verify(void *arg, struct eng *engine, struct adp_version *v, struct err_info *info);
// Returns e; if it means that the adapter is not what was trained, with code and text of that.
enum err job__unverified(struct job_run *run, enum err e, struct err_info *info);

// job_publish.c. Control thread: whether an earlier process has published the job's model
// (run->version).
enum err job__find_published(struct job_runner *r, const struct ft_job *job, struct err_info *info);
enum err job__publish(struct job_runner *r, struct err_info *info);
// The end of a job whose version lasts: tells of it, stores the result file.
enum err job__finish(struct job_runner *r, struct err_info *info);
// What a client asks for: the name, or name@number of a version that is not promoted.
void job__served_name(const struct job_run *run, char *out, size_t cap);
