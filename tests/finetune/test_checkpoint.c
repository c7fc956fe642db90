// SPDX-License-Identifier: Apache-2.0
// Checkpoints: what is read is what was written; every kind of damage is found and the checkpoint
// before it is taken; the policy of what is kept.
#include "base/mem.h"
#include "finetune/checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct mdl_config config = {.architecture = "llama",
                                         .n_layers = 2,
                                         .hidden = 32,
                                         .intermediate = 48,
                                         .n_heads = 2,
                                         .n_kv_heads = 1,
                                         .head_dim = 16,
                                         .vocab = 64};
static const char *const files[] = {
    "adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors",
    "trainer_state.json",        "manifest.json",       "COMPLETE"};
enum { FILES = sizeof files / sizeof *files };

struct place {
    char dir[TEMP_PATH];
    struct ft_manifest manifest;
    struct ft_moments x;
    struct err_info info;
    char name[FT_CHECKPOINT_NAME];
};

static void fill(struct mdl_adapter *a, float first) {
    float *v = a->memory;
    for (size_t i = 0; i < a->values; i++)
        v[i] = first + (float)i * 0.37F;
}

static int open_place(void **state) {
    struct place *p = mem_zalloc(sizeof *p);
    temp_folder(p->dir, "checkpoint");
    struct mdl_adapter **const all[] = {&p->x.w, &p->x.m, &p->x.v};
    for (int i = 0; i < 3; i++) {
        assert_ok(mdl_adapter_create(&config, 1U << MDL_TARGET_Q | 1U << MDL_TARGET_DOWN, 3, 6,
                                     false, all[i], &p->info),
                  &p->info);
        fill(*all[i], (float)i);
    }
    p->manifest = (struct ft_manifest){.run_id = "run-1",
                                       .base_model = "tiny",
                                       .base_digest = "aa",
                                       .dataset_digest = "bb",
                                       .code_version = "1",
                                       .kernel_set = "cpu portable",
                                       .method = "supervised",
                                       .hyperparameters = "{\"lr\":0.1,\"epochs\":2}",
                                       .seed = 5};
    *state = p;
    return 0;
}

static int close_place(void **state) {
    struct place *p = *state;
    temp_remove(p->dir);
    ft_moments_fini(&p->x);
    mem_free(p);
    return 0;
}

static struct ft_state state_at(int64_t step) {
    struct ft_state s;
    ft_state_init(&s);
    s.step = step;
    s.exponent = -7;
    s.trained_tokens = 12345;
    s.train_loss = 1.0 / 3;
    s.grad_norm = 0.1;
    s.repeats = 2;
    return s;
}

static void write_step(struct place *p, int64_t step) {
    struct ft_state s = state_at(step);
    assert_ok(ft_checkpoint_write(p->dir, &config, &s, &p->x, &p->manifest, p->name, &p->info),
              &p->info);
}

static char *path_of(const struct place *p, const char *name, const char *file) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s%s%s", p->dir, name, *file ? "/" : "", file);
    return path;
}

static long size_of(const char *path) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void test_round_trip(void **state) {
    struct place *p = *state;
    struct ft_state s;
    struct ft_moments x;
    write_step(p, 12);
    assert_string_equal(p->name, "step-12");
    assert_ok(ft_checkpoint_read(path_of(p, "step-12", ""), &config, &s, &x, &p->info), &p->info);
    struct ft_state was = state_at(12);
    assert_int_equal(s.step, was.step);
    assert_int_equal(s.exponent, was.exponent);
    assert_int_equal(s.trained_tokens, was.trained_tokens);
    assert_int_equal(s.repeats, was.repeats);
    assert_memory_equal(&s.train_loss, &was.train_loss, sizeof s.train_loss);
    assert_memory_equal(&s.grad_norm, &was.grad_norm, sizeof s.grad_norm);
    assert_true(isnan(s.valid_loss) && isnan(s.valid_accuracy));
    const struct mdl_adapter *const found[] = {x.w, x.m, x.v}, *const expected[] = {p->x.w, p->x.m,
                                                                                    p->x.v};
    for (int i = 0; i < 3; i++)
        for (int32_t l = 0; l < 2; l++)
            for (int t = 0; t < MDL_TARGETS; t++) {
                const struct mdl_adapter_module *f = &found[i]->modules[l][t],
                                                *e = &expected[i]->modules[l][t];
                int32_t n, k;
                mdl_target_shape(&config, (enum mdl_target)t, &n, &k);
                assert_int_equal(f->r, e->r);
                if (!e->r)
                    continue;
                assert_memory_equal(f->a, e->a, (size_t)(3 * k) * sizeof(float));
                assert_memory_equal(f->b, e->b, (size_t)(3 * n) * sizeof(float));
                assert_true(f->scale == e->scale || i > 0);
            }
    ft_moments_fini(&x);
    json_t *m;
    assert_ok(ft_checkpoint_manifest(path_of(p, "step-12", ""), &m, &p->info), &p->info);
    assert_int_equal(ft_manifest_kind_of(m), FT_MANIFEST_CHECKPOINT);
    assert_string_equal(json_string_value(json_object_get(m, "kernel_set")), "cpu portable");
    const json_t *listed = json_object_get(m, "files"), *file;
    assert_int_equal(json_object_size(listed), 4);
    for (int i = 0; i < 4; i++) {
        file = json_object_get(listed, files[i]);
        assert_int_equal(json_integer_value(json_object_get(file, "bytes")),
                         size_of(path_of(p, "step-12", files[i])));
    }
    json_decref(m);
}

struct told {
    int n;
    char why[512];
};

static void tell(void *arg, const char *name, const char *why) {
    struct told *t = arg;
    (void)name;
    t->n++;
    snprintf(t->why, sizeof t->why, "%s", why);
}

static void assert_newest(struct place *p, const char *name, int skipped) {
    struct told told = {0};
    struct ft_skip skip = {tell, &told};
    char found[FT_CHECKPOINT_NAME];
    assert_ok(ft_checkpoint_newest(p->dir, &p->manifest, &skip, found, &p->info), &p->info);
    assert_string_equal(found, name);
    assert_int_equal(told.n, skipped);
    assert_true(!skipped || told.why[0]);
}

static void flip(const char *path, long at) {
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void test_damage(void **state) {
    struct place *p = *state;
    write_step(p, 9);
    write_step(p, 10);
    assert_newest(p, "step-10", 0);
    for (int i = 0; i < FILES; i++) {
        const char *path = path_of(p, "step-10", files[i]);
        long size = size_of(path);
        for (int k = 0; k < 8; k++) {
            long at = size * k / 8 + k % 2;
            flip(path, at);
            assert_newest(p, "step-9", 1);
            struct ft_state s;
            struct ft_moments x;
            assert_int_not_equal(
                ft_checkpoint_read(path_of(p, "step-10", ""), &config, &s, &x, &p->info), ERR_OK);
            path = path_of(p, "step-10", files[i]);
            flip(path, at);
            assert_newest(p, "step-10", 0);
        }
        // Torn, longer, missing.
        assert_int_equal(truncate(path, size / 2), 0);
        assert_newest(p, "step-9", 1);
        write_step(p, 10); // a broken one makes room
        assert_newest(p, "step-10", 0);
        path = path_of(p, "step-10", files[i]);
        assert_int_equal(unlink(path), 0);
        assert_newest(p, "step-9", 1);
        assert_int_equal(mkdir(path, 0700), 0); // and is no file
        assert_newest(p, "step-9", 1);
        assert_int_equal(rmdir(path), 0);
        write_step(p, 10);
        assert_newest(p, "step-10", 0);
    }
}

static void test_none(void **state) {
    struct place *p = *state;
    char name[FT_CHECKPOINT_NAME];
    assert_int_equal(ft_checkpoint_newest(p->dir, NULL, NULL, name, &p->info), ERR_NOT_FOUND);
    assert_non_null(strstr(p->info.message, p->dir));
    // Names that are none.
    const char *const others[] = {"step-",   "step-01", "step-1x",
                                  "step--1", "stop-1",  "step-99999999999999999999"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(mkdir(path_of(p, others[i], ""), 0700), 0);
    assert_int_equal(mkdir(path_of(p, "step-7", ""), 0700), 0); // empty
    struct told told = {0};
    struct ft_skip skip = {tell, &told};
    assert_int_equal(ft_checkpoint_newest(p->dir, NULL, &skip, name, &p->info), ERR_NOT_FOUND);
    assert_int_equal(told.n, 1);
    assert_non_null(strstr(told.why, "not completed"));
}

static void test_other_run(void **state) {
    struct place *p = *state;
    write_step(p, 4);
    const struct {
        const char **field, *value, *named;
    } changes[] = {{&p->manifest.base_digest, "ab", "base_digest is ab here, and aa in that run"},
                   {&p->manifest.dataset_digest, "bc", "dataset_digest is bc here, and bb"},
                   {&p->manifest.template_digest, "t", "template_digest is t here, and none in"},
                   {&p->manifest.tokenizer_digest, "k", "tokenizer_digest is k"},
                   {&p->manifest.method, "dpo", "method is dpo here, and supervised"},
                   {&p->manifest.hyperparameters, "{\"lr\":0.2,\"epochs\":2}",
                    "lr is 0.2 here, and 0.1 in that run"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *was = *changes[i].field;
        struct told told = {0};
        struct ft_skip skip = {tell, &told};
        char name[FT_CHECKPOINT_NAME];
        *changes[i].field = changes[i].value;
        assert_int_equal(ft_checkpoint_newest(p->dir, &p->manifest, &skip, name, &p->info),
                         ERR_NOT_FOUND);
        assert_non_null(strstr(told.why, changes[i].named));
        assert_non_null(strstr(p->info.message, p->dir));
        assert_non_null(strstr(p->info.message, changes[i].named));
        *changes[i].field = was;
        assert_newest(p, "step-4", 0);
    }
}

static bool there(const struct place *p, const char *name) {
    return access(path_of(p, name, ""), F_OK) == 0;
}

static void test_prune(void **state) {
    struct place *p = *state;
    for (int64_t i = 8; i <= 12; i++)
        write_step(p, i);
    flip(path_of(p, "step-12", "manifest.json"), 30);
    assert_int_equal(mkdir(path_of(p, ".step-13", ""), 0700), 0); // left by a crash
    assert_ok(ft_checkpoint_prune(p->dir, 0, &p->info), &p->info);
    assert_false(there(p, ".step-13"));
    assert_true(there(p, "step-8"));
    // Two whole ones stay, and what is broken and newer.
    assert_ok(ft_checkpoint_prune(p->dir, 2, &p->info), &p->info);
    assert_true(there(p, "step-12") && there(p, "step-11") && there(p, "step-10"));
    assert_false(there(p, "step-9") || there(p, "step-8"));
}

static void test_refusals(void **state) {
    struct place *p = *state;
    struct ft_state s = state_at(3);
    p->x.w->modules[1][MDL_TARGET_DOWN].b[5] = NAN;
    assert_int_equal(
        ft_checkpoint_write(p->dir, &config, &s, &p->x, &p->manifest, p->name, &p->info),
        ERR_NONFINITE);
    assert_non_null(strstr(p->info.message, "layer 1 down_proj"));
    assert_false(there(p, "step-3"));
    assert_int_not_equal(
        ft_checkpoint_write("/nonexistent", &config, &s, &p->x, &p->manifest, p->name, &p->info),
        ERR_OK);
}

static void test_no_memory(void **state) {
    struct place *p = *state;
    write_step(p, 5);
    for (int write = 0; write < 2; write++)
        for (uint64_t n = 1;; n++) {
            struct ft_state s = state_at(6);
            struct ft_moments x = {0};
            char path[128], name[FT_CHECKPOINT_NAME];
            snprintf(path, sizeof path, "%s/step-5", p->dir);
            int64_t live = mem_live_blocks();
            mem_fail_after(n, false);
            enum err e = write ? ft_checkpoint_write(p->dir, &config, &s, &p->x, &p->manifest, name,
                                                     &p->info)
                               : ft_checkpoint_read(path, &config, &s, &x, &p->info);
            mem_fail_after(0, false);
            ft_moments_fini(&x);
            assert_int_equal(mem_live_blocks(), live);
            assert_newest(p, write && !e ? "step-6" : "step-5", 0);
            if (!e)
                break;
            assert_int_equal(e, ERR_NOMEM);
        }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, open_place, close_place)
    const struct CMUnitTest tests[] = {
        TEST(test_round_trip), TEST(test_damage),   TEST(test_none),     TEST(test_other_run),
        TEST(test_prune),      TEST(test_refusals), TEST(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
