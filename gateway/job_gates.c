// SPDX-License-Identifier: Apache-2.0
// Release gates: whether a trained model may be served.
#include "finetune/evaluate.h"
#include "gateway/job_runner_internal.h"
#include <stdio.h>

static enum err base_loss(struct job_runner *r, double *loss, struct err_info *info) {
    struct train_job *t = &r->run->train;
    const struct ft_evaluate_config cfg = {.exec = t->exec,
                                           .data = t->validation,
                                           .row_tokens = t->row_tokens,
                                           .row_seqs = t->row_seqs,
                                           .base = true,
                                           .stop = &t->stop};
    struct ft_evaluation v;
    enum err e = ft_evaluate(&cfg, &v, info);
    if (!e)
        *loss = v.loss / (double)(v.targets ? v.targets : 1);
    return e;
}

static enum err refuse(struct job_run *run, const char *gate, double want, double found,
                       struct err_info *info) {
    char param[64];
    snprintf(param, sizeof param, "graft.evaluation.%s", gate);
    run->code = "release_gate";
    return err_set(info, ERR_INVALID, param,
                   "the model is not released: %s is %g, and %g was found; the adapter is kept "
                   "with the job",
                   gate, want, found);
}

enum err job__check_gates(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    const json_t *most = json_object_get(run->spec.evaluation, "max_valid_loss");
    const json_t *least = json_object_get(run->spec.evaluation, "min_improvement");
    double after = run->train.state.valid_loss, before = 0;
    if (most && !(after <= json_number_value(most)))
        return refuse(run, "max_valid_loss", json_number_value(most), after, info);
    enum err e = least ? base_loss(r, &before, info) : ERR_OK;
    if (!e && least && !(before - after >= json_number_value(least)))
        return refuse(run, "min_improvement", json_number_value(least), before - after, info);
    return e;
}

// A gate that nobody would look at must not seem to have been passed.
enum err job__know_gates(const struct ft_job_spec *s, struct err_info *info) {
    static const char *const unknown[] = {"required", "forbidden", "sample_prompts"};
    static const char *const loss[] = {"max_valid_loss", "min_improvement"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (json_array_size(json_object_get(s->evaluation, unknown[i])))
            return err_set(info, ERR_UNSUPPORTED, "graft.evaluation",
                           "graft.evaluation.%s is not supported yet", unknown[i]);
    for (size_t i = 0; i < sizeof loss / sizeof *loss; i++)
        if (json_object_get(s->evaluation, loss[i]) && !s->validation_file)
            return err_set(info, ERR_INVALID, "validation_file",
                           "graft.evaluation.%s needs a validation file", loss[i]);
    return ERR_OK;
}
