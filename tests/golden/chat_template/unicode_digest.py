#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode.json: SHA-256 digests of what Python 3.11's str methods say about every character.

For a property: one byte, 0 or 1, for each code point but the surrogates. For a case mapping: the mapped
text in UTF-8 and a zero byte for each. usage: unicode_digest.py > unicode.json
"""
import hashlib
import json
import unicodedata

CHARS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PROPERTIES = {
    "alpha": str.isalpha, "decimal": str.isdecimal, "digit": str.isdigit, "numeric": str.isnumeric,
    "alnum": str.isalnum, "space": str.isspace, "printable": str.isprintable, "upper": str.isupper,
    "lower": str.islower, "title": lambda ch: unicodedata.category(ch) == "Lt",
}
MAPPINGS = {"to_upper": str.upper, "to_lower": str.lower, "to_title": str.title}


def digest(parts):
    h = hashlib.sha256()
    for p in parts:
        h.update(p)
    return h.hexdigest()


out = {name: digest(bytes([f(ch)]) for ch in CHARS) for name, f in PROPERTIES.items()}
out |= {name: digest(f(ch).encode() + b"\0" for ch in CHARS) for name, f in MAPPINGS.items()}
out["decimal_value"] = digest(bytes([unicodedata.decimal(ch, 255)]) for ch in CHARS)
print(json.dumps(out, indent=1))
