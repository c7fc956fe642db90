// SPDX-License-Identifier: Apache-2.0
// A stable merge sort whose comparison can fail.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include <string.h>

struct sorter {
    struct tpl_ctx *c;
    const struct tpl_val *keys;
    bool reverse;
};

// True if the element `right` has to come before `left`, which stands before it now.
static enum err must_swap(const struct sorter *s, size_t left, size_t right, bool *out) {
    return s->reverse ? tpl_compare(s->c, TPL_LT, &s->keys[left], &s->keys[right], out)
                      : tpl_compare(s->c, TPL_LT, &s->keys[right], &s->keys[left], out);
}

static enum err merge(const struct sorter *s, const size_t *from, size_t *to, size_t begin,
                      size_t mid, size_t end) {
    size_t l = begin, r = mid;
    for (size_t i = begin; i < end; i++) {
        bool take_right = l == mid;
        if (l < mid && r < end) {
            enum err e = must_swap(s, from[l], from[r], &take_right);
            if (e)
                return e;
        }
        to[i] = take_right ? from[r++] : from[l++];
    }
    return ERR_OK;
}

enum err tpl_sort(struct tpl_ctx *c, struct tpl_val *items, struct tpl_val *keys, size_t n,
                  bool reverse) {
    struct sorter s = {.c = c, .keys = keys, .reverse = reverse};
    size_t *order, *spare;
    struct tpl_val *sorted;
    enum err e = tpl_alloc(c, n, sizeof *order, &order);
    if (!e)
        e = tpl_alloc(c, n, sizeof *spare, &spare);
    if (!e)
        e = tpl_alloc(c, n * 2, sizeof *sorted, &sorted);
    if (e || n == 0)
        return e;
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t i = 0; i < n; i += width * 2) {
            size_t mid = i + width < n ? i + width : n, end = mid + width < n ? mid + width : n;
            e = merge(&s, order, spare, i, mid, end);
            if (e)
                return e;
        }
        size_t *t = order;
        order = spare;
        spare = t;
    }
    for (size_t i = 0; i < n; i++) {
        sorted[i] = items[order[i]];
        sorted[n + i] = keys[order[i]];
    }
    memcpy(items, sorted, n * sizeof *items);
    memcpy(keys, sorted + n, n * sizeof *keys);
    return ERR_OK;
}
