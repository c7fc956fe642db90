// SPDX-License-Identifier: Apache-2.0
// A data folder with its clock, and what tests put into it: files and jobs. Where the name says
// `try`, and for files and jobs, the caller gets the error; all else fails the running cmocka test.
#pragma once
#include "base/clock.h"
#include "finetune/files.h"
#include "finetune/job_log.h"
#include "tests/support/temp_folder.h"

struct home_fixture {
    char folder[TEMP_PATH];
    struct clock_manual clock;
    struct ft_home home;
};

// A new folder, in memory where there is such a file system; nothing is opened yet.
void home_fixture_init(struct home_fixture *f, const char *name);
void home_fixture_fini(struct home_fixture *f); // closes what is open, removes the folder

// Opens the folder, or what a crash left of one at another path. cfg: bounds, or NULL; path and
// clock are filled in, and a file size of 1 MiB.
enum err home_try_open(struct home_fixture *f, const char *path, const struct ft_home_config *cfg,
                       struct err_info *info);
void home_open(struct home_fixture *f, const struct ft_home_config *cfg);

// A training file of that content, which comes in pieces of 100 bytes.
enum err home_upload(struct ft_home *h, const void *content, size_t n, char id[FT_ID_MAX],
                     struct err_info *info);
// A job on a file, with more fields (", \"seed\": 1", or ""). ERR_NOMEM also where the request
// could not be read.
enum err home_job_create(struct ft_home *h, uint64_t tenant, const char *file, const char *fields,
                         char id[FT_ID_MAX], struct err_info *info);
struct ft_job home_job(struct ft_home *h, const char *id); // whoever owns it; without its request
