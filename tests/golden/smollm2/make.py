#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden.json: what transformers computes, in f32 on dequantised weights, for SmolLM2.

    make.py golden.json FILE.gguf [FILE.gguf ...]

For each file, keyed by the type of its first layer's down projection: the negative log-likelihood
of passage.txt, window by window, and greedy continuations of a few prompts, with the gap between
the best and the second logit at each step. Token ids are stored, so that the test needs no
tokenizer. The passage is in the public domain: the Constitution of the United States, 1787, with
its amendments; the Declaration of Independence, 1776; Darwin, On the Origin of Species, 1859.
The files are SmolLM2-135M-Instruct's Q4_1 and what scripts/convert-model.py makes of it.
Needs torch, transformers, gguf.
"""
import json
import os
import sys

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 24
WINDOW = 1024  # tokens; each window starts anew
PROMPTS = [
    "The capital of France is",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived",
]


def weight_type(path):
    for t in GGUFReader(path).tensors:
        if t.name == "blk.0.ffn_down.weight":
            return t.tensor_type.name
    raise SystemExit(f"{path} has no layer 0")


@torch.inference_mode()
def greedy(model, ids):
    out, gaps = [], []
    for _ in range(STEPS):
        logits = model(torch.tensor([ids + out])).logits[0, -1].double()
        best = torch.topk(logits, 2)
        out.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 4))
    return {"ids": ids, "greedy": out, "gaps": gaps}


@torch.inference_mode()
def nll(model, ids):
    """Sum over all tokens but the first."""
    logits = model(torch.tensor([ids])).logits[0].double()
    logp = torch.log_softmax(logits[:-1], dim=-1)
    return float(-logp[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].sum())


def main():
    target, files = sys.argv[1], sys.argv[2:]
    golden = {"types": {}}
    for path in files:
        where, name = os.path.split(os.path.abspath(path))
        tok = AutoTokenizer.from_pretrained(where, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
        model.eval()
        with open(os.path.join(HERE, "passage.txt"), encoding="utf-8") as f:
            passage = tok(f.read(), add_special_tokens=False).input_ids
        windows = [passage[i:i + WINDOW] for i in range(0, len(passage), WINDOW)]
        golden["windows"] = windows
        prompts = [tok(p, add_special_tokens=False).input_ids for p in PROMPTS]
        golden["types"][weight_type(path)] = {
            "nll": [nll(model, w) for w in windows],
            "prompts": [greedy(model, p) for p in prompts],
        }
        print(name, len(passage), sum(golden["types"][weight_type(path)]["nll"]), flush=True)
    with open(target, "w", encoding="utf-8") as f:
        json.dump(golden, f, separators=(",", ":"))
        f.write("\n")


main()
