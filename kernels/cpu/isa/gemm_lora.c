// SPDX-License-Identifier: Apache-2.0
// A product and the adapters of its rows in one operation. With some dozen rows a product is bound
// by arithmetic, and adapters, each row with its own, by reading A and B. So a unit of work is some
// pairs of panels of y and some items, that is rows times one module: while tiles make the pairs,
// they fetch into the second cache what the same thread then reads for the items.
//
// B (A x) without its scale goes to memory that the threads share, as y is not there yet. After a
// barrier it is added: y = fma(scale, B (A x), y). All sums are those of gemm and of lora, so the
// bits are theirs.
#include "kernels/cpu/gemm_lora.h"
#include "kernels/cpu/isa/gemm_internal.h"
#include "kernels/cpu/isa/lora.h"

enum {
    ITEM_ROWS = 4, // at most: those of a run share an adapter
    ITEMS = CPU_GEMM_LORA_ROWS * KN_LORA_PARTS,
    LINES = 8192, // fetched with a unit at most, half of the second cache
    RANGES = 2 * ITEMS,
};

// Rows with one slot, one part.
struct item {
    const struct kn_lora_entry *e;
    int32_t row, n;
    int j;
    bool again; // the item before it of this part has the same matrices
};

struct plan {
    const struct kn_gemm *g;
    const struct kn_lora *l;
    struct item *items; // [ITEMS]
    int32_t n_items;
    float *sums; // [rows][n of the weight]: B (A x)
    struct gemm_packed packed;
    char *scratch;
    struct gemm_range *ranges; // [RANGES]
    struct gemm_fetch fetch;
};

// The same for every thread. False where a slot is none of the table's.
static bool find_items(struct plan *p) {
    const struct kn_lora *l = p->l;
    const int32_t *seq = (const int32_t *)l->batch->seq, *slot = (const int32_t *)l->batch->slot;
    const struct kn_lora_entry *entries = (const struct kn_lora_entry *)l->entries;
    for (int32_t row = 0, n, before = -1; row < l->rows; row += n) {
        int32_t s = slot[seq[row]];
        for (n = 1; n < ITEM_ROWS && row + n < l->rows && slot[seq[row + n]] == s;)
            n++;
        if (s >= l->n_slots)
            return false;
        for (int j = 0; s >= 0 && j < l->n_parts; j++) {
            const struct kn_lora_entry *e = &entries[(int64_t)j * l->n_slots + s];
            if (e->r > 0)
                p->items[p->n_items++] = (struct item){e, row, n, j, s == before};
        }
        before = s;
    }
    return true;
}

// ---- fetching

static void fetch_matrix(struct plan *p, int *n, const struct kn_lora_entry *e, kn_addr at,
                         int32_t wide) {
    size_t bytes =
        cpu_lora_values(wide, e->r) * (e->dtype == KN_F32 ? sizeof(float) : sizeof(uint16_t));
    size_t lines = (bytes + GEMM_FETCH_LINE - 1) / GEMM_FETCH_LINE, room = LINES - p->fetch.n;
    p->ranges[*n].origin = (const char *)at - (size_t)p->fetch.n * GEMM_FETCH_LINE;
    p->fetch.n += (uint32_t)(lines < room ? lines : room);
    p->ranges[(*n)++].end = p->fetch.n;
}

static void fetch_items(struct plan *p, int32_t begin, int32_t end) {
    int n = 0;
    p->fetch = (struct gemm_fetch){.range = p->ranges};
    for (int32_t i = begin; i < end; i++) {
        const struct item *it = &p->items[i];
        if (it->again && i > begin)
            continue;
        fetch_matrix(p, &n, it->e, it->e->a, p->l->k);
        fetch_matrix(p, &n, it->e, it->e->b, p->l->n[it->j]);
    }
}

// ---- units of work

static struct gemm_strip strip_of(struct plan *p, int32_t pair) {
    const struct cpu_segment *s = p->g->w->segments;
    for (; pair >= s->pairs; s++)
        pair -= s->pairs;
    return (struct gemm_strip){.p = p->g,
                               .seg = s,
                               .pair0 = pair,
                               .pairs = 1,
                               .rows = p->g->rows,
                               .scratch = p->scratch,
                               .packed = &p->packed,
                               .fetch = &p->fetch};
}

// Pairs [begin, end) of y, the fetching shared out among them.
static void make_pairs(struct plan *p, int32_t begin, int32_t end) {
    uint32_t all = p->fetch.n, pairs = (uint32_t)(end - begin);
    for (int32_t i = begin; i < end; i++) {
        struct gemm_strip strip = strip_of(p, i);
        p->fetch.n = (uint32_t)((uint64_t)all * (uint32_t)(i + 1 - begin) / pairs);
        ISA(gemm_product)(&strip);
    }
}

static float *sums_of(const struct plan *p, const struct item *it) {
    return p->sums + (int64_t)it->row * p->g->w->n + p->l->col[it->j];
}

// `next`: what comes after it, NULL at the end of a unit. What was not fetched in time is fetched
// here.
static void item_sums(const struct plan *p, const struct item *it, const struct item *next) {
    const struct kn_lora *l = p->l;
    const struct kn_lora_entry *e = it->e;
    const void *a = (const void *)e->a, *b = (const void *)e->b;
    struct lora_matrix ma = {a, e->dtype, l->k, e->r, b};
    struct lora_matrix mb = {b, e->dtype, l->n[it->j], e->r, next ? (const void *)next->e->a : b};
    float u[ITEM_ROWS * KN_LORA_MAX_RANK];
    ISA(lora_shrink)(&ma, (const float *)l->x + it->row * l->ldx, l->ldx, it->n, 1.0f, u, e->r);
    ISA(lora_expand_sums)(&mb, u, e->r, it->n, sums_of(p, it), p->g->w->n);
}

// y += scale * B (A x) of an item.
static void add_sums(const struct plan *p, const struct item *it) {
    const v16f scale = v_set1(it->e->scale);
    int32_t n = p->l->n[it->j];
    const float *sums = sums_of(p, it);
    float *y = (float *)p->l->y + it->row * p->l->ldy + p->l->col[it->j];
    for (int32_t i = 0; i < it->n; i++, y += p->l->ldy, sums += p->g->w->n)
        for (int32_t c = 0; c < n; c += V_LANES)
            v_store_n(y + c, n - c,
                      v_fma(scale, v_load_n(sums + c, n - c), v_load_n(y + c, n - c)));
}

static int32_t part(int32_t all, int32_t i, int32_t n) {
    return (int32_t)((int64_t)all * i / n);
}

void ISA(cpu_gemm_lora)(const void *params, struct cpu_task *t) {
    const struct cpu_gemm_lora *both = params;
    struct item items[ITEMS];
    struct gemm_range ranges[RANGES];
    struct plan p = {.g = &both->gemm,
                     .l = &both->lora,
                     .items = items,
                     .sums = t->shared,
                     .packed = {-1, -1},
                     .scratch = t->scratch,
                     .ranges = ranges};
    if (!find_items(&p)) {
        cpu_fail(t, ERR_INVALID);
        return;
    }
    int32_t pairs = p.g->w->pairs, begin, n;
    int32_t units = p.n_items > 0 && p.n_items < pairs ? p.n_items : pairs;
    struct cpu_work work = {.total = units, .grain = 1};
    while (cpu_take(t, &work, &begin, &n))
        for (int32_t i = begin; i < begin + n; i++) {
            int32_t first = part(p.n_items, i, units), end = part(p.n_items, i + 1, units);
            fetch_items(&p, first, end);
            make_pairs(&p, part(pairs, i, units), part(pairs, i + 1, units));
            for (; first < end; first++)
                item_sums(&p, &p.items[first], first + 1 < end ? &p.items[first + 1] : NULL);
        }
    if (p.n_items == 0)
        return;
    cpu_barrier(t);
    work = (struct cpu_work){.total = p.n_items, .grain = 1};
    while (cpu_take(t, &work, &begin, &n))
        for (int32_t i = begin; i < begin + n; i++)
            add_sums(&p, &p.items[i]);
}
