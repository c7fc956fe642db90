// SPDX-License-Identifier: Apache-2.0
// /v1/files over a real folder: each answer, who sees what, what lasts over a restart, what a
// broken upload leaves, and each allocation failing once.
#include "base/mem.h"
#include "finetune/files.h"
#include "tests/gateway/data_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/disk.h"
#include "tests/support/wait.h"
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TYPE "Content-Type: multipart/form-data; boundary=xyz\r\n"
#define FIELD(name, value)                                                                         \
    "--xyz\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n" value "\r\n"
#define FILE_PART(filename, content)                                                               \
    "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" filename "\"\r\n"        \
    "Content-Type: application/octet-stream\r\n\r\n" content "\r\n"
#define END "--xyz--\r\n"
#define GOOD FIELD("purpose", "fine-tune") FILE_PART("a.jsonl", "{\"a\": 1}\n") END
enum { MAX_FILE = 1 << 20 };

static int setup(void **state) {
    struct df *d = calloc(1, sizeof *d);
    df_start(d, MAX_FILE, false);
    *state = d;
    return 0;
}

static int teardown(void **state) {
    df_stop(*state);
    df_remove(*state);
    free(*state);
    assert_int_equal(mem_live_blocks(), 0);
    return 0;
}

static json_t *ask(const struct df *d, const char *method, const char *target, const char *fields,
                   const char *body, size_t len, int status) {
    struct cl_response r;
    json_error_t e;
    df_ask(d, method, target, fields, body, len, &r);
    json_t *o = r.len ? json_loadb(r.body, r.len, 0, &e) : json_null();
    if (r.status != status)
        fail_msg("%s %s: status %d, not %d: %s", method, target, r.status, status, r.body);
    if (!o)
        fail_msg("not JSON: %s", r.body);
    cl_free(&r);
    return o;
}

static json_t *get(const struct df *d, const char *target, int status) {
    return ask(d, "GET", target, "", "", 0, status);
}

static json_t *upload(const struct df *d, const char *body, int status) {
    return ask(d, "POST", "/v1/files", TYPE, body, strlen(body), status);
}

static const char *str(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static char *id_of(const json_t *o) {
    static char id[FT_ID_MAX];
    snprintf(id, sizeof id, "%s", str(o, "id"));
    return id;
}

static size_t entries(const char *folder, const char *sub) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, sub);
    return disk_entries(AT_FDCWD, path);
}

static void assert_error(json_t *o, const char *type, const char *param, const char *text) {
    const json_t *e = json_object_get(o, "error");
    assert_int_equal(json_object_size(e), 4);
    assert_string_equal(str(e, "type"), type);
    assert_string_equal(str(e, "param"), param);
    if (!strstr(str(e, "message"), text))
        fail_msg("'%s' is not in: %s", text, str(e, "message"));
    json_decref(o);
}

static void test_life(void **state) {
    const struct df *d = *state;
    json_t *o = upload(d, GOOD, 200);
    char id[FT_ID_MAX], target[96];
    strcpy(id, id_of(o));
    assert_int_equal(strncmp(id, "file-", 5), 0);
    assert_int_equal(strlen(id), 29);
    assert_string_equal(str(o, "object"), "file");
    assert_string_equal(str(o, "filename"), "a.jsonl");
    assert_string_equal(str(o, "purpose"), "fine-tune");
    assert_string_equal(str(o, "status"), "processed"); // never "uploaded"
    assert_int_equal(json_integer_value(json_object_get(o, "bytes")), 9);
    assert_int_equal(json_integer_value(json_object_get(o, "created_at")), 1700000000);
    assert_null(json_object_get(o, "expires_at"));
    snprintf(target, sizeof target, "/v1/files/%s", id);
    json_t *same = get(d, target, 200);
    assert_true(json_equal(o, same));
    json_decref(same);
    json_t *list = get(d, "/v1/files", 200);
    assert_string_equal(str(list, "object"), "list");
    assert_string_equal(str(list, "first_id"), id);
    assert_string_equal(str(list, "last_id"), id);
    assert_true(json_is_false(json_object_get(list, "has_more")));
    assert_true(json_equal(json_array_get(json_object_get(list, "data"), 0), o));
    json_decref(list);
    json_decref(o);
    struct cl_response r;
    snprintf(target, sizeof target, "/v1/files/%s/content", id);
    df_ask(d, "GET", target, "Accept: application/binary\r\n", "", 0, &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "{\"a\": 1}\n");
    cl_free(&r);
    df_ask(d, "HEAD", target, "", "", 0, &r);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.len, 0);
    cl_free(&r);
    snprintf(target, sizeof target, "/v1/files/%s", id);
    o = ask(d, "DELETE", target, "", "", 0, 200);
    assert_string_equal(str(o, "id"), id);
    assert_string_equal(str(o, "object"), "file");
    assert_true(json_is_true(json_object_get(o, "deleted")));
    json_decref(o);
    assert_error(ask(d, "DELETE", target, "", "", 0, 404), "invalid_request_error", "id", id);
    assert_error(get(d, target, 404), "invalid_request_error", "id", id);
    snprintf(target, sizeof target, "/v1/files/%s/content", id);
    assert_error(get(d, target, 404), "invalid_request_error", "id", id);
    assert_int_equal(entries(d->folder, "files"), 0);
}

#define BAD_EXPIRES(anchor, seconds)                                                               \
    FIELD("purpose", "fine-tune")                                                                  \
    anchor seconds FILE_PART("a.jsonl", "x") END
#define ANCHOR(v) FIELD("expires_after[anchor]", v)
#define SECONDS(v) FIELD("expires_after[seconds]", v)
#define X64 "0123456789012345678901234567890123456789012345678901234567890123"

static const struct {
    const char *body;
    int status;
    const char *param, *text;
} bad[] = {
    {"", 400, "", "ends before the last boundary"},
    {END, 400, "file", "file is required"},
    {"--xyz\r\nX: y\r\n\r\n1\r\n" END, 400, "", "no Content-Disposition"},
    {FILE_PART("a.jsonl", "x"), 400, "", "ends before the last boundary"},
    {FIELD("purpose", "fine-tune") FILE_PART("a.jsonl", "x"), 400, "", "ends before"},
    {FIELD("purpose", "fine-tune") END, 400, "file", "file is required"},
    {FILE_PART("a.jsonl", "x") END, 400, "purpose", "purpose is required"},
    {FIELD("purpose", "assistants") FILE_PART("a.jsonl", "x") END, 400, "purpose", "'assistants'"},
    {FIELD("purpose", "") FILE_PART("a.jsonl", "x") END, 400, "purpose", "fine-tune"},
    {FIELD("purpose", "fine-tune-results") FILE_PART("a.jsonl", "x") END, 400, "purpose",
     "fine-tune"},
    {FILE_PART("a.jsonl", "x") FIELD("purpose", "vision") END, 400, "purpose", "'vision'"},
    {FIELD("purpose", X64 "x") FILE_PART("a.jsonl", "x") END, 400, "purpose", "longer than 64"},
    {FIELD("purpose", "fine-tune") FIELD("purpose", "fine-tune") FILE_PART("a.jsonl", "x") END, 400,
     "purpose", "more than once"},
    {FIELD("purpose", "fine-tune") FILE_PART("a.jsonl", "x") FILE_PART("b.jsonl", "x") END, 400,
     "file", "more than once"},
    {FIELD("purpose", "fine-tune") FIELD("file", "x") END, 400, "file", "as a file"},
    {FIELD("purpose", "fine-tune") FILE_PART("", "x") END, 400, "file", "filename"},
    {FIELD("purpose", "fine-tune") FILE_PART("dir/", "x") END, 400, "file", "filename"},
    {FIELD("purpose", "fine-tune") FILE_PART("a.txt", "x") END, 400, "file", ".jsonl"},
    {FIELD("purpose", "fine-tune") FILE_PART("jsonl", "x") END, 400, "file", ".jsonl"},
    {FIELD("purpose", "fine-tune") FILE_PART(X64 X64 X64 X64 ".jsonl", "x") END, 400, "file",
     "255 bytes"},
    {BAD_EXPIRES(ANCHOR("created_at"), ""), 400, "expires_after.seconds", "required"},
    {BAD_EXPIRES("", SECONDS("3600")), 400, "expires_after.anchor", "required"},
    {BAD_EXPIRES(ANCHOR("now"), SECONDS("3600")), 400, "expires_after.anchor", "created_at"},
    {BAD_EXPIRES(ANCHOR("created_at"), SECONDS("3599")), 400, "expires_after.seconds", "3600"},
    {BAD_EXPIRES(ANCHOR("created_at"), SECONDS("2592001")), 400, "expires_after.seconds",
     "2592000"},
    {BAD_EXPIRES(ANCHOR("created_at"), SECONDS("4000.5")), 400, "expires_after.seconds", "integer"},
    {BAD_EXPIRES(ANCHOR("created_at"), SECONDS("99999999999999999999")), 400,
     "expires_after.seconds", "integer"},
    {BAD_EXPIRES(ANCHOR("created_at"), SECONDS("-4000")), 400, "expires_after.seconds", "integer"},
    {BAD_EXPIRES(ANCHOR("created_at"), SECONDS("")), 400, "expires_after.seconds", "integer"},
};

static void test_bad_forms(void **state) {
    const struct df *d = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(upload(d, bad[i].body, bad[i].status), "invalid_request_error", bad[i].param,
                     bad[i].text);
    assert_error(ask(d, "POST", "/v1/files", "", GOOD, strlen(GOOD), 415), "invalid_request_error",
                 "", "multipart/form-data");
    assert_error(ask(d, "POST", "/v1/files", "Content-Type: application/json\r\n", "{}", 2, 415),
                 "invalid_request_error", "", "multipart/form-data");
    assert_error(ask(d, "POST", "/v1/files", "Content-Type: multipart/form-data\r\n", "{}", 2, 400),
                 "invalid_request_error", "", "boundary");
    assert_int_equal(entries(d->folder, "files"), 0); // nothing is left of any
    json_t *list = get(d, "/v1/files", 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 0);
    assert_true(json_is_null(json_object_get(list, "first_id")));
    assert_true(json_is_null(json_object_get(list, "last_id")));
    json_decref(list);
}

static const struct {
    const char *body, *filename;
    int64_t bytes;
} good[] = {
    {FILE_PART("../../etc/a.jsonl", "x") FIELD("purpose", "fine-tune") END, "a.jsonl", 1},
    {FIELD("purpose", "fine-tune") FILE_PART("C:\\\\data\\\\b.JSONL", "xy") END, "b.JSONL", 2},
    {FIELD("purpose", "fine-tune") FILE_PART("caf\xc3\xa9 \\\"1\\\".jsonl", "") END,
     "caf\xc3\xa9 \"1\".jsonl", 0},
    {FIELD("purpose", "fine-tune") FIELD("other", "ignored") FIELD("other", "too")
         FILE_PART(".jsonl", "x\r\n--xyzz\r\n") END,
     ".jsonl", 11},
};

static void test_good_forms(void **state) {
    const struct df *d = *state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        json_t *o = upload(d, good[i].body, 200);
        assert_string_equal(str(o, "filename"), good[i].filename);
        assert_int_equal(json_integer_value(json_object_get(o, "bytes")), good[i].bytes);
        json_decref(o);
    }
    assert_int_equal(entries(d->folder, "files"), 4);
}

static char *large_form(size_t content, size_t *len, size_t *at) {
    static const char head[] =
        FIELD("purpose", "fine-tune") "--xyz\r\nContent-Disposition: "
                                      "form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n";
    char *body = malloc(content + 4096);
    assert_non_null(body);
    *at = sizeof head - 1;
    memcpy(body, head, *at);
    for (size_t i = 0; i < content; i++)
        body[*at + i] = "abc\r\n-xyz"[i * 2654435761u >> 7 & 7];
    memcpy(body + *at + content, "\r\n" END, 2 + sizeof END);
    *len = *at + content + 1 + sizeof END;
    return body;
}

static void test_sizes(void **state) {
    const struct df *d = *state;
    static const size_t sizes[] = {65535, 65536, 300000, MAX_FILE};
    size_t len, at;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *body = large_form(sizes[i], &len, &at), target[96];
        json_t *o = ask(d, "POST", "/v1/files", TYPE, body, len, 200);
        struct cl_response r;
        snprintf(target, sizeof target, "/v1/files/%s/content", id_of(o));
        df_ask(d, "GET", target, "", "", 0, &r);
        assert_int_equal(r.len, sizes[i]);
        assert_memory_equal(r.body, body + at, sizes[i]);
        cl_free(&r);
        json_decref(o);
        free(body);
    }
    // One byte more than a file may have; and a body larger than any form with such a file.
    char *body = large_form(MAX_FILE + 1, &len, &at);
    assert_error(ask(d, "POST", "/v1/files", TYPE, body, len, 413), "invalid_request_error", "file",
                 "1048576");
    free(body);
    struct cl_response r;
    int fd = cl_connect(d->port);
    cl_puts(fd, "POST /v1/files HTTP/1.1\r\nHost: a\r\n" TYPE "Content-Length: 2097153\r\n\r\n");
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 413);
    cl_free(&r);
    close(fd);
    // A form that is nothing but fields.
    body = malloc(200000);
    memset(body, 'x', 200000);
    memcpy(body, "--xyz\r\nContent-Disposition: form-data; name=\"y\"\r\n\r\n", 52);
    assert_error(ask(d, "POST", "/v1/files", TYPE, body, 200000, 400), "invalid_request_error", "",
                 "65536 bytes of fields");
    free(body);
    assert_int_equal(entries(d->folder, "files"), 4);
}

static void test_pages(void **state) {
    struct df *d = *state;
    char ids[5][FT_ID_MAX], target[160];
    for (int i = 0; i < 5; i++) {
        json_t *o = upload(d, GOOD, 200);
        strcpy(ids[i], id_of(o));
        json_decref(o);
        clock_manual_advance(&d->clock, 1000000000);
    }
    static const struct {
        const char *query;
        int after, first, last, n;
        bool more;
    } cases[] = {
        {"", -1, 4, 0, 5, false},
        {"?order=desc&limit=2", -1, 4, 3, 2, true},
        {"?limit=2&after=", 3, 2, 1, 2, true},
        {"?limit=2&after=", 2, 1, 0, 2, false},
        {"?limit=2&after=", 1, 0, 0, 1, false},
        {"?limit=2&after=", 0, -1, -1, 0, false},
        {"?order=asc&limit=5", -1, 0, 4, 5, false},
        {"?order=asc&limit=3&after=", 0, 1, 3, 3, true},
        {"?order=asc&after=", 4, -1, -1, 0, false},
        {"?purpose=fine-tune", -1, 4, 0, 5, false},
        {"?purpose=fine%2Dtune&unknown=1", -1, 4, 0, 5, false},
        {"?purpose=batch", -1, -1, -1, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(target, sizeof target, "/v1/files%s%s", cases[i].query,
                 cases[i].after >= 0 ? ids[cases[i].after] : "");
        json_t *o = get(d, target, 200);
        assert_int_equal(json_array_size(json_object_get(o, "data")), cases[i].n);
        assert_string_equal(str(o, "first_id"), cases[i].first >= 0 ? ids[cases[i].first] : "");
        assert_string_equal(str(o, "last_id"), cases[i].last >= 0 ? ids[cases[i].last] : "");
        assert_int_equal(json_is_true(json_object_get(o, "has_more")), cases[i].more);
        json_decref(o);
    }
    static const struct {
        const char *query;
        int status;
        const char *param;
    } refused[] = {
        {"?limit=0", 400, "limit"},         {"?limit=10001", 400, "limit"},
        {"?limit=x", 400, "limit"},         {"?limit=-1", 400, "limit"},
        {"?limit=", 400, "limit"},          {"?limit=99999999999999999999", 400, "limit"},
        {"?limit=1&limit=2", 400, "limit"}, {"?order=up", 400, "order"},
        {"?after=file-none", 404, "after"}, {"?purpose=%zz", 400, ""},
        {"?purpose=%00", 400, ""},          {"?purpose=%ff", 400, ""},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(target, sizeof target, "/v1/files%s", refused[i].query);
        assert_error(get(d, target, refused[i].status), "invalid_request_error", refused[i].param,
                     "");
    }
}

static void test_expiry(void **state) {
    struct df *d = *state;
    char target[96];
    struct err_info info;
    json_t *o = upload(d, BAD_EXPIRES(ANCHOR("created_at"), SECONDS("3600")), 200);
    snprintf(target, sizeof target, "/v1/files/%s", id_of(o));
    assert_int_equal(json_integer_value(json_object_get(o, "expires_at")), 1700003600);
    json_decref(o);
    json_decref(upload(d, GOOD, 200));
    clock_manual_advance(&d->clock, 3599LL * 1000000000);
    json_decref(get(d, target, 200));
    assert_int_equal(ft_files_expire(&d->home, &info), ERR_OK);
    json_decref(get(d, target, 200));
    clock_manual_advance(&d->clock, 1000000000);
    json_decref(get(d, target, 404)); // before anyone has swept
    o = get(d, "/v1/files", 200);
    assert_int_equal(json_array_size(json_object_get(o, "data")), 1);
    json_decref(o);
    assert_int_equal(entries(d->folder, "files"), 2);
    assert_int_equal(ft_files_expire(&d->home, &info), ERR_OK);
    assert_int_equal(entries(d->folder, "files"), 1);
}

static void test_tenants(void **state) {
    (void)state;
    static const char one[] = TYPE "Authorization: Bearer key-of-one\r\n";
    static const char two[] = TYPE "Authorization: Bearer key-of-two\r\n";
    struct df d;
    char target[96];
    df_start(&d, MAX_FILE, true);
    json_decref(ask(&d, "GET", "/v1/files", "", "", 0, 401));
    json_decref(ask(&d, "POST", "/v1/files", TYPE, GOOD, strlen(GOOD), 401));
    json_t *o = ask(&d, "POST", "/v1/files", one, GOOD, strlen(GOOD), 200);
    char id[FT_ID_MAX];
    strcpy(id, id_of(o));
    json_decref(o);
    for (int i = 0; i < 2; i++) { // also after a restart
        snprintf(target, sizeof target, "/v1/files/%s", id);
        json_decref(ask(&d, "GET", target, one, "", 0, 200));
        json_decref(ask(&d, "GET", target, two, "", 0, 404));
        json_decref(ask(&d, "DELETE", target, two, "", 0, 404));
        snprintf(target, sizeof target, "/v1/files/%s/content", id);
        json_decref(ask(&d, "GET", target, two, "", 0, 404));
        snprintf(target, sizeof target, "/v1/files?after=%s", id);
        json_decref(ask(&d, "GET", target, two, "", 0, 404));
        o = ask(&d, "GET", "/v1/files", two, "", 0, 200);
        assert_int_equal(json_array_size(json_object_get(o, "data")), 0);
        json_decref(o);
        df_restart(&d);
    }
    df_stop(&d);
    df_remove(&d);
}

static void test_restart(void **state) {
    struct df *d = *state;
    char target[96], path[160];
    json_t *kept = upload(d, GOOD, 200), *lost = upload(d, GOOD, 200), *cut = upload(d, GOOD, 200);
    snprintf(path, sizeof path, "%s/files/%s", d->folder, str(lost, "id"));
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/files/%s", d->folder, str(cut, "id"));
    assert_int_equal(truncate(path, 3), 0);
    // What an upload that was never acknowledged leaves, at each of its steps.
    static const char *const left[] = {".aside-0123", "file-0123456789", "not-ours"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/files/%s", d->folder, left[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    df_restart(d);
    assert_int_equal(entries(d->folder, "files"), 3); // kept, cut, not-ours
    snprintf(target, sizeof target, "/v1/files/%s", str(kept, "id"));
    json_t *o = get(d, target, 200);
    assert_true(json_equal(o, kept));
    json_decref(o);
    snprintf(target, sizeof target, "/v1/files/%s", str(lost, "id"));
    o = get(d, target, 200);
    assert_string_equal(str(o, "status"), "error");
    assert_non_null(strstr(str(o, "status_details"), "missing"));
    json_decref(o);
    snprintf(target, sizeof target, "/v1/files/%s/content", str(lost, "id"));
    assert_error(get(d, target, 500), "server_error", "", "cannot open");
    snprintf(target, sizeof target, "/v1/files/%s", str(cut, "id"));
    o = get(d, target, 200);
    assert_string_equal(str(o, "status"), "error");
    assert_non_null(strstr(str(o, "status_details"), "size"));
    json_decref(o);
    json_decref(ask(d, "DELETE", target, "", "", 0, 200));
    json_decref(kept);
    json_decref(lost);
    json_decref(cut);
}

static void wait_entries(const struct df *d, size_t n) {
    wait_until(entries(d->folder, "files") == n);
}

static void test_client_goes_away(void **state) {
    struct df *d = *state;
    static const char part[] =
        FIELD("purpose", "fine-tune") "--xyz\r\nContent-Disposition: form-data; "
                                      "name=\"file\"; filename=\"a.jsonl\"\r\n\r\nsome content";
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = cl_connect(d->port);
        cl_puts(fds[i],
                "POST /v1/files HTTP/1.1\r\nHost: a\r\n" TYPE "Content-Length: 9000\r\n\r\n");
        cl_puts(fds[i], part);
    }
    wait_entries(d, 3);
    close(fds[0]);
    close(fds[1]);
    wait_entries(d, 1);
    df_restart(d); // the third is cut by the server
    close(fds[2]);
    assert_int_equal(entries(d->folder, "files"), 0);
}

// The client reads nothing: content waits, in bounded memory, until it is taken or the client goes.
static void test_slow_reader(void **state) {
    struct df *d = *state;
    size_t len, at;
    char *body = large_form(MAX_FILE, &len, &at), head[160];
    json_t *o = ask(d, "POST", "/v1/files", TYPE, body, len, 200);
    int fds[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = cl_connect(d->port);
        snprintf(head, sizeof head, "GET /v1/files/%s/content HTTP/1.1\r\nHost: a\r\n\r\n",
                 id_of(o));
        cl_puts(fds[i], head);
    }
    for (int i = 0; i < 2; i++)
        cl_wait_text(fds[i], "HTTP/1.1 200");
    close(fds[0]);
    struct cl_response r;
    char target[96];
    snprintf(target, sizeof target, "/v1/files/%s", id_of(o));
    json_decref(ask(d, "DELETE", target, "", "", 0, 200)); // it is read to its end nevertheless
    assert_true(cl_read(fds[1], false, &r));
    assert_int_equal(r.len, MAX_FILE);
    assert_memory_equal(r.body, body + at, MAX_FILE);
    cl_free(&r);
    close(fds[1]);
    json_decref(o);
    free(body);
}

static void test_no_folder(void **state) {
    (void)state;
    struct api_data api = {.max_file_bytes = MAX_FILE};
    struct gw_route routes[64];
    struct df d = {0};
    struct err_info info;
    d.metrics = metrics_create();
    const struct gw_config cfg = {.host = "127.0.0.1",
                                  .routes = routes,
                                  .n_routes = api_data_routes(&api, routes, 64),
                                  .metrics = d.metrics};
    assert_int_equal(api_data_routes(&api, routes, 2), 0);
    assert_int_equal(gw_server_create(&cfg, &d.server, &info), ERR_OK);
    assert_int_equal(gw_server_start(d.server, &info), ERR_OK);
    d.port = gw_server_port(d.server);
    static const char *const asks[][2] = {
        {"GET", "/v1/files"},      {"POST", "/v1/files"},          {"GET", "/v1/files/x"},
        {"DELETE", "/v1/files/x"}, {"GET", "/v1/files/x/content"},
    };
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++)
        assert_error(ask(&d, asks[i][0], asks[i][1], TYPE, "", 0, 400), "invalid_request_error", "",
                     "--data-dir");
    gw_server_stop(d.server);
    gw_server_destroy(d.server);
    metrics_destroy(d.metrics);
}

// One upload, reading it back and deleting it, with the Nth allocation failing.
static bool life_without(const struct df *d, uint64_t nth) {
    struct cl_response r;
    char id[FT_ID_MAX] = "", target[96];
    mem_fail_after(nth, false);
    df_ask(d, "POST", "/v1/files", TYPE, GOOD, strlen(GOOD), &r);
    bool failed = mem_fail_count() >= nth;
    mem_fail_after(0, false);
    if (r.status == 200)
        memcpy(id, strstr(r.body, "file-"), 29);
    else if (r.status != 503 && r.status != 0)
        fail_msg("upload, allocation %llu: %d %s", (unsigned long long)nth, r.status, r.body);
    cl_free(&r);
    if (!id[0]) { // it was not acknowledged: nothing of it is there
        wait_entries(d, 0);
        return failed;
    }
    static const char *const asks[][2] = {
        {"GET", "/v1/files/%s"}, {"GET", "/v1/files?after=%s"}, {"GET", "/v1/files/%s/content"}};
    for (size_t i = 0; i < 3; i++) {
        snprintf(target, sizeof target, "/v1/files%s%s%s", i == 1 ? "?after=" : "/", id,
                 i == 2 ? "/content" : "");
        mem_fail_after(nth, false);
        df_ask(d, asks[i][0], target, "", "", 0, &r);
        failed = failed || mem_fail_count() >= nth;
        mem_fail_after(0, false);
        if (r.status != 200 && r.status != 503 && r.status != 0)
            fail_msg("%s, allocation %llu: %d", target, (unsigned long long)nth, r.status);
        if (r.status == 200 && i == 2 && !r.closed)
            assert_string_equal(r.body, "{\"a\": 1}\n");
        cl_free(&r);
    }
    snprintf(target, sizeof target, "/v1/files/%s", id);
    json_decref(ask(d, "DELETE", target, "", "", 0, 200));
    return failed;
}

static void test_without_memory(void **state) {
    const struct df *d = *state;
    json_set_alloc_funcs(mem_alloc, mem_free);
    uint64_t nth = 1;
    while (life_without(d, nth))
        assert_true(++nth < 200);
    assert_true(nth > 5);
    wait_entries(d, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_good_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_expiry, setup, teardown),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_goes_away, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_reader, setup, teardown),
        cmocka_unit_test(test_no_folder),
        cmocka_unit_test_setup_teardown(test_without_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
