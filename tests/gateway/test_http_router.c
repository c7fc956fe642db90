// SPDX-License-Identifier: Apache-2.0
// Request targets and routes.
#include "base/mem.h"
#include "gateway/router.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

static void test_targets(void **state) {
    (void)state;
    static const struct {
        const char *target, *host, *path, *query; // path NULL: refused
    } cases[] = {
        {"/", "a", "/", ""},
        {"/v1/models", "a", "/v1/models", ""},
        {"/v1/models?x=%00&y", "a", "/v1/models", "x=%00&y"},
        {"/a%20b%2Fc", "a", "/a b/c", ""},
        {"/%e2%82%ac", "a", "/\xe2\x82\xac", ""},
        {"/%2e%2e/admin", "a", NULL, NULL},
        {"/a/./b", "a", NULL, NULL},
        {"/a/..", "a", NULL, NULL},
        {"/a/..b/.c", "a", "/a/..b/.c", ""},
        {"/a//b", "a", "/a//b", ""},
        {"/%00", "a", NULL, NULL},
        {"/%0a", "a", NULL, NULL},
        {"/%7f", "a", NULL, NULL},
        {"/%", "a", NULL, NULL},
        {"/%4", "a", NULL, NULL},
        {"/%4g", "a", NULL, NULL},
        {"/%g4", "a", NULL, NULL},
        {"/%c3", "a", NULL, NULL},       // half a character
        {"/%c0%af", "a", NULL, NULL},    // an overlong slash
        {"/%ed%a0%80", "a", NULL, NULL}, // a surrogate
        {"http://a/b?c", "a", "/b", "c"},
        {"HTTP://A/b", "a", "/b", ""},
        {"https://a:443/b", "a:443", "/b", ""},
        {"http://a", "a", "/", ""},
        {"http://a?x", "a", "/", "x"},
        {"http://b/", "a", NULL, NULL},
        {"http://a:80/", "a", NULL, NULL},
        {"http://u@a/", "a", NULL, NULL},
        {"http:///x", "a", NULL, NULL},
        {"http://a/", NULL, NULL, NULL},
        {"ftp://a/", "a", NULL, NULL},
        {"a:443", "a", NULL, NULL},
        {"x", "a", NULL, NULL},
        {"*", "a", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena a;
        struct gw_target t;
        struct err_info info = {0};
        arena_init(&a, 0);
        enum err e = gw_target_parse(&a, GW_GET, cases[i].target, cases[i].host, &t, &info);
        if ((e == ERR_OK) != (cases[i].path != NULL))
            fail_msg("%s: %s", cases[i].target, err_name(e));
        if (cases[i].path) {
            assert_string_equal(t.path, cases[i].path);
            assert_string_equal(t.query, cases[i].query);
        } else {
            assert_int_equal(e, ERR_INVALID);
        }
        arena_fini(&a);
    }
    struct gw_target t;
    assert_int_equal(gw_target_parse(NULL, GW_OPTIONS, "*", "a", &t, NULL), ERR_OK);
    assert_string_equal(t.path, "*");
}

static void handle(struct gw_request *r, void *arg) {
    (void)r;
    (void)arg;
}

static const struct gw_route routes[] = {
    {.methods = GW_GET, .pattern = "/v1/models", .handle = handle},
    {.methods = GW_POST, .pattern = "/v1/models", .handle = handle},
    {.methods = GW_GET | GW_DELETE, .pattern = "/v1/models/{id*}", .handle = handle},
    {.methods = GW_GET, .pattern = "/v1/models/special", .handle = handle},
    {.methods = GW_POST, .pattern = "/v1/jobs/{id}/cancel", .handle = handle},
    {.methods = GW_GET, .pattern = "/a/{x}/b/{y}/c/{rest*}", .handle = handle},
    {.methods = GW_GET, .pattern = "/v1/jobs/{id}", .handle = handle},
    {.methods = GW_POST, .pattern = "/adapters/{id*}/retire", .handle = handle},
};

static void test_match(void **state) {
    (void)state;
    enum { GET = GW_GET, HEAD = GW_HEAD, POST = GW_POST, DELETE = GW_DELETE };
    static const struct {
        unsigned method;
        const char *path;
        int route; // -1: none
        unsigned allowed;
        const char *params[4];
    } cases[] = {
        {GET, "/v1/models", 0, GET | HEAD | POST, {0}},
        {HEAD, "/v1/models", 0, GET | HEAD | POST, {0}},
        {POST, "/v1/models", 1, GET | HEAD | POST, {0}},
        {DELETE, "/v1/models", -1, GET | HEAD | POST, {0}},
        {0, "/v1/models", -1, GET | HEAD | POST, {0}},
        {GET, "/v1/models/", -1, 0, {0}},
        {GET, "/v1/model", -1, 0, {0}},
        {GET, "/v1/modelsx", -1, 0, {0}},
        {GET, "/V1/models", -1, 0, {0}},
        {GET, "//v1/models", -1, 0, {0}},
        {GET, "*", -1, 0, {0}},
        {DELETE, "/v1/models/a/b c", 2, GET | HEAD | DELETE, {"a/b c"}},
        {GET, "/v1/models/special", 3, GET | HEAD, {0}},
        {DELETE, "/v1/models/special", -1, GET | HEAD, {0}},
        {POST, "/v1/jobs/j-1/cancel", 4, POST, {"j-1"}},
        {POST, "/v1/jobs//cancel", -1, 0, {0}},
        {POST, "/v1/jobs/a/b/cancel", -1, 0, {0}},
        {POST, "/v1/jobs/a/cancel/", -1, 0, {0}},
        {GET, "/a/1/b/2/c/3/4", 5, GET | HEAD, {"1", "2", "3/4"}},
        {GET, "/a/1/b/2/c/", -1, 0, {0}},
        {GET, "/v1/jobs/j-1", 6, GET | HEAD, {"j-1"}},
        {POST, "/v1/jobs/j-1", -1, GET | HEAD, {0}},
        {GET, "/v1/jobs/j-1/other", -1, 0, {0}}, // not a job whose id has a slash
        {POST, "/v1/jobs/j-1/other", -1, 0, {0}},
        {GET, "/v1/jobs/j-1/", -1, 0, {0}},
        {POST, "/adapters/a/retire", 7, POST, {"a"}},
        {POST, "/adapters/org/a/retire", 7, POST, {"org/a"}},
        {POST, "/adapters//retire", -1, 0, {0}},
        {POST, "/adapters/retire", -1, 0, {0}},
        {POST, "/adapters/a/retired", -1, 0, {0}},
    };
    struct gw_router router;
    assert_int_equal(gw_router_init(&router, routes, sizeof routes / sizeof *routes, NULL), ERR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena a;
        struct gw_match m;
        arena_init(&a, 0);
        assert_true(gw_router_match(&router, &a, cases[i].method, cases[i].path, &m));
        int got = m.route ? (int)(m.route - routes) : -1;
        if (got != cases[i].route || m.allowed != cases[i].allowed)
            fail_msg("%s: route %d, methods %u", cases[i].path, got, m.allowed);
        for (size_t k = 0; k < 4; k++) {
            if (cases[i].params[k])
                assert_string_equal(m.params[k], cases[i].params[k]);
            else
                assert_null(m.params[k]);
        }
        arena_fini(&a);
    }
}

static void test_bad_patterns(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "v1",      "",          "/{a",   "/a}",  "/{a}b", "/{a/b}", "/{a}/{b}/{c}/{d}/{e}",
        "/{a{b}}", "/{a*}/{b}", "/{*a}", "/{a*",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct gw_route route = {.methods = GW_GET, .pattern = patterns[i], .handle = handle};
        struct gw_router router;
        if (!gw_router_init(&router, &route, 1, NULL))
            fail_msg("accepted: %s", patterns[i]);
    }
}

static void test_methods_text(void **state) {
    (void)state;
    char text[64];
    gw_methods_text(GW_OPTIONS | GW_POST | GW_GET, text, sizeof text);
    assert_string_equal(text, "GET, POST, OPTIONS");
    gw_methods_text(0, text, sizeof text);
    assert_string_equal(text, "");
    assert_string_equal(gw_method_text(GW_DELETE), "DELETE");
    assert_string_equal(gw_method_text(0), "other");
}

static void test_no_memory(void **state) {
    (void)state;
    struct gw_router router;
    assert_int_equal(gw_router_init(&router, routes, sizeof routes / sizeof *routes, NULL), ERR_OK);
    struct arena a;
    struct gw_target t;
    struct gw_match m;
    mem_fail_after(1, true);
    arena_init(&a, 0);
    assert_int_equal(gw_target_parse(&a, GW_GET, "/x", "a", &t, NULL), ERR_NOMEM);
    assert_int_equal(gw_target_parse(&a, GW_GET, "/x?y", "a", &t, NULL), ERR_NOMEM);
    assert_false(gw_router_match(&router, &a, GW_GET, "/v1/models/x", &m));
    mem_fail_after(0, false);
    arena_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets),      cmocka_unit_test(test_match),
        cmocka_unit_test(test_bad_patterns), cmocka_unit_test(test_methods_text),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
