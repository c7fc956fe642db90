// SPDX-License-Identifier: Apache-2.0
// What the dataset's own files share. Entry points for everyone else: finetune/dataset.h.
//
//   dataset_lines.c    bytes of the file -> lines, digest, "has it changed"
//   dataset_example.c  a line -> a checked example
//   dataset_render.c   an example -> token ids and mask
//   dataset_write.c    samples -> cache file          dataset_cache.c  cache file -> samples
//   dataset_build.c    all of these in turn, and the report
//
// The cache, little-endian:
//   head      64 bytes: magic, version, zeros
//   samples   n, n2 (u32), then n + n2 words (u32): bit 31 the target flag, below it the id
//   padding   to a multiple of 8
//   index     one entry of FT__ENTRY bytes a sample: offset (u64), n, n2, supervised, 0 (u32),
//             line (i64), the first 16 bytes of the SHA-256 of the sample's bytes
//   trailer   FT__TRAILER bytes: counts, digests, its own SHA-256 at the end
#pragma once
#include "base/durable.h"
#include "base/hash.h"
#include "finetune/dataset.h"
#include "model/file.h"

enum {
    FT__HEAD = 64,
    FT__ENTRY = 48,
    FT__TRAILER = 512,
    FT__VERSION = 1,
    FT__HASH = 16,
    FT__DEFAULT_LINE = 16 << 20,
};
#define FT__MAGIC "graft-ds"
#define FT__TARGET 0x80000000u

#define FT__CODE_JSONL "invalid_jsonl"
#define FT__CODE_COUNT "invalid_n_examples"
#define FT__CODE_TEMPLATE "invalid_template"
#define FT__CODE_LONG "context_length_exceeded"
#define FT__CODE_NO_TARGET "no_supervised_tokens"

// ---- lines

struct ft__lines {
    struct mdl_file file;
    struct sha256_ctx *sha;
    uint64_t at; // of the file, read into chunks so far
    char *chunk;
    size_t chunk_at, chunk_n;
    struct buf line;
    uint64_t max_line;
    int64_t number;
};
struct ft__line {
    const char *text; // without its end; valid until the next one
    size_t len;
    int64_t number;
    bool too_long; // text is then not there
    bool blank;
};
enum err ft__lines_open(struct ft__lines *l, const char *path, const char *shown, uint64_t max_line,
                        struct err_info *info);
// *more false: there was none left.
enum err ft__lines_next(struct ft__lines *l, struct ft__line *out, bool *more,
                        struct err_info *info);
// After the last line: the file's digest; ERR_IO if it changed meanwhile.
enum err ft__lines_end(struct ft__lines *l, uint8_t digest[32], struct err_info *info);
void ft__lines_close(struct ft__lines *l);

// ---- examples

struct ft__example {
    enum ft_kind kind;
    json_t *doc;                   // the line
    json_t *messages;              // chat: all of them, preference: the input's; checked, owned
    json_t *tools;                 // borrowed from doc, or NULL
    uint8_t *target;               // [messages]: the turn is supervised
    json_t *output[2];             // preference: one message each, owned
    const json_t *prompt, *answer; // completion: borrowed from doc
};
// ERR_INVALID with the line's number in the text. On failure *out holds nothing.
enum err ft__example_read(const struct ft__line *line, struct ft__example *out,
                          struct err_info *info);
void ft__example_fini(struct ft__example *e);
const char *ft__kind_name(enum ft_kind k); // "a chat line"

// ---- rendering

struct ft__seq {
    struct tok_ids ids;
    uint8_t *mask;
    size_t mask_cap;
    int64_t targets;
    bool cut;     // longer than max_seq_len: ids are cut (truncate) or of no use (error, drop)
    size_t whole; // tokens before the cut
};
struct ft__renderer {
    const struct ft_dataset_opts *opts;
    int32_t ends[FT_MAX_ENDS + 2];
    int32_t n_ends, eos;
    size_t *end; // scratch: where each token ends in the text
    size_t end_cap;
    uint64_t rendered, visited; // bytes and messages, of the example in hand
};
// ERR_INVALID for options that cannot work.
enum err ft__renderer_init(struct ft__renderer *r, const struct ft_dataset_opts *opts,
                           struct err_info *info);
void ft__renderer_fini(struct ft__renderer *r);
// Fills seq[0] and, for preference, seq[1], whose memory is kept from call to call. ERR_TEMPLATE,
// ERR_INVALID, ERR_LIMIT: the example is at fault; the text does not name the line.
enum err ft__render(struct ft__renderer *r, const struct ft__example *e, struct ft__seq seq[2],
                    struct err_info *info);
void ft__seq_fini(struct ft__seq *s);
// What becomes of a rendered sample (pair: both sequences count).
enum ft__fate { FT__KEPT, FT__DROPPED, FT__TOO_LONG, FT__NO_TARGET };
enum ft__fate ft__fate_of(const struct ft_dataset_opts *o, const struct ft__seq seq[2], bool pair,
                          bool *cut);

// ---- the cache

struct ft__entry {
    uint64_t offset;
    int32_t n, n2, supervised;
    int64_t line;
    uint8_t hash[FT__HASH];
};
void ft__put32(uint8_t *p, uint32_t v);
void ft__put64(uint8_t *p, uint64_t v);
void ft__entry_put(uint8_t *p, const struct ft__entry *e);
void ft__entry_get(const uint8_t *p, struct ft__entry *e);

struct ft__trailer {
    struct ft_dataset_report report; // counts and digest
    uint64_t index_at, file_bytes;
    int32_t vocab, max_seq_len;
    uint8_t key[32], index_sha[32];
};
enum err ft__trailer_put(uint8_t p[FT__TRAILER], const struct ft__trailer *t); // seals it
enum err ft__trailer_get(const uint8_t p[FT__TRAILER], struct ft__trailer *t,
                         struct err_info *info);
void ft__head_put(uint8_t p[FT__HEAD]);

struct ft__writer {
    bool on; // else samples are only counted
    int dir;
    struct durable file;
    uint8_t *block; // bytes on their way to the file
    size_t block_n;
    uint64_t at; // bytes before the block's end
    uint8_t *sample;
    size_t sample_cap;
    struct ft__entry *entries;
    size_t n, cap;
};
// `cache` NULL: nothing is written.
enum err ft__writer_begin(struct ft__writer *w, const char *cache, struct err_info *info);
enum err ft__writer_add(struct ft__writer *w, const struct ft__seq *a, const struct ft__seq *b,
                        int64_t line, struct err_info *info);
void ft__writer_drop(struct ft__writer *w); // no cache will be left: writes no more, still counts
enum err ft__writer_duplicates(const struct ft__writer *w, int64_t *n);
enum err ft__writer_commit(struct ft__writer *w, struct ft__trailer *t, struct err_info *info);
void ft__writer_fini(struct ft__writer *w);
// Sorts hashes of FT__HASH bytes.
void ft__hashes_sort(uint8_t *h, size_t n);
