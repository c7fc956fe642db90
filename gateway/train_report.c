// SPDX-License-Identifier: Apache-2.0
#include "gateway/train_report.h"
#include "base/durable.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAR = 24, MAX_LINE = 512, PLAIN_LINE_NS = 1000000000 };

static const char csv_name[] = "metrics.csv";
static const char *const csv_head =
    "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy,learning_rate,grad_norm,"
    "tokens_per_second,trained_tokens\n";

// ---- points

static enum err add_point(struct train_report *r, int64_t step, double loss, double valid,
                          struct err_info *info) {
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 256;
        struct train_point *grown = mem_realloc(r->points, cap * sizeof *grown);
        if (!grown)
            return err_set(info, ERR_NOMEM, NULL, "out of memory");
        r->points = grown;
        r->cap = cap;
    }
    r->points[r->n++] = (struct train_point){step, loss, valid};
    return ERR_OK;
}

// ---- metrics.csv

// A line of an earlier part of the run: kept if its step came before.
static enum err keep_line(struct train_report *r, const char *line, int64_t from_step,
                          struct durable *to, struct err_info *info) {
    char *end;
    int64_t step = strtoll(line, &end, 10);
    if (end == line || *end != ',' || step < 1 || step > from_step)
        return ERR_OK;
    double loss = strtod(end + 1, &end), valid = (double)NAN;
    const char *at = *end == ',' ? strchr(end + 1, ',') : NULL;
    if (at && at[1] != ',')
        valid = strtod(at + 1, NULL);
    enum err e = durable_write(to, line, strlen(line), info);
    return e ? e : add_point(r, step, loss, valid, info);
}

static enum err keep_lines(struct train_report *r, int dir, int64_t from_step, struct durable *to,
                           struct err_info *info) {
    int fd;
    enum err e = durable_open(dir, csv_name, &fd, info);
    if (e)
        return e == ERR_NOT_FOUND ? ERR_OK : e;
    FILE *was = fdopen(fd, "r");
    char line[MAX_LINE];
    while (was && !e && fgets(line, sizeof line, was))
        if (strchr(line, '\n'))
            e = keep_line(r, line, from_step, to, info);
    if (!was || (!e && ferror(was)))
        e = durable_errno(info, errno, "read", csv_name);
    if (was)
        fclose(was);
    else
        close(fd);
    return e;
}

enum err train_report_open(struct train_report *r, const char *folder, int64_t from_step,
                           const struct clock *clock, struct err_info *info) {
    struct durable d = {.fd = -1};
    *r =
        (struct train_report){.terminal = isatty(STDERR_FILENO) != 0, .clock = clock, .csv.fd = -1};
    r->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->folder < 0)
        return durable_errno(info, errno, "open", folder);
    enum err e = durable_begin_public(&d, r->folder, csv_name, info);
    if (!e)
        e = durable_write(&d, csv_head, strlen(csv_head), info);
    if (!e && from_step)
        e = keep_lines(r, r->folder, from_step, &d, info);
    if (!e)
        e = durable_commit(&d, info);
    durable_abort(&d);
    return e ? e : durable_append(&r->csv, r->folder, csv_name, info);
}

void train_report_close(struct train_report *r) {
    if (r->clock) { // not zeros
        durable_abort(&r->csv);
        if (r->folder >= 0)
            close(r->folder);
    }
    mem_free(r->points);
    *r = (struct train_report){0};
}

static enum err write_csv(struct train_report *r, const struct ft_progress *p,
                          struct err_info *info) {
    const struct ft_state *s = p->state;
    char line[MAX_LINE], valid[64] = ",";
    if (p->evaluated)
        snprintf(valid, sizeof valid, "%.9g,%.6g", s->valid_loss, s->valid_accuracy);
    int n = snprintf(line, sizeof line, "%lld,%.9g,%.6g,%s,%.6g,%.6g,%.1f,%lld\n",
                     (long long)s->step, s->train_loss, s->train_accuracy, valid, p->lr,
                     s->grad_norm, p->tokens_per_s, (long long)s->trained_tokens);
    return durable_write(&r->csv, line, (size_t)n, info);
}

enum err train_report_sync(struct train_report *r, struct err_info *info) {
    return durable_sync(&r->csv, info);
}

// ---- lines

static void print_time(char *out, size_t cap, double s) {
    int64_t t = s < 0 ? 0 : (int64_t)(s + 0.5);
    if (t >= 3600)
        snprintf(out, cap, "%lldh%02lldm", (long long)(t / 3600), (long long)(t / 60 % 60));
    else
        snprintf(out, cap, "%lldm%02llds", (long long)(t / 60), (long long)(t % 60));
}

static void print_numbers(char *out, size_t cap, const struct ft_progress *p) {
    const struct ft_state *s = p->state;
    char eta[32], valid[64] = "";
    print_time(eta, sizeof eta, p->eta_s);
    if (p->evaluated)
        snprintf(valid, sizeof valid, "  valid %.4f (%.1f%%)", s->valid_loss,
                 s->valid_accuracy * 100);
    snprintf(out, cap, "loss %.4f  acc %.1f%%%s  lr %.2e  norm %.2f  %.0f tok/s  eta %s",
             s->train_loss, s->train_accuracy * 100, valid, p->lr, s->grad_norm, p->tokens_per_s,
             eta);
}

static void print_bar(const struct ft_progress *p, const char *numbers) {
    char bar[BAR + 1];
    int full = (int)(p->state->step * BAR / p->steps);
    memset(bar, '#', (size_t)full);
    memset(bar + full, '.', (size_t)(BAR - full));
    bar[BAR] = '\0';
    bool stays = p->evaluated || p->state->step == p->steps;
    fprintf(stderr, "\r\033[K[%s] %lld/%lld  %s%s", bar, (long long)p->state->step,
            (long long)p->steps, numbers, stays ? "\n" : "");
    fflush(stderr);
}

enum err train_report_step(struct train_report *r, const struct ft_progress *p,
                           struct err_info *info) {
    char numbers[256];
    enum err e = write_csv(r, p, info);
    if (!e)
        e = add_point(r, p->state->step, p->state->train_loss,
                      p->evaluated ? p->state->valid_loss : (double)NAN, info);
    if (r->quiet)
        return e;
    print_numbers(numbers, sizeof numbers, p);
    int64_t now = clock_mono_ns(r->clock);
    if (r->terminal) {
        print_bar(p, numbers);
    } else if (p->evaluated || p->state->step == p->steps || p->state->step == 1 ||
               now - r->last_line_ns >= PLAIN_LINE_NS) {
        fprintf(stderr, "step %lld/%lld  %s\n", (long long)p->state->step, (long long)p->steps,
                numbers);
        r->last_line_ns = now;
    }
    return e;
}

void train_report_clear_line(const struct train_report *r) {
    if (r->terminal)
        fputs("\r\033[K", stderr);
}

// ---- plots

struct frame {
    double low, high;
    int64_t first, last;
};

static bool find_frame(const struct train_report *r, struct frame *f) {
    *f = (struct frame){(double)INFINITY, -(double)INFINITY, 0, 0};
    if (r->n < 2)
        return false;
    f->first = r->points[0].step;
    f->last = r->points[r->n - 1].step;
    for (size_t i = 0; i < r->n; i++) {
        f->low = fmin(f->low, fmin(r->points[i].loss, r->points[i].valid));
        f->high = fmax(f->high, fmax(r->points[i].loss, r->points[i].valid));
    }
    if (f->high - f->low < 1e-9)
        f->high = f->low + 1e-9;
    return isfinite(f->low) && isfinite(f->high) && f->last > f->first;
}

static double across(const struct frame *f, int64_t step) {
    return (double)(step - f->first) / (double)(f->last - f->first);
}

static double up(const struct frame *f, double loss) {
    return (loss - f->low) / (f->high - f->low);
}

void train_report_plot(const struct train_report *r, struct buf *out, int columns, int rows) {
    struct frame f;
    int width = columns - 10;
    if (!find_frame(r, &f) || width < 10 || rows < 3)
        return;
    char *cells = mem_alloc((size_t)(width * rows));
    if (!cells)
        return;
    memset(cells, ' ', (size_t)(width * rows));
    for (int series = 0; series < 2; series++)
        for (size_t i = 0; i < r->n; i++) {
            double v = series ? r->points[i].valid : r->points[i].loss;
            if (isnan(v))
                continue;
            int x = (int)(across(&f, r->points[i].step) * (width - 1) + 0.5);
            int y = rows - 1 - (int)(up(&f, v) * (rows - 1) + 0.5);
            cells[y * width + x] = series ? 'o' : '*';
        }
    for (int y = 0; y < rows; y++)
        buf_printf(out, "%8.4f |%.*s\n", f.high - (f.high - f.low) * y / (rows - 1), width,
                   cells + y * width);
    buf_printf(out, "%8s +", "loss");
    for (int x = 0; x < width; x++)
        buf_putc(out, '-');
    buf_printf(out, "\n%10sstep %lld to %lld   * training   o validation\n", "", (long long)f.first,
               (long long)f.last);
    mem_free(cells);
}

static void svg_series(const struct train_report *r, const struct frame *f, struct buf *out,
                       bool valid, const char *colour) {
    buf_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
    for (size_t i = 0; i < r->n; i++) {
        double v = valid ? r->points[i].valid : r->points[i].loss;
        if (!isnan(v))
            buf_printf(out, "%.1f,%.1f ", 70 + 700 * across(f, r->points[i].step),
                       350 - 320 * up(f, v));
    }
    buf_puts(out, "\"/>\n");
}

void train_report_svg(const struct train_report *r, struct buf *out) {
    struct frame f;
    if (!find_frame(r, &f))
        return;
    buf_puts(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 400\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"800\" height=\"400\" fill=\"white\"/>\n");
    for (int i = 0; i <= 4; i++) {
        double y = 350 - 80.0 * i;
        buf_printf(out,
                   "<line x1=\"70\" y1=\"%.0f\" x2=\"770\" y2=\"%.0f\" stroke=\"#ddd\"/>"
                   "<text x=\"62\" y=\"%.0f\" text-anchor=\"end\">%.4g</text>\n",
                   y, y, y + 4, f.low + (f.high - f.low) * i / 4);
        double x = 70 + 175.0 * i;
        buf_printf(out, "<text x=\"%.0f\" y=\"370\" text-anchor=\"middle\">%lld</text>\n", x,
                   (long long)(f.first + (f.last - f.first) * i / 4));
    }
    svg_series(r, &f, out, false, "#1f77b4");
    svg_series(r, &f, out, true, "#d62728");
    buf_puts(out, "<text x=\"770\" y=\"20\" text-anchor=\"end\" fill=\"#1f77b4\">training loss"
                  "</text><text x=\"670\" y=\"20\" text-anchor=\"end\" fill=\"#d62728\">"
                  "validation loss</text>\n"
                  "<text x=\"420\" y=\"392\" text-anchor=\"middle\">step</text>\n</svg>\n");
}
