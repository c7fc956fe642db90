// SPDX-License-Identifier: Apache-2.0
// A version's matrices in device memory: made once however many replicas ask, the files read once,
// the memory of one that ended used for the next, failing allocations.
#include "base/mem.h"
#include "serving/adapter_registry.h"
#include "tests/model/model_fixture.h"
#include "tests/serving/adapter_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

struct bench {
    struct fx x;
    struct adapter_dir dir;
    struct adp_registry *r;
    struct adp_device at;
    char path[2][128];
    struct err_info info;
};

static void start(struct bench *b) {
    memset(b, 0, sizeof *b);
    fx_open(&b->x, "tests/golden/models/hf-f32", &(struct fx_options){0});
    adapter_dir_open(&b->dir);
    for (int i = 0; i < 2; i++) {
        char name[8];
        snprintf(name, sizeof name, "r%d", i);
        snprintf(b->path[i], sizeof b->path[i], "%s/%s", b->dir.path, name);
        adapter_make_random(&b->dir, name, &b->x.weights->config, i ? 10 : 3); // of one rank
    }
    const struct adp_config cfg = {.model = &b->x.weights->config, .max_host = 4, .replicas = 2};
    assert_int_equal(adp_create(&cfg, &b->r, &b->info), ERR_OK);
    b->at = (struct adp_device){b->x.weights, b->x.device};
}

static void finish(struct bench *b) {
    adp_spare_free(b->r);
    adp_destroy(b->r);
    adapter_dir_close(&b->dir);
    fx_close(&b->x);
}

static struct adp_version *load(struct bench *b, const char *path) {
    struct adp_version *v;
    const struct adp_origin from = {.path = path};
    if (adp_load(b->r, "a", &from, &v, &b->info))
        fail_msg("%s", b->info.message);
    return v;
}

static struct mdl_lora *take(struct bench *b, struct adp_version *v) {
    struct mdl_lora *l = NULL;
    if (adp_resident_take(v, &b->at, NULL, &l, &b->info))
        fail_msg("%s", b->info.message);
    return l;
}

static const float *first_values(const struct mdl_lora *l) {
    return (const float *)mdl_lora_module(l, 0, MDL_TARGET_Q)
        ->a; // the CPU's addresses are pointers
}

static void one_for_all_replicas(void **state) {
    (void)state;
    struct bench b;
    start(&b);
    struct adp_version *v = load(&b, b.path[0]);
    temp_remove(b.path[0]); // nobody reads it a second time
    struct mdl_lora *l = take(&b, v);
    assert_ptr_equal(take(&b, v), l);
    adp_resident_drop(v);
    assert_ptr_equal(take(&b, v), l); // one replica still has it
    adp_resident_drop(v);
    adp_resident_drop(v);
    adp_release(v);
    finish(&b);
}

static void memory_goes_from_one_to_the_next(void **state) {
    (void)state;
    struct bench b;
    start(&b);
    struct adp_version *v[2] = {load(&b, b.path[0]), load(&b, b.path[1])};
    const float *at = first_values(take(&b, v[0]));
    float was = at[0];
    adp_resident_drop(v[0]);
    assert_ptr_equal(first_values(take(&b, v[1])), at);
    assert_true(at[0] < was || at[0] > was); // with the other's values
    const float *other = first_values(take(&b, v[0]));
    assert_ptr_not_equal(other, at); // that memory is in use
    assert_true(other[0] <= was && other[0] >= was);
    for (int i = 0; i < 2; i++) {
        adp_resident_drop(v[i]); // the second's takes the first's place
        adp_release(v[i]);
    }
    finish(&b);
}

// Wherever memory runs out, with memory of another version at hand or without, nothing is lost.
static void failing_allocations(void **state) {
    (void)state;
    struct bench b;
    start(&b);
    struct adp_version *v[2] = {load(&b, b.path[0]), load(&b, b.path[1])};
    for (int spare = 0; spare < 2; spare++) {
        enum err e = ERR_NOMEM;
        for (uint64_t n = 1; e; n++) {
            if (spare) {
                (void)take(&b, v[1]);
                adp_resident_drop(v[1]);
            } else {
                adp_spare_free(b.r);
            }
            struct mdl_lora *l;
            mem_fail_after(n, false);
            e = adp_resident_take(v[0], &b.at, NULL, &l, &b.info);
            mem_fail_after(0, false);
            assert_true(!e || e == ERR_NOMEM);
        }
        adp_resident_drop(v[0]);
    }
    for (int i = 0; i < 2; i++)
        adp_release(v[i]);
    finish(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_for_all_replicas),
        cmocka_unit_test(memory_goes_from_one_to_the_next),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
