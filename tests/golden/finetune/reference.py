# SPDX-License-Identifier: Apache-2.0
"""The reference of training: a model of tests/golden/models with LoRA, in f64 on the dequantised weights, with
gradients by PyTorch. It rounds where the engine rounds on purpose, and lets the gradient pass as if it had not:

    "usual"   K and V to bf16; activations in front of a quantised matrix to int8 in blocks of 32
    "bf16"    as CPUs do that multiply bf16: also activations in front of a BF16 matrix, queries (times the scale and
              log2 e) and attention's weights (relative to the row's maximum); and in backward, for matrices that are
              not F32, the gradient and the matrix, while attention makes its weights again from what was not rounded
    ""        nothing is rounded

Used by make.py and curves.py.
"""
import importlib.util
import os

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, os.path.join(HERE, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Shapes, RoPE and how activations are rounded are written down once, with the models.
models = load("models", "../../../scripts/make-test-models.py")
TARGETS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
QUANTISED = {"Q8_0", "Q4_0", "Q4_1"}
# What training has of other families: biases of q, k, v (Qwen2), a sliding window (Mistral), and the two with the norms
# of q's and k's heads.
WALK = dict(models.MODELS["hf-walk"], qk_norm=False, window=3)
FOLDERS = {"walk": ("hf-walk", WALK), "walk-norm": ("hf-walk", dict(WALK, qk_norm=True)),
           "qwen3": ("hf-qwen3", models.MODELS["hf-qwen3"])}


class Base:
    """A model file's weights under the names of transformers, q and k in half-split order."""

    def __init__(self, name):
        file, self.m = FOLDERS.get(name) or (name + ".gguf", models.MODELS[name + ".gguf"])
        self.path, self.name = os.path.join(models.ROOT, file), name
        self.layers, self.vocab = models.LAYERS, models.VOCAB
        self.w, self.types = {}, {}
        tensors = self.from_folder() if name in FOLDERS else self.from_gguf()
        for key, x, t in tensors:
            self.w[key], self.types[key] = torch.tensor(x.astype(np.float64)), t
        if self.m["tied"]:
            for d in (self.w, self.types):
                d["lm_head.weight"] = d["model.embed_tokens.weight"]
        self.quantised = any(t in QUANTISED for t in self.types.values())

    def from_folder(self):
        for key, x in load_file(os.path.join(self.path, "model.safetensors")).items():
            if self.m.get("qk_norm") or "self_attn" not in key or "_norm.weight" not in key:
                yield key, x.numpy(), "F32"

    def from_gguf(self):
        names = {models.gguf_name(k): k for k in models.shapes(self.m)}
        for t in gguf.GGUFReader(self.path).tensors:
            if t.name == "rope_freqs.weight":
                continue
            key = names[t.name]
            x = np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32)
            x = x.reshape([int(n) for n in reversed(t.shape)])
            heads = {"q_proj": self.m["heads"], "k_proj": self.m["kv"]}.get(key.split(".")[-2])
            if heads:
                x = x.reshape(heads, -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            yield key, x, t.tensor_type.name

    def values(self):
        """For transformers."""
        return {k: v.numpy().astype(np.float32) for k, v in self.w.items()
                if k != "lm_head.weight" or not self.m["tied"]}


class Noise:
    """least: how near what was rounded came to a boundary, in units of f32 noise; above 1 f32 rounds as f64 does.
    small: what is less than this share of its token's largest value does not count: its steps are that much smaller.
    rng: where not None, such noise is added in front of each rounding, to see what it may do to a result."""
    least = np.inf
    small = 0
    rng = None


def straight(x, rounded):
    return x + (rounded - x).detach()


def perturbed(x, noise):
    v = x.detach().numpy()
    return v if Noise.rng is None else v + noise * Noise.rng.standard_normal(v.shape)


def bf16(x, noise=None):
    """noise: of each value; by default 2.5e-7 of the largest of its token, also where a value is small."""
    v, top = x.detach().numpy().astype(np.float32), 0
    if noise is None:
        top = np.abs(v).reshape(v.shape[0], -1).max(1).reshape((-1,) + (1,) * (v.ndim - 1))
        noise = np.maximum(2.5e-7 * top, 1e-30)
    far = np.abs((v.view(np.uint32) & 0xFFFF).astype(np.int64) - 0x8000) * np.spacing(np.abs(v)).astype(np.float64)
    Noise.least = min(Noise.least, np.where(np.abs(v) <= Noise.small * top, np.inf, far / noise).min())
    return straight(x, torch.tensor(perturbed(x, noise).astype(np.float32)).to(torch.bfloat16).to(torch.float64))


def q8(x):
    v = x.detach().numpy()
    Noise.least = min(Noise.least, models.q8_margin(v) / 0.3)
    top = np.abs(v).reshape(-1, 32).max(1, keepdims=True).repeat(32, 1).reshape(v.shape)
    return straight(x, torch.tensor(models.round_q8(perturbed(x, 2.5e-7 * top))))


def nearest(x):
    return x.float().to(torch.bfloat16).to(torch.float64)


class Pairs(torch.autograd.Function):
    """x W^T on CPUs that multiply pairs of bf16: gradient and matrix are rounded in backward."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x @ w.T

    @staticmethod
    def backward(ctx, dy):
        return nearest(dy) @ nearest(ctx.saved_tensors[0]), None


def weights(q, k, window):
    """2^score relative to the row's maximum; q [heads, n, dim] has the scale and log2 e."""
    n = q.shape[1]
    seen = torch.tril(torch.ones(n, n, dtype=bool))
    if window:
        seen &= ~torch.tril(seen, -window)
    score = (q @ k.transpose(1, 2)).masked_fill(~seen, -torch.inf)
    return torch.exp2(score - score.amax(-1, keepdim=True).detach())


class Attention(torch.autograd.Function):
    """On CPUs that multiply pairs of bf16."""

    @staticmethod
    def forward(ctx, q, k, v, window):
        e = weights(bf16(q.transpose(0, 1)).transpose(0, 1), k, window)
        e = bf16(e, np.maximum(5e-6 * e.numpy(), 1e-30))
        out = e @ v / e.sum(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, out)
        ctx.window = window
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out = ctx.saved_tensors
        e = weights(q, k, ctx.window)
        p = e / e.sum(-1, keepdim=True)
        ds = np.log(2) * p * (dout @ v.transpose(1, 2) - (dout * out).sum(-1, keepdim=True))
        return ds @ k, ds.transpose(1, 2) @ q, p.transpose(1, 2) @ dout, None


class Adapter:
    """pairs: name of the target in its layer ("0.mlp.up_proj") -> [A, B], f32 values; B is not zero, so that A has a
    gradient."""

    def __init__(self, base, rng, r=4, alpha=8.0, rslora=False, targets=range(7)):
        self.r, self.alpha, self.rslora, self.targets = r, alpha, rslora, list(targets)
        self.scale, self.pairs = alpha / (r ** 0.5 if rslora else r), {}
        for i in range(base.layers):
            for t in self.targets:
                n, k = base.w[f"model.layers.{i}.{TARGETS[t]}.weight"].shape
                a, b = rng.uniform(-1, 1, (r, k)) / np.sqrt(k), rng.standard_normal((n, r)) * 0.1
                self.pairs[f"{i}.{TARGETS[t]}"] = [
                    torch.tensor(x.astype(np.float32).astype(np.float64), requires_grad=True) for x in (a, b)]

    def parameters(self):
        return [x for pair in self.pairs.values() for x in pair]


class Reference:
    """adapter: None for the base. dropout(module, x): what the adapter of module (layer * 7 + target) sees of x."""

    def __init__(self, base, adapter, rounding, dropout=None):
        self.b, self.m, self.a, self.rounding, self.dropout = base, base.m, adapter, rounding, dropout

    def linear(self, x, name):
        key = name if name.startswith("lm_head") else "model.layers." + name
        t, seen = self.b.types[key + ".weight"], x
        if self.rounding and t in QUANTISED:
            seen = q8(x)
        elif self.rounding == "bf16" and t == "BF16":
            seen = bf16(x)
        w = self.b.w[key + ".weight"]
        y = Pairs.apply(seen, w) if self.rounding == "bf16" and t != "F32" else seen @ w.T
        if key + ".bias" in self.b.w:
            y = y + self.b.w[key + ".bias"]
        if self.a and name in self.a.pairs:
            a, b = self.a.pairs[name]
            if self.dropout:
                layer, target = name.split(".", 1)
                x = self.dropout(int(layer) * 7 + TARGETS.index(target), x)
            y = y + self.a.scale * (x @ a.T) @ b.T
        return y

    def norm(self, x, name):
        w = self.b.w[name + ".weight"]
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + float(np.float32(models.EPS))) * w

    def rotate(self, x):
        angle = torch.tensor(np.outer(np.arange(x.shape[0]), models.inv_freq(self.m).astype(np.float64)))
        c, s = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)

    def attention(self, x, p):
        m, n = self.m, x.shape[0]
        q = self.linear(x, p + TARGETS[0]).reshape(n, m["heads"], m["dim"])
        k = self.linear(x, p + TARGETS[1]).reshape(n, m["kv"], m["dim"])
        if m.get("qk_norm"):
            q, k = (self.norm(t, f"model.layers.{p}self_attn.{c}_norm") for t, c in ((q, "q"), (k, "k")))
        q, k = self.rotate(q), self.rotate(k)
        v = self.linear(x, p + TARGETS[2]).reshape(n, m["kv"], m["dim"])
        q = q * np.log2(np.e) / np.sqrt(m["dim"])
        if self.rounding:
            k, v = bf16(k), bf16(v)
        k, v = (t.repeat_interleave(m["heads"] // m["kv"], dim=1) for t in (k, v))
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        if self.rounding == "bf16":
            out = Attention.apply(q, k, v, m.get("window"))
        else:
            e = weights(q, k, m.get("window"))
            out = e @ v / e.sum(-1, keepdim=True)
        out = out.transpose(0, 1)
        return self.linear(out.reshape(n, -1), p + TARGETS[3])

    def logits(self, ids):
        x = self.b.w["model.embed_tokens.weight"][ids]
        for i in range(self.b.layers):
            p = f"{i}."
            x = x + self.attention(self.norm(x, f"model.layers.{i}.input_layernorm"), p)
            h = self.norm(x, f"model.layers.{i}.post_attention_layernorm")
            gate, up = self.linear(h, p + TARGETS[4]), self.linear(h, p + TARGETS[5])
            x = x + self.linear(torch.nn.functional.silu(gate) * up, p + TARGETS[6])
        return self.linear(self.norm(x, "model.norm"), "lm_head")

    def losses(self, ids, mask):
        """Of the targets, in order."""
        loss = torch.nn.functional.cross_entropy(self.logits(ids)[:-1], torch.tensor(ids[1:]), reduction="none")
        return loss[torch.tensor(mask[1:], dtype=bool)]


def qwen2_model(base):
    from transformers import Qwen2Config, Qwen2ForCausalLM
    m = base.m
    config = Qwen2Config(hidden_size=m["hidden"], intermediate_size=m["inter"], vocab_size=base.vocab,
                         num_hidden_layers=base.layers, num_attention_heads=m["heads"], num_key_value_heads=m["kv"],
                         head_dim=m["dim"], rms_norm_eps=models.EPS, tie_word_embeddings=m["tied"],
                         rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, use_sliding_window=True,
                         sliding_window=m["window"], max_window_layers=0, attn_implementation="eager")
    assert config.layer_types == ["sliding_attention"] * base.layers
    model = Qwen2ForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict({k: torch.tensor(v) for k, v in base.values().items()}, strict=False)
    assert not unexpected and missing == ["lm_head.weight"]
    return model


def peft_model(base, adapter):
    """transformers' model with peft's LoRA and the adapter's values, f32; parameter(name, side)."""
    from peft import LoraConfig, get_peft_model
    torch.set_default_dtype(torch.float32)
    model = qwen2_model(base) if base.name == "walk" else models.transformers_model(base.m, base.path, base.values())
    model = get_peft_model(model, LoraConfig(
        r=adapter.r, lora_alpha=adapter.alpha, lora_dropout=0, use_rslora=adapter.rslora,
        target_modules=[TARGETS[t].split(".")[1] for t in adapter.targets]))
    torch.set_default_dtype(torch.float64)
    parameters = dict(model.named_parameters())

    def of(name, side):
        return parameters[f"base_model.model.model.layers.{name}.lora_{side}.default.weight"]
    with torch.no_grad():
        for name, pair in adapter.pairs.items():
            for side, x in zip("AB", pair):
                of(name, side).copy_(x)
    return model, of


def adamw(parameters, h):
    return torch.optim.AdamW(parameters, lr=h["lr"], betas=(h["beta1"], h["beta2"]), eps=h["eps"],
                             weight_decay=h["decay"])


def f32(x):
    return x.detach().numpy().astype("<f4").tobytes()
