// SPDX-License-Identifier: Apache-2.0
// A full disk, played by the hook under durable writes: the reserve is given up for what deletes
// and changes states, new content is refused, jobs wait with a reason and go on, and are told so
// once.
#include "base/diskio.h"
#include "base/mem.h"
#include "finetune/job_control.h"
#include "tests/finetune/home_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wait.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct world {
    struct home_fixture data;
    struct diskio_hook hook;
    _Atomic bool full, spent; // no room; not even what the reserve gave
    _Atomic uint64_t room;    // what the file system says it has free
    // the runner
    _Atomic(struct ft_control *) control;
    _Atomic int n_started, n_validated;
    _Atomic int damaged;  // so many starts find what validation made damaged
    _Atomic bool no_room; // what the job writes finds the disk full
};

// Content needs room; a commit has that which the reserve gave.
static int refuse(void *arg, struct diskio_call *c) {
    struct world *w = arg;
    bool takes = c->op == DISKIO_CREATE || c->op == DISKIO_WRITE;
    if (!w->full || !(takes || c->op == DISKIO_COMMIT))
        return 0;
    bool given = faccessat(w->data.home.dir.fd, "reserve", F_OK, 0) != 0;
    return takes || !given || w->spent ? ENOSPC : 0;
}

static uint64_t room(void *arg) {
    struct world *w = arg;
    return w->room;
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof *w);
    home_fixture_init(&w->data, "room");
    home_open(&w->data, NULL);
    w->hook = (struct diskio_hook){.before = refuse, .room = room, .arg = w};
    diskio_set_hook(&w->hook);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    ft_control_stop(w->control);
    diskio_set_hook(NULL);
    home_fixture_fini(&w->data);
    free(w);
    return 0;
}

static enum err upload(struct world *w, char id[FT_ID_MAX], struct err_info *info) {
    return home_upload(&w->data.home, "{}\n", 3, id, info);
}

static enum err create(struct world *w, const char *file, char id[FT_ID_MAX],
                       struct err_info *info) {
    return home_job_create(&w->data.home, 0, file, "", id, info);
}

static struct ft_job get(struct world *w, const char *id) {
    return home_job(&w->data.home, id);
}

static bool has_reserve(const struct world *w) {
    return !faccessat(w->data.home.dir.fd, "reserve", F_OK, 0);
}

static void test_reserve(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    struct ft_job j;
    char a[FT_ID_MAX], b[FT_ID_MAX], job[FT_ID_MAX], other[FT_ID_MAX];
    assert_ok(upload(w, a, &info), &info);
    assert_ok(upload(w, b, &info), &info);
    assert_ok(create(w, b, job, &info), &info);
    assert_true(has_reserve(w));
    w->full = true;
    // Content is refused, and the reserve stays for more important things.
    assert_int_equal(upload(w, other, &info), ERR_DISK_FULL);
    assert_true(has_reserve(w));
    assert_ok(ft_file_delete(&w->data.home, 0, a, &info), &info);
    assert_false(has_reserve(w));
    assert_ok(ft_job_act(&w->data.home, (struct ft_job_owner){.any = true}, job, FT_JOB_CANCEL, &j,
                         &info),
              &info);
    assert_int_equal(j.state, FT_JOB_CANCELLED);
    ft_job_fini(&j);
    assert_int_equal(upload(w, other, &info), ERR_DISK_FULL);
    assert_non_null(strstr(info.message, "delete files"));
    assert_int_equal(create(w, b, other, &info), ERR_DISK_FULL);
    // The next process starts without it.
    ft_home_close(&w->data.home);
    home_open(&w->data, NULL);
    assert_int_equal(get(w, job).state, FT_JOB_CANCELLED);
    assert_false(has_reserve(w));
    // When not even that is left, the answer says so, and nothing is half done.
    w->spent = true;
    assert_int_equal(ft_file_delete(&w->data.home, 0, b, &info), ERR_DISK_FULL);
    struct ft_file f;
    assert_ok(ft_file_get(&w->data.home, 0, b, &f, &info), &info);
    w->full = w->spent = false;
    assert_ok(ft_home_room(&w->data.home, &info), &info);
    assert_true(has_reserve(w));
    assert_ok(upload(w, other, &info), &info);
    assert_ok(ft_file_delete(&w->data.home, 0, b, &info), &info);
}

// What a job publishes is taken back although the disk is full: a version that was never promoted
// must not keep its owner from cancelling the job.
static void test_publication_is_taken_back(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char file[FT_ID_MAX], job[FT_ID_MAX];
    bool moved;
    const struct ft_job_move publishing = {
        .from = 1u << FT_JOB_VALIDATING, .to = FT_JOB_PUBLISHING, .level = "info", .message = "m"};
    assert_ok(upload(w, file, &info), &info);
    assert_ok(create(w, file, job, &info), &info);
    assert_ok(ft_job_move(&w->data.home, job, &publishing, &moved, &info), &info);
    assert_ok(ft_job_publish(&w->data.home, job, 7, &moved, &info), &info);
    assert_true(moved);
    assert_int_equal(get(w, job).version, 7);
    w->full = true;
    assert_ok(ft_job_publish(&w->data.home, job, 0, &moved, &info), &info);
    assert_int_equal(get(w, job).version, 0);
}

// An upload that is under way takes nothing of what the reserve gave.
static void test_upload_under_way(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    struct ft_upload u;
    assert_ok(ft_upload_begin(&w->data.home, &u, &info), &info);
    assert_ok(ft_upload_write(&u, "{}\n", 3, &info), &info);
    w->full = true;
    assert_true(reserve_give(&w->data.home.reserve));
    assert_int_equal(ft_upload_write(&u, "{}\n", 3, &info), ERR_DISK_FULL);
    ft_upload_abort(&u);
    w->full = false;
}

// ---- jobs

static enum err validate(void *arg, const struct ft_job *job, bool (*cancelled)(void *arg),
                         void *cancelled_arg, struct ft_job_failure *why, struct err_info *info) {
    struct world *w = arg;
    (void)job, (void)cancelled, (void)cancelled_arg, (void)why;
    w->n_validated++;
    return w->no_room ? err_set(info, ERR_DISK_FULL, NULL, "cannot write training.tokens") : ERR_OK;
}

static enum err start(void *arg, const struct ft_job *job, struct err_info *info) {
    struct world *w = arg;
    struct ft_job_end end = {.how = FT_END_SUCCEEDED, .retry = true};
    (void)job;
    w->n_started++;
    if (w->damaged > 0) {
        w->damaged--;
        return err_set(info, ERR_FORMAT, NULL, "its end is missing");
    }
    if (w->no_room) {
        end.how = FT_END_FAILED;
        strcpy(end.error_code, "disk_full");
        strcpy(end.error_message, "cannot write optimizer.safetensors: No space left on device");
    }
    while (!w->control) // the thread may be faster than the call that makes it
        wait_nap();
    ft_control_ended(w->control, &end);
    return ERR_OK;
}

static void stop(void *arg, enum ft_stop why) {
    (void)arg, (void)why;
}

static void wait_reason(struct world *w, const char *id, enum ft_job_state s, const char *reason) {
    for (struct wait wait = {0}; wait_more(&wait);) {
        struct ft_job j = get(w, id);
        if (j.state == s && !strncmp(j.reason, reason, strlen(reason)))
            return;
    }
    struct ft_job j = get(w, id);
    fail_msg("%s is %s: %s", id, ft_job_state_text(j.state), j.reason);
}

struct told {
    int disk, all;
};

static void count(void *arg, const struct ft_event *e) {
    struct told *t = arg;
    t->all++;
    t->disk += strstr(e->message, "disk_full") != NULL;
}

static struct told events(struct world *w, const char *id) {
    struct told t = {0};
    struct err_info info = {0};
    bool more;
    const struct ft_page page = {.owner.any = true, .job = id, .limit = 100};
    assert_ok(ft_event_list(&w->data.home, &page, count, &t, &more, NULL, &info), &info);
    return t;
}

static void some_turns(struct world *w) { // of the control thread
    for (int i = 0; i < 20; i++, wait_nap())
        ft_control_wake(w->control);
}

static void advance(struct world *w, int64_t seconds) {
    // The thread reads it while it stands still.
    ft_control_stop(w->control);
    w->control = NULL;
    clock_manual_advance(&w->data.clock, seconds * 1000000000);
}

static void begin(struct world *w) {
    struct err_info info = {0};
    const struct ft_job_runner runner = {
        .validate = validate, .start = start, .stop = stop, .arg = w};
    struct ft_control *control;
    assert_ok(ft_control_start(&w->data.home, &runner, &control, &info), &info);
    w->control = control;
}

static void test_job_waits(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char file[FT_ID_MAX], first[FT_ID_MAX], second[FT_ID_MAX];
    assert_ok(upload(w, file, &info), &info);
    assert_ok(create(w, file, first, &info), &info);
    assert_ok(create(w, file, second, &info), &info);
    w->no_room = true;
    begin(w);
    // It cannot even be checked: it waits where it is, and says why.
    wait_reason(w, first, FT_JOB_VALIDATING, "disk_full: ");
    wait_reason(w, second, FT_JOB_VALIDATING, "disk_full: ");
    some_turns(w);
    assert_int_equal(w->n_validated, 1);
    assert_int_equal(events(w, first).disk, 1);
    w->no_room = false;
    advance(w, 2);
    begin(w);
    wait_reason(w, first, FT_JOB_SUCCEEDED, "");
    wait_reason(w, second, FT_JOB_SUCCEEDED, "");
    assert_string_equal(get(w, second).reason, "");
}

static void test_run_waits(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char file[FT_ID_MAX], first[FT_ID_MAX];
    assert_ok(upload(w, file, &info), &info);
    assert_ok(create(w, file, first, &info), &info);
    begin(w);
    wait_reason(w, first, FT_JOB_SUCCEEDED, "");
    advance(w, 1);
    char id[FT_ID_MAX];
    assert_ok(create(w, file, id, &info), &info);
    // Its files are valid; then the disk is full whenever it runs.
    struct ft_job_move queued = {
        .from = 1u << FT_JOB_VALIDATING, .to = FT_JOB_QUEUED, .level = "info", .message = "valid"};
    bool moved;
    assert_ok(ft_job_move(&w->data.home, id, &queued, &moved, &info), &info);
    w->no_room = true;
    w->n_started = 0;
    for (int i = 0; i < FT_JOB_ATTEMPTS_MAX + 2; i++) {
        begin(w);
        wait_reason(w, id, FT_JOB_QUEUED, "disk_full: ");
        some_turns(w);
        advance(w, 60);
    }
    // Never the job's fault, and never more than once a turn.
    assert_int_equal(get(w, id).attempts, 0);
    assert_in_range(w->n_started, 1, FT_JOB_ATTEMPTS_MAX + 2);
    w->no_room = false;
    begin(w);
    wait_reason(w, id, FT_JOB_SUCCEEDED, "");
}

// Much more room than there was: they go on at once. A little more is what anybody's delete gives.
static void test_room_is_made(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char file[FT_ID_MAX], id[FT_ID_MAX];
    assert_ok(upload(w, file, &info), &info);
    assert_ok(create(w, file, id, &info), &info);
    w->no_room = true;
    begin(w);
    wait_reason(w, id, FT_JOB_VALIDATING, "disk_full: ");
    w->no_room = false;
    w->room = (8 << 20) - 1;
    some_turns(w);
    assert_int_equal(w->n_validated, 1);
    w->room = 8 << 20;
    wait_reason(w, id, FT_JOB_SUCCEEDED, "");
    assert_int_equal(w->n_validated, 2);
}

// Without room nothing is started at all.
static void test_nothing_is_begun(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char file[FT_ID_MAX], id[FT_ID_MAX];
    assert_ok(upload(w, file, &info), &info);
    assert_ok(create(w, file, id, &info), &info);
    w->full = true;
    assert_true(reserve_give(&w->data.home.reserve));
    begin(w);
    wait_reason(w, id, FT_JOB_VALIDATING, "disk_full: ");
    some_turns(w);
    assert_int_equal(w->n_validated, 0);
    w->full = false;
    advance(w, 2);
    begin(w);
    wait_reason(w, id, FT_JOB_SUCCEEDED, "");
}

// What was made of its files is damaged: they are read again, but not for ever.
static void test_reads_again(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char file[FT_ID_MAX], id[FT_ID_MAX];
    assert_ok(upload(w, file, &info), &info);
    for (int damaged = 1; damaged <= FT_JOB_ATTEMPTS_MAX; damaged += FT_JOB_ATTEMPTS_MAX - 1) {
        bool fails = damaged == FT_JOB_ATTEMPTS_MAX;
        w->n_validated = 0;
        w->damaged = damaged;
        assert_ok(create(w, file, id, &info), &info);
        begin(w);
        wait_reason(w, id, fails ? FT_JOB_FAILED : FT_JOB_SUCCEEDED, "");
        assert_int_equal(w->n_validated, fails ? damaged : damaged + 1);
        if (fails)
            assert_string_equal(get(w, id).error_message, "its end is missing");
        advance(w, 1);
    }
}

// Content that is not what was stored, or not there: the file says so from then on.
static void test_compare(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    struct ft_file f;
    char id[FT_ID_MAX], gone[FT_ID_MAX], why[FT_DAMAGE_MAX];
    uint8_t digest[SHA256_BYTES];
    assert_ok(upload(w, id, &info), &info);
    assert_ok(upload(w, gone, &info), &info);
    assert_int_equal(sha256("{}\n", 3, digest), ERR_OK);
    assert_ok(ft_file_compare(&w->data.home, id, digest, why, &info), &info);
    assert_string_equal(why, "");
    assert_ok(ft_file_get(&w->data.home, 0, id, &f, &info), &info);
    assert_false(f.error);
    digest[31] ^= 1;
    w->full = true; // also then
    assert_ok(ft_file_compare(&w->data.home, id, digest, why, &info), &info);
    w->full = false;
    assert_non_null(strstr(why, "damaged"));
    assert_ok(ft_file_get(&w->data.home, 0, id, &f, &info), &info);
    assert_true(f.error);
    assert_string_equal(f.status_details, why);
    // One that could not be read: only what its entry shows.
    assert_ok(ft_file_compare(&w->data.home, gone, NULL, why, &info), &info);
    assert_string_equal(why, "");
    int fd = openat(w->data.home.files, gone, O_WRONLY | O_CLOEXEC);
    assert_int_equal(ftruncate(fd, 1), 0);
    close(fd);
    assert_ok(ft_file_compare(&w->data.home, gone, NULL, why, &info), &info);
    assert_non_null(strstr(why, "size"));
    assert_int_equal(unlinkat(w->data.home.files, gone, 0), 0);
    assert_int_equal(mkfifoat(w->data.home.files, gone, 0600), 0);
    assert_ok(ft_file_compare(&w->data.home, gone, NULL, why, &info), &info);
    assert_non_null(strstr(why, "size"));
    assert_int_equal(unlinkat(w->data.home.files, gone, 0), 0);
    assert_ok(ft_file_compare(&w->data.home, gone, NULL, why, &info), &info);
    assert_non_null(strstr(why, "missing"));
    assert_ok(ft_file_compare(&w->data.home, "file-none", NULL, why, &info),
              &info); // deleted meanwhile
    assert_string_equal(why, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reserve, setup, teardown),
        cmocka_unit_test_setup_teardown(test_publication_is_taken_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_upload_under_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_job_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_room_is_made, setup, teardown),
        cmocka_unit_test_setup_teardown(test_run_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_is_begun, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reads_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_compare, setup, teardown),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
