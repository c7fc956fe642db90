// SPDX-License-Identifier: Apache-2.0
#include "tests/gateway/jobs_support.h"
#include "finetune/files.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void js_upload(struct df *d, uint64_t tenant, const char *purpose, char id[FT_ID_MAX]) {
    struct err_info info;
    struct ft_upload u;
    struct ft_file f = {.tenant = tenant, .filename = "a.jsonl"};
    strcpy(f.purpose, purpose);
    assert_int_equal(ft_upload_begin(&d->home, &u, &info), ERR_OK);
    assert_int_equal(ft_upload_commit(&u, &f, &info), ERR_OK);
    strcpy(id, f.id);
}

static enum err check_job(void *arg, const struct ft_job_spec *s, struct err_info *info) {
    (void)arg;
    return strcmp(s->model, "tiny") != 0
               ? err_set(info, ERR_NO_MODEL, "model", "no model %s", s->model)
               : ERR_OK;
}

int js_setup(void **state) {
    struct df *d = calloc(1, sizeof *d);
    df_start(d, 1 << 20, false);
    d->api.check_job = check_job;
    js_upload(d, 0, "fine-tune", d->file);
    *state = d;
    return 0;
}

int js_teardown(void **state) {
    df_stop(*state);
    df_remove(*state);
    free(*state);
    return 0;
}

json_t *js_ask(const struct df *d, const char *method, const char *target, const char *fields,
               const char *body, int status) {
    struct cl_response r;
    json_error_t e;
    df_ask(d, method, target, fields, body, strlen(body), &r);
    if (r.status != status)
        fail_msg("%s %s %s: status %d, not %d: %s", method, target, body, r.status, status, r.body);
    json_t *o = json_loadb(r.body, r.len, 0, &e);
    if (!o)
        fail_msg("not JSON: %s", r.body);
    cl_free(&r);
    return o;
}

json_t *js_get(const struct df *d, const char *target, int status) {
    return js_ask(d, "GET", target, "", "", status);
}

const char *js_str(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

// A body in which $ stands for the fixture's file.
json_t *js_post(const struct df *d, const char *fields, const char *body, int status) {
    char text[8192];
    size_t n = 0;
    for (; *body && n < sizeof text - FT_ID_MAX; body++)
        n += *body == '$' ? (size_t)snprintf(text + n, FT_ID_MAX, "%s", d->file)
                          : (size_t)snprintf(text + n, 2, "%c", *body);
    return js_ask(d, "POST", JOBS, fields, text, status);
}

void js_create(const struct df *d, const char *more, char id[FT_ID_MAX]) {
    char body[1024];
    snprintf(body, sizeof body, "{\"model\":\"tiny\",\"training_file\":\"$\"%s}", more);
    json_t *o = js_post(d, TYPE, body, 200);
    snprintf(id, FT_ID_MAX, "%s", js_str(o, "id"));
    json_decref(o);
}
