#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rope.txt: rotated q and k of transformers' Llama and Qwen3 attention (which normalises each
head first), in float64. Needs torch and transformers.  Usage: make_rope.py > rope.txt

One case:  <dim> <heads> <kv heads> <normalised> <tokens>, then inv_freq[dim / 2], q_norm[dim] and
k_norm[dim] (if normalised), and per token: its position, q and k before, q and k after.
"""
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
EPS = 1e-6


def line(t):
    print(" ".join("%.9g" % v for v in t.reshape(-1).tolist()))


def f32(*shape):
    return torch.randn(*shape).float().double()


def case(dim, heads, kv_heads, normalised, base, positions):
    inv = (1.0 / base ** (torch.arange(0, dim, 2).double() / dim)).float().double()
    pos = torch.tensor(positions)
    n = len(positions)
    q, k = f32(1, heads, n, dim), f32(1, kv_heads, n, dim)
    angles = torch.outer(pos.double(), inv)
    angles = torch.cat((angles, angles), -1)[None]
    print(dim, heads, kv_heads, int(normalised), n)
    line(inv)
    a, b = q, k
    if normalised:
        norms = [Qwen3RMSNorm(dim, EPS) for _ in range(2)]
        for m in norms:
            # the module computes in float32; only its weight is used
            m.weight.data = f32(dim)
            line(m.weight)
        a, b = (
            m.weight * t / torch.sqrt(t.pow(2).mean(-1, keepdim=True) + EPS)
            for m, t in zip(norms, (q, k))
        )
    a, b = apply_rotary_pos_emb(a, b, angles.cos(), angles.sin())
    for i in range(n):
        print(positions[i])
        for t in (q, k, a, b):
            line(t[0, :, i])


case(16, 2, 1, False, 10000.0, [0, 1, 2, 77, 4095])
case(64, 3, 1, False, 100000.0, [0, 5, 131071])
case(24, 2, 2, False, 500000.0, [3, 1000, 65537])
case(40, 2, 1, True, 1000000.0, [0, 9, 12345])
