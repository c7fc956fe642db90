#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of fuzz_adapter: small adapters for the shape that the target has. Needs numpy and
safetensors."""
import json
import os

import numpy as np
from safetensors.numpy import save

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, INTER, HEADS, KV = 4, 6, 4, 4
SHAPES = {"self_attn.q_proj": (HEADS, HIDDEN), "self_attn.k_proj": (KV, HIDDEN),
          "self_attn.v_proj": (KV, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS),
          "mlp.gate_proj": (INTER, HIDDEN), "mlp.up_proj": (INTER, HIDDEN),
          "mlp.down_proj": (HIDDEN, INTER)}
SEEDS = {
    "list": (dict(target_modules=["q_proj", "v_proj"], r=2), ["q_proj", "v_proj"], (0, 1), np.float32),
    "regex": (dict(target_modules=r".*layers\.\d\.mlp\..*", r=1, use_rslora=True),
              ["gate_proj", "up_proj", "down_proj"], (0, 1), np.float16),
    "layers": (dict(target_modules=["o_proj"], r=2, layers_to_transform=[1], layers_pattern=["layers"],
                    exclude_modules=["k_proj"]), ["o_proj"], (1,), np.float32),
    "patterns": (dict(target_modules="all-linear", exclude_modules=".*(mlp|o_proj).*", r=2,
                      rank_pattern={"k_proj": 1, "layers.1.*(q|v)_proj": 3},
                      alpha_pattern={"v_proj": 0.5}), ["q_proj", "k_proj", "v_proj"], (0, 1), np.float32),
}


def rank(config, layer, name):
    if name == "k_proj" and "rank_pattern" in config:
        return 1
    if layer == 1 and "rank_pattern" in config:
        return 3
    return config["r"]


os.makedirs(os.path.join(HERE, "fuzz_adapter"), exist_ok=True)
for seed, (config, names, layers, dtype) in SEEDS.items():
    tensors = {}
    for layer in layers:
        for module, (n, k) in SHAPES.items():
            name = module.split(".")[1]
            if name in names:
                r, p = rank(config, layer, name), f"base_model.model.model.layers.{layer}.{module}.lora_"
                tensors[p + "A.weight"] = np.ones((r, k), dtype)
                tensors[p + "B.weight"] = np.ones((n, r), dtype)
    text = json.dumps(dict(peft_type="LORA", lora_alpha=8, bias="none", **config)).encode()
    with open(os.path.join(HERE, "fuzz_adapter", seed), "wb") as f:
        f.write(text + b"\0" + save(tensors, {"format": "pt"}))
