#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of fuzz_gguf, fuzz_safetensors and fuzz_config: the smallest files that open.

Needs numpy and gguf; the others are taken from tests/golden/.
"""
import os

import numpy as np
from gguf import GGUFWriter

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "golden")
TOKENS = ["<|im_end|>", "a", "b", "ab", "c", "Ġ", "Ġa", "1", "2", "<s>", "d", "e"]


def seed(target, name):
    os.makedirs(os.path.join(HERE, target), exist_ok=True)
    return os.path.join(HERE, target, name)


def gguf(name, rope):
    w = GGUFWriter(seed("fuzz_gguf", name), "llama")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(8)
    w.add_feed_forward_length(8)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(1e4)
    w.add_rope_dimension_count(4)
    w.add_vocab_size(len(TOKENS))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(TOKENS)
    w.add_token_types([3] + [1] * 8 + [4, 1, 1])
    w.add_token_merges(["a b", "Ġ a"])
    w.add_eos_token_id(0)
    w.add_bos_token_id(9)
    w.add_chat_template("{{ x }}")
    w.add_array("general.languages", ["en"])
    if rope:
        w.add_tensor("rope_freqs.weight", np.ones(2, np.float32))
    for tensor, shape in (("token_embd.weight", (len(TOKENS), 8)), ("blk.0.attn_q.weight", (8, 8)),
                          ("output_norm.weight", (8,))):
        w.add_tensor(tensor, np.zeros(shape, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def safetensors():
    for line in open(os.path.join(GOLDEN, "safetensors", "cases.txt"), encoding="utf-8"):
        verdict, name, data = line.split()
        if verdict == "accept" and not name.startswith("dtype_"):
            with open(seed("fuzz_safetensors", name), "wb") as f:
                f.write(bytes.fromhex(data))


def config():
    for name in ("hf-f32", "hf-f16", "hf-llama3"):
        folder = os.path.join(GOLDEN, "models", name)
        text = open(os.path.join(folder, "config.json"), "rb").read()
        generation = os.path.join(folder, "generation_config.json")
        if os.path.exists(generation):
            text += b"\0" + open(generation, "rb").read()
        with open(seed("fuzz_config", name), "wb") as f:
            f.write(text)


gguf("plain.gguf", False)
gguf("rope_freqs.gguf", True)
safetensors()
config()
