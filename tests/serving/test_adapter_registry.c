// SPDX-License-Identifier: Apache-2.0
// The registry of adapters: each edge of a version's life and no other, names and numbers,
// promotion, the way back, retirement under pins, host memory, content that changes, failing
// allocations.
#include "base/mem.h"
#include "model/source.h"
#include "serving/adapter_registry.h"
#include "tests/serving/adapter_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

static const char *const base_names[] = {"base"};

struct rx {
    struct mdl_config model;
    struct adp_registry *r;
    struct adapter_dir dir;
    struct err_info info;
};

static void open_registry(struct rx *x, int32_t max_host) {
    struct adp_config cfg = {
        .model = &x->model, .max_host = max_host, .base = base_names, .n_base = 1};
    assert_int_equal(adp_create(&cfg, &x->r, &x->info), ERR_OK);
}

static void rx_open(struct rx *x, int32_t max_host) {
    struct mdl_source *src;
    memset(x, 0, sizeof *x);
    assert_int_equal(mdl_source_open("tests/golden/models/hf-f32", &src, &x->info), ERR_OK);
    x->model = *mdl_source_config(src);
    mdl_source_close(src);
    open_registry(x, max_host);
    adapter_dir_open(&x->dir);
}

static void rx_close(struct rx *x) {
    adp_destroy(x->r);
    adapter_dir_close(&x->dir);
}

static uint64_t load_from(struct rx *x, const char *name, const char *path) {
    struct adp_version *v;
    const struct adp_origin from = {.path = path};
    if (adp_load(x->r, name, &from, &v, &x->info))
        fail_msg("%s", x->info.message);
    uint64_t number = adp_number(v);
    adp_release(v);
    return number;
}

static uint64_t load(struct rx *x, const char *name) {
    return load_from(x, name, "tests/golden/adapters/qv");
}

static void promote(struct rx *x, const char *name, uint64_t version) {
    if (adp_promote(x->r, name, version, &x->info))
        fail_msg("%s", x->info.message);
}

struct found {
    uint64_t version;
    struct adp_info info;
    int n;
};

static void look(void *arg, const struct adp_info *i) {
    struct found *f = arg;
    if (i->version != f->version)
        return;
    f->info = *i;
    f->n++;
}

static struct adp_info info_of(struct rx *x, uint64_t version) {
    struct found f = {.version = version};
    assert_int_equal(adp_list(x->r, look, &f), ERR_OK);
    assert_int_equal(f.n, 1);
    return f.info;
}

static void assert_state(struct rx *x, uint64_t version, enum adp_state state) {
    assert_string_equal(adp_state_name(info_of(x, version).state), adp_state_name(state));
}

static uint64_t resolve(struct rx *x, const char *name) {
    struct adp_version *v;
    enum err e = adp_resolve(x->r, name, &v, &x->info);
    assert_true(e == ERR_OK || e == ERR_NO_MODEL);
    if (e)
        return 0;
    uint64_t number = adp_number(v);
    adp_unpin(v);
    return number;
}

static void edges_are_those_of_the_diagram(void **state) {
    (void)state;
    static const char *const table[ADP_STATES] = {
        // to: staged loading verifying ready active draining retired failed rolled_back
        [ADP_STAGED] = ".x.....x.",  [ADP_LOADING] = "..x....x.", [ADP_VERIFYING] = "...x...xx",
        [ADP_READY] = "....xx...",   [ADP_ACTIVE] = "...x.x..x",  [ADP_DRAINING] = "......x..",
        [ADP_RETIRED] = ".........", [ADP_FAILED] = ".........",  [ADP_ROLLED_BACK] = "....xx...",
    };
    for (int from = 0; from < ADP_STATES; from++)
        for (int to = 0; to < ADP_STATES; to++)
            assert_int_equal(adp_edge_is_legal((enum adp_state)from, (enum adp_state)to),
                             table[from][to] == 'x');
}

static void names_stand_for_versions(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    uint64_t v1 = load(&x, "sql"), v2 = load(&x, "sql"), other = load(&x, "other");
    assert_true(v1 == 1 && v2 == 2 && other == 3);
    assert_int_equal(resolve(&x, "sql"), 0); // ready is not active
    assert_int_equal(resolve(&x, "sql@1"), 1);
    promote(&x, "sql", v1);
    assert_int_equal(resolve(&x, "sql"), 1);
    promote(&x, "sql", v2);
    promote(&x, "sql", v2); // again: nothing changes
    assert_int_equal(resolve(&x, "sql"), 2);
    assert_int_equal(resolve(&x, "sql@1"), 1);
    static const char *const unknown[] = {"sql@3",
                                          "sql@",
                                          "sql@0",
                                          "sql@01",
                                          "sql@2x",
                                          "@2",
                                          "SQL",
                                          "",
                                          "other",
                                          "sql@-2",
                                          "sql@18446744073709551618",
                                          "other@2"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(resolve(&x, unknown[i]), 0);
    assert_int_equal(adp_next_number(x.r), 4);
    rx_close(&x);
}

static void bad_names_are_refused(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    char longest[ADP_NAME_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[ADP_NAME_MAX + 1] = '\0';
    const char *const bad[] = {"",      "a b",  "a@1",  "a\n",    "\xc3\xa4", "base",
                               longest, "../x", "a/..", "a/../b", "./a",      "a/./b",
                               "..",    "/a",   "a/",   "a//b",   ".a",       "-a",
                               ":a",    "a\\b", "a%2e", "a*b",    "a\"b"};
    const char *const good[] = {"a",    "A.b-C_d", "org/Name-7B",  "ft:tiny:graft::0a1b",
                                "1",    "a/b/c.d", "a..b",         "a/...",
                                "a/.b", "9:x",     "ft:o/m:g:s:i", "a/-b"};
    struct adp_version *v;
    const struct adp_origin from = {.path = "tests/golden/adapters/qv"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(adp_load(x.r, bad[i], &from, &v, &x.info), ERR_INVALID);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(adp_check_name(x.r, good[i], &x.info), ERR_OK);
    longest[ADP_NAME_MAX] = '\0';
    assert_int_equal(adp_check_name(x.r, longest, &x.info), ERR_OK);
    assert_int_equal(adp_next_number(x.r), 1);
    rx_close(&x);
}

static void the_former_version_comes_back(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    uint64_t v[4];
    for (int i = 0; i < 4; i++)
        v[i] = load(&x, "a");
    promote(&x, "a", v[0]);
    assert_int_equal(adp_roll_back(x.r, "a", &x.info), ERR_INVALID);
    promote(&x, "a", v[1]);
    assert_state(&x, v[0], ADP_READY);
    assert_int_equal(adp_roll_back(x.r, "a", &x.info), ERR_OK);
    assert_int_equal(resolve(&x, "a"), v[0]);
    assert_state(&x, v[1], ADP_ROLLED_BACK);
    assert_int_equal(resolve(&x, "a@2"), v[1]);
    assert_int_equal(adp_roll_back(x.r, "a", &x.info), ERR_INVALID);
    promote(&x, "a", v[1]); // forward again
    assert_state(&x, v[0], ADP_READY);
    promote(&x, "a", v[2]); // superseded twice
    assert_state(&x, v[0], ADP_RETIRED);
    assert_state(&x, v[1], ADP_READY);
    assert_int_equal(adp_promote(x.r, "a", v[0], &x.info), ERR_INVALID);
    assert_int_equal(adp_promote(x.r, "a", 99, &x.info), ERR_NOT_FOUND);
    assert_int_equal(adp_promote(x.r, "b", v[3], &x.info), ERR_NOT_FOUND);
    assert_int_equal(adp_roll_back(x.r, "b", &x.info), ERR_NOT_FOUND);
    rx_close(&x);
}

static void pins_keep_a_version_until_its_last_request(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    uint64_t n = load(&x, "a"), seen = 0, told[4];
    struct adp_version *v;
    promote(&x, "a", n);
    assert_int_equal(adp_resolve(x.r, "a", &v, &x.info), ERR_OK);
    adp_pin(v);
    assert_int_equal(adp_retire(x.r, "a", 0, &x.info), ERR_OK);
    assert_state(&x, n, ADP_DRAINING);
    assert_int_equal(resolve(&x, "a"), 0);
    assert_int_equal(resolve(&x, "a@1"), 0);
    assert_int_equal(adp_retire(x.r, "a", 0, &x.info), ERR_NOT_FOUND);
    assert_int_equal(adp_retire(x.r, "a", n, &x.info), ERR_NOT_FOUND);
    adp_unpin(v);
    assert_state(&x, n, ADP_DRAINING);
    assert_int_equal(adp_take_retired(x.r, &seen, told, 4), 0);
    const struct mdl_adapter *host; // a draining version can still become resident
    assert_int_equal(adp_host_take(v, &host, &x.info), ERR_OK);
    adp_host_drop(v);
    adp_unpin(v);
    assert_state(&x, n, ADP_RETIRED);
    assert_true(
        info_of(&x, n).in_host_memory); // who unpinned it may be an engine: it frees nothing
    adp_sweep(x.r);
    assert_false(info_of(&x, n).in_host_memory);
    assert_int_equal(adp_take_retired(x.r, &seen, told, 4), 1);
    assert_int_equal(told[0], n);
    assert_int_equal(adp_take_retired(x.r, &seen, told, 4), 0);
    assert_int_equal(load(&x, "a"), 2); // a number is never used again
    rx_close(&x);
}

static void aliases(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    uint64_t v1 = load(&x, "a"), v2 = load(&x, "a");
    promote(&x, "a", v1);
    assert_int_equal(adp_alias(x.r, "prod", "nothing", &x.info), ERR_NO_MODEL);
    assert_int_equal(adp_alias(x.r, "a", "a", &x.info), ERR_INVALID);
    assert_int_equal(adp_alias(x.r, "base", "a", &x.info), ERR_INVALID);
    assert_int_equal(adp_alias(x.r, "prod", "a", &x.info), ERR_OK);
    assert_int_equal(adp_alias(x.r, "second", "prod", &x.info), ERR_NO_MODEL);
    promote(&x, "a", v2);
    assert_int_equal(resolve(&x, "prod"), v2);
    assert_int_equal(adp_alias(x.r, "prod", "a@1", &x.info), ERR_OK);
    assert_int_equal(resolve(&x, "prod"), v1);
    assert_int_equal(adp_retire(x.r, "a", 0, &x.info), ERR_OK);
    assert_int_equal(resolve(&x, "prod"), 0);
    assert_int_equal(adp_alias(x.r, "prod", NULL, &x.info), ERR_OK);
    assert_int_equal(adp_alias(x.r, "prod", NULL, &x.info), ERR_NOT_FOUND);

    // One of an earlier process waits for its target.
    char target[ADP_NAME_MAX + 32];
    assert_false(adp_alias_target(x.r, "later", target));
    assert_int_equal(adp_alias_again(x.r, "later", "not:yet", NULL, &x.info), ERR_OK);
    assert_int_equal(adp_alias_again(x.r, "base", "not:yet", NULL, &x.info), ERR_INVALID);
    assert_false(adp_knows(x.r, "later"));
    assert_true(adp_alias_target(x.r, "later", target));
    assert_string_equal(target, "not:yet");
    assert_int_equal(adp_alias(x.r, "later", NULL, &x.info), ERR_OK);
    rx_close(&x);
}

enum { SEEN = 8192 };

// `out`: SEEN bytes, text so far.
static void see_alias(void *arg, const struct adp_alias_info *a) {
    char *out = arg;
    size_t n = strlen(out);
    snprintf(out + n, SEEN - n, "%s -> %s (%s)\n", a->alias, a->target, a->former);
}

static void see_served(void *arg, const struct adp_alias_info *a) {
    bool *served = arg;
    *served = a->served;
}

static void an_alias_goes_back(void **state) {
    (void)state;
    struct rx x;
    char target[ADP_NAME_MAX + 32], seen[SEEN] = "";
    bool served = false;
    rx_open(&x, 4);
    uint64_t va = load(&x, "a"), vb = load(&x, "b");
    promote(&x, "a", va);
    promote(&x, "b", vb);
    assert_int_equal(adp_alias(x.r, "prod", "a", &x.info), ERR_OK);
    assert_int_equal(adp_roll_back(x.r, "prod", &x.info), ERR_INVALID);
    assert_string_equal(x.info.message,
                        "alias `prod` stands for `a` and has no former target to go back to");
    assert_false(adp_alias_former(x.r, "prod", target));
    assert_int_equal(adp_alias(x.r, "prod", "b", &x.info), ERR_OK);
    assert_int_equal(adp_alias(x.r, "prod", "b", &x.info), ERR_OK); // again: no change
    assert_true(adp_alias_former(x.r, "prod", target));
    assert_string_equal(target, "a");
    assert_int_equal(adp_roll_back(x.r, "prod", &x.info), ERR_OK);
    assert_int_equal(resolve(&x, "prod"), va);
    assert_int_equal(adp_roll_back(x.r, "prod", &x.info), ERR_OK); // and forward
    assert_int_equal(resolve(&x, "prod"), vb);

    // What is not served any more is no way back, and who asks for it is told what it was.
    assert_int_equal(adp_retire(x.r, "a", 0, &x.info), ERR_OK);
    assert_int_equal(adp_roll_back(x.r, "prod", &x.info), ERR_INVALID);
    assert_string_equal(x.info.message,
                        "`a`, which alias `prod` stood for before, is not served any more");
    assert_int_equal(resolve(&x, "prod"), vb);
    assert_int_equal(adp_aliases(x.r, see_served, &served), ERR_OK);
    assert_true(served);
    assert_int_equal(adp_retire(x.r, "b", 0, &x.info), ERR_OK);
    assert_int_equal(resolve(&x, "prod"), 0);
    assert_string_equal(x.info.message,
                        "alias `prod` stands for `b`, which is not served any more");
    assert_int_equal(adp_aliases(x.r, see_alias, seen), ERR_OK);
    assert_string_equal(seen, "prod -> b (a)\n");
    assert_int_equal(adp_aliases(x.r, see_served, &served), ERR_OK);
    assert_false(served);

    // A new one has no past; one of an earlier process has its own.
    assert_int_equal(adp_alias(x.r, "prod", NULL, &x.info), ERR_OK);
    assert_int_equal(adp_alias_again(x.r, "prod", "not:yet", "c", &x.info), ERR_OK);
    assert_true(adp_alias_former(x.r, "prod", target));
    assert_string_equal(target, "c");
    assert_true(adp_alias_target(x.r, "prod", target));
    assert_string_equal(target, "not:yet");
    rx_close(&x);
}

static void a_bad_folder_fails_its_version_alone(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    struct adp_version *v;
    const struct adp_origin from = {.path = "tests/golden/adapters/quantised"};
    assert_int_equal(adp_load(x.r, "bad", &from, &v, &x.info), ERR_FORMAT);
    assert_null(v);
    assert_state(&x, 1, ADP_FAILED);
    assert_string_equal(info_of(&x, 1).reason, x.info.message);
    assert_non_null(strstr(x.info.message, "expected [4, 48]"));
    assert_int_equal(adp_promote(x.r, "bad", 1, &x.info), ERR_INVALID);
    const struct adp_origin digest = {
        .path = "tests/golden/adapters/qv", .version = 7, .digest = "00"};
    assert_int_equal(adp_load(x.r, "bad", &digest, &v, &x.info), ERR_FORMAT);
    assert_state(&x, 7, ADP_FAILED);
    assert_int_equal(load(&x, "good"), 8);
    rx_close(&x);
}

// Held by whoever verifies; no name reaches it, not even name@number.
static struct adp_version *load_verifying(struct rx *x) {
    struct adp_version *v;
    const struct adp_origin from = {.path = "tests/golden/adapters/qv", .verify = true};
    assert_int_equal(adp_load(x->r, "new", &from, &v, &x->info), ERR_OK);
    return v;
}

static void a_version_is_verified_before_anything_uses_it(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    struct adp_version *v = load_verifying(&x);
    assert_state(&x, 1, ADP_VERIFYING);
    assert_int_equal(resolve(&x, "new@1"), 0);
    assert_int_equal(adp_promote(x.r, "new", 1, &x.info), ERR_INVALID);
    assert_non_null(strstr(x.info.message, "version 1 of `new` is verifying, not ready"));
    assert_int_equal(adp_retire(x.r, "new", 1, &x.info), ERR_NOT_FOUND);
    adp_pin(v); // the verifier's requests
    adp_unpin(v);
    assert_state(&x, 1, ADP_VERIFYING);
    adp_verified(v, ERR_OK, NULL);
    adp_release(v);
    assert_state(&x, 1, ADP_READY);
    promote(&x, "new", 1);
    assert_int_equal(resolve(&x, "new"), 1);
    rx_close(&x);
}

static void a_version_that_fails_goes_with_its_last_request(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 4);
    struct adp_version *v = load_verifying(&x);
    uint64_t seen = 0, told;
    adp_pin(v);
    err_set(&x.info, ERR_INVALID, NULL, "sample 3 is another");
    adp_verified(v, ERR_INVALID, &x.info);
    assert_state(&x, 1, ADP_FAILED);
    assert_string_equal(info_of(&x, 1).reason, "sample 3 is another");
    assert_int_equal(resolve(&x, "new@1"), 0);
    adp_release(v);
    // Failed versions are forgotten after a while, but not one that a request still runs on.
    const struct adp_origin bad = {.path = "tests/golden/adapters/quantised"};
    struct adp_version *none;
    for (int i = 0; i < 200; i++)
        assert_int_equal(adp_load(x.r, "bad", &bad, &none, &x.info), ERR_FORMAT);
    while (adp_take_retired(x.r, &seen, &told, 1))
        assert_int_not_equal(told, 1); // the engine keeps its slot as long
    assert_state(&x, 1, ADP_FAILED);
    adp_unpin(v);
    assert_int_equal(adp_take_retired(x.r, &seen, &told, 1), 1);
    assert_int_equal(told, 1);
    adp_sweep(x.r);
    struct found f = {.version = 1};
    assert_int_equal(adp_list(x.r, look, &f), ERR_OK);
    assert_int_equal(f.n, 0);
    rx_close(&x);
}

// What is rolled back again and again, or loaded and never promoted, is refused at a bound; what an
// earlier process acknowledged is not.
static void living_versions_are_bounded(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 2);
    promote(&x, "a", load(&x, "a"));
    for (int i = 1; i < ADP_MAX_OF_NAME; i++) {
        promote(&x, "a", load(&x, "a"));
        assert_int_equal(adp_roll_back(x.r, "a", &x.info), ERR_OK);
    }
    struct adp_version *v;
    const uint64_t next = adp_next_number(x.r);
    struct adp_origin from = {.path = "tests/golden/adapters/qv"};
    assert_int_equal(adp_load(x.r, "a", &from, &v, &x.info), ERR_LIMIT);
    assert_null(v);
    assert_string_equal(x.info.param, "lora_name");
    assert_non_null(strstr(x.info.message, "`a` has 1024 versions"));
    assert_int_equal(adp_next_number(x.r), next);
    from.version = next;
    assert_int_equal(adp_load(x.r, "a", &from, &v, &x.info), ERR_OK);
    adp_release(v);
    load(&x, "b");
    assert_int_equal(adp_retire(x.r, "a", 2, &x.info), ERR_OK);
    assert_int_equal(adp_retire(x.r, "a", 3, &x.info), ERR_OK);
    load(&x, "a");
    from.version = 0;
    assert_int_equal(adp_load(x.r, "a", &from, &v, &x.info), ERR_LIMIT);
    // And of all names together.
    char name[16];
    for (int i = ADP_MAX_OF_NAME + 1; i < ADP_MAX_VERSIONS; i++) {
        snprintf(name, sizeof name, "n%d", i);
        load(&x, name);
    }
    assert_int_equal(adp_load(x.r, "one-more", &from, &v, &x.info), ERR_LIMIT);
    assert_non_null(strstr(x.info.message, "there are 8192 versions of adapters"));
    rx_close(&x);
}

static void dead_versions_are_forgotten(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 2);
    for (int i = 0; i < 200; i++)
        promote(&x, "a", load(&x, "a"));
    struct found f = {.version = 1};
    assert_int_equal(adp_list(x.r, look, &f), ERR_OK);
    assert_int_equal(f.n, 0);
    assert_state(&x, 200, ADP_ACTIVE);
    assert_state(&x, 199, ADP_READY);
    assert_state(&x, 198, ADP_RETIRED);
    uint64_t seen = 0, told[300];
    assert_int_equal(adp_take_retired(x.r, &seen, told, 300), 198);
    rx_close(&x);
}

static void host_memory_is_bounded_and_read_again(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 2);
    struct adp_version *v[4];
    char path[128];
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "n%d", i);
        adapter_make_random(&x.dir, name, &x.model, (uint64_t)i);
        snprintf(path, sizeof path, "%s/%s", x.dir.path, name);
        const struct adp_origin from = {.path = path};
        assert_int_equal(adp_load(x.r, name, &from, &v[i], &x.info), ERR_OK);
    }
    assert_false(info_of(&x, 1).in_host_memory);
    assert_false(info_of(&x, 2).in_host_memory);
    assert_true(info_of(&x, 3).in_host_memory && info_of(&x, 4).in_host_memory);
    const struct mdl_adapter *a, *b, *c;
    assert_int_equal(adp_host_take(v[0], &a, &x.info), ERR_OK); // 3 goes
    assert_int_equal(adp_host_take(v[1], &b, &x.info), ERR_OK); // 4 goes
    assert_int_equal(adp_host_take(v[2], &c, &x.info), ERR_OK); // nobody can go
    assert_true(info_of(&x, 1).in_host_memory && info_of(&x, 2).in_host_memory);
    assert_false(info_of(&x, 4).in_host_memory);
    assert_true(a->max_r == 1 && b->max_r == 2 && c->max_r == 3);
    for (int i = 0; i < 3; i++)
        adp_host_drop(v[i]);
    int in = 0;
    for (uint64_t i = 1; i <= 4; i++)
        in += info_of(&x, i).in_host_memory;
    assert_int_equal(in, 2);
    // The folder of the fourth gets other content: the version stays what it was, so it cannot be
    // read.
    adapter_make_random(&x.dir, "n3", &x.model, 77);
    assert_int_equal(adp_host_take(v[3], &a, &x.info), ERR_FORMAT);
    assert_non_null(strstr(x.info.message, "has changed since version 4 of `n3` was loaded"));
    adapter_make_random(&x.dir, "n3", &x.model, 3);
    assert_int_equal(adp_host_take(v[3], &a, &x.info), ERR_OK);
    adp_host_drop(v[3]);
    snprintf(path, sizeof path, "%s/n0", x.dir.path);
    assert_int_equal(adp_set_path(v[3], path), ERR_OK);
    for (int i = 0; i < 4; i++)
        adp_release(v[i]);
    rx_close(&x);
}

// ---- changes as values

static void see_serving(void *arg, const struct adp_info *i) {
    char *out = arg;
    size_t n = strlen(out);
    if (i->state == ADP_READY || i->state == ADP_ACTIVE || i->state == ADP_ROLLED_BACK)
        snprintf(out + n, SEEN - n, "%s@%d %s %d%d\n", i->name, (int)i->version,
                 adp_state_name(i->state), i->active, i->former);
}

static void see(struct rx *x, const struct adp_change *c, char out[SEEN]) {
    out[0] = '\0';
    assert_int_equal(adp_list_after(x->r, c, see_serving, out), ERR_OK);
    // One alias at most is changed at a time, and their order says nothing: see them one by one.
    for (char name[2] = "p"; name[0] < 's'; name[0]++) {
        char all[SEEN] = "", want[8];
        assert_int_equal(adp_aliases_after(x->r, c, see_alias, all), ERR_OK);
        snprintf(want, sizeof want, "%s -> ", name);
        const char *at = strstr(all, want);
        size_t n = strlen(out);
        if (at)
            snprintf(out + n, SEEN - n, "%.*s\n", (int)strcspn(at, "\n"), at);
    }
}

static struct adp_change some_change(uint32_t *seed) {
    static const char *const names[] = {"a", "b", "c"};
    static const char *const aliases_of[] = {"p", "q", "r", "a"};
    static const char *const targets[] = {"a", "b", "a@1", "b@5", "p", NULL};
    uint32_t x = *seed = *seed * 1664525 + 1013904223;
    struct adp_change c = {.name = names[(x >> 8) % 3], .version = 1 + (x >> 12) % 9};
    switch ((x >> 20) % 8) {
    case 0:
        c.kind = ADP_CHANGE_RETIRE;
        break;
    case 1:
    case 2:
        c = (struct adp_change){ADP_CHANGE_ALIAS, aliases_of[(x >> 8) % 4], 0,
                                targets[(x >> 12) % 6]};
        break;
    default:
        c.kind = ADP_CHANGE_PROMOTE;
    }
    return c;
}

// What a change is said to lead to is what it leads to; one that is said to be refused is, and
// changes nothing.
static void a_change_does_what_was_foretold(void **state) {
    (void)state;
    struct rx x;
    const struct adp_change none = {.kind = ADP_CHANGE_NONE};
    char foretold[SEEN], found[SEEN], before[SEEN];
    uint32_t seed = 7;
    int made[4] = {0};
    for (int round = 0; round < 40; round++) {
        rx_open(&x, 4);
        for (int i = 0; i < 8; i++)
            load(&x, i % 2 ? "b" : "a");
        for (int i = 0; i < 30; i++) {
            struct adp_change c = some_change(&seed);
            see(&x, &none, before);
            enum err e = adp_check(x.r, &c, &x.info);
            see(&x, &c, foretold);
            assert_int_equal(adp_make(x.r, &c, &x.info), e);
            see(&x, &none, found);
            assert_string_equal(found, e ? before : foretold);
            made[c.kind] += !e;
            if (i % 5 == 4)
                (void)adp_roll_back(x.r, i % 2 ? "b" : "a", &x.info);
        }
        rx_close(&x);
    }
    assert_true(made[ADP_CHANGE_PROMOTE] > 50 && made[ADP_CHANGE_RETIRE] > 20 &&
                made[ADP_CHANGE_ALIAS] > 50);
}

// What an earlier process had: states and names come back as they were.
static void a_version_comes_back_as_it_was(void **state) {
    (void)state;
    struct rx x;
    struct adp_version *v;
    rx_open(&x, 4);
    const struct adp_origin from = {
        .path = "tests/golden/adapters/qv", .version = 9, .created = 1234567, .rolled_back = true};
    assert_int_equal(adp_load(x.r, "a", &from, &v, &x.info), ERR_OK);
    adp_release(v);
    assert_state(&x, 9, ADP_ROLLED_BACK);
    assert_int_equal(info_of(&x, 9).created, 1234567);
    uint64_t v1 = load(&x, "a"), v2 = load(&x, "a");
    assert_int_equal(adp_name_again(x.r, "a", v1, v1, &x.info), ERR_FORMAT);
    assert_int_equal(adp_name_again(x.r, "a", 9, v1, &x.info), ERR_FORMAT);
    assert_int_equal(adp_name_again(x.r, "a", v1, 99, &x.info), ERR_FORMAT);
    assert_int_equal(resolve(&x, "a"), 0);
    assert_int_equal(adp_name_again(x.r, "a", v1, v2, &x.info), ERR_OK);
    assert_int_equal(resolve(&x, "a"), v1);
    assert_true(info_of(&x, v2).former);
    assert_int_equal(adp_roll_back(x.r, "a", &x.info), ERR_OK);
    assert_int_equal(resolve(&x, "a"), v2);
    promote(&x, "a", 9);
    assert_int_equal(resolve(&x, "a"), 9);
    rx_close(&x);
}

static enum err use_all(struct rx *x) {
    struct adp_version *v, *w;
    const struct mdl_adapter *host;
    const struct adp_origin from = {.path = "tests/golden/adapters/qv"};
    struct adp_config cfg = {.model = &x->model, .max_host = 1, .base = base_names, .n_base = 1};
    enum err e = adp_create(&cfg, &x->r, &x->info);
    if (e)
        return e;
    if (!(e = adp_load(x->r, "a", &from, &v, &x->info))) {
        e = adp_promote(x->r, "a", 1, &x->info);
        const struct adp_change c = {ADP_CHANGE_ALIAS, "alias", 0, "a"};
        struct found f = {0};
        if (!e)
            e = adp_list_after(x->r, &c, look, &f);
        if (!e && !(e = adp_check(x->r, &c, &x->info)))
            e = adp_make(x->r, &c, &x->info);
        adp_release(v);
    }
    if (!e && !(e = adp_load(x->r, "b", &from, &v, &x->info)))
        adp_release(v);
    if (!e && !(e = adp_resolve(x->r, "alias", &w, &x->info))) {
        if (!(e = adp_host_take(w, &host, &x->info)))
            adp_host_drop(w);
        adp_unpin(w);
    }
    struct found f = {0};
    if (!e)
        e = adp_list(x->r, look, &f);
    adp_destroy(x->r);
    return e;
}

static void failing_allocations(void **state) {
    (void)state;
    struct rx x;
    rx_open(&x, 1);
    struct adp_registry *mine = x.r;
    int64_t live = mem_live_blocks();
    mem_fail_after(0, false);
    assert_int_equal(use_all(&x), ERR_OK);
    uint64_t n = mem_fail_count();
    assert_int_equal(mem_live_blocks(), live);
    assert_true(n > 20);
    for (uint64_t i = 1; i <= n; i++) {
        mem_fail_after(i, false);
        enum err e = use_all(&x);
        mem_fail_after(0, false);
        assert_true(e == ERR_NOMEM ||
                    e == ERR_OK); // without memory for a reason it is still FAILED
        assert_int_equal(mem_live_blocks(), live);
    }
    x.r = mine;
    rx_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_are_those_of_the_diagram),
        cmocka_unit_test(names_stand_for_versions),
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(the_former_version_comes_back),
        cmocka_unit_test(pins_keep_a_version_until_its_last_request),
        cmocka_unit_test(aliases),
        cmocka_unit_test(an_alias_goes_back),
        cmocka_unit_test(a_bad_folder_fails_its_version_alone),
        cmocka_unit_test(a_version_is_verified_before_anything_uses_it),
        cmocka_unit_test(a_version_that_fails_goes_with_its_last_request),
        cmocka_unit_test(dead_versions_are_forgotten),
        cmocka_unit_test(living_versions_are_bounded),
        cmocka_unit_test(host_memory_is_bounded_and_read_again),
        cmocka_unit_test(a_change_does_what_was_foretold),
        cmocka_unit_test(a_version_comes_back_as_it_was),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
