// SPDX-License-Identifier: Apache-2.0
// Checkpoints on a disk that fails: a power loss at every point of writing and pruning, each call
// failing once, a full disk, damage at random offsets. The newest whole one is always found, and
// read whole.
#include "base/diskio.h"
#include "base/mem.h"
#include "finetune/checkpoint.h"
#include "tests/base/disk_replay.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 4, KEEP = 2 };

static const struct mdl_config config = {.architecture = "llama",
                                         .n_layers = 1,
                                         .hidden = 16,
                                         .intermediate = 16,
                                         .n_heads = 1,
                                         .n_kv_heads = 1,
                                         .head_dim = 16,
                                         .vocab = 64};
static const struct ft_manifest manifest = {.run_id = "run-1",
                                            .base_model = "tiny",
                                            .base_digest = "aa",
                                            .dataset_digest = "bb",
                                            .code_version = "1",
                                            .kernel_set = "cpu portable",
                                            .method = "supervised",
                                            .hyperparameters = "{\"lr\":0.1}",
                                            .seed = 5};

struct place {
    char dir[TEMP_PATH];
    struct ft_moments x;
};

// The values of a step: those of another one never pass for them.
static float value(int64_t step, int which, size_t i) {
    return (float)step * 100 + (float)which * 10 + (float)i * 0.125F;
}

static void fill(struct ft_moments *x, int64_t step) {
    struct mdl_adapter *const all[] = {x->w, x->m, x->v};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < all[k]->values; i++)
            ((float *)all[k]->memory)[i] = value(step, k, i);
}

static int open_place(void **state) {
    struct place *p = calloc(1, sizeof *p);
    struct err_info info = {0};
    struct mdl_adapter **const all[] = {&p->x.w, &p->x.m, &p->x.v};
    temp_folder_in_memory(p->dir, "ckpt-faults");
    for (int i = 0; i < 3; i++)
        assert_ok(mdl_adapter_create(&config, 1U << MDL_TARGET_Q, 2, 4, false, all[i], &info),
                  &info);
    *state = p;
    return 0;
}

static int close_place(void **state) {
    struct place *p = *state;
    temp_remove(p->dir);
    ft_moments_fini(&p->x);
    free(p);
    return 0;
}

// What a run does at a save.
static enum err save(struct place *p, const char *dir, int64_t step, struct err_info *info) {
    struct ft_state s;
    char name[FT_CHECKPOINT_NAME];
    ft_state_init(&s);
    s.step = step;
    s.trained_tokens = 7 * step;
    fill(&p->x, step);
    enum err e = ft_checkpoint_write(dir, &config, &s, &p->x, &manifest, name, info);
    return e ? e : ft_checkpoint_prune(dir, KEEP, info);
}

static bool same(const void *a, const void *b) { // matrices of rank 2, bit for bit
    return memcmp(a, b, 2 * 16 * sizeof(float)) == 0;
}

// The step that a resumed run goes on from, 0 for none; -1 and the reason: what it reads is not
// what was saved.
static int64_t newest(struct place *p, const char *dir, char why[REPLAY_WHY]) {
    char name[FT_CHECKPOINT_NAME], path[256];
    struct err_info info = {0};
    struct ft_moments x = {0};
    struct ft_state s;
    enum err e = ft_checkpoint_newest(dir, &manifest, NULL, name, &info);
    if (e == ERR_NOT_FOUND)
        return 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!e)
        e = ft_checkpoint_read(path, &config, &s, &x, &info);
    if (e) {
        snprintf(why, REPLAY_WHY, "%s: %.400s", name, info.message);
        return -1;
    }
    int64_t step = s.trained_tokens == 7 * s.step ? s.step : -1;
    fill(&p->x, s.step);
    struct mdl_adapter *const is[] = {x.w, x.m, x.v}, *const was[] = {p->x.w, p->x.m, p->x.v};
    for (int i = 0; i < 3; i++) {
        const struct mdl_adapter_module *f = &is[i]->modules[0][MDL_TARGET_Q],
                                        *g = &was[i]->modules[0][MDL_TARGET_Q];
        if (!same(f->a, g->a) || !same(f->b, g->b))
            step = -1;
    }
    if (step < 0)
        snprintf(why, REPLAY_WHY, "%s holds other values", name);
    ft_moments_fini(&x);
    return step;
}

static int entries(const char *path, const char *prefix) {
    DIR *d = opendir(path);
    int n = 0;
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 &&
             !strncmp(x->d_name, prefix, strlen(prefix));
    closedir(d);
    return n;
}

static bool resumes(void *arg, const char *path, int mark, char why[REPLAY_WHY]) {
    struct place *p = arg;
    struct err_info info = {0};
    int64_t step = newest(p, path, why);
    if (step < 0)
        return false;
    if (step != mark && step != mark + 1) {
        snprintf(why, REPLAY_WHY, "step-%d is newest", (int)step);
        return false;
    }
    // The run goes on: its next save succeeds, is newest, and clears up.
    enum err e = save(p, path, step + 1, &info);
    if (e || newest(p, path, why) != step + 1) {
        snprintf(why, REPLAY_WHY, "after a resume: %.400s", e ? info.message : "not newest");
        return false;
    }
    int all = entries(path, ""), steps = entries(path, "step-");
    if (all != steps || steps > KEEP)
        snprintf(why, REPLAY_WHY, "%d entries are left, %d of them checkpoints", all, steps);
    return all == steps && steps <= KEEP;
}

static void test_power_loss(void **state) {
    struct place *p = *state;
    struct err_info info = {0};
    struct replay *r = replay_begin(p->dir);
    for (int64_t step = 1; step <= STEPS; step++) {
        assert_ok(save(p, p->dir, step, &info), &info);
        replay_mark(r, (int)step);
    }
    replay_end(r);
    struct replay_result x = replay_run(r, 8, resumes, p);
    replay_free(r);
    assert_true(x.prefixes > 120 && x.states > 500);
    if (x.bad)
        fail_msg("%d of %d states: %s", x.bad, x.states, x.first);
}

struct fault {
    int at, n, with;
    bool from; // and each later one that takes room
};

static int inject(void *arg, struct diskio_call *c) {
    struct fault *f = arg;
    bool frees = c->op == DISKIO_UNLINK || c->op == DISKIO_RMDIR;
    f->n += !f->from || !frees;
    return f->n == f->at || (f->from && f->n > f->at && !frees) ? f->with : 0;
}

// At each call an error once, and the disk full from there on. The one before stays newest, nothing
// half-written is left, and the same save succeeds afterwards.
static void test_errors(void **state) {
    struct place *p = *state;
    struct err_info info = {0};
    char why[REPLAY_WHY] = "";
    assert_ok(save(p, p->dir, 1, &info), &info);
    for (int full = 0; full < 2; full++) {
        bool ended = false;
        for (int at = 1; !ended; at++) {
            int64_t before = newest(p, p->dir, why);
            struct fault f = {.at = at, .with = full ? ENOSPC : EIO, .from = full != 0};
            const struct diskio_hook hook = {.before = inject, .arg = &f};
            diskio_set_hook(&hook);
            enum err e = save(p, p->dir, before + 1, &info);
            diskio_set_hook(NULL);
            ended = f.n < at;
            int64_t after = newest(p, p->dir, why);
            if (after < before)
                fail_msg("call %d: step-%d after step-%d: %s", at, (int)after, (int)before, why);
            assert_true(e || after == before + 1);
            if (e)
                assert_int_equal(e, full ? ERR_DISK_FULL : ERR_IO);
            if (e && after == before)
                assert_true(strlen(info.message) > 10);
            assert_ok(save(p, p->dir, after + 1, &info), &info);
            assert_int_equal(newest(p, p->dir, why), after + 1);
            assert_int_equal(entries(p->dir, "."), 0);
            assert_true(at < 200);
        }
    }
}

// ---- damage

static uint64_t mix(uint64_t *x) { // xorshift
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

static void told(void *arg, const char *name, const char *why) {
    char *last = arg;
    snprintf(last, REPLAY_WHY, "%s: %s", name, why);
}

static void put(const char *path, const char *data, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
}

static void assert_skipped(struct place *p, const char *file, const char *how, size_t at) {
    char name[FT_CHECKPOINT_NAME], last[REPLAY_WHY] = "";
    struct err_info info = {0};
    const struct ft_skip skip = {told, last};
    assert_ok(ft_checkpoint_newest(p->dir, &manifest, &skip, name, &info), &info);
    if (strcmp(name, "step-1") != 0)
        fail_msg("%s %s at %zu is not found out", file, how, at);
    assert_true(!strncmp(last, "step-2: ", 8) && last[8]);
}

// At random places of each file: a bit flipped, cut there, and
// from there on zeros.
static void test_damage(void **state) {
    static const char *const files[] = {
        "adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors",
        "trainer_state.json",        "manifest.json",       "COMPLETE"};
    struct place *p = *state;
    struct err_info info = {0};
    uint64_t random = 88172645463325252U;
    assert_ok(save(p, p->dir, 1, &info), &info);
    assert_ok(save(p, p->dir, 2, &info), &info);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[256];
        size_t n;
        snprintf(path, sizeof path, "%s/step-2/%s", p->dir, files[i]);
        char *good = replay_read(path, "", &n);
        size_t content = strcmp(files[i], "COMPLETE") != 0 ? n : n - 1; // its newline is no matter
        char *bad = malloc(n);
        assert_true(good && bad);
        for (int k = 0; k < 25; k++) {
            size_t at = (size_t)(mix(&random) % content);
            memcpy(bad, good, n);
            bad[at] = (char)(bad[at] ^ 1 << mix(&random) % 8);
            put(path, bad, n);
            assert_skipped(p, files[i], "flipped", at);
            put(path, good, at);
            assert_skipped(p, files[i], "cut", at);
            memcpy(bad, good, n);
            memset(bad + at, 0, n - at);
            put(path, bad, n);
            assert_skipped(p, files[i], "zeroed", at);
        }
        put(path, good, n);
        free(good);
        free(bad);
    }
    char why[REPLAY_WHY];
    assert_int_equal(newest(p, p->dir, why), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_power_loss, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_errors, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_damage, open_place, close_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
