// SPDX-License-Identifier: Apache-2.0
// cmocka wants these headers before its own.
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
