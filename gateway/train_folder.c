// SPDX-License-Identifier: Apache-2.0
// `graft train`: the output folder, and where a resumed run comes from. A run that is gone on with
// elsewhere begins with copies of what it needs (the checkpoint, its metrics, tokens where the set
// has no data file), so that from then on the output folder stands alone.
#include "base/diskio.h"
#include "base/durable.h"
#include "base/hash.h"
#include "finetune/verify.h"
#include "gateway/train_job.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct place { // of a resumed run
    struct train_job *j;
    const char *path; // where it is
    int from, to;     // that folder, and the output folder
    struct err_info *info;
};

static bool has(int dir, const char *name) {
    return !faccessat(dir, name, F_OK, 0);
}

// What ended before its first step (a model or data file that is not right) was no run yet.
static bool holds_run(int dir) {
    return has(dir, "run.json") && has(dir, "metrics.csv");
}

static enum err new_run(struct train_job *j, struct err_info *info) {
    uint8_t random[16];
    char hex[2 * sizeof random + 1];
    if (random_bytes(random, sizeof random))
        return err_set(info, ERR_IO, NULL, "no random numbers");
    hex_encode(random, sizeof random, hex);
    snprintf(j->run_id, sizeof j->run_id, "run-%s", hex);
    j->started_at = clock_wall_ns(&clock_system) / 1000000000;
    return ERR_OK;
}

// ---- what the run says of itself

static enum err no_run(const struct place *p) {
    if (has(p->from, "trainer_state.json"))
        return err_set(p->info, ERR_NOT_FOUND, "resume",
                       "%.200s is a checkpoint alone; name the folder of its run, or the exported "
                       "set, that holds it under checkpoints/",
                       p->path);
    return err_set(p->info, ERR_NOT_FOUND, "resume",
                   "%.200s holds no run (it has no run.json); --resume goes on with the output "
                   "folder of graft train, a job's folder, or a set that graft export has written",
                   p->path);
}

static enum err read_run(struct place *p, struct opt_result *res) {
    struct train_job *j = p->j;
    enum err e = train_run_read(p->from, &j->run, p->info);
    if (e == ERR_NOT_FOUND)
        return no_run(p);
    if (e) {
        err_prefix(p->info, "%.200s", p->path);
        return e;
    }
    snprintf(j->run_id, sizeof j->run_id, "%s",
             json_string_value(json_object_get(j->run, "run_id")));
    j->started_at = json_integer_value(json_object_get(j->run, "started_at"));
    j->retention_class = json_string_value(json_object_get(j->run, "retention_class"));
    return train_run_apply(j->run, res, &j->o, &j->targets, p->info);
}

// ---- data and template

static enum err join(const struct place *p, const char *name, char out[TRAIN_PATH]) {
    return (size_t)snprintf(out, TRAIN_PATH, "%s/%s", p->path, name) < TRAIN_PATH
               ? ERR_OK
               : err_set(p->info, ERR_INVALID, "resume", "%.80s... is too long", p->path);
}

// The set's own file, else tokens: those in the output folder already, or a copy. `option`: where
// the user has named another file.
static enum err find_data(struct place *p, const char *what, const char **option,
                          char path[TRAIN_PATH]) {
    char file[64], tokens[64];
    if (*option)
        return ERR_OK;
    snprintf(file, sizeof file, "data/%s.jsonl", what);
    snprintf(tokens, sizeof tokens, "%s.tokens", what);
    if (has(p->from, file)) {
        *option = path;
        return join(p, file, path);
    }
    if (p->from == p->to ? has(p->to, tokens) : has(p->from, tokens))
        return p->from == p->to ? ERR_OK : ft_file_copy(p->from, tokens, p->to, tokens, p->info);
    return err_set(p->info, ERR_NOT_FOUND, "resume",
                   "%.200s has neither %s nor %s: name the run's file by --%s", p->path, file,
                   tokens, !strcmp(what, "training") ? "data" : "validation");
}

static enum err find_files(struct place *p) {
    struct train_job *j = p->j;
    enum err e = find_data(p, "training", &j->o.data, j->data_file);
    if (!e && json_is_string(json_object_get(j->run, "validation_digest")))
        e = find_data(p, "validation", &j->o.validation, j->validation_file);
    if (e || j->o.chat_template || !has(p->from, "chat_template.jinja"))
        return e;
    j->o.chat_template = j->template_file;
    return join(p, "chat_template.jinja", j->template_file);
}

// ---- elsewhere

struct first_flaw {
    char file[256], what[256];
};

static void note_flaw(void *arg, const char *file, enum err e, const char *what) {
    struct first_flaw *f = arg;
    if (!e || *f->file)
        return;
    snprintf(f->file, sizeof f->file, "%s", file);
    snprintf(f->what, sizeof f->what, "%s", what);
}

// A set is believed as a whole or not at all.
static enum err check_set(const struct place *p) {
    struct first_flaw flaw = {0};
    struct ft_verify v = {.tell = note_flaw, .arg = &flaw};
    struct ft_verify_result r;
    if (!has(p->from, "manifest.json") && !has(p->from, "COMPLETE") && !has(p->from, "data"))
        return ERR_OK; // a run's folder
    enum err e = ft_verify(p->path, &v, &r, p->info);
    if (!e && r.wrong)
        e = err_set(p->info, ERR_FORMAT, "resume", "%.200s is damaged: %s: %s", p->path, flaw.file,
                    flaw.what);
    return e;
}

static void tell_skipped(void *arg, const char *name, const char *why) {
    (void)arg;
    fprintf(stderr, "skipping %s: %s\n", name, why);
}

static enum err copy_checkpoint(const struct place *p, char name[FT_CHECKPOINT_NAME]) {
    char path[TRAIN_PATH];
    struct ft_skip skip = {tell_skipped, NULL};
    int from = -1, to = -1;
    enum err e = join(p, "checkpoints", path);
    if (!e)
        e = ft_checkpoint_newest(path, NULL, &skip, name, p->info);
    if (e)
        return e;
    from = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0)
        return durable_errno(p->info, errno, "open", path);
    e = durable_folder(p->to, "checkpoints", &to, p->info);
    if (!e)
        e = ft_checkpoint_copy(from, to, name, p->info);
    if (to >= 0)
        close(to);
    close(from);
    return e;
}

static enum err bring_over(struct place *p) {
    char name[FT_CHECKPOINT_NAME];
    if (holds_run(p->to))
        return err_set(p->info, ERR_INVALID, "output",
                       "%.200s holds a run already; go on with that one by --resume %.200s, or "
                       "name another --output",
                       p->j->o.output, p->j->o.output);
    enum err e = check_set(p);
    if (!e)
        e = copy_checkpoint(p, name);
    if (!e && has(p->from, "metrics.csv"))
        e = ft_file_copy(p->from, "metrics.csv", p->to, "metrics.csv", p->info);
    if (!e)
        fprintf(stderr, "taking %s over from %s\n", name, p->path);
    return e;
}

// ---- entry

static bool same_folder(int a, int b) {
    struct stat x, y;
    return !fstat(a, &x) && !fstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static enum err resume(struct train_job *j, int dir, struct opt_result *res,
                       struct err_info *info) {
    struct place p = {j, *j->o.resume ? j->o.resume : j->o.output, dir, dir, info};
    int from = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0)
        return durable_errno(info, errno, "open", p.path);
    bool elsewhere = !same_folder(from, dir);
    if (elsewhere)
        p.from = from;
    enum err e = elsewhere || !has(dir, "manifest.json")
                     ? read_run(&p, res)
                     : err_set(info, ERR_INVALID, "output",
                               "%.200s is an exported set and stays as it is; name another folder "
                               "for the run by --output",
                               j->o.output);
    if (!e && elsewhere)
        e = bring_over(&p);
    if (!e)
        e = find_files(&p);
    close(from);
    return e;
}

// Without --output a run's folder goes on in itself. That is not made where it is not there.
static enum err open_output(struct train_job *j, int *dir, struct err_info *info) {
    if (!j->o.output)
        j->o.output = j->o.resume;
    if (!j->o.resume || (*j->o.resume && strcmp(j->o.resume, j->o.output) != 0))
        return durable_make(j->o.output, 0755, dir, info);
    *dir = open(j->o.output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *dir < 0 ? durable_errno(info, errno, "open", j->o.output) : ERR_OK;
}

static const char *const made_names[] = {"checkpoints", "training.tokens", "validation.tokens"};

// Of a run that has not begun.
static void note_made(struct train_job *j, int dir, bool output) {
    static const unsigned bits[] = {TRAIN_MADE_CHECKPOINTS, TRAIN_MADE_TRAINING,
                                    TRAIN_MADE_VALIDATION};
    j->made = output ? TRAIN_MADE_OUTPUT : 0;
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        if (!has(dir, made_names[i]))
            j->made |= bits[i];
}

void train_job_drop_folder(struct train_job *j) {
    int dir = j->made ? open(j->o.output, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (dir < 0)
        return;
    if (!has(dir, "run.json")) {
        if (j->made & TRAIN_MADE_CHECKPOINTS)
            (void)diskio_rmdir(dir, made_names[0]);
        if (j->made & TRAIN_MADE_TRAINING)
            (void)diskio_unlink(dir, made_names[1]);
        if (j->made & TRAIN_MADE_VALIDATION)
            (void)diskio_unlink(dir, made_names[2]);
        if (j->made & TRAIN_MADE_OUTPUT)
            (void)diskio_rmdir(AT_FDCWD, j->o.output); // not where somebody has put a file there
    }
    close(dir);
}

enum err train_job_open_folder(struct train_job *j, struct opt_result *res, struct err_info *info) {
    int dir, checkpoints = -1;
    bool there = j->o.output && !faccessat(AT_FDCWD, j->o.output, F_OK, 0);
    enum err e = open_output(j, &dir, info);
    if (e)
        return e;
    if (!j->o.resume)
        note_made(j, dir, !there);
    if ((size_t)snprintf(j->checkpoints, sizeof j->checkpoints, "%s/checkpoints", j->o.output) >=
        sizeof j->checkpoints)
        e = err_set(info, ERR_INVALID, "output", "--output is too long");
    if (!e)
        e = durable_clean(dir, info);
    if (!e && !j->o.resume && holds_run(dir))
        e = err_set(info, ERR_INVALID, "output",
                    "%.200s holds a run already; go on with it by --resume, or name another folder",
                    j->o.output);
    if (!e)
        e = j->o.resume ? resume(j, dir, res, info) : new_run(j, info);
    if (!e)
        e = durable_folder(dir, "checkpoints", &checkpoints, info);
    if (checkpoints >= 0)
        close(checkpoints);
    close(dir);
    return e;
}
