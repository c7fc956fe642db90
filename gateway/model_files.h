// SPDX-License-Identifier: Apache-2.0
// What a server and `graft train` read beside the model's own files: the template that
// --chat-template names, and the folder in which digests are remembered. They block on the disk.
#pragma once
#include "model/chat_template.h"

// The message names the option and the file. *out is the caller's (chat_template_destroy).
enum err model_files_template(const char *path, struct chat_template **out, struct err_info *info);

// --cache-dir (`option`), else graft below $XDG_CACHE_HOME or ~/.cache, which is made if it is not
// there. `buf` holds the path. NULL: there is none.
const char *model_files_cache(const char *option, char *buf, size_t cap);
