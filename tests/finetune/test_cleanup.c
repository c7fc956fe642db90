// SPDX-License-Identifier: Apache-2.0
// The bound of a data folder, and what goes of jobs that have ended.
#include "base/diskio.h"
#include "base/mem.h"
#include "finetune/cleanup.h"
#include "tests/finetune/home_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void open_home(struct home_fixture *w, uint64_t most, int64_t keep_days) {
    const struct ft_home_config cfg = {.max_bytes = most, .keep_jobs_s = keep_days * 86400};
    home_open(w, &cfg);
}

static int setup(void **state) {
    struct home_fixture *w = calloc(1, sizeof *w);
    assert_non_null(w);
    home_fixture_init(w, "cleanup");
    *state = w;
    return 0;
}

static int teardown(void **state) {
    home_fixture_fini(*state);
    free(*state);
    assert_int_equal(mem_live_blocks(), 0);
    return 0;
}

static enum err upload(struct home_fixture *w, size_t bytes, char id[FT_ID_MAX],
                       struct err_info *info) {
    static const char content[5000];
    assert_true(bytes <= sizeof content);
    return home_upload(&w->home, content, bytes, id, info);
}

static enum err create(struct home_fixture *w, const char *file, const char *more,
                       char id[FT_ID_MAX], struct err_info *info) {
    return home_job_create(&w->home, 0, file, more, id, info);
}

// ---- the bound

static uint64_t size_of(const struct home_fixture *w, const char *name) {
    struct stat st;
    return fstatat(w->home.dir.fd, name, &st, 0) ? 0 : (uint64_t)st.st_size;
}

static uint64_t database(const struct home_fixture *w) {
    return size_of(w, "graft.db") + size_of(w, "graft.db-wal");
}

// What a row takes is the database's affair, so the bound is set anew in front of what it is to
// meet.
static void leave_room(struct home_fixture *w, uint64_t bytes) {
    w->home.max_bytes = ft_usage(&w->home) + bytes;
}

static void test_bound(void **state) {
    struct home_fixture *w = *state;
    struct err_info info = {0};
    struct ft_upload u;
    char a[FT_ID_MAX], b[FT_ID_MAX], id[FT_ID_MAX];
    char text[96];
    open_home(w, 0, 0);
    assert_ok(upload(w, 1000, a, &info), &info);
    assert_ok(upload(w, 900, b, &info), &info);
    leave_room(w, 100); // the first piece of two
    snprintf(text, sizeof text, "%llu bytes and may hold %llu (--max-data-bytes)",
             (unsigned long long)w->home.max_bytes, (unsigned long long)w->home.max_bytes);
    assert_int_equal(upload(w, 200, id, &info), ERR_LIMIT);
    assert_string_equal(info.param, "file");
    assert_non_null(strstr(info.message, text));
    // A job's result is not refused.
    assert_ok(ft_upload_begin(&w->home, &u, &info), &info);
    u.own = true;
    for (int i = 0; i < 200; i++)
        assert_ok(ft_upload_write(&u, a, 20, &info), &info);
    ft_upload_abort(&u);
    // One that was refused or given up takes nothing.
    assert_ok(ft_upload_begin(&w->home, &u, &info), &info);
    assert_ok(ft_upload_write(&u, a, 20, &info), &info);
    ft_upload_abort(&u);
    ft_upload_abort(&u);
    assert_ok(upload(w, 100, id, &info), &info);
    leave_room(w, 0);
    // Rows take room, too: first in the database's log, as far as that has some.
    enum err e;
    int n = 0;
    do
        e = create(w, a, "", id, &info);
    while (!e && ++n < 2000);
    assert_int_equal(e, ERR_LIMIT);
    assert_int_equal(upload(w, 0, id, &info), ERR_LIMIT); // so do those of an empty file
    assert_string_equal(info.param, "file");
    leave_room(w, 0);
    // What jobs and adapters hold counts, too.
    char path[128];
    snprintf(path, sizeof path, "%s/jobs/extra", w->folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, path, 10), 10);
    close(fd);
    ft_usage_measure(&w->home);
    assert_int_equal(create(w, a, "", id, &info), ERR_LIMIT);
    assert_string_equal(info.param, "");
    uint64_t before = ft_usage(&w->home) - database(w);
    assert_int_equal(before, 2010);
    assert_ok(ft_file_delete(&w->home, 0, b, &info), &info);
    assert_int_equal(ft_usage(&w->home) - database(w), before - 900);
    leave_room(w, 800);
    assert_ok(upload(w, 800, b, &info), &info);
    assert_int_equal(upload(w, 100, id, &info), ERR_LIMIT);
    // The next process counts anew.
    ft_home_close(&w->home);
    open_home(w, 2000, 0);
    assert_int_equal(ft_usage(&w->home) - database(w), 1910);
    assert_int_equal(create(w, a, "", id, &info), ERR_LIMIT); // the database alone is larger
    ft_home_close(&w->home);
    open_home(w, 0, 0);
    assert_ok(upload(w, 5000, id, &info), &info);
}

// ---- jobs

static bool there(const struct home_fixture *w, const char *id, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "jobs/%s%s%s", id, *name ? "/" : "", name);
    return !faccessat(w->home.dir.fd, path, F_OK, 0);
}

static void put(const struct home_fixture *w, const char *id, const char *name, bool folder) {
    char path[128];
    snprintf(path, sizeof path, "jobs/%s%s%s", id, *name ? "/" : "", name);
    int fd = folder ? mkdirat(w->home.dir.fd, path, 0700)
                    : openat(w->home.dir.fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    if (!folder)
        close(fd);
}

static void fill(const struct home_fixture *w, const char *id) {
    put(w, id, "", true);
    put(w, id, "training.tokens", false);
    put(w, id, "validation.tokens", false);
    put(w, id, ".aside-0011", false);
    put(w, id, "metrics.csv", false);
    put(w, id, "checkpoints", true);
    put(w, id, "checkpoints/step-3", true);
    put(w, id, "checkpoints/step-3/COMPLETE", false);
}

static void end(struct home_fixture *w, const char *id, enum ft_job_state to) {
    struct err_info info = {0};
    const struct ft_job_move m = {
        .from = 1u << FT_JOB_VALIDATING, .to = to, .level = "info", .message = "x"};
    bool moved;
    assert_ok(ft_checkpoint_add(&w->home, id, 3, "ft:x", "{}", &info), &info);
    assert_ok(ft_job_move(&w->home, id, &m, &moved, &info), &info);
    assert_true(moved);
}

static void count(void *arg, const struct ft_checkpoint_row *c) {
    (void)c;
    ++*(int *)arg;
}

static int rows(struct home_fixture *w, const char *id) {
    struct err_info info = {0};
    int n = 0;
    bool more;
    const struct ft_page page = {.owner.any = true, .job = id, .after_seq = -1, .limit = 9};
    assert_ok(ft_checkpoint_list(&w->home, &page, count, &n, &more, &info), &info);
    return n;
}

static int fails(void *arg, struct diskio_call *c) {
    int *at = arg;
    (void)c;
    return --*at == 0 ? EIO : 0;
}

static void test_jobs(void **state) {
    struct home_fixture *w = *state;
    struct err_info info = {0};
    char file[FT_ID_MAX], done[FT_ID_MAX], kept[FT_ID_MAX], runs[FT_ID_MAX];
    open_home(w, 0, 2);
    assert_ok(upload(w, 100, file, &info), &info);
    assert_ok(create(w, file, "", done, &info), &info);
    assert_ok(create(w, file, ", \"graft\": {\"retention_class\": \"keep\"}", kept, &info), &info);
    assert_ok(create(w, file, "", runs, &info), &info);
    fill(w, done);
    fill(w, kept);
    fill(w, runs);
    put(w, "other", "", true);
    end(w, done, FT_JOB_SUCCEEDED);
    end(w, kept, FT_JOB_CANCELLED);
    assert_ok(ft_jobs_clean(&w->home, &info), &info);
    for (int i = 0; i < 2; i++) {
        const char *id = i ? kept : done;
        assert_false(there(w, id, "training.tokens") || there(w, id, "validation.tokens") ||
                     there(w, id, ".aside-0011"));
        assert_true(there(w, id, "metrics.csv") && there(w, id, "checkpoints/step-3/COMPLETE"));
        assert_int_equal(rows(w, id), 1);
    }
    assert_true(there(w, runs, "training.tokens") && there(w, runs, "validation.tokens"));
    // Two days later; also when it is cut short anywhere, and taken up again.
    clock_manual_advance(&w->clock, 2 * 86400 * 1000000000LL);
    for (int at = 1;; at++) {
        int left = at;
        const struct diskio_hook hook = {.before = fails, .arg = &left};
        diskio_set_hook(&hook);
        enum err e = ft_jobs_clean(&w->home, &info);
        diskio_set_hook(NULL);
        assert_true(rows(w, done) == 0 || there(w, done, "checkpoints/step-3/COMPLETE"));
        if (!e)
            break;
    }
    assert_false(there(w, done, ""));
    assert_int_equal(rows(w, done), 0);
    assert_true(there(w, kept, "checkpoints/step-3/COMPLETE") && there(w, "other", ""));
    assert_int_equal(rows(w, kept), 1);
    assert_true(there(w, runs, "training.tokens"));
    struct ft_job j;
    assert_ok(ft_job_get(&w->home, (struct ft_job_owner){.any = true}, done, &j, &info), &info);
    ft_job_fini(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs, setup, teardown),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
