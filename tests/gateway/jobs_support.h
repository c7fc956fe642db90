// SPDX-License-Identifier: Apache-2.0
// What the tests of job routes share: a server with one file, requests, answers as JSON. Failures
// end the test (cmocka).
#pragma once
#include "tests/gateway/data_fixture.h"
#include <jansson.h>

#define JOBS "/v1/fine_tuning/jobs"
#define TYPE "Content-Type: application/json\r\n"

// *state: a struct df whose `file` may be trained on; the only model is called "tiny".
int js_setup(void **state);
int js_teardown(void **state);

// An empty file of that tenant.
void js_upload(struct df *d, uint64_t tenant, const char *purpose, char id[FT_ID_MAX]);
// One request, whose answer must have that status. The answer is the caller's (json_decref).
json_t *js_ask(const struct df *d, const char *method, const char *target, const char *fields,
               const char *body, int status);
json_t *js_get(const struct df *d, const char *target, int status);
// To JOBS; in the body $ stands for the fixture's file.
json_t *js_post(const struct df *d, const char *fields, const char *body, int status);
// A job with more fields (",\"seed\":1", or "").
void js_create(const struct df *d, const char *more, char id[FT_ID_MAX]);
const char *js_str(const json_t *o, const char *key); // "" where it is no string
