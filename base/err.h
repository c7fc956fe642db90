// SPDX-License-Identifier: Apache-2.0
// Status codes: one table of code, text, HTTP status, OpenAI error type and OpenAI error code.
// Functions return `enum err`; functions at a boundary also fill a `struct err_info` for people.
// Thread-safe: no state.
#pragma once
#include <stdbool.h>
#include <stddef.h>

// X(name, text, http status, type, code or NULL)
#define ERR_TABLE(X)                                                                               \
    X(OK, "success", 200, NULL, NULL)                                                              \
    X(NOMEM, "out of memory", 503, "server_error", NULL)                                           \
    X(AGAIN, "try again", 503, "server_error", NULL)                                               \
    X(IO, "input/output error", 500, "server_error", NULL)                                         \
    X(DISK_FULL, "no space left on the disk", 503, "server_error", "disk_full")                    \
    X(INTERNAL, "internal error", 500, "server_error", NULL)                                       \
    X(FORMAT, "malformed file", 400, "invalid_request_error", NULL)                                \
    X(UNSUPPORTED, "not supported", 400, "invalid_request_error", NULL)                            \
    X(INVALID, "invalid value", 400, "invalid_request_error", NULL)                                \
    X(LIMIT, "over a limit", 400, "invalid_request_error", NULL)                                   \
    X(CONTEXT, "context length exceeded", 400, "invalid_request_error", "context_length_exceeded") \
    X(TEMPLATE, "chat template error", 400, "invalid_request_error", NULL)                         \
    X(NO_KEY, "authentication failed", 401, "authentication_error", "invalid_api_key")             \
    X(PERMISSION, "permission denied", 403, "permission_error", NULL)                              \
    X(NOT_FOUND, "not found", 404, "invalid_request_error", NULL)                                  \
    X(NO_MODEL, "model not found", 404, "invalid_request_error", "model_not_found")                \
    X(METHOD, "method not allowed", 405, "invalid_request_error", NULL)                            \
    X(CLIENT_TIMEOUT, "request timed out", 408, "invalid_request_error", NULL)                     \
    X(TOO_LARGE, "request too large", 413, "invalid_request_error", NULL)                          \
    X(MEDIA_TYPE, "unsupported media type", 415, "invalid_request_error", NULL)                    \
    X(HEADERS, "request header fields too large", 431, "invalid_request_error", NULL)              \
    X(QUEUE_FULL, "the queue is full", 429, "rate_limit_error", "queue_full")                      \
    X(RATE_LIMIT, "rate limit reached", 429, "rate_limit_error", "rate_limit_exceeded")            \
    X(LOADING, "the model is loading", 503, "server_error", "loading")                             \
    X(DRAINING, "the server is draining", 503, "server_error", "draining")                         \
    X(ENGINE_DEAD, "the engine has stopped", 503, "server_error", "engine_dead")                   \
    X(DEADLINE, "the request's deadline has passed", 503, "server_error", "deadline_exceeded")     \
    X(NONFINITE, "the model produced non-finite logits", 500, "server_error", "nonfinite_logits")  \
    X(DEVICE, "device error", 500, "server_error", "device_error")                                 \
    X(CANCELLED, "cancelled", 499, "invalid_request_error", "cancelled")

enum err {
#define X(name, text, http, type, code) ERR_##name,
    ERR_TABLE(X)
#undef X
        ERR_COUNT
};

// What a person or a client needs to know about one failure. All strings are NUL-terminated UTF-8,
// cut at a character boundary where they do not fit.
struct err_info {
    enum err code;
    char message[512]; // names the field, line or tensor and what would be right
    char param[96];    // the request field at fault, or empty
};

const char *err_name(enum err e); // "ERR_NOMEM"
const char *err_text(enum err e); // "out of memory"
int err_http_status(enum err e);
const char *err_openai_type(enum err e); // NULL for ERR_OK
const char *err_openai_code(enum err e); // NULL where there is none

// Fills *info (which may be NULL) and returns `e`. `param` may be NULL.
enum err err_set(struct err_info *info, enum err e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// Puts "prefix: " before the message, for callers that know where the failure happened.
void err_prefix(struct err_info *info, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
