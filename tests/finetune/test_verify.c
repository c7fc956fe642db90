// SPDX-License-Identifier: Apache-2.0
// Verification: a flip of any byte of a small exported set is found and its file named; content
// that is wrong although every digest is right; folders of each kind; the model that they belong
// to.
#include "base/mem.h"
#include "finetune/checkpoint.h"
#include "finetune/verify.h"
#include "tests/support/assert_ok.h"
#include "tests/support/scratch.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct mdl_config config = {.architecture = "llama",
                                         .n_layers = 1,
                                         .hidden = 8,
                                         .intermediate = 12,
                                         .n_heads = 2,
                                         .n_kv_heads = 1,
                                         .head_dim = 4,
                                         .vocab = 16};
static const char data[] = "{\"prompt\":\"a\",\"completion\":\"b\"}\n";
// Of Python's hashlib.sha256 of that line.
static const char data_digest[] =
    "e07d31bdddb9aeaff065bbece8d092e987394a88450a601b00d76c066f1088b2";
static const char *const adapter_files[] = {"adapter_config.json", "adapter_model.safetensors"};
static const char *const set_files[] = {"adapter/COMPLETE",
                                        "adapter/adapter_config.json",
                                        "adapter/adapter_model.safetensors",
                                        "adapter/manifest.json",
                                        "checkpoints/step-3/COMPLETE",
                                        "checkpoints/step-3/adapter_config.json",
                                        "checkpoints/step-3/adapter_model.safetensors",
                                        "checkpoints/step-3/manifest.json",
                                        "checkpoints/step-3/optimizer.safetensors",
                                        "checkpoints/step-3/trainer_state.json",
                                        "data/training.jsonl",
                                        "run.json"};
enum { SET_FILES = sizeof set_files / sizeof *set_files };
static const struct ft_manifest origin = {.run_id = "run-1",
                                          .base_model = "tiny",
                                          .base_digest = "aa",
                                          .tokenizer_digest = "bb",
                                          .dataset_digest = data_digest,
                                          .method = "supervised",
                                          .hyperparameters = "{\"lr\":0.1}"};

static int folder(const struct scratch *s, const char *name) {
    char path[256];
    scratch_folder(s, name);
    int fd = open(scratch_path(s, name, path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void make_moments(struct ft_moments *x) {
    struct err_info info;
    struct mdl_adapter **const all[] = {&x->w, &x->m, &x->v};
    for (int i = 0; i < 3; i++) {
        assert_ok(mdl_adapter_create(&config, 1U << MDL_TARGET_Q | 1U << MDL_TARGET_K, 1, 2, false,
                                     all[i], &info),
                  &info);
        float *v = (*all[i])->memory;
        for (size_t k = 0; k < (*all[i])->values; k++)
            v[k] = 0.5F + (float)k;
    }
}

static void write_adapter(const struct scratch *s, const struct mdl_adapter *a) {
    char path[256];
    struct err_info info;
    int fd = folder(s, "adapter");
    assert_ok(mdl_adapter_write(scratch_path(s, "adapter", path), &config, a, "tiny", NULL, &info),
              &info);
    assert_ok(ft_manifest_write(fd, FT_MANIFEST_ADAPTER, &origin, NULL, adapter_files, 2, &info),
              &info);
    close(fd);
}

static void write_checkpoint(const struct scratch *s, const struct ft_moments *x) {
    char path[256], name[FT_CHECKPOINT_NAME];
    struct err_info info;
    struct ft_state state;
    ft_state_init(&state);
    state.step = 3;
    scratch_folder(s, "checkpoints");
    assert_ok(ft_checkpoint_write(scratch_path(s, "checkpoints", path), &config, &state, x, &origin,
                                  name, &info),
              &info);
}

static void write_manifest(const struct scratch *s) {
    struct err_info info;
    assert_ok(
        ft_manifest_write(s->fd, FT_MANIFEST_EXPORT, &origin, NULL, set_files, SET_FILES, &info),
        &info);
}

static void write_run(const struct scratch *s) {
    static const char run[] = "{\"version\":1,\"run_id\":\"run-1\",\"base_digest\":\"aa\"}";
    struct ft_moments x = {0};
    make_moments(&x);
    write_adapter(s, x.w);
    write_checkpoint(s, &x);
    scratch_write(s, "run.json", run, sizeof run - 1);
    ft_moments_fini(&x);
}

static void write_set(const struct scratch *s) {
    write_run(s);
    scratch_folder(s, "data");
    scratch_write(s, "data/training.jsonl", data, sizeof data - 1);
    write_manifest(s);
}

struct told {
    char wrong[8][128], what[8][256];
    int n_wrong, n_ok, n_remarks;
};

static void tell(void *arg, const char *file, enum err e, const char *what) {
    struct told *t = arg;
    t->n_ok += !e;
    t->n_remarks += !e && *what;
    if (!e || t->n_wrong == 8)
        return;
    snprintf(t->wrong[t->n_wrong], sizeof t->wrong[0], "%s", file);
    snprintf(t->what[t->n_wrong++], sizeof t->what[0], "%s", what);
}

static struct told verify(const char *path, const struct ft_verify_base *base, const char *kind) {
    struct told t = {0};
    struct err_info info;
    struct ft_verify_result r;
    const struct ft_verify v = {.tell = tell, .arg = &t, .base = base};
    assert_ok(ft_verify(path, &v, &r, &info), &info);
    assert_string_equal(r.kind, kind);
    assert_int_equal(r.wrong, t.n_wrong);
    assert_int_equal(r.files, t.n_wrong + t.n_ok);
    return t;
}

static void expect_whole(const struct scratch *s, int files) {
    struct told t = verify(s->path, NULL, "exported set");
    if (t.n_wrong)
        fail_msg("%s: %s", t.wrong[0], t.what[0]);
    assert_int_equal(t.n_ok, files);
    assert_int_equal(t.n_remarks, 0);
}

static void expect_wrong(const struct scratch *s, const char *kind, const char *file,
                         const char *what) {
    struct told t = verify(s->path, NULL, kind);
    for (int i = 0; i < t.n_wrong; i++)
        if (!strcmp(t.wrong[i], file) && strstr(t.what[i], what))
            return;
    fail_msg("%s should be wrong (%s); told %d: %s: %s", file, what, t.n_wrong, t.wrong[0],
             t.what[0]);
}

static void test_every_byte(void **state) {
    const struct scratch *s = *state;
    write_set(s);
    expect_whole(s, SET_FILES + 2);
    for (int i = 0; i < SET_FILES + 2; i++) {
        const char *file = i < SET_FILES    ? set_files[i]
                           : i == SET_FILES ? "manifest.json"
                                            : "COMPLETE";
        long size = scratch_size(s, file);
        for (long at = 0; at < size; at++) {
            scratch_flip(s, file, at);
            struct told t = verify(s->path, NULL, "exported set");
            scratch_flip(s, file, at);
            if (!t.n_wrong)
                fail_msg("%s: byte %ld", file, at);
            // A marker tells of its manifest.
            const char *slash = strrchr(file, '/');
            bool marker = !strcmp(slash ? slash + 1 : file, "COMPLETE");
            if (!marker && strcmp(t.wrong[0], file) != 0)
                fail_msg("%s: byte %ld: %s", file, at, t.wrong[0]);
        }
    }
    expect_whole(s, SET_FILES + 2);
}

static void test_missing(void **state) {
    const struct scratch *s = *state;
    char path[256], aside[256];
    write_set(s);
    for (int i = 0; i < SET_FILES; i++) {
        scratch_path(s, "aside", aside);
        assert_int_equal(rename(scratch_path(s, set_files[i], path), aside), 0);
        assert_int_not_equal(verify(s->path, NULL, "exported set").n_wrong, 0);
        assert_int_equal(rename(aside, path), 0);
    }
    expect_whole(s, SET_FILES + 2);
    scratch_write(s, "notes.txt", "x", 1);
    struct told t = verify(s->path, NULL, "exported set");
    assert_true(t.n_wrong == 0 && t.n_remarks == 1);
}

// Digests that are right say nothing of sense.
static void test_content(void **state) {
    const struct scratch *s = *state;
    struct ft_moments x = {0};
    char path[256];
    float *v;
    write_set(s);
    make_moments(&x);
    v = x.w->memory;
    v[3] = INFINITY;
    write_adapter(s, x.w);
    write_manifest(s);
    expect_wrong(s, "exported set", "adapter/adapter_model.safetensors", "not finite");
    v[3] = 1;
    write_adapter(s, x.w);
    v = x.v->memory;
    v[2] = -1;
    temp_remove(scratch_path(s, "checkpoints", path));
    write_checkpoint(s, &x);
    write_manifest(s);
    expect_wrong(s, "exported set", "checkpoints/step-3/optimizer.safetensors", "negative");
    v[2] = NAN;
    temp_remove(scratch_path(s, "checkpoints", path));
    write_checkpoint(s, &x);
    write_manifest(s);
    expect_wrong(s, "exported set", "checkpoints/step-3/optimizer.safetensors", "not finite");
    v[2] = 1;
    temp_remove(scratch_path(s, "checkpoints", path));
    write_checkpoint(s, &x);
    write_manifest(s);
    expect_whole(s, SET_FILES + 2);
    // Another data file than the run's.
    scratch_append(s, "data/training.jsonl", "\n");
    write_manifest(s);
    expect_wrong(s, "exported set", "data/training.jsonl", "dataset_digest");
    ft_moments_fini(&x);
}

// A manifest below that says something else than the set's, each with its own marker.
static void test_two_lists(void **state) {
    const struct scratch *s = *state;
    struct err_info info;
    write_set(s);
    int fd = folder(s, "adapter");
    assert_ok(ft_manifest_write(fd, FT_MANIFEST_ADAPTER, &origin, NULL, adapter_files, 1, &info),
              &info);
    write_manifest(s);
    expect_wrong(s, "exported set", "adapter/manifest.json", "other files");
    assert_ok(ft_manifest_write(fd, FT_MANIFEST_CHECKPOINT, &origin, NULL, adapter_files, 2, &info),
              &info);
    write_manifest(s);
    expect_wrong(s, "exported set", "adapter/manifest.json", "kind");
    close(fd);
}

static void test_kinds(void **state) {
    const struct scratch *s = *state;
    char path[256];
    struct err_info info;
    struct ft_verify_result r;
    struct told t = {0};
    const struct ft_verify v = {.tell = tell, .arg = &t};
    assert_int_equal(ft_verify(s->path, &v, &r, &info), ERR_INVALID);
    assert_int_equal(ft_verify("/nonexistent", &v, &r, &info), ERR_NOT_FOUND);
    write_run(s);
    t = verify(s->path, NULL, "run");
    assert_true(t.n_wrong == 0 && t.n_ok == 11);
    t = verify(scratch_path(s, "adapter", path), NULL, "adapter");
    assert_true(t.n_wrong == 0 && t.n_ok == 4 && t.n_remarks == 0);
    t = verify(scratch_path(s, "checkpoints/step-3", path), NULL, "checkpoint");
    assert_true(t.n_wrong == 0 && t.n_ok == 6);
    scratch_flip(s, "checkpoints/step-3/trainer_state.json", 5);
    expect_wrong(s, "run", "checkpoints/step-3/trainer_state.json", "manifest");
    // As PEFT writes one: without a manifest.
    assert_int_equal(unlink(scratch_path(s, "adapter/manifest.json", path)), 0);
    t = verify(scratch_path(s, "adapter", path), NULL, "adapter");
    assert_int_not_equal(t.n_wrong, 0); // the marker tells that there was one
    assert_int_equal(unlink(scratch_path(s, "adapter/COMPLETE", path)), 0);
    t = verify(scratch_path(s, "adapter", path), NULL, "adapter");
    assert_true(t.n_wrong == 0 && t.n_ok == 2 && t.n_remarks == 2);
    assert_int_equal(truncate(scratch_path(s, "adapter/adapter_model.safetensors", path), 100), 0);
    t = verify(scratch_path(s, "adapter", path), NULL, "adapter");
    assert_int_equal(t.n_wrong, 1);
}

static void test_model(void **state) {
    const struct scratch *s = *state;
    const struct ft_verify_base same = {&config, "aa", "bb", ""};
    struct mdl_config wider = config;
    wider.hidden = 16;
    const struct {
        struct ft_verify_base base;
        const char *file, *what;
    } cases[] = {
        {{&config, "ab", "bb", ""}, "manifest.json", "base_digest is aa"},
        {{&config, "aa", "bc", ""}, "manifest.json", "tokenizer_digest is bb"},
        {{&config, "aa", "bb", "cc"}, "manifest.json", "template_digest is none"},
        {{&wider, "aa", "bb", ""}, "adapter/adapter_model.safetensors", "expected [1, 16]"},
        {{&wider, "aa", "bb", ""}, "checkpoints/step-3/adapter_model.safetensors", "expected"},
    };
    write_set(s);
    assert_int_equal(verify(s->path, &same, "exported set").n_wrong, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct told t = verify(s->path, &cases[i].base, "exported set");
        bool found = false;
        for (int k = 0; k < t.n_wrong; k++)
            found =
                found || (!strcmp(t.wrong[k], cases[i].file) && strstr(t.what[k], cases[i].what));
        if (!found)
            fail_msg("%s: %s: %s", cases[i].what, t.wrong[0], t.what[0]);
    }
}

static void test_no_memory(void **state) {
    const struct scratch *s = *state;
    write_set(s);
    for (uint64_t n = 1;; n++) {
        struct told t = {0};
        struct err_info info;
        struct ft_verify_result r;
        const struct ft_verify v = {.tell = tell, .arg = &t};
        int64_t live = mem_live_blocks();
        mem_fail_after(n, false);
        enum err e = ft_verify(s->path, &v, &r, &info);
        mem_fail_after(0, false);
        assert_int_equal(mem_live_blocks(), live);
        // No verdict, rather than a wrong one.
        assert_int_equal(t.n_wrong, 0);
        if (!e)
            break;
        assert_int_equal(e, ERR_NOMEM);
    }
}

// A checkpoint that is copied is whole or not there.
static void test_copy(void **state) {
    const struct scratch *s = *state;
    char path[256];
    struct err_info info;
    write_run(s);
    int from = folder(s, "checkpoints"), to = folder(s, "copies");
    assert_ok(ft_checkpoint_copy(from, to, "step-3", &info), &info);
    assert_int_equal(verify(scratch_path(s, "copies/step-3", path), NULL, "checkpoint").n_wrong, 0);
    assert_ok(ft_checkpoint_copy(from, to, "step-3", &info), &info); // again
    temp_remove(path);
    scratch_flip(s, "checkpoints/step-3/optimizer.safetensors", 700);
    assert_int_equal(ft_checkpoint_copy(from, to, "step-3", &info), ERR_FORMAT);
    assert_int_equal(ft_checkpoint_copy(from, to, "step-4", &info), ERR_NOT_FOUND);
    assert_int_equal(ft_checkpoint_copy(from, to, "../step-3", &info), ERR_INVALID);
    assert_int_equal(rmdir(scratch_path(s, "copies", path)), 0); // nothing is left
    close(from);
    close(to);
}

int main(void) {
    json_set_alloc_funcs(mem_alloc, mem_free);
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {
        TEST(test_every_byte), TEST(test_missing), TEST(test_content),   TEST(test_two_lists),
        TEST(test_kinds),      TEST(test_model),   TEST(test_no_memory), TEST(test_copy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
