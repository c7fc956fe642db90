// SPDX-License-Identifier: Apache-2.0
// Values that were read by Jansson, written again. Its own writer gives each number 17 digits, so
// that what came as 0.1 left as 0.10000000000000001. Stateless; any thread. The depth is what the
// reader allowed.
#pragma once
#include "base/err.h"
#include "base/json_write.h"
#include <jansson.h>

void jw_value(struct json_w *w, const json_t *v); // NULL: null
// The text of a value, freed by mem_free. ERR_NOMEM; ERR_LIMIT: more than `most` bytes (0: any
// number).
enum err json_value_text(const json_t *v, size_t most, char **out);
