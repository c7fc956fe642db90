// SPDX-License-Identifier: Apache-2.0
// Adapter folders for tests: made in a temporary folder, of known effect. Functions fail the
// running cmocka test where something does not succeed.
#pragma once
#include "model/adapter.h"
#include "model/weights.h"
#include "tests/support/temp_folder.h"

struct adapter_dir {
    char path[TEMP_PATH];
};
void adapter_dir_open(struct adapter_dir *d);
void adapter_dir_close(struct adapter_dir *d); // removes it with all adapters

// A folder <d>/<name> with an adapter of random values on all targets. Equal seeds give equal
// files.
void adapter_make_random(const struct adapter_dir *d, const char *name, const struct mdl_config *c,
                         uint64_t seed);
// With an adapter that makes the model choose `token` whatever came before: pairs of neurons of the
// last layer become silu(s) s and silu(-s) (-s), whose sum is never negative, and push the token's
// row.
void adapter_make_forcing(const struct adapter_dir *d, const char *name,
                          const struct mdl_weights *w, int32_t token);
// `n` tokens that adapter_make_forcing can force, and that end no sequence.
void adapter_forcible(const struct mdl_weights *w, struct kn_queue *q, int32_t *out, int32_t n);
