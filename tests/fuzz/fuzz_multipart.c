// SPDX-License-Identifier: Apache-2.0
// A multipart body, read twice, cut at different places: both readings must agree. Input: a byte
// that seeds the cuts, then the body, whose boundary is "b".
#include "gateway/multipart.h"
#include "tests/fuzz/fuzz.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct reading {
    uint64_t hash;
    size_t parts, bytes;
    int open;
    enum err end;
};

static void require(int ok) {
    if (!ok)
        abort();
}

static void add(struct reading *r, const void *p, size_t n) {
    const unsigned char *s = p;
    for (size_t i = 0; i < n; i++)
        r->hash = (r->hash ^ s[i]) * 0x100000001b3u;
}

static enum err begin(void *arg, const struct mp_part *p, struct err_info *info) {
    struct reading *r = arg;
    (void)info;
    require(r->open++ == 0 && p->name && p->name[0]);
    add(r, p->name, strlen(p->name) + 1);
    if (p->filename)
        add(r, p->filename, strlen(p->filename) + 1);
    if (p->content_type)
        add(r, p->content_type, strlen(p->content_type) + 1);
    r->parts++;
    return ERR_OK;
}

static enum err content(void *arg, const char *p, size_t n, struct err_info *info) {
    struct reading *r = arg;
    (void)info;
    require(r->open == 1 && n > 0);
    add(r, p, n);
    r->bytes += n;
    return ERR_OK;
}

static enum err end(void *arg, struct err_info *info) {
    struct reading *r = arg;
    (void)info;
    require(--r->open == 0);
    add(r, "", 1);
    return ERR_OK;
}

static void read_all(const uint8_t *data, size_t size, uint32_t seed, struct reading *out) {
    static const struct mp_calls calls = {begin, content, end};
    struct multipart *m = malloc(sizeof *m);
    struct err_info info = {0};
    require(m != NULL);
    *out = (struct reading){0};
    mp_init(m, "b", &calls, out);
    for (size_t at = 0; at < size && !out->end;) {
        size_t piece = fuzz_cut(&seed, size - at);
        char *copy = malloc(piece); // of its own size, so that reading beyond it is seen
        require(copy != NULL);
        memcpy(copy, data + at, piece);
        out->end = mp_feed(m, copy, piece, &info);
        free(copy);
        at += piece;
    }
    if (!out->end)
        out->end = mp_finish(m, &info);
    require(out->end == ERR_OK || (out->end == ERR_INVALID && info.message[0]));
    require(out->bytes <= size && out->parts <= MP_PARTS_MAX);
    free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    char text[300], boundary[MP_BOUNDARY_MAX + 1];
    size_t n = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = '\0';
    (void)mp_boundary(text, boundary, NULL);
    struct reading whole, cut;
    read_all(data + 1, size - 1, 0, &whole);
    read_all(data + 1, size - 1, data[0] + 1u, &cut);
    require(whole.end == cut.end);
    if (!whole.end)
        require(whole.hash == cut.hash && whole.parts == cut.parts && whole.bytes == cut.bytes &&
                whole.open == 0 && cut.open == 0);
    return 0;
}
