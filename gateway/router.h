// SPDX-License-Identifier: Apache-2.0
// From the request target to a route. The decoded path that is matched here is the one that
// authorisation and handlers see; the Host field takes no part. Immutable after gw_router_init and
// then thread-safe.
#pragma once
#include "base/arena.h"
#include "base/err.h"
#include "gateway/http.h"

struct gw_target {
    const char *path;  // decoded, begins with '/'; "*" for OPTIONS *
    const char *query; // raw, or ""
};

// Splits and decodes a request target: origin-form, absolute-form whose authority equals `host`, or
// "*" with OPTIONS. ERR_INVALID: bad percent-encoding, NUL or control characters, invalid UTF-8,
// "." or ".." segments, another form. ERR_NOMEM.
enum err gw_target_parse(struct arena *a, unsigned method, const char *target, const char *host,
                         struct gw_target *out, struct err_info *info);

struct gw_router {
    const struct gw_route *routes;
    size_t n;
};

// ERR_INVALID: a pattern that is no pattern (our own mistake, found at start).
enum err gw_router_init(struct gw_router *r, const struct gw_route *routes, size_t n,
                        struct err_info *info);

struct gw_match {
    const struct gw_route *route; // NULL: see `allowed`
    unsigned allowed;             // methods that this path has; 0: no such path
    const char *params[4];
};

// A route without parameters wins over one with; GET routes answer HEAD too. False: out of memory.
bool gw_router_match(const struct gw_router *r, struct arena *a, unsigned method, const char *path,
                     struct gw_match *out);
// "GET, HEAD, POST" for the Allow field.
void gw_methods_text(unsigned methods, char *out, size_t cap);
const char *gw_method_text(unsigned method); // one bit; "other" for none
