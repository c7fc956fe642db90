// SPDX-License-Identifier: Apache-2.0
// From tokens to text that may be sent: holds back what could still become a stop string or a whole
// UTF-8 character, and says when a stop string was found. One per choice, no locks; deterministic:
// the text sent in all does not depend on how tokens were grouped.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ASM_MAX_STOPS = 4 };

struct asm_config {           // borrowed; shared by the choices of a request
    const char *const *stops; // non-empty UTF-8
    const size_t *stop_lens;
    size_t n_stops;
    bool include_stop; // include_stop_str_in_output
};

struct assembler {
    const struct asm_config *config;
    struct buf held; // bytes not yet sent
    size_t sent;     // bytes sent so far
    bool stopped;    // a stop string was found; further tokens are ignored
    bool deaf;       // set by the caller before a push: stop strings that end in it do not count
};

void assembler_init(struct assembler *a, const struct asm_config *c);
void assembler_fini(struct assembler *a);
// Adds one token's bytes; appends to *out what may be sent now (whole characters).
enum err assembler_push(struct assembler *a, const char *bytes, size_t n, struct buf *out);
// The end: what was held goes out; an incomplete character becomes U+FFFD.
enum err assembler_end(struct assembler *a, struct buf *out);
