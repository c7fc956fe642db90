// SPDX-License-Identifier: Apache-2.0
// /v1/fine_tuning/jobs and /admin/v1/jobs: objects, every field's refusal, pages and filters, who
// may see what, restarts, and each allocation failing once. Events are in test_api_job_events.c.
#include "base/mem.h"
#include "finetune/files.h"
#include "finetune/job_log.h"
#include "tests/gateway/jobs_support.h"
#include "tests/support/cmocka_all.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_object(void **state) {
    const struct df *d = *state;
    json_t *o =
        js_post(d, TYPE,
                "{\"model\":\"tiny\",\"training_file\":\"$\",\"validation_file\":\"$\","
                "\"suffix\":\"my-test\",\"seed\":42,\"metadata\":{\"k\":\"v\"},"
                "\"integrations\":[],\"unknown\":{\"x\":1},"
                "\"method\":{\"type\":\"supervised\",\"supervised\":{\"hyperparameters\":"
                "{\"n_epochs\":2,\"batch_size\":\"auto\",\"learning_rate_multiplier\":0.5}}},"
                "\"graft\":{\"lora\":{\"r\":8}}}",
                200);
    static const char *const required[] = {"id",
                                           "object",
                                           "created_at",
                                           "finished_at",
                                           "model",
                                           "fine_tuned_model",
                                           "organization_id",
                                           "result_files",
                                           "status",
                                           "trained_tokens",
                                           "training_file",
                                           "validation_file",
                                           "hyperparameters",
                                           "seed",
                                           "error"};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!json_object_get(o, required[i]))
            fail_msg("%s is missing", required[i]);
    static const char *const nulls[] = {"finished_at", "fine_tuned_model", "trained_tokens",
                                        "error", "estimated_finish"};
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++)
        assert_true(json_is_null(json_object_get(o, nulls[i])));
    assert_int_equal(strncmp(js_str(o, "id"), "ftjob-", 6), 0);
    assert_string_equal(js_str(o, "object"), "fine_tuning.job");
    assert_string_equal(js_str(o, "status"), "validating_files");
    assert_string_equal(js_str(o, "validation_file"), d->file);
    assert_int_equal(json_integer_value(json_object_get(o, "seed")), 42);
    assert_int_equal(json_integer_value(json_object_get(o, "created_at")), 1700000000);
    assert_string_equal(js_str(json_object_get(o, "metadata"), "k"), "v");
    const json_t *h = json_object_get(o, "hyperparameters");
    assert_int_equal(json_integer_value(json_object_get(h, "n_epochs")), 2);
    assert_string_equal(js_str(h, "batch_size"), "auto");
    assert_true(json_real_value(json_object_get(h, "learning_rate_multiplier")) == 0.5);
    const json_t *m = json_object_get(o, "method");
    assert_string_equal(js_str(m, "type"), "supervised");
    assert_true(
        json_equal(json_object_get(json_object_get(m, "supervised"), "hyperparameters"), h));
    char target[96];
    snprintf(target, sizeof target, JOBS "/%s", js_str(o, "id"));
    json_t *same = js_get(d, target, 200);
    assert_true(json_equal(o, same));
    json_decref(same);
    json_decref(o);
}

static void test_object_defaults(void **state) {
    const struct df *d = *state;
    // A seed that is not given is made up and stays.
    json_t *o = js_post(d, TYPE, "{\"model\":\"tiny\",\"training_file\":\"$\",\"seed\":null}", 200);
    int64_t seed = json_integer_value(json_object_get(o, "seed"));
    assert_true(seed >= 0 && seed <= INT32_MAX);
    assert_true(json_is_null(json_object_get(o, "metadata")));
    json_decref(o);
    o = js_post(
        d, TYPE,
        "{\"model\":\"tiny\",\"training_file\":\"$\",\"hyperparameters\":{\"n_epochs\":1},"
        "\"graft\":{\"lora\":{\"target_modules\":\"all-linear\"},\"evaluation\":{\"required\":"
        "[{\"prompt\":\"a\",\"output\":\"b\"}],\"sample_prompts\":[\"x\"],\"max_valid_loss\":2}},"
        "\"validation_file\":\"$\"}",
        200);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(o, "hyperparameters"), "n_epochs")), 1);
    json_decref(o);
}

#define ONE TYPE "Authorization: Bearer key-of-one\r\n"
#define TWO TYPE "Authorization: Bearer key-of-two\r\n"
#define BASE "{\"model\":\"tiny\",\"training_file\":\"$\","
#define HYPER(t, s) BASE "\"method\":{\"type\":\"" t "\",\"" t "\":{\"hyperparameters\":" s "}}}"
#define GRAFT(s) BASE "\"graft\":" s "}"
#define X16 "xxxxxxxxxxxxxxxx"
#define X65 X16 X16 X16 X16 "x"
#define X513 X65 X65 X65 X65 X65 X65 X65 X16 X16 X16 X16 X16

static const struct {
    const char *body, *param;
} bad[] = {
    {"", ""},
    {"[]", ""},
    {"{", ""},
    {"{}", "model"},
    {"{\"model\":\"tiny\"}", "training_file"},
    {"{\"model\":5,\"training_file\":\"$\"}", "model"},
    {"{\"model\":\"\",\"training_file\":\"$\"}", "model"},
    {"{\"model\":\"tiny\",\"training_file\":7}", "training_file"},
    {"{\"model\":\"tiny\",\"training_file\":\"\"}", "training_file"},
    {"{\"model\":\"tiny\",\"training_file\":\"file-none\"}", "training_file"},
    {BASE "\"validation_file\":\"file-none\"}", "validation_file"},
    {BASE "\"validation_file\":[]}", "validation_file"},
    {BASE "\"suffix\":\"\"}", "suffix"},
    {BASE "\"suffix\":\"" X65 "\"}", "suffix"},
    {BASE "\"suffix\":\"a:b\"}", "suffix"},
    {BASE "\"suffix\":3}", "suffix"},
    {BASE "\"seed\":-1}", "seed"},
    {BASE "\"seed\":2147483648}", "seed"},
    {BASE "\"seed\":1.5}", "seed"},
    {BASE "\"seed\":\"1\"}", "seed"},
    {BASE "\"metadata\":[]}", "metadata"},
    {BASE "\"metadata\":{\"" X65 "\":\"v\"}}", "metadata"},
    {BASE "\"metadata\":{\"k\":1}}", "metadata.k"},
    {BASE "\"metadata\":{\"k\":\"" X513 X16 "\"}}", "metadata.k"},
    {BASE
     "\"metadata\":{\"1\":\"\",\"2\":\"\",\"3\":\"\",\"4\":\"\",\"5\":\"\",\"6\":\"\",\"7\":\"\","
     "\"8\":\"\",\"9\":\"\",\"10\":\"\",\"11\":\"\",\"12\":\"\",\"13\":\"\",\"14\":\"\",\"15\":"
     "\"\","
     "\"16\":\"\",\"17\":\"\"}}",
     "metadata"},
    {BASE "\"integrations\":{}}", "integrations"},
    {BASE "\"integrations\":[{\"type\":\"wandb\",\"wandb\":{\"project\":\"p\"}}]}",
     "integrations[0].type"},
    {BASE "\"integrations\":[1]}", "integrations[0].type"},
    {BASE "\"hyperparameters\":[]}", "hyperparameters"},
    {BASE "\"hyperparameters\":{\"n_epochs\":0}}", "hyperparameters.n_epochs"},
    {BASE "\"hyperparameters\":{},\"method\":{\"type\":\"supervised\"}}", "hyperparameters"},
    {BASE "\"method\":\"supervised\"}", "method"},
    {BASE "\"method\":{}}", "method.type"},
    {BASE "\"method\":{\"type\":\"other\"}}", "method.type"},
    {BASE "\"method\":{\"type\":\"reinforcement\"}}", "method.type"},
    {BASE "\"method\":{\"type\":\"dpo\",\"dpo\":[]}}", "method.dpo"},
    {HYPER("supervised", "[]"), "method.supervised.hyperparameters"},
    {HYPER("supervised", "{\"n_epochs\":51}"), "method.supervised.hyperparameters.n_epochs"},
    {HYPER("supervised", "{\"n_epochs\":\"some\"}"), "method.supervised.hyperparameters.n_epochs"},
    {HYPER("supervised", "{\"batch_size\":257}"), "method.supervised.hyperparameters.batch_size"},
    {HYPER("supervised", "{\"batch_size\":0}"), "method.supervised.hyperparameters.batch_size"},
    {HYPER("supervised", "{\"learning_rate_multiplier\":0}"),
     "method.supervised.hyperparameters.learning_rate_multiplier"},
    {HYPER("supervised", "{\"learning_rate_multiplier\":true}"),
     "method.supervised.hyperparameters.learning_rate_multiplier"},
    {HYPER("dpo", "{\"beta\":0}"), "method.dpo.hyperparameters.beta"},
    {HYPER("dpo", "{\"beta\":2.1}"), "method.dpo.hyperparameters.beta"},
    {GRAFT("[]"), "graft"},
    {GRAFT("{\"rank\":1}"), "graft.rank"},
    {GRAFT("{\"lora\":1}"), "graft.lora"},
    {GRAFT("{\"lora\":{\"rank\":1}}"), "graft.lora.rank"},
    {GRAFT("{\"lora\":{\"r\":0}}"), "graft.lora.r"},
    {GRAFT("{\"lora\":{\"r\":257}}"), "graft.lora.r"},
    {GRAFT("{\"lora\":{\"alpha\":0}}"), "graft.lora.alpha"},
    {GRAFT("{\"lora\":{\"dropout\":1}}"), "graft.lora.dropout"},
    {GRAFT("{\"lora\":{\"use_rslora\":1}}"), "graft.lora.use_rslora"},
    {GRAFT("{\"lora\":{\"target_modules\":[]}}"), "graft.lora.target_modules"},
    {GRAFT("{\"lora\":{\"target_modules\":\"q_proj\"}}"), "graft.lora.target_modules"},
    {GRAFT("{\"lora\":{\"target_modules\":[\"q_proj\",\"lm_head\"]}}"),
     "graft.lora.target_modules[1]"},
    {GRAFT("{\"learning_rate\":0}"), "graft.learning_rate"},
    {GRAFT("{\"learning_rate\":11}"), "graft.learning_rate"},
    {GRAFT("{\"warmup_ratio\":1.1}"), "graft.warmup_ratio"},
    {GRAFT("{\"lr_scheduler\":\"step\"}"), "graft.lr_scheduler"},
    {GRAFT("{\"lr_scheduler\":\"cos\"}"), "graft.lr_scheduler"},
    {GRAFT("{\"weight_decay\":-0.1}"), "graft.weight_decay"},
    {GRAFT("{\"max_grad_norm\":\"x\"}"), "graft.max_grad_norm"},
    {GRAFT("{\"max_seq_length\":1}"), "graft.max_seq_length"},
    {GRAFT("{\"packing\":\"yes\"}"), "graft.packing"},
    {GRAFT("{\"truncation\":\"cut\"}"), "graft.truncation"},
    {GRAFT("{\"save_steps\":-1}"), "graft.save_steps"},
    {GRAFT("{\"eval_steps\":1e12}"), "graft.eval_steps"},
    {GRAFT("{\"priority\":1001}"), "graft.priority"},
    {GRAFT("{\"retention_class\":\"\"}"), "graft.retention_class"},
    {GRAFT("{\"evaluation\":[]}"), "graft.evaluation"},
    {GRAFT("{\"evaluation\":{\"x\":1}}"), "graft.evaluation.x"},
    {GRAFT("{\"evaluation\":{\"max_valid_loss\":0}}"), "graft.evaluation.max_valid_loss"},
    {GRAFT("{\"evaluation\":{\"required\":[{\"prompt\":\"a\"}]}}"),
     "graft.evaluation.required[0].output"},
    {GRAFT("{\"evaluation\":{\"forbidden\":[1]}}"), "graft.evaluation.forbidden[0]"},
    // What looks at validation losses needs some.
    {GRAFT("{\"eval_steps\":5}"), "validation_file"},
    {GRAFT("{\"evaluation\":{\"max_valid_loss\":2}}"), "validation_file"},
    {GRAFT("{\"evaluation\":{\"min_improvement\":0}}"), "validation_file"},
    {GRAFT("{\"evaluation\":{\"eval_samples\":5}}"), "validation_file"},
    {GRAFT("{\"evaluation\":{\"sample_prompts\":[{}]}}"),
     "graft.evaluation.sample_prompts[0].prompt"},
    {GRAFT("{\"evaluation\":{\"sample_prompts\":[\"\"]}}"), "graft.evaluation.sample_prompts[0]"},
    {GRAFT("{\"evaluation\":{\"sample_prompts\":[{\"prompt\":\"a\",\"messages\":[]}]}}"),
     "graft.evaluation.sample_prompts[0].prompt"},
    {GRAFT("{\"evaluation\":{\"sample_prompts\":[{\"messages\":[]}]}}"),
     "graft.evaluation.sample_prompts[0].messages"},
    {GRAFT("{\"evaluation\":{\"sample_prompts\":[{\"messages\":[{}]}]}}"),
     "graft.evaluation.sample_prompts[0].messages"},
    {GRAFT("{\"evaluation\":{\"sample_prompts\":\"a\"}}"), "graft.evaluation.sample_prompts"},
    {GRAFT("{\"evaluation\":{\"sample_prompts\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
           "\"a\","
           "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]}}"),
     "graft.evaluation.sample_prompts"},
    {GRAFT("{\"evaluation\":{\"required\":[{\"prompt\":\"a\",\"output\":\"\"}]}}"),
     "graft.evaluation.required[0].output"},
    {GRAFT("{\"evaluation\":{\"required\":[{\"prompt\":\"a\",\"output\":[]}]}}"),
     "graft.evaluation.required[0].output"},
    {GRAFT("{\"evaluation\":{\"required\":[{\"prompt\":\"a\",\"output\":[\"b\",1]}]}}"),
     "graft.evaluation.required[0].output"},
    {GRAFT("{\"evaluation\":{\"required\":[{\"prompt\":\"a\",\"output\":\"b\",\"x\":1}]}}"),
     "graft.evaluation.required[0].x"},
    {GRAFT("{\"evaluation\":{\"max_tokens\":0}}"), "graft.evaluation.max_tokens"},
    {GRAFT("{\"evaluation\":{\"max_tokens\":1025}}"), "graft.evaluation.max_tokens"},
    {GRAFT("{\"evaluation\":{\"on_failure\":\"promote\"}}"), "graft.evaluation.on_failure"},
};

static void test_refusals(void **state) {
    struct df *d = *state;
    char results[FT_ID_MAX], body[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *o = js_post(d, TYPE, bad[i].body, 400);
        const json_t *e = json_object_get(o, "error");
        if (strcmp(js_str(e, "param"), bad[i].param) != 0)
            fail_msg("%s: param '%s': %s", bad[i].body, js_str(e, "param"), js_str(e, "message"));
        assert_string_equal(js_str(e, "type"), "invalid_request_error");
        assert_true(js_str(e, "message")[0] != '\0');
        json_decref(o);
    }
    js_upload(d, 0, "fine-tune-results", results);
    snprintf(body, sizeof body, "{\"model\":\"tiny\",\"training_file\":\"%s\"}", results);
    json_t *o = js_post(d, TYPE, body, 400);
    assert_non_null(strstr(js_str(json_object_get(o, "error"), "message"), "fine-tune-results"));
    json_decref(o);
    o = js_post(d, TYPE, "{\"model\":\"other\",\"training_file\":\"$\"}", 404);
    assert_string_equal(js_str(json_object_get(o, "error"), "code"), "model_not_found");
    json_decref(o);
    json_decref(js_post(d, "Content-Type: text/plain\r\n", "{}", 415));
    o = js_get(d, JOBS, 200);
    assert_int_equal(json_array_size(json_object_get(o, "data")), 0); // nothing was made
    json_decref(o);
}

// As many as may wait: the next is a full queue, which clients ask again, and room is made by a
// cancel.
static void test_too_many_wait(void **state) {
    struct df *d = *state;
    char id[FT_ID_MAX], target[96];
    d->home.max_waiting = 2;
    js_create(d, "", id);
    js_create(d, "", id);
    json_t *o = js_post(d, TYPE, "{\"model\":\"tiny\",\"training_file\":\"$\"}", 429);
    const json_t *e = json_object_get(o, "error");
    assert_string_equal(js_str(e, "type"), "rate_limit_error");
    assert_string_equal(js_str(e, "code"), "queue_full");
    assert_true(json_is_null(json_object_get(e, "param")));
    assert_non_null(strstr(js_str(e, "message"), "2 may (--max-waiting-jobs)"));
    json_decref(o);
    snprintf(target, sizeof target, JOBS "/%s/cancel", id);
    json_decref(js_ask(d, "POST", target, "", "", 200));
    js_create(d, "", id);
}

static void test_pages(void **state) {
    struct df *d = *state;
    char ids[5][FT_ID_MAX], target[256];
    for (int i = 0; i < 5; i++)
        js_create(d,
                  i == 1   ? ",\"metadata\":{\"team\":\"a b\",\"n\":\"1\"}"
                  : i == 3 ? ",\"metadata\":{\"team\":\"a b\"}"
                           : "",
                  ids[i]);
    static const struct {
        const char *query, *want; // of the jobs, newest first
        int after;
        bool more;
    } cases[] = {
        {"", "43210", -1, false},
        {"?limit=2", "43", -1, true},
        {"?limit=2&after=", "21", 3, true},
        {"?limit=2&after=", "10", 2, false},
        {"?after=", "", 0, false},
        {"?metadata%5Bteam%5D=a+b", "31", -1, false},
        {"?metadata[team]=a%20b&metadata[n]=1", "1", -1, false},
        {"?metadata[team]=x", "", -1, false},
        {"?metadata[team]=a%20b&limit=1", "3", -1, true},
        {"?metadata=null", "420", -1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[8] = "";
        snprintf(target, sizeof target, JOBS "%s%s", cases[i].query,
                 cases[i].after >= 0 ? ids[cases[i].after] : "");
        json_t *o = js_get(d, target, 200), *v;
        size_t k;
        json_array_foreach(json_object_get(o, "data"), k, v) {
            for (int j = 0; j < 5; j++)
                if (!strcmp(js_str(v, "id"), ids[j]))
                    snprintf(got + strlen(got), sizeof got - strlen(got), "%d", j);
        }
        assert_string_equal(got, cases[i].want);
        assert_int_equal(json_is_true(json_object_get(o, "has_more")), cases[i].more);
        json_decref(o);
    }
    static const struct {
        const char *query;
        int status;
        const char *param;
    } refused[] = {{"?limit=0", 400, "limit"},
                   {"?limit=101", 400, "limit"},
                   {"?after=ftjob-none", 404, "after"},
                   {"?metadata=x", 400, "metadata"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(target, sizeof target, JOBS "%s", refused[i].query);
        json_t *o = js_get(d, target, refused[i].status);
        assert_string_equal(js_str(json_object_get(o, "error"), "param"), refused[i].param);
        json_decref(o);
    }
}

static void test_actions(void **state) {
    struct df *d = *state;
    char id[FT_ID_MAX], target[128];
    js_create(d, "", id);
    static const struct {
        const char *action;
        int status;
        const char *want;
    } steps[] = {
        {"resume", 400, "cannot be resumed"}, {"pause", 200, "paused"},
        {"pause", 400, "cannot be paused"},   {"resume", 200, "validating_files"},
        {"cancel", 200, "cancelled"},         {"cancel", 400, "cannot be cancelled"},
        {"pause", 400, "cannot be paused"},   {"resume", 400, "cannot be resumed"},
    };
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) {
        snprintf(target, sizeof target, JOBS "/%s/%s", id, steps[i].action);
        json_t *o = js_ask(d, "POST", target, "", "", steps[i].status);
        if (steps[i].status == 200)
            assert_string_equal(js_str(o, "status"), steps[i].want);
        else
            assert_non_null(strstr(js_str(json_object_get(o, "error"), "message"), steps[i].want));
        json_decref(o);
        df_restart(d); // each lasts
        snprintf(target, sizeof target, JOBS "/%s", id);
        o = js_get(d, target, 200);
        if (steps[i].status == 200)
            assert_string_equal(js_str(o, "status"), steps[i].want);
        json_decref(o);
    }
    json_t *o = js_ask(d, "POST", JOBS "/ftjob-none/cancel", "", "", 404);
    assert_string_equal(js_str(json_object_get(o, "error"), "param"), "fine_tuning_job_id");
    json_decref(o);
    json_decref(js_ask(d, "POST", target, "", "", 405));
}

// The other tenant's key, which is an administrator's, and the job's own, which is none.
static void act_as_administrator(struct df *d, const char *id, uint64_t tenant) {
    static const char trainer[] = TYPE "Authorization: Bearer key-of-trainer\r\n";
    static const struct {
        const char *method, *tail, *state; // or NULL: a list
    } cases[] = {
        {"POST", "/pause", "paused"},       {"POST", "/resume", "validating_files"},
        {"POST", "/cancel", "cancelled"},   {"GET", "", "cancelled"},
        {"GET", "/events?limit=100", NULL}, {"GET", "/checkpoints", NULL},
    };
    char target[128], number[17];
    snprintf(number, sizeof number, "%016llx", (unsigned long long)tenant);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(target, sizeof target, "/admin/v1/jobs/ftjob-none%s", cases[i].tail);
        json_decref(js_ask(d, cases[i].method, target, TWO, "", 404));
        snprintf(target, sizeof target, "/admin/v1/jobs/%s%s", id, cases[i].tail);
        json_decref(js_ask(d, cases[i].method, target, "", "", 401));
        json_decref(js_ask(d, cases[i].method, target, trainer, "", 403));
        json_t *o = js_ask(d, cases[i].method, target, TWO, "", 200);
        if (cases[i].state) {
            assert_string_equal(js_str(o, "state"), cases[i].state);
            assert_string_equal(js_str(o, "tenant"), "one");
            assert_string_equal(js_str(o, "tenant_id"), number);
        } else if (strstr(cases[i].tail, "events")) {
            static const char *const acts[] = {"cancelled", "resumed", "paused"}; // newest first
            for (size_t k = 0; k < 3; k++) {
                char want[64];
                snprintf(want, sizeof want, "Fine-tuning job %s by an administrator", acts[k]);
                assert_string_equal(
                    js_str(json_array_get(json_object_get(o, "data"), k), "message"), want);
            }
        }
        json_decref(o);
    }
    snprintf(target, sizeof target, "/admin/v1/jobs/%s/cancel", id); // what may not be is a 400
    json_decref(js_ask(d, "POST", target, TWO, "", 400));
}

static void test_owners(void **state) {
    (void)state;
    struct df d;
    struct err_info info;
    struct gw_identity who;
    char id[FT_ID_MAX], target[128], body[128];
    df_start(&d, 1 << 20, true);
    assert_int_equal(gw_keys_add(d.keys, "key-of-nobody", "one", false, &info), ERR_OK);
    assert_int_equal(gw_keys_add_role(d.keys, "key-of-trainer", "one", GW_ROLE_TRAIN, &info),
                     ERR_OK);
    assert_true(gw_keys_check(d.keys, "key-of-one", 10, &who));
    js_upload(&d, who.tenant, "fine-tune", d.file);
    snprintf(body, sizeof body, "{\"model\":\"tiny\",\"training_file\":\"%s\"}", d.file);
    json_decref(js_ask(&d, "POST", JOBS, TYPE, body, 401));
    json_decref(
        js_ask(&d, "POST", JOBS, TYPE "Authorization: Bearer key-of-nobody\r\n", body, 403));
    json_decref(js_ask(&d, "POST", JOBS, TWO, body, 400)); // a stranger's file is not there
    json_t *o =
        js_ask(&d, "POST", JOBS, TYPE "Authorization: Bearer key-of-trainer\r\n", body, 200);
    snprintf(id, sizeof id, "%s", js_str(o, "id"));
    json_decref(o);
    static const char *const tails[] = {"", "/events", "/checkpoints", "/events?stream=true"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(target, sizeof target, JOBS "/%s%s", id, tails[i]);
        json_decref(js_ask(&d, "GET", target, TWO, "", 404));
        if (i < 3)
            json_decref(js_ask(&d, "GET", target, ONE, "", 200));
    }
    snprintf(target, sizeof target, JOBS "/%s/cancel", id);
    json_decref(js_ask(&d, "POST", target, TWO, "", 404));
    snprintf(target, sizeof target, JOBS "?after=%s", id);
    json_decref(js_ask(&d, "GET", target, TWO, "", 404));
    o = js_ask(&d, "GET", JOBS, TWO, "", 200);
    assert_int_equal(json_array_size(json_object_get(o, "data")), 0);
    json_decref(o);
    // An administrator sees all of them, with more.
    o = js_ask(&d, "GET", "/admin/v1/jobs", TWO, "", 200);
    const json_t *j = json_array_get(json_object_get(o, "data"), 0);
    assert_string_equal(js_str(j, "id"), id);
    assert_string_equal(js_str(j, "state"), "validating_files");
    assert_true(json_is_null(json_object_get(j, "queue_position")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "times"), "accepted")),
                     1700000000);
    json_decref(o);
    snprintf(target, sizeof target, "/admin/v1/jobs/%s", id);
    json_decref(js_ask(&d, "GET", target, TWO, "", 200));
    json_decref(
        js_ask(&d, "GET", target, TYPE "Authorization: Bearer key-of-trainer\r\n", "", 403));
    act_as_administrator(&d, id, who.tenant);
    df_stop(&d);
    df_remove(&d);
}

static const char *loading(void *arg) {
    (void)arg;
    return "the model is loading";
}

static void expect_reasons(struct df *d, const char *const want[], const int places[], size_t n) {
    char target[128];
    json_t *o = js_get(d, "/admin/v1/jobs", 200), *v;
    size_t k;
    assert_int_equal(json_array_size(json_object_get(o, "data")), n);
    json_array_foreach(json_object_get(o, "data"), k, v) {
        const json_t *place = json_object_get(v, "queue_position");
        assert_string_equal(js_str(v, "reason"), want[k]);
        assert_int_equal(json_is_null(place) ? -1 : json_integer_value(place), places[k]);
        snprintf(target, sizeof target, "/admin/v1/jobs/%s", js_str(v, "id"));
        json_t *one = js_get(d, target, 200); // the same, asked for by itself
        assert_true(json_equal(one, v));
        json_decref(one);
        // Its tenant sees the same, but for whose job it is that runs.
        snprintf(target, sizeof target, JOBS "/%s", js_str(v, "id"));
        one = js_get(d, target, 200);
        const json_t *graft = json_object_get(one, "graft");
        const char *says = strstr(want[k], " runs, and one")
                               ? "another job runs, and one job runs at a time"
                               : want[k];
        if (says[0] || places[k] >= 0) {
            assert_string_equal(js_str(graft, "reason"), says);
            assert_true(json_equal(json_object_get(graft, "queue_position"), place));
        } else {
            assert_null(json_object_get(graft, "reason"));
        }
        json_decref(one);
    }
    json_decref(o);
}

static void no_time(void *arg, const char *job, char *reason, size_t cap) {
    (void)job;
    snprintf(reason, cap, "%s", *(const bool *)arg ? "serving leaves no time" : "");
}

static void expect_finish(struct df *d, const char *id, int64_t at, const char *reason) {
    char target[128];
    snprintf(target, sizeof target, JOBS "/%s", id);
    for (int admin = 0; admin < 2; admin++) {
        if (admin)
            snprintf(target, sizeof target, "/admin/v1/jobs/%s", id);
        json_t *o = js_get(d, target, 200);
        assert_int_equal(json_integer_value(json_object_get(o, "estimated_finish")), at);
        assert_int_equal(json_is_null(json_object_get(o, "estimated_finish")), !at);
        assert_string_equal(js_str(admin ? o : json_object_get(o, "graft"), "reason"), reason);
        json_decref(o);
    }
}

// A job's end is foretold while it goes on, and only then.
static void test_estimate(void **state) {
    struct df *d = *state;
    struct err_info info;
    struct ft_job j;
    char id[FT_ID_MAX];
    bool moved, stalls = false;
    const struct ft_job_move run = {
        .from = 1u << FT_JOB_VALIDATING, .to = FT_JOB_RUNNING, .level = "info", .message = "m"};
    const struct ft_job_progress step = {
        .step = 1, .steps = 2, .trained_tokens = 9, .estimated_finish = 1700000900};
    js_create(d, "", id);
    expect_finish(d, id, 0, "");
    assert_int_equal(ft_job_move(&d->home, id, &run, &moved, &info), ERR_OK);
    assert_int_equal(ft_job_progress(&d->home, id, &step, &info), ERR_OK);
    expect_finish(d, id, 1700000900, "");
    d->api.stalls_arg = &stalls;
    d->api.stalls = no_time;
    expect_finish(d, id, 1700000900, "");
    stalls = true;
    expect_finish(d, id, 0, "serving leaves no time");
    stalls = false;
    expect_finish(d, id, 1700000900, "");
    const struct ft_job_owner any = {.any = true};
    assert_int_equal(ft_job_act(&d->home, any, id, FT_JOB_PAUSE, &j, &info), ERR_OK);
    ft_job_fini(&j);
    expect_finish(d, id, 0, "");
    d->api.stalls = NULL;
}

// How many run before a job, and why it waits.
static void test_queue(void **state) {
    struct df *d = *state;
    struct err_info info;
    char ids[4][FT_ID_MAX], runs[96];
    static const char *const more[] = {"", ",\"graft\":{\"priority\":-1}", "", ""};
    struct ft_job_move move = {
        .from = 1u << FT_JOB_VALIDATING, .to = FT_JOB_QUEUED, .level = "info", .message = "m"};
    bool moved;
    for (int i = 0; i < 4; i++) {
        js_create(d, more[i], ids[i]);
        if (i < 3)
            assert_int_equal(ft_job_move(&d->home, ids[i], &move, &moved, &info), ERR_OK);
    }
    // Newest first.
    static const int places[] = {-1, 2, 0, 1}, later[] = {-1, 1, -1, 0};
    expect_reasons(
        d,
        (const char *const[]){"", "jobs that run before it: 2", "", "jobs that run before it: 1"},
        places, 4);
    d->api.jobs_wait = loading;
    const char *all = "the model is loading";
    expect_reasons(d, (const char *const[]){all, all, all, all}, places, 4);
    move = (struct ft_job_move){
        .from = 1u << FT_JOB_QUEUED, .to = FT_JOB_RUNNING, .level = "info", .message = "m"};
    assert_int_equal(ft_job_move(&d->home, ids[1], &move, &moved, &info), ERR_OK);
    expect_reasons(d, (const char *const[]){all, all, "", all}, later, 4);
    d->api.jobs_wait = NULL;
    snprintf(runs, sizeof runs, "%s runs, and one job runs at a time", ids[1]);
    expect_reasons(d, (const char *const[]){"", "jobs that run before it: 1", "", runs}, later, 4);
    move = (struct ft_job_move){.from = 1u << FT_JOB_RUNNING,
                                .to = FT_JOB_QUEUED,
                                .reason = "stopped",
                                .level = "info",
                                .message = "m"};
    assert_int_equal(ft_job_move(&d->home, ids[1], &move, &moved, &info), ERR_OK);
    expect_reasons(d,
                   (const char *const[]){"", "jobs that run before it: 2", "stopped",
                                         "jobs that run before it: 1"},
                   places, 4);
}

static bool life_without(const struct df *d, uint64_t nth) {
    char body[128], id[FT_ID_MAX] = "", target[128];
    struct cl_response r;
    bool failed = false;
    snprintf(body, sizeof body, "{\"model\":\"tiny\",\"training_file\":\"%s\"}", d->file);
    static const char *const asks[][2] = {
        {"POST", ""},          {"GET", "/%s"},         {"GET", "?metadata[a]=b"},
        {"GET", "/%s/events"}, {"POST", "/%s/cancel"}, {"GET", "/%s/events?stream=true"}};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        const char *tail = strstr(asks[i][1], "%s");
        snprintf(target, sizeof target, JOBS "%s%s%s", tail ? "/" : asks[i][1], tail ? id : "",
                 tail ? tail + 2 : "");
        mem_fail_after(nth, false);
        df_ask(d, asks[i][0], target, TYPE, i == 0 ? body : "", i == 0 ? strlen(body) : 0, &r);
        failed = failed || mem_fail_count() >= nth;
        mem_fail_after(0, false);
        if (r.status != 200 && r.status != 503 && r.status != 0)
            fail_msg("%s, allocation %llu: %d %s", target, (unsigned long long)nth, r.status,
                     r.body);
        if (i == 0 && r.status == 200)
            memcpy(id, strstr(r.body, "ftjob-"), 30);
        cl_free(&r);
        if (!id[0])
            return failed;
        if (i == 4) { // whatever it said, so that the stream ends
            snprintf(target, sizeof target, JOBS "/%s/cancel", id);
            df_ask(d, "POST", target, "", "", 0, &r);
            cl_free(&r);
        }
    }
    return failed;
}

static void test_without_memory(void **state) {
    const struct df *d = *state;
    json_set_alloc_funcs(mem_alloc, mem_free);
    uint64_t nth = 1;
    while (life_without(d, nth))
        assert_true(++nth < 300);
    assert_true(nth > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_object, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_object_defaults, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_too_many_wait, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_pages, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_actions, js_setup, js_teardown),
        cmocka_unit_test(test_owners),
        cmocka_unit_test_setup_teardown(test_estimate, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_queue, js_setup, js_teardown),
        cmocka_unit_test_setup_teardown(test_without_memory, js_setup, js_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
