// SPDX-License-Identifier: Apache-2.0
#include "gateway/router.h"
#include "base/hash.h"
#include "base/utf8.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_PARAMS = sizeof(((struct gw_match *)0)->params) / sizeof(char *) };

// Decodes [s, end) into `out`, which has room for it. False: bad encoding or a control character.
static bool decode(const char *s, const char *end, char *out) {
    char *to = out;
    for (; s < end; s++) {
        char c = *s;
        if (c == '%') {
            int hi = end - s > 2 ? hex_value(s[1]) : -1, lo = end - s > 2 ? hex_value(s[2]) : -1;
            if (hi < 0 || lo < 0)
                return false;
            c = (char)(hi << 4 | lo);
            s += 2;
        }
        if ((unsigned char)c < ' ' || c == 0x7f)
            return false;
        *to++ = c;
    }
    *to = '\0';
    return utf8_valid(out, (size_t)(to - out));
}

static bool has_dot_segment(const char *path) {
    for (const char *s = path; s; s = strchr(s + 1, '/')) {
        size_t n = strcspn(s + 1, "/");
        if ((n == 1 && s[1] == '.') || (n == 2 && s[1] == '.' && s[2] == '.'))
            return true;
    }
    return false;
}

static enum err bad_target(struct err_info *info, const char *why) {
    return err_set(info, ERR_INVALID, NULL, "malformed request target: %s", why);
}

enum err gw_target_parse(struct arena *a, unsigned method, const char *target, const char *host,
                         struct gw_target *out, struct err_info *info) {
    *out = (struct gw_target){.path = "*", .query = ""};
    if (strcmp(target, "*") == 0)
        return method == GW_OPTIONS ? ERR_OK : bad_target(info, "* is for OPTIONS only");
    const char *s = target;
    if (*s != '/') {
        size_t scheme = strncasecmp(s, "http://", 7) == 0    ? 7
                        : strncasecmp(s, "https://", 8) == 0 ? 8
                                                             : 0;
        size_t n = strcspn(s + scheme, "/?");
        if (!scheme || !host || n != strlen(host) || strncasecmp(s + scheme, host, n) != 0)
            return bad_target(info, "neither a path nor a URL whose authority equals Host");
        s += scheme + n;
    }
    const char *end = s + strcspn(s, "?");
    if (*end == '?') {
        out->query = arena_strdup(a, end + 1);
        if (!out->query)
            return err_set(info, ERR_NOMEM, NULL, "out of memory");
    }
    if (s == end) { // http://host?query
        out->path = "/";
        return ERR_OK;
    }
    char *path = arena_alloc(a, (size_t)(end - s) + 1);
    if (!path)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (!decode(s, end, path))
        return bad_target(info, "the path is not percent-encoded UTF-8 text");
    if (has_dot_segment(path))
        return bad_target(info, "the path holds a . or .. segment");
    out->path = path;
    return ERR_OK;
}

static bool pattern_ok(const char *s) {
    int params = 0;
    if (*s != '/')
        return false;
    for (; *s; s++) {
        if (*s == '}')
            return false;
        if (*s == '{') {
            bool many = s[strcspn(s, "/*}")] == '*';
            s += strcspn(s, "/}");
            if (*s != '}' || (s[1] && s[1] != '/') || ++params > MAX_PARAMS)
                return false;
            // What takes slashes ends where the rest, which is literal, begins.
            if (many && (s[-1] != '*' || strchr(s, '{')))
                return false;
        }
    }
    return true;
}

enum err gw_router_init(struct gw_router *r, const struct gw_route *routes, size_t n,
                        struct err_info *info) {
    for (size_t i = 0; i < n; i++)
        if (!pattern_ok(routes[i].pattern) || !routes[i].handle || !routes[i].methods)
            return err_set(info, ERR_INVALID, NULL, "bad route %s", routes[i].pattern);
    *r = (struct gw_router){routes, n};
    return ERR_OK;
}

struct span {
    const char *at;
    size_t n;
};

static bool match(const char *pat, const char *path, struct span *params) {
    size_t k = 0;
    while (*pat) {
        if (*pat == '{') {
            pat = strchr(pat, '}') + 1;
            size_t n = strcspn(path, "/");
            if (pat[-2] == '*') {
                size_t rest = strlen(pat), have = strlen(path);
                n = have > rest ? have - rest : 0;
            }
            if (n == 0)
                return false;
            params[k++] = (struct span){path, n};
            path += n;
        } else if (*pat++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

bool gw_router_match(const struct gw_router *r, struct arena *a, unsigned method, const char *path,
                     struct gw_match *out) {
    struct span found[MAX_PARAMS] = {{0}};
    bool literal = false;
    *out = (struct gw_match){0};
    for (size_t i = 0; i < r->n; i++) {
        const struct gw_route *t = &r->routes[i];
        struct span params[MAX_PARAMS] = {{0}};
        bool has_params = strchr(t->pattern, '{') != NULL;
        if (!match(t->pattern, path, params) || (literal && has_params))
            continue;
        if (!has_params && !literal) { // what only patterns with parameters offered is void
            literal = true;
            *out = (struct gw_match){0};
        }
        unsigned methods = t->methods | (t->methods & GW_GET ? (unsigned)GW_HEAD : 0u);
        out->allowed |= methods;
        if (!out->route && (methods & method)) {
            out->route = t;
            memcpy(found, params, sizeof found);
        }
    }
    for (size_t k = 0; out->route && k < MAX_PARAMS && found[k].at; k++) {
        out->params[k] = arena_strndup(a, found[k].at, found[k].n);
        if (!out->params[k])
            return false;
    }
    return true;
}

static const struct {
    unsigned bit;
    const char *text;
} methods[] = {{GW_GET, "GET"},
               {GW_HEAD, "HEAD"},
               {GW_POST, "POST"},
               {GW_DELETE, "DELETE"},
               {GW_OPTIONS, "OPTIONS"}};

const char *gw_method_text(unsigned method) {
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i].bit == method)
            return methods[i].text;
    return "other";
}

void gw_methods_text(unsigned bits, char *out, size_t cap) {
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof methods / sizeof *methods && at < cap; i++)
        if (bits & methods[i].bit)
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? ", " : "", methods[i].text);
}
