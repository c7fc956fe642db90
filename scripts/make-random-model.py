#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of a Llama model with random weights, in the shape that is asked for: how fast a
shape is, and whether it fits, does not depend on what the weights say.

    make-random-model.py FILE [--type bf16|q8_0|q4_0] [--layers 2] [--hidden 4096] [--heads 32]
                         [--kv-heads 8] [--head-dim 128] [--ffn 14336] [--vocab 32000] [--tied]

The defaults are the layer of an 8B model with Llama 2's vocabulary. Tokenizer and template are those
of make-test-models.py; the ids behind them are words without a merge. The seed is fixed. Needs what
make-test-models.py needs.
"""
import argparse
import importlib.util
import os

import numpy as np
from gguf import GGMLQuantizationType as QT
from gguf import GGUFWriter, LlamaFileType

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = {QT.Q8_0: 34, QT.Q4_0: 18}  # bytes of 32 values
PERIOD = 1 << 20  # rows are cut from so many random values, to save time


def load_models():
    spec = importlib.util.spec_from_file_location("models", os.path.join(HERE, "make-test-models.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes(a):
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    out = {"token_embd.weight": (a.vocab, a.hidden), "output_norm.weight": (a.hidden,)}
    if not a.tied:
        out["output.weight"] = (a.vocab, a.hidden)
    for i in range(a.layers):
        p = f"blk.{i}."
        out |= {p + "attn_norm.weight": (a.hidden,), p + "ffn_norm.weight": (a.hidden,),
                p + "attn_q.weight": (q, a.hidden), p + "attn_k.weight": (kv, a.hidden),
                p + "attn_v.weight": (kv, a.hidden), p + "attn_output.weight": (a.hidden, q),
                p + "ffn_gate.weight": (a.ffn, a.hidden), p + "ffn_up.weight": (a.ffn, a.hidden),
                p + "ffn_down.weight": (a.hidden, a.ffn)}
    return out


def matrix(rng, shape, qtype):
    """Values of variance 1 / k, as raw bytes; a random period is repeated from a random place."""
    n, k = shape
    std = 1 / np.sqrt(k)
    if qtype == QT.BF16:
        period = ((rng.standard_normal(PERIOD) * std).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        width = k
    else:
        blocks = rng.integers(0, 256, (PERIOD // 32, BLOCK[qtype]), dtype=np.uint8)
        step = std / (73 if qtype == QT.Q8_0 else 4.6)  # over the deviation of the whole numbers
        blocks[:, :2] = np.float16(step).reshape(1).view(np.uint8)
        period, width = blocks.reshape(-1), k // 32 * BLOCK[qtype]
    need = n * width
    start = int(rng.integers(0, PERIOD // 32)) * (BLOCK.get(qtype, 32))
    raw = np.tile(period, (start + need) // len(period) + 1)[start:start + need].reshape(n, width)
    return raw.view(np.uint8)


def write_tokens(w, models, vocab):
    tokens = models.tokenizer()[1]
    assert vocab >= len(tokens)
    tokens = tokens + [f"<word{i}>" for i in range(vocab - len(tokens))]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types([3 if t in models.SPECIALS else 1 for t in tokens])
    w.add_token_merges(models.MERGES)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(models.TEMPLATE)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("file")
    p.add_argument("--type", choices=["bf16", "q8_0", "q4_0"], default="bf16")
    for name, default in dict(layers=2, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000,
                              context=8192).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    p.add_argument("--tied", action="store_true")
    a = p.parse_args()
    qtype, models, rng = QT[a.type.upper()], load_models(), np.random.default_rng(1)
    w = GGUFWriter(a.file, "llama")
    w.add_name(f"random {a.type}")
    w.add_file_type(LlamaFileType["MOSTLY_" + a.type.upper()])
    w.add_block_count(a.layers)
    w.add_context_length(a.context)
    w.add_embedding_length(a.hidden)
    w.add_feed_forward_length(a.ffn)
    w.add_head_count(a.heads)
    w.add_head_count_kv(a.kv_heads)
    w.add_key_length(a.head_dim)
    w.add_value_length(a.head_dim)
    w.add_rope_dimension_count(a.head_dim)
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(a.vocab)
    write_tokens(w, models, a.vocab)
    for name, shape in shapes(a).items():
        if len(shape) == 1:
            w.add_tensor(name, np.ones(shape, np.float32))
        else:
            w.add_tensor(name, matrix(rng, shape, qtype), raw_dtype=qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{a.file}: {os.path.getsize(a.file) >> 20} MiB")


if __name__ == "__main__":
    main()
