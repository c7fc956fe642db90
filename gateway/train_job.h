// SPDX-License-Identifier: Apache-2.0
// The parts of one training run: opened in order, closed in the reverse one. `graft train` opens
// them all; a server has the model already, fills in that part and gives hooks.
#pragma once
#include "finetune/checkpoint.h"
#include "gateway/train_options.h"
#include "gateway/train_report.h"
#include "gateway/train_run.h"
#include "model/digest.h"
#include "model/source.h"

enum { TRAIN_PATH = 4096, TRAIN_HEX = 65 };

struct train_hooks {
    // Where the device work runs: makes the executor from *cfg (memory and wake are the hook's).
    enum err (*create_exec)(void *arg, const struct ft_exec_config *cfg, struct ft_exec **out,
                            struct err_info *info);
    void (*destroy_exec)(void *arg, struct ft_exec *x);
    void (*tell)(void *arg, const char *message); // something to be warned of
    enum err (*step)(void *arg, const struct ft_progress *p, struct err_info *info);
    enum err (*room)(void *arg, struct err_info *info); // whether a checkpoint may be written now
    enum err (*saved)(void *arg, const struct ft_state *s, struct err_info *info);
    void *arg;
};

enum { // what of a new run's folder was not there before
    TRAIN_MADE_OUTPUT = 1,
    TRAIN_MADE_CHECKPOINTS = 2,
    TRAIN_MADE_TRAINING = 4,
    TRAIN_MADE_VALIDATION = 8,
};

struct train_job {
    struct train_options o;
    _Atomic bool stop;
    const struct train_hooks *hooks; // NULL: a thread of its own, and a terminal
    // model
    struct mdl_source *source;
    struct mdl_config config;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct kn_device *device;
    struct mdl_weights *weights;
    struct kn_device_info device_info;
    const char *base_name;
    char base_digest[TRAIN_HEX], tokenizer_digest[TRAIN_HEX], template_digest[TRAIN_HEX]; // or ""
    // data; the paths are those that a resumed run brings, "" otherwise
    char data_file[TRAIN_PATH], validation_file[TRAIN_PATH], template_file[TRAIN_PATH];
    struct ft_dataset *data, *validation;
    char data_digest[TRAIN_HEX], validation_digest[TRAIN_HEX];
    int32_t row_tokens, row_seqs;
    // run
    char checkpoints[TRAIN_PATH];
    unsigned made; // TRAIN_MADE_...; 0: nothing, or a run that goes on
    json_t *run;   // run.json of what it goes on with; NULL: a new run
    char run_id[TRAIN_RUN_ID], parent[FT_CHECKPOINT_NAME];
    int64_t started_at; // Unix seconds, also the date that templates see; kept over resumes
    char *hyperparameters;
    char *kernel_sets;           // a JSON list: which kernel set the run had from which step on
    const char *retention_class; // NULL: none
    unsigned targets;
    struct ft_plan *plan;
    struct ft_exec *exec;
    struct ft_moments moments; // while a checkpoint is written; w: from train_job_finish on
    struct ft_state state;
    struct train_report report;
};

// The output folder; where a resumed run is, and what it says of itself. The first of these.
enum err train_job_open_folder(struct train_job *j, struct opt_result *res, struct err_info *info);
// After a failure: a run that had not begun (no run.json) leaves nothing that it made.
void train_job_drop_folder(struct train_job *j);
// Source, tokenizer, template and their digests: what the model is, without its weights.
enum err train_job_identify(struct train_job *j, struct err_info *info);
enum err train_job_open_model(struct train_job *j, struct err_info *info);
// The digests of tokenizer and template, which are set.
enum err train_job_digests(struct train_job *j, struct err_info *info);
enum err train_job_open_data(struct train_job *j, struct err_info *info);
// Plan, executor, and where a resumed run stands.
enum err train_job_open_run(struct train_job *j, struct err_info *info);
enum err train_job_run(struct train_job *j, struct err_info *info);
// The adapter into the output folder, and the plots.
enum err train_job_finish(struct train_job *j, struct err_info *info);
void train_job_end_exec(struct train_job *j);  // no more device work; nothing if it has ended
void train_job_close(struct train_job *j);     // also of a part
void train_job_close_run(struct train_job *j); // all but the model
