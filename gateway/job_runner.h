// SPDX-License-Identifier: Apache-2.0
// Runs fine-tuning jobs inside a server: the same run as `graft train`, on the resident weights,
// beside serving. Each job has a thread of its own that sleeps while the engine's thread computes.
//
//   jobs/<id>/checkpoints/   what a job that was stopped, or whose process died, goes on from
//   jobs/<id>/metrics.csv    becomes the job's result file
//   jobs/<id>/samples.json   sample prompts and answers, where the job has any
//   jobs/<id>/adapter/       the finished adapter, published from here
//
// Threads: start, stop and ready are the control thread's. To be stopped before the adapters'
// thread and the engine are.
#pragma once
#include "finetune/job_validate.h"
#include "finetune/probe.h"
#include "gateway/job_answers.h"
#include "gateway/model_host.h"
#include "gateway/train_job.h"
#include "gateway/train_place.h"

struct job_run { // the job in hand
    struct train_job train;
    struct ft_job_spec spec;
    json_t *request; // owns what spec points to
    char id[FT_ID_MAX], name[400];
    const char *code;                // of a failure that has one; static
    struct ft_dataset_opts opts;     // what the data was read with
    struct ft_probe trained, served; // the probe set, by the trainer and as serving reads it
    char probe_file[FT_ID_MAX];      // whose first lines it has
    char digest[65];                 // of the finished adapter
    struct job_prompts required, forbidden, samples;
    char *before[FT_SAMPLES_MAX]; // the base's answers to the samples; owned
    char unreleased[400];         // why the version is not promoted, but kept; or empty
    double improvement;           // of the validation loss on the base's, where a gate asks
    uint64_t version;             // of the adapter, once the job's row names it
    int64_t attempts;             // before this one
    uint64_t tenant;
    int64_t told_step;      // steps up to here have their event
    int64_t counted_tokens; // of the state, up to here they are in the metric
    char path[600];
    struct thread thread;
};

struct job_runner {
    struct ft_validator *validator;
    struct ft_control **control; // set once it runs
    const struct app *app;
    struct model_host *host;
    const struct serve_options *options;
    struct train_place place;
    struct train_hooks hooks;
    struct metric *steps, *tokens; // trained
    struct job_run *run;           // NULL: none so far
    _Atomic bool discard;
};

enum err job_runner_init(struct job_runner *r, struct err_info *info);
void job_runner_fini(struct job_runner *r); // after the control thread has ended
bool job_runner_ready(void *arg);
enum err job_runner_start(void *arg, const struct ft_job *job, struct err_info *info);
void job_runner_stop(void *arg, enum ft_stop why);
