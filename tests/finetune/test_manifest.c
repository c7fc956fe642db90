// SPDX-License-Identifier: Apache-2.0
// Manifests: what is written reads back; each change of a file, of the manifest and of the marker
// is found; what a manifest from outside may say.
#include "base/mem.h"
#include "finetune/manifest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/scratch.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const files[] = {"a.txt", "sub/b.bin", "sub/deep/empty"};
enum { FILES = sizeof files / sizeof *files };

static const struct ft_manifest origin = {
    .run_id = "run-1",
    .base_model = "tiny \"quoted\"",
    .method = "supervised",
    .hyperparameters = "{\"lr\":0.1}",
    .kernel_sets = "[{\"from_step\":0,\"kernel_set\":\"cpu\"}]",
    .seed = 7,
    .created_at = 1700000000,
};

static void write_set(struct scratch *p) {
    struct err_info info;
    scratch_write(p, "a.txt", "hello\n", 6);
    scratch_folder(p, "sub");
    scratch_folder(p, "sub/deep");
    scratch_write(p, "sub/b.bin", "\0\1\2\3", 4);
    scratch_write(p, "sub/deep/empty", "", 0);
    assert_ok(ft_manifest_write(p->fd, FT_MANIFEST_EXPORT, &origin, NULL, files, FILES, &info),
              &info);
}

// What a reader of the whole folder says.
static enum err verify(const struct scratch *p, struct err_info *info) {
    json_t *m;
    enum err e = ft_manifest_read(p->fd, &m, info);
    if (e)
        return e;
    if (ft_manifest_kind_of(m) != FT_MANIFEST_EXPORT)
        e = ERR_INTERNAL;
    for (int i = 0; i < FILES && !e; i++)
        e = ft_manifest_check(p->fd, m, files[i], info);
    json_decref(m);
    return e;
}

static void test_round_trip(void **state) {
    struct scratch *p = *state;
    struct err_info info;
    json_t *m;
    write_set(p);
    assert_ok(verify(p, &info), &info);
    assert_ok(ft_manifest_read(p->fd, &m, &info), &info);
    assert_string_equal(json_string_value(json_object_get(m, "base_model")), origin.base_model);
    assert_int_equal(json_integer_value(json_object_get(m, "seed")), 7);
    assert_true(json_is_null(json_object_get(m, "metrics")));
    const json_t *a = json_object_get(json_object_get(m, "files"), "a.txt");
    // Of Python's hashlib.sha256(b"hello\n").
    assert_string_equal(json_string_value(json_object_get(a, "sha256")),
                        "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    assert_int_equal(json_integer_value(json_object_get(a, "bytes")), 6);
    assert_int_equal(ft_manifest_check(p->fd, m, "c.txt", &info), ERR_NOT_FOUND);
    json_decref(m);
}

static void test_damage(void **state) {
    struct scratch *p = *state;
    struct err_info info;
    static const char *const all[] = {"a.txt", "sub/b.bin", "manifest.json", "COMPLETE"};
    write_set(p);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        long size = scratch_size(p, all[i]);
        for (long at = 0; at < size; at++) {
            scratch_flip(p, all[i], at);
            if (!verify(p, &info))
                fail_msg("%s: byte %ld", all[i], at);
            scratch_flip(p, all[i], at);
        }
        char path[256];
        assert_int_equal(truncate(scratch_path(p, all[i], path), size - 1), 0);
        assert_int_not_equal(verify(p, &info), ERR_OK);
        write_set(p);
        scratch_append(p, all[i], "x");
        assert_int_not_equal(verify(p, &info), ERR_OK);
        assert_int_equal(unlink(path), 0);
        assert_int_not_equal(verify(p, &info), ERR_OK);
        // Neither a link nor a folder is a file.
        assert_int_equal(symlink("/etc/passwd", path), 0);
        assert_int_not_equal(verify(p, &info), ERR_OK);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_not_equal(verify(p, &info), ERR_OK);
        assert_int_equal(rmdir(path), 0);
        write_set(p);
        assert_ok(verify(p, &info), &info);
    }
}

static void test_paths(void **state) {
    (void)state;
    static const char *const good[] = {"a", "a/b", "checkpoints/step-1/manifest.json", "a b",
                                       "\xc3\xa4"};
    static const char *const bad[] = {
        "",       "/",   "/a", "a/",   "a//b", "..",    "../a",
        "a/../b", "a/.", ".a", "a/.b", "a\nb", "a\x7f", "1/2/3/4/5/6/7/8/9"};
    char longest[FT_PATH_MAX + 1];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(ft_path_ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(ft_path_ok(bad[i]));
    memset(longest, 'a', sizeof longest);
    longest[FT_PATH_MAX - 1] = '\0';
    assert_true(ft_path_ok(longest));
    longest[FT_PATH_MAX - 1] = 'a';
    longest[FT_PATH_MAX] = '\0';
    assert_false(ft_path_ok(longest));
}

#define SHA "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
#define FILE_A "\"files\":{\"a\":{\"sha256\":\"" SHA "\",\"bytes\":1}}"

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"", "JSON"},
        {"[]", "JSON"},
        {"{\"kind\":\"export\"," FILE_A "}", "version"},
        {"{\"version\":1,\"kind\":\"export\"," FILE_A "}", "version 1"},
        {"{\"version\":2," FILE_A "}", "kind"},
        {"{\"version\":2,\"kind\":\"other\"," FILE_A "}", "kind"},
        {"{\"version\":2,\"kind\":\"export\"}", "files"},
        {"{\"version\":2,\"kind\":\"export\",\"files\":{}}", "files"},
        {"{\"version\":2,\"kind\":\"export\",\"files\":{\"../a\":{\"sha256\":\"" SHA
         "\",\"bytes\":1}}}",
         "../a"},
        {"{\"version\":2,\"kind\":\"export\",\"files\":{\"a\":{\"sha256\":\"" SHA
         "0\",\"bytes\":1}}}",
         "64"},
        {"{\"version\":2,\"kind\":\"export\",\"files\":{\"a\":{\"sha256\":\"" SHA
         "\",\"bytes\":-1}}}",
         "bytes"},
        {"{\"version\":2,\"kind\":\"export\",\"files\":{\"a\":7}}", "bytes"},
        {"{\"version\":2,\"kind\":\"export\",\"run_id\":7," FILE_A "}", "run_id"},
        {"{\"version\":2,\"kind\":\"export\",\"method\":\"a\\u0000b\"," FILE_A "}", "method"},
        {"{\"version\":2,\"kind\":\"export\",\"hyperparameters\":[]," FILE_A "}",
         "hyperparameters"},
        {"{\"version\":2,\"kind\":\"export\",\"kernel_sets\":{}," FILE_A "}", "kernel_sets"},
        {"{\"version\":2,\"version\":2,\"kind\":\"export\"," FILE_A "}", "JSON"},
    };
    json_t *m;
    struct err_info info;
    const char *good = "{\"version\":2,\"kind\":\"export\"," FILE_A "}";
    assert_ok(ft_manifest_parse(good, strlen(good), &m, &info), &info);
    json_decref(m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(ft_manifest_parse(cases[i].text, strlen(cases[i].text), &m, &info),
                             ERR_OK);
        assert_null(m);
        if (!strstr(info.message, cases[i].named))
            fail_msg("%s: %s", cases[i].text, info.message);
    }
}

static void test_no_memory(void **state) {
    struct scratch *p = *state;
    struct err_info info;
    write_set(p);
    for (int write = 0; write < 2; write++)
        for (uint64_t n = 1;; n++) {
            int64_t live = mem_live_blocks();
            mem_fail_after(n, false);
            enum err e = write ? ft_manifest_write(p->fd, FT_MANIFEST_EXPORT, &origin, NULL, files,
                                                   FILES, &info)
                               : verify(p, &info);
            mem_fail_after(0, false);
            assert_int_equal(mem_live_blocks(), live);
            if (!e)
                break;
            assert_int_equal(e, ERR_NOMEM);
        }
    assert_ok(verify(p, &info), &info);
}

int main(void) {
    json_set_alloc_funcs(mem_alloc, mem_free);
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {TEST(test_round_trip), TEST(test_damage), TEST(test_paths),
                                       TEST(test_refused), TEST(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
