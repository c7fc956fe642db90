// SPDX-License-Identifier: Apache-2.0
// What the routes of files share. Any thread.
#pragma once
#include "base/json_write.h"
#include "finetune/files.h"

void api_file_write(const struct ft_file *f, struct json_w *w); // the API's file object
