// SPDX-License-Identifier: Apache-2.0
// API keys: the table, the key file, and how requests present them.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool check(const struct gw_keys *k, const char *key, struct gw_identity *who) {
    return gw_keys_check(k, key, strlen(key), who);
}

static void test_table(void **state) {
    (void)state;
    struct gw_keys *k;
    struct gw_identity a = {0}, b = {0}, c = {0}, d = {0};
    assert_int_equal(gw_keys_create(&k), ERR_OK);
    assert_false(check(k, "sk-one", &a));
    assert_int_equal(gw_keys_add(k, "sk-one", "red", false, NULL), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-two", "red", true, NULL), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-three", NULL, false, NULL), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-four", NULL, false, NULL), ERR_OK);
    assert_int_equal(gw_keys_count(k), 4);
    assert_true(check(k, "sk-one", &a));
    assert_true(check(k, "sk-two", &b));
    assert_true(check(k, "sk-three", &c));
    assert_true(check(k, "sk-four", &d));
    assert_int_equal(a.tenant, b.tenant);
    assert_true(a.key_id != b.key_id);
    assert_true(!a.admin && b.admin);
    // Keys without a tenant are the default tenant's, and share nothing cached with one another.
    assert_true(a.tenant && a.domain == a.tenant && b.domain == a.domain);
    assert_int_equal(c.tenant, 0);
    assert_int_equal(d.tenant, 0);
    assert_true(c.domain && d.domain && c.domain != d.domain && c.domain != a.domain);
    assert_int_equal(gw_keys_add(k, "sk-five", "default", false, NULL), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-six", "default", true, NULL), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-seven", "Default", true, NULL), ERR_OK);
    assert_true(check(k, "sk-five", &c) && check(k, "sk-six", &d));
    assert_true(!c.tenant && !d.tenant && c.domain && c.domain == d.domain);
    assert_true(check(k, "sk-seven", &d) && d.tenant);
    assert_string_equal(gw_keys_tenant(k, a.tenant), "red");
    assert_string_equal(gw_keys_tenant(k, d.tenant), "Default");
    assert_string_equal(gw_keys_tenant(k, 0), "default");
    assert_string_equal(gw_keys_tenant(NULL, 0), "default");
    assert_null(gw_keys_tenant(k, 5));
    assert_null(gw_keys_tenant(NULL, a.tenant));
    static const char *const wrong[] = {"",       "sk-on",   "sk-one ", "sk-onee",
                                        "SK-ONE", "sk-thre", "x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(check(k, wrong[i], &a));
    assert_false(gw_keys_check(k, "sk-one\0", 7, &a));
    char longest[513];
    memset(longest, 'k', 512);
    longest[512] = '\0';
    assert_int_equal(gw_keys_add(k, longest, NULL, false, NULL), ERR_OK);
    assert_true(check(k, longest, &a));
    gw_keys_destroy(k);
    assert_int_equal(mem_live_blocks(), 0);
}

static void test_bad_keys(void **state) {
    (void)state;
    struct gw_keys *k;
    char too_long[514];
    memset(too_long, 'k', 513);
    too_long[513] = '\0';
    assert_int_equal(gw_keys_create(&k), ERR_OK);
    assert_int_equal(gw_keys_add(k, "", NULL, false, NULL), ERR_INVALID);
    assert_int_equal(gw_keys_add(k, "a b", NULL, false, NULL), ERR_INVALID);
    assert_int_equal(gw_keys_add(k, "caf\xc3\xa9", NULL, false, NULL), ERR_INVALID);
    assert_int_equal(gw_keys_add(k, too_long, NULL, false, NULL), ERR_INVALID);
    assert_int_equal(gw_keys_add(k, "a", "", false, NULL), ERR_INVALID);
    assert_int_equal(gw_keys_count(k), 0);
    gw_keys_destroy(k);
}

static enum err load(const char *text, size_t n, struct gw_keys *k, struct err_info *info) {
    char folder[TEMP_PATH], path[TEMP_PATH + 8];
    temp_folder(folder, "keys");
    snprintf(path, sizeof path, "%s/keys", folder);
    disk_write(path, text, n);
    *info = (struct err_info){0};
    enum err e = gw_keys_load_file(k, path, info);
    temp_remove(folder);
    return e;
}

static void test_file(void **state) {
    (void)state;
    struct gw_keys *k;
    struct gw_identity who;
    struct err_info info;
    static const char good[] =
        "# comment\n\n  key-a \nkey-b\tred\r\nkey-c red admin # x\nkey#d red\n"
        "key-t red train\nkey-e";
    assert_int_equal(gw_keys_create(&k), ERR_OK);
    assert_int_equal(load(good, sizeof good - 1, k, &info), ERR_OK);
    assert_int_equal(gw_keys_count(k), 6);
    assert_true(check(k, "key-a", &who) && !who.admin && !who.train);
    assert_true(check(k, "key-b", &who) && !who.admin);
    uint64_t red = who.tenant;
    assert_true(check(k, "key-c", &who) && who.admin && who.train && who.tenant == red);
    assert_true(check(k, "key-t", &who) && !who.admin && who.train && who.tenant == red);
    assert_true(check(k, "key#d", &who));
    assert_true(check(k, "key-e", &who));
    assert_false(check(k, "red", &who));
    assert_int_equal(load("ok\nkey red boss\n", 16, k, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "line 2"));
    assert_null(strstr(info.message, "key red"));
    assert_int_equal(load("a b admin d\n", 12, k, &info), ERR_INVALID);
    assert_int_equal(load("a\0b\n", 4, k, &info), ERR_INVALID);
    assert_int_equal(load("", 0, k, &info), ERR_OK);
    assert_int_equal(gw_keys_load_file(k, "/nonexistent/keys", &info), ERR_IO);
    assert_non_null(strstr(info.message, "/nonexistent/keys"));
    gw_keys_destroy(k);
}

static void test_file_no_memory(void **state) {
    (void)state;
    enum err e = ERR_NOMEM;
    for (uint64_t nth = 1; e; nth++) {
        struct gw_keys *k;
        struct err_info info;
        assert_int_equal(gw_keys_create(&k), ERR_OK);
        mem_fail_after(nth, false);
        e = load("key-a\nkey-b red\n", 16, k, &info);
        mem_fail_after(0, false);
        assert_true(e == ERR_OK || e == ERR_NOMEM);
        gw_keys_destroy(k);
        assert_true(nth < 20);
    }
}

static struct gw_keys *two_keys(void) {
    struct gw_keys *k;
    assert_int_equal(gw_keys_create(&k), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-user", "red", false, NULL), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-admin", "red", true, NULL), ERR_OK);
    return k;
}

static void expect(int port, const char *path, const char *fields, int status) {
    char text[1024];
    bool post = strncmp(path, "/echo", 5) == 0;
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: a\r\n%s%s\r\n%s", post ? "POST" : "GET",
             path, fields, post ? "Content-Type: application/json\r\nContent-Length: 2\r\n" : "",
             post ? "{}" : "");
    cl_assert_status(port, text, status);
}

static void test_requests(void **state) {
    (void)state;
    struct fx f;
    struct gw_keys *k = two_keys();
    assert_int_equal(gw_keys_add(k, "sk-lone", NULL, false, NULL), ERR_OK);
    fx_start(&f, &(struct gw_config){.keys = k});
    static const char *const bad[] = {
        "",
        "Authorization: sk-user\r\n",
        "Authorization: Basic sk-user\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearersk-user\r\n",
        "Authorization: Bearer sk-use\r\n",
        "Authorization: Bearer sk-userr\r\n",
        "Authorization: Bearer sk-user x\r\n",
        "Authorization: Bearer \"sk-user\"\r\n",
        "X-Api-Key: sk-user\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect(f.port, "/echo", bad[i], 401);
        expect(f.port, "/admin", bad[i], 401);
        expect(f.port, "/health", bad[i], 200); // needs none
    }
    expect(f.port, "/echo", "Authorization: Bearer sk-user\r\n", 200);
    expect(f.port, "/echo", "authorization: bearer   sk-user  \r\n", 200);
    expect(f.port, "/admin", "Authorization: Bearer sk-user\r\n", 403);
    expect(f.port, "/admin", "Authorization: Bearer sk-admin\r\n", 200);
    expect(f.port, "/echo", "Authorization: Bearer sk-lone\r\n", 200);
    expect(f.port, "/echo", "Authorization: Bearer sk-user\r\nAuthorization: Bearer x\r\n", 400);
    struct cl_response r;
    cl_once(f.port, "GET /admin HTTP/1.1\r\nHost: a\r\n\r\n", &r);
    char value[64];
    assert_string_equal(cl_field(&r, "WWW-Authenticate", value, sizeof value), "Bearer");
    assert_string_equal(r.body, "{\"error\":{\"message\":\"no API key was given; send it as "
                                "Authorization: Bearer <key>\",\"type\":\"authentication_error\","
                                "\"param\":null,\"code\":\"invalid_api_key\"}}");
    cl_free(&r);
    char *log = fx_log(&f, 3);
    assert_null(strstr(log, "sk-"));
    // A key of the default tenant is told like any other.
    const char *lone = strstr(log, "\"tenant_id\":\"0000000000000000\",\"key_id\":\"");
    assert_non_null(lone);
    free(log);
    fx_stop(&f);
    gw_keys_destroy(k);
}

// The class of CVE-2026-48746: the path that decides about the key must be the one that routes.
static void test_one_path_for_key_and_route(void **state) {
    (void)state;
    struct fx f;
    struct gw_keys *k = two_keys();
    fx_start(&f, &(struct gw_config){.keys = k});
    static const struct {
        const char *target, *host;
        int status;
    } cases[] = {
        {"/admin", "a/health", 400},
        {"/admin", "a/health?", 400},
        {"/admin", "a#/health", 400},
        {"/admin", "a@health", 400},
        {"/admin", "/health", 400},
        {"/admin?/health", "a", 401},
        {"/health/../admin", "a", 400},
        {"/%61dmin", "a", 401},
        {"/health%2f..%2fadmin", "a", 400},
        {"/health%3f/../admin", "a", 400},
        {"http://a/admin", "a", 401},
        {"http://a/health", "b", 400},
        {"http://health/admin", "a", 400},
        {"/admin;/health", "a", 404},
        {"//admin", "a", 404},
        {"/Admin", "a", 404},
        {"/admin/", "a", 404},
        {"/admin%00/health", "a", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].target,
                 cases[i].host);
        cl_assert_status(f.port, text, cases[i].status);
    }
    fx_stop(&f);
    gw_keys_destroy(k);
}

// A table of keys that is empty lets nobody in; no table at all makes loopback an administrator.
static void test_no_keys(void **state) {
    (void)state;
    struct fx f;
    struct gw_keys *k;
    assert_int_equal(gw_keys_create(&k), ERR_OK);
    fx_start(&f, &(struct gw_config){.keys = k});
    expect(f.port, "/echo", "Authorization: Bearer x\r\n", 401);
    fx_stop(&f);
    gw_keys_destroy(k);
    fx_start(&f, NULL);
    struct cl_response r;
    cl_once(f.port, "GET /admin HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n", &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "0 1");
    cl_free(&r);
    fx_stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),    cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_file),     cmocka_unit_test(test_file_no_memory),
        cmocka_unit_test(test_requests), cmocka_unit_test(test_one_path_for_key_and_route),
        cmocka_unit_test(test_no_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
