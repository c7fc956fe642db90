// SPDX-License-Identifier: Apache-2.0
// The data folder after a power loss at every point of uploads, a delete, a job and its result; and
// with each call to the disk failing once.
#include "base/diskio.h"
#include "base/mem.h"
#include "tests/base/disk_replay.h"
#include "tests/finetune/home_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int setup(void **state) {
    struct home_fixture *w = calloc(1, sizeof *w);
    assert_non_null(w);
    home_fixture_init(w, "storage");
    *state = w;
    return 0;
}

static int teardown(void **state) {
    home_fixture_fini(*state);
    free(*state);
    return 0;
}

// What a file of that name holds.
static size_t content_of(const char *filename, char out[64]) {
    return (size_t)snprintf(out, 64, "{\"name\":\"%s\"}\n{\"second\":\"line\"}\n", filename);
}

static enum err begin(struct home_fixture *w, const char *filename, struct ft_upload *u,
                      struct err_info *info) {
    char text[64];
    size_t n = content_of(filename, text);
    enum err e = ft_upload_begin(&w->home, u, info);
    if (!e)
        e = ft_upload_write(u, text, n / 2, info);
    if (!e)
        e = ft_upload_write(u, text + n / 2, n - n / 2, info);
    if (e)
        ft_upload_abort(u);
    return e;
}

static enum err upload(struct home_fixture *w, const char *filename, const char *job,
                       char id[FT_ID_MAX], struct err_info *info) {
    struct ft_upload u;
    struct ft_file f = {.purpose = "fine-tune"};
    snprintf(f.filename, sizeof f.filename, "%s", filename);
    enum err e = begin(w, filename, &u, info);
    if (!e)
        e = job ? ft_upload_commit_result(&u, &f, job, info) : ft_upload_commit(&u, &f, info);
    if (!e)
        strcpy(id, f.id);
    return e;
}

// ---- power loss

enum { A_KEPT = 1, B_KEPT, A_DELETED, JOB_MADE, STEP_TOLD, RESULT_KEPT };

struct seen {
    const char *path;
    int n, a, b, result;
    char result_id[FT_ID_MAX];
    char bad[300];
};

static void look(void *arg, const struct ft_file *f) {
    struct seen *s = arg;
    char name[FT_ID_MAX + 8], want[64];
    size_t n, expected = content_of(f->filename, want);
    snprintf(name, sizeof name, "files/%s", f->id);
    char *found = replay_read(s->path, name, &n);
    if (f->error || !found || n != expected || memcmp(found, want, n) != 0)
        snprintf(s->bad, sizeof s->bad, "%s is %s", f->filename, found ? "damaged" : "missing");
    free(found);
    s->n++;
    s->a += !strcmp(f->filename, "a.jsonl");
    s->b += !strcmp(f->filename, "b.jsonl");
    if (!strcmp(f->filename, "metrics.csv")) {
        s->result++;
        strcpy(s->result_id, f->id);
    }
}

struct told {
    int steps, all;
};

static void tell(void *arg, const struct ft_event *e) {
    struct told *t = arg;
    t->all++;
    t->steps += !strcmp(e->type, "metrics");
}

struct jobs {
    int n;
    struct ft_job last;
};

static void count(void *arg, const struct ft_job *j) {
    struct jobs *x = arg;
    x->n++;
    x->last = *j;
    x->last.request = x->last.hyper = NULL;
}

static const char *check_job(struct home_fixture *w, const struct seen *s, int mark) {
    struct jobs jobs = {0};
    struct told told = {0};
    struct err_info info = {0};
    bool more;
    const struct ft_job_query q = {.owner.any = true, .limit = 10};
    assert_ok(ft_job_list(&w->home, &q, count, &jobs, &more, &info), &info);
    if (!jobs.n)
        return mark >= JOB_MADE ? "the job is lost" : NULL;
    const struct ft_page page = {.owner.any = true, .job = jobs.last.id, .limit = 100};
    assert_ok(ft_event_list(&w->home, &page, tell, &told, &more, NULL, &info), &info);
    if (told.all < 2 || told.steps != (jobs.last.step == 1))
        return "the job and its events do not agree";
    if (mark >= STEP_TOLD && !told.steps)
        return "a step is lost";
    if (jobs.last.n_results != s->result ||
        (s->result && strcmp(jobs.last.results[0], s->result_id) != 0))
        return "a result file is not the job's";
    return mark >= RESULT_KEPT && !s->result ? "the result is lost" : NULL;
}

static bool recovers(void *arg, const char *path, int mark, char why[REPLAY_WHY]) {
    struct home_fixture w = {0};
    struct err_info info = {0};
    struct seen s = {.path = path};
    bool more;
    (void)arg;
    clock_manual_init(&w.clock, 1, 1700000000LL * 1000000000);
    if (home_try_open(&w, path, NULL, &info)) {
        snprintf(why, REPLAY_WHY, "it does not open: %.400s", info.message);
        return false;
    }
    const struct ft_file_query q = {.limit = 10};
    assert_ok(ft_file_list(&w.home, &q, look, &s, &more, &info), &info);
    const char *bad = s.bad[0]                                               ? s.bad
                      : (mark == A_KEPT && !s.a) || (mark >= B_KEPT && !s.b) ? "a file is lost"
                      : mark >= A_DELETED && s.a                       ? "a deleted file is back"
                      : disk_entries(w.home.files, ".") != (size_t)s.n ? "something is left over"
                                                                       : check_job(&w, &s, mark);
    if (bad)
        snprintf(why, REPLAY_WHY, "%s", bad);
    ft_home_close(&w.home);
    return !bad;
}

static void test_power_loss(void **state) {
    struct home_fixture *w = *state;
    struct err_info info = {0};
    struct ft_upload never, dropped;
    char a[FT_ID_MAX], b[FT_ID_MAX], job[FT_ID_MAX], result[FT_ID_MAX];
    struct replay *r = replay_begin(w->folder);
    assert_ok(home_try_open(w, w->folder, NULL, &info), &info);
    assert_ok(upload(w, "a.jsonl", NULL, a, &info), &info);
    replay_mark(r, A_KEPT);
    assert_ok(begin(w, "c.jsonl", &never, &info), &info);
    assert_ok(begin(w, "d.jsonl", &dropped, &info), &info);
    assert_ok(upload(w, "b.jsonl", NULL, b, &info), &info);
    replay_mark(r, B_KEPT);
    ft_upload_abort(&dropped);
    assert_ok(ft_file_delete(&w->home, 0, a, &info), &info);
    replay_mark(r, A_DELETED);
    assert_ok(home_job_create(&w->home, 0, b, "", job, &info), &info);
    replay_mark(r, JOB_MADE);
    const struct ft_job_record step = {.progress = {1, 9, 5, -1, NULL, false, true, false},
                                       .level = "info",
                                       .type = "metrics",
                                       .message = "Step 1/9"};
    assert_ok(ft_job_record(&w->home, job, &step, &info), &info);
    replay_mark(r, STEP_TOLD);
    assert_ok(upload(w, "metrics.csv", job, result, &info), &info);
    replay_mark(r, RESULT_KEPT);
    replay_end(r);
    ft_upload_abort(&never);
    struct replay_result x = replay_run(r, 24, recovers, w);
    replay_free(r);
    assert_true(x.prefixes > 30 && x.states > 300);
    if (x.bad)
        fail_msg("%d of %d states: %s", x.bad, x.states, x.first);
}

// ---- errors

struct fault {
    int at, n, with;
    bool only_commits;
};

static int inject(void *arg, struct diskio_call *c) {
    struct fault *f = arg;
    if (f->only_commits && c->op != DISKIO_COMMIT)
        return 0;
    return ++f->n == f->at ? f->with : 0;
}

static int listed(struct home_fixture *w) {
    struct seen s = {.path = w->folder};
    struct err_info info = {0};
    bool more;
    const struct ft_file_query q = {.limit = 100};
    assert_ok(ft_file_list(&w->home, &q, look, &s, &more, &info), &info);
    assert_string_equal(s.bad, "");
    return s.n;
}

static void test_errors(void **state) {
    struct home_fixture *w = *state;
    static const int errors[] = {EIO, ENOSPC};
    struct err_info info = {0};
    char id[FT_ID_MAX];
    assert_ok(home_try_open(w, w->folder, NULL, &info), &info);
    int there = 0;
    for (size_t i = 0; i < 2; i++)
        for (int at = 1;; at++) {
            struct fault f = {.at = at, .with = errors[i]};
            const struct diskio_hook hook = {.before = inject, .arg = &f};
            diskio_set_hook(&hook);
            enum err e = upload(w, "a.jsonl", NULL, id, &info);
            diskio_set_hook(NULL);
            there += !e;
            assert_int_equal(listed(w), there);
            assert_int_equal(disk_entries(w->home.files, "."), there);
            if (!e) {
                assert_true(f.n < at && f.n >= 6);
                break;
            }
            assert_int_equal(e, errors[i] == EIO ? ERR_IO : ERR_DISK_FULL);
        }
    // What was kept is there for the next process.
    ft_home_close(&w->home);
    assert_ok(home_try_open(w, w->folder, NULL, &info), &info);
    assert_int_equal(listed(w), there);
}

// A start on a disk that refuses: an error, never a data folder that is half opened; and then well.
static void test_start(void **state) {
    struct home_fixture *w = *state;
    struct err_info info = {0};
    for (int at = 1;; at++) {
        struct fault f = {.at = at, .with = EIO};
        const struct diskio_hook hook = {.before = inject, .arg = &f};
        diskio_set_hook(&hook);
        enum err e = home_try_open(w, w->folder, NULL, &info);
        diskio_set_hook(NULL);
        if (!e)
            break;
        assert_int_equal(e, ERR_IO);
        assert_null(w->home.db);
        assert_true(at < 100);
    }
    ft_home_close(&w->home);
    assert_ok(home_try_open(w, w->folder, NULL, &info), &info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_power_loss, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_start, setup, teardown),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
