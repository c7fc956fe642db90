// SPDX-License-Identifier: Apache-2.0
#include "loadtest/dist.h"
#include "base/hash.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LENGTH = 1 << 20 };

uint64_t lt_rng_next(struct lt_rng *r) {
    r->state += 0x9e3779b97f4a7c15;
    return hash_mix64(r->state);
}

double lt_rng_unit(struct lt_rng *r) {
    return (double)((lt_rng_next(r) >> 11) + 1) * 0x1p-53;
}

double lt_rng_exponential(struct lt_rng *r, double mean) {
    return -log(lt_rng_unit(r)) * mean;
}

static double gaussian(struct lt_rng *r) { // Box and Muller, 1958
    double u = lt_rng_unit(r), v = lt_rng_unit(r);
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

enum err lt_dist_parse(const char *text, int32_t min, struct lt_dist *out, struct err_info *info) {
    static const struct {
        const char *name;
        enum lt_dist_kind kind;
    } kinds[] = {{"uniform", LT_UNIFORM}, {"normal", LT_NORMAL}, {"lognormal", LT_LOGNORMAL}};
    double lo = min, hi = MAX_LENGTH;
    char name[16] = "", rest;
    *out = (struct lt_dist){.kind = LT_FIXED};
    int n = sscanf(text, "%lf%c", &out->a, &rest);
    bool ok = n == 1;
    if (!ok && sscanf(text, "%15[a-z]", name) == 1) {
        const char *args = text + strlen(name);
        n = sscanf(args, ":%lf:%lf:%lf:%lf%c", &out->a, &out->b, &lo, &hi, &rest);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(name, kinds[i].name)) {
                out->kind = kinds[i].kind;
                ok = n == 2 || n == 4;
            }
    }
    ok = ok && isfinite(out->a) && isfinite(out->b) && out->a >= 0 && out->b >= 0 && lo >= min &&
         hi >= lo && hi <= MAX_LENGTH && out->a <= MAX_LENGTH;
    if (!ok)
        return err_set(info, ERR_INVALID, NULL,
                       "'%s' is no length distribution; use N, uniform:A:B, normal:MEAN:SD or "
                       "lognormal:MEDIAN:SIGMA, the last three with an optional :MIN:MAX",
                       text);
    out->min = (int32_t)lo;
    out->max = (int32_t)hi;
    return ERR_OK;
}

int32_t lt_dist_draw(const struct lt_dist *d, struct lt_rng *r) {
    double v = d->a;
    if (d->kind == LT_UNIFORM)
        v = d->a + floor((1 - lt_rng_unit(r)) * (d->b - d->a + 1));
    else if (d->kind == LT_NORMAL)
        v = d->a + d->b * gaussian(r);
    else if (d->kind == LT_LOGNORMAL)
        v = d->a * exp(d->b * gaussian(r));
    v = rint(v);
    return v < d->min ? d->min : v > d->max ? d->max : (int32_t)v;
}
