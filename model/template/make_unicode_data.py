#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_data.c: the character properties and case mappings that Python's str methods use.

Everything is asked of the running Python (3.11: Unicode 14), so the tables agree with the Python that
runs jinja2. Usage: make_unicode_data.py > unicode_data.c
"""
import sys
import unicodedata

TOP = 0x110000
CHARS = [chr(c) for c in range(TOP) if not 0xD800 <= c < 0xE000]


def toggles(pred):
    """Sorted code points at which membership changes; the first one switches it on."""
    out, on = [], False
    for c in range(TOP):
        now = not 0xD800 <= c < 0xE000 and pred(chr(c))
        if now != on:
            out.append(c)
            on = now
    if on:
        out.append(TOP)
    return out


def emit(decl, items, width=100):
    lines, line = [decl + " = {"], "   "
    for item in items:
        if len(line) + 2 + len(item) > width:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    lines += [line, "};"]
    print("\n".join(lines))


def table(name, pred):
    t = toggles(pred)
    emit(f"const uint32_t tpl_uc_{name}[]", [hex(c) for c in t])
    print(f"const size_t tpl_uc_{name}_n = sizeof tpl_uc_{name} / sizeof *tpl_uc_{name};\n")


def case_map(name, fn):
    pairs, special = [], []
    for ch in CHARS:
        to = fn(ch)
        if to == ch:
            continue
        if len(to) == 1:
            pairs.append((ord(ch), ord(to) - ord(ch)))
        else:
            special.append((ord(ch), [ord(x) for x in to]))
    runs = []  # first, last, step, delta
    for c, d in pairs:
        if runs:
            r = runs[-1]
            step = c - r[1]
            if r[3] == d and step in (1, 2) and (r[0] == r[1] or r[2] == step):
                r[1], r[2] = c, step
                continue
        runs.append([c, c, 1, d])
    emit(f"const struct tpl_uc_case tpl_uc_{name}[]",
         ["{%#x, %#x, %d, %d}" % tuple(r) for r in runs])
    print(f"const size_t tpl_uc_{name}_n = sizeof tpl_uc_{name} / sizeof *tpl_uc_{name};\n")
    emit(f"const struct tpl_uc_special tpl_uc_{name}_special[]",
         ["{%#x, {%s}}" % (c, ", ".join(hex(x) for x in to)) for c, to in special])
    print(f"const size_t tpl_uc_{name}_special_n =\n"
          f"    sizeof tpl_uc_{name}_special / sizeof *tpl_uc_{name}_special;\n")


def main():
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Made by make_unicode_data.py with Unicode {unicodedata.unidata_version}; do not edit.")
    print("// Property tables list the code points at which membership changes.")
    print("// clang-format off")
    print('#include "model/template/unicode_data.h"\n')
    table("alpha", str.isalpha)
    table("decimal", str.isdecimal)
    table("digit", str.isdigit)
    table("numeric", str.isnumeric)
    table("printable", str.isprintable)
    table("upper", str.isupper)
    table("lower", str.islower)
    table("title", lambda ch: unicodedata.category(ch) == "Lt")
    # The two properties behind the final sigma, read off from what lower() does with them.
    table("ignorable", lambda ch: ("a" + ch + "\u03a3").lower()[-1] == "\u03c2"
          and ("1" + ch + "\u03a3").lower()[-1] != "\u03c2")
    table("cased", lambda ch: ("1" + ch + "\u03a3").lower()[-1] == "\u03c2")
    case_map("to_upper", str.upper)
    case_map("to_lower", lambda ch: ch.lower() if ch != "\u03a3" else "\u03c3")
    case_map("to_title", str.title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
