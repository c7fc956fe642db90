// SPDX-License-Identifier: Apache-2.0
#include "finetune/probe.h"
#include "base/mem.h"
#include "finetune/dataset_internal.h"
#include <string.h>

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory for the probe set");
}

static void seq_fini(struct ft_probe_seq *s) {
    mem_free(s->ids);
    mem_free(s->mask);
    mem_free(s->losses);
}

void ft_probe_fini(struct ft_probe *p) {
    for (size_t i = 0; i < p->n; i++)
        seq_fini(&p->seqs[i]);
    mem_free(p->seqs);
    *p = (struct ft_probe){0};
}

static enum err grow(struct ft_probe *p) {
    if (p->n < p->cap)
        return ERR_OK;
    size_t cap = p->cap ? 2 * p->cap : 16;
    struct ft_probe_seq *more = mem_realloc(p->seqs, cap * sizeof *more);
    if (!more)
        return ERR_NOMEM;
    p->seqs = more;
    p->cap = cap;
    return ERR_OK;
}

static enum err add(struct ft_probe *p, int64_t line, const int32_t *ids, const uint8_t *mask,
                    int32_t n, int32_t max_tokens, struct err_info *info) {
    n = n < max_tokens ? n : max_tokens;
    struct ft_probe_seq s = {.line = line, .n = n};
    for (int32_t i = 0; i < n; i++)
        s.n_targets += mask[i];
    if (!s.n_targets)
        return ERR_OK;
    s.ids = mem_calloc((size_t)n, sizeof *s.ids);
    s.mask = mem_alloc((size_t)n);
    s.losses = mem_calloc((size_t)s.n_targets, sizeof *s.losses);
    if (!s.ids || !s.mask || !s.losses || grow(p)) {
        seq_fini(&s);
        return no_memory(info);
    }
    memcpy(s.ids, ids, (size_t)n * sizeof *ids);
    memcpy(s.mask, mask, (size_t)n);
    p->seqs[p->n++] = s;
    return ERR_OK;
}

enum err ft_probe_take(struct ft_dataset *d, int32_t max_tokens, struct ft_probe *out,
                       struct err_info *info) {
    struct ft_sample s = {0};
    int64_t n = ft_dataset_samples(d), tokens = 0;
    enum err e = ERR_OK;
    *out = (struct ft_probe){0};
    n = n < FT_PROBE_SAMPLES ? n : FT_PROBE_SAMPLES;
    for (int64_t i = 0; i < n && !e; i++) {
        tokens += ft_dataset_length(d, i);
        if (out->n && tokens > FT_PROBE_TOKENS)
            break;
        int64_t line = out->last_line = ft_dataset_line(d, i);
        e = ft_dataset_read(d, i, &s, info);
        if (!e)
            e = add(out, line, s.ids, s.mask, s.n, max_tokens, info);
        if (!e && s.n2)
            e = add(out, line, s.ids2, s.mask2, s.n2, max_tokens, info);
    }
    ft_sample_fini(&s);
    if (!e && !out->n)
        e = err_set(info, ERR_CONTEXT, NULL,
                    "no line of the data has a supervised token among the %d that serving takes",
                    max_tokens);
    if (e)
        ft_probe_fini(out);
    return e;
}

// ---- again

struct again {
    const struct ft_probe *was;
    const struct ft_dataset_opts *opts;
    struct ft__lines lines;
    struct ft__renderer renderer;
    struct ft__seq seq[2];
    int32_t max_tokens;
    struct ft_probe *out;
};

static enum err render_line(struct again *a, const struct ft__line *line, struct err_info *info) {
    struct ft__example x = {0};
    bool cut;
    enum err e = line->too_long ? err_set(info, ERR_FORMAT, NULL, "line %lld is longer than it was",
                                          (long long)line->number)
                                : ft__example_read(line, &x, info);
    bool pair = !e && x.kind == FT_PREFERENCE;
    bool read = !e;
    if (!e)
        e = ft__render(&a->renderer, &x, a->seq, info);
    ft__example_fini(&x);
    if (e) {
        if (read)
            err_prefix(info, "line %lld", (long long)line->number);
        return e;
    }
    enum ft__fate fate = ft__fate_of(a->opts, a->seq, pair, &cut);
    if (fate == FT__DROPPED)
        return ERR_OK;
    if (fate != FT__KEPT)
        return err_set(info, ERR_FORMAT, NULL, "line %lld would not be trained on any more",
                       (long long)line->number);
    for (int j = 0; j < 1 + pair && !e; j++)
        e = add(a->out, line->number, a->seq[j].ids.ids, a->seq[j].mask, (int32_t)a->seq[j].ids.n,
                a->max_tokens, info);
    return e;
}

static enum err render_lines(struct again *a, struct err_info *info) {
    enum err e = ERR_OK;
    bool more = true;
    while (!e && a->lines.number < a->was->last_line) {
        struct ft__line line;
        e = ft__lines_next(&a->lines, &line, &more, info);
        if (e || !more)
            break;
        if (!line.blank)
            e = render_line(a, &line, info);
    }
    a->out->last_line = a->lines.number;
    return e;
}

// Where the two begin to differ.
static enum err compare(const struct ft_probe *was, const struct ft_probe *is,
                        struct err_info *info) {
    size_t n = was->n < is->n ? was->n : is->n;
    for (size_t i = 0; i < n; i++) {
        const struct ft_probe_seq *a = &was->seqs[i], *b = &is->seqs[i];
        int32_t t = 0;
        while (t < a->n && t < b->n && a->ids[t] == b->ids[t] && a->mask[t] == b->mask[t])
            t++;
        if (a->line == b->line && t == a->n && t == b->n)
            continue;
        int64_t line = a->line < b->line ? a->line : b->line;
        if (a->line != b->line)
            return err_set(info, ERR_FORMAT, NULL,
                           "line %lld was not trained on as serving reads it", (long long)line);
        return err_set(
            info, ERR_FORMAT, NULL,
            "line %lld: what was trained on is not what serving makes of it: its tokenizer "
            "and template give other tokens from token %d on (%d tokens, and %d were "
            "trained on)",
            (long long)line, (int)t, (int)b->n, (int)a->n);
    }
    return was->n == is->n ? ERR_OK
                           : err_set(info, ERR_FORMAT, NULL,
                                     "the file has %zu of the %zu sequences that were trained on",
                                     is->n, was->n);
}

enum err ft_probe_again(const struct ft_probe *p, const char *path,
                        const struct ft_dataset_opts *opts, int32_t max_tokens,
                        struct ft_probe *out, struct err_info *info) {
    struct again a = {
        .was = p, .opts = opts, .lines.file.fd = -1, .max_tokens = max_tokens, .out = out};
    *out = (struct ft_probe){0};
    uint64_t max_line = opts->max_line ? opts->max_line : FT__DEFAULT_LINE;
    enum err e;
    (void)((e = ft__renderer_init(&a.renderer, opts, info)) ||
           (e = ft__lines_open(&a.lines, path, opts->file_name ? opts->file_name : path, max_line,
                               info)) ||
           (e = render_lines(&a, info)));
    // A line that cannot be read any more is as good as another one.
    if (e == ERR_INVALID || e == ERR_TEMPLATE || e == ERR_LIMIT || e == ERR_UNSUPPORTED)
        e = ERR_FORMAT;
    if (!e)
        e = compare(p, out, info);
    if (e)
        info->code = e;
    ft__lines_close(&a.lines);
    ft__renderer_fini(&a.renderer);
    ft__seq_fini(&a.seq[0]);
    ft__seq_fini(&a.seq[1]);
    if (e)
        ft_probe_fini(out);
    return e;
}
