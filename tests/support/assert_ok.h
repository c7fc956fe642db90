// SPDX-License-Identifier: Apache-2.0
// One more assertion of cmocka's kind, for functions of the project: they return an enum err and
// say in an err_info why. For the test's own thread, as all of cmocka's.
#pragma once
#include "base/err.h"
#include "tests/support/cmocka_all.h"

// assert_ok(f(..., &info), &info): fails the test at the caller's line, with the message.
#define assert_ok(e, info) assert_ok_at((e), (info), __FILE__, __LINE__)

static inline void assert_ok_at(enum err e, const struct err_info *info, const char *file,
                                int line) {
    if (e) {
        print_error("%s: %s\n", err_name(e), info->message);
        _fail(file, line);
    }
}
