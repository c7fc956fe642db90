// SPDX-License-Identifier: Apache-2.0
#include "finetune/schema.h"

// Times are Unix seconds. `seq` is the order of creation, which pages follow; ids are random.
static const char files[] =
    "CREATE TABLE files ("
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  id TEXT NOT NULL UNIQUE,"
    "  tenant INTEGER NOT NULL,"
    "  filename TEXT NOT NULL,"
    "  purpose TEXT NOT NULL,"
    "  bytes INTEGER NOT NULL,"
    "  sha256 TEXT NOT NULL,"
    "  created_at INTEGER NOT NULL,"
    "  expires_at INTEGER,"
    "  status TEXT NOT NULL,"
    "  status_details TEXT);"
    "CREATE INDEX files_by_tenant ON files (tenant, seq);"
    "CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;";

const struct db_migration ft_schema[] = {
    {"files", files},
};
const size_t ft_schema_len = sizeof ft_schema / sizeof *ft_schema;
