// SPDX-License-Identifier: Apache-2.0
// Handlers of the API files and what they share. Each runs on the request's loop; arg is the struct
// app.
#pragma once
#include "gateway/app.h"
#include "gateway/generation.h"
#include "gateway/http.h"
#include <jansson.h>

void api_completions(struct gw_request *r, void *arg);
void api_chat_completions(struct gw_request *r, void *arg);
void api_models_list(struct gw_request *r, void *arg);
void api_models_get(struct gw_request *r, void *arg);
void api_tokenize(struct gw_request *r, void *arg);
void api_detokenize(struct gw_request *r, void *arg);
void api_health(struct gw_request *r, void *arg);
void api_ready(struct gw_request *r, void *arg);
void api_metrics(struct gw_request *r, void *arg);
void api_version(struct gw_request *r, void *arg);
void api_drain(struct gw_request *r, void *arg);
void api_colocation(struct gw_request *r, void *arg);
void api_colocation_expose(const struct app *app, struct buf *out); // its part of /metrics

// The common way of a generating request: open? JSON? `read` fills the spec; then generation_start.
typedef enum err (*api_read_spec)(const struct app *app, const json_t *body, struct arena *arena,
                                  struct gen_spec *spec, struct err_info *info);
void api_generate(struct gw_request *r, struct app *app, api_read_spec read);

// The body's "model" against the names of base and adapters; absent means the base.
enum err api_check_model(const struct app *app, const json_t *body, struct err_info *info);
