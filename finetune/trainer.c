// SPDX-License-Identifier: Apache-2.0
#include "finetune/trainer.h"
#include "base/mem.h"
#include "finetune/evaluate.h"
#include <math.h>
#include <string.h>

enum {
    FIRST_EXPONENT = 32,
    TARGET_BITS = 36, // of the largest sum: a row has 2^16 times as much room, the sums 2^27
    COARSER = 8,      // bits less after an overflow
    MIN_EXPONENT = -80,
    MAX_EXPONENT = 120,
    MAX_ROWS = 2000, // of a step: more could overflow the sums
};

struct run {
    const struct ft_trainer *t;
    struct ft_state *state;
    struct err_info *info;
    struct ft_row row;
    // DPO, of the row in hand
    float *weights;
    double *policy, *reference; // log-probability of each sequence
    size_t cap_tokens, cap_seqs;
    int64_t saved; // step of the newest checkpoint
    // of the step in hand
    double loss;
    int64_t hits, targets;
    double speed; // tokens/s
    int64_t step_ns;
};

void ft_state_init(struct ft_state *s) {
    *s = (struct ft_state){
        .exponent = FIRST_EXPONENT, .valid_loss = (double)NAN, .valid_accuracy = (double)NAN};
}

int32_t ft_exponent(double largest, int32_t exponent) {
    if (!(largest > 0))
        return exponent;
    int32_t e = TARGET_BITS - 1 - ilogb(largest);
    return e < MIN_EXPONENT ? MIN_EXPONENT : e > MAX_EXPONENT ? MAX_EXPONENT : e;
}

static enum err stopped(const struct run *r) {
    return r->t->stop && atomic_load(r->t->stop)
               ? err_set(r->info, ERR_CANCELLED, NULL, "training was stopped")
               : ERR_OK;
}

// ---- rows

static struct lora_row row_of(const struct run *r, bool backward) {
    const struct ft_row *row = &r->row;
    return (struct lora_row){.n_tokens = row->n_tokens,
                             .n_seqs = row->n_seqs,
                             .ids = row->ids,
                             .seq_start = row->seq_start,
                             .mask = row->mask,
                             .keys = r->t->hyper.dropout ? row->keys : NULL,
                             .weight = 1,
                             .exponent = r->state->exponent,
                             .backward = backward};
}

// The line of the first target whose loss is not finite; where all are, the row's first.
static enum err not_finite(const struct run *r, const struct lora_row_result *res) {
    const struct ft_row *row = &r->row;
    int64_t target = 0, sample = row->sample[0];
    bool found = false;
    for (int32_t s = 0; s < row->n_seqs && !found; s++)
        for (int32_t i = row->seq_start[s]; i < row->seq_start[s + 1] && !found; i++)
            if (row->mask[i] && !isfinite(res->losses[target++])) {
                sample = row->sample[s];
                found = true;
            }
    return err_set(r->info, ERR_NONFINITE, NULL, "step %lld: the %s of line %lld%s is not finite",
                   (long long)r->state->step + 1, found ? "loss" : "gradient",
                   (long long)ft_dataset_line(r->t->data, sample),
                   found || row->n_seqs == 1 ? "" : " or of a line in the same row");
}

static enum err run_unit(struct run *r, const struct lora_row *row, struct lora_row_result *res) {
    enum err e = ft_exec_unit(r->t->exec, row, res, r->info);
    return !e && !res->finite ? not_finite(r, res) : e;
}

// ---- DPO (Rafailov et al., 2023): two sequences a sample, the preferred one first

static enum err reserve_dpo(struct run *r) {
    size_t n = (size_t)r->row.n_tokens, s = (size_t)r->row.n_seqs;
    if (n > r->cap_tokens) {
        mem_free(r->weights);
        r->weights = mem_calloc(n, sizeof *r->weights);
        r->cap_tokens = r->weights ? n : 0;
    }
    if (s > r->cap_seqs) {
        mem_free(r->policy);
        mem_free(r->reference);
        r->policy = mem_calloc(s, sizeof *r->policy);
        r->reference = mem_calloc(s, sizeof *r->reference);
        r->cap_seqs = r->policy && r->reference ? s : 0;
    }
    return r->cap_tokens && r->cap_seqs ? ERR_OK
                                        : err_set(r->info, ERR_NOMEM, NULL, "out of memory");
}

static enum err score(struct run *r, bool base, double *logprob) {
    struct lora_row row = row_of(r, false);
    struct lora_row_result res;
    row.base = base;
    if (base)
        row.keys = NULL;
    enum err e = run_unit(r, &row, &res);
    int64_t target = 0;
    for (int32_t s = 0; s < r->row.n_seqs && !e; s++) {
        logprob[s] = 0;
        for (int32_t i = r->row.seq_start[s]; i < r->row.seq_start[s + 1]; i++)
            if (r->row.mask[i])
                logprob[s] -= (double)res.losses[target++];
    }
    return e;
}

// loss = -log sigmoid(z), z = beta (log-ratio of the preferred - of the other); its gradient by a
// log-probability is -+ beta sigmoid(-z).
static void weigh_pairs(struct run *r) {
    double beta = r->t->hyper.beta_dpo;
    for (int32_t s = 0; s + 1 < r->row.n_seqs; s += 2) {
        double z =
            beta * ((r->policy[s] - r->reference[s]) - (r->policy[s + 1] - r->reference[s + 1]));
        double away = z > 0 ? exp(-z) / (1 + exp(-z)) : 1 / (1 + exp(z));
        r->loss += ft_dpo_loss(z);
        r->hits += z > 0;
        r->targets++;
        for (int32_t i = r->row.seq_start[s]; i < r->row.seq_start[s + 2]; i++)
            r->weights[i] = (float)(i < r->row.seq_start[s + 1] ? beta * away : -beta * away);
    }
}

static enum err dpo_row(struct run *r, struct lora_row_result *res) {
    enum err e = reserve_dpo(r);
    if (!e)
        e = score(r, true, r->reference);
    if (!e)
        e = score(r, false, r->policy);
    if (e)
        return e;
    weigh_pairs(r);
    struct lora_row row = row_of(r, true);
    row.weights = r->weights;
    return run_unit(r, &row, res);
}

static enum err supervised_row(struct run *r, struct lora_row_result *res) {
    struct lora_row row = row_of(r, true);
    enum err e = run_unit(r, &row, res);
    if (!e) {
        r->loss += res->loss;
        r->hits += res->hits;
        r->targets += res->targets;
    }
    return e;
}

// ---- steps

// All rows of a step. *overflow: a gradient did not fit the exponent.
static enum err run_rows(struct run *r, const struct ft_plan_step *s, bool *overflow) {
    const struct ft_trainer *t = r->t;
    enum err e = ERR_OK;
    r->loss = 0;
    r->hits = r->targets = 0;
    for (int32_t j = 0; j < s->n_rows && !e && !*overflow; j++) {
        struct lora_row_result res;
        if ((e = stopped(r)) || (e = ft_row_read(t->data, s, j, t->hyper.seed, &r->row, r->info)) ||
            (e = t->hyper.method == FT_DPO ? dpo_row(r, &res) : supervised_row(r, &res)))
            break;
        *overflow = res.overflow;
    }
    return e;
}

// Sums of a step that is not committed must not stay; an error before this one counts more.
static enum err clear(struct run *r, enum err before) {
    enum err e = ft_exec_clear(r->t->exec, before ? NULL : r->info);
    return before ? before : e;
}

static enum err sum_gradients(struct run *r, const struct ft_plan_step *s) {
    if (s->n_rows > MAX_ROWS)
        return err_set(r->info, ERR_LIMIT, NULL, "a step of %d rows, %d are the most", s->n_rows,
                       MAX_ROWS);
    for (;;) {
        bool overflow = false;
        enum err e = run_rows(r, s, &overflow);
        if (!e && !overflow)
            return ERR_OK;
        if ((e = clear(r, e)))
            return e;
        r->state->exponent -= COARSER;
        r->state->repeats++;
        if (r->state->exponent < MIN_EXPONENT)
            return err_set(r->info, ERR_NONFINITE, NULL, "step %lld: the gradient is too large",
                           (long long)r->state->step + 1);
    }
}

static enum err commit(struct run *r, const struct ft_plan_step *s, double lr) {
    const struct ft_hyper *h = &r->t->hyper;
    struct ft_state *state = r->state;
    double divisor = h->method == FT_DPO ? (double)s->n_samples : (double)s->supervised;
    struct ft_step step = {.divisor = divisor,
                           .max_grad_norm = h->max_grad_norm,
                           .lr = lr,
                           .beta1 = h->beta1,
                           .beta2 = h->beta2,
                           .eps = h->eps,
                           .decay = h->weight_decay,
                           .t = state->step + 1,
                           .exponent = state->exponent};
    struct ft_step_result res;
    enum err e = ft_exec_step(r->t->exec, &step, &res, r->info);
    if (e)
        return e;
    state->step++;
    state->exponent = ft_exponent(res.largest, state->exponent);
    state->trained_tokens += s->tokens;
    state->train_loss = r->loss / divisor;
    state->train_accuracy = (double)r->hits / (double)(r->targets ? r->targets : 1);
    state->grad_norm = res.grad_norm;
    state->valid_loss = state->valid_accuracy = (double)NAN; // were of an earlier step
    return ERR_OK;
}

static enum err validate(struct run *r) {
    const struct ft_trainer *t = r->t;
    bool last = r->state->step == ft_plan_steps(t->plan);
    struct ft_evaluate_config cfg = {.exec = t->exec,
                                     .data = t->validation,
                                     .row_tokens = t->hyper.row_tokens,
                                     .row_seqs = t->hyper.row_seqs,
                                     .beta_dpo = t->hyper.method == FT_DPO ? t->hyper.beta_dpo : 0,
                                     .max_samples = last ? 0 : t->hyper.eval_samples,
                                     .stop = t->stop};
    struct ft_evaluation v;
    enum err e = ft_evaluate(&cfg, &v, r->info);
    if (e)
        return e;
    double n = (double)(v.targets ? v.targets : 1);
    r->state->valid_loss = v.loss / n;
    r->state->valid_accuracy = (double)v.hits / n;
    return ERR_OK;
}

static bool due(const struct run *r, int64_t every) {
    return r->state->step == ft_plan_steps(r->t->plan) || (every && r->state->step % every == 0);
}

static void measure(struct run *r, int64_t tokens, int64_t ns) {
    double now = (double)tokens * 1e9 / (double)(ns > 0 ? ns : 1);
    r->speed = r->speed > 0 ? 0.9 * r->speed + 0.1 * now : now;
    r->step_ns = r->step_ns ? (9 * r->step_ns + ns) / 10 : ns;
}

static enum err save(struct run *r, bool stopping, struct err_info *info) {
    enum err e = r->t->save(r->t->arg, r->state, stopping, info);
    r->saved = e ? r->saved : r->state->step;
    return e;
}

static enum err after_step(struct run *r, const struct ft_plan_step *s, double lr) {
    const struct ft_trainer *t = r->t;
    int64_t steps = ft_plan_steps(t->plan), at = r->state->step;
    struct ft_progress p = {.state = r->state,
                            .steps = steps,
                            .epoch = s->epoch,
                            .lr = lr,
                            .tokens_per_s = r->speed,
                            .eta_s = (double)(steps - at) * (double)r->step_ns * 1e-9};
    enum err e = ERR_OK;
    if (t->validation && due(r, t->hyper.eval_steps)) {
        e = validate(r);
        p.evaluated = !e;
    }
    if (e == ERR_CANCELLED) // whoever goes on evaluates the step, and tells of it (finish_step)
        return e;
    enum err told = t->progress ? t->progress(t->arg, &p, r->info) : ERR_OK;
    if (!e && !told && t->save && due(r, t->hyper.save_steps))
        e = save(r, false, r->info);
    return e ? e : told;
}

static enum err one_step(struct run *r) {
    const struct ft_trainer *t = r->t;
    int64_t start = clock_mono_ns(t->clock);
    struct ft_plan_step s;
    enum err e = ft_plan_at(t->plan, r->state->step, &s, r->info);
    if (e || (e = sum_gradients(r, &s)))
        return e;
    double lr = ft_schedule_lr(&t->hyper.schedule, r->state->step + 1);
    if ((e = commit(r, &s, lr)))
        return e;
    measure(r, s.tokens, clock_mono_ns(t->clock) - start);
    return after_step(r, &s, lr);
}

// The run that was gone on with was stopped in the evaluation of its last step.
static enum err finish_step(struct run *r) {
    const struct ft_trainer *t = r->t;
    struct ft_plan_step s;
    if (!r->state->step || !t->validation || !due(r, t->hyper.eval_steps) ||
        !isnan(r->state->valid_loss))
        return ERR_OK;
    enum err e = ft_plan_at(t->plan, r->state->step - 1, &s, r->info);
    if (!e)
        e = after_step(r, &s, ft_schedule_lr(&t->hyper.schedule, r->state->step));
    if (!e && t->save && !due(r, t->hyper.save_steps)) // its checkpoint knows no loss
        e = save(r, false, r->info);
    return e;
}

enum err ft_train(const struct ft_trainer *t, struct ft_state *state, struct err_info *info) {
    struct run r = {.t = t, .state = state, .info = info, .saved = state->step};
    enum err e = clear(&r, ERR_OK);
    if (!e)
        e = finish_step(&r);
    while (!e && state->step < ft_plan_steps(t->plan))
        e = one_step(&r);
    if (e == ERR_CANCELLED && t->save && state->step > r.saved) {
        struct err_info why;
        enum err s = save(&r, true, &why);
        if (s && info)
            *info = why;
        e = s ? s : e;
    }
    ft_row_fini(&r.row);
    mem_free(r.weights);
    mem_free(r.policy);
    mem_free(r.reference);
    return e;
}
