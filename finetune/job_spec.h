// SPDX-License-Identifier: Apache-2.0
// What a fine-tuning job asks for: the body of POST /v1/fine_tuning/jobs, checked field by field.
// The same reading serves the stored request later, so that a job means one thing for its whole
// life. Errors name the field as the client wrote it ("method.dpo.hyperparameters.beta").
#pragma once
#include "base/err.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    FT_SUFFIX_MAX = 64,         // characters
    FT_METADATA_MAX = 16,       // pairs
    FT_SAMPLES_MAX = 16,        // sample prompts
    FT_REQUEST_MAX = 256 << 10, // bytes of a stored request
    FT_JOB_TARGETS = 7,         // q, k, v, o, gate, up, down: the bits of enum mdl_target
};

// Strings and JSON are borrowed from what was read. 0 or NULL means automatic or not given, where a
// field says so.
struct ft_job_spec {
    const char *model, *training_file;
    const char *validation_file, *suffix; // NULL
    bool has_seed;
    int64_t seed;                          // 0 .. 2^31 - 1
    bool dpo;                              // else supervised
    int64_t batch_size, n_epochs;          // 0: auto
    double learning_rate_multiplier, beta; // 0: auto; beta: dpo
    const json_t *metadata;                // NULL
    // the extension object "graft"
    int64_t lora_r;
    double lora_alpha, lora_dropout;
    unsigned lora_targets;
    bool lora_rslora;
    double learning_rate; // 0: auto
    double warmup_ratio, weight_decay, max_grad_norm;
    const char *lr_scheduler, *truncation;
    int64_t max_seq_length; // 0: auto
    bool packing;
    int64_t save_steps, eval_steps;
    int64_t priority; // lower runs first
    const char *retention_class;
    const json_t *evaluation; // NULL; see ft_job_spec_read
    int64_t answer_tokens;    // of an answer to one of its prompts
    bool keep_unreleased;     // what does not pass the gates is loaded, not promoted; else it fails
};

// ERR_INVALID with the field; ERR_UNSUPPORTED for what is known and not supported. `evaluation` is
// {max_valid_loss, min_improvement, eval_samples, required: [{prompt | messages, output}],
// forbidden: [the same], sample_prompts: [text | {prompt | messages}], max_tokens, on_failure:
// "fail" | "keep"}, all optional; output is a text or a list of texts.
enum err ft_job_spec_read(const json_t *body, struct ft_job_spec *out, struct err_info *info);
// The known fields of a body that was read, with `seed` in it, on one line (mem_free it).
// ERR_TOO_LARGE: more than FT_REQUEST_MAX bytes.
enum err ft_job_spec_store(const json_t *body, int64_t seed, char **out, struct err_info *info);
const char *ft_job_target_name(int t); // "q_proj"
