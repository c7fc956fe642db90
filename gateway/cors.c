// SPDX-License-Identifier: Apache-2.0
// Cross-origin requests from browsers (the Fetch standard's CORS protocol). Off unless the operator
// names origins. A preflight carries no key and needs none.
#include "gateway/conn.h"
#include <ctype.h>
#include <string.h>

static const char *allowed_origin(const struct gw_conn *c) {
    const struct gw_config *cfg = &c->server->cfg;
    const char *origin = c->parse.origin;
    for (size_t i = 0; origin && i < cfg->n_cors_origins; i++) {
        if (strcmp(cfg->cors_origins[i], "*") == 0)
            return "*";
        if (strcmp(cfg->cors_origins[i], origin) == 0)
            return origin;
    }
    return NULL;
}

void gw__cors_apply(struct gw_conn *c) {
    struct gw_request *r = &c->req;
    if (c->server->cfg.n_cors_origins == 0)
        return;
    const char *origin = allowed_origin(c);
    // A cache must not give one origin's answer to another, also where no Origin came.
    if (!origin || strcmp(origin, "*") != 0)
        gw_response_header(r, "Vary", "Origin");
    if (!origin)
        return;
    gw_response_header(r, "Access-Control-Allow-Origin", origin);
    gw_response_header(r, "Access-Control-Expose-Headers",
                       "x-request-id, openai-processing-ms, retry-after, x-should-retry");
}

bool gw__cors_preflight(const struct gw_conn *c) {
    return c->server->cfg.n_cors_origins > 0 && c->parse.origin &&
           gw_request_header(&c->req, "access-control-request-method");
}

static bool is_field_list(const char *s) {
    if (strlen(s) > 1024)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-_, ", *s))
            return false;
    return true;
}

void gw__cors_answer(struct gw_conn *c, unsigned methods) {
    struct gw_request *r = &c->req;
    char text[64];
    gw_methods_text(methods | GW_OPTIONS, text, sizeof text);
    gw_response_header(r, "Allow", text);
    if (gw__cors_preflight(c)) {
        if (!allowed_origin(c)) {
            struct err_info info;
            err_set(&info, ERR_PERMISSION, NULL, "this origin is not allowed");
            gw_reply_error(r, &info);
            return;
        }
        // The fields are named back: a "*" would not cover Authorization.
        const char *asked = gw_request_header(r, "access-control-request-headers");
        gw_response_header(r, "Access-Control-Allow-Methods", text);
        if (asked && is_field_list(asked))
            gw_response_header(r, "Access-Control-Allow-Headers", asked);
        gw_response_header(r, "Access-Control-Max-Age", "600");
    }
    gw_reply(r, 204, NULL, NULL, 0);
}
