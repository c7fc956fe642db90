// SPDX-License-Identifier: Apache-2.0
#include "gateway/export.h"
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/export_set.h"
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct export_options {
    const char *data_dir, *output, *checkpoints;
};

#define AT(field) offsetof(struct export_options, field)

static const struct opt_def defs[] = {
    {OPT_STRING, "data-dir", AT(data_dir), "DIR", NULL, 0, 0, NULL,
     "Data folder of the server that has the job; it is only read, and the server may run. "
     "Required.",
     false},
    {OPT_STRING, "output", AT(output), "DIR", NULL, 0, 0, NULL,
     "Folder for the set, outside of the data folder, which must be empty or not be there. "
     "Required.",
     false},
    {OPT_ENUM, "checkpoints", AT(checkpoints), NULL, "newest", 0, 0, "newest|all|none",
     "Which of the job's checkpoints the set gets.", false},
};

const struct opt_table export_option_table = {
    .command = "graft export",
    .usage = "graft export JOB --data-dir DIR --output DIR [options]",
    .summary =
        "Writes the complete set of a fine-tuning job: adapter, checkpoints, data, parameters, "
        "events and metrics, with the SHA-256 of each file.",
    .defs = defs,
    .n = sizeof defs / sizeof *defs,
    .max_positional = 1,
};

static void print_note(void *arg, const char *message) {
    (void)arg;
    fprintf(stderr, "graft export: %s\n", message);
}

static enum err export(const struct export_options *o, const char *job, struct err_info *info) {
    struct ft_home home = {0};
    const struct ft_home_config cfg = {.path = o->data_dir, .clock = &clock_system};
    size_t files = 0;
    enum err e = ft_home_view(&home, &cfg, info);
    if (e) return e;
    const struct export_set set = {.home = &home,
                                   .job = job,
                                   .output = o->output,
                                   .checkpoints = !strcmp(o->checkpoints, "all")    ? EXPORT_ALL
                                                  : !strcmp(o->checkpoints, "none") ? EXPORT_NONE
                                                                                    : EXPORT_NEWEST,
                                   .tell = print_note};
    e = export_set_write(&set, &files, info);
    ft_home_close(&home);
    if (!e) printf("%s: %zu files in %s\n", job, files, o->output);
    return e;
}

static enum err check_options(const struct export_options *o, const struct opt_result *res,
                              struct err_info *info) {
    if (res->n_positional != 1)
        return err_set(info, ERR_INVALID, NULL, "give a job's id, as ftjob-...");
    if (!o->data_dir || !*o->data_dir)
        return err_set(info, ERR_INVALID, "data-dir", "--data-dir is missing");
    if (!o->output || !*o->output)
        return err_set(info, ERR_INVALID, "output", "--output is missing");
    return ERR_OK;
}

int export_main(int argc, char **argv) {
    struct export_options o = {0};
    struct opt_result res;
    struct err_info info = {0};
    if (opt_parse(&export_option_table, argc, argv, &o, &res, &info)) {
        fprintf(stderr, "graft export: %s\n", info.message);
        return 2;
    }
    int status = 0;
    json_set_alloc_funcs(mem_alloc, mem_free);
    if (res.help) {
        opt_show_help(&export_option_table);
    } else if (check_options(&o, &res, &info)) {
        fprintf(stderr, "graft export: %s\nusage: %s\nSee graft export --help.\n", info.message,
                export_option_table.usage);
        status = 2;
    } else if (export(&o, res.positional[0], &info)) {
        fprintf(stderr, "graft export: %s\n", info.message);
        status = 1;
    }
    opt_result_fini(&res);
    return status;
}
