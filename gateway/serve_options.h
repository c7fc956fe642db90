// SPDX-License-Identifier: Apache-2.0
// The options of `graft serve`: one table for flags, environment twins, --help and the reference
// page.
#pragma once
#include "base/options.h"
#include <stdbool.h>
#include <stdint.h>

struct serve_options {
    // model
    struct opt_list served_names;
    int64_t max_model_len; // 0: the model's own
    const char *chat_template, *generation_config, *cache_dir;
    // engine
    int64_t max_num_seqs, max_num_batched_tokens, max_waiting;
    int64_t kv_cache_bytes; // 0: from the memory limit
    bool prefix_caching;
    double prefill_stretch;
    double slo_itl_ms, slo_ttft_ms; // 0: none
    int64_t replicas, threads;
    const char *isa;
    // adapters
    bool enable_lora;
    struct opt_list lora_modules, lora_dirs;
    int64_t max_loras, max_lora_rank, max_cpu_loras; // 0: as max_loras
    // data
    const char *data_dir;
    int64_t max_file, max_data, max_waiting_jobs, keep_jobs_days, io_threads;
    // listener
    const char *host;
    int64_t port;
    const char *metrics_host;
    int64_t metrics_port; // 0: on the main port
    int64_t http_threads;
    const char *ssl_certfile, *ssl_keyfile;
    struct opt_list allowed_origins;
    // access
    struct opt_list api_keys;
    const char *api_key_file;
    bool allow_anonymous;
    // limits
    int64_t max_body, max_inflight, max_header, max_connections, max_prompts;
    double header_timeout, body_timeout, idle_timeout, write_timeout, request_timeout;
    double drain_timeout, drain_delay, stall_timeout;
    // logs and metrics
    const char *log_level, *log_format;
    bool access_log, vllm_metrics;
};

extern const struct opt_table serve_option_table;
// What a range cannot say. ERR_INVALID names the option.
enum err serve_options_check(const struct serve_options *o, struct err_info *info);
