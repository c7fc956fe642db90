// SPDX-License-Identifier: Apache-2.0
// Records what a program does to a folder through base/diskio.h, and builds what a power loss may
// leave of it: for each prefix of the record, each write that no later sync of its file covers is
// kept, dropped, torn (half of it) or turned into zeros, and each change of a name that no later
// sync of its folder covers is kept, dropped, or (a rename) done by half, so that both names are
// there. Few such changes are combined in all ways; of many a pseudo-random sample is taken, always
// the same one.
//
// A state database is trusted: it stands as it was at the last commit of the prefix. What is in the
// folder when recording begins lasts. One recording at a time; failures of the tool itself abort.
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { REPLAY_WHY = 512 };

struct replay;

struct replay *replay_begin(const char *root);
// What was acknowledged so far: a check of a prefix gets the last mark in it (0: none yet).
void replay_mark(struct replay *r, int mark);
void replay_end(struct replay *r); // stops recording
void replay_free(struct replay *r);

// Looks at one folder that a crash may have left. False: something is wrong; `why` says what.
typedef bool (*replay_check)(void *arg, const char *path, int mark, char why[REPLAY_WHY]);

struct replay_result {
    int prefixes, states, bad;
    char first[REPLAY_WHY + 256]; // of the bad ones
};
// most: states per prefix.
struct replay_result replay_run(struct replay *r, int most, replay_check check, void *arg);

// For checks: the content of path/name (to be freed), NULL if it is not there.
char *replay_read(const char *path, const char *name, size_t *n);
