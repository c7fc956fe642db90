#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_dataset: files of lines, and caches by the layout that
finetune/dataset_internal.h describes. The first byte chooses what the rest is."""
import hashlib
import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_dataset")
VOCAB, MAX_LEN = 262, 4096


def sha(b):
    return hashlib.sha256(b).digest()


def cache(kind, samples):
    out = struct.pack("<8sI", b"graft-ds", 1).ljust(64, b"\0")
    index, tokens, supervised, longest = b"", 0, 0, 0
    for line, (a, b) in enumerate(samples, 1):
        words = [i | m << 31 for i, m in a + b]
        sample = struct.pack("<II%dI" % len(words), len(a), len(b), *words)
        targets = sum(m for _, m in a + b)
        index += struct.pack("<QIIIIq", len(out), len(a), len(b), targets, 0, line) + sha(sample)[:16]
        out += sample
        tokens += len(words)
        supervised += targets
        longest = max(longest, len(a), len(b))
    out += b"\0" * (-len(out) % 8)
    at, size = len(out), len(out) + len(index) + 512
    n = len(samples)
    numbers = [1, kind, n, n, tokens, supervised, longest, 0, 0, 0, 0, VOCAB, MAX_LEN, at, size, 0]
    trailer = (b"graft-ds" + struct.pack("<16q", *numbers)).ljust(256, b"\0")
    trailer += bytes(32) + bytes(32) + sha(index)
    trailer = trailer.ljust(480, b"\0")
    return out + index + trailer + sha(trailer)


def seq(*ids):
    return [(i, int(k > 1)) for k, i in enumerate(ids)]


def message(role, content, **more):
    return dict({"role": role, "content": content}, **more)


def main():
    os.makedirs(HERE, exist_ok=True)
    chat = cache(0, [(seq(260, 65, 66, 261), []), (seq(260, 70, 71), [])])
    pair = cache(2, [(seq(1, 2, 3), seq(1, 2, 4, 5))])
    u, a = message("user", "hi\u00e9"), message("assistant", "yes")
    lines = [
        {"messages": [u, a, u, message("assistant", [{"type": "text", "text": "no"}], weight=0)]},
        {"messages": [message("system", "s"), u, a], "tools": [{"x": 1}], "parallel_tool_calls": True},
    ]
    done = [{"prompt": "2 + 2 =", "completion": " 4"}, {"prompt": "", "completion": "</s>"}]
    prefer = [{"input": {"messages": [u]}, "preferred_output": [a],
               "non_preferred_output": [message("assistant", "never")]}]

    def text(rows):
        return "".join(json.dumps(r) + "\r\n" for r in rows).encode()

    seeds = {
        "cache_chat": b"\0" + chat, "cache_pair": b"\0" + pair,
        "sealed_chat": b"\1" + chat, "sealed_pair": b"\1" + pair,
        "lines_chat": b"\x22\xef\xbb\xbf" + text(lines), "lines_short": b"\x06" + text(lines),
        "lines_completion": b"\x22" + text(done), "lines_preference": b"\x23" + text(prefer),
    }
    for name, data in seeds.items():
        with open(os.path.join(HERE, name), "wb") as f:
            f.write(data)


main()
