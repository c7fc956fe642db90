// SPDX-License-Identifier: Apache-2.0
#include "loadtest/report.h"
#include "base/json_write.h"

static double per_second(int64_t n, const struct lt_stats *s) {
    return s->seconds > 0 ? (double)n / s->seconds : 0;
}

static void text_row(struct buf *out, const char *name, struct lt_series *series) {
    struct lt_summary q = lt_series_summary(series);
    buf_printf(out, "%-22s %10.1f %10.1f %10.1f %10.1f %10.1f\n", name, q.mean * 1e3, q.p50 * 1e3,
               q.p90 * 1e3, q.p99 * 1e3, q.max * 1e3);
}

void lt_report_text(const struct lt_options *o, struct lt_stats *s, struct buf *out) {
    buf_printf(out, "requests    %lld sent, %lld answered rightly, in %.2f s", (long long)s->sent,
               (long long)s->ok, s->seconds);
    if (o->rate > 0)
        buf_printf(out, " (open loop, %.3g/s)\n", o->rate);
    else
        buf_printf(out, " (closed loop, %lld users)\n", (long long)o->users);
    buf_printf(out, "throughput  %.2f requests/s, %.1f output tokens/s, %.1f input tokens/s\n\n",
               per_second(s->ok, s), per_second(s->completion_tokens, s),
               per_second(s->prompt_tokens, s));
    buf_printf(out, "%-22s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p90", "p99",
               "max");
    if (o->stream) {
        text_row(out, "time to first token", &s->ttft);
        text_row(out, "inter-token latency", &s->itl);
    }
    text_row(out, "end to end", &s->e2e);
    for (int f = 1; f < LT_FAULTS; f++)
        if (s->faults[f])
            buf_printf(out, "FAILED      %lld: %s\n", (long long)s->faults[f],
                       lt_fault_name((enum lt_fault)f));
    if (s->first_fault[0])
        buf_printf(out, "first failure: %s\n", s->first_fault);
}

static void json_row(struct json_w *w, const char *name, struct lt_series *series) {
    struct lt_summary q = lt_series_summary(series);
    jw_key(w, name);
    jw_obj(w);
    jw_kint(w, "count", (int64_t)q.n);
    jw_knum(w, "mean", q.mean);
    jw_knum(w, "p50", q.p50);
    jw_knum(w, "p90", q.p90);
    jw_knum(w, "p99", q.p99);
    jw_knum(w, "max", q.max);
    jw_obj_end(w);
}

void lt_report_json(const struct lt_options *o, const char *model, struct lt_stats *s,
                    struct buf *out) {
    struct json_w w = json_w_begin(out);
    jw_obj(&w);
    jw_kstr(&w, "label", o->label);
    jw_kstr(&w, "url", o->url);
    jw_kstr(&w, "model", model);
    jw_kstr(&w, "endpoint", o->endpoint);
    jw_kstr(&w, "loop", o->rate > 0 ? "open" : "closed");
    jw_kint(&w, "users", o->users);
    jw_knum(&w, "rate", o->rate);
    jw_kstr(&w, "input_tokens", o->input_text);
    jw_kstr(&w, "output_tokens", o->output_text);
    jw_kint(&w, "seed", o->seed);
    jw_kint(&w, "sent", s->sent);
    jw_kint(&w, "ok", s->ok);
    jw_knum(&w, "seconds", s->seconds);
    jw_kint(&w, "prompt_tokens", s->prompt_tokens);
    jw_kint(&w, "completion_tokens", s->completion_tokens);
    jw_knum(&w, "requests_per_second", per_second(s->ok, s));
    jw_knum(&w, "output_tokens_per_second", per_second(s->completion_tokens, s));
    json_row(&w, "ttft_seconds", &s->ttft);
    json_row(&w, "itl_seconds", &s->itl);
    json_row(&w, "e2e_seconds", &s->e2e);
    jw_key(&w, "errors");
    jw_obj(&w);
    for (int f = 1; f < LT_FAULTS; f++)
        jw_kint(&w, lt_fault_name((enum lt_fault)f), s->faults[f]);
    jw_obj_end(&w);
    if (s->first_fault[0])
        jw_kstr(&w, "first_error", s->first_fault);
    jw_obj_end(&w);
    buf_putc(out, '\n');
}
