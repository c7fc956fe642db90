// SPDX-License-Identifier: Apache-2.0
// Events and checkpoints of jobs: pages, the event stream, its end when the server stops; and which
// routes there are below jobs and files.
#include "finetune/job_log.h"
#include "tests/gateway/jobs_support.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void add_event(struct df *d, const char *id, const char *text, const char *data) {
    struct err_info info;
    assert_int_equal(
        ft_event_add(&d->home, id, "info", data ? "metrics" : "message", text, data, &info),
        ERR_OK);
}

static void test_events(void **state) {
    struct df *d = *state;
    struct err_info info;
    char id[FT_ID_MAX], target[192];
    js_create(d, "", id);
    add_event(d, id, "third", NULL);
    add_event(d, id, "fourth", "{\"step\":1}");
    snprintf(target, sizeof target, JOBS "/%s/events?limit=2", id);
    json_t *o = js_get(d, target, 200), *data = json_object_get(o, "data");
    const json_t *newest = json_array_get(data, 0), *second = json_array_get(data, 1);
    assert_true(json_is_true(json_object_get(o, "has_more")));
    assert_string_equal(js_str(newest, "object"), "fine_tuning.job.event");
    assert_string_equal(js_str(newest, "message"), "fourth");
    assert_string_equal(js_str(newest, "type"), "metrics");
    assert_string_equal(js_str(newest, "level"), "info");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(newest, "data"), "step")),
                     1);
    assert_true(json_is_null(json_object_get(second, "data")));
    snprintf(target, sizeof target, JOBS "/%s/events?after=%s", id, js_str(second, "id"));
    json_decref(o);
    o = js_get(d, target, 200);
    assert_int_equal(json_array_size(json_object_get(o, "data")), 2);
    assert_true(json_is_false(json_object_get(o, "has_more")));
    json_decref(o);
    snprintf(target, sizeof target, JOBS "/%s/events?after=ftevent-none", id);
    json_decref(js_get(d, target, 404));
    snprintf(target, sizeof target, JOBS "/%s/events?stream=maybe", id);
    json_decref(js_get(d, target, 400));
    json_decref(js_get(d, JOBS "/ftjob-none/events", 404));
    json_decref(js_get(d, JOBS "/ftjob-none/events?stream=true", 404));
    json_decref(js_get(d, JOBS "/ftjob-none/checkpoints", 404));
    for (int64_t step = 1; step <= 3; step++)
        assert_int_equal(ft_checkpoint_add(&d->home, id, step, "ft:x", "{\"step\":1}", &info),
                         ERR_OK);
    snprintf(target, sizeof target, JOBS "/%s/checkpoints?limit=2", id);
    o = js_get(d, target, 200);
    data = json_array_get(json_object_get(o, "data"), 0);
    assert_string_equal(js_str(data, "object"), "fine_tuning.job.checkpoint");
    assert_string_equal(js_str(data, "fine_tuning_job_id"), id);
    assert_string_equal(js_str(data, "fine_tuned_model_checkpoint"), "ft:x:ckpt-step-3");
    assert_int_equal(json_integer_value(json_object_get(data, "step_number")), 3);
    assert_string_equal(js_str(o, "first_id"), js_str(data, "id"));
    assert_true(json_is_true(json_object_get(o, "has_more")));
    snprintf(target, sizeof target, JOBS "/%s/checkpoints?after=%s", id, js_str(o, "last_id"));
    json_decref(o);
    o = js_get(d, target, 200);
    assert_int_equal(json_array_size(json_object_get(o, "data")), 1);
    json_decref(o);
}

static int follow(const struct df *d, const char *id) {
    char head[256];
    int fd = cl_connect(d->port);
    snprintf(head, sizeof head, "GET " JOBS "/%s/events?stream=true HTTP/1.1\r\nHost: a\r\n\r\n",
             id);
    cl_puts(fd, head);
    return fd;
}

static size_t count(const char *s, const char *what) {
    size_t n = 0;
    for (; (s = strstr(s, what)) != NULL; s++)
        n++;
    return n;
}

static void test_stream(void **state) {
    struct df *d = *state;
    char id[FT_ID_MAX], target[128], value[64];
    struct cl_response r;
    js_create(d, "", id);
    for (int i = 0; i < 150; i++) // more than one look brings
        add_event(d, id, "many", NULL);
    int fd = follow(d, id), gone = follow(d, id), cut = follow(d, id);
    cl_wait_text(gone, "HTTP/1.1 200");
    usleep(700000); // some looks of the followers, which find nothing new
    close(gone);
    add_event(d, id, "later", NULL);
    snprintf(target, sizeof target, JOBS "/%s/cancel", id);
    json_decref(js_ask(d, "POST", target, "", "", 200));
    assert_true(cl_read(fd, false, &r)); // until the job's end
    assert_int_equal(r.status, 200);
    assert_int_equal(
        strncmp(cl_field(&r, "content-type", value, sizeof value), "text/event-stream", 17), 0);
    assert_int_equal(count(r.body, "data: {"), 154);
    assert_int_equal(count(r.body, "\"many\""), 150);
    const char *created = strstr(r.body, "Created"), *later = strstr(r.body, "later"),
               *end = strstr(r.body, "cancelled");
    assert_true(created && later && end && created < later && later < end);
    assert_string_equal(r.body + r.len - 14, "data: [DONE]\n\n");
    cl_free(&r);
    close(fd);
    fd = follow(d, id); // of one that has ended: all at once
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(count(r.body, "data: {"), 154);
    cl_free(&r);
    close(fd);
    js_create(d, "", id);
    fd = follow(d, id);
    cl_wait_text(fd, "HTTP/1.1 200");
    df_restart(d); // the server ends streams that are followed
    close(fd);
    close(cut);
}

// A stream that has no end of its own does not hold a stopping server: it says so and ends whole.
static void test_stream_when_stopping(void **state) {
    struct df *d = *state;
    char id[FT_ID_MAX], target[192], seen[FT_ID_MAX];
    struct cl_response r;
    js_create(d, "", id);
    add_event(d, id, "seen", NULL);
    int fd = follow(d, id), quiet = follow(d, id);
    cl_wait_text(fd, "\"seen\"");
    cl_wait_text(quiet, "\"seen\"");
    gw_server_stop_accepting(d->server);
    const int both[] = {fd, quiet};
    for (size_t i = 0; i < 2; i++) {
        assert_true(cl_read(both[i], false, &r)); // to its last chunk
        assert_int_equal(r.status, 200);
        assert_int_equal(count(r.body, "\"seen\""), 1);
        const char *error = strstr(r.body, "data: {\"error\":{");
        assert_non_null(error);
        assert_non_null(strstr(error, "\"code\":\"draining\""));
        assert_null(strstr(r.body, "[DONE]")); // the job has not ended
        cl_free(&r);
        close(both[i]);
    }
    // The kernel has the last byte, the loop has yet to count it.
    wait_until(gw_server_in_flight(d->server) == 0);
    df_restart(d);
    // It goes on where it was cut.
    snprintf(target, sizeof target, JOBS "/%s/events?limit=1", id);
    json_t *o = js_get(d, target, 200);
    snprintf(seen, sizeof seen, "%s", js_str(json_array_get(json_object_get(o, "data"), 0), "id"));
    json_decref(o);
    snprintf(target, sizeof target, JOBS "/%s/cancel", id);
    json_decref(js_ask(d, "POST", target, "", "", 200));
    snprintf(target, sizeof target, JOBS "/%s/events?stream=true&after=%s", id, seen);
    df_ask(d, "GET", target, "", "", 0, &r);
    assert_int_equal(count(r.body, "data: {"), 1);
    assert_non_null(strstr(r.body, "cancelled"));
    assert_non_null(strstr(r.body, "[DONE]"));
    cl_free(&r);
    json_decref(js_get(d, JOBS "/ftjob-none/events?stream=true&after=x", 404));
    snprintf(target, sizeof target, JOBS "/%s/events?stream=true&after=ftevent-none", id);
    o = js_get(d, target, 404);
    assert_string_equal(js_str(json_object_get(o, "error"), "param"), "after");
    json_decref(o);
}

// What is below a job or a file is a route, or it is not there; a method that a route lacks is 405.
static void test_unknown_routes(void **state) {
    struct df *d = *state;
    char id[FT_ID_MAX], target[192];
    js_create(d, "", id);
    static const struct {
        const char *method, *target; // $: the job, #: its file
        int status;
        const char *allow;
    } cases[] = {
        {"GET", JOBS "/$/metrics", 404, NULL},
        {"POST", JOBS "/$/metrics", 404, NULL},
        {"DELETE", JOBS "/$/events/x", 404, NULL},
        {"GET", JOBS "/$/", 404, NULL},
        {"POST", JOBS "/", 404, NULL},
        {"GET", "/v1/fine_tuning", 404, NULL},
        {"GET", "/v1/fine-tunes", 404, NULL},
        {"GET", "/v1/files/#/contents", 404, NULL},
        {"DELETE", "/v1/files/#/content/x", 404, NULL},
        {"GET", "/v1/files/", 404, NULL},
        {"GET", "/admin/v1/jobs/$/files", 404, NULL},
        {"GET", "/admin/v1/x", 404, NULL},
        {"PUT", "/v1/nothing", 404, NULL},
        {"DELETE", JOBS "/$", 405, "GET, HEAD, OPTIONS"},
        {"GET", JOBS "/$/cancel", 405, "POST, OPTIONS"},
        {"POST", JOBS "/$/events", 405, "GET, HEAD, OPTIONS"},
        {"PUT", JOBS, 405, "GET, HEAD, POST, OPTIONS"},
        {"PATCH", "/v1/files/#", 405, "GET, HEAD, DELETE, OPTIONS"},
        {"POST", "/v1/files/#/content", 405, "GET, HEAD, OPTIONS"},
        {"POST", "/admin/v1/jobs", 405, "GET, HEAD, OPTIONS"},
        {"GET", "/admin/v1/jobs/$/cancel", 405, "POST, OPTIONS"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cl_response r;
        char value[64];
        size_t n = 0;
        for (const char *s = cases[i].target; *s; s++)
            n += (size_t)snprintf(target + n, sizeof target - n, "%.*s",
                                  *s == '$' || *s == '#' ? FT_ID_MAX : 1,
                                  *s == '$'   ? id
                                  : *s == '#' ? d->file
                                              : s);
        df_ask(d, cases[i].method, target, "", "", 0, &r);
        if (r.status != cases[i].status)
            fail_msg("%s %s: %d", cases[i].method, target, r.status);
        if (cases[i].allow)
            assert_string_equal(cl_field(&r, "allow", value, sizeof value), cases[i].allow);
        json_t *o = json_loadb(r.body, r.len, 0, NULL), *e = json_object_get(o, "error");
        assert_int_equal(json_object_size(e), 4);
        assert_string_equal(js_str(e, "type"), "invalid_request_error");
        assert_true(json_is_null(json_object_get(e, "param")));
        json_decref(o);
        cl_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_stream, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_stream_when_stopping, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_unknown_routes, js_setup, js_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
