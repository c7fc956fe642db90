// SPDX-License-Identifier: Apache-2.0
// What the tokenizer's own files share. Entry points for everyone else: model/tokenizer.h.
//
// A text goes through: added tokens, two sets (tokenizer_special.c) -> split stages
// (tokenizer_pretok.c, patterns from tokenizer_pattern.c) -> one word at a time to tokenizer_bpe.c.
// A builder (tokenizer_build_hf.c, tokenizer_build_gguf.c) fills a tokenizer through
// tokenizer_vocab.c; after tok__finish nothing in it changes.
//
// Invariants of a finished tokenizer:
//  1. every id that a map, an added token or an affix names is below n_tokens;
//  2. `words` maps raw bytes to the one token of the vocabulary that is spelled so;
//  3. plain text becomes tokens with TOK__WORD only, so never a control token (but a single byte
//  has
//     the token it has, control or not);
//  4. TOK__WHOLE on a token means: a word of exactly these bytes is this one token.
#pragma once
#include "base/hash.h"
#include "model/tokenizer.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    TOK__MAX_VOCAB = 1 << 21,
    TOK__MAX_MERGES = 1 << 22,
    TOK__MAX_TOKEN = 1 << 16,       // bytes of one token
    TOK__MAX_ADDED_BYTES = 1 << 10, // bytes of one added token: what matching may look ahead
    TOK__MAX_TEXT = 1 << 30,        // bytes of one text, and of all tokens together
    TOK__MAX_STAGES = 8,
    TOK__MAX_AFFIX = 8, // ids that the post-processor puts before or after a text
    TOK__MAX_PATTERN = 4096,
    TOK__FEW = 64, // symbols of a word that are merged by plain search
};

enum tok__flags {
    TOK__CONTROL = 1,  // special: never produced from plain text, skipped on request when decoding
    TOK__ADDED = 2,    // matched as a whole before the split stages
    TOK__WORD = 4,     // invariant 3
    TOK__WHOLE = 8,    // invariant 4
    TOK__USED = 16,    // the id has a token
    TOK__LITERAL = 32, // its text was not in the byte alphabet
};

struct tok__token {
    uint32_t off, len; // in blob; the raw bytes
    uint32_t flags;    // enum tok__flags
};

struct tok__word_slot {
    uint32_t id1; // id + 1; 0: free
    uint32_t tag; // upper half of the hash
};

struct tok__merge {
    uint64_t pair; // left id << 32 | right id
    uint32_t rank; // TOK__NO_RANK: a free slot
    int32_t id;    // what the pair becomes
};
#define TOK__NO_RANK UINT32_MAX

struct tok__added {
    uint32_t off, len; // in blob
    int32_t id;
    bool special, single_word, lstrip, rstrip;
};

// Added tokens that are matched in one pass, sorted by their bytes.
struct tok__added_set {
    struct tok__added *items;
    size_t n, cap;
    uint32_t bucket[257]; // items whose first byte is b: bucket[b] .. bucket[b + 1]
};

struct tok__stage {
    pcre2_code *code; // each match is a piece, and so is each gap between matches
    bool jit;
    uint8_t pattern[SHA256_BYTES]; // of the pattern's text
};

struct tokenizer {
    char *blob;
    size_t blob_len, blob_cap;
    struct tok__token *tokens;
    uint32_t n_tokens;
    struct tok__word_slot *words;
    uint32_t word_mask;
    uint32_t max_word; // bytes of the longest token with TOK__WORD
    struct hash_key key;
    struct tok__merge *merges;
    uint32_t merge_mask;
    int32_t byte_id[256];           // -1: that byte has no token
    int32_t unk;                    // for such a byte; -1: it is dropped
    bool fuse_unk;                  // neighbouring unknown bytes give one unk
    bool ignore_merges;             // a word that is a token is that token, whatever the merges say
    struct tok__added_set added[2]; // [0] those not normalized, matched first
    pcre2_code *word_char;          // NULL unless an added token has single_word
    struct tok__stage stages[TOK__MAX_STAGES];
    size_t n_stages;
    int32_t prefix[TOK__MAX_AFFIX], suffix[TOK__MAX_AFFIX];
    size_t n_prefix, n_suffix;
    int32_t bos, eos;
};

// --- the byte alphabet: each byte as one printable character (tokenizer_alphabet.c)

// Maps text in the alphabet to raw bytes, never longer than the text; out may be text. False where
// a character is not of the alphabet (or not UTF-8): *n is then unset.
bool tok__alphabet_decode(const char *text, size_t len, char *out, size_t *n);

// --- building (tokenizer_vocab.c)

struct tokenizer *tok__new(void);
enum err tok__alloc_ids(struct tokenizer *t, size_t n); // once, before any token
// Copies the bytes. ERR_FORMAT without a message if the id has a token already.
enum err tok__set_token(struct tokenizer *t, uint32_t id, const char *bytes, size_t len,
                        uint32_t flags);
struct tok__added_spec {
    const char *text;
    size_t len;
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
};
enum err tok__add_added(struct tokenizer *t, const struct tok__added_spec *spec);
enum err tok__index_words(struct tokenizer *t, struct err_info *info); // after the last token
enum err tok__alloc_merges(struct tokenizer *t, size_t n,
                           struct err_info *info); // before the first
// Merge number `rank` of the file, both sides in the byte alphabet; a later one for the same pair
// wins.
enum err tok__add_merge(struct tokenizer *t, uint32_t rank, struct tok_str left,
                        struct tok_str right, struct err_info *info);
enum err tok__finish(struct tokenizer *t, struct err_info *info); // last; checks the invariants
int32_t tok__find(const struct tokenizer *t, const char *p, size_t n); // in `words`; -1: none
// How to show a text from outside in a message: quoted, and cut where it is long or not UTF-8.
struct tok__shown {
    char text[80];
};
struct tok__shown tok__show(const char *p, size_t n);

// --- split stages

extern const char tok__pattern_gpt2[], tok__pattern_llama3[];

// Translates a split pattern as Hugging Face files write it (Oniguruma's syntax) and compiles it.
enum err tok__pattern_compile(const char *pattern, size_t len, pcre2_code **out,
                              struct err_info *info);
pcre2_code *tok__word_char_compile(void); // matches one word character; NULL: out of memory
enum err tok__add_stage(struct tokenizer *t, const char *pattern, size_t len,
                        struct err_info *info);
enum err tok__add_digits_stage(struct tokenizer *t, bool individual, struct err_info *info);

// --- one call of encode

struct tok__run { // text up to `end`, from the run before
    size_t end;
    bool literal;
};

struct tok__bpe_work {
    // Per symbol: its id, what it and the next one become, and that merge's rank.
    int32_t few_id[TOK__FEW], few_to[TOK__FEW];
    uint32_t few_rank[TOK__FEW];
    int32_t *id, *to; // the same for longer words, as a list
    uint32_t *rank, *prev, *next;
    size_t cap;
    uint64_t *heap; // rank << 32 | symbol
    size_t heap_n, heap_cap;
};

struct tok__encoder {
    const struct tokenizer *t;
    const char *text;
    size_t len;
    const struct tok__run *runs;
    size_t n_runs;
    struct tok_ids *out;
    size_t limit; // out->n stays at or below it
    pcre2_match_data *match;
    pcre2_match_context *match_ctx;
    size_t steps_left; // of the matcher, for matches that are not cheap
    struct tok__bpe_work work;
    struct err_info *info;
};
enum err tok__emit(struct tok__encoder *e, int32_t id);
enum err tok__split_added(struct tok__encoder *e, int pass, size_t begin, size_t end);
enum err tok__match_init(struct tok__encoder *e);
void tok__match_fini(struct tok__encoder *e); // also after a failed init
enum err tok__split_stages(struct tok__encoder *e, size_t stage, const char *p, size_t n);
enum err tok__encode_word(struct tok__encoder *e, const char *p, size_t n);
// The ids of one word, which stand in w until the next call.
enum err tok__bpe(const struct tokenizer *t, struct tok__bpe_work *w, const char *p, size_t n,
                  const int32_t **ids, size_t *n_ids);
void tok__bpe_work_fini(struct tok__bpe_work *w);
// Memory of PCRE2 comes from base/mem.h.
pcre2_general_context *tok__pcre2_memory(void);
bool tok__is_space(uint32_t cp); // Unicode White_Space
