#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden numbers of LoRA training: losses, the gradient of each A and B, twenty steps of AdamW, for each family and
type of weights.

Run from the source tree's root: tests/golden/finetune/make.py [NAME...] (numpy 2.4, gguf 0.19, torch 2.15,
transformers 5.24, peft 0.21). Writes NAME.train beside itself, and NAME.bf16.train for CPUs that multiply bf16.

reference.py says what is computed and rounded. Without rounding it is compared here with transformers and peft, and
with finite differences. Rows are random, but chosen so that in them nothing that is rounded lies within f32 noise of a
boundary. That cannot hold for twenty steps: what such noise may do to each step's numbers is measured, and kept beside
them.

Format, little-endian:
    char magic[4] = "GLFT"; u32 version = 2; u32 layers, r; f32 alpha; u32 rslora, targets (bits); u32 n_rows;
    per row: u32 n_tokens, n_seqs; i32 ids[n_tokens]; i32 seq_start[n_seqs + 1]; u8 mask[n_tokens];
             u32 n_targets; f32 losses[n_targets]
    per layer, per trained target (of q k v o gate up down): u32 n, k; f32 A[r][k], B[n][r], dA[r][k], dB[n][r]
             (gradients of the sum of all losses)
    u32 steps; f64 lr, beta1, beta2, eps, decay, max_norm; per step, each over the last row: f64 mean loss, gradient's
             norm before clipping, and what noise has done to the two
             up to this step
"""
import os
import struct
import sys

import numpy as np
import torch

from reference import HERE, Adapter, Base, Noise, Reference, adamw, f32, peft_model

STEPS = 20
ADAMW = dict(lr=1e-3, beta1=0.9, beta2=0.99, eps=1e-6, decay=0.01, max_norm=1.0)
# name: base, rounding, adapter
FILES = {name: (name, "usual", {}) for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "mixed", "llama3", "walk",
                                                  "walk-norm", "qwen3", "qwen3-bf16", "qwen3-q8_0")}
FILES |= {name + ".bf16": (name, "bf16", {}) for name in ("f32", "bf16", "q8_0", "llama3", "qwen3-bf16")}
FILES["f32-rslora"] = ("f32", "usual", dict(r=5, alpha=3.0, rslora=True, targets=[0, 2, 3, 6]))
# Where the search for rows begins. With seed 716 a value of step 13 lies so near a boundary that two ISA levels of an
# engine round it apart from the third, which none of the runs with noise shows.
FIRST_SEED = {"qwen3": 717}


def sequences(rng, base, rounding):
    """Rows of sequences (ids, mask); the first token of each is never a target."""
    rows = []
    # fewer tokens where more is rounded
    lengths = ((7,), (4, 2, 5), (2, 6))
    if rounding == "bf16":
        lengths = ((3,), (2, 2))
    elif base.quantised:
        lengths = ((4,), (2, 3, 2))
    for some in lengths:
        row = []
        for n in some:
            mask = rng.random(n) < 0.6
            mask[0], mask[-1] = False, True
            row.append((rng.integers(3, base.vocab, n).tolist(), mask.tolist()))
        rows.append(row)
    return rows


def losses_of(base, adapter, row, rounding):
    return torch.cat([Reference(base, adapter, rounding).losses(ids, mask) for ids, mask in row])


def compare_with_peft(base, adapter, rows):
    model, of = peft_model(base, adapter)
    ours = 0
    for row in rows:
        for ids, mask in row:
            labels = [t if m else -100 for t, m in zip(ids, mask)]
            out = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]))
            (out.loss * sum(mask)).backward()
            ours = ours + Reference(base, adapter, "").losses(ids, mask).sum()
    ours.backward()
    worst = 0
    for name, pair in adapter.pairs.items():
        for side, x in zip("AB", pair):
            theirs = of(name, side).grad.double()
            worst = max(worst, ((theirs - x.grad).abs().max() / x.grad.abs().max()).item())
            x.grad = None
    print(f"  against transformers and peft in f32: {worst:.1e}")
    assert worst < 2e-5


def finite_differences(base, adapter, rows):
    """Central differences in f64, of what is not rounded, along a random direction of each matrix."""
    rng, h, worst = np.random.default_rng(0), 1e-5, 0

    def total():
        return sum(losses_of(base, adapter, row, "").sum() for row in rows)
    total().backward()
    for x in adapter.parameters():
        d = torch.tensor(rng.standard_normal(x.shape))
        with torch.no_grad():
            slope = []
            for sign in (1, -1):
                x += sign * h * d
                slope.append(sign * total().item() / (2 * h))
                x -= sign * h * d
        expected = (x.grad * d).sum().item()
        worst = max(worst, abs(sum(slope) - expected) / (x.grad.norm() * d.norm()).item())
    for x in adapter.parameters():
        x.grad = None
    print(f"  against finite differences: {worst:.1e}")
    assert worst < 1e-6


def curve(base, new, row, rounding):
    adapter = new()
    parameters = adapter.parameters()
    optimizer, out = adamw(parameters, ADAMW), []
    for _ in range(STEPS):
        losses = losses_of(base, adapter, row, rounding)
        optimizer.zero_grad()
        losses.mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, ADAMW["max_norm"])
        optimizer.step()
        out.append((losses.mean().item(), norm.item()))
    return np.array(out)


def find_rows(base, make_adapter, rounding, first):
    for seed in range(first, 20000):
        rng = np.random.default_rng(seed)
        adapter, rows = make_adapter(rng), sequences(rng, base, rounding)
        Noise.least = np.inf
        with torch.no_grad():
            for row in rows:
                losses_of(base, adapter, row, rounding)
                if Noise.least < 1:
                    break
        if Noise.least >= 1:
            print(f"  seed {seed}, margin {Noise.least:.2f}")
            return seed, adapter, rows
    raise SystemExit("no rows without a value near a boundary")


def make(name):
    print(name, flush=True)
    base_name, rounding, options = FILES[name]
    base = Base(base_name)
    Noise.small = 1 / 64 if rounding == "bf16" else 0
    seed, adapter, rows = find_rows(base, lambda rng: Adapter(base, rng, **options), rounding,
                                    FIRST_SEED.get(name, 0))
    compare_with_peft(base, adapter, rows)
    finite_differences(base, adapter, rows)
    out = struct.pack("<4sIIIfIII", b"GLFT", 2, base.layers, adapter.r, adapter.alpha, adapter.rslora,
                      sum(1 << t for t in adapter.targets), len(rows))
    for row in rows:
        losses = losses_of(base, adapter, row, rounding)
        losses.sum().backward()
        ids = sum((s for s, _ in row), [])
        mask = sum((m for _, m in row), [])
        starts = np.cumsum([0] + [len(s) for s, _ in row])
        out += struct.pack("<II", len(ids), len(row)) + np.array(ids, "<i4").tobytes()
        out += starts.astype("<i4").tobytes() + bytes(mask) + struct.pack("<I", len(losses)) + f32(losses)
    for a, b in adapter.pairs.values():
        out += struct.pack("<II", b.shape[0], a.shape[1]) + f32(a) + f32(b) + f32(a.grad) + f32(b.grad)
    runs = []
    for i in range(17):
        Noise.rng = np.random.default_rng(i) if i else None
        runs.append(curve(base, lambda: Adapter(base, np.random.default_rng(seed), **options), rows[-1], rounding))
    Noise.rng = None
    spread = np.maximum.accumulate(np.abs(np.array(runs[1:]) - runs[0]).max(0))
    print("  loss %.3f to %.3f; noise moves it by %.1e, the norm by %.1e" % (
        runs[0][0, 0], runs[0][-1, 0], *(spread / runs[0]).max(0)))
    out += struct.pack("<I6d", STEPS, *ADAMW.values())
    out += np.concatenate([runs[0], spread], 1).astype("<f8").tobytes()
    with open(os.path.join(HERE, name + ".train"), "wb") as f:
        f.write(out)
    print(f"  {len(out)} bytes")


if __name__ == "__main__":
    for which in sys.argv[1:] or FILES:
        make(which)
