// SPDX-License-Identifier: Apache-2.0
// Memory that is lent is touched piece by piece before a row uses it: in slices that keep their
// deadline, all that the row writes, once.
#include "base/thread.h"
#include "finetune/exec_memory.h"
#include "tests/finetune/exec_support.h"
#include "tests/support/assert_ok.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/wait.h"
#include <stdatomic.h>
#include <string.h>

enum {
    MOST_PIECE = 2 << 20,
    RANGE = 32 << 20,
    MAX_TOKENS = 4096, // each row has the KV blocks of so many
};
static const int64_t piece_ns = 1000000; // what a piece takes here

// ---- a device that counts

static struct {
    struct clock_manual clock;
    kn_addr from, to; // what may be touched, without an end
    kn_addr low, high;
    size_t bytes;
    int pieces;
} seen;

static void touch(struct kn_device *d, kn_addr a, size_t bytes) {
    (void)d;
    if (a < seen.from || a >= seen.to) // a workspace
        return;
    MUST(bytes > 0 && bytes <= MOST_PIECE && a + bytes <= seen.to);
    if (!seen.pieces)
        seen.low = seen.high = a;
    MUST(a == seen.high || a + bytes == seen.low); // never the same again
    seen.low = a < seen.low ? a : seen.low;
    seen.high = a + bytes > seen.high ? a + bytes : seen.high;
    seen.bytes += bytes;
    seen.pieces++;
    clock_manual_advance(&seen.clock, piece_ns);
}

static void watch(kn_addr from, kn_addr to) {
    memset(&seen, 0, sizeof seen);
    clock_manual_init(&seen.clock, 1, 0);
    seen.from = from;
    seen.to = to;
}

// ---- pieces

static size_t no_lender(void *arg, const struct ft_memory_ask *ask, kn_addr *at) {
    (void)arg;
    (void)ask;
    *at = 0;
    return 0;
}

// Returns how many calls it took, each with time for so many pieces.
static int touch_all(struct exec_memory *m, kn_addr at, size_t bytes, int pieces) {
    for (int calls = 1;; calls++) {
        int before = seen.pieces;
        int64_t deadline = clock_mono_ns(&seen.clock.clock) + pieces * piece_ns;
        bool all = exec_memory_touch(m, at, bytes, &seen.clock.clock, deadline);
        int done = seen.pieces - before, most = pieces > 1 ? pieces : 1;
        assert_true(done <= most);
        if (all)
            return calls;
        assert_int_equal(done, most);
    }
}

static void test_pieces(void **state) {
    (void)state;
    struct kn_ops ops = {.touch = touch};
    struct exec_memory m = {.ops = &ops, .lend = {.borrow = no_lender}};
    const kn_addr mib = 1 << 20;
    watch(1, SIZE_MAX);
    assert_true(touch_all(&m, 100 * mib, 7 * mib + 4, 3) > 1);
    assert_true(seen.low == 100 * mib && seen.high == 107 * mib + 4);
    assert_int_equal(seen.bytes, 7 * mib + 4);
    // What has been touched costs nothing.
    assert_int_equal(touch_all(&m, 100 * mib, 7 * mib + 4, 0), 1);
    assert_int_equal(touch_all(&m, 101 * mib, mib, 0), 1);
    assert_int_equal(seen.bytes, 7 * mib + 4);
    // More is lent, more is used; a call without time gets on all the same.
    assert_true(touch_all(&m, 98 * mib, 10 * mib, 0) > 1);
    assert_true(seen.low == 98 * mib && seen.high == 108 * mib);
    assert_int_equal(seen.bytes, 10 * mib);
    // Elsewhere.
    watch(1, SIZE_MAX);
    touch_all(&m, 200 * mib, mib, 1);
    assert_true(seen.low == 200 * mib && seen.bytes == mib);
    watch(1, SIZE_MAX);
    touch_all(&m, 100 * mib, mib, 1);
    assert_true(seen.low == 100 * mib && seen.bytes == mib);
}

static void test_nothing_to_touch(void **state) {
    (void)state;
    struct kn_ops none = {0}, ops = {.touch = touch};
    struct exec_memory m = {.ops = &none, .lend = {.borrow = no_lender}}, own = {.ops = &ops};
    watch(1, SIZE_MAX);
    assert_true(exec_memory_touch(&m, 4096, 4096, &seen.clock.clock, 0));
    assert_true(exec_memory_touch(&own, 4096, 4096, &seen.clock.clock, 0));
    assert_int_equal(seen.pieces, 0);
}

// ---- rows

struct bed {
    struct fx x;
    struct tf_golden g;
    struct ft_exec *exec;
    kn_addr range;
    size_t lent;
    struct lora_row_result res;
    _Atomic bool ended;
};

static size_t borrow(void *arg, const struct ft_memory_ask *ask, kn_addr *at) {
    struct bed *b = arg;
    MUST(ask->want <= RANGE);
    b->lent = ask->want;
    *at = b->range + RANGE - b->lent;
    return b->lent;
}

static void give(void *arg, size_t keep) {
    struct bed *b = arg;
    b->lent = keep < b->lent ? keep : b->lent;
}

static void wake(void *arg) {
    (void)arg;
}

static void *ask_unit(void *arg) {
    struct bed *b = arg;
    struct err_info info = {0};
    struct lora_row row = tf_lora_row(&b->g.rows[0], EXPONENT);
    MUST(!ft_exec_unit(b->exec, &row, &b->res, &info));
    atomic_store(&b->ended, true);
    return NULL;
}

// A row, in slices that have time for no piece; returns how many pieces were touched.
static int run_row(struct bed *b) {
    struct thread t;
    int begin = seen.pieces;
    atomic_store(&b->ended, false);
    assert_int_equal(thread_start(&t, "trainer", ask_unit, b), ERR_OK);
    while (!atomic_load(&b->ended)) {
        int before = seen.pieces;
        if (!ft_exec_run(b->exec, piece_ns / 2000))
            wait_nap(); // for the state
        assert_true(seen.pieces - before <= 1);
    }
    thread_join(&t);
    return seen.pieces - begin;
}

static void test_rows(void **state) {
    const struct scratch *dir = *state;
    struct bed b = {0};
    struct err_info info;
    fx_open(&b.x, "tests/golden/models/bf16.gguf", &(struct fx_options){0});
    tf_golden_read(&b.g, &b.x.weights->config, "bf16");
    struct ft_exec_config cfg = exec_config(&b.x, true);
    cfg.limits.max_tokens = MAX_TOKENS;
    assert_ok(ft_exec_create(&cfg, &b.exec, &info), &info);
    assert_ok(ft_exec_set(b.exec, b.g.start, NULL, NULL, &info), &info);
    struct lora_row row = tf_lora_row(&b.g.rows[0], EXPONENT);
    struct lora_row_result alone;
    assert_ok(ft_exec_unit(b.exec, &row, &alone, &info), &info);
    ft_exec_destroy(b.exec);

    assert_int_equal(b.x.ops->alloc(b.x.device, RANGE, &b.range), ERR_OK);
    memset((void *)b.range, 0xff, RANGE);
    const struct kn_ops *real = b.x.weights->ops;
    struct kn_ops ops = *real;
    ops.touch = touch;
    b.x.weights->ops = &ops;
    watch(b.range, b.range + RANGE);
    cfg.clock = &seen.clock.clock;
    cfg.queue = b.x.queue;
    cfg.memory = (struct ft_memory){borrow, give, b.range + RANGE, &b};
    cfg.spill.dir = dir->fd;
    cfg.wake = wake;
    assert_ok(ft_exec_create(&cfg, &b.exec, &info), &info);
    assert_ok(ft_exec_set(b.exec, b.g.start, NULL, NULL, &info), &info);
    assert_true(run_row(&b) > 1);
    assert_memory_equal(&b.res.loss, &alone.loss, sizeof alone.loss);
    // Nothing was written but what had been touched and the state, which the pager brought.
    struct ft_exec_sizes sizes;
    ft_exec_sizes(b.exec, &sizes);
    kn_addr base = b.range + RANGE - sizes.state;
    assert_true(seen.low >= b.range && seen.high <= base);
    for (kn_addr a = b.range; a < base; a++)
        if (a < seen.low || a >= seen.high)
            assert_int_equal(*(const unsigned char *)a, 0xff);
    assert_int_equal(run_row(&b), 0);
    ft_exec_give_back(b.exec, SIZE_MAX);
    assert_int_equal(run_row(&b), 0); // it is there since the first time
    ft_exec_retire(b.exec);
    ft_exec_drop(b.exec);
    ft_exec_destroy(b.exec);
    b.x.weights->ops = real;
    b.x.ops->free(b.x.device, b.range, RANGE);
    tf_golden_fini(&b.g);
    fx_close(&b.x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_nothing_to_touch),
        cmocka_unit_test_setup_teardown(test_rows, scratch_open, scratch_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
