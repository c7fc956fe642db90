// SPDX-License-Identifier: Apache-2.0
// Content digests against Python's hashlib (tests/golden/models/tensors.txt), in steps of any size,
// and the cache: what it remembers, and when it must not be believed.
#include "base/mem.h"
#include "model/digest.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODELS "tests/golden/models/"

static const int64_t LATER = (int64_t)4000000000 * 1000000000; // long after any file's time

static struct mdl_source *open_ok(const char *path) {
    struct mdl_source *s = NULL;
    struct err_info info = {.code = ERR_OK};
    if (mdl_source_open(path, &s, &info))
        fail_msg("%s: %s", path, info.message);
    return s;
}

static struct mdl_digest *begin(const char *model, const char *cache, const struct clock *clock) {
    struct mdl_digest *d = NULL;
    struct err_info info;
    struct mdl_source *s = open_ok(model);
    assert_int_equal(mdl_digest_create(s, cache, &d, &info), ERR_OK);
    if (clock)
        mdl_digest_set_clock(d, clock);
    mdl_source_close(s); // a digest stands on its own
    return d;
}

static int run(struct mdl_digest *d, size_t step) {
    struct err_info info;
    bool done = false;
    int n = 0;
    uint64_t at = 0, before, total;
    for (; !done; n++) {
        before = at;
        assert_int_equal(mdl_digest_step(d, step, &done, &info), ERR_OK);
        mdl_digest_progress(d, &at, &total);
        assert_true(at >= before && at <= total);
    }
    assert_int_equal(at, total);
    return n;
}

static void expect_digest(const char *model, const char *cache, const struct clock *clock,
                          const char *want) {
    struct mdl_digest *d = begin(model, cache, clock);
    run(d, 1 << 20);
    assert_string_equal(mdl_digest_hex(d), want);
    mdl_digest_destroy(d);
}

// The golden digest of a model.
static void golden(const char *name, char hex[65]) {
    char line[256], found[64];
    FILE *f = fopen(MODELS "tensors.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "model ", 6) == 0 && sscanf(line + 6, "%63s %64s", found, hex) == 2 &&
            strcmp(found, name) == 0)
            break;
    assert_string_equal(found, name);
    fclose(f);
}

static void test_known(void **state) {
    (void)state;
    static const char *const names[] = {"f32.gguf", "q4_1.gguf", "hf-f32", "hf-llama3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char hex[65], path[DISK_PATH];
        golden(names[i], hex);
        expect_digest(disk_join(path, MODELS, names[i]), NULL, NULL, hex);
        struct mdl_digest *d = begin(path, NULL, NULL);
        assert_true(run(d, 1) > 1); // a chunk at a time
        assert_string_equal(mdl_digest_hex(d), hex);
        mdl_digest_destroy(d);
    }
}

// The one entry of a cache folder.
static void entry(const char *cache, char path[DISK_PATH]) {
    DIR *d = opendir(cache);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') {
            disk_join(path, cache, e->d_name);
            n++;
        }
    closedir(d);
    assert_int_equal(n, 1);
}

static void test_cache(void **state) {
    (void)state;
    char dir[DISK_PATH], cache[DISK_PATH], model[DISK_PATH], path[DISK_PATH], hex[65], other[65];
    struct clock_manual clock;
    clock_manual_init(&clock, 0, LATER);
    temp_folder(dir, "model");
    temp_folder(cache, "model");
    disk_copy(MODELS "f32.gguf", disk_join(model, dir, "m.gguf"));
    golden("f32.gguf", hex);
    golden("f16.gguf", other);
    expect_digest(model, cache, &clock.clock, hex);
    entry(cache, path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);

    // That the entry is used shows when it lies.
    disk_edit(path, hex, other);
    expect_digest(model, cache, &clock.clock, other);
    // Another modification time, another content: it is not believed any more, and replaced.
    const struct timespec times[2] = {{0, UTIME_OMIT}, {1000000000, 5}};
    assert_int_equal(utimensat(AT_FDCWD, model, times, 0), 0);
    expect_digest(model, cache, &clock.clock, hex);
    disk_copy(MODELS "f16.gguf", model);
    expect_digest(model, cache, &clock.clock, other);
    entry(cache, path);

    // Entries that no digest wrote.
    size_t n;
    char *good = disk_read(path, &n);
    for (size_t cut = 0; cut < n; cut += 9) {
        disk_write(path, good, cut);
        expect_digest(model, cache, &clock.clock, other);
    }
    good[n - 2] = 'g';
    disk_write(path, good, n);
    expect_digest(model, cache, &clock.clock, other);
    free(good);
    temp_remove(dir);
    temp_remove(cache);
}

static void test_cache_not_used(void **state) {
    (void)state;
    char dir[DISK_PATH], cache[DISK_PATH], model[DISK_PATH], path[DISK_PATH], hex[65];
    struct clock_manual clock;
    struct stat st;
    temp_folder(dir, "model");
    temp_folder(cache, "model");
    disk_copy(MODELS "f32.gguf", disk_join(model, dir, "m.gguf"));
    golden("f32.gguf", hex);
    // Changed a second ago: it could change again within the same time stamp.
    assert_int_equal(stat(model, &st), 0);
    clock_manual_init(&clock, 0, ((int64_t)st.st_ctim.tv_sec + 1) * 1000000000);
    expect_digest(model, cache, &clock.clock, hex);
    assert_int_equal(rmdir(cache), 0); // is empty
    // A cache that is not there, or a file.
    clock_manual_init(&clock, 0, LATER);
    expect_digest(model, cache, &clock.clock, hex);
    expect_digest(model, model, &clock.clock, hex);
    // A link in the place of an entry is neither followed nor written through.
    temp_folder(cache, "model");
    expect_digest(model, cache, &clock.clock, hex);
    entry(cache, path);
    char aside[DISK_PATH];
    disk_copy(path, disk_join(aside, dir, "entry"));
    disk_edit(aside, hex, "0000000000000000000000000000000000000000000000000000000000000000");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(aside, path), 0);
    expect_digest(model, cache, &clock.clock, hex);
    size_t n;
    char *p = disk_read(aside, &n);
    assert_non_null(strstr(p, "00000000000000000000000000000000"));
    free(p);
    temp_remove(dir);
    temp_remove(cache);
}

static void test_changed_meanwhile(void **state) {
    (void)state;
    char dir[DISK_PATH], model[DISK_PATH];
    struct err_info info;
    bool done = false;
    temp_folder(dir, "model");
    disk_copy(MODELS "q4_1.gguf", disk_join(model, dir, "m.gguf"));
    struct mdl_digest *d = begin(model, NULL, NULL);
    assert_int_equal(mdl_digest_step(d, 1, &done, &info), ERR_OK);
    assert_false(done);
    FILE *f = fopen(model, "ab");
    assert_non_null(f);
    fputc('x', f);
    fclose(f);
    assert_int_equal(mdl_digest_step(d, 1 << 20, &done, &info), ERR_IO);
    assert_non_null(strstr(info.message, "the file changed"));
    mdl_digest_destroy(d);
    d = begin(model, NULL, NULL);
    assert_int_equal(truncate(model, 100), 0);
    assert_int_equal(mdl_digest_step(d, 1 << 20, &done, &info), ERR_IO);
    assert_non_null(strstr(info.message, "has become shorter"));
    mdl_digest_destroy(d);
    temp_remove(dir);
}

static void test_allocation_failures(void **state) {
    (void)state;
    struct mdl_source *s = open_ok(MODELS "hf-f32");
    int64_t live = mem_live_blocks();
    enum err e = ERR_NOMEM;
    uint64_t nth = 1;
    for (; e; nth++) {
        struct mdl_digest *d = NULL;
        struct err_info info;
        bool done = false;
        mem_fail_after(nth, false);
        e = mdl_digest_create(s, "/nowhere", &d, &info);
        while (!e && !done)
            e = mdl_digest_step(d, 1, &done, &info);
        mem_fail_after(0, false);
        assert_true(e == ERR_OK || e == ERR_NOMEM);
        mdl_digest_destroy(d);
        assert_int_equal(mem_live_blocks(), live);
    }
    assert_in_range(nth, 10, 50);
    mdl_source_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_cache_not_used),
        cmocka_unit_test(test_changed_meanwhile),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
