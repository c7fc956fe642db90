// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"
#include "base/mem.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

enum err random_bytes(void *p, size_t n) {
    uint8_t *to = p;
    while (n) {
        ssize_t got = getrandom(to, n, 0);
        if (got <= 0)
            return ERR_IO;
        to += got;
        n -= (size_t)got;
    }
    return ERR_OK;
}

enum err hash_key_random(struct hash_key *k) {
    return random_bytes(k, sizeof *k);
}

static uint64_t rotl(uint64_t x, int r) {
    return x << r | x >> (64 - r);
}

static uint64_t load_le(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

uint64_t hash_bytes(const struct hash_key *k, const void *data, size_t n) {
    const uint8_t *p = data;
    uint64_t v[4] = {k->k0 ^ 0x736f6d6570736575, k->k1 ^ 0x646f72616e646f6d,
                     k->k0 ^ 0x6c7967656e657261, k->k1 ^ 0x7465646279746573};
    size_t left = n;
    for (;; p += 8, left -= 8) {
        uint64_t m = left >= 8 ? load_le(p, 8) : load_le(p, left) | (uint64_t)(n & 0xff) << 56;
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
        if (left < 8)
            break;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t hash_mix64(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9;
    x ^= x >> 27;
    x *= 0x94d049bb133111eb;
    return x ^ x >> 31;
}

struct sha256_ctx {
    EVP_MD_CTX *md;
};

struct sha256_ctx *sha256_begin(void) {
    struct sha256_ctx *c = mem_zalloc(sizeof *c);
    if (!c)
        return NULL;
    c->md = EVP_MD_CTX_new();
    if (!c->md || EVP_DigestInit_ex(c->md, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(c->md);
        mem_free(c);
        return NULL;
    }
    return c;
}

enum err sha256_update(struct sha256_ctx *c, const void *p, size_t n) {
    return EVP_DigestUpdate(c->md, p, n) == 1 ? ERR_OK : ERR_INTERNAL;
}

enum err sha256_end(struct sha256_ctx *c, uint8_t out[SHA256_BYTES]) {
    int ok = EVP_DigestFinal_ex(c->md, out, NULL);
    EVP_MD_CTX_free(c->md);
    mem_free(c);
    return ok == 1 ? ERR_OK : ERR_INTERNAL;
}

enum err sha256(const void *p, size_t n, uint8_t out[SHA256_BYTES]) {
    return EVP_Digest(p, n, out, NULL, EVP_sha256(), NULL) == 1 ? ERR_OK : ERR_INTERNAL;
}

void hex_encode(const uint8_t *p, size_t n, char *out) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * n] = '\0';
}

int hex_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int mem_equal_ct(const void *a, const void *b, size_t n) {
    return CRYPTO_memcmp(a, b, n) == 0;
}
