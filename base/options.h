// SPDX-License-Identifier: Apache-2.0
// Command-line options from one table: flags, environment twins (GRAFT_MAX_NUM_SEQS for
// --max-num-seqs), help text and the reference page. Precedence: flag, then environment, then
// default.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum opt_kind {
    OPT_FLAG,     // bool; --x, --no-x, --x=true
    OPT_INT,      // int64_t, with min and max
    OPT_SIZE,     // int64_t bytes, suffixes K M G T (binary), with min and max
    OPT_FLOAT,    // double, with min and max
    OPT_SECONDS,  // double seconds; suffixes ms, s, m, h
    OPT_STRING,   // const char *
    OPT_OPTIONAL, // const char *: NULL not given, "" given without a value; not with positionals
    OPT_LIST,     // struct opt_list; may be given several times (environment: separated by commas)
    OPT_ENUM,     // const char * out of `choices` ("a|b|c")
    OPT_HEADING,  // a title in the help, no option
};

struct opt_list {
    const char **items;
    size_t n;
};

struct opt_def {
    enum opt_kind kind;
    const char *name;    // without dashes
    size_t offset;       // of the field in the caller's struct
    const char *value;   // placeholder in the help ("N", "PATH")
    const char *dflt;    // default as text, NULL: zero or NULL; shown in the help
    double min, max;     // for numbers; both 0: any
    const char *choices; // OPT_ENUM
    const char *help;
    bool secret; // the value is never shown; on the command line it is overwritten after reading
};

struct opt_table {
    const char *command; // "graft serve"
    const char *usage;   // "graft serve MODEL [options]"
    const char *summary;
    const struct opt_def *defs;
    size_t n;
    size_t max_positional;
};

struct opt_result {
    const char *positional[16];
    size_t n_positional;
    bool help;   // --help or -h was given
    bool *given; // [n of the table]: on the command line or in the environment
    void *owned; // memory of lists and strings; freed by opt_result_fini
};

// Fills `into` (a struct whose fields the offsets name) with defaults, environment, flags. Strings
// point into argv, the environment or memory that `res` owns. An unknown option names the nearest
// known one.
enum err opt_parse(const struct opt_table *t, int argc, char **argv, void *into,
                   struct opt_result *res, struct err_info *info);
void opt_result_fini(struct opt_result *res);
bool opt_given(const struct opt_table *t, const struct opt_result *res, const char *name);
// A value from elsewhere (`from`, for messages: "run.json"), checked as one on the command line is;
// not of a list. One that was given stays, and must be the same: ERR_INVALID names both.
enum err opt_take(const struct opt_table *t, const char *name, const char *value, const char *from,
                  void *into, struct opt_result *res, struct err_info *info);
void opt_print_help(const struct opt_table *t, struct buf *out, size_t columns);
void opt_show_help(const struct opt_table *t);                       // on standard output
void opt_print_markdown(const struct opt_table *t, struct buf *out); // the reference page
