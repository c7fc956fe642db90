// SPDX-License-Identifier: Apache-2.0
// Training data: from a JSONL file to tokens with a loss mask. The file is read once, line by line
// and in bounded memory; each line is checked, rendered, tokenised and written to a cache file,
// from which the trainer then reads samples by number. Blocks on files; one thread at a time per
// call.
//
// Lines (one JSON object each):
//   chat        {"messages": [...], "tools"?, "parallel_tool_calls"?}, "weight": 0 | 1 on assistant messages
//   completion  {"prompt", "completion"}
//   preference  {"input": {"messages", "tools"?}, "preferred_output": [1], "non_preferred_output": [1]}
//               (also preferred_completion, non_preferred_completion)
// A file holds one kind. A BOM, CRLF and a missing last newline change nothing; blank lines are
// ignored.
//
// Supervised are the assistant's own tokens and the end-of-sequence that ends its turn, where
// weight is not 0; the mask is made while the turns are rendered: what the template adds for a
// generation prompt is not supervised, what it adds between it and the turn's end is. A completion
// is supervised with an end-of-sequence behind it. Exactly one BOS, where the tokenizer has one.
#pragma once
#include "base/err.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ft_kind { FT_CHAT, FT_COMPLETION, FT_PREFERENCE };
enum ft_truncation { FT_TRUNC_ERROR, FT_TRUNC_TRUNCATE, FT_TRUNC_DROP };

struct ft_dataset_opts {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; // NULL: chat lines are refused
    const json_t *template_vars;               // bos_token, eos_token ...; may be NULL
    int32_t eos;                               // what ends a completion; -1: the tokenizer's
    int64_t now;                               // the date that templates see; in the job's manifest
    int32_t max_seq_len;                       // tokens of a sample
    enum ft_truncation truncation;
    bool preference;      // the job needs preference lines; else they are refused
    int32_t min_examples; // 10 by default in jobs
    uint64_t max_line;    // bytes; 0: 16 MiB
};

// What the file holds. errors: of the first FT_MAX_ERRORS bad lines.
enum { FT_MAX_ERRORS = 20 };
struct ft_line_error {
    int64_t line;     // from 1
    char text[240];   // "line 7 is not a JSON object"
    const char *code; // "invalid_jsonl", ...; static
};
struct ft_dataset_report {
    enum ft_kind kind;
    int64_t lines, samples;
    int64_t tokens, supervised;
    int64_t longest; // tokens of the longest sample kept
    int64_t truncated, dropped, duplicates;
    int64_t overlap; // samples that stand in the other file, too (ft_dataset_overlap)
    int64_t n_errors;
    struct ft_line_error errors[FT_MAX_ERRORS];
    uint8_t digest[32]; // SHA-256 of the file
};

// Checks and tokenises `path` into `cache` (written aside, synced, renamed). A file with bad lines
// gives ERR_INVALID with the first error's text and the whole report; no cache is left. Lines
// without a supervised token are errors.
enum err ft_dataset_build(const char *path, const char *cache, const struct ft_dataset_opts *opts,
                          struct ft_dataset_report *report, struct err_info *info);

struct ft_dataset;
// A cache is checked before it is used: magic, sizes, bounds of every index entry, checksum of each
// sample as it is read.
enum err ft_dataset_open(const char *cache, struct ft_dataset **out, struct err_info *info);
void ft_dataset_close(struct ft_dataset *d);
int64_t ft_dataset_samples(const struct ft_dataset *d);
int32_t ft_dataset_length(const struct ft_dataset *d, int64_t i);     // tokens, without reading
int32_t ft_dataset_supervised(const struct ft_dataset *d, int64_t i); // supervised tokens
int64_t ft_dataset_line(const struct ft_dataset *d, int64_t i);       // in the file, from 1

struct ft_sample {
    int32_t n; // tokens
    int32_t *ids;
    uint8_t *mask; // [n]: 1 where the token is a target
    // Preference: the second sequence (not preferred); else n2 = 0.
    int32_t n2;
    int32_t *ids2;
    uint8_t *mask2;
};
// Fills *s, whose arrays are kept and grown from call to call (zeros at first) and freed by fini.
enum err ft_dataset_read(struct ft_dataset *d, int64_t i, struct ft_sample *s,
                         struct err_info *info);
void ft_sample_fini(struct ft_sample *s);
// Samples of b that stand in a, too.
enum err ft_dataset_overlap(struct ft_dataset *a, struct ft_dataset *b, int64_t *n);
