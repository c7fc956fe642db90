// SPDX-License-Identifier: Apache-2.0
// Release gates: whether a trained model may be served. Losses are the trainer's; outputs are
// answers of the version that is about to be promoted.
#include "finetune/evaluate.h"
#include "gateway/job_runner_internal.h"
#include <stdio.h>
#include <string.h>

enum { SHOWN = 120 }; // bytes of a text in a message

static const json_t *gate(const struct ft_job_spec *s, const char *key) {
    const json_t *v = json_object_get(s->evaluation, key);
    return v && !json_is_null(v) ? v : NULL;
}

// With on_failure "keep" what does not pass is published all the same, but not promoted.
static enum err refuse(struct job_run *run, const char *name, const char *why,
                       struct err_info *info) {
    if (run->spec.keep_unreleased) {
        if (!run->unreleased[0])
            snprintf(run->unreleased, sizeof run->unreleased, "%s", why);
        return ERR_OK;
    }
    char param[64];
    snprintf(param, sizeof param, "graft.evaluation.%s", name);
    run->code = "release_gate";
    return err_set(info, ERR_INVALID, param,
                   "the model is not released: %s; the adapter is kept with the job", why);
}

// ---- losses

static enum err base_loss(struct job_runner *r, double *loss, struct err_info *info) {
    struct train_job *t = &r->run->train;
    const struct ft_evaluate_config cfg = {.exec = t->exec,
                                           .data = t->validation,
                                           .row_tokens = t->row_tokens,
                                           .row_seqs = t->row_seqs,
                                           .base = true,
                                           .beta_dpo = r->run->spec.dpo ? t->o.beta_dpo : 0,
                                           .stop = &t->stop};
    struct ft_evaluation v;
    enum err e = ft_evaluate(&cfg, &v, info);
    if (!e)
        *loss = v.loss / (double)(v.targets ? v.targets : 1);
    return e;
}

static enum err refuse_loss(struct job_run *run, const char *name, double want, double found,
                            struct err_info *info) {
    char why[160];
    snprintf(why, sizeof why, "%s is %g, and %g was found", name, want, found);
    return refuse(run, name, why, info);
}

enum err job__check_losses(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    const json_t *most = gate(&run->spec, "max_valid_loss");
    const json_t *least = gate(&run->spec, "min_improvement");
    double after = run->train.state.valid_loss, before = 0;
    enum err e = ERR_OK;
    if (most && !(after <= json_number_value(most)))
        e = refuse_loss(run, "max_valid_loss", json_number_value(most), after, info);
    if (!e && least)
        e = base_loss(r, &before, info);
    run->improvement = before - after;
    if (!e && least && !(run->improvement >= json_number_value(least)))
        e = refuse_loss(run, "min_improvement", json_number_value(least), run->improvement, info);
    return e;
}

// ---- outputs

static bool occurs(const json_t *text, const struct job_prompt *p) {
    return memmem(p->answer, p->answer_len, json_string_value(text), json_string_length(text));
}

static enum err refuse_output(struct job_run *run, const char *name, size_t at, const json_t *text,
                              bool lacks, const struct job_prompt *p, struct err_info *info) {
    char why[400];
    struct err_info cut; // cuts at a character's end
    err_set(&cut, ERR_INVALID, NULL, "%s[%zu]: the answer %s \"%.*s\": \"%.*s\"", name, at,
            lacks ? "lacks" : "has", SHOWN, json_string_value(text), SHOWN, p->answer);
    snprintf(why, sizeof why, "%.399s", cut.message);
    return refuse(run, name, why, info);
}

static enum err check_outputs(struct job_run *run, const char *name, const struct job_prompts *p,
                              bool wanted, struct err_info *info) {
    enum err e = ERR_OK;
    for (size_t i = 0; i < p->n && !e; i++) {
        const json_t *output = json_object_get(p->list[i].item, "output");
        size_t n = json_is_array(output) ? json_array_size(output) : 1;
        for (size_t k = 0; k < n && !e; k++) {
            const json_t *text = json_is_array(output) ? json_array_get(output, k) : output;
            if (occurs(text, &p->list[i]) != wanted)
                e = refuse_output(run, name, i, text, wanted, &p->list[i], info);
        }
    }
    return e;
}

enum err job__check_outputs(struct job_runner *r, struct eng *engine, struct adp_version *v,
                            struct err_info *info) {
    struct job_run *run = r->run;
    const struct ask a = {engine, v, run->tenant, &run->train.stop};
    const int32_t most = (int32_t)run->spec.answer_tokens;
    enum err e = job_prompts_ask(&run->required, &a, r->app->tokenizer, most, info);
    if (!e)
        e = check_outputs(run, "required", &run->required, true, info);
    if (!e)
        e = job_prompts_ask(&run->forbidden, &a, r->app->tokenizer, most, info);
    return e ? e : check_outputs(run, "forbidden", &run->forbidden, false, info);
}

// ---- passed

void job__tell_gates(const struct job_runner *r) {
    const struct job_run *run = r->run;
    const json_t *most = gate(&run->spec, "max_valid_loss");
    const json_t *least = gate(&run->spec, "min_improvement");
    struct buf b;
    buf_init(&b, 0);
    if (most)
        buf_printf(&b, ", max_valid_loss %g (%g)", json_number_value(most),
                   run->train.state.valid_loss);
    if (least)
        buf_printf(&b, ", min_improvement %g (%g)", json_number_value(least), run->improvement);
    if (run->required.n)
        buf_printf(&b, ", required (%zu)", run->required.n);
    if (run->forbidden.n)
        buf_printf(&b, ", forbidden (%zu)", run->forbidden.n);
    char message[400];
    if (b.len && !buf_err(&b)) {
        snprintf(message, sizeof message, "Release gates passed: %s", b.data + 2);
        job__tell(r, "info", "message", message, NULL);
        job__log(r, LOG_INFO, "release gates passed");
    }
    buf_fini(&b);
}

// ---- at the beginning

enum err job__read_prompts(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    const struct job_prompt_opts o = {.tokenizer = r->app->tokenizer,
                                      .chat_template = r->app->template,
                                      .now = run->opts.now,
                                      .completion =
                                          ft_dataset_report(run->train.data)->kind == FT_COMPLETION,
                                      .max_prompt = r->app->max_model_len};
    const struct {
        const char *name;
        struct job_prompts *to;
    } lists[] = {{"required", &run->required},
                 {"forbidden", &run->forbidden},
                 {"sample_prompts", &run->samples}};
    enum err e = ERR_OK;
    for (size_t i = 0; i < sizeof lists / sizeof *lists && !e; i++)
        e = job_prompts_read(gate(&run->spec, lists[i].name), lists[i].name, &o, lists[i].to, info);
    return e;
}
