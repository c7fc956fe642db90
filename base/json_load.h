// SPDX-License-Identifier: Apache-2.0
// json_loadb of Jansson, made safe for a process that runs short of memory.
//
// Jansson's reader collects a token's bytes in a buffer that grows, and does not look whether it
// could: a byte that found no room is dropped. Where it is a string's closing quote the reader runs
// on behind the buffer; where it is what follows a number, an assertion ends the process; elsewhere
// the value is another than the one that was written. So the buffer is made large enough
// beforehand, by a number in front of the document that is as long as its longest token, and
// nothing else is read if that did not work.
//
// Needs json_set_alloc_funcs(mem_alloc, mem_free), by which failures are seen. Stateless; any
// thread.
#pragma once
#include "base/err.h"
#include <jansson.h>
#include <stddef.h>

// As json_loadb(text, len, flags, error), with one difference: where memory was short it gives NULL
// and the code json_error_out_of_memory. JSON_DISABLE_EOF_CHECK is not known.
json_t *json_load_text(const char *text, size_t len, size_t flags, json_error_t *error);
// The same of a whole file, which has `most` bytes at the most; also NULL where it has more or
// cannot be read. Blocks on the disk.
json_t *json_load_fd(int fd, size_t most, size_t flags);
// Of such an error: ERR_NOMEM or ERR_FORMAT.
enum err json_load_err(const json_error_t *error);
