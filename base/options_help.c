// SPDX-License-Identifier: Apache-2.0
// The two texts made from an option table: --help and the reference page.
#include "base/options.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { HELP_INDENT = 30 };

static const char *placeholder(const struct opt_def *d) {
    static const char *const by_kind[] = {
        [OPT_INT] = "N",       [OPT_SIZE] = "SIZE", [OPT_FLOAT] = "X",       [OPT_SECONDS] = "TIME",
        [OPT_STRING] = "TEXT", [OPT_LIST] = "TEXT", [OPT_OPTIONAL] = "TEXT",
    };
    if (d->kind == OPT_ENUM)
        return d->choices;
    return d->value ? d->value : by_kind[d->kind];
}

static void wrapped(struct buf *out, const char *text, size_t column, size_t columns) {
    size_t at = column;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (at > column && at + n + 1 > columns) {
            buf_printf(out, "\n%*s", (int)column, "");
            at = column;
        } else if (at > column) {
            buf_putc(out, ' ');
            at++;
        }
        buf_append(out, text, n);
        at += n;
        text += n + strspn(text + n, " ");
    }
    buf_putc(out, '\n');
}

void opt_print_help(const struct opt_table *t, struct buf *out, size_t columns) {
    buf_printf(out, "Usage: %s\n\n", t->usage);
    wrapped(out, t->summary, 0, columns);
    for (size_t i = 0; i < t->n; i++) {
        const struct opt_def *d = &t->defs[i];
        if (d->kind == OPT_HEADING) {
            buf_printf(out, "\n%s:\n", d->help);
            continue;
        }
        size_t from = out->len;
        buf_printf(out, "  --%s", d->name);
        if (d->kind == OPT_OPTIONAL)
            buf_printf(out, " [%s]", placeholder(d));
        else if (d->kind != OPT_FLAG)
            buf_printf(out, " %s", placeholder(d));
        size_t width = out->len - from;
        if (width + 2 > HELP_INDENT)
            buf_printf(out, "\n%*s", HELP_INDENT, "");
        else
            buf_printf(out, "%*s", (int)(HELP_INDENT - width), "");
        struct buf text;
        buf_init(&text, 0);
        buf_puts(&text, d->help);
        if (d->kind == OPT_LIST)
            buf_puts(&text, " May be given several times.");
        if (d->dflt && *d->dflt)
            buf_printf(&text, " [default: %s]", d->dflt);
        wrapped(out, text.data ? text.data : "", HELP_INDENT, columns);
        buf_fini(&text);
    }
    buf_puts(out, "\nEach option can also be set by an environment variable: --max-num-seqs is\n"
                  "GRAFT_MAX_NUM_SEQS. The command line wins.\n");
}

void opt_show_help(const struct opt_table *t) {
    enum { COLUMNS = 100 };
    struct buf out;
    buf_init(&out, 0);
    opt_print_help(t, &out, COLUMNS);
    if (!buf_err(&out))
        fputs(out.data, stdout);
    buf_fini(&out);
}

void opt_print_markdown(const struct opt_table *t, struct buf *out) {
    buf_printf(out, "## %s\n\n`%s`\n\n%s\n", t->command, t->usage, t->summary);
    bool table = false;
    for (size_t i = 0; i < t->n; i++) {
        const struct opt_def *d = &t->defs[i];
        if (d->kind == OPT_HEADING || !table) {
            if (d->kind == OPT_HEADING)
                buf_printf(out, "\n### %s\n", d->help);
            buf_puts(out, "\n| option | default | meaning |\n| --- | --- | --- |\n");
            table = true;
            if (d->kind == OPT_HEADING)
                continue;
        }
        buf_printf(out, "| `--%s%s", d->name, d->kind == OPT_OPTIONAL ? " [" : "");
        for (const char *p = d->kind == OPT_FLAG ? "" : placeholder(d); *p; p++) {
            if (p == placeholder(d) && d->kind != OPT_OPTIONAL)
                buf_putc(out, ' ');
            buf_puts(out, *p == '|' ? "\\|" : (char[]){*p, '\0'});
        }
        buf_printf(out, "%s` | %s | %s |\n", d->kind == OPT_OPTIONAL ? "]" : "",
                   d->dflt ? d->dflt : "", d->help);
    }
}
