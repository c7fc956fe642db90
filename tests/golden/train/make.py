#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden.txt: losses, gradients and AdamW steps of small cases, made by PyTorch's autograd (in
float64) and torch.optim.AdamW (in float32). Needs torch 2.4 or later.  Usage: make.py > golden.txt

A line is an array: its name, how many values, the values. Inputs are multiples of 1/16 and small, so
that f32 and bf16 hold them exactly.
"""
import torch
import torch.nn.functional as F

torch.manual_seed(7)


def put(name, x):
    x = x.detach().flatten().tolist()
    print(name, len(x), " ".join("%.9g" % v for v in x))


def draw(*shape):
    return torch.round(torch.randn(*shape, dtype=torch.float64) * 16) / 16


def attention(name, heads, kv_heads, dim, window, lens):
    """Rotated q, k, v of ragged sequences side by side -> gradient of sum(out * dout)."""
    rows = sum(lens)
    qkv = draw(rows, heads + 2 * kv_heads, dim).requires_grad_()
    dout = draw(rows, heads, dim)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    outs, start = [], 0
    for n in lens:
        part = [x[start : start + n].transpose(0, 1) for x in (q, k, v)]
        i = torch.arange(n)
        mask = i[None, :] <= i[:, None]
        if window:
            mask &= i[None, :] > i[:, None] - window
        group = heads // kv_heads
        kk, vv = (x.repeat_interleave(group, dim=0) for x in part[1:])
        outs.append(F.scaled_dot_product_attention(part[0], kk, vv, attn_mask=mask).transpose(0, 1))
        start += n
    out = torch.cat(outs)
    out.backward(dout)
    put(name + ".shape", torch.tensor([heads, kv_heads, dim, window, *lens]))
    put(name + ".qkv", qkv)
    put(name + ".dout", dout)
    put(name + ".out", out)
    put(name + ".dqkv", qkv.grad)


def rmsnorm(rows, k):
    x, w, dy = draw(rows, k).requires_grad_(), draw(k), draw(rows, k)
    F.rms_norm(x, (k,), w, 1e-5).backward(dy)
    put("rmsnorm.shape", torch.tensor([rows, k]))
    put("rmsnorm.x", x)
    put("rmsnorm.w", w)
    put("rmsnorm.dy", dy)
    put("rmsnorm.dx", x.grad)


def swiglu(rows, k):
    x, dy = (2 * draw(rows, 2 * k)).requires_grad_(), draw(rows, k)
    gate, up = x.chunk(2, dim=1)
    (F.silu(gate) * up).backward(dy)
    put("swiglu.shape", torch.tensor([rows, k]))
    put("swiglu.x", x)
    put("swiglu.dy", dy)
    put("swiglu.dx", x.grad)


def rope(rows, heads, kv_heads, dim):
    x = draw(rows, heads + kv_heads, dim).requires_grad_()
    dy = draw(rows, heads + kv_heads, dim)
    freq = 1.0 / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * freq[None, :]
    cos, sin = (torch.cat([f(angle)] * 2, dim=1)[:, None, :] for f in (torch.cos, torch.sin))
    half = torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], dim=-1)
    (x * cos + half * sin).backward(dy)
    put("rope.shape", torch.tensor([rows, heads, kv_heads, dim]))
    put("rope.table", torch.stack([angle.cos(), angle.sin()], dim=1))
    put("rope.dy", dy)
    put("rope.dx", x.grad)


def cross_entropy(rows, vocab):
    x = (3 * draw(rows, vocab)).requires_grad_()
    target = torch.randint(vocab, (rows,))
    x.data[0, target[0]] = 20.0  # nearly certain
    weight = draw(rows).abs() + 0.25
    loss = F.cross_entropy(x, target, reduction="none")
    (loss * weight).sum().backward()
    put("xent.shape", torch.tensor([rows, vocab]))
    put("xent.logits", x)
    put("xent.target", target)
    put("xent.weight", weight)
    put("xent.loss", loss)
    put("xent.hit", (x.argmax(dim=1) == target).double())
    put("xent.grad", x.grad)


def adamw(n, steps):
    w = torch.nn.Parameter(draw(n).float())
    opt = torch.optim.AdamW([w], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    put("adamw.shape", torch.tensor([n, steps]))
    put("adamw.w", w)
    for t in range(steps):
        opt.param_groups[0]["lr"] = 1e-2 / (1 + t)
        w.grad = draw(n).float()
        w.grad[3] = 0.0  # a value that only decays
        put("adamw.g%d" % t, w.grad)
        opt.step()
        state = opt.state[w]
        put("adamw.w%d" % t, w)
        put("adamw.m%d" % t, state["exp_avg"])
        put("adamw.v%d" % t, state["exp_avg_sq"])


attention("attn.a", 4, 2, 8, 0, [5, 9, 13])
attention("attn.b", 3, 1, 8, 0, [70, 3])
attention("attn.c", 2, 2, 8, 6, [21, 1])
rmsnorm(3, 50)
swiglu(3, 37)
rope(5, 2, 1, 12)
cross_entropy(4, 77)
adamw(19, 6)
