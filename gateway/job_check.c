// SPDX-License-Identifier: Apache-2.0
#include "gateway/job_check.h"
#include "gateway/job_answers.h"

static enum err check_model(const struct app *a, const char *name, struct err_info *info) {
    enum err e = app_check_model(a, name, info);
    if (e && a->adapters && adp_knows(a->adapters, name))
        return err_set(info, ERR_INVALID, "model",
                       "model `%.64s` is an adapter; a job starts from the base model, `%.64s`",
                       name, a->names[0]);
    return e;
}

enum err job_check(const struct app *a, const struct serve_options *o, const struct ft_job_spec *s,
                   struct err_info *info) {
    if (app_state(a) == APP_LOADING)
        return app_check_ready(a, info);
    enum err e = check_model(a, s->model, info);
    if (e)
        return e;
    if (s->max_seq_length > a->config->context)
        return err_set(info, ERR_INVALID, "graft.max_seq_length",
                       "graft.max_seq_length is %lld; the model's context has %d tokens",
                       (long long)s->max_seq_length, a->config->context);
    // Without adapters nobody knows yet with which bound the server will be started.
    if (o->enable_lora && s->lora_r > o->max_lora_rank)
        return err_set(info, ERR_INVALID, "graft.lora.r",
                       "graft.lora.r is %lld, and this server serves adapters of rank %lld at most "
                       "(--max-lora-rank)",
                       (long long)s->lora_r, (long long)o->max_lora_rank);
    return ERR_OK;
}

// Whether a text is a completion's prompt or a user's message is decided by the training file,
// which is read when the job is validated. So it is tried as what takes fewer tokens; one that does
// not fit as the other is refused when the run begins (job__read_prompts), before anything is
// trained.
enum err job_check_prompts(const struct app *a, const struct ft_job_spec *s,
                           struct err_info *info) {
    static const char *const lists[] = {"required", "forbidden", "sample_prompts"};
    const struct job_prompt_opts o = {.tokenizer = a->tokenizer,
                                      .chat_template = a->template,
                                      .now = clock_wall_ns(a->clock) / 1000000000,
                                      .completion = !s->dpo,
                                      .max_prompt = a->max_model_len};
    enum err e = ERR_OK;
    for (size_t i = 0; i < sizeof lists / sizeof *lists && !e; i++) {
        struct job_prompts p;
        e = job_prompts_read(json_object_get(s->evaluation, lists[i]), lists[i], &o, &p, info);
        job_prompts_fini(&p);
    }
    return e;
}
