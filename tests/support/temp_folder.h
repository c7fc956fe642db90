// SPDX-License-Identifier: Apache-2.0
// Folders of a test's own. A test removes its folder when it is done; what a failed test left is
// removed when the program ends (unless it is killed). Failure fails the running cmocka test.
#pragma once

enum { TEMP_PATH = 64 };

// A new empty folder under TMPDIR, or /tmp; `name` says in the path whose it is.
void temp_folder(char out[TEMP_PATH], const char *name);
// In memory where there is such a file system: for tests that sync thousands of times.
void temp_folder_in_memory(char out[TEMP_PATH], const char *name);
// Removes a file, or a folder and all below it; it may be gone already.
void temp_remove(const char *path);
