// SPDX-License-Identifier: Apache-2.0
#include "serving/governor.h"
#include <string.h>

enum {
    ABOVE = 125,     // one slice, one step in so many may be longer, later
    LITTLE = 32,     // errors that are no measure yet
    EXTRA_STEP = 16, // a late token adds this part of the target to the margin
    EXTRA_MOST = 8,  // all late tokens together at most this part
    REFUSALS = 4,    // steps in front of which the margin left nothing, until it is doubted
};

static int64_t clamp(int64_t x, int64_t least, int64_t most) {
    return x < least ? least : x > most ? most : x;
}

// The k-th largest value, k small.
static int64_t rank_from_top(const struct gov_window *w, int32_t k) {
    int64_t top[GOV_WINDOW / ABOVE + 1];
    int32_t n = 0;
    for (int32_t i = 0; i < w->n; i++) {
        int64_t x = w->value[i];
        if (n == k && x <= top[k - 1])
            continue;
        int32_t p = n < k ? n++ : k - 1;
        for (; p > 0 && top[p - 1] < x; p--)
            top[p] = top[p - 1];
        top[p] = x;
    }
    return n ? top[n - 1] : 0;
}

static void add(struct gov_window *w, int64_t value) {
    w->value[w->at] = value;
    w->at = (w->at + 1) % GOV_WINDOW;
    w->n += w->n < GOV_WINDOW;
    w->top = rank_from_top(w, w->n / ABOVE + 1);
}

static int64_t of_engine(int64_t target_ns) {
    return target_ns - clamp(target_ns / GOV_WAY_PART, 0, GOV_WAY_MOST_NS);
}

void gov_init(struct governor *g, const struct gov_config *cfg) {
    memset(g, 0, sizeof *g);
    g->cfg = (struct gov_config){of_engine(cfg->itl_ns), of_engine(cfg->ttft_ns)};
    g->slice_ns = GOV_SLICE_LONGEST_NS;
    g->margin_ns = GOV_FIRST_MARGIN_NS;
}

int64_t gov_allowance(struct governor *g, const struct gov_view *v) {
    if (!v->can_step)
        return g->slice_ns;
    int64_t left;
    if (v->begin_ns == INT64_MIN || __builtin_sub_overflow(v->begin_ns, v->now_ns, &left))
        return 0;
    int64_t rest = left - g->margin_ns;
    if (rest >= GOV_WORTH_NS)
        return rest < g->slice_ns ? rest : g->slice_ns;
    g->refused = g->refused || left >= GOV_WORTH_NS;
    return 0;
}

void gov_slice(struct governor *g, int64_t allowed_ns, int64_t used_ns) {
    int64_t over = used_ns - allowed_ns;
    add(&g->overrun, over > 0 ? over : 0);
    g->slice_ns =
        clamp(GOV_SLICE_MOST_NS - g->overrun.top, GOV_SLICE_LEAST_NS, GOV_SLICE_LONGEST_NS);
}

static void set_margin(struct governor *g) {
    int64_t late = g->error.n ? g->error.top : 0;
    int64_t least = g->error.n < LITTLE ? GOV_FIRST_MARGIN_NS : GOV_LEAST_MARGIN_NS;
    g->margin_ns = (late > least ? late : least) + g->extra_ns;
}

void gov_step(struct governor *g, int64_t late_ns) {
    add(&g->error, late_ns);
    g->refused = false;
    g->behind = true;
    set_margin(g);
}

// Up by a step for a late token, down by a part of it for each that was not: it comes to rest where
// one in ABOVE is late. How late does not matter: no margin would have covered a machine that stood
// still.
static void adapt_extra(struct governor *g, bool late) {
    int64_t target = g->cfg.itl_ns, part = target / EXTRA_STEP / ABOVE;
    int64_t extra = g->extra_ns + (late ? part * (ABOVE - 1) : -part);
    g->extra_ns = clamp(extra, 0, target / EXTRA_MOST);
}

void gov_gap(struct governor *g, int64_t gap_ns) {
    int64_t target = g->cfg.itl_ns;
    if (!target)
        return;
    if (g->behind)
        adapt_extra(g, gap_ns > target);
    g->behind = false;
    if (g->refused && ++g->refusals >= REFUSALS) {
        g->refusals = 0;
        add(&g->error, g->error.top / 2);
    }
    g->refused = false;
    set_margin(g);
}
