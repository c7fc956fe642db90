// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "base/utf8.h"
#include "finetune/dataset_internal.h"
#include <stdio.h>
#include <string.h>

struct build {
    const struct ft_dataset_opts *opts;
    const char *file_name;
    struct ft_dataset_report *report;
    struct ft__lines lines;
    struct ft__renderer renderer;
    struct ft__writer writer;
    struct ft__seq seq[2];
    int64_t examples;   // lines that were not blank
    int64_t first_line; // that told the file's kind
    enum err first;     // the first error's kind
    bool other;         // the file is no JSONL at all
};

// Copies text as valid UTF-8: a name from the file may have been cut inside a character.
static void copy_text(char *out, size_t cap, const char *text) {
    size_t n = strlen(text), at = 0;
    n = n < cap - 1 ? n : cap - 1;
    while (at < n) {
        uint32_t cp;
        int len = utf8_decode(text + at, n - at, &cp);
        if (len == 0 && text[n]) // cut by us
            break;
        size_t step = len > 0 ? (size_t)len : 1;
        if (len > 0 && cp >= ' ' && cp != 0x7f)
            memcpy(out + at, text + at, step);
        else
            memset(out + at, '?', step);
        at += step;
    }
    out[at] = '\0';
}

// "line 7", before a text of line 7; 0: it does not begin so.
static size_t line_prefix(const char *text, int64_t line) {
    char prefix[32];
    int n = snprintf(prefix, sizeof prefix, "line %lld", (long long)line);
    return !strncmp(text, prefix, (size_t)n) ? (size_t)n : 0;
}

static bool is_same(const struct ft_line_error *e, const char *text, int64_t line) {
    size_t n = line_prefix(e->text, e->line), m = line_prefix(text, line);
    return n && m && !strcmp(e->text + n, text + m);
}

void ft_line_error_text(const struct ft_line_error *e, char *out, size_t cap) {
    size_t n = line_prefix(e->text, e->line);
    if (e->last == e->line || !n)
        snprintf(out, cap, "%s", e->text);
    else
        snprintf(out, cap, "lines %lld to %lld%s%s", (long long)e->line, (long long)e->last,
                 e->text[n] == ':' ? "" : ": each", e->text + n);
}

static void add_error(struct build *b, enum err rc, int64_t line, const char *code,
                      const char *text) {
    struct ft_dataset_report *r = b->report;
    char own[sizeof r->errors[0].text];
    copy_text(own, sizeof own, text);
    struct ft_line_error *last = r->n_told ? &r->errors[r->n_told - 1] : NULL;
    if (last && line && last->last == line - 1 && !strcmp(last->code, code) &&
        is_same(last, own, line)) {
        last->last = line;
    } else if (r->n_told < FT_MAX_ERRORS) {
        struct ft_line_error *e = &r->errors[r->n_told++];
        e->line = e->last = line;
        e->code = code;
        memcpy(e->text, own, sizeof own);
    }
    if (!r->n_errors++)
        b->first = rc;
    ft__writer_drop(&b->writer);
}

// Failures that are not the line's fault.
static bool is_fatal(enum err rc) {
    switch (rc) {
    case ERR_INVALID:
    case ERR_TEMPLATE:
    case ERR_LIMIT:
    case ERR_UNSUPPORTED:
        return false;
    default:
        return true;
    }
}

static enum err check_kind(struct build *b, enum ft_kind kind, int64_t line,
                           struct err_info *info) {
    long long no = line;
    if (!b->first_line) {
        b->first_line = line;
        b->report->kind = kind;
    }
    if (kind != b->report->kind)
        return err_set(info, ERR_INVALID, NULL, "line %lld is %s, but line %lld is %s", no,
                       ft__kind_name(kind), (long long)b->first_line,
                       ft__kind_name(b->report->kind));
    if ((kind == FT_PREFERENCE) != b->opts->preference)
        return err_set(info, ERR_INVALID, NULL, "line %lld is %s; this method takes %s", no,
                       ft__kind_name(kind),
                       b->opts->preference ? "preference lines" : "chat or completion lines");
    return ERR_OK;
}

// Counts the sample, or why it is none.
static enum err take(struct build *b, int64_t line, struct err_info *info) {
    struct ft_dataset_report *r = b->report;
    bool pair = r->kind == FT_PREFERENCE;
    const struct ft__seq *s = b->seq;
    bool cut;
    char text[240];
    enum ft__fate fate = ft__fate_of(b->opts, s, pair, &cut);
    if (fate == FT__TOO_LONG) {
        size_t whole = pair && s[1].whole > s[0].whole ? s[1].whole : s[0].whole;
        snprintf(text, sizeof text, "line %lld has %zu tokens, more than the %d of max_seq_length",
                 (long long)line, whole, b->opts->max_seq_len);
        add_error(b, ERR_INVALID, line, FT__CODE_LONG, text);
        return ERR_OK;
    }
    if (fate == FT__DROPPED) {
        r->dropped++;
        r->emptied += b->opts->truncation == FT_TRUNC_TRUNCATE;
        return ERR_OK;
    }
    if (fate == FT__NO_TARGET) {
        snprintf(text, sizeof text, "line %lld has no supervised token", (long long)line);
        add_error(b, ERR_INVALID, line, FT__CODE_NO_TARGET, text);
        return ERR_OK;
    }
    r->samples++;
    r->truncated += cut;
    for (int j = 0; j < 1 + pair; j++) {
        r->tokens += (int64_t)s[j].ids.n;
        r->supervised += s[j].targets;
        if ((int64_t)s[j].ids.n > r->longest)
            r->longest = (int64_t)s[j].ids.n;
    }
    return ft__writer_add(&b->writer, &s[0], pair ? &s[1] : NULL, line, info);
}

// What people upload in place of JSONL is said once, of the file: of its lines there would be as
// many errors, and none would help. False: it may be JSONL.
static bool is_other_kind(struct build *b, const struct ft__line *line) {
    const char *t = line->text;
    size_t at = 0;
    char text[240] = "";
    if (line->len >= 2 &&
        (!memcmp(t, "\xff\xfe", 2) || !memcmp(t, "\xfe\xff", 2) || t[0] == '\0' || t[1] == '\0'))
        snprintf(text, sizeof text, "%.160s looks like UTF-16; save it as UTF-8", b->file_name);
    while (at < line->len && (t[at] == ' ' || t[at] == '\t'))
        at++;
    bool bracket = at < line->len && t[at++] == '[';
    while (at < line->len && (t[at] == ' ' || t[at] == '\t'))
        at++;
    if (bracket && (at == line->len || t[at] == '{'))
        snprintf(text, sizeof text,
                 "%.100s looks like a JSON array; JSONL has one JSON object a line, and no "
                 "brackets or commas around them",
                 b->file_name);
    if (text[0])
        add_error(b, ERR_INVALID, 0, FT__CODE_JSONL, text);
    return text[0] != '\0';
}

// A line's own fault becomes an error of the report; what is returned ends the build.
static enum err read_line(struct build *b, const struct ft__line *line, struct err_info *info) {
    struct ft__example e = {0};
    const char *code = FT__CODE_JSONL;
    enum err rc;
    if (line->too_long)
        rc = err_set(info, ERR_INVALID, NULL, "line %lld has more than %llu bytes",
                     (long long)line->number, (unsigned long long)b->lines.max_line);
    else
        rc = ft__example_read(line, &e, info);
    if (!rc)
        rc = check_kind(b, e.kind, line->number, info);
    if (!rc) {
        code = FT__CODE_TEMPLATE;
        rc = ft__render(&b->renderer, &e, b->seq, info);
        if (rc)
            err_prefix(info, "line %lld", (long long)line->number);
    }
    ft__example_fini(&e);
    if (!rc)
        return take(b, line->number, info);
    if (is_fatal(rc))
        return rc;
    add_error(b, rc, line->number, code, info->message);
    return ERR_OK;
}

static enum err read_lines(struct build *b, struct err_info *info) {
    for (;;) {
        struct ft__line line;
        bool more;
        enum err rc = ft__lines_next(&b->lines, &line, &more, info);
        if (rc || !more)
            return rc;
        if (b->opts->cancelled && b->opts->cancelled(b->opts->cancelled_arg))
            return err_set(info, ERR_CANCELLED, NULL, "cancelled");
        b->report->lines = line.number;
        if (line.blank || b->other)
            continue; // to its end: the digest is the whole file's
        if (!b->examples && !line.too_long && is_other_kind(b, &line)) {
            b->other = true;
            continue;
        }
        if (++b->examples > FT_MAX_SAMPLES)
            return ERR_OK; // said by check_count
        rc = read_line(b, &line, info);
        if (rc)
            return rc;
    }
}

static void check_count(struct build *b) {
    const struct ft_dataset_report *r = b->report;
    int64_t min = b->opts->min_examples > 1 ? b->opts->min_examples : 1;
    char text[240] = "";
    if (b->examples > FT_MAX_SAMPLES)
        snprintf(text, sizeof text, "%s has more than %d examples", b->file_name, FT_MAX_SAMPLES);
    else if (r->n_errors)
        return;
    else if (b->examples < min)
        snprintf(text, sizeof text, "%s has %lld example(s), but must have at least %lld example%s",
                 b->file_name, (long long)b->examples, (long long)min, min == 1 ? "" : "s");
    else if (r->samples < min)
        snprintf(text, sizeof text,
                 "%s has %lld example(s), but must have at least %lld example%s: %lld are longer "
                 "than the %d tokens of max_seq_length and were left out",
                 b->file_name, (long long)r->samples, (long long)min, min == 1 ? "" : "s",
                 (long long)r->dropped, b->opts->max_seq_len);
    if (text[0])
        add_error(b, ERR_INVALID, 0, FT__CODE_COUNT, text);
}

static enum err end(struct build *b, struct err_info *info) {
    struct ft_dataset_report *r = b->report;
    enum err rc = b->examples > FT_MAX_SAMPLES ? ERR_OK : ft__lines_end(&b->lines, r->digest, info);
    if (rc)
        return rc;
    check_count(b);
    rc = ft__writer_duplicates(&b->writer, &r->duplicates);
    if (rc)
        return err_set(info, rc, NULL, "out of memory while counting duplicates");
    if (r->n_errors)
        return err_set(info, b->first == ERR_TEMPLATE ? ERR_TEMPLATE : ERR_INVALID, NULL, "%s",
                       r->errors[0].text);
    struct ft__trailer t = {
        .report = *r,
        .vocab = (int32_t)tokenizer_vocab_size(b->opts->tokenizer),
        .max_seq_len = b->opts->max_seq_len,
    };
    rc = ft_dataset_key(b->opts, t.key);
    if (rc)
        return err_set(info, rc, NULL, "the digest of the options failed");
    return ft__writer_commit(&b->writer, &t, info);
}

enum err ft_dataset_build(const char *path, const char *cache, const struct ft_dataset_opts *opts,
                          struct ft_dataset_report *report, struct err_info *info) {
    struct err_info own;
    struct build b = {
        .opts = opts,
        .file_name = opts->file_name ? opts->file_name : "Training file",
        .report = report,
        .lines.file.fd = -1,
        .writer = {.dir = -1, .file.fd = -1},
    };
    if (!info)
        info = &own; // texts of bad lines go through it
    memset(report, 0, sizeof *report);
    if (opts->preference)
        report->kind = FT_PREFERENCE;
    uint64_t max_line = opts->max_line ? opts->max_line : FT__DEFAULT_LINE;
    enum err rc;
    (void)((rc = ft__renderer_init(&b.renderer, opts, info)) ||
           (rc = ft__lines_open(&b.lines, path, opts->file_name ? opts->file_name : path, max_line,
                                info)) ||
           (rc = ft__writer_begin(&b.writer, cache, info)) || (rc = read_lines(&b, info)) ||
           (rc = end(&b, info)));
    ft__lines_close(&b.lines);
    ft__writer_fini(&b.writer);
    ft__renderer_fini(&b.renderer);
    ft__seq_fini(&b.seq[0]);
    ft__seq_fini(&b.seq[1]);
    return rc;
}

enum err ft_dataset_key(const struct ft_dataset_opts *o, uint8_t key[32]) {
    struct buf text;
    buf_init(&text, 0);
    char *vars =
        o->template_vars ? json_dumps(o->template_vars, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    enum err rc = o->template_vars && !vars ? ERR_NOMEM : ERR_OK;
    char renderer[2 * 32 + 1];
    hex_encode(o->renderer, 32, renderer);
    buf_printf(&text, "%d|%s|%u|%s|%d|%lld|%d|%d|%d|", FT__VERSION, renderer,
               tokenizer_vocab_size(o->tokenizer), o->chat_template ? "chat" : "-", o->eos,
               (long long)o->now, o->max_seq_len, (int)o->truncation, o->preference);
    for (int32_t i = 0; i < o->n_ends; i++)
        buf_printf(&text, "%d,", o->ends[i]);
    buf_printf(&text, "|%s", vars ? vars : "");
    if (!rc)
        rc = buf_err(&text);
    if (!rc)
        rc = sha256(text.data, text.len, key);
    buf_fini(&text);
    if (vars) {
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        release(vars);
    }
    return rc;
}

enum err ft_dataset_renderer(const char *tokenizer, const char *chat_template,
                             uint8_t renderer[32]) {
    char text[4 * SHA256_BYTES + 2];
    int n = snprintf(text, sizeof text, "%.64s %.64s", tokenizer, chat_template);
    return sha256(text, (size_t)n, renderer);
}
