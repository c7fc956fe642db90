// SPDX-License-Identifier: Apache-2.0
#include "loadtest/check.h"
#include "base/json_load.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { MAX_EVENT = 4 << 20 };

const char *lt_fault_name(enum lt_fault f) {
    static const char *const names[LT_FAULTS] = {
        "none",    "connect", "timeout",     "busy",          "http_4xx", "http_5xx",
        "framing", "json",    "error_event", "finish_reason", "usage",
    };
    return names[f];
}

static void fault(struct lt_answer *a, enum lt_fault f, const char *detail) {
    if (a->fault)
        return;
    a->fault = f;
    snprintf(a->detail, sizeof a->detail, "%s", detail);
}

void lt_answer_init(struct lt_answer *a, bool stream, bool count_logprobs) {
    *a = (struct lt_answer){.stream = stream,
                            .count_logprobs = count_logprobs,
                            .prompt_tokens = -1,
                            .completion_tokens = -1};
    buf_init(&a->pending, MAX_EVENT);
}

void lt_answer_fini(struct lt_answer *a) {
    buf_fini(&a->pending);
}

static void take_usage(struct lt_answer *a, const json_t *usage) {
    if (!json_is_object(usage))
        return;
    a->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
    a->completion_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    if (json_integer_value(json_object_get(usage, "total_tokens")) !=
        a->prompt_tokens + a->completion_tokens)
        fault(a, LT_FAULT_USAGE, "total_tokens is not the sum");
}

static void take_finish(struct lt_answer *a, const json_t *choice) {
    static const char *const allowed[] = {"stop", "length", "tool_calls", "content_filter"};
    const json_t *reason = json_object_get(choice, "finish_reason");
    if (!reason || json_is_null(reason))
        return;
    const char *s = json_is_string(reason) ? json_string_value(reason) : "";
    bool known = false;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        known |= !strcmp(s, allowed[i]);
    if (!known)
        fault(a, LT_FAULT_FINISH, "finish_reason is not in the enum");
    if (a->finished)
        fault(a, LT_FAULT_FINISH, "a second finish_reason");
    a->finished = true;
    a->length = !strcmp(s, "length");
}

static size_t count_logprobs(const json_t *choice) {
    const json_t *l = json_object_get(choice, "logprobs");
    const json_t *list = json_object_get(l, "content");
    return json_array_size(json_is_array(list) ? list : json_object_get(l, "tokens"));
}

// True if the choice brought text or tokens.
static bool take_choice(struct lt_answer *a, const json_t *choice) {
    const json_t *part = json_object_get(choice, a->stream ? "delta" : "message");
    const json_t *text = json_object_get(choice, "text");
    if (!text)
        text = json_object_get(part, "content");
    size_t tokens = count_logprobs(choice);
    a->logprob_tokens += (int32_t)tokens;
    if (a->finished && (tokens || json_string_length(text)))
        fault(a, LT_FAULT_FINISH, "content after finish_reason");
    take_finish(a, choice);
    return tokens > 0 || json_string_length(text) > 0;
}

static bool take_object(struct lt_answer *a, const char *text, size_t n) {
    json_error_t e;
    json_t *o = json_load_text(text, n, JSON_ALLOW_NUL, &e);
    bool content = false;
    if (!json_is_object(o)) {
        fault(a, LT_FAULT_JSON, o ? "not an object" : e.text);
    } else if (json_object_get(o, "error")) {
        const char *m = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
        fault(a, LT_FAULT_ERROR, m ? m : "error without a message");
    } else {
        const json_t *choices = json_object_get(o, "choices");
        if (!json_is_array(choices))
            fault(a, LT_FAULT_JSON, "no choices");
        for (size_t i = 0; i < json_array_size(choices); i++)
            content |= take_choice(a, json_array_get(choices, i));
        take_usage(a, json_object_get(o, "usage"));
    }
    json_decref(o);
    return content;
}

// One event: its lines without the blank one at the end.
static bool take_event(struct lt_answer *a, const char *p, size_t n) {
    bool content = false;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(p + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - (p + at)) : n - at;
        const char *line = p + at;
        at += len + 1;
        if (len && line[len - 1] == '\r')
            len--;
        if (len && line[0] == ':')
            continue;
        if (a->done) {
            fault(a, LT_FAULT_FRAMING, "data after [DONE]");
        } else if (len >= 6 && !memcmp(line, "data: ", 6)) {
            if (len == 12 && !memcmp(line + 6, "[DONE]", 6))
                a->done = true;
            else
                content |= take_object(a, line + 6, len - 6);
        } else if (len) {
            fault(a, LT_FAULT_FRAMING, "a line that is neither data nor comment");
        }
    }
    return content;
}

int32_t lt_answer_feed(struct lt_answer *a, const char *p, size_t n) {
    buf_append(&a->pending, p, n);
    if (buf_err(&a->pending)) {
        fault(a, LT_FAULT_FRAMING,
              buf_err(&a->pending) == ERR_NOMEM ? "out of memory" : "an event of more than 4 MiB");
        return 0;
    }
    int32_t events = 0;
    for (;;) {
        char *end =
            a->stream && a->pending.len ? memmem(a->pending.data, a->pending.len, "\n\n", 2) : NULL;
        if (!end)
            return events;
        size_t len = (size_t)(end - a->pending.data);
        bool content = take_event(a, a->pending.data, len);
        events += content;
        a->content_events += content;
        buf_consume(&a->pending, len + 2);
    }
}

static void check_usage(struct lt_answer *a, int32_t max_tokens) {
    char text[96];
    if (a->completion_tokens < 0) {
        fault(a, LT_FAULT_USAGE, "no usage");
    } else if (a->completion_tokens > max_tokens) {
        fault(a, LT_FAULT_USAGE, "more tokens than asked for");
    } else if (a->length && a->completion_tokens != max_tokens) {
        fault(a, LT_FAULT_USAGE, "finish_reason length before max_tokens");
    } else if (a->count_logprobs && a->logprob_tokens != a->completion_tokens) {
        snprintf(text, sizeof text, "usage says %lld tokens, %d came",
                 (long long)a->completion_tokens, a->logprob_tokens);
        fault(a, LT_FAULT_USAGE, text);
    }
}

void lt_answer_end(struct lt_answer *a, int32_t max_tokens) {
    if (!a->stream)
        take_object(a, a->pending.data ? a->pending.data : "", a->pending.len);
    else if (a->pending.len)
        fault(a, LT_FAULT_FRAMING, "the stream ends inside an event");
    else if (!a->done)
        fault(a, LT_FAULT_FINISH, "no [DONE]");
    if (!a->finished)
        fault(a, LT_FAULT_FINISH, "no finish_reason");
    check_usage(a, max_tokens);
}
