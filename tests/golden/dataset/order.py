#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes order.json: the order of samples in an epoch, from the definition in finetune/README.md,
written here a second time. Philox4x32-10 is checked against the known answer of its authors' library
(Random123, kat_vectors: zeros).
"""
import json
import os

M = 0xFFFFFFFF


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & M, (a >> 32) ^ c[3] ^ k[1], a & M]
        k = [(k[0] + 0x9E3779B9) & M, (k[1] + 0xBB67AE85) & M]
    return c


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def order(n, seed, epoch):
    bits = max(2, (n - 1).bit_length())
    low_bits = bits // 2
    high_bits = bits - low_bits
    key = (seed & M, seed >> 32)

    def word(half, step):
        return philox((half, step, epoch, int.from_bytes(b"ordr", "big")), key)[0]

    def permute(i):
        low, high = i % 2 ** low_bits, i >> low_bits
        for step in range(0, 16, 2):
            high ^= word(low, step) % 2 ** high_bits
            low ^= word(high, step + 1) % 2 ** low_bits
        return high << low_bits | low

    out = []
    for i in range(n):
        i = permute(i)
        while i >= n:
            i = permute(i)
        out.append(i)
    assert sorted(out) == list(range(n))
    return out


def main():
    cases = [(1, 0, 0), (2, 1, 0), (5, 7, 0), (10, 42, 0), (10, 42, 1), (64, 2**31 - 1, 3), (100, 2**40 + 5, 2)]
    rows = [{"seed": s, "epoch": e, "order": order(n, s, e)} for n, s, e in cases]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "order.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


if __name__ == "__main__":
    main()
