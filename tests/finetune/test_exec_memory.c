// SPDX-License-Identifier: Apache-2.0
// An executor whose memory is lent: the bits of one that has its own, whenever activations and
// state are taken back; whatever happens to the file that the state goes to.
#include "base/diskio.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tests/finetune/exec_support.h"
#include "tests/support/assert_ok.h"
#include "tests/support/disk.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/wait.h"
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

// ---- a thread that owns the queue, lends a range and takes it back as it likes

struct lender {
    struct ft_exec *exec;
    kn_addr range;
    size_t bytes, lent;
    uint64_t seed;
    bool gentle;                     // takes nothing back unless `take`
    _Atomic bool quit, work, take;   // take: everything, until it has it
    int refused, taken_back, partly; // partly: a part of the state went
};

static uint64_t draw(struct lender *l) {
    l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
    return l->seed >> 33;
}

static void give(void *arg, size_t keep) {
    struct lender *l = arg;
    keep = (keep + 4095) & ~(size_t)4095;
    if (keep >= l->lent)
        return;
    // Serving writes its own numbers there; here each of them is NaN.
    memset((void *)(l->range + (l->bytes - l->lent)), 0xff, l->lent - keep);
    l->lent = keep;
}

static size_t borrow(void *arg, const struct ft_memory_ask *ask, kn_addr *at) {
    struct lender *l = arg;
    if (!l->gentle && draw(l) % 3 == 0) {
        l->refused++;
        if (l->lent < ask->need)
            give(l, ask->held);
    } else if (draw(l) % 2 && ask->need > l->lent) { // a part of what is needed
        l->lent += (ask->need - l->lent) / 2;
    } else if (ask->want > l->lent) {
        l->lent = ask->want < l->bytes ? ask->want : l->bytes;
    }
    *at = l->range + (l->bytes - l->lent);
    return l->lent;
}

static void wake(void *arg) {
    atomic_store(&((struct lender *)arg)->work, true);
}

static void *lend(void *arg) {
    static const size_t parts[] = {1, 1, 2, 3, 8, 8, 8, 8};
    struct lender *l = arg;
    struct ft_exec_usage u;
    while (!atomic_load(&l->quit)) {
        if (!ft_exec_run(l->exec, (int64_t)(draw(l) % 60)) && !atomic_exchange(&l->work, false))
            usleep(200);
        bool all = atomic_load(&l->take);
        if (!all && (l->gentle || draw(l) % 8))
            continue;
        l->taken_back++;
        ft_exec_give_back(l->exec, all ? SIZE_MAX : l->lent / parts[draw(l) % 8]);
        ft_exec_usage(l->exec, &u);
        MUST(u.state_resident <= u.state_bytes && u.state_resident <= l->lent);
        l->partly += u.state_resident && u.state_resident < u.state_bytes;
        atomic_store(&l->take, all && u.state_resident > 0);
    }
    return NULL;
}

// ---- one model, trained twice

struct bed {
    struct fx x;
    struct tf_golden g;
    struct ft_exec_config cfg;
    struct lender l;
    struct walk w;
    struct thread thread;
    struct outcome alone;
};

static void open_bed(struct bed *b, const struct scratch *dir) {
    struct err_info info;
    *b = (struct bed){0};
    fx_open(&b->x, "tests/golden/models/bf16.gguf", &(struct fx_options){0});
    tf_golden_read(&b->g, &b->x.weights->config, "bf16");
    b->cfg = exec_config(&b->x, true);
    b->w.g = &b->g;
    assert_ok(ft_exec_create(&b->cfg, &b->w.x, &info), &info);
    exec_three_steps(&b->w, &b->x.weights->config, &b->alone);
    ft_exec_destroy(b->w.x);
    struct lender *l = &b->l;
    l->bytes = 2 << 20;
    assert_int_equal(b->x.ops->alloc(b->x.device, l->bytes, &l->range), ERR_OK);
    memset((void *)l->range, 0xff, l->bytes);
    b->cfg.queue = b->x.queue;
    b->cfg.memory = (struct ft_memory){borrow, give, l->range + l->bytes, l};
    b->cfg.spill = (struct ft_spill){.dir = dir->fd, .piece = 4096};
    b->cfg.wake = wake;
    b->cfg.wake_arg = l;
}

static void start(struct bed *b, uint64_t seed) {
    struct err_info info;
    struct lender *l = &b->l;
    assert_ok(ft_exec_create(&b->cfg, &b->w.x, &info), &info);
    l->exec = b->w.x;
    l->seed = seed;
    atomic_store(&l->quit, false);
    atomic_store(&l->take, false);
    assert_int_equal(thread_start(&b->thread, "lender", lend, l), ERR_OK);
}

// All that was lent is back afterwards.
static void end(struct bed *b) {
    atomic_store(&b->l.quit, true);
    thread_join(&b->thread);
    ft_exec_retire(b->w.x);
    ft_exec_drop(b->w.x);
    assert_int_equal(b->l.lent, 0);
    ft_exec_destroy(b->w.x);
}

static void close_bed(struct bed *b, const struct scratch *dir) {
    exec_drop(&b->alone);
    b->x.ops->free(b->x.device, b->l.range, b->l.bytes);
    tf_golden_fini(&b->g);
    fx_close(&b->x);
    assert_int_equal(disk_entries(dir->fd, "."), 0); // the file has no name
}

static void test_lender(void **state) {
    struct bed b;
    struct outcome o;
    open_bed(&b, *state);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        start(&b, seed);
        exec_three_steps(&b.w, &b.x.weights->config, &o);
        end(&b);
        exec_assert_same(&b.alone, &o);
        exec_drop(&o);
    }
    assert_true(b.l.refused > 0 && b.l.taken_back > 0 && b.l.partly > 0);
    close_bed(&b, *state);
}

// ---- the state is away between any two rows: each is done once all the same

struct taken {
    _Atomic int times, back;
};

static void on_taken(void *arg, bool taken) {
    struct taken *t = arg;
    atomic_fetch_add(taken ? &t->times : &t->back, 1);
}

static void take_all(struct bed *b) {
    struct ft_exec_usage u;
    struct wait w = {0};
    atomic_store(&b->l.take, true);
    do {
        assert_true(wait_more(&w));
        ft_exec_usage(b->w.x, &u);
    } while (u.state_resident);
}

static void test_pressure(void **state) {
    const struct scratch *dir = *state;
    struct bed b;
    struct taken t = {0};
    struct outcome o;
    struct err_info info;
    open_bed(&b, dir);
    b.cfg.spill.taken = on_taken;
    b.cfg.spill.arg = &t;
    b.l.gentle = true;
    start(&b, 1);
    assert_ok(ft_exec_set(b.w.x, b.g.start, NULL, NULL, &info), &info);
    assert_ok(ft_exec_clear(b.w.x, &info), &info);
    for (int32_t i = 0; i < 3; i++) {
        int64_t targets = 0;
        for (int32_t k = 0; k < b.g.n_rows; k++) {
            struct lora_row row = tf_lora_row(&b.g.rows[k], EXPONENT);
            struct lora_row_result res;
            assert_ok(ft_exec_unit(b.w.x, &row, &res, &info), &info);
            targets += res.targets;
            take_all(&b);
        }
        exec_commit(&b.w, i, targets, &o.norm[i]);
        take_all(&b);
        assert_int_equal(disk_entries(dir->fd, "."), 0); // what a kill would leave
    }
    exec_take(b.w.x, &b.x.weights->config, &o); // from the file
    end(&b);
    exec_assert_same(&b.alone, &o);
    exec_drop(&o);
    assert_true(atomic_load(&t.times) > 0);
    assert_true(atomic_load(&t.times) - atomic_load(&t.back) <= 1);
    close_bed(&b, dir);
}

// ---- the disk

static int full(void *arg, struct diskio_call *c) {
    return c->op == DISKIO_WRITE && atomic_load((_Atomic bool *)arg) ? ENOSPC : 0;
}

// The command ends with what the disk said, later ones too, and serving has its memory at once.
static void test_disk_full(void **state) {
    struct bed b;
    struct err_info info;
    _Atomic bool is_full = false;
    const struct diskio_hook hook = {.before = full, .arg = &is_full};
    open_bed(&b, *state);
    b.l.gentle = true;
    start(&b, 1);
    diskio_set_hook(&hook);
    struct lora_row row = tf_lora_row(&b.g.rows[0], EXPONENT);
    struct lora_row_result res;
    assert_ok(ft_exec_unit(b.w.x, &row, &res, &info), &info);
    atomic_store(&is_full, true);
    atomic_store(&b.l.take, true);
    enum err e;
    while (!(e = ft_exec_unit(b.w.x, &row, &res, &info)))
        ;
    assert_int_equal(e, ERR_DISK_FULL);
    assert_non_null(strstr(info.message, "state"));
    struct mdl_adapter *a;
    assert_ok(mdl_adapter_create(&b.x.weights->config, ALL_TARGETS, 4, 8, false, &a, &info), &info);
    assert_int_equal(ft_exec_get(b.w.x, a, NULL, NULL, &info), ERR_DISK_FULL);
    assert_int_equal(ft_exec_clear(b.w.x, &info), ERR_DISK_FULL);
    mdl_adapter_destroy(a);
    end(&b);
    diskio_set_hook(NULL);
    close_bed(&b, *state);
}

static enum err no_room(void *arg, struct err_info *info) {
    (void)arg;
    return err_set(info, ERR_DISK_FULL, NULL, "no room");
}

static void test_no_room(void **state) {
    struct bed b;
    struct err_info info;
    open_bed(&b, *state);
    b.cfg.spill.room = no_room;
    assert_int_equal(ft_exec_create(&b.cfg, &b.w.x, &info), ERR_DISK_FULL);
    assert_string_equal(info.message, "no room");
    close_bed(&b, *state);
}

// Each allocation of its making fails once: nothing is left behind.
static void test_no_memory(void **state) {
    struct bed b;
    struct err_info info;
    open_bed(&b, *state);
    int64_t live = mem_live_blocks();
    for (uint64_t n = 1;; n++) {
        mem_fail_after(n, false);
        enum err e = ft_exec_create(&b.cfg, &b.w.x, &info);
        mem_fail_after(0, false);
        if (!e)
            break;
        assert_int_equal(e, ERR_NOMEM);
        assert_int_equal(mem_live_blocks(), live);
        assert_true(n < 1000);
    }
    ft_exec_destroy(b.w.x);
    assert_int_equal(mem_live_blocks(), live);
    close_bed(&b, *state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lender, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_pressure, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_disk_full, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_no_room, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_no_memory, scratch_open, scratch_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
