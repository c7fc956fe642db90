#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes this folder: PEFT adapters for two of tests/golden/models/, as `peft` saves them, and the logits
that model and adapter must give together.

    make.py            writes the adapters and their logits
    make.py --check    checks what is here against `peft`, writes nothing

The logits come from the reference of scripts/make-test-models.py, in f64, with the adapter's product
added to each linear layer: y = W x + scale * B (A x), where W multiplies what is rounded and A does not.
Without that rounding the reference must be what `peft` and transformers compute in f32. Format of the
.logits files and the rounding: tests/golden/models/README.md. Needs numpy, gguf, safetensors,
tokenizers, torch, transformers and peft.
"""
import importlib.util
import json
import os
import shutil
import sys

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location(
    "models", os.path.join(HERE, "..", "..", "..", "scripts", "make-test-models.py"))
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)

BASE = "hf-f32"
# name: base, dtypes of A and B as stored, what the LoraConfig says
ADAPTERS = {
    "all": (BASE, torch.float32, torch.float32,
            dict(r=8, lora_alpha=16, target_modules="all-linear", lora_dropout=0.05)),
    "qv": (BASE, torch.float32, torch.float32,
           dict(r=4, lora_alpha=10, target_modules=r"model\.layers\.\d+\.self_attn\.[qv]_proj")),
    "rslora": (BASE, torch.float32, torch.float32,
               dict(r=16, lora_alpha=7, use_rslora=True, layers_to_transform=[1],
                    layers_pattern="layers", target_modules=["o_proj", "gate_proj", "up_proj"])),
    "patterns": (BASE, torch.float16, torch.bfloat16,
                 dict(r=5, lora_alpha=8, target_modules=["q_proj", "k_proj", "down_proj", "up_proj"],
                      exclude_modules=["layers.0.mlp.up_proj"],
                      rank_pattern={"k_proj": 1, r"layers\.1\..*(q|up)_proj": 17, "q_proj": 3},
                      alpha_pattern={"1.mlp.down_proj": 2.5, "q_proj": 12})),
    "quantised": ("q4_1.gguf", torch.float32, torch.float32,
                  dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "up_proj",
                                                          "down_proj"])),
}


def base_of(name):
    """Shape, values and stored types of a model of tests/golden/models/."""
    m = models.MODELS[name]
    values, types = {}, {}
    for key, w in models.random_weights(m).items():
        types[key] = models.type_of(m, key, w.shape) if name.endswith(".gguf") else models.QT[m["type"]]
        _, values[key] = models.encode(w, types[key])
    return m, values, types


class WithAdapter(models.Reference):
    def __init__(self, m, values, types, rounding, pairs):
        super().__init__(m, values, types, rounding)
        self.pairs = pairs

    def linear(self, x, name):
        y = super().linear(x, name)
        if name.removesuffix(".weight") in self.pairs:
            a, b, scale = self.pairs[name.removesuffix(".weight")]
            y = y + scale * (x @ a.T @ b.T)
        return y


def pairs_of(model):
    """What peft computes with: module -> A, B, scale."""
    out = {}
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            a, b = (getattr(module, s)["default"].weight.detach().double().numpy()
                    for s in ("lora_A", "lora_B"))
            out[name.removeprefix("base_model.model.")] = (a, b, module.scaling["default"])
    return out


def sort_targets(path):
    """peft keeps them in a set, so their order changes from run to run."""
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps(config, indent=2, sort_keys=True))


def make(name, folder):
    base, dtype_a, dtype_b, config = ADAPTERS[name]
    m, values, _ = base_of(base)
    torch.manual_seed(len(name))
    model = get_peft_model(models.transformers_model(m, os.path.join(models.ROOT, base), values),
                           LoraConfig(task_type="CAUSAL_LM", **config))
    for key, p in model.named_parameters():
        if "lora_" in key:  # B begins as zero
            side_b = "lora_B" in key
            width = 0.3 if side_b else 1.5 / p.shape[1] ** 0.5
            p.data = (torch.randn(p.shape) * width).to(dtype_b if side_b else dtype_a)
    shutil.rmtree(folder, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    sort_targets(os.path.join(folder, "adapter_config.json"))


def load(name, folder):
    base = ADAPTERS[name][0]
    m, values, types = base_of(base)
    model = models.transformers_model(m, os.path.join(models.ROOT, base), values)
    return m, values, types, PeftModel.from_pretrained(model, folder).float().eval()


def check(name, folder, chosen=None):
    m, values, types, model = load(name, folder)
    pairs = pairs_of(model)
    with safe_open(os.path.join(folder, "adapter_model.safetensors"), framework="pt") as f:
        assert len(f.keys()) == 2 * len(pairs)
    plain = models.Reference(m, values, types, "")
    exact = WithAdapter(m, values, types, "", pairs)
    usual = WithAdapter(m, values, types, "usual", pairs)
    chosen = chosen or models.prompts(m, usual)
    worst = models.check_transformers(model, exact, chosen)
    effect = max(np.abs(exact.logits(i) - plain.logits(i)).max() for i, _ in chosen)
    assert effect > 0.5
    print(f"{name}: {len(pairs)} modules; peft within {worst:.1e}; changes logits by {effect:.1f}")
    return m, values, types, pairs, exact, usual, chosen


def main():
    for name in ADAPTERS:
        folder = os.path.join(HERE, name)
        if "--check" in sys.argv:
            check(name, folder)
            continue
        make(name, folder)
        m, values, types, pairs, exact, usual, chosen = check(name, folder)
        models.write_golden(folder + ".logits", chosen, usual, exact)
        bf16 = WithAdapter(m, values, types, "bf16", pairs)
        models.write_golden(folder + ".bf16.logits", models.prompts(m, bf16), bf16, exact)


if __name__ == "__main__":
    main()
