#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden numbers of LoRA training: losses, the gradient of each A and B, twenty steps of AdamW.

Run from the source tree's root: tests/golden/finetune/make.py (numpy 2.4, gguf 0.19, torch 2.15, transformers 5.24,
peft 0.21). Writes NAME.train beside itself for models of tests/golden/models.

The reference is PyTorch in f64 on the dequantised weights. It rounds where the engine rounds on purpose (K and V to
bf16; activations in front of a quantised matrix to int8 in blocks of 32), and lets the gradient pass as if it had not.
Without that rounding it is compared here with transformers and peft.
Rows are random, but chosen so that nothing that is rounded lies within f32 noise of a boundary; for the f32 model not
in the twenty steps either.

Format, little-endian:
    char magic[4] = "GLFT"; u32 version = 1; u32 layers, r; f32 alpha; u32 n_rows;
    per row: u32 n_tokens, n_seqs; i32 ids[n_tokens]; i32 seq_start[n_seqs + 1]; u8 mask[n_tokens];
             u32 n_targets; f32 losses[n_targets]
    per layer, per target (q k v o gate up down): u32 n, k; f32 A[r][k], B[n][r], dA[r][k], dB[n][r]
             (gradients of the sum of all losses)
    u32 steps; f64 lr, beta1, beta2, eps, decay, max_norm; per step: f64 mean loss, gradient's norm before clipping
             (each step over the last row)
"""
import importlib.util
import os
import struct

import gguf
import numpy as np
import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")
# How activations are rounded is written down once, with the models.
SPEC = importlib.util.spec_from_file_location("models", os.path.join(HERE, "../../../scripts/make-test-models.py"))
models = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(models)
TARGETS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
NAMES = {"attn_q": TARGETS[0], "attn_k": TARGETS[1], "attn_v": TARGETS[2], "attn_output": TARGETS[3],
         "ffn_gate": TARGETS[4], "ffn_up": TARGETS[5], "ffn_down": TARGETS[6],
         "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
R, ALPHA, STEPS = 4, 8.0, 20
ADAMW = dict(lr=1e-3, beta1=0.9, beta2=0.99, eps=1e-6, decay=0.01, max_norm=1.0)
QUANTISED = {"Q8_0", "Q4_0", "Q4_1"}


class Base:
    """A GGUF file's weights under the names of transformers, q and k in half-split order."""

    def __init__(self, path):
        f = gguf.GGUFReader(path)

        def field(key):
            return f.fields["llama." + key].contents()
        self.heads, self.kv = field("attention.head_count"), field("attention.head_count_kv")
        self.layers, self.hidden = field("block_count"), field("embedding_length")
        self.inter, self.eps = field("feed_forward_length"), np.float32(field("attention.layer_norm_rms_epsilon"))
        self.theta = field("rope.freq_base")
        self.dim = field("attention.key_length") if "llama.attention.key_length" in f.fields else self.hidden // self.heads
        self.w, self.quantised = {}, set()
        for t in f.tensors:
            x = np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32)
            x = x.reshape([int(n) for n in reversed(t.shape)])
            name = self.name(t.name)
            for which, heads in (("q_proj", self.heads), ("k_proj", self.kv)):
                if which in name:
                    x = x.reshape(heads, -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            self.w[name] = torch.tensor(x.astype(np.float64))
            if t.tensor_type.name in QUANTISED:
                self.quantised.add(name)
        if "lm_head" not in self.w:
            self.w["lm_head"] = self.w["embed"]
            if "embed" in self.quantised:
                self.quantised.add("lm_head")
        self.tied = self.w["lm_head"] is self.w["embed"]
        self.vocab = self.w["embed"].shape[0]

    @staticmethod
    def name(name):
        top = {"token_embd.weight": "embed", "output.weight": "lm_head", "output_norm.weight": "norm"}
        if name in top:
            return top[name]
        _, layer, kind, _ = name.split(".")
        return f"{layer}.{NAMES[kind]}"


class Margin:
    least = np.inf


def bf16(x):
    """Straight through. Noise is a share of the token's largest value, also where a value is small."""
    v = x.detach().numpy().astype(np.float32)
    far = np.abs((v.view(np.uint32) & 0xFFFF).astype(np.int64) - 0x8000) * np.spacing(np.abs(v)).astype(np.float64)
    noise = 2.5e-7 * np.abs(v).max(axis=(1, 2), keepdims=True)
    Margin.least = min(Margin.least, (far / noise).min())
    rounded = torch.tensor(v).to(torch.bfloat16).to(torch.float64)
    return x + (rounded - x).detach()


def q8(x):
    v = x.detach().numpy()
    Margin.least = min(Margin.least, models.q8_margin(v) / 0.3)
    return x + (torch.tensor(models.round_q8(v)) - x).detach()


class Reference:
    def __init__(self, base, adapter, modelled=True):
        self.b, self.a, self.modelled = base, adapter, modelled

    def linear(self, x, name):
        rounded = q8(x) if self.modelled and name in self.b.quantised else x
        y = rounded @ self.b.w[name].T
        if name in self.a:
            a, b = self.a[name]
            y = y + ALPHA / R * (x @ a.T) @ b.T
        return y

    def norm(self, x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + float(self.b.eps)) * self.b.w[name]

    def rotate(self, x):
        d = self.b.dim
        f = (1.0 / (self.b.theta ** (np.arange(0, d, 2, dtype=np.float32) / np.float32(d)))).astype(np.float32)
        angle = torch.tensor(np.outer(np.arange(x.shape[0]), f.astype(np.float64)))
        c, s = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)

    def attention(self, x, p):
        m, n = self.b, x.shape[0]
        q = self.rotate(self.linear(x, p + TARGETS[0]).reshape(n, m.heads, m.dim))
        k = self.rotate(self.linear(x, p + TARGETS[1]).reshape(n, m.kv, m.dim))
        v = self.linear(x, p + TARGETS[2]).reshape(n, m.kv, m.dim)
        if self.modelled:
            k, v = bf16(k), bf16(v)
        k, v = (t.repeat_interleave(m.heads // m.kv, dim=1) for t in (k, v))
        score = torch.einsum("ihd,jhd->hij", q, k) / np.sqrt(m.dim)
        score = score.masked_fill(~torch.tril(torch.ones(n, n, dtype=bool)), -torch.inf)
        out = torch.einsum("hij,jhd->ihd", torch.softmax(score, -1), v)
        return self.linear(out.reshape(n, -1), p + TARGETS[3])

    def losses(self, ids, mask):
        x = self.b.w["embed"][ids]
        for i in range(self.b.layers):
            p = f"{i}."
            x = x + self.attention(self.norm(x, p + "input_layernorm"), p)
            h = self.norm(x, p + "post_attention_layernorm")
            gate, up = self.linear(h, p + TARGETS[4]), self.linear(h, p + TARGETS[5])
            x = x + self.linear(torch.nn.functional.silu(gate) * up, p + TARGETS[6])
        logits = self.linear(self.norm(x, "norm"), "lm_head")
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
        return loss[torch.tensor(mask[1:])]


def sequences(rng, base):
    """Rows of sequences (ids, mask); the first token of each is never a target."""
    rows = []
    # fewer tokens where more is rounded
    for lengths in ((4,), (2, 3, 2)) if base.quantised else ((7,), (4, 2, 5), (2, 6)):
        row = []
        for n in lengths:
            mask = rng.random(n) < 0.6
            mask[0], mask[-1] = False, True
            row.append((rng.integers(3, base.vocab, n).tolist(), mask.tolist()))
        rows.append(row)
    return rows


def new_adapter(base, rng):
    """f32 values: B is not zero, so that A has a gradient."""
    out = {}
    for i in range(base.layers):
        for t in TARGETS:
            n, k = base.w[f"{i}.{t}"].shape
            a = rng.uniform(-1, 1, (R, k)) / np.sqrt(k)
            b = rng.standard_normal((n, R)) * 0.1
            out[f"{i}.{t}"] = [torch.tensor(x.astype(np.float32).astype(np.float64), requires_grad=True)
                               for x in (a, b)]
    return out


def compare_with_peft(base, adapter, rows):
    """The reference without rounding is transformers' Llama with peft's LoRA."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    c = LlamaConfig(hidden_size=base.hidden, intermediate_size=base.inter, num_hidden_layers=base.layers,
                    num_attention_heads=base.heads, num_key_value_heads=base.kv, head_dim=base.dim,
                    vocab_size=base.vocab, rms_norm_eps=float(base.eps), tie_word_embeddings=base.tied,
                    rope_parameters={"rope_theta": base.theta, "rope_type": "default"})
    model = LlamaForCausalLM(c).float()
    state = model.state_dict()
    for name, x in base.w.items():
        full = {"embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"}.get(name, "model.layers." + name)
        state[full + ".weight"].copy_(x)
    model = get_peft_model(model, LoraConfig(r=R, lora_alpha=ALPHA, lora_dropout=0,
                                             target_modules=[t.split(".")[1] for t in TARGETS]))
    parameters = dict(model.named_parameters())

    def of(name, side):
        return parameters[f"base_model.model.model.layers.{name}.lora_{side}.default.weight"]
    with torch.no_grad():
        for name, (a, b) in adapter.items():
            of(name, "A").copy_(a)
            of(name, "B").copy_(b)
    ours = 0
    for row in rows:
        for ids, mask in row:
            labels = [t if m else -100 for t, m in zip(ids, mask)]
            out = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]))
            (out.loss * sum(mask)).backward()
            ours = ours + Reference(base, adapter, modelled=False).losses(ids, mask).sum()
    ours.backward()
    worst = 0
    for name, pair in adapter.items():
        for side, x in zip("AB", pair):
            theirs = of(name, side).grad.double()
            worst = max(worst, ((theirs - x.grad).abs().max() / x.grad.abs().max()).item())
            x.grad = None
    print(f"  against transformers and peft in f32: {worst:.1e}")
    assert worst < 2e-5


def gradients(base, adapter, rows):
    losses = []
    for row in rows:
        losses.append(torch.cat([Reference(base, adapter).losses(ids, mask) for ids, mask in row]))
        losses[-1].sum().backward()
    return losses


def curve(base, adapter, row, margin):
    """None: something lies too near a boundary."""
    parameters = [x for pair in adapter.values() for x in pair]
    o = torch.optim.AdamW(parameters, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"],
                          weight_decay=ADAMW["decay"])
    out = []
    for _ in range(STEPS):
        Margin.least = np.inf
        losses = torch.cat([Reference(base, adapter).losses(ids, mask) for ids, mask in row])
        if Margin.least < margin:
            return None
        o.zero_grad()
        losses.mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, ADAMW["max_norm"])
        o.step()
        out.append((losses.mean().item(), norm.item()))
    return out


def f32(x):
    return x.detach().numpy().astype("<f4").tobytes()


def make(name):
    print(name)
    base = Base(os.path.join(MODELS, name + ".gguf"))
    for seed in range(20000):
        rng = np.random.default_rng(seed)
        adapter, rows = new_adapter(base, rng), sequences(rng, base)
        Margin.least = np.inf
        with torch.no_grad():
            for row in rows:
                for ids, mask in row:
                    Reference(base, adapter).losses(ids, mask)
        margin = Margin.least
        if margin < 1:
            continue
        steps = curve(base, adapter, rows[-1], 0.4 if name == "f32" else 0)
        if steps:
            break
    rng = np.random.default_rng(seed)
    adapter, rows = new_adapter(base, rng), sequences(rng, base)
    print(f"  seed {seed}, margin {margin:.2f}")
    compare_with_peft(base, adapter, rows)
    losses = gradients(base, adapter, rows)
    out = struct.pack("<4sIIIfI", b"GLFT", 1, base.layers, R, ALPHA, len(rows))
    for row, loss in zip(rows, losses):
        ids = sum((s for s, _ in row), [])
        mask = sum((m for _, m in row), [])
        starts = np.cumsum([0] + [len(s) for s, _ in row])
        out += struct.pack("<II", len(ids), len(row)) + np.array(ids, "<i4").tobytes()
        out += starts.astype("<i4").tobytes() + bytes(mask) + struct.pack("<I", len(loss)) + f32(loss)
    for a, b in adapter.values():
        out += struct.pack("<II", b.shape[0], a.shape[1]) + f32(a) + f32(b) + f32(a.grad) + f32(b.grad)
    out += struct.pack("<I6d", STEPS, *ADAMW.values())
    for loss, norm in steps:
        out += struct.pack("<2d", loss, norm)
    with open(os.path.join(HERE, name + ".train"), "wb") as f:
        f.write(out)
    print(f"  {len(out)} bytes")


if __name__ == "__main__":
    for model in ("f32", "bf16", "q8_0", "mixed"):
        make(model)
