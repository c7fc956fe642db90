// SPDX-License-Identifier: Apache-2.0
// Ids equal to the `tokenizers` library on 10,000 texts (tests/golden/tokenizer/make_golden.py),
// and what the library has no word for: pieces, limits, raw bytes, texts of a megabyte.
#include "base/mem.h"
#include "model/tokenizer_internal.h"
#include "tests/model/tokenizer_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tok_encode_opts full = {.add_special = true, .parse_special = true};
static const struct tok_encode_opts plain = {.add_special = true};
static const struct tok_encode_opts bare = {.parse_special = true};

static struct tok_ids encode(const struct tokenizer *t, const char *text, size_t len,
                             const struct tok_encode_opts *opts) {
    struct tok_ids ids = {0};
    struct err_info info = {0};
    if (tokenizer_encode(t, text, len, opts, &ids, &info) != ERR_OK)
        fail_msg("%s", info.message);
    return ids;
}

// --- against the library

static void check_golden_json(const char *name) {
    struct tokenizer *t = golden_tokenizer(name);
    golden_check(t, name);
    tokenizer_destroy(t);
}

static void gpt2_equals_the_library(void **state) {
    (void)state;
    check_golden_json("gpt2");
}

static void llama3_equals_the_library(void **state) {
    (void)state;
    check_golden_json("llama3");
}

static void smollm_equals_the_library(void **state) {
    (void)state;
    check_golden_json("smollm");
}

static void added_token_flags_equal_the_library(void **state) {
    (void)state;
    check_golden_json("flags");
}

// Where PCRE2 has no JIT (not built in, or no executable memory) its interpreter does the work.
static void without_jit(struct tokenizer *t) {
    assert_true(t->n_stages > 0);
    for (size_t i = 0; i < t->n_stages; i++)
        t->stages[i].jit = false;
}

static void the_interpreter_equals_the_library(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2", "llama3", "smollm"};
    for (size_t i = 0; i < 3; i++) {
        struct tokenizer *t = golden_tokenizer(names[i]);
        without_jit(t);
        golden_check(t, names[i]);
        tokenizer_destroy(t);
    }
}

// --- round trips

static void decoding_gives_the_text_back(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("llama3");
    struct golden_texts *g = golden_texts_load();
    for (size_t i = 0; i < g->n; i++) {
        struct tok_ids ids = encode(t, g->text[i], g->len[i], &bare);
        struct buf out;
        buf_init(&out, 0);
        assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, false, &out), ERR_OK);
        assert_int_equal(out.len, g->len[i]);
        if (out.len)
            assert_memory_equal(out.data, g->text[i], out.len);
        buf_fini(&out);
        tok_ids_fini(&ids);
    }
    golden_texts_free(g);
    tokenizer_destroy(t);
}

static void decoding_can_skip_special_tokens(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("llama3");
    struct tok_ids ids = encode(t, "<|eot_id|>a<|end_of_text|>", 26, &full);
    int32_t with_strangers[16] = {-1, 1 << 30};
    assert_true(ids.n + 2 < 16);
    memcpy(with_strangers + 2, ids.ids, ids.n * sizeof(*ids.ids));
    struct buf out;
    buf_init(&out, 0);
    assert_int_equal(tokenizer_decode(t, with_strangers, ids.n + 2, true, &out), ERR_OK);
    assert_string_equal(out.data, "a");
    buf_clear(&out);
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, false, &out), ERR_OK);
    assert_string_equal(out.data, "<|begin_of_text|><|eot_id|>a<|end_of_text|>");
    buf_fini(&out);
    tok_ids_fini(&ids);
    tokenizer_destroy(t);
}

static void tokens_can_be_looked_up(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("llama3");
    size_t len;
    int32_t eot = tokenizer_find(t, "<|eot_id|>", 10);
    assert_true(eot > 0 && tokenizer_is_special(t, eot));
    assert_memory_equal(tokenizer_token_bytes(t, eot, &len), "<|eot_id|>", 10);
    assert_int_equal(len, 10);
    int32_t the = tokenizer_find(t, " the", 4);
    assert_true(the > 0 && !tokenizer_is_special(t, the));
    assert_memory_equal(tokenizer_token_bytes(t, the, &len), " the", 4);
    assert_int_equal(tokenizer_find(t, "no such token", 13), -1);
    assert_int_equal(tokenizer_find(t, "", 0), -1);
    tokenizer_token_bytes(t, -1, &len);
    assert_int_equal(len, 0);
    tokenizer_token_bytes(t, (int32_t)tokenizer_vocab_size(t), &len);
    assert_int_equal(len, 0);
    assert_false(tokenizer_is_special(t, 1 << 30));
    assert_int_equal(tokenizer_bos(t), tokenizer_find(t, "<|begin_of_text|>", 17));
    assert_true(tokenizer_adds_bos(t));
    tokenizer_destroy(t);
}

// --- pieces

// The pieces' ids as text: special tokens in braces.
static char *pieces(const struct tokenizer *t, const struct tok_piece *p, size_t n) {
    struct tok_ids ids = {0};
    struct buf line;
    assert_int_equal(tokenizer_encode_pieces(t, p, n, &bare, &ids, NULL), ERR_OK);
    buf_init(&line, 0);
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;
        const char *bytes = tokenizer_token_bytes(t, ids.ids[i], &len);
        bool special = tokenizer_is_special(t, ids.ids[i]);
        buf_puts(&line, special ? "{" : "");
        buf_append(&line, bytes, len);
        buf_puts(&line, special ? "}" : "");
    }
    tok_ids_fini(&ids);
    return line.data;
}

#define TEMPLATE(s)                                                                                \
    { .text = (s), .len = sizeof(s) - 1 }
#define USER(s)                                                                                    \
    { .text = (s), .len = sizeof(s) - 1, .literal = true }
#define CHECK_PIECES(t, want, ...)                                                                 \
    do {                                                                                           \
        const struct tok_piece p[] = {__VA_ARGS__};                                                \
        char *got = pieces(t, p, sizeof(p) / sizeof(p[0]));                                        \
        assert_string_equal(got, want);                                                            \
        mem_free(got);                                                                             \
    } while (0)

static void user_text_never_becomes_a_special_token(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("flags");
    CHECK_PIECES(t, "{<|a|>}a{<|a|>}", TEMPLATE("<|a|>"), TEMPLATE("a<|a|>"));
    CHECK_PIECES(t, "{<|a|>}<|a|>{<|a|>}", TEMPLATE("<|a|>"), USER("<|a|>"), TEMPLATE("<|a|>"));
    // Not across an edge either, wherever it runs.
    CHECK_PIECES(t, "<|a|>", TEMPLATE("<|"), USER("a|>"));
    CHECK_PIECES(t, "<|a|>", USER("<|a"), TEMPLATE("|>"));
    CHECK_PIECES(t, "<|a|>", TEMPLATE("<"), USER("|a|"), TEMPLATE(">"));
    // Template text in two pieces is template text.
    CHECK_PIECES(t, "{<|a|>}", TEMPLATE("<|"), TEMPLATE(""), USER(""), TEMPLATE("a|>"));
    // User text cannot take the template's token away by making it part of a longer one.
    CHECK_PIECES(t, "{<|a|>}<|b|>", TEMPLATE("<|a|>"), USER("<|b|>"));
    CHECK_PIECES(t, "{<|a|><|b|>}", TEMPLATE("<|a|>"), TEMPLATE("<|b|>"));
    CHECK_PIECES(t, "<|a|>{<|a|>}", USER("<|a|>"), TEMPLATE("<|a|>"));
    CHECK_PIECES(t, "<|{<|a|>}", USER("<|"), TEMPLATE("<|a|>"));
    // A letter beside a token that must stand alone counts in the template's own text only.
    CHECK_PIECES(t, "{<one>}x", TEMPLATE("<one>"), USER("x"));
    CHECK_PIECES(t, "<one>x", TEMPLATE("<one>x"));
    CHECK_PIECES(t, "x{<one>}", USER("x"), TEMPLATE("<one>"));
    CHECK_PIECES(t, "x<one>", TEMPLATE("x<one>"));
    tokenizer_destroy(t);
}

// Tokens that are added but not special are matched in any text.
static void added_tokens_are_matched_across_pieces(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("flags");
    const struct tok_piece p[] = {USER("wo"), TEMPLATE("rd"), USER(" word")};
    struct tok_ids ids = {0};
    int32_t word = tokenizer_find(t, "word", 4);
    assert_int_equal(tokenizer_encode_pieces(t, p, 3, &bare, &ids, NULL), ERR_OK);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.ids[0], word);
    assert_int_equal(ids.ids[2], word);
    tok_ids_fini(&ids);
    tokenizer_destroy(t);
}

static void pieces_merge_like_the_joined_text(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("gpt2");
    struct golden_texts *g = golden_texts_load();
    for (size_t i = 0; i < g->n; i += 7) {
        // Cut anywhere, even inside a character. All is literal: no special token has a place.
        size_t a = g->len[i] / 3, b = g->len[i] / 2;
        const struct tok_piece p[] = {{g->text[i], a, true},
                                      {g->text[i] + a, b - a, true},
                                      {g->text[i] + b, g->len[i] - b, true}};
        struct tok_ids whole = encode(t, g->text[i], g->len[i], &plain), cut = {0};
        assert_int_equal(tokenizer_encode_pieces(t, p, 3, &bare, &cut, NULL), ERR_OK);
        assert_int_equal(cut.n, whole.n);
        if (cut.n)
            assert_memory_equal(cut.ids, whole.ids, cut.n * sizeof(*cut.ids));
        tok_ids_fini(&whole);
        tok_ids_fini(&cut);
    }
    struct tok_ids none = {0};
    assert_int_equal(tokenizer_encode_pieces(t, NULL, 0, &bare, &none, NULL), ERR_OK);
    assert_int_equal(none.n, 0);
    golden_texts_free(g);
    tokenizer_destroy(t);
}

// --- limits

static void a_limit_stops_where_it_is_passed(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("flags"); // adds one id before and one after
    struct golden_texts *g = golden_texts_load();
    struct tok_ids out = {0};
    struct err_info info;
    for (size_t i = 0; i < g->n; i += 13) {
        struct tok_ids ids = encode(t, g->text[i], g->len[i], &full);
        struct tok_encode_opts opts = full;
        size_t held = out.n;
        opts.max_ids = ids.n;
        assert_int_equal(tokenizer_encode(t, g->text[i], g->len[i], &opts, &out, &info), ERR_OK);
        assert_int_equal(out.n, held + ids.n);
        assert_memory_equal(out.ids + held, ids.ids, ids.n * sizeof(*ids.ids));
        opts.max_ids = ids.n - 1;
        held = out.n;
        assert_int_equal(tokenizer_encode(t, g->text[i], g->len[i], &opts, &out, &info),
                         ERR_CONTEXT);
        assert_int_equal(info.code, ERR_CONTEXT);
        assert_int_equal(out.n, held); // what was there stays
        tok_ids_fini(&ids);
    }
    tok_ids_fini(&out);
    golden_texts_free(g);
    tokenizer_destroy(t);
}

static void invalid_utf8_is_refused(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("gpt2");
    static const char *const bad[] = {"a\xff", "\xc0\x80", "ab\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "x\xe2\x82"};
    static const size_t at[] = {1, 0, 2, 0, 1};
    for (size_t i = 0; i < 5; i++) {
        struct tok_ids ids = {0};
        struct err_info info;
        char place[32];
        assert_int_equal(tokenizer_encode(t, bad[i], strlen(bad[i]), &full, &ids, &info),
                         ERR_INVALID);
        snprintf(place, sizeof(place), "at byte %zu", at[i]);
        assert_non_null(strstr(info.message, place));
        tok_ids_fini(&ids);
    }
    tokenizer_destroy(t);
}

// A run of one unit, and an x: the text comes back, and no limit of the matcher is hit.
static void check_run(const struct tokenizer *t, const char *unit, size_t bytes) {
    char *text = malloc(bytes + 1);
    size_t n = strlen(unit), len = 0;
    assert_non_null(text);
    for (; len + n <= bytes; len += n)
        memcpy(text + len, unit, n);
    text[len++] = 'x';
    struct tok_ids ids = encode(t, text, len, &bare);
    struct buf out;
    buf_init(&out, 0);
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, false, &out), ERR_OK);
    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, text, len);
    buf_fini(&out);
    tok_ids_fini(&ids);
    free(text);
}

static void a_megabyte_without_a_break_works(void **state) {
    (void)state;
    static const char *const units[] = {
        "a",   "ab",           " ",  "\n", "\r\n",     "7",   "!?",
        " \t", "\xe5\xad\x97", "'s", "<|", "\xcc\x81", " \n", "\xf0\x9f\x98\x80",
    };
    static const char *const names[] = {"llama3", "llama3", "smollm"};
    for (size_t k = 0; k < 3; k++) {
        struct tokenizer *t = golden_tokenizer(names[k]);
        if (k == 1)
            without_jit(t);
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++)
            check_run(t, units[u], (size_t)(k ? 1 << 17 : 1 << 20));
        tokenizer_destroy(t);
    }
}

static void a_text_that_cannot_fit_costs_little(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("llama3");
    enum { BYTES = 10 << 20 };
    char *text = malloc(BYTES);
    struct tok_encode_opts opts = full;
    struct tok_ids ids = {0};
    opts.max_ids = 8192;
    for (int words = 0; words < 2; words++) {
        for (size_t i = 0; i < BYTES; i++)
            text[i] = words && i % 6 == 0 ? ' ' : (char)('a' + i * i % 7);
        mem_fail_after(0, false); // starts the count of allocations
        assert_int_equal(tokenizer_encode(t, text, BYTES, &opts, &ids, NULL), ERR_CONTEXT);
        // One word of 10 MB is refused before memory for its merging is taken.
        assert_true(mem_fail_count() <= (words ? 20 : 4));
        assert_true(ids.cap <= 16384);
    }
    tok_ids_fini(&ids);
    free(text);
    tokenizer_destroy(t);
}

static void every_failed_allocation_is_an_error(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("flags");
    char text[600];
    memset(text, 'e', sizeof(text));
    memcpy(text, "a <mask> b 12", 13);
    struct tok_piece p[] = {{text, 300, false}, {text + 300, 300, true}};
    int64_t live = mem_live_blocks();
    enum err e = ERR_NOMEM;
    uint64_t n = 1;
    for (; e == ERR_NOMEM; n++) {
        struct tok_ids ids = {0};
        struct err_info info;
        mem_fail_after(n, false);
        e = tokenizer_encode_pieces(t, p, 2, &full, &ids, &info);
        mem_fail_after(0, false);
        if (e != ERR_OK) {
            assert_int_equal(e, ERR_NOMEM);
            assert_int_equal(info.code, ERR_NOMEM);
        }
        tok_ids_fini(&ids);
        assert_int_equal(mem_live_blocks(), live);
    }
    assert_int_equal(e, ERR_OK);
    assert_true(n > 10);
    tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_equals_the_library),
        cmocka_unit_test(llama3_equals_the_library),
        cmocka_unit_test(smollm_equals_the_library),
        cmocka_unit_test(added_token_flags_equal_the_library),
        cmocka_unit_test(the_interpreter_equals_the_library),
        cmocka_unit_test(decoding_gives_the_text_back),
        cmocka_unit_test(decoding_can_skip_special_tokens),
        cmocka_unit_test(tokens_can_be_looked_up),
        cmocka_unit_test(user_text_never_becomes_a_special_token),
        cmocka_unit_test(added_tokens_are_matched_across_pieces),
        cmocka_unit_test(pieces_merge_like_the_joined_text),
        cmocka_unit_test(a_limit_stops_where_it_is_passed),
        cmocka_unit_test(invalid_utf8_is_refused),
        cmocka_unit_test(a_megabyte_without_a_break_works),
        cmocka_unit_test(a_text_that_cannot_fit_costs_little),
        cmocka_unit_test(every_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
