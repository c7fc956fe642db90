// SPDX-License-Identifier: Apache-2.0
// An assertion for threads that a test has started: cmocka leaves a test by longjmp, which such a
// thread may not do. It ends the program, and says where.
#pragma once
#include <stdio.h>
#include <stdlib.h>

#define MUST(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
