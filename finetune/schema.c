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

static const char jobs[] = "CREATE TABLE jobs ("
                           "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
                           "  id TEXT NOT NULL UNIQUE,"
                           "  tenant INTEGER NOT NULL,"
                           "  state TEXT NOT NULL,"
                           "  reason TEXT,"
                           "  request TEXT NOT NULL,"
                           "  hyper TEXT NOT NULL,"
                           "  model TEXT NOT NULL,"
                           "  training_file TEXT NOT NULL,"
                           "  validation_file TEXT,"
                           "  dpo INTEGER NOT NULL,"
                           "  seed INTEGER NOT NULL,"
                           "  priority INTEGER NOT NULL,"
                           "  attempts INTEGER NOT NULL DEFAULT 0,"
                           "  fine_tuned_model TEXT,"
                           "  trained_tokens INTEGER,"
                           "  step INTEGER NOT NULL DEFAULT 0,"
                           "  steps INTEGER NOT NULL DEFAULT 0,"
                           "  created_at INTEGER NOT NULL,"
                           "  queued_at INTEGER,"
                           "  started_at INTEGER,"
                           "  prepared_at INTEGER,"
                           "  first_step_at INTEGER,"
                           "  checkpoint_at INTEGER,"
                           "  finished_at INTEGER,"
                           "  estimated_finish INTEGER,"
                           "  error_code TEXT,"
                           "  error_message TEXT,"
                           "  error_param TEXT);"
                           "CREATE INDEX jobs_by_tenant ON jobs (tenant, seq);"
                           "CREATE INDEX jobs_that_wait ON jobs (state, priority, seq);"
                           "CREATE TABLE job_metadata ("
                           "  job INTEGER NOT NULL REFERENCES jobs (seq),"
                           "  key TEXT NOT NULL,"
                           "  value TEXT NOT NULL,"
                           "  PRIMARY KEY (job, key)) WITHOUT ROWID;"
                           "CREATE TABLE job_results ("
                           "  job INTEGER NOT NULL REFERENCES jobs (seq),"
                           "  file TEXT NOT NULL,"
                           "  PRIMARY KEY (job, file)) WITHOUT ROWID;"
                           "CREATE TABLE job_events ("
                           "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
                           "  id TEXT NOT NULL UNIQUE,"
                           "  job INTEGER NOT NULL REFERENCES jobs (seq),"
                           "  created_at INTEGER NOT NULL,"
                           "  level TEXT NOT NULL,"
                           "  type TEXT NOT NULL,"
                           "  message TEXT NOT NULL,"
                           "  data TEXT);"
                           "CREATE INDEX events_by_job ON job_events (job, seq);"
                           "CREATE TABLE job_checkpoints ("
                           "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
                           "  id TEXT NOT NULL UNIQUE,"
                           "  job INTEGER NOT NULL REFERENCES jobs (seq),"
                           "  created_at INTEGER NOT NULL,"
                           "  step INTEGER NOT NULL,"
                           "  model TEXT NOT NULL,"
                           "  metrics TEXT NOT NULL,"
                           "  UNIQUE (job, step));";

// The number of the adapter version that the job publishes.
static const char job_version[] = "ALTER TABLE jobs ADD COLUMN version INTEGER;";

// 0 is the default tenant. The number beside it was that of keys given directly, which follows from
// the name "default".
static const char default_tenant[] =
    "UPDATE files SET tenant = 0 WHERE tenant = 9036501028126500919;"
    "UPDATE jobs SET tenant = 0 WHERE tenant = 9036501028126500919;";

const struct db_migration ft_schema[] = {
    {"files", files},
    {"jobs", jobs},
    {"job_version", job_version},
    {"default_tenant", default_tenant},
};
const size_t ft_schema_len = sizeof ft_schema / sizeof *ft_schema;
