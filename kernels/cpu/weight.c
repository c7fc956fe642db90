// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/weight.h"
#include "base/mem.h"
#include "kernels/cpu/cpu_device.h"
#include <stdatomic.h>

// Limits that keep every product below in range; far above any model.
enum { MAX_ROWS = 1 << 28, MAX_COLS = 1 << 24 };

// One part as this rank sees it.
struct part {
    const struct kn_weight_src *src;
    int64_t row0, rows; // of the part
    int64_t col0;       // first column
    size_t row_bytes;   // of a whole row in the file
    size_t skip;        // bytes from a row's start to col0
};

// ---- checks

static bool servable(enum kn_dtype t) {
    return t == KN_F32 || t == KN_F16 || t == KN_BF16 || cpu_dtype_quantised(t);
}

static enum err check_part(const struct kn_weight_spec *spec, int i, struct err_info *info) {
    const struct kn_weight_src *s = &spec->parts[i], *first = &spec->parts[0];
    const char *name = spec->name ? spec->name : "weight";
    if (!servable(s->dtype))
        return err_set(info, ERR_UNSUPPORTED, NULL, "%s: type %s is not supported", name,
                       kn_dtype_name(s->dtype));
    if (s->n < 1 || s->k < 1 || s->n > MAX_ROWS || s->k > MAX_COLS || !s->data)
        return err_set(info, ERR_INVALID, NULL, "%s: shape [%lld, %lld] is out of range", name,
                       (long long)s->n, (long long)s->k);
    if (s->k % kn_dtype_block(s->dtype))
        return err_set(info, ERR_INVALID, NULL,
                       "%s: rows of %lld values do not divide into blocks of %u (%s)", name,
                       (long long)s->k, kn_dtype_block(s->dtype), kn_dtype_name(s->dtype));
    if (s->k != first->k)
        return err_set(info, ERR_INVALID, NULL, "%s: part %d has %lld columns, part 0 has %lld",
                       name, i, (long long)s->k, (long long)first->k);
    if (s->unpermute_heads < 0 ||
        (s->unpermute_heads > 0 && s->n % ((int64_t)2 * s->unpermute_heads)))
        return err_set(info, ERR_INVALID, NULL, "%s: %lld rows do not divide into %d heads", name,
                       (long long)s->n, s->unpermute_heads);
    if (cpu_dtype_quantised(s->dtype) != cpu_dtype_quantised(first->dtype))
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "%s: %s and %s cannot be stacked: one multiplies quantised rows, the other "
                       "plain ones",
                       name, kn_dtype_name(first->dtype), kn_dtype_name(s->dtype));
    return ERR_OK;
}

static enum err check_spec(const struct kn_weight_spec *spec, struct err_info *info) {
    const char *name = spec->name ? spec->name : "weight";
    if (spec->n_parts < 1 || spec->n_parts > CPU_WEIGHT_PARTS || !spec->parts)
        return err_set(info, ERR_INVALID, NULL, "%s: %d parts; 1 to %d can be stacked", name,
                       spec->n_parts, CPU_WEIGHT_PARTS);
    if (spec->world < 1 || spec->rank < 0 || spec->rank >= spec->world)
        return err_set(info, ERR_INVALID, NULL, "%s: rank %d of %d", name, spec->rank, spec->world);
    for (int i = 0; i < spec->n_parts; i++) {
        enum err e = check_part(spec, i, info);
        if (e)
            return e;
    }
    if (spec->stack != KN_STACK_GATE_UP)
        return ERR_OK;
    const struct kn_weight_src *p = spec->parts;
    if (spec->n_parts != 2 || p[0].n != p[1].n)
        return err_set(info, ERR_INVALID, NULL, "%s: gate and up must be two parts of one shape",
                       name);
    if (p[0].dtype != p[1].dtype)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "%s: gate is %s and up is %s; interleaving them needs one type", name,
                       kn_dtype_name(p[0].dtype), kn_dtype_name(p[1].dtype));
    return ERR_OK;
}

// This rank's rows and columns of part i.
static enum err cut_part(const struct kn_weight_spec *spec, int i, struct part *out, int32_t *k,
                         struct err_info *info) {
    const struct kn_weight_src *s = &spec->parts[i];
    const char *name = spec->name ? spec->name : "weight";
    int64_t size = spec->axis == KN_SHARD_K ? s->k : s->n;
    int64_t begin = 0, end = size;
    if (spec->axis != KN_SHARD_NONE) {
        begin = size * spec->rank / spec->world;
        end = size * (spec->rank + 1) / spec->world;
    }
    if (begin >= end)
        return err_set(info, ERR_INVALID, NULL, "%s: %lld cannot be cut into %d shards", name,
                       (long long)size, spec->world);
    int64_t col0 = 0, cols = s->k;
    *out = (struct part){.src = s, .row0 = 0, .rows = s->n};
    if (spec->axis == KN_SHARD_N) {
        out->row0 = begin;
        out->rows = end - begin;
    } else if (spec->axis == KN_SHARD_K) {
        uint32_t block = kn_dtype_block(s->dtype);
        if (begin % block || end % block)
            return err_set(info, ERR_INVALID, NULL,
                           "%s: shard %d of %d is columns %lld to %lld, not on blocks of %u", name,
                           spec->rank, spec->world, (long long)begin, (long long)end, block);
        col0 = begin;
        cols = end - begin;
    }
    // k <= MAX_COLS, so neither can overflow.
    (void)kn_row_bytes(s->dtype, (uint64_t)s->k, &out->row_bytes);
    (void)kn_row_bytes(s->dtype, (uint64_t)col0, &out->skip);
    out->col0 = col0;
    *k = (int32_t)cols;
    return ERR_OK;
}

// ---- making one

// Where row r of the part starts in the file, at this shard's first column.
static const uint8_t *source_row(const struct part *p, int64_t r) {
    int64_t row = p->row0 + r;
    if (p->src->unpermute_heads > 0) {
        // Row j * half + i of a head is row 2 * i + j of the file's.
        int64_t dim = p->src->n / p->src->unpermute_heads, half = dim / 2;
        int64_t head = row / dim, at = row % dim;
        row = head * dim + 2 * (at % half) + at / half;
    }
    return (const uint8_t *)p->src->data + (size_t)row * p->row_bytes + p->skip;
}

struct pack {
    struct kn_weight *w;
    const struct part *parts;
    _Atomic int32_t next; // pairs claimed, over all segments
};

static void pack_one(const struct pack *job, int32_t unit) {
    const struct kn_weight *w = job->w;
    int i = 0;
    while (unit >= w->segments[i].pairs)
        unit -= w->segments[i++].pairs;
    const struct cpu_segment *s = &w->segments[i];
    const uint8_t *rows[CPU_PAIR];
    for (int h = 0; h < 2; h++) {
        int32_t col, count = cpu_panel_columns(s, unit, h, &col);
        const struct part *p = &job->parts[s->gate_up ? h : i];
        int64_t row0 = col - s->col - (s->gate_up ? h * s->n : 0);
        for (int32_t lane = 0; lane < CPU_PANEL; lane++)
            rows[h * CPU_PANEL + lane] = lane < count ? source_row(p, row0 + lane) : NULL;
    }
    // Segments are const for everyone else; the packer alone writes, before the weight is shared.
    size_t at = (size_t)(s->data - w->data) + (size_t)unit * s->pair_bytes;
    cpu_pack_pair(s->dtype, w->k, rows, w->data + at);
}

static void run_pack(void *arg, int tid, int nt) {
    (void)tid;
    (void)nt;
    struct pack *job = arg;
    for (;;) {
        int32_t unit = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (unit >= job->w->pairs)
            return;
        pack_one(job, unit);
    }
}

// Fills the segments' geometry but for the data pointers; offsets are in pair order.
static bool lay_out(struct kn_weight *w, const struct kn_weight_spec *spec,
                    const struct part *parts) {
    bool gate_up = spec->stack == KN_STACK_GATE_UP;
    w->gate_up = gate_up;
    w->form = cpu_dtype_quantised(spec->parts[0].dtype) ? KN_FORM_Q8 : KN_FORM_PLAIN;
    w->n_segments = gate_up ? 1 : spec->n_parts;
    int64_t n = 0, pairs = 0;
    size_t bytes = 0;
    for (int i = 0; i < w->n_segments; i++) {
        struct cpu_segment *s = &w->segments[i];
        int64_t rows = parts[i].rows, all = gate_up ? 2 * rows : rows, per = gate_up ? 16 : 32;
        *s = (struct cpu_segment){.dtype = parts[i].src->dtype,
                                  .gate_up = gate_up,
                                  .n = (int32_t)rows,
                                  .col = (int32_t)n,
                                  .pairs = (int32_t)((rows + per - 1) / per)};
        s->pair_bytes = cpu_pair_bytes(s->dtype, w->k);
        size_t part_bytes;
        if (!mem_mul((size_t)s->pairs, s->pair_bytes, &part_bytes) ||
            !mem_add(bytes, part_bytes, &bytes))
            return false;
        n += all;
        pairs += s->pairs;
        if (n > INT32_MAX / 2)
            return false;
    }
    w->n = (int32_t)n;
    w->pairs = (int32_t)pairs;
    w->bytes = bytes;
    return true;
}

enum err cpu_weight_create(struct kn_device *d, const struct kn_weight_spec *spec,
                           struct kn_weight **out, struct err_info *info) {
    *out = NULL;
    enum err e = check_spec(spec, info);
    if (e)
        return e;
    const char *name = spec->name ? spec->name : "weight";
    struct part parts[CPU_WEIGHT_PARTS];
    struct kn_weight *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(info, ERR_NOMEM, NULL, "%s: no memory", name);
    w->device = d;
    for (int i = 0; i < spec->n_parts && !e; i++)
        e = cut_part(spec, i, &parts[i], &w->k, info);
    if (!e && !lay_out(w, spec, parts))
        e = err_set(info, ERR_INVALID, NULL, "%s: too large", name);
    if (!e) {
        w->data = cpu_slab_alloc(&d->slabs, w->bytes, &w->slab);
        if (!w->data)
            e = err_set(info, ERR_NOMEM, NULL, "%s: no memory for %zu bytes", name, w->bytes);
    }
    if (e) {
        cpu_weight_destroy(w);
        return e;
    }
    uint8_t *at = w->data;
    for (int i = 0; i < w->n_segments; i++) {
        w->segments[i].data = at;
        at += (size_t)w->segments[i].pairs * w->segments[i].pair_bytes;
    }
    struct pack job = {.w = w, .parts = parts};
    pool_share(d->pool, run_pack, &job);
    *out = w;
    return ERR_OK;
}

void cpu_weight_destroy(struct kn_weight *w) {
    if (!w)
        return;
    cpu_slab_release(&w->device->slabs, w->slab);
    mem_free(w);
}

// ---- looking at one

size_t cpu_weight_bytes(const struct kn_weight *w) {
    return w->bytes;
}

enum kn_form cpu_weight_form(const struct kn_weight *w) {
    return w->form;
}

void cpu_weight_row(const struct kn_weight *w, int32_t row, float *out) {
    const struct cpu_segment *s = w->segments;
    while (row >= s->col + (s->gate_up ? 2 * s->n : s->n))
        s++;
    int32_t at = row - s->col, pair;
    int half;
    if (s->gate_up) {
        half = at >= s->n;
        at -= half * s->n;
        pair = at / CPU_PANEL;
    } else {
        pair = at / CPU_PAIR;
        half = at % CPU_PAIR / CPU_PANEL;
    }
    cpu_unpack_row(s->dtype, w->k, s->data + (size_t)pair * s->pair_bytes, half, at % CPU_PANEL,
                   out);
}

enum err cpu_weight_read(const struct kn_weight *w, int64_t row, int64_t n, float *out) {
    if (row < 0 || n < 0 || row > w->n || n > w->n - row)
        return ERR_INVALID;
    for (int64_t i = 0; i < n; i++)
        cpu_weight_row(w, (int32_t)(row + i), out + i * w->k);
    return ERR_OK;
}
