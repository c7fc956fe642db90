// SPDX-License-Identifier: Apache-2.0
// What was trained is what is served: the probe set, scored by the trainer, by serving, and
// compared before the adapter is published.
#include "finetune/evaluate.h"
#include "gateway/adapter_verify.h"
#include "gateway/job_runner_internal.h"
#include <stdio.h>

static enum err render_again(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    char path[TRAIN_PATH + FT_ID_MAX + 8];
    ft_probe_fini(&run->served);
    snprintf(path, sizeof path, "%s/files/%s", job__home(r)->path, run->probe_file);
    return ft_probe_again(&run->trained, path, &run->opts, r->app->max_model_len, &run->served,
                          info);
}

enum err job__choose_probe(struct job_runner *r, const struct ft_job *job, struct err_info *info) {
    struct job_run *run = r->run;
    struct train_job *t = &run->train;
    snprintf(run->probe_file, sizeof run->probe_file, "%s",
             t->validation ? job->validation_file : job->training_file);
    enum err e = ft_probe_take(t->validation ? t->validation : t->data, r->app->max_model_len,
                               &run->trained, info);
    return e ? e : render_again(r, info);
}

enum err job__unverified(struct job_run *run, enum err e, struct err_info *info) {
    if (e == ERR_FORMAT && !run->code) {
        run->code = "verification_failed";
        err_prefix(info, "the adapter is not published");
    }
    return e;
}

enum err job__score_probe(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    struct train_job *t = &run->train;
    const struct ft_evaluate_config cfg = {
        .exec = t->exec, .row_tokens = t->row_tokens, .row_seqs = t->row_seqs, .stop = &t->stop};
    if (mdl_adapter_digest(&t->config, t->moments.w, run->digest))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_evaluate_probe(&cfg, &run->trained, info);
    if (!e)
        e = render_again(r, info);
    return e ? job__unverified(run, e, info) : ERR_OK;
}

enum err job__verify(void *arg, struct eng *engine, struct adp_version *v, struct err_info *info) {
    struct job_runner *r = arg;
    const struct job_run *run = r->run;
    // One process trains and serves, so both are the kernel set of one device.
    const struct adapter_verify a = {.trained = &run->trained,
                                     .served = &run->served,
                                     .digest = run->digest,
                                     .same_kernels = true,
                                     .tenant = run->tenant,
                                     .stop = &run->train.stop};
    return adapter_verify(&a, engine, v, info);
}
