// SPDX-License-Identifier: Apache-2.0
// Fuzzes the tokenizer in three ways, chosen by the first byte: the rest is a tokenizer.json; or
// the arrays of a GGUF file, one entry a line; or a text for a fixed tokenizer that knows all
// bytes, whose ids must decode to that text. Whatever gets built also encodes a text.
#include "base/mem.h"
#include "base/utf8.h"
#include "model/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_alphabet.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ENTRIES = 400 };

static const char sample[] =
    "Hello  <s>it's 1234 ab\r\n\t<s> \xe5\xad\x97\xcc\x81 <|a|>\xf0\x9f\x98\x80 x";

static struct tok_ids encode_twice(const struct tokenizer *t, const char *text, size_t n) {
    struct tok_encode_opts opts = {.add_special = true, .parse_special = true};
    struct tok_ids ids = {0}, limited = {0};
    struct err_info info;
    enum err e = tokenizer_encode(t, text, n, &opts, &ids, &info);
    fuzz_require(e == ERR_OK || info.code == e);
    for (size_t i = 0; i < ids.n; i++)
        fuzz_require((uint32_t)ids.ids[i] < tokenizer_vocab_size(t));
    if (e == ERR_OK && ids.n) { // one id less never fits, and as many always do
        opts.max_ids = ids.n;
        fuzz_require(tokenizer_encode(t, text, n, &opts, &limited, NULL) == ERR_OK);
        fuzz_require(limited.n == ids.n && !memcmp(limited.ids, ids.ids, ids.n * sizeof(*ids.ids)));
        opts.max_ids = ids.n - 1;
        if (opts.max_ids)
            fuzz_require(tokenizer_encode(t, text, n, &opts, &limited, NULL) == ERR_CONTEXT);
    }
    tok_ids_fini(&limited);
    return ids;
}

static void use(struct tokenizer *t) {
    struct tok_ids ids = encode_twice(t, sample, sizeof(sample) - 1);
    struct buf out;
    buf_init(&out, 0);
    fuzz_require(tokenizer_decode(t, ids.ids, ids.n, false, &out) == ERR_OK);
    buf_fini(&out);
    tok_ids_fini(&ids);
    for (uint32_t id = 0; id < tokenizer_vocab_size(t) && id < MAX_ENTRIES; id++) {
        size_t n;
        const char *p = tokenizer_token_bytes(t, (int32_t)id, &n);
        (void)tokenizer_find(t, p, n);
    }
    tokenizer_destroy(t);
}

static void fuzz_json(const char *p, size_t n) {
    struct tokenizer *t;
    struct err_info info = {0};
    enum err e = tokenizer_from_hf(p, n, n % 3 ? NULL : p, n, &t, &info);
    fuzz_require((e == ERR_OK) == (t != NULL));
    if (t)
        use(t);
    else
        fuzz_require(info.code == e && info.message[0]);
}

// Lines before an empty one are tokens, their first byte the type; the others are merges.
static void fuzz_gguf(const char *p, size_t n) {
    static const char *const pre[] = {"gpt-2", "llama-bpe", "smollm", "other"};
    struct tok_str tokens[MAX_ENTRIES], merges[MAX_ENTRIES];
    int32_t types[MAX_ENTRIES];
    struct tokenizer_gguf g = {
        .model = {"gpt2", 4}, .tokens = tokens, .merges = merges, .token_type = types};
    if (n < 4)
        return;
    g.pre.p = pre[p[0] & 3];
    g.pre.n = strlen(g.pre.p);
    g.bos = (int8_t)p[1];
    g.eos = (int8_t)p[2];
    g.eot = -1;
    g.add_bos = p[3] & 1;
    g.add_eos = p[3] & 2;
    bool in_merges = false;
    for (size_t at = 4; at < n && g.n_tokens < MAX_ENTRIES && g.n_merges < MAX_ENTRIES;) {
        const char *end = memchr(p + at, '\n', n - at);
        size_t len = end ? (size_t)(end - p) - at : n - at;
        if (len == 0) {
            in_merges = true;
        } else if (in_merges) {
            merges[g.n_merges++] = (struct tok_str){p + at, len};
        } else {
            types[g.n_tokens] = (p[at] & 7) + (p[at] == 'z');
            tokens[g.n_tokens++] = (struct tok_str){p + at + 1, len - 1};
        }
        at += len + 1;
    }
    struct tokenizer *t;
    struct err_info info = {0};
    enum err e = tokenizer_from_gguf(&g, &t, &info);
    fuzz_require((e == ERR_OK) == (t != NULL));
    if (t)
        use(t);
    else
        fuzz_require(info.code == e && info.message[0]);
}

// All bytes, a chain of merges and three added tokens.
static struct tokenizer *fixed_tokenizer(int which) {
    static const char *const pre[] = {"gpt-2", "llama-bpe", "smollm"};
    static const char *const more[] = {"ab",          "abab",
                                       "he",          "ll",
                                       "hell",        "\xc4\xa0t",
                                       "\xc4\xa0the", "\xc3\xa5\xc5\x83",
                                       "12",          "\xc4\xa0\xc4\xa0"};
    static const char *const lines[] = {"a b",          "ab ab",
                                        "h e",          "l l",
                                        "he ll",        "\xc4\xa0 t",
                                        "\xc4\xa0t he", "\xc3\xa5 \xc5\x83",
                                        "1 2",          "\xc4\xa0 \xc4\xa0"};
    static const char *const added[] = {"<s>", "<|a|>", "  \t"};
    enum { MORE = 10, ADDED = 3, ALL = 256 + MORE + ADDED };
    struct tok_str tokens[ALL], merges[MORE];
    int32_t types[ALL];
    char alphabet[256][3];
    fuzz_alphabet(tokens, types, alphabet);
    for (size_t i = 0; i < MORE; i++) {
        tokens[256 + i] = (struct tok_str){more[i], strlen(more[i])};
        merges[i] = (struct tok_str){lines[i], strlen(lines[i])};
        types[256 + i] = 1;
    }
    for (size_t i = 0; i < ADDED; i++) {
        tokens[256 + MORE + i] = (struct tok_str){added[i], strlen(added[i])};
        types[256 + MORE + i] = i < 2 ? 3 : 4;
    }
    struct tokenizer_gguf g = {.model = {"gpt2", 4},
                               .pre = {pre[which], strlen(pre[which])},
                               .tokens = tokens,
                               .merges = merges,
                               .n_tokens = ALL,
                               .n_merges = MORE,
                               .token_type = types,
                               .bos = -1,
                               .eos = -1,
                               .eot = -1};
    struct tokenizer *t = NULL;
    struct err_info info = {0};
    fuzz_require(tokenizer_from_gguf(&g, &t, &info) == ERR_OK);
    return t;
}

static void fuzz_text(int which, const char *p, size_t n) {
    struct tokenizer *t = fixed_tokenizer(which);
    bool valid = utf8_valid(p, n);
    struct tok_ids ids = encode_twice(t, p, n), cut = {0}, literal = {0};
    struct buf out;
    buf_init(&out, 0);
    fuzz_require(tokenizer_decode(t, ids.ids, ids.n, false, &out) == ERR_OK);
    if (valid)
        fuzz_require(out.len == n && (n == 0 || !memcmp(out.data, p, n)));
    else
        fuzz_require(ids.n == 0);
    // Literal text gives the same ids wherever it is cut, and none of them is special.
    struct tok_encode_opts opts = {.parse_special = true};
    struct tok_piece pieces[] = {{p, n / 3, true}, {p + n / 3, n - n / 3, true}};
    enum err e = tokenizer_encode_pieces(t, pieces, 2, &opts, &cut, NULL);
    opts.parse_special = false;
    fuzz_require(tokenizer_encode(t, p, n, &opts, &literal, NULL) == e && (e == ERR_OK) == valid);
    fuzz_require(cut.n == literal.n &&
                 (!cut.n || !memcmp(cut.ids, literal.ids, cut.n * sizeof(*cut.ids))));
    for (size_t i = 0; i < cut.n; i++)
        fuzz_require(!tokenizer_is_special(t, cut.ids[i]));
    buf_fini(&out);
    tok_ids_fini(&ids);
    tok_ids_fini(&cut);
    tok_ids_fini(&literal);
    tokenizer_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    int64_t live = mem_live_blocks();
    const char *p = (const char *)data + 1;
    size_t n = size - 1;
    if (data[0] % 8 == 0)
        fuzz_json(p, n);
    else if (data[0] % 8 == 1)
        fuzz_gguf(p, n);
    else
        fuzz_text(data[0] % 3, p, n);
    fuzz_require(mem_live_blocks() == live);
    return 0;
}
