// SPDX-License-Identifier: Apache-2.0
// The state database's schema changes, oldest first. Appended to, never edited once released.
#pragma once
#include "base/db.h"

extern const struct db_migration ft_schema[];
extern const size_t ft_schema_len;
