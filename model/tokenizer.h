// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE tokenizer, as Hugging Face `tokenizers` defines it (the oracle): added-token
// split, pre-tokenizer split (PCRE2), byte map, merges by rank. Immutable after it is built, so any
// thread may use one; each call brings its own memory. What a file asks for beyond that (another
// model, a normalizer, an unknown split) is refused by its name.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

// tokenizer.json (and tokenizer_config.json's text, which may be NULL) of a Hugging Face folder.
// *out is NULL on failure; the error names the entry.
enum err tokenizer_from_hf(const char *json, size_t len, const char *config, size_t config_len,
                           struct tokenizer **out, struct err_info *info);

// The arrays of a GGUF file. Strings are not NUL-terminated. `pre` names the split pattern
// (tokenizer.ggml.pre: "gpt-2", "llama-bpe", "smollm", ...); an unknown one is refused by name.
struct tok_str {
    const char *p;
    size_t n;
};
struct tokenizer_gguf {
    struct tok_str model, pre;
    const struct tok_str *tokens, *merges; // tokens in the byte alphabet; merges "left right"
    size_t n_tokens, n_merges;
    const int32_t *token_type; // NULL or n_tokens: 1 normal, 2 unknown, 3 control, 4 user-defined,
                               // 5 unused, 6 byte
    int32_t bos, eos, eot;     // -1: none
    bool add_bos, add_eos;
};
enum err tokenizer_from_gguf(const struct tokenizer_gguf *g, struct tokenizer **out,
                             struct err_info *info);
void tokenizer_destroy(struct tokenizer *t);

uint32_t tokenizer_vocab_size(const struct tokenizer *t); // ids are 0 .. this - 1
int32_t tokenizer_bos(const struct tokenizer *t);         // -1: none
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t); // a raw completion's prompt gets a BOS
// SHA-256 in hex of the content: tokens, merges, split patterns, special tokens and flags. The same
// for the same tokenizer in a GGUF file and in a Hugging Face folder. Some milliseconds.
enum err tokenizer_digest(const struct tokenizer *t, char hex[2 * SHA256_BYTES + 1],
                          struct err_info *info);

struct tok_ids { // growable; the caller frees with tok_ids_fini
    int32_t *ids;
    size_t n, cap;
};
void tok_ids_fini(struct tok_ids *ids);

struct tok_encode_opts {
    bool add_special;   // BOS/EOS as the tokenizer's post-processor says
    bool parse_special; // control tokens in the text become their ids (rendered templates);
                        // false: text that looks like a control token stays text (user input)
    size_t max_ids;     // stop with ERR_CONTEXT once more ids than this are certain; 0: no limit
};
// Appends the ids of text[0..len) to *out. O(n log n). Equal to the oracle, but that plain text
// never becomes a control token, also not by merges; only a control token that is a single byte
// stands for that byte. A byte that the vocabulary lacks is dropped, or is the unknown token if
// there is one. ERR_INVALID: not UTF-8; ERR_LIMIT: over 1 GiB, or a split pattern that takes too
// long; on failure *out holds what it held.
enum err tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                          const struct tok_encode_opts *opts, struct tok_ids *out,
                          struct err_info *info);

// A prompt in pieces: template output where user text must stay text although the template's own
// special tokens are parsed. Equal to encoding the joined text, except that no special token is
// matched inside a piece with `literal` set or across its edge, and that one which ends at such an
// edge is matched whatever follows (a longer special token, a letter). A piece may end inside a
// character; the joined text may not.
struct tok_piece {
    const char *text;
    size_t len;
    bool literal;
};
enum err tokenizer_encode_pieces(const struct tokenizer *t, const struct tok_piece *pieces,
                                 size_t n, const struct tok_encode_opts *opts, struct tok_ids *out,
                                 struct err_info *info);

// Raw bytes of one id (may end inside a UTF-8 character); *len 0 for an id outside the vocabulary.
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *len);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
int32_t tokenizer_find(const struct tokenizer *t, const char *text,
                       size_t len); // exact token or -1
// Appends the text of the ids (raw bytes joined).
enum err tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                          bool skip_special, struct buf *out);
