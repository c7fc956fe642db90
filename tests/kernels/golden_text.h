// SPDX-License-Identifier: Apache-2.0
// Named arrays of tests/golden/train/golden.txt: "name count values..." lines. Asserts with cmocka.
#pragma once
#include <stdint.h>

struct golden_text; // all arrays of the file
struct golden_text *golden_open(const char *path);
void golden_close(struct golden_text *g);
// The array with this name; *n: how many values. Fails the test if there is none.
const double *golden_array(const struct golden_text *g, const char *name, int32_t *n);
// A copy as f32 for mem_free.
float *golden_f32(const struct golden_text *g, const char *name, int32_t *n);
