#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes cases.txt: small safetensors files, and whether the `safetensors` package (0.8) takes them.

Each line: "accept", "reject" or "strict", a name, the file in hex. "strict" marks what the package
takes and we refuse on purpose: it says so in the comment beside the case.
"""
import json
import os
import struct

from safetensors import deserialize

HERE = os.path.dirname(os.path.abspath(__file__))
A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]}


def file(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def entry(data=24, **change):
    e = {**A, **change}
    return file({"a": {k: v for k, v in e.items() if v is not None}}, data)


A_TEXT = json.dumps(A)
CASES = {
    "one": entry(),
    "two": file({"a": A, "b": B}, 32),
    "two_in_other_order": file({"b": B, "a": A}, 32),
    "empty": file({}, 0),
    "padded": file(b"{}      ", 0),
    "padded_with_newlines": file(b"{}\n\t\r ", 0),
    "metadata": file({"__metadata__": {"format": "pt", "x": ""}, "a": A}, 24),
    "metadata_empty": file({"__metadata__": {}, "a": A}, 24),
    "zero_rank": entry(4, shape=[], data_offsets=[0, 4]),
    "zero_size": entry(0, shape=[0, 7], data_offsets=[0, 0]),
    "zero_size_between": file({"a": A, "z": {"dtype": "U8", "shape": [0], "data_offsets": [24, 24]},
                               "b": B}, 32),
    "zero_size_huge_shape": entry(0, shape=[0, 2**40], data_offsets=[0, 0]),
    "escaped_name": file(b'{"\\u00e9\\n\\"\\ud83d\\ude00":' + A_TEXT.encode() + b"}", 24),  # strict: a control character
    "escaped_name_plain": file(b'{"\\u0061\\/b\\\\":' + A_TEXT.encode() + b"}", 24),
    "utf8_name": file('{"\u00fc\U0001f600":'.encode() + A_TEXT.encode() + b"}", 24),
    **{f"dtype_{t}": entry(8 * n, dtype=t, shape=[8], data_offsets=[0, 8 * n])
       for t, n in (("BOOL", 1), ("U8", 1), ("I8", 1), ("F8_E5M2", 1), ("F8_E4M3", 1), ("I16", 2),
                    ("U16", 2), ("F16", 2), ("BF16", 2), ("I32", 4), ("U32", 4), ("F32", 4),
                    ("F64", 8), ("I64", 8), ("U64", 8))},
    "dtype_unknown": entry(dtype="F33"),
    "dtype_lower": entry(dtype="f32"),
    "dtype_missing": entry(dtype=None),
    "dtype_number": entry(dtype=3),
    "shape_missing": entry(shape=None),
    "shape_negative": entry(shape=[-2, -3]),
    "shape_float": file(b'{"a":{"dtype":"F32","shape":[2.0,3],"data_offsets":[0,24]}}', 24),
    "shape_exponent": file(b'{"a":{"dtype":"F32","shape":[2e0,3],"data_offsets":[0,24]}}', 24),
    "shape_leading_zero": file(b'{"a":{"dtype":"F32","shape":[02,3],"data_offsets":[0,24]}}', 24),
    "shape_string": entry(shape="23"),
    "shape_overflow": entry(shape=[2**63, 2]),
    "shape_overflow_to_24": entry(shape=[2**62 + 3, 2]),
    "shape_over_64_bits": entry(shape=[2**64, 1]),
    "shape_wrong": entry(shape=[2, 4]),
    "shape_trailing_comma": file(b'{"a":{"dtype":"F32","shape":[2,3,],"data_offsets":[0,24]}}', 24),
    "offsets_missing": entry(data_offsets=None),
    "offsets_three": entry(data_offsets=[0, 24, 24]),
    "offsets_one": entry(data_offsets=[24]),
    "offsets_backwards": entry(data_offsets=[24, 0]),
    "offsets_not_from_zero": entry(28, data_offsets=[4, 28]),
    "offsets_negative": entry(data_offsets=[-24, 0]),
    "offsets_huge": entry(data_offsets=[2**64 - 24, 2**64 - 1]),
    "hole": file({"a": A, "b": {**B, "data_offsets": [28, 36]}}, 36),
    "overlap": file({"a": A, "b": {**B, "data_offsets": [16, 24]}}, 24),
    "same_range": file({"a": A, "b": A}, 24),
    "beyond_the_file": entry(16),  # CVE-2026-7482's class
    "data_left_over": entry(25),
    "data_missing": entry(0),
    "header_one_too_long": file({"a": A}, 24, length=len(json.dumps({"a": A})) + 1),
    "header_one_too_short": file({"a": A}, 24, length=len(json.dumps({"a": A})) - 1),
    "header_past_the_end": file({"a": A}, 24, length=1000),
    "header_over_the_limit": file({"a": A}, 24, length=100000001),
    "header_max": file({"a": A}, 24, length=2**64 - 1),
    "header_minus_eight": file({"a": A}, 24, length=2**64 - 8),
    "header_zero": file(b"", 0),
    "header_one_byte": file(b"{", 0),
    "file_empty": b"",
    "file_of_seven_bytes": bytes(7),
    "leading_space": file(b" {}", 0),  # strict: the format says the header begins with {
    "leading_bom": file(b"\xef\xbb\xbf{}", 0),
    "array": file(b"[]", 0),
    "garbage_behind": file(b"{}x", 0),
    "two_objects": file(b"{}{}", 0),
    "nul_padded": file(b"{}\0\0", 0),
    "not_utf8": file(b'{"\xff":' + A_TEXT.encode() + b"}", 24),
    "lone_surrogate": file(b'{"\\ud800":' + A_TEXT.encode() + b"}", 24),
    "control_in_name": file(b'{"a\n":' + A_TEXT.encode() + b"}", 24),
    "control_in_metadata": file(b'{"__metadata__":{"x":"a\tb"},"a":' + A_TEXT.encode() + b"}", 24),
    "bad_escape": file(b'{"\\x41":' + A_TEXT.encode() + b"}", 24),
    "unterminated_string": file(b'{"a', 0),
    "unterminated_object": file(b'{"a":' + A_TEXT.encode(), 24),
    "trailing_comma": file(b'{"a":' + A_TEXT.encode() + b",}", 24),
    "missing_colon": file(b'{"a"' + A_TEXT.encode() + b"}", 24),
    "entry_null": file(b'{"a":null}', 0),
    "entry_number": file(b'{"a":1}', 0),
    "field_twice": file(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}', 24),
    "metadata_number": file({"__metadata__": {"x": 1}, "a": A}, 24),
    "metadata_nested": file({"__metadata__": {"x": {}}, "a": A}, 24),
    "metadata_list": file({"__metadata__": [], "a": A}, 24),
    "metadata_twice": file(b'{"__metadata__":{},"__metadata__":{},"a":' + A_TEXT.encode() + b"}", 24),
    # strict: what a name or a key says twice is ambiguous
    "name_twice": file(b'{"a":' + A_TEXT.encode() + b',"a":' + A_TEXT.encode() + b"}", 24),
    "metadata_key_twice": file(b'{"__metadata__":{"x":"1","x":"2"},"a":' + A_TEXT.encode() + b"}", 24),
    # strict: a field we do not know may change what the others mean
    "field_unknown": entry(stride=[3, 1]),
    # strict: names are C strings
    "nul_in_name": file(b'{"a\\u0000b":' + A_TEXT.encode() + b"}", 24),
    # strict: more dimensions than any model has
    "nine_dimensions": entry(shape=[1] * 7 + [2, 3]),
}
STRICT = {"name_twice", "metadata_key_twice", "field_unknown", "nul_in_name", "nine_dimensions",
          "escaped_name", "leading_space"}


def verdict(name, data):
    try:
        deserialize(data)
        taken = True
    except Exception:  # the package raises its own type, and others for odd input
        taken = False
    if taken and name in STRICT:
        return "strict"
    return "accept" if taken else "reject"


with open(os.path.join(HERE, "cases.txt"), "w", encoding="utf-8") as f:
    for name, data in CASES.items():
        f.write(f"{verdict(name, data)} {name} {data.hex() or '-'}\n")
