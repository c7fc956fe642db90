// SPDX-License-Identifier: Apache-2.0
#include "tests/model/tokenizer_support.h"
#include "tests/support/cmocka_all.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *golden_file(const char *name, size_t *len) {
    char path[256];
    snprintf(path, sizeof(path), "tests/golden/tokenizer/%s", name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be opened", path);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(size + 1);
    assert_non_null(data);
    *len = fread(data, 1, size, f);
    assert_int_equal(*len, size);
    data[size] = '\0';
    fclose(f);
    return data;
}

struct golden_rows *golden_rows_load(const char *name, const char *kind) {
    char file[64];
    size_t len;
    snprintf(file, sizeof(file), "%s.%s", name, kind);
    struct golden_rows *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->file = golden_file(file, &len);
    for (size_t i = 0; i < len; i++)
        r->n += r->file[i] == '\n';
    r->row = calloc(r->n, sizeof(*r->row));
    assert_non_null(r->row);
    char *at = r->file;
    for (size_t i = 0; i < r->n; i++) {
        r->row[i] = at;
        at = strchr(at, '\n');
        *at++ = '\0';
    }
    return r;
}

void golden_rows_free(struct golden_rows *r) {
    free(r->row);
    free(r->file);
    free(r);
}

struct golden_texts *golden_texts_load(void) {
    enum { FILES = 3, MAX = 10000 };
    struct golden_texts *g = calloc(1, sizeof(*g));
    assert_non_null(g);
    g->text = calloc(MAX, sizeof(*g->text));
    g->len = calloc(MAX, sizeof(*g->len));
    assert_true(g->text && g->len);
    for (int f = 0; f < FILES; f++) {
        char name[16];
        snprintf(name, sizeof(name), "lines_%d", f);
        struct golden_rows *r = golden_rows_load(name, "txt");
        for (size_t i = 0; i < r->n; i++) {
            json_t *v = json_loads(r->row[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            assert_true(json_is_string(v) && g->n < MAX);
            size_t len = json_string_length(v);
            char *text = malloc(len + 1);
            assert_non_null(text);
            memcpy(text, json_string_value(v), len + 1);
            g->text[g->n] = text;
            g->len[g->n++] = len;
            json_decref(v);
        }
        golden_rows_free(r);
    }
    return g;
}

void golden_texts_free(struct golden_texts *g) {
    for (size_t i = 0; i < g->n; i++)
        free(g->text[i]);
    free(g->text);
    free(g->len);
    free(g);
}

struct tokenizer *golden_tokenizer(const char *name) {
    char file[64];
    size_t len;
    struct tokenizer *t = NULL;
    struct err_info info = {0};
    snprintf(file, sizeof(file), "%s.json", name);
    char *json = golden_file(file, &len);
    if (tokenizer_from_hf(json, len, NULL, 0, &t, &info) != ERR_OK)
        fail_msg("%s: %s", file, info.message);
    free(json);
    return t;
}

void golden_hash(const struct tok_ids *ids, char hash[8]) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < ids->n; i++)
        for (int b = 0; b < 32; b += 8)
            h = (h ^ ((uint32_t)ids->ids[i] >> b & 0xff)) * 0x100000001b3u;
    snprintf(hash, 8, "%06x", (unsigned)((h ^ h >> 24 ^ h >> 48) & 0xffffff));
}

static struct tok_ids encode(const struct tokenizer *t, const char *text, size_t len,
                             bool parse_special) {
    const struct tok_encode_opts opts = {.add_special = true, .parse_special = parse_special};
    struct tok_ids ids = {0};
    struct err_info info = {0};
    if (tokenizer_encode(t, text, len, &opts, &ids, &info) != ERR_OK)
        fail_msg("%s", info.message);
    return ids;
}

static void check_ids_row(const char *row, const struct tok_ids *ids, const char *name) {
    char *end;
    long line = strtol(row, &end, 10);
    for (size_t i = 0; i < ids->n; i++) {
        long want = *end == ' ' ? strtol(end, &end, 10) : -1;
        if (want != ids->ids[i])
            fail_msg("%s, text %ld: id %zu is %d, not %ld", name, line, i, ids->ids[i], want);
    }
    if (*end == ' ')
        fail_msg("%s, text %ld: only %zu ids", name, line, ids->n);
}

void golden_check(const struct tokenizer *t, const char *name) {
    struct golden_texts *g = golden_texts_load();
    struct golden_rows *expect = golden_rows_load(name, "expect");
    struct golden_rows *rows = golden_rows_load(name, "ids");
    assert_int_equal(g->n, 10000);
    assert_int_equal(expect->n, g->n);
    size_t wrong = 0;
    for (size_t i = 0; i < g->n; i++) {
        struct tok_ids special = encode(t, g->text[i], g->len[i], true);
        struct tok_ids literal = encode(t, g->text[i], g->len[i], false);
        char got[2][8], row[16];
        golden_hash(&special, got[0]);
        golden_hash(&literal, got[1]);
        if (special.n == literal.n &&
            (!special.n || !memcmp(special.ids, literal.ids, special.n * sizeof(*special.ids))))
            snprintf(row, sizeof(row), "%s", got[0]);
        else
            snprintf(row, sizeof(row), "%s %s", got[0], got[1]);
        if (i % 25 == 0)
            check_ids_row(rows->row[i / 25], &special, name);
        if (strcmp(row, expect->row[i]) != 0 && wrong++ < 10) {
            print_error("%s, text %zu: %s, expected %s; the ids:", name, i, row, expect->row[i]);
            for (size_t k = 0; k < special.n; k++)
                print_error(" %d", special.ids[k]);
            print_error("\n");
        }
        tok_ids_fini(&special);
        tok_ids_fini(&literal);
    }
    golden_rows_free(rows);
    golden_rows_free(expect);
    golden_texts_free(g);
    if (wrong)
        fail_msg("%s: %zu of the texts differ", name, wrong);
}
