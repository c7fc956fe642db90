// SPDX-License-Identifier: Apache-2.0
// An operation table that passes everything on, waits after each operation and adds up its time.
// For one program with one queue: its account is the process's.
#pragma once
#include "model/weights.h"

const struct kn_ops *profile_ops(const struct kn_ops *inner);
void profile_reset(void);
// One line per kind of operation, with how long its calls took; products apart by the linear of the
// model that they are.
void profile_print(const struct mdl_weights *w, double tokens);
