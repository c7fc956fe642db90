// SPDX-License-Identifier: Apache-2.0
// The binary's entry: subcommands. This file alone knows them all.
#include "gateway/export.h"
#include "gateway/serve.h"
#include "gateway/serve_options.h"
#include "gateway/train.h"
#include "gateway/train_options.h"
#include "gateway/verify.h"
#include "loadtest/loadtest.h"
#include "loadtest/options.h"
#include <stdio.h>
#include <string.h>

struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
    const struct opt_table *options;
};

static const struct command commands[] = {
    {"serve", "serve a model behind OpenAI's HTTP API", serve_main, &serve_option_table},
    {"train", "train an adapter on a model", train_main, &train_option_table},
    {"export", "write the complete set of a fine-tuning job", export_main, &export_option_table},
    {"verify", "check an exported set, a checkpoint, an adapter or a run", verify_main,
     &verify_option_table},
    {"loadtest", "measure any OpenAI-compatible server", loadtest_main, &lt_option_table},
};

static void print_usage(FILE *to) {
    fputs("Usage: graft COMMAND [options]\n\nCommands:\n", to);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n'graft COMMAND --help' shows a command's options; 'graft --version' the version.\n",
          to);
}

// docs/options.md is this text; a test compares them.
static int print_options_page(void) {
    struct buf out;
    buf_init(&out, 0);
    buf_puts(
        &out,
        "# Options\n\nMade by `graft help --markdown` from the tables that also parse the command "
        "line. Each "
        "option has an\nenvironment twin: `--max-num-seqs` is `GRAFT_MAX_NUM_SEQS`. The command "
        "line wins. A flag "
        "is switched off by `--no-…`.\nSizes take K, M, G, T (binary); times take ms, s, m, h.\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        buf_putc(&out, '\n');
        opt_print_markdown(commands[i].options, &out);
    }
    bool ok = !buf_err(&out) && fputs(out.data, stdout) >= 0;
    buf_fini(&out);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (argc == 3 && !strcmp(argv[1], "help") && !strcmp(argv[2], "--markdown"))
        return print_options_page();
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        puts("graft " GRAFT_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "graft: unknown command '%s'\n\n", argv[1]);
    print_usage(stderr);
    return 2;
}
