// SPDX-License-Identifier: Apache-2.0
#include "gateway/engine_ask.h"
#include "base/mailbox.h"

enum { AT_ONCE = 4, LOOK_AGAIN_NS = 50000000 };

static void wake(void *arg, struct eng_stream *s) {
    (void)s;
    mailbox_wake(arg);
}

static enum err submit(const struct ask *a, struct mailbox *wakes, struct ask_item *it,
                       struct err_info *info) {
    const struct eng_request r = {
        .kind = it->mask ? ENG_SCORE : ENG_GENERATE,
        .prompt = it->ids,
        .n_prompt = it->n,
        .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n = 1,
        .max_tokens = it->mask ? 0 : it->max_tokens,
        .n_prompt_logprobs = it->mask ? 0 : -1,
        .score_mask = it->mask,
        .tenant = a->tenant,
        .deadline_ns = INT64_MAX,
        .adapter = a->adapter,
        .adapter_slot = -1,
        .internal = true, // clients that fill the queue do not keep a version from being verified
        .wake = wake,
        .wake_arg = wakes,
    };
    it->got = it->n_answer = 0;
    it->ended = false;
    return eng_submit(a->engine, &r, &it->stream, info);
}

static void take_token(struct ask_item *it, const struct eng_event *ev) {
    if (it->n_answer < it->max_tokens)
        it->answer[it->n_answer++] = ev->token;
}

static enum err take_end(struct ask_item *it, const struct eng_event *ev, struct err_info *info) {
    if (ev->finish == ENG_FINISH_ERROR || ev->finish == ENG_FINISH_CANCELLED) {
        enum err e = ev->finish == ENG_FINISH_ERROR ? ev->error : ERR_CANCELLED;
        return err_set(info, e, NULL, "%s", err_text(e));
    }
    it->ended = ev->finish == ENG_FINISH_STOP;
    if (it->ended && it->n_answer && it->answer[it->n_answer - 1] == ev->stop_id)
        it->n_answer--;
    return ERR_OK;
}

// *open: it has not ended.
static enum err take_events(struct ask_item *it, bool *open, struct err_info *info) {
    struct eng_event ev;
    enum err e = ERR_OK;
    while (!e && it->stream && eng_stream_next(it->stream, &ev)) {
        if (ev.type == ENG_EVENT_PROMPT) {
            it->losses[it->got++] = -ev.logprob;
        } else if (ev.type == ENG_EVENT_TOKEN) {
            take_token(it, &ev);
        } else {
            e = take_end(it, &ev, info);
            eng_stream_release(it->stream);
            it->stream = NULL;
        }
    }
    *open = it->stream != NULL;
    return e;
}

struct window {
    size_t next; // the first that was not submitted
    size_t open;
};

static enum err turn(const struct ask *a, struct mailbox *wakes, struct ask_item *items, size_t n,
                     struct window *w, struct err_info *info) {
    enum err e = ERR_OK;
    bool open;
    w->open = 0;
    for (size_t i = 0; i < w->next && !e; i++) {
        e = take_events(&items[i], &open, info);
        w->open += open;
    }
    while (!e && w->next < n && w->open < AT_ONCE) {
        e = submit(a, wakes, &items[w->next], info);
        if (e == ERR_QUEUE_FULL) // others are before us
            return ERR_OK;
        w->next += !e;
        w->open += !e;
    }
    return e;
}

enum err ask_all(const struct ask *a, struct ask_item *items, size_t n, struct err_info *info) {
    struct mailbox *wakes;
    struct window w = {0};
    enum err e = ERR_OK;
    for (size_t i = 0; i < n; i++)
        items[i].stream = NULL;
    if (mailbox_create(1, 0, &wakes))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    while (!e && (w.next < n || w.open)) {
        if (a->stop && atomic_load(a->stop))
            e = err_set(info, ERR_CANCELLED, NULL, "cancelled");
        else
            e = turn(a, wakes, items, n, &w, info);
        if (!e && (w.next < n || w.open))
            (void)mailbox_wait(wakes, LOOK_AGAIN_NS);
    }
    for (size_t i = 0; i < n; i++)
        if (items[i].stream)
            eng_stream_release(items[i].stream);
    mailbox_destroy(wakes);
    return e;
}
