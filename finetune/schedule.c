// SPDX-License-Identifier: Apache-2.0
#include "finetune/schedule.h"
#include <math.h>
#include <string.h>

static const char *const names[] = {"constant", "linear", "cosine"};

const char *ft_schedule_name(enum ft_schedule_kind k) {
    return names[k];
}

enum err ft_schedule_parse(const char *name, enum ft_schedule_kind *out) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum ft_schedule_kind)i;
            return ERR_OK;
        }
    return ERR_INVALID;
}

int64_t ft_schedule_warmup(double warmup_ratio, int64_t steps) {
    return (int64_t)ceil(warmup_ratio * (double)steps);
}

// cos(pi x) for x in [0, 1]: with the angle folded to [-pi/2, pi/2] as a sine, whose Taylor series
// to the 21st power is exact to the last bits there.
static double cos_pi(double x) {
    const double pi = 3.14159265358979323846;
    double y = pi * (0.5 - x), y2 = y * y, sum = 0;
    for (int k = 10; k > 0; k--)
        sum = (sum + 1) * -y2 / (double)(2 * k * (2 * k + 1));
    return y * (1 + sum);
}

double ft_schedule_lr(const struct ft_schedule *s, int64_t t) {
    if (t <= s->warmup)
        return s->lr * (double)t / (double)s->warmup;
    double x = (double)(t - 1 - s->warmup) / (double)(s->steps - s->warmup);
    if (s->kind == FT_SCHEDULE_CONSTANT)
        return s->lr;
    return s->kind == FT_SCHEDULE_LINEAR ? s->lr * (1 - x) : s->lr * (1 + cos_pi(x)) / 2;
}
