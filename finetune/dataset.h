// SPDX-License-Identifier: Apache-2.0
// Training data: from a JSONL file to tokens with a loss mask. The file is read once, line by line
// and in bounded memory; each line is checked, rendered, tokenised and written to a cache file,
// from which the trainer then reads samples by number. Blocks on files; one thread at a time per
// object. The rules are numbered in finetune/README.md.
//
// Lines (one JSON object each):
//   chat        {"messages": [...], "tools"?, "parallel_tool_calls"?}, "weight": 0 | 1 on assistant
//               messages
//   completion  {"prompt", "completion"}
//   preference  {"input": {"messages", "tools"?}, "preferred_output": [1],
//               "non_preferred_output": [1]} (also preferred_completion, non_preferred_completion)
// A file holds one kind. A BOM, CRLF and a missing last newline change nothing; blank lines are
// ignored.
//
// Supervised are the assistant's own tokens and the end-of-sequence that ends its turn, where
// weight is not 0 (preference: of the two outputs alone); the mask is made while the turns are
// rendered: what the template adds for a generation prompt is not supervised, what it adds between
// it and the turn's end is. A completion is supervised with an end-of-sequence behind it. BOS is
// where serving has it, and once.
//
// Memory: a few times max_line, and at most 112 bytes a sample while a cache is built (its index
// grows by doubling, and duplicates are found by sorting hashes), 32 a sample while one is open.
#pragma once
#include "base/err.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ft_kind { FT_CHAT, FT_COMPLETION, FT_PREFERENCE };
enum ft_truncation { FT_TRUNC_ERROR, FT_TRUNC_TRUNCATE, FT_TRUNC_DROP };

enum {
    FT_MAX_ERRORS = 20,
    FT_MAX_SAMPLES = 1 << 22,
    FT_MAX_SEQ_LEN = 1 << 24,
    FT_MAX_ENDS = 16,
};

struct ft_dataset_opts {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; // NULL: chat lines are refused
    json_t *template_vars; // more variables, as a request's chat_template_kwargs; may be NULL
    int32_t eos;           // what ends a completion; -1: the tokenizer's
    const int32_t *ends;   // tokens that end an answer when it is served (the model's list);
    int32_t n_ends;        // eos is one in any case
    int64_t now;           // the date that templates see; in the job's manifest
    int32_t max_seq_len;   // tokens of a sequence; a preference sample has two
    enum ft_truncation truncation;
    bool preference;              // the job needs preference lines; else they are refused
    int32_t min_examples;         // 10 by default in jobs
    uint64_t max_line;            // bytes; 0: 16 MiB
    const char *file_name;        // what errors call the file; NULL: "Training file"
    uint8_t renderer[32];         // digest of tokenizer and template; part of the cache's key
    bool (*cancelled)(void *arg); // asked once a line; may be NULL
    void *cancelled_arg;
};

// What the file holds. errors: the first FT_MAX_ERRORS, of a bad line its first; lines that follow
// one another with the same error are one.
struct ft_line_error {
    int64_t line;     // from 1; 0: the file as a whole
    int64_t last;     // the same error up to this line
    char text[240];   // "line 7 is not a JSON object"
    const char *code; // static: "invalid_jsonl", "invalid_n_examples", "invalid_template",
                      // "context_length_exceeded", "no_supervised_tokens"
};
struct ft_dataset_report {
    enum ft_kind kind;
    int64_t lines, samples; // samples: kept
    int64_t tokens, supervised;
    int64_t longest;   // tokens of the longest sequence kept
    int64_t truncated; // samples kept that lost tokens
    int64_t dropped;   // samples: too long, or, of these `emptied`, cut before any supervised token
    int64_t emptied;
    int64_t duplicates; // samples kept that equal an earlier one, token by token and in the mask
    int64_t overlap;    // samples that stand in the other file, too (ft_dataset_overlap)
    int64_t n_errors;   // bad lines
    int64_t n_told;     // of `errors`
    struct ft_line_error errors[FT_MAX_ERRORS];
    uint8_t digest[32]; // SHA-256 of the file
};

enum { FT_ERROR_TEXT = 320 };
// The text, or "lines 1 to 12: ..." of several.
void ft_line_error_text(const struct ft_line_error *e, char *out, size_t cap);

// Checks and tokenises `path` into `cache` (written aside, synced, renamed, its folder synced);
// NULL: checks only. A file with bad lines gives ERR_INVALID (ERR_TEMPLATE where the first error
// is the template's) with the first error's text and the whole report; no cache is left. Lines
// without a supervised token are errors. ERR_IO: the file changed while it was read; ERR_CANCELLED.
enum err ft_dataset_build(const char *path, const char *cache, const struct ft_dataset_opts *opts,
                          struct ft_dataset_report *report, struct err_info *info);
// What, beside the file, decides a cache's content: a cache whose report has the file's digest and
// whose key is this need not be made again.
enum err ft_dataset_key(const struct ft_dataset_opts *opts, uint8_t key[32]);
// opts->renderer, from the digests of tokenizer and template in hex; "": there is no template.
enum err ft_dataset_renderer(const char *tokenizer, const char *chat_template,
                             uint8_t renderer[32]);

struct ft_dataset;
// A cache is checked before it is used: magic, version, sizes, checksums of trailer and index,
// bounds of every index entry; checksum and ids of each sample as it is read. ERR_FORMAT: torn or
// corrupt; ERR_UNSUPPORTED: of another version.
enum err ft_dataset_open(const char *cache, struct ft_dataset **out, struct err_info *info);
void ft_dataset_close(struct ft_dataset *d);
// As the build reported it, without errors.
const struct ft_dataset_report *ft_dataset_report(const struct ft_dataset *d);
const uint8_t *ft_dataset_key_of(const struct ft_dataset *d); // [32]
int32_t ft_dataset_vocab(const struct ft_dataset *d);         // every id is below
int64_t ft_dataset_samples(const struct ft_dataset *d);
// Of sample i, without reading it; 0 <= i < samples. Of both sequences of a preference sample.
int32_t ft_dataset_length(const struct ft_dataset *d, int64_t i);     // tokens
int32_t ft_dataset_supervised(const struct ft_dataset *d, int64_t i); // supervised tokens
int64_t ft_dataset_line(const struct ft_dataset *d, int64_t i);       // in the file, from 1

struct ft_sample {
    int32_t n; // tokens
    int32_t *ids;
    uint8_t *mask; // [n]: 1 where the token is a target; never the first
    // Preference: the second sequence (not preferred); else n2 = 0.
    int32_t n2;
    int32_t *ids2;
    uint8_t *mask2;
    // Private: the memory behind the arrays.
    size_t cap;
    uint8_t *bytes;
    size_t bytes_cap;
};
// Fills *s, whose arrays are kept and grown from call to call (zeros at first) and freed by fini.
enum err ft_dataset_read(struct ft_dataset *d, int64_t i, struct ft_sample *s,
                         struct err_info *info);
void ft_sample_fini(struct ft_sample *s);
// Samples of b that stand in a, too. 16 bytes for each sample of a while it runs.
enum err ft_dataset_overlap(struct ft_dataset *a, struct ft_dataset *b, int64_t *n);
