#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden runs of the whole trainer, from a JSONL file to the trained adapter: supervised, with dropout, and DPO.

Run from the source tree's root: tests/golden/finetune/curves.py [NAME...] (numpy 2.4, torch 2.15, tokenizers 0.23,
jinja2 3.1). Writes sft.jsonl, pairs.jsonl and NAME.curve beside itself, for the model tests/golden/models/f32.gguf.

Everything is written here a second time: the text by jinja2, its ids by the tokenizers package, the mask, the order of
samples (../dataset/order.py), the learning rates, dropout's noise (kernels/lora.h; a token's key: Philox of (token,
epoch, 0, sample; seed)), DPO's loss as in its paper, with PyTorch's logsigmoid. Rows are not packed, each sequence
stands for itself. The steps are PyTorch's AdamW and clip_grad_norm_. reference.py says what is rounded.

Format, little-endian:
    char magic[4] = "GLFC"; u32 version = 1, dpo; u32 r; f32 alpha; u32 rslora, targets (bits); f32 dropout;
    u32 epochs, batch_size, warmup; u64 seed; f64 lr, beta1, beta2, eps, decay, max_norm, beta
    per layer, per trained target: u32 n, k; f32 A[r][k], B[n][r] before; f32 A[r][k], B[n][r] after
    u32 steps; per step: f64 mean loss, gradient's norm before clipping, and what noise has done to the two up to here
    f64 for DPO, over all pairs after the last step: sum of log-ratios of the preferred answers, and of the others
    f64 of the data after the last step, without dropout: mean loss, accuracy (of tokens; DPO: share of pairs whose
        preferred answer gained more)
"""
import functools
import json
import math
import os
import struct
import sys

import jinja2
import numpy as np
import torch
from tokenizers import Tokenizer

from reference import HERE, Adapter, Base, Noise, Reference, adamw, f32, load, models

order = load("order", "../dataset/order.py")
TOKENIZER = Tokenizer.from_file(os.path.join(models.ROOT, "hf-f32", "tokenizer.json"))
RENDER = jinja2.Template(models.TEMPLATE).render
END = "<|im_end|>"
COMMON = dict(epochs=6, batch=4, warmup=2, seed=11, lr=2e-3, beta1=0.9, beta2=0.99, eps=1e-6, decay=0.01, max_norm=1.0,
              beta=0.0, dropout=0.0, adapter={})
RUNS = {
    "sft": dict(COMMON, data="sft"),
    "dropout": dict(COMMON, data="sft", dropout=0.25, seed=2**33 + 5,
                    adapter=dict(r=3, alpha=5.0, rslora=True, targets=[0, 1, 2, 5, 6])),
    "dpo": dict(COMMON, data="pairs", beta=0.05, lr=3e-4, seed=3),
}


def lines():
    words = ["the", "and", "in", "an", "wo", "se", "ti", "er"]
    ask = [f"{words[i % 8]} {i * 7 % 13}?" for i in range(14)]
    sft = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": words[i * 3 % 8] * (1 + i % 3)}]}
           for i, q in enumerate(ask)]
    pairs = [{"input": {"messages": [{"role": "user", "content": q}]},
              "preferred_output": [{"role": "assistant", "content": f"{words[i % 5]} yes"}],
              "non_preferred_output": [{"role": "assistant", "content": f"no{i % 4}"}]} for i, q in enumerate(ask)]
    return {"sft": sft, "pairs": pairs}


def sequence(messages):
    """ids, mask: what the assistant says at the end, and the token that ends it."""
    text = RENDER(messages=messages, add_generation_prompt=False)
    begin = len(RENDER(messages=messages[:-1], add_generation_prompt=True))
    end = text.rindex(END) + len(END)
    e = TOKENIZER.encode(text, add_special_tokens=False)
    return e.ids, [begin <= at < end for at, _ in e.offsets]


def sequences(line):
    if "messages" in line:
        return [sequence(line["messages"])]
    return [sequence(line["input"]["messages"] + line[k]) for k in ("preferred_output", "non_preferred_output")]


@functools.cache
def kept(seed, epoch, sample, module, tokens, features, p):
    keep = np.empty((tokens, features), bool)
    for token in range(tokens):
        key = order.philox((token, epoch, 0, sample), (seed & order.M, seed >> 32))[:2]
        words = {c: order.philox((c, module, 0, 0), key) for c in {f // 64 * 16 + f % 16 for f in range(features)}}
        keep[token] = [words[f // 64 * 16 + f % 16][f // 16 % 4] / 2**32 >= p for f in range(features)]
    return torch.tensor(keep)


def dropout(run, epoch, sample, p):
    return lambda module, x: x * kept(run["seed"], epoch, sample, module, *x.shape, p) / (1 - p)


def rate(run, step, steps):
    """Linear to lr over the warm-up, then half a cosine that would be zero one step after the last."""
    if step <= run["warmup"]:
        return run["lr"] * step / run["warmup"]
    done = (step - run["warmup"] - 1) / (steps - run["warmup"])
    return run["lr"] * 0.5 * (1 + math.cos(math.pi * done))


class Trainer:
    def __init__(self, base, run, data):
        self.base, self.run, self.data = base, run, data
        self.a = Adapter(base, np.random.default_rng(1), **run["adapter"])

    def losses(self, sample, adapter, epoch=None):
        """Of each of the sample's sequences."""
        noise = None
        if self.run["dropout"] and epoch is not None:
            noise = dropout(self.run, epoch, sample, self.run["dropout"])
        return [Reference(self.base, adapter, "usual", noise).losses(*s) for s in self.data[sample]]

    def log_ratios(self, sample):
        with torch.no_grad():
            reference = [x.sum() for x in self.losses(sample, None)]
        return [r - x.sum() for r, x in zip(reference, self.losses(sample, self.a))]

    def loss(self, samples, epoch):
        if not self.run["beta"]:
            losses = torch.cat([x for s in samples for x in self.losses(s, self.a, epoch)])
            return losses.sum() / len(losses)
        z = []
        for s in samples:
            chosen, rejected = self.log_ratios(s)
            z.append(self.run["beta"] * (chosen - rejected))
        return -torch.nn.functional.logsigmoid(torch.stack(z)).mean()

    def evaluate(self):
        losses, hits = [], []
        with torch.no_grad():
            for i, sample in enumerate(self.data):
                if self.run["beta"]:
                    chosen, rejected = self.log_ratios(i)
                    losses.append(-torch.nn.functional.logsigmoid(self.run["beta"] * (chosen - rejected)).item())
                    hits.append((chosen > rejected).item())
                    continue
                for ids, mask in sample:
                    logits = Reference(self.base, self.a, "usual").logits(ids)
                    losses += self.losses(i, self.a)[0].tolist()
                    hits += (logits[:-1].argmax(-1) == torch.tensor(ids[1:]))[torch.tensor(mask[1:])].tolist()
        return np.mean(losses), np.mean(hits)

    def train(self):
        parameters, n, b = self.a.parameters(), len(self.data), self.run["batch"]
        optimizer, out = adamw(parameters, self.run), []
        per_epoch = -(-n // b)
        steps = per_epoch * self.run["epochs"]
        for epoch in range(self.run["epochs"]):
            samples = order.order(n, self.run["seed"], epoch)
            for i in range(per_epoch):
                loss = self.loss(samples[i * b:(i + 1) * b], epoch)
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(parameters, self.run["max_norm"])
                optimizer.param_groups[0]["lr"] = rate(self.run, epoch * per_epoch + i + 1, steps)
                optimizer.step()
                out.append((loss.item(), norm.item()))
        ratios = [0.0, 0.0]
        if self.run["beta"]:
            with torch.no_grad():
                ratios = np.array([[x.item() for x in self.log_ratios(s)] for s in range(n)]).sum(0)
        return np.array(out), torch.cat([p.detach().flatten() for p in parameters]).numpy(), ratios


def make(name, data):
    base, run, results = Base("f32"), RUNS[name], []
    for i in range(9):
        Noise.rng = np.random.default_rng(i) if i else None
        t = Trainer(base, run, data)
        results.append(t.train())
        first = first if i else t
    Noise.rng = None
    curve, weights, ratios = results[0]
    spread = np.maximum.accumulate(np.max([np.abs(r[0] - curve) for r in results[1:]], 0))
    a, before = first.a, Trainer(base, run, data).a
    change = weights - torch.cat([p.detach().flatten() for p in before.parameters()]).numpy()
    moved = np.max([np.linalg.norm(r[1] - weights) for r in results[1:]]) / np.linalg.norm(change)
    out = struct.pack("<4sIIIfIIf", b"GLFC", 1, bool(run["beta"]), a.r, a.alpha, a.rslora,
                      sum(1 << t for t in a.targets), run["dropout"])
    out += struct.pack("<IIIQ", run["epochs"], run["batch"], run["warmup"], run["seed"])
    out += struct.pack("<7d", *(run[k] for k in ("lr", "beta1", "beta2", "eps", "decay", "max_norm", "beta")))
    for key, (x, y) in a.pairs.items():
        out += struct.pack("<II", y.shape[0], x.shape[1]) + b"".join(f32(v) for v in before.pairs[key]) + f32(x) + f32(y)
    out += struct.pack("<I", len(curve)) + np.concatenate([curve, spread], 1).astype("<f8").tobytes()
    evaluation = first.evaluate()
    out += struct.pack("<4d", *ratios, *evaluation)
    with open(os.path.join(HERE, name + ".curve"), "wb") as f:
        f.write(out)
    print("{}: {} bytes, {} steps, loss {:.4f} to {:.4f}; noise moves it by {:.1e}, the norm by {:.1e}, what is learnt by {:.1e};"
          " log-ratios {:.2f}, {:.2f}; evaluation {:.4f}, {:.3f}".format(name, len(out), len(curve), curve[0, 0], curve[-1, 0],
                                             *(spread / curve).max(0), moved, *ratios, *evaluation), flush=True)


def main():
    data = lines()
    for key, found in data.items():
        with open(os.path.join(HERE, key + ".jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line in found)
    for name in sys.argv[1:] or RUNS:
        make(name, [sequences(line) for line in data[RUNS[name]["data"]]])


if __name__ == "__main__":
    main()
