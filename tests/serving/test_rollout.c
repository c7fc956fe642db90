// SPDX-License-Identifier: Apache-2.0
// The rolling swap over replicas that fail when they are told to: each step on each replica. The
// former version answers until all have the new one, and goes on answering when one has not.
#include "model/source.h"
#include "serving/rollout.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

enum { REPLICAS = 3 };
static const char ADAPTER[] = "tests/golden/adapters/qv";

struct rollout_fixture {
    struct mdl_config model;
    struct adp_registry *r;
    struct adp_version *former; // what answers meanwhile
    struct err_info info;
    char calls[256];
    char fail_step;       // 'l', 'v', 'w'; 'd': decide
    int32_t fail_replica; //
    bool decides, promotes;
};

static struct adp_version *load(struct rollout_fixture *x, bool verify) {
    struct adp_version *v;
    const struct adp_origin from = {.path = ADAPTER, .verify = verify};
    if (adp_load(x->r, "a", &from, &v, &x->info))
        fail_msg("%s", x->info.message);
    return v;
}

static uint64_t answers(struct rollout_fixture *x, const char *name) {
    struct adp_version *v;
    if (adp_resolve(x->r, name, &v, NULL))
        return 0;
    uint64_t number = adp_number(v);
    adp_unpin(v);
    return number;
}

static int setup(void **state) {
    static struct rollout_fixture x;
    struct mdl_source *src;
    memset(&x, 0, sizeof x);
    x.fail_replica = -1;
    assert_int_equal(mdl_source_open("tests/golden/models/hf-f32", &src, &x.info), ERR_OK);
    x.model = *mdl_source_config(src);
    mdl_source_close(src);
    const struct adp_config cfg = {.model = &x.model, .max_host = 4, .replicas = REPLICAS};
    assert_int_equal(adp_create(&cfg, &x.r, &x.info), ERR_OK);
    x.former = load(&x, false);
    assert_int_equal(adp_promote(x.r, "a", adp_number(x.former), &x.info), ERR_OK);
    *state = &x;
    return 0;
}

static int teardown(void **state) {
    struct rollout_fixture *x = *state;
    adp_release(x->former);
    adp_destroy(x->r);
    return 0;
}

// ---- the replicas

static enum err note(struct rollout_fixture *x, char step, int32_t replica, struct err_info *info) {
    size_t at = strlen(x->calls);
    snprintf(x->calls + at, sizeof x->calls - at, "%c%d ", step, (int)replica);
    assert_int_equal(answers(x, "a"), adp_number(x->former));
    if (x->fail_step != step || x->fail_replica != replica)
        return ERR_OK;
    return step == 'w' ? ERR_DEVICE : err_set(info, ERR_NOMEM, NULL, "no memory left");
}

static enum err on_load(void *arg, int32_t replica, struct adp_version *v, struct err_info *info) {
    adp_set_place(v, replica, ADP_PLACE_READY, NULL);
    return note(arg, 'l', replica, info);
}

static enum err on_verify(void *arg, int32_t replica, struct adp_version *v,
                          struct err_info *info) {
    (void)v;
    return note(arg, 'v', replica, info);
}

static enum err on_warm(void *arg, int32_t replica, struct adp_version *v, struct err_info *info) {
    (void)v;
    return note(arg, 'w', replica, info);
}

static enum err on_decide(void *arg, struct adp_version *v, bool *promote, struct err_info *info) {
    struct rollout_fixture *x = arg;
    (void)v;
    *promote = x->promotes;
    return note(x, 'd', -1, info);
}

static void on_drop(void *arg, int32_t replica, struct adp_version *v) {
    (void)note(arg, 'x', replica, NULL);
    adp_set_place(v, replica, ADP_PLACE_NONE, NULL);
}

static enum err roll(struct rollout_fixture *x, struct adp_version *v, bool *promote) {
    const struct rollout_ops ops = {
        .n_replicas = REPLICAS,
        .load = on_load,
        .verify = on_verify,
        .warm = on_warm,
        .decide = x->decides ? on_decide : NULL,
        .drop = on_drop,
        .arg = x,
    };
    x->calls[0] = '\0';
    return rollout_run(&ops, x->r, v, promote, &x->info);
}

struct shown {
    uint64_t version;
    struct adp_info info;
};

static void look(void *arg, const struct adp_info *i) {
    struct shown *s = arg;
    if (i->version == s->version)
        s->info = *i;
}

static void assert_shown(struct rollout_fixture *x, uint64_t version, enum adp_state state,
                         enum adp_place place, const char *reason) {
    struct shown s = {.version = version};
    assert_int_equal(adp_list(x->r, look, &s), ERR_OK);
    assert_string_equal(adp_state_name(s.info.state), adp_state_name(state));
    assert_string_equal(s.info.reason, reason);
    assert_int_equal(s.info.replicas, REPLICAS);
    for (int32_t i = 0; i < REPLICAS; i++)
        assert_string_equal(adp_place_name(s.info.replica[i].place), adp_place_name(place));
}

// ---- tests

static void one_after_another_then_the_name(void **state) {
    struct rollout_fixture *x = *state;
    struct adp_version *v = load(x, true);
    bool promote = true;
    assert_int_equal(roll(x, v, &promote), ERR_OK);
    assert_string_equal(x->calls, "l0 v0 w0 l1 v1 w1 l2 v2 w2 ");
    assert_true(promote);
    assert_int_equal(answers(x, "a"), 2);
    assert_shown(x, 2, ADP_ACTIVE, ADP_PLACE_READY, "");
    // And back, at once.
    assert_int_equal(adp_roll_back(x->r, "a", &x->info), ERR_OK);
    assert_int_equal(answers(x, "a"), 1);
    adp_release(v);
}

static void a_failure_anywhere_undoes_all(void **state) {
    struct rollout_fixture *x = *state;
    static const char steps[] = "lvw", *const names[] = {"load", "verify", "warm-up"};
    uint64_t seen = 0, told, number = 1;
    for (int32_t replica = 0; replica < REPLICAS; replica++)
        for (int s = 0; s < 3; s++) {
            struct adp_version *v = load(x, true);
            bool promote = true;
            char expect[128] = "", reason[128];
            number++;
            for (int32_t i = 0; i <= replica; i++)
                for (int k = 0; k < 3 && (i < replica || k <= s); k++)
                    snprintf(expect + strlen(expect), 8, "%c%d ", steps[k], (int)i);
            for (int32_t i = replica; i >= 0; i--)
                snprintf(expect + strlen(expect), 8, "x%d ", (int)i);
            x->fail_step = steps[s];
            x->fail_replica = replica;
            assert_int_equal(roll(x, v, &promote), s == 2 ? ERR_DEVICE : ERR_NOMEM);
            assert_string_equal(x->calls, expect);
            assert_false(promote);
            snprintf(reason, sizeof reason, "replica %d, %s: %s", (int)replica, names[s],
                     s == 2 ? err_text(ERR_DEVICE) : "no memory left");
            assert_string_equal(x->info.message, reason);
            assert_shown(x, number, ADP_FAILED, ADP_PLACE_NONE, reason);
            assert_int_equal(answers(x, "a"), 1);
            char name[16];
            snprintf(name, sizeof name, "a@%d", (int)number);
            assert_int_equal(answers(x, name), 0);
            // The engines hear of it, so that their slots and caches let it go.
            assert_int_equal(adp_take_retired(x->r, &seen, &told, 1), 1);
            assert_int_equal(told, number);
            adp_release(v);
        }
}

// What has been good once is not lost for want of a slot.
static void a_ready_version_stays_ready(void **state) {
    struct rollout_fixture *x = *state;
    struct adp_version *v = load(x, false);
    bool promote = true;
    x->fail_step = 'l';
    x->fail_replica = 1;
    assert_int_equal(roll(x, v, &promote), ERR_NOMEM);
    assert_int_equal(answers(x, "a"), 1);
    assert_int_equal(answers(x, "a@2"), 2);
    assert_shown(x, 2, ADP_READY, ADP_PLACE_NONE, "");
    x->fail_replica = -1;
    promote = true;
    assert_int_equal(roll(x, v, &promote), ERR_OK);
    assert_int_equal(answers(x, "a"), 2);
    adp_release(v);
}

static void the_decision_comes_last(void **state) {
    struct rollout_fixture *x = *state;
    static const char all[] = "l0 v0 w0 l1 v1 w1 l2 v2 w2 d-1 ";
    x->decides = true;
    bool promote = true;
    struct adp_version *v = load(x, true); // 2: kept beside the active one
    assert_int_equal(roll(x, v, &promote), ERR_OK);
    assert_string_equal(x->calls, all);
    assert_false(promote);
    assert_int_equal(answers(x, "a"), 1);
    assert_shown(x, 2, ADP_READY, ADP_PLACE_READY, "");
    adp_release(v);
    v = load(x, true); // 3: refused
    x->fail_step = 'd';
    promote = true;
    assert_int_equal(roll(x, v, &promote), ERR_NOMEM);
    assert_string_equal(x->calls, "l0 v0 w0 l1 v1 w1 l2 v2 w2 d-1 x2 x1 x0 ");
    assert_shown(x, 3, ADP_FAILED, ADP_PLACE_NONE, "no memory left");
    assert_int_equal(answers(x, "a"), 1);
    adp_release(v);
    v = load(x, true); // 4: promoted although nobody asked for it
    x->fail_step = 0;
    x->promotes = true;
    promote = false;
    assert_int_equal(roll(x, v, &promote), ERR_OK);
    assert_true(promote);
    assert_int_equal(answers(x, "a"), 4);
    adp_release(v);
}

static void each_replica_hears_of_each_end(void **state) {
    struct rollout_fixture *x = *state;
    uint64_t seen[REPLICAS] = {0}, told[8];
    x->fail_step = 'l';
    x->fail_replica = 0;
    for (int round = 1; round < 4; round++) {
        bool promote = true;
        struct adp_version *v = load(x, true);
        assert_int_equal(roll(x, v, &promote), ERR_NOMEM);
        adp_release(v);
        for (int32_t i = 0; i < REPLICAS - 1; i++) {
            assert_int_equal(adp_take_retired(x->r, &seen[i], told, 8), 1);
            assert_int_equal(told[0], 1 + round);
        }
    }
    assert_int_equal(adp_take_retired(x->r, &seen[REPLICAS - 1], told, 8), 3); // slept meanwhile
    assert_int_equal(told[2], 4);
}

// While a name is in use its former version stays in host memory, whatever else is loaded.
static void the_way_back_reads_no_file(void **state) {
    struct rollout_fixture *x = *state;
    const struct mdl_adapter *host;
    struct adp_version *v = load(x, true);
    bool promote = true;
    assert_int_equal(roll(x, v, &promote), ERR_OK);
    for (int i = 0; i < 8; i++) {
        struct adp_version *other;
        const struct adp_origin from = {.path = ADAPTER};
        assert_int_equal(adp_load(x->r, "other", &from, &other, &x->info), ERR_OK);
        adp_release(other);
        assert_int_equal(adp_host_take(v, &host, &x->info), ERR_OK);
        adp_host_drop(v);
    }
    struct shown s = {.version = 1};
    assert_int_equal(adp_list(x->r, look, &s), ERR_OK);
    assert_true(s.info.former);
    assert_true(s.info.in_host_memory);
    adp_release(v);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(one_after_another_then_the_name), TEST(a_failure_anywhere_undoes_all),
        TEST(a_ready_version_stays_ready),     TEST(the_decision_comes_last),
        TEST(each_replica_hears_of_each_end),  TEST(the_way_back_reads_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
