#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/models/: tiny random Llama models in every format and weight type, and the
logits they must give.

    make-test-models.py [FOLDER] [--no-transformers]

The logits come from a reference written here in numpy, in f64 but for what a serving engine rounds
on purpose: K and V to bf16, and, in front of a quantised matrix, each row of activations in blocks
of 32 to int8 (scale max|x|/127, nearest even; an outlier, three times as large as any other value of
its block, is left out of the maximum and gets up to 127 * 128 steps). A second file of logits is for
CPUs that multiply bf16: there activations in front of a BF16 matrix, queries and attention's weights
are rounded to bf16, too. The same reference without that rounding is compared with transformers
(f32, eager attention, dequantised weights), so that it is not only we who say so.
tests/golden/models/README.md describes the files. Needs numpy, gguf, safetensors, tokenizers and,
without --no-transformers, torch and transformers.
"""
import argparse
import glob
import hashlib
import json
import os
import shutil
import struct

import numpy as np
from gguf import GGMLQuantizationType as QT
from gguf import GGUFReader, GGUFWriter, LlamaFileType, quants
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "models")
VOCAB = 288
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ("Ġ t|h e|i n|r e|o n|Ġt he|Ġ a|e r|n d|i s|o u|Ġ w|Ġ s|a t|e n|Ġ o|i t|o r|e s|a n|in g|Ġ c"
          "|Ġ b|Ġ m|e d|l l|a r|Ġ f|Ġa nd").split("|")
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
            "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
LLAMA3_SHAPE = dict(hidden=48, inter=64, heads=4, kv=2, dim=16, tied=False, theta=500.0,
                    rope=LLAMA3, seed=7)
QWEN3_SHAPE = dict(hidden=32, inter=96, heads=4, kv=2, dim=16, tied=True, seed=10, qk_norm=True,
                   theta=1000000.0)

# name: format, shape, type of the matrices (or of each), type of embedding and head
MODELS = {
    "f32.gguf": dict(hidden=32, inter=48, heads=2, kv=1, dim=16, tied=True, seed=1, type="F32"),
    "f16.gguf": dict(hidden=48, inter=80, heads=3, kv=3, dim=16, tied=True, seed=2, type="F16"),
    # heads * dim is not the hidden size
    "bf16.gguf": dict(hidden=48, inter=64, heads=6, kv=2, dim=16, tied=False, seed=3, type="BF16"),
    "q8_0.gguf": dict(hidden=64, inter=96, heads=2, kv=1, dim=32, tied=True, seed=4, type="Q8_0"),
    "q4_0.gguf": dict(hidden=64, inter=128, heads=4, kv=2, dim=16, tied=False, seed=5, type="Q4_0",
                      embed="Q8_0"),
    # the proportions of SmolLM2-135M
    "q4_1.gguf": dict(hidden=96, inter=128, heads=3, kv=1, dim=64, tied=True, seed=6, type="Q4_1",
                      embed="Q8_0", theta=100000.0),
    "mixed.gguf": dict(hidden=64, inter=96, heads=4, kv=2, dim=16, tied=True, seed=8, type="Q4_0",
                       embed="F16", types={"k_proj": "Q8_0", "v_proj": "F16", "up_proj": "Q4_1",
                                           "down_proj": "BF16"}),
    "llama3.gguf": dict(LLAMA3_SHAPE, type="BF16"),
    "hf-f32": dict(hidden=32, inter=48, heads=2, kv=1, dim=16, tied=True, seed=1, type="F32"),
    "hf-f16": dict(hidden=48, inter=80, heads=3, kv=3, dim=16, tied=True, seed=2, type="F16"),
    # the weights of llama3.gguf
    "hf-llama3": dict(LLAMA3_SHAPE, type="BF16", shards=3),
    # What the layer walk does for other families, with Llama's config around it: biases of q, k and
    # v, norms of q's and k's heads, a sliding window (transformers' Qwen3 has all three).
    "hf-walk": dict(hidden=48, inter=64, heads=4, kv=2, dim=16, tied=True, seed=9, type="F32",
                    qkv_bias=True, qk_norm=True, window=20),
    # Qwen3's layer, and the proportions of Qwen3-0.6B: heads x dim is twice the hidden size.
    "hf-qwen3": dict(QWEN3_SHAPE, type="F32"),
    "qwen3-bf16.gguf": dict(QWEN3_SHAPE, type="BF16"),
    "qwen3-q8_0.gguf": dict(QWEN3_SHAPE, type="Q8_0"),
}
GGUF_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
              "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
LAYERS = 2
CONTEXT = 256
EPS = 1e-5


# --- weights -------------------------------------------------------------------------------------

def shapes(m):
    q, kv = m["heads"] * m["dim"], m["kv"] * m["dim"]
    out = {"model.embed_tokens.weight": (VOCAB, m["hidden"]), "model.norm.weight": (m["hidden"],)}
    if not m["tied"]:
        out["lm_head.weight"] = (VOCAB, m["hidden"])
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        out |= {p + "input_layernorm.weight": (m["hidden"],),
                p + "self_attn.q_proj.weight": (q, m["hidden"]),
                p + "self_attn.k_proj.weight": (kv, m["hidden"]),
                p + "self_attn.v_proj.weight": (kv, m["hidden"]),
                p + "self_attn.o_proj.weight": (m["hidden"], q),
                p + "post_attention_layernorm.weight": (m["hidden"],),
                p + "mlp.gate_proj.weight": (m["inter"], m["hidden"]),
                p + "mlp.up_proj.weight": (m["inter"], m["hidden"]),
                p + "mlp.down_proj.weight": (m["hidden"], m["inter"])}
        if m.get("qkv_bias"):
            out |= {p + f"self_attn.{x}_proj.bias": (n,) for x, n in (("q", q), ("k", kv), ("v", kv))}
        if m.get("qk_norm"):
            out |= {p + f"self_attn.{x}_norm.weight": (m["dim"],) for x in "qk"}
    return out


def random_weights(m):
    """Scaled so that attention is far from uniform and logits are a few units wide."""
    rng = np.random.default_rng(m["seed"])
    out = {}
    for name, shape in shapes(m).items():
        w = rng.standard_normal(shape)
        if name.endswith(".bias"):
            w *= 0.5
        elif len(shape) == 1:
            w = round_bf16(1 + 0.3 * w)  # norms: the same in every format
        elif "embed" in name or "lm_head" in name:
            w *= 2.5 / np.sqrt(shape[1])
        else:
            w *= (2.0 if "q_proj" in name or "k_proj" in name else 1.0) / np.sqrt(shape[1])
        out[name] = w.astype(np.float32)
    return out


def type_of(m, name, shape):
    if len(shape) == 1:
        return QT.F32
    if "embed" in name or "lm_head" in name:
        # an untied 4-bit head is 4-bit
        return QT[m.get("embed", m["type"]) if "embed" in name else m["type"]]
    return QT[m.get("types", {}).get(name.split(".")[-2], m["type"])]


def encode(w, qtype):
    """The stored form, and the values that it stands for."""
    if qtype == QT.F16:
        stored = w.astype(np.float16)
        return stored, stored.astype(np.float32)
    stored = quants.quantize(w, qtype)
    return stored, quants.dequantize(stored, qtype).reshape(w.shape).astype(np.float32)


# --- the reference -------------------------------------------------------------------------------

def round_bf16(x):
    return quants.dequantize(quants.quantize(x.astype(np.float32), QT.BF16), QT.BF16).reshape(x.shape)


def q8_steps(x):
    """Blocks of 32, in steps that are whole once rounded; the step; top and second magnitude."""
    b = x.astype(np.float32).reshape(-1, 32)
    second, top = np.sort(np.abs(b), axis=-1)[:, -2:, None].transpose(1, 0, 2)
    step = np.where(3 * second <= top, np.maximum(second / 127, top / (127 * 128)), top / 127)
    return np.divide(b, step, where=step > 0, out=np.zeros_like(b)), step.astype(np.float64), top, second


def round_q8(x):
    steps, step, _, _ = q8_steps(x)
    return (np.rint(steps) * step).reshape(x.shape)


def inv_freq(m):
    d = m["dim"]
    f = (1.0 / (m.get("theta", 10000.0) ** (np.arange(0, d, 2, dtype=np.float32) / np.float32(d))))
    f = f.astype(np.float32)
    return f / rope_factors(m).astype(np.float32) if m.get("rope") else f


def rope_factors(m):
    """What llama3 scaling divides each frequency by (what converters store as rope_freqs)."""
    s, d = m["rope"], m["dim"]
    f = 1.0 / (m["theta"] ** (np.arange(0, d, 2) / d))
    context = s["original_max_position_embeddings"]
    wave = 2 * np.pi / f
    smooth = (context / wave - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
    blend = 1 / ((1 - smooth) / s["factor"] + smooth)
    out = np.where(wave > context / s["low_freq_factor"], s["factor"], blend)
    return np.where(wave < context / s["high_freq_factor"], 1.0, out)


def q8_margin(x):
    """How near a value is to the boundary between two integers, or a block to the one between having
    an outlier and not, in units of what f32 noise may move it."""
    steps, _, top, second = q8_steps(x)
    noise = 1e-4 * np.maximum(np.abs(steps) / 127, 1)
    whole = (np.abs(np.abs(steps) % 1 - 0.5) / noise).min()
    return min(whole, (np.abs(3 * second - top) / np.where(top > 0, top, 1)).min() * 127 / 1e-4)


def bf16_margin(x):
    low = np.abs(x).astype(np.float32).view(np.uint32).astype(np.int64) & 0xFFFF
    return np.abs(low - 0x8000).min() / 80


class Reference:
    """rounding: "" for none, "usual", or "bf16" for CPUs that multiply bf16."""

    def __init__(self, m, weights, types, rounding):
        self.m, self.types, self.rounding = m, types, rounding
        self.w = {k: v.astype(np.float64) for k, v in weights.items()}
        self.margin = np.inf  # the least of all rounded values; above 1 f32 rounds as f64 does

    def linear(self, x, name):
        if self.rounding and self.types[name] in (QT.Q8_0, QT.Q4_0, QT.Q4_1):
            self.margin = min(self.margin, q8_margin(x))
            x = round_q8(x)
        elif self.rounding == "bf16" and self.types[name] == QT.BF16:
            x = self.to_bf16(x)
        bias = self.w.get(name.removesuffix("weight") + "bias")
        return x @ self.w[name].T + (0 if bias is None else bias)

    def to_bf16(self, x):
        self.margin = min(self.margin, bf16_margin(x))
        return round_bf16(x).astype(np.float64)

    def heads(self, x, p, which, heads):
        x = self.linear(x, f"{p}{which}_proj.weight").reshape(-1, heads, self.m["dim"])
        return self.norm(x, f"{p}{which}_norm.weight") if self.m.get("qk_norm") and which != "v" else x

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float64(np.float32(EPS))) * self.w[name]

    def rotate(self, x):
        angle = np.outer(np.arange(x.shape[0]), inv_freq(self.m).astype(np.float64))
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    def attention(self, x, p):
        m, n = self.m, x.shape[0]
        q = self.rotate(self.heads(x, p, "q", m["heads"]))
        k = self.rotate(self.heads(x, p, "k", m["kv"]))
        v = self.heads(x, p, "v", m["kv"])
        q *= np.log2(np.e) / np.sqrt(m["dim"])
        if self.rounding:
            k, v = self.to_bf16(k), self.to_bf16(v)
        if self.rounding == "bf16":
            q = self.to_bf16(q)
        k, v = (np.repeat(t, m["heads"] // m["kv"], axis=1) for t in (k, v))
        score = np.einsum("ihd,jhd->hij", q, k)
        seen = np.tril(np.ones((n, n), bool))
        if m.get("window"):
            seen &= ~np.tril(seen, -m["window"])
        score = np.where(seen, score, -np.inf)
        e = np.exp2(score - score.max(-1, keepdims=True))
        if self.rounding == "bf16":
            e = self.to_bf16(e)
        out = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v)
        return self.linear(out.reshape(n, -1), p + "o_proj.weight")

    def logits(self, ids):
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(LAYERS):
            p = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, p + "input_layernorm.weight"), p + "self_attn.")
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate, up = (self.linear(h, p + f"mlp.{n}_proj.weight") for n in ("gate", "up"))
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, p + "mlp.down_proj.weight")
        head = "model.embed_tokens.weight" if self.m["tied"] else "lm_head.weight"
        return self.linear(self.norm(x, "model.norm.weight"), head)


# --- files ---------------------------------------------------------------------------------------

def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(m.split(" ")) for m in MERGES]
    tokens = SPECIALS + alphabet + [a + b for a, b in merges]
    assert len(tokens) == len(set(tokens)) == VOCAB
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True) for s in SPECIALS])
    return t, tokens


def permute(w, heads):
    """Neighbouring pairs instead of halves, as GGUF files of Llama models have q and k."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def gguf_name(name):
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
                "model.norm.weight": "output_norm.weight"}[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def write_gguf(path, m, weights):
    w = GGUFWriter(path, "llama")
    w.add_name("tiny " + os.path.basename(path).removesuffix(".gguf"))
    w.add_file_type(LlamaFileType["ALL_F32" if m["type"] == "F32" else "MOSTLY_" + m["type"]])
    w.add_block_count(LAYERS)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(m["hidden"])
    w.add_feed_forward_length(m["inter"])
    w.add_head_count(m["heads"])
    w.add_head_count_kv(m["kv"])
    if m["heads"] * m["dim"] != m["hidden"]:
        w.add_key_length(m["dim"])
        w.add_value_length(m["dim"])
    w.add_rope_dimension_count(m["dim"])
    w.add_rope_freq_base(m.get("theta", 10000.0))
    w.add_layer_norm_rms_eps(EPS)
    w.add_vocab_size(VOCAB)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    tokens = tokenizer()[1]
    w.add_token_list(tokens)
    w.add_token_types([3 if t in SPECIALS else 1 for t in tokens])
    w.add_token_merges(MERGES)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    if m.get("rope"):
        w.add_tensor("rope_freqs.weight", rope_factors(m).astype(np.float32))
    values, types = {}, {}
    for name, x in weights.items():
        types[name] = type_of(m, name, x.shape)
        stored, values[name] = encode(x, types[name])
        heads = m["heads"] if "q_proj" in name else m["kv"] if "k_proj" in name else 0
        if heads:
            stored = permute(stored, heads)
        w.add_tensor(gguf_name(name), stored, raw_dtype=types[name])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return values, types


def hf_config(m):
    """hf-llama3 as transformers 4 writes it, hf-f16 as transformers 5 does."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
              "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "head_dim": m["dim"],
              "hidden_size": m["hidden"], "intermediate_size": m["inter"], "mlp_bias": False,
              "max_position_embeddings": CONTEXT, "num_attention_heads": m["heads"],
              "num_hidden_layers": LAYERS, "num_key_value_heads": m["kv"], "rms_norm_eps": EPS,
              "tie_word_embeddings": m["tied"], "vocab_size": VOCAB,
              "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[m["type"]]}
    theta = m.get("theta", 10000.0)
    if m["type"] == "F16":
        config["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    else:
        config |= {"rope_theta": theta, "rope_scaling": m.get("rope")}
    return config


def safetensors(path, tensors):
    """bf16 is no numpy type, so the file is put together here: raw bytes and their dtype's name."""
    header, at, data = {"__metadata__": {"format": "pt"}}, 0, b""
    for name, (dtype, shape, raw) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)
        f.write("\n")


def write_folder(path, m, weights):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    write_json(path, "config.json", hf_config(m))
    t, _ = tokenizer()
    write_json(path, "tokenizer.json", json.loads(t.to_str()))
    special = {"added_tokens_decoder": {str(i): {"content": s, "special": True, "lstrip": False,
                                                 "rstrip": False, "normalized": False,
                                                 "single_word": False}
                                        for i, s in enumerate(SPECIALS)},
               "bos_token": SPECIALS[1], "eos_token": SPECIALS[2], "add_prefix_space": False,
               "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT}
    if m["type"] == "F32":
        special["chat_template"] = TEMPLATE
    elif m["type"] == "F16":
        special["chat_template"] = [{"name": "tool_use", "template": "tools"},
                                    {"name": "default", "template": TEMPLATE}]
    else:
        special["chat_template"] = "{{ 'the file counts' }}"
        with open(os.path.join(path, "chat_template.jinja"), "w", encoding="utf-8") as f:
            f.write(TEMPLATE)
        write_json(path, "generation_config.json",
                   {"bos_token_id": 1, "eos_token_id": [2, 0], "do_sample": True,
                    "temperature": 0.6, "top_p": 0.9})
    write_json(path, "tokenizer_config.json", special)
    values, types, files, index = {}, {}, {}, {}
    shards = m.get("shards", 1)
    for i, (name, x) in enumerate(weights.items()):
        types[name] = QT[m["type"]]  # norms too
        stored, values[name] = encode(x, types[name])
        s = i * shards // len(weights) + 1
        file = f"model-{s:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
        files.setdefault(file, {})[name] = (m["type"], x.shape, stored.tobytes())
        index[name] = file
    for file, tensors in files.items():
        safetensors(os.path.join(path, file), tensors)
    if shards > 1:
        size = sum(len(t[2]) for f in files.values() for t in f.values())
        write_json(path, "model.safetensors.index.json",
                   {"metadata": {"total_size": size}, "weight_map": index})
    return values, types


# --- golden logits -------------------------------------------------------------------------------

def prompts(m, reference):
    """(ids, positions whose logits are kept); the longest fills more than two KV blocks.

    Random, but each token such that no value at its position lies near a rounding boundary: one that
    falls to the other side in f32 changes the values after it, many of which then do so too, and in
    the end the logits differ by a tenth of what the rounding itself does.
    """
    rng = np.random.default_rng(m["seed"] + 1000)
    out = []
    for n, keep in ((1, [0]), (7, [0, 3, 6]), (45, [0, 15, 16, 31, 32, 44])):
        ids = np.empty(0, np.int64)
        while len(ids) < n:
            longer = np.append(ids, rng.integers(0, VOCAB))
            reference.margin = np.inf
            reference.logits(longer)
            if reference.margin > 1:
                ids = longer
        out.append((ids, keep))
    return out


def qwen3_model(m, values):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(hidden_size=m["hidden"], intermediate_size=m["inter"], vocab_size=VOCAB,
                         num_hidden_layers=LAYERS, num_attention_heads=m["heads"],
                         num_key_value_heads=m["kv"], head_dim=m["dim"], rms_norm_eps=EPS,
                         max_position_embeddings=CONTEXT, tie_word_embeddings=m["tied"],
                         rope_parameters={"rope_type": "default",
                                          "rope_theta": m.get("theta", 10000.0)},
                         attention_bias=bool(m.get("qkv_bias")), max_window_layers=0,
                         use_sliding_window=bool(m.get("window")), sliding_window=m.get("window"),
                         attn_implementation="eager")
    kind = "sliding_attention" if m.get("window") else "full_attention"
    assert config.layer_types == [kind] * LAYERS
    model = Qwen3ForCausalLM(config).eval()
    state = {k: torch.from_numpy(v.copy()) for k, v in values.items()}
    for i in range(LAYERS) if m.get("qkv_bias") else ():  # their flag gives o a bias, too
        state[f"model.layers.{i}.self_attn.o_proj.bias"] = torch.zeros(m["hidden"])
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm_head.weight"]
    return model


def transformers_model(m, path, values):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, logging

    logging.disable_progress_bar()
    if m.get("qk_norm"):
        return qwen3_model(m, values)
    if os.path.isdir(path):  # also proves that the folder is one
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                    attn_implementation="eager").eval()
    rope = dict(m.get("rope") or {"rope_type": "default"}, rope_theta=m.get("theta", 10000.0))
    config = LlamaConfig(hidden_size=m["hidden"], intermediate_size=m["inter"], vocab_size=VOCAB,
                         num_hidden_layers=LAYERS, num_attention_heads=m["heads"],
                         num_key_value_heads=m["kv"], head_dim=m["dim"], rms_norm_eps=EPS,
                         max_position_embeddings=CONTEXT, tie_word_embeddings=m["tied"],
                         rope_parameters=rope, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    state = {k: torch.from_numpy(v.copy()) for k, v in values.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(k == "lm_head.weight" and m["tied"] for k in missing)
    return model


def check_transformers(model, exact, chosen):
    import torch

    worst = 0.0
    for ids, _ in chosen:
        with torch.inference_mode():
            theirs = model(torch.tensor(ids)[None]).logits[0].numpy().astype(np.float64)
        worst = max(worst, np.abs(theirs - exact.logits(ids)).max())
    assert worst < 2e-4, f"the reference and transformers differ by {worst}"
    return worst


def write_golden(path, chosen, modelled, exact):
    effect = 0.0
    with open(path, "wb") as f:
        f.write(struct.pack("<4sIII", b"GLGT", 1, VOCAB, len(chosen)))
        for ids, keep in chosen:
            logits = modelled.logits(ids)[keep]
            effect = max(effect, np.abs(logits - exact.logits(ids)[keep]).max())
            f.write(struct.pack("<II", len(ids), len(keep)))
            f.write(np.asarray(ids, "<i4").tobytes() + np.asarray(keep, "<i4").tobytes())
            f.write(logits.astype("<f4").tobytes())
    return effect


def raw_tensors(path, names):
    """(name, dtype, shape, bytes) as the gguf and safetensors packages read them back."""
    if os.path.isfile(path):
        tensors = {t.name: t for t in GGUFReader(path).tensors}
        for name in names:
            t = tensors[gguf_name(name)]
            yield name, t.tensor_type.name, [int(d) for d in t.shape[::-1]], t.data.tobytes()
        return
    import torch
    from safetensors import safe_open

    types = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with safe_open(file, framework="pt") as f:
            for name in f.keys():
                t = f.get_tensor(name)
                yield name, types[t.dtype], list(t.shape), t.view(torch.uint8).numpy().tobytes()


def digest(path):
    """As sha256sum prints it; of a folder, that of what sha256sum prints for its files."""
    if os.path.isfile(path):
        return hashlib.sha256(open(path, "rb").read()).hexdigest()
    first = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
             "chat_template.jinja", "model.safetensors.index.json"]
    names = [n for n in first if os.path.exists(os.path.join(path, n))]
    names += [n for n in sorted(os.listdir(path)) if n.endswith(".safetensors")]
    lines = "".join(f"{digest(os.path.join(path, n))}  {n}\n" for n in names)
    return hashlib.sha256(lines.encode()).hexdigest()


def write_listing(folder):
    with open(os.path.join(folder, "tensors.txt"), "w", encoding="utf-8") as f:
        for name, m in MODELS.items():
            path = os.path.join(folder, name)
            f.write(f"model {name} {digest(path)}\n")
            for tensor, dtype, shape, raw in sorted(raw_tensors(path, shapes(m))):
                sha = hashlib.sha256(raw).hexdigest()[:32]
                f.write(f"{tensor} {dtype} {'x'.join(map(str, shape))} {sha}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=ROOT)
    parser.add_argument("--no-transformers", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    for name, m in MODELS.items():
        path = os.path.join(args.folder, name)
        write = write_gguf if name.endswith(".gguf") else write_folder
        values, types = write(path, m, random_weights(m))
        exact = Reference(m, values, types, "")
        chosen, effects = [], []
        for rounding, suffix in (("usual", ""), ("bf16", ".bf16")):
            modelled = Reference(m, values, types, rounding)
            chosen.append(prompts(m, modelled))
            effects.append(write_golden(path + suffix + ".logits", chosen[-1], modelled, exact))
        line = "{}: rounding moves logits by up to {:.2e} (usual), {:.2e} (bf16)".format(name, *effects)
        if not args.no_transformers:
            worst = check_transformers(transformers_model(m, path, values), exact, sum(chosen, []))
            line += f"; exact reference within {worst:.1e} of transformers"
        print(line, flush=True)
    if not args.no_transformers:
        write_listing(args.folder)


if __name__ == "__main__":
    main()
