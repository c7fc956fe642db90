#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes format.json: for some ways to train an adapter for tests/golden/models/hf-f32 the options of `graft train`,
and what `peft` saves for the same: the tensors' names, types and shapes, and adapter_config.json.

Run from anywhere: tests/golden/adapters/format.py (torch 2.15, transformers 5.24, peft 0.21).
"""
import json
import os
import tempfile

from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "all": ([], dict(r=16, lora_alpha=32, target_modules=ALL)),
    "some": (["--lora-r", "3", "--lora-alpha", "7.5", "--lora-dropout", "0.25", "--target-modules", "v_proj",
              "--target-modules", "down_proj"],
             dict(r=3, lora_alpha=7.5, lora_dropout=0.25, target_modules=["v_proj", "down_proj"])),
    "rslora": (["--lora-r", "20", "--lora-alpha", "4", "--use-rslora", "--target-modules", "q_proj", "--target-modules",
                "o_proj", "--target-modules", "gate_proj"],
               dict(r=20, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "o_proj", "gate_proj"])),
}


def main():
    out = {}
    for name, (options, config) in CASES.items():
        base = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "../models/hf-f32"))
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **config))
        with tempfile.TemporaryDirectory() as to:
            model.save_pretrained(to)
            with open(os.path.join(to, "adapter_config.json"), encoding="utf-8") as f:
                saved = json.load(f)
            with safe_open(os.path.join(to, "adapter_model.safetensors"), framework="pt") as f:
                tensors = {k: [f.get_slice(k).get_dtype(), f.get_slice(k).get_shape()] for k in sorted(f.keys())}
        saved["target_modules"].sort()
        del saved["base_model_name_or_path"], saved["peft_version"]
        out[name] = {"options": options, "config": saved, "tensors": tensors}
    with open(os.path.join(HERE, "format.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1, sort_keys=True)
        f.write("\n")


main()
