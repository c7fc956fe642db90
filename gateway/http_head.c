// SPDX-License-Identifier: Apache-2.0
// The rules about a request's head that llhttp leaves to its user: HTTP version, field names,
// fields that must not come twice, Host, and framing (RFC 9112, 3.2 and 6; README rules 1 to 4).
#include "base/mem.h"
#include "gateway/http_parse.h"
#include <ctype.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

struct known_field {
    const char *name;
    unsigned char len;
    size_t offset; // of the const char * in struct gw_parse
};

#define KNOWN(text, field)                                                                         \
    { text, sizeof text - 1, offsetof(struct gw_parse, field) }
// Two readers that pick a different one of two such fields would disagree about the request, so
// each may come once.
static const struct known_field known[] = {
    KNOWN("host", host),
    KNOWN("authorization", authorization),
    KNOWN("content-type", content_type),
    KNOWN("content-length", content_length_text),
    KNOWN("transfer-encoding", transfer_encoding),
    KNOWN("origin", origin),
    KNOWN("expect", expect),
    KNOWN("x-request-id", request_id),
    KNOWN("traceparent", traceparent),
};

static bool is_token(const char *s) {
    static const char others[] = "!#$%&'*+-.^_`|~";
    if (!*s)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr(others, *s))
            return false;
    return true;
}

// uri-host [":" port], RFC 3986: a name, an IPv4 address or an IPv6 address in brackets.
static bool is_host(const char *s) {
    if (*s == '[') {
        size_t n = strspn(s + 1, "0123456789abcdefABCDEF:.");
        if (n == 0 || s[1 + n] != ']')
            return false;
        s += n + 2;
    } else {
        size_t n = 0;
        while (isalnum((unsigned char)s[n]) || (s[n] && strchr("-._~", s[n])))
            n++;
        if (n == 0)
            return false;
        s += n;
    }
    if (*s == '\0')
        return true;
    if (*s != ':')
        return false;
    size_t digits = strspn(++s, "0123456789");
    return digits <= 5 && s[digits] == '\0';
}

static enum err bad_field(struct err_info *info, const char *name, const char *why) {
    return err_set(info, ERR_INVALID, NULL, "malformed HTTP request: %s: %s", name, why);
}

static enum err index_fields(struct gw_parse *p, struct err_info *info) {
    if (p->n_fields > p->headers_cap) {
        size_t cap = p->n_fields < 16 ? 16 : GW_MAX_HEADERS;
        struct gw_header *h = mem_realloc(p->headers, cap * sizeof *h);
        if (!h)
            return err_set(info, ERR_NOMEM, NULL, "out of memory");
        p->headers = h;
        p->headers_cap = cap;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        *(const char **)((char *)p + known[i].offset) = NULL;
    const char *s = p->text.data, *end = p->text.data + p->text.len;
    p->target = s;
    s += strlen(s) + 1;
    for (p->n_headers = 0; s < end && p->n_headers < p->n_fields; p->n_headers++) {
        const char *name = s;
        size_t len = strlen(name);
        const char *value = name + len + 1;
        s = value + strlen(value) + 1;
        if (!is_token(name))
            return bad_field(info, "header", "a field name holds a character that is not allowed");
        p->headers[p->n_headers] = (struct gw_header){name, value};
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (known[i].len != len || memcmp(known[i].name, name, len) != 0)
                continue;
            const char **field = (const char **)((char *)p + known[i].offset);
            if (*field)
                return bad_field(info, name, "given more than once");
            *field = value;
        }
    }
    return ERR_OK;
}

static unsigned method_bit(uint8_t llhttp_method) {
    switch (llhttp_method) {
    case HTTP_GET:
        return GW_GET;
    case HTTP_POST:
        return GW_POST;
    case HTTP_DELETE:
        return GW_DELETE;
    case HTTP_HEAD:
        return GW_HEAD;
    case HTTP_OPTIONS:
        return GW_OPTIONS;
    default:
        return 0;
    }
}

static enum err check_framing(struct gw_parse *p, struct err_info *info) {
    p->content_length = 0;
    p->chunked = p->transfer_encoding != NULL;
    if (p->chunked) {
        if (p->content_length_text)
            return bad_field(info, "content-length", "not allowed beside transfer-encoding");
        if (p->http10)
            return bad_field(info, "transfer-encoding", "not allowed in HTTP/1.0");
        if (strcasecmp(p->transfer_encoding, "chunked") != 0)
            return bad_field(info, "transfer-encoding", "only chunked is accepted");
    } else if (p->content_length_text) {
        const char *s = p->content_length_text;
        size_t digits = strspn(s, "0123456789");
        if (digits == 0 || s[digits] != '\0')
            return bad_field(info, "content-length", "not a number");
        for (; *s; s++)
            if (__builtin_mul_overflow(p->content_length, 10u, &p->content_length) ||
                __builtin_add_overflow(p->content_length, (unsigned)(*s - '0'), &p->content_length))
                return bad_field(info, "content-length", "too large a number");
    }
    return ERR_OK;
}

enum err gw__head_check(struct gw_parse *p, struct err_info *info) {
    const llhttp_t *l = &p->llhttp;
    enum err e = index_fields(p, info);
    if (e)
        return e;
    p->http10 = l->http_minor == 0;
    p->method = method_bit(l->method);
    p->method_name = llhttp_method_name((llhttp_method_t)l->method);
    p->keep_alive = llhttp_should_keep_alive(l) != 0;
    if (!p->host && !p->http10)
        return bad_field(info, "host", "missing");
    if (p->host && !is_host(p->host))
        return bad_field(info, "host", "not a host name with an optional port");
    for (const char *s = p->target; *s; s++)
        if (*s <= ' ' || *s >= 0x7f || *s == '#' || *s == '\\')
            return err_set(info, ERR_INVALID, NULL,
                           "malformed HTTP request: the target holds a character that must be "
                           "percent-encoded");
    p->expect_continue = p->expect && strcasecmp(p->expect, "100-continue") == 0 && !p->http10;
    p->expect_other = p->expect && !p->expect_continue && !p->http10;
    return check_framing(p, info);
}
