#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes types.bin: what the `gguf` package makes of each weight type.

For each type: u32 type id, u32 values, u32 bytes; then the f32 values that were quantised, the
bytes that gguf.quants made of them, and the f32 values that it makes of these bytes again; then
random bytes of the same length (any quants, sane scales) and their values. Type ids are those of
enum kn_dtype. Little-endian. Run: python3 make.py (needs numpy and gguf).
"""
import struct
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

TYPES = [(1, T.F16, 2, 1), (2, T.BF16, 2, 1), (3, T.Q8_0, 34, 32), (4, T.Q4_0, 18, 32),
         (5, T.Q4_1, 20, 32)]
VALUES = 32 * 40

rng = np.random.default_rng(7)


def source():
    x = rng.standard_normal(VALUES).astype(np.float32)
    x[:32] = 0  # a block of zeros
    x[32:64] = np.float32(2.5)  # one of equal values
    x[64:96] *= np.float32(1e-7)  # subnormal scales
    x[96:128] *= np.float32(1e4)
    x[128:160] = np.arange(-16, 16)
    x[160] = 0.5  # ties
    return x


def random_bytes(t, size, n_blocks):
    raw = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    if size > 2:
        halves = 2 if t == T.Q4_1 else 1
        scale = rng.standard_normal((n_blocks, halves)).astype(np.float16)
        raw[:, :2 * halves] = scale.view(np.uint8).reshape(n_blocks, -1)
    else:  # no infinities and NaN: their payload is not a number to compare
        raw[:, 1] &= 0xBF
    return raw.reshape(-1)


def values(raw, t):
    if t == T.F16:
        return raw.view(np.float16).astype(np.float32)
    return quants.dequantize(raw, t).astype(np.float32).reshape(-1)


with open("types.bin", "wb") as f:
    for kn, t, size, block in TYPES:
        x = source()
        if t == T.F16:
            q = x.astype(np.float16).view(np.uint8).reshape(-1)
        else:
            q = np.ascontiguousarray(quants.quantize(x, t)).view(np.uint8).reshape(-1)
        assert q.size == VALUES // block * size
        r = random_bytes(t, size, VALUES // block)
        f.write(struct.pack("<III", kn, VALUES, q.size))
        for part in (x, q, values(q, t), r, values(r, t)):
            f.write(part.tobytes())
