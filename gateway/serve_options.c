// SPDX-License-Identifier: Apache-2.0
#include "gateway/serve_options.h"
#include <stddef.h>

#define AT(field) offsetof(struct serve_options, field)
#define HEADING(text)                                                                              \
    { .kind = OPT_HEADING, .help = text }
#define SIZE_MIN 4096
#define SIZE_MAX_VALUE 0x1p50

static const struct opt_def defs[] = {
    HEADING("Model"),
    {OPT_LIST, "served-model-name", AT(served_names), "NAME", NULL, 0, 0, NULL,
     "Name that requests use; the first one stands in answers. Default: the name of the model's "
     "file or folder, without .gguf.",
     false},
    {OPT_INT, "max-model-len", AT(max_model_len), "N", "0", 0, 1 << 24, NULL,
     "Longest prompt plus answer in tokens. 0: what the model was made for.", false},
    {OPT_STRING, "chat-template", AT(chat_template), "PATH", NULL, 0, 0, NULL,
     "Jinja file to use instead of the model's own chat template.", false},
    {OPT_ENUM, "generation-config", AT(generation_config), NULL, "auto", 0, 0, "auto|none",
     "Sampling defaults from the model's generation_config.json, or neutral ones.", false},
    {OPT_STRING, "cache-dir", AT(cache_dir), "DIR", NULL, 0, 0, NULL,
     "Folder that remembers model digests. Default: $XDG_CACHE_HOME/graft or ~/.cache/graft.",
     false},
    HEADING("Engine"),
    {OPT_INT, "max-num-seqs", AT(max_num_seqs), "N", "64", 1, 512, NULL,
     "Sequences that run at the same time, of each replica.", false},
    {OPT_INT, "max-num-batched-tokens", AT(max_num_batched_tokens), "N", "512", 16, 16384, NULL,
     "Tokens of one step, prompts and decodes together.", false},
    {OPT_INT, "max-waiting", AT(max_waiting), "N", "256", 1, 1000000, NULL,
     "Requests that may wait, of each replica; one more is answered with 429.", false},
    {OPT_SIZE, "kv-cache-memory-bytes", AT(kv_cache_bytes), "SIZE", "0", 0, SIZE_MAX_VALUE, NULL,
     "Memory for the KV caches of all replicas together, divided equally. 0: from the memory limit "
     "of the cgroup or machine.",
     false},
    {OPT_FLAG, "enable-prefix-caching", AT(prefix_caching), NULL, "true", 0, 0, NULL,
     "Reuse the KV blocks of equal prompt beginnings.", false},
    {OPT_FLOAT, "prefill-stretch", AT(prefill_stretch), "X", "1.8", 1.05, 100, NULL,
     "A step in which sequences decode may take this many times longer because of prompts.", false},
    {OPT_INT, "replicas", AT(replicas), "N", "1", 1, 64, NULL,
     "Engines over the same weights, each with its part of the compute threads and of the KV "
     "cache. "
     "New adapter versions are brought to one after another.",
     false},
    {OPT_INT, "threads", AT(threads), "N", "0", 0, 256, NULL,
     "Compute threads of all replicas together, divided equally. 0: the CPUs that affinity and the "
     "cgroup allow.",
     false},
    {OPT_ENUM, "isa", AT(isa), NULL, "auto", 0, 0, "auto|avx512bf16|avx512|avx2|portable",
     "Instruction set of the CPU kernels.", false},
    HEADING("Training beside serving"),
    {OPT_FLOAT, "slo-itl-ms", AT(slo_itl_ms), "MS", "0", 0, 60000, NULL,
     "Most time between two tokens of an answer, in milliseconds, that training must leave (p99). "
     "0: none; "
     "training runs only while there is nothing to compute. Else at least 0.1.",
     false},
    {OPT_FLOAT, "slo-ttft-ms", AT(slo_ttft_ms), "MS", "0", 0, 3600000, NULL,
     "Most time to an answer's first token that training must leave. 0: none; a prompt that waits "
     "comes before training. Else at least 0.1.",
     false},
    HEADING("Adapters"),
    {OPT_FLAG, "enable-lora", AT(enable_lora), NULL, "false", 0, 0, NULL, "Serve LoRA adapters.",
     false},
    {OPT_LIST, "lora-modules", AT(lora_modules), "NAME=PATH", NULL, 0, 0, NULL,
     "Adapter folder (PEFT) to serve under a name from the start.", false},
    {OPT_LIST, "lora-dir", AT(lora_dirs), "DIR", NULL, 0, 0, NULL,
     "Folder below which adapters may be loaded at run time. Default: anywhere, by administrators.",
     false},
    {OPT_INT, "max-loras", AT(max_loras), "N", "8", 1, 1024, NULL,
     "Adapters that sequences of one step can use; each has a slot in every replica.", false},
    {OPT_INT, "max-lora-rank", AT(max_lora_rank), "N", "64", 1, 256, NULL,
     "Largest rank of an adapter.", false},
    {OPT_INT, "max-cpu-loras", AT(max_cpu_loras), "N", "0", 0, 100000, NULL,
     "Adapters kept ready in host memory; others are read again when they are needed. 0: as "
     "--max-loras.",
     false},
    HEADING("Data"),
    {OPT_STRING, "data-dir", AT(data_dir), "DIR", NULL, 0, 0, NULL,
     "Folder for uploaded files and fine-tuning jobs; one process owns it. Without it /v1/files "
     "and "
     "/v1/fine_tuning are refused.",
     false},
    {OPT_SIZE, "max-file-size", AT(max_file), "SIZE", "512M", 1, 0x1p40, NULL,
     "Largest uploaded file.", false},
    {OPT_SIZE, "max-data-bytes", AT(max_data), "SIZE", "0", 0, 0x1p50, NULL,
     "Most that files, jobs, adapters and the database may take up; beyond it uploads and new jobs "
     "are refused. 0: no bound.",
     false},
    {OPT_INT, "max-waiting-jobs", AT(max_waiting_jobs), "N", "1000", 1, 1000000, NULL,
     "Fine-tuning jobs that may wait, paused ones included; one more is answered with 429.", false},
    {OPT_INT, "keep-jobs-days", AT(keep_jobs_days), "N", "0", 0, 36500, NULL,
     "Days after a job's end at which its checkpoints go, unless its retention_class is keep. 0: "
     "they stay.",
     false},
    {OPT_INT, "io-threads", AT(io_threads), "N", "4", 1, 64, NULL,
     "Threads that wait on the disk, so that nothing else does.", false},
    HEADING("Listener"),
    {OPT_STRING, "host", AT(host), "ADDR", "127.0.0.1", 0, 0, NULL, "Address to listen on.", false},
    {OPT_INT, "port", AT(port), "N", "8000", 0, 65535, NULL, "Port; 0 takes any free one.", false},
    {OPT_STRING, "metrics-host", AT(metrics_host), "ADDR", "127.0.0.1", 0, 0, NULL,
     "Address of the metrics port.", false},
    {OPT_INT, "metrics-port", AT(metrics_port), "N", "0", 0, 65535, NULL,
     "A port of its own for /metrics, without keys. 0: /metrics is on the main port.", false},
    {OPT_INT, "http-threads", AT(http_threads), "N", "1", 1, 64, NULL, "Event loops.", false},
    {OPT_STRING, "ssl-certfile", AT(ssl_certfile), "PATH", NULL, 0, 0, NULL,
     "Certificate chain in PEM; read again on SIGHUP.", false},
    {OPT_STRING, "ssl-keyfile", AT(ssl_keyfile), "PATH", NULL, 0, 0, NULL,
     "Private key in PEM; read again on SIGHUP.", false},
    {OPT_LIST, "allowed-origins", AT(allowed_origins), "ORIGIN", NULL, 0, 0, NULL,
     "Browser origin that may call the API (CORS), or *.", false},
    HEADING("Access"),
    {OPT_LIST, "api-key", AT(api_keys), "KEY", NULL, 0, 0, NULL,
     "Key that requests must present. Better in the environment than on the command line.", true},
    {OPT_STRING, "api-key-file", AT(api_key_file), "PATH", NULL, 0, 0, NULL,
     "File of keys: 'key', 'key tenant', 'key tenant train' or 'key tenant admin' a line "
     "(docs/api.md).",
     false},
    {OPT_FLAG, "allow-anonymous", AT(allow_anonymous), NULL, "false", 0, 0, NULL,
     "Listen beyond loopback although no key is set.", false},
    HEADING("Limits"),
    {OPT_SIZE, "max-body-bytes", AT(max_body), "SIZE", "16M", SIZE_MIN, SIZE_MAX_VALUE, NULL,
     "Largest request body.", false},
    {OPT_SIZE, "max-inflight-bytes", AT(max_inflight), "SIZE", "256M", SIZE_MIN, SIZE_MAX_VALUE,
     NULL, "Bodies of all requests together.", false},
    {OPT_SIZE, "max-header-bytes", AT(max_header), "SIZE", "64K", 1024, 0x1p24, NULL,
     "Largest request head.", false},
    {OPT_INT, "max-connections", AT(max_connections), "N", "10000", 1, 1000000, NULL,
     "Open connections.", false},
    {OPT_INT, "max-prompts", AT(max_prompts), "N", "128", 1, 4096, NULL,
     "Prompts in one completion request.", false},
    {OPT_SECONDS, "header-timeout", AT(header_timeout), "TIME", "10s", 0.01, 86400, NULL,
     "Time for a request's head to arrive.", false},
    {OPT_SECONDS, "body-timeout", AT(body_timeout), "TIME", "60s", 0.01, 86400, NULL,
     "Time for a request's body to arrive.", false},
    {OPT_SECONDS, "idle-timeout", AT(idle_timeout), "TIME", "120s", 0.01, 86400, NULL,
     "How long an idle connection is kept.", false},
    {OPT_SECONDS, "write-timeout", AT(write_timeout), "TIME", "60s", 0.01, 86400, NULL,
     "How long a client may take no bytes of its answer.", false},
    {OPT_SECONDS, "request-timeout", AT(request_timeout), "TIME", "0", 0, 86400, NULL,
     "Deadline of a generation from its arrival. 0: none.", false},
    {OPT_SECONDS, "drain-timeout", AT(drain_timeout), "TIME", "30s", 0, 86400, NULL,
     "After SIGTERM, how long running answers may take to finish.", false},
    {OPT_SECONDS, "drain-delay", AT(drain_delay), "TIME", "0", 0, 3600, NULL,
     "After SIGTERM, how long new requests are still taken while /ready already says no.", false},
    {OPT_SECONDS, "stall-timeout", AT(stall_timeout), "TIME", "30s", 0.1, 86400, NULL,
     "/health fails when a busy step loop makes no progress for this long.", false},
    HEADING("Logs and metrics"),
    {OPT_ENUM, "log-level", AT(log_level), NULL, "info", 0, 0, "debug|info|warn|error",
     "Least level that is logged.", false},
    {OPT_ENUM, "log-format", AT(log_format), NULL, "text", 0, 0, "text|json",
     "Form of the server's messages on standard error.", false},
    {OPT_FLAG, "access-log", AT(access_log), NULL, "true", 0, 0, NULL,
     "One JSON line per request on standard output. Prompts never appear in it.", false},
    {OPT_FLAG, "vllm-metrics", AT(vllm_metrics), NULL, "false", 0, 0, NULL,
     "Also give the metrics under vLLM's names.", false},
};

const struct opt_table serve_option_table = {
    .command = "graft serve",
    .usage = "graft serve MODEL [options]",
    .summary = "Serves MODEL (a GGUF file or a Hugging Face folder) behind OpenAI's HTTP API.",
    .defs = defs,
    .n = sizeof defs / sizeof *defs,
    .max_positional = 1,
};

// Less than a step of any model takes, and near 0 it would be no target at all.
static enum err check_target(const char *name, double ms, struct err_info *info) {
    return ms == 0 || ms >= 0.1
               ? ERR_OK
               : err_set(info, ERR_INVALID, name,
                         "--%s must be 0 (no target) or at least 0.1 milliseconds, not %g", name,
                         ms);
}

enum err serve_options_check(const struct serve_options *o, struct err_info *info) {
    enum err e = check_target("slo-itl-ms", o->slo_itl_ms, info);
    return e ? e : check_target("slo-ttft-ms", o->slo_ttft_ms, info);
}
