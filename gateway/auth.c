// SPDX-License-Identifier: Apache-2.0
// API keys: a table of SHA-256 digests. A presented key is hashed and compared with every entry, in
// constant time each, so that the time taken tells neither which key was near nor how many
// characters matched. Filled at start, immutable and thread-safe afterwards.
#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "gateway/http.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { KEY_MAX = 512, KEYS_MAX = 65536, FILE_MAX = 16 << 20, TENANT_MAX = 128 };

struct gw_key {
    uint8_t digest[SHA256_BYTES];
    struct gw_identity who;
    char *tenant; // its name, or NULL
};

struct gw_keys {
    struct gw_key *items;
    size_t n, cap;
};

enum err gw_keys_create(struct gw_keys **out) {
    *out = mem_zalloc(sizeof **out);
    return *out ? ERR_OK : ERR_NOMEM;
}

void gw_keys_destroy(struct gw_keys *k) {
    if (!k)
        return;
    for (size_t i = 0; i < k->n; i++)
        mem_free(k->items[i].tenant);
    mem_free(k->items);
    mem_free(k);
}

size_t gw_keys_count(const struct gw_keys *k) {
    return k->n;
}

static bool visible(const char *s, size_t max) {
    size_t n = strlen(s);
    if (n == 0 || n > max)
        return false;
    for (; *s; s++)
        if (*s <= ' ' || *s >= 0x7f)
            return false;
    return true;
}

// A key that names no tenant has a domain of its own, so that nothing cached is shared between keys
// unless the operator says so.
static enum err domain_of(const char *tenant, const uint8_t *key_digest, uint64_t *out) {
    uint8_t digest[SHA256_BYTES];
    enum err e =
        tenant ? sha256(tenant, strlen(tenant), digest) : sha256(key_digest, SHA256_BYTES, digest);
    memcpy(out, digest, sizeof *out);
    *out |= 1; // 0 is that of clients without a key
    return e;
}

static bool is_default(const char *tenant) {
    return !tenant || !strcmp(tenant, GW_TENANT_DEFAULT);
}

enum err gw_keys_add(struct gw_keys *k, const char *key, const char *tenant, bool admin,
                     struct err_info *info) {
    return gw_keys_add_role(k, key, tenant, admin ? GW_ROLE_ADMIN : GW_ROLE_NONE, info);
}

enum err gw_keys_add_role(struct gw_keys *k, const char *key, const char *tenant, enum gw_role role,
                          struct err_info *info) {
    if (!visible(key, KEY_MAX))
        return err_set(info, ERR_INVALID, NULL,
                       "an API key must be 1 to %d visible ASCII characters", KEY_MAX);
    if (tenant && !visible(tenant, TENANT_MAX))
        return err_set(info, ERR_INVALID, NULL,
                       "a tenant's name must be 1 to %d visible ASCII characters", TENANT_MAX);
    if (k->n == KEYS_MAX)
        return err_set(info, ERR_LIMIT, NULL, "at most %d API keys are supported", KEYS_MAX);
    if (k->n == k->cap) {
        size_t cap = k->cap ? k->cap * 2 : 8;
        struct gw_key *items = mem_realloc(k->items, cap * sizeof *items);
        if (!items)
            return err_set(info, ERR_NOMEM, NULL, "out of memory");
        k->items = items;
        k->cap = cap;
    }
    struct gw_key *item = &k->items[k->n];
    *item = (struct gw_key){.who = {.admin = role == GW_ROLE_ADMIN, .train = role != GW_ROLE_NONE}};
    enum err e = sha256(key, strlen(key), item->digest);
    if (!e)
        e = domain_of(tenant, item->digest, &item->who.domain);
    item->who.tenant = is_default(tenant) ? 0 : item->who.domain;
    if (e)
        return err_set(info, e, NULL, "cannot hash an API key");
    item->tenant = tenant ? mem_strdup(tenant) : NULL;
    if (tenant && !item->tenant)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    memcpy(&item->who.key_id, item->digest, sizeof item->who.key_id);
    k->n++;
    return ERR_OK;
}

static enum err read_file(const char *path, struct buf *out, struct err_info *info) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(info, ERR_IO, NULL, "cannot open %s: %s", path, strerror(errno));
    enum err e = buf_read(out, fd);
    if (e == ERR_IO)
        err_set(info, e, NULL, "cannot read %s: %s", path, strerror(errno));
    else if (e)
        err_set(info, e, NULL, "%s is too large", path);
    else if (out->len && memchr(out->data, '\0', out->len))
        e = err_set(info, ERR_INVALID, NULL, "%s holds a NUL byte", path);
    close(fd);
    return e;
}

static enum err add_line(struct gw_keys *k, char *line, struct err_info *info) {
    static const char blank[] = " \t\r";
    char *save = NULL, *words[3] = {0};
    size_t n = 0;
    for (char *w = strtok_r(line, blank, &save); w; w = strtok_r(NULL, blank, &save)) {
        if (*w == '#')
            break;
        if (n == 3)
            return err_set(info, ERR_INVALID, NULL, "expected: key [tenant [train|admin]]");
        words[n++] = w;
    }
    if (n == 0)
        return ERR_OK;
    enum gw_role role = GW_ROLE_NONE;
    if (n == 3 && !strcmp(words[2], "admin"))
        role = GW_ROLE_ADMIN;
    else if (n == 3 && !strcmp(words[2], "train"))
        role = GW_ROLE_TRAIN;
    else if (n == 3)
        return err_set(info, ERR_INVALID, NULL, "the third word may only be train or admin");
    return gw_keys_add_role(k, words[0], words[1], role, info);
}

enum err gw_keys_load_file(struct gw_keys *k, const char *path, struct err_info *info) {
    struct buf text;
    buf_init(&text, FILE_MAX);
    enum err e = read_file(path, &text, info);
    size_t number = 1;
    for (char *line = text.len ? text.data : NULL, *next; !e && line && *line;
         line = next, number++) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        e = add_line(k, line, info);
        if (e)
            err_prefix(info, "%s line %zu", path, number);
    }
    if (text.data)
        explicit_bzero(text.data, text.cap);
    buf_fini(&text);
    return e;
}

bool gw_keys_check(const struct gw_keys *k, const char *presented, size_t len,
                   struct gw_identity *out) {
    uint8_t digest[SHA256_BYTES];
    bool found = false;
    if (len == 0 || len > KEY_MAX || sha256(presented, len, digest))
        return false;
    for (size_t i = 0; i < k->n; i++)
        if (mem_equal_ct(digest, k->items[i].digest, SHA256_BYTES)) {
            *out = k->items[i].who;
            found = true;
        }
    return found;
}

const char *gw_keys_tenant(const struct gw_keys *k, uint64_t tenant) {
    if (tenant == 0)
        return GW_TENANT_DEFAULT;
    for (size_t i = 0; k && i < k->n; i++)
        if (k->items[i].who.tenant == tenant)
            return k->items[i].tenant;
    return NULL;
}
