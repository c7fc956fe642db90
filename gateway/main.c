// SPDX-License-Identifier: Apache-2.0
// The binary's entry: subcommands. This file alone knows them all.
#include "gateway/serve.h"
#include "loadtest/loadtest.h"
#include <stdio.h>
#include <string.h>

struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
    {"serve", "serve a model behind OpenAI's HTTP API", serve_main},
    {"loadtest", "measure any OpenAI-compatible server", loadtest_main},
};

static void print_usage(FILE *to) {
    fputs("Usage: graft COMMAND [options]\n\nCommands:\n", to);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n'graft COMMAND --help' shows a command's options; 'graft --version' the version.\n",
          to);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
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
