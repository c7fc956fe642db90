// SPDX-License-Identifier: Apache-2.0
// The steps of a rolling swap as requests to the engines: they go through admission like all
// others, but before them, and are taken while the server drains, so that a job that ends then can
// still publish.
#include "serving/rollout.h"

enum { WARM_TOKENS = 8, AGAIN_NS = 5000000 };
static const int64_t patience_ns = 60000000000;
static const int64_t hangs_ns = 5000000000;

static void on_wake(void *arg, struct eng_stream *s) {
    (void)s;
    mailbox_wake(arg);
}

enum err rollout_engines_init(struct rollout_engines *e, struct replicas *r,
                              struct err_info *info) {
    *e = (struct rollout_engines){.replicas = r, .wait_ns = patience_ns};
    if (mailbox_create(1, 0, &e->wake))
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the swap of adapters");
    return ERR_OK;
}

void rollout_engines_fini(struct rollout_engines *e) {
    mailbox_destroy(e->wake);
    e->wake = NULL;
}

void rollout_engines_stop(struct rollout_engines *e) {
    atomic_store(&e->stop, true);
    if (e->wake)
        mailbox_wake(e->wake);
}

static enum err ended(const struct eng_event *ev, struct err_info *info) {
    if (ev->finish == ENG_FINISH_LENGTH)
        return ERR_OK;
    enum err e = ev->finish == ENG_FINISH_ERROR ? ev->error : ERR_CANCELLED;
    return err_set(info, e, NULL, "%s", err_text(e));
}

// A full engine is asked again until the deadline.
static enum err submit(const struct rollout_engines *e, struct eng *eng,
                       const struct eng_request *q, struct eng_stream **s, struct err_info *info) {
    for (;;) {
        enum err err = eng_submit(eng, q, s, info);
        if (err != ERR_QUEUE_FULL || atomic_load(&e->stop) ||
            clock_mono_ns(&clock_system) >= q->deadline_ns)
            return err;
        (void)mailbox_wait(e->wake, AGAIN_NS);
    }
}

// The engine itself ends what is late; one that hangs does not.
static bool await(const struct rollout_engines *e, struct eng_stream *s, int64_t deadline_ns,
                  struct eng_event *ev) {
    *ev = (struct eng_event){.type = ENG_EVENT_PROMPT};
    for (;;) {
        while (eng_stream_next(s, ev))
            if (ev->type == ENG_EVENT_END)
                return true;
        if (atomic_load(&e->stop) || clock_mono_ns(&clock_system) > deadline_ns + hangs_ns)
            return false;
        (void)mailbox_wait(e->wake, hangs_ns);
    }
}

static enum err ask(const struct rollout_engines *e, int32_t replica, struct adp_version *v,
                    enum eng_kind kind, struct err_info *info) {
    static const int32_t tokens[WARM_TOKENS] = {0};
    struct eng_request q = {
        .kind = kind,
        .prompt = tokens,
        .n_prompt = WARM_TOKENS,
        .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n = 1,
        .n_prompt_logprobs = -1,
        .priority = INT32_MIN,
        .deadline_ns = clock_mono_ns(&clock_system) + e->wait_ns,
        .adapter = v,
        .adapter_slot = -1,
        .internal = true,
        .wake = on_wake,
        .wake_arg = e->wake,
    };
    struct eng_stream *s;
    struct eng_event ev;
    adp_pin(v);
    enum err err = submit(e, e->replicas->engine[replica], &q, &s, info);
    adp_unpin(v);
    if (err)
        return err;
    bool answered = await(e, s, q.deadline_ns, &ev);
    eng_stream_release(s);
    if (answered)
        return ended(&ev, info);
    return atomic_load(&e->stop)
               ? err_set(info, ERR_CANCELLED, NULL, "the server is stopping")
               : err_set(info, ERR_ENGINE_DEAD, NULL, "the engine does not answer");
}

static enum err load(void *arg, int32_t replica, struct adp_version *v, struct err_info *info) {
    const struct rollout_engines *e = arg;
    enum err err = ask(e, replica, v, ENG_LOAD, info);
    char why[sizeof info->message];
    if (err)
        adp_place_reason(v, replica, why, sizeof why);
    if (err && why[0])
        err_set(info, err, NULL, "%s", why);
    else if (err == ERR_DEADLINE)
        err_set(info, err, NULL, "no adapter slot became free within %.3g s; raise --max-loras",
                (double)e->wait_ns * 1e-9);
    return err;
}

static enum err verify(void *arg, int32_t replica, struct adp_version *v, struct err_info *info) {
    const struct rollout_engines *e = arg;
    return e->verify(e->hook_arg, e->replicas->engine[replica], v, info);
}

static enum err warm(void *arg, int32_t replica, struct adp_version *v, struct err_info *info) {
    return ask(arg, replica, v, ENG_SCORE, info);
}

static enum err decide(void *arg, struct adp_version *v, bool *promote, struct err_info *info) {
    const struct rollout_engines *e = arg;
    return e->decide(e->hook_arg, e->replicas->engine[0], v, promote, info);
}

// The registry has told the engines; one that sleeps has not looked yet.
static void drop(void *arg, int32_t replica, struct adp_version *v) {
    const struct rollout_engines *e = arg;
    (void)v;
    eng_wake(e->replicas->engine[replica]);
}

struct rollout_ops rollout_engines_ops(struct rollout_engines *e) {
    return (struct rollout_ops){
        .n_replicas = e->replicas->n,
        .load = load,
        .verify = e->verify ? verify : NULL,
        .warm = warm,
        .decide = e->decide ? decide : NULL,
        .drop = drop,
        .arg = e,
    };
}
