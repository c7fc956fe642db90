// SPDX-License-Identifier: Apache-2.0
// run.json of a run from elsewhere: whatever it says, the options that it gives are in their
// ranges, and they read the same once they are written again; or an error says why not.
#include "base/mem.h"
#include "gateway/train_run.h"
#include <stdlib.h>
#include <string.h>

static void require(int ok) {
    if (!ok)
        abort();
}

static void check(const struct train_options *o, unsigned targets) {
    struct err_info info;
    char *text;
    require(o->r >= 1 && o->r <= 256 && o->alpha > 0 && o->dropout >= 0 && o->dropout < 1);
    require(o->epochs >= 1 && o->batch_size >= 1 && o->seed >= 0 && o->max_seq_length >= 0);
    require(o->save_steps >= 0 && o->save_limit >= 0 && o->lr >= 0 && targets);
    require(!strcmp(o->method, "dpo") || !strcmp(o->method, "supervised"));
    require(!train_run_hyperparameters(o, targets, (int32_t)o->max_seq_length, &text, &info));
    mem_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err_info info = {0};
    struct train_options o = {0};
    struct opt_result res;
    char name[] = "train";
    char *argv[] = {name, NULL};
    unsigned targets = 0;
    json_t *run;
    enum err e = train_run_parse((const char *)data, size, &run, &info);
    require(!e || info.message[0]);
    if (e)
        return 0;
    require(json_string_length(json_object_get(run, "run_id")) < TRAIN_RUN_ID);
    require(!opt_parse(&train_option_table, 1, argv, &o, &res, &info));
    e = train_run_apply(run, &res, &o, &targets, &info);
    require(!e || info.message[0]);
    if (!e)
        check(&o, targets);
    opt_result_fini(&res);
    json_decref(run);
    return 0;
}
