#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cases.txt: what a sampler must do with small rows of logits, computed in float64 by the
definitions of kernels/sample.h. Needs numpy.  Usage: make_sample.py > cases.txt

One case:
  case <vocab> <n_bias> <n_counts> <masked> <temperature> <top_k> <top_p> <min_p>
       <presence> <frequency> <repetition>
  <vocab logits>
  <id bias> ... | <id out prompt> ... | <allowed ids, -1 at the end> (one line each, if any)
  <greedy token>
  <n> <id probability> ... of every token that can be drawn
  <vocab log-probabilities of the unmodified row>
"""
import numpy as np

rng = np.random.default_rng(20240607)


def logits_of(vocab, kind):
    if kind == "normal":
        x = rng.normal(0, 2.5, vocab)
    elif kind == "peaked":
        x = rng.normal(0, 1, vocab)
        x[rng.integers(vocab)] += 9
    elif kind == "flat":
        x = rng.normal(0, 0.02, vocab)
    else:  # ties: few different values
        x = rng.integers(-3, 4, vocab) * 0.75
    return x.astype(np.float32)


def modified(x, c):
    z = x.astype(np.float64).copy()
    for i, b in c["bias"]:
        z[i] += b
    for i, out, prompt in c["counts"]:
        if out > 0 or prompt > 0:
            z[i] = z[i] / c["rep"] if z[i] > 0 else z[i] * c["rep"]
        z[i] -= c["freq"] * out
        if out > 0:
            z[i] -= c["pres"]
    if c["allowed"] is not None:
        keep = np.zeros(len(z), bool)
        keep[c["allowed"]] = True
        z[~keep] = -np.inf
    return z


def distribution(z, c):
    order = np.lexsort((np.arange(len(z)), -z))  # larger first, then lower id
    order = order[np.isfinite(z[order])]
    w = np.exp((z[order] - z[order[0]]) / c["t"])
    if c["top_k"] > 0:
        order, w = order[: c["top_k"]], w[: c["top_k"]]
    if c["top_p"] < 1:
        before = np.cumsum(w) - w
        n = max(1, int(np.sum(before < c["top_p"] * np.sum(w))))
        # the case must not hang on the last bit of a sum
        edge = np.min(np.abs(before / np.sum(w) - c["top_p"]))
        assert edge > 1e-5, edge
        order, w = order[:n], w[:n]
    if c["min_p"] > 0:
        assert np.all(np.abs(w[w < 1] - c["min_p"]) > 1e-6)
        order, w = order[w >= c["min_p"]], w[w >= c["min_p"]]
    p = w / np.sum(w)
    return sorted(zip(order.tolist(), p.tolist()))


def line(values):
    print(" ".join(str(v) if isinstance(v, (int, np.integer)) else "%.9g" % v for v in values))


def emit(x, c):
    z = modified(x, c)
    masked = c["allowed"] is not None
    print("case", len(x), len(c["bias"]), len(c["counts"]), int(masked), "%.9g" % c["t"], c["top_k"],
          "%.9g" % c["top_p"], "%.9g" % c["min_p"], "%.9g" % c["pres"], "%.9g" % c["freq"],
          "%.9g" % c["rep"])
    line(x)
    if c["bias"]:
        line([v for b in c["bias"] for v in b])
    if c["counts"]:
        line([v for b in c["counts"] for v in b])
    if masked:
        line(list(c["allowed"]) + [-1])
    print(int(np.argmax(z)))
    d = distribution(z, c)
    line([len(d)] + [v for pair in d for v in pair])
    x = x.astype(np.float64)
    line(x - (x.max() + np.log(np.sum(np.exp(x - x.max())))))


def case(**kw):
    c = dict(bias=[], counts=[], allowed=None, t=1.0, top_k=0, top_p=1.0, min_p=0.0, pres=0.0,
             freq=0.0, rep=1.0)
    c.update({k: np.float32(v) if isinstance(v, float) else v for k, v in kw.items()})
    for k in ("t", "top_p", "min_p", "pres", "freq", "rep"):
        c[k] = float(c[k])
    return c


def ids(vocab, n):
    return [int(i) for i in rng.choice(vocab, n, replace=False)]


def biases(vocab, n):
    return [(i, float(np.float32(b))) for i, b in zip(ids(vocab, n), rng.normal(0, 3, n))]


def counts(vocab, n):
    return [(i, int(rng.integers(0, 4)), int(rng.integers(0, 2))) for i in ids(vocab, n)]


emit(logits_of(50, "normal"), case())
emit(logits_of(97, "normal"), case(t=0.7))
emit(logits_of(64, "flat"), case(t=1.8))
emit(logits_of(300, "peaked"), case())
emit(logits_of(50, "normal"), case(top_k=1))
emit(logits_of(150, "normal"), case(top_k=7, t=1.3))
emit(logits_of(80, "ties"), case(top_k=9))
emit(logits_of(80, "ties"), case(top_k=500))
emit(logits_of(130, "normal"), case(top_p=0.9))
emit(logits_of(130, "peaked"), case(top_p=0.31))
emit(logits_of(200, "flat"), case(top_p=0.77))
emit(logits_of(90, "ties"), case(top_p=0.6))
emit(logits_of(90, "normal"), case(min_p=0.1))
emit(logits_of(90, "normal"), case(min_p=1.0))
emit(logits_of(90, "ties"), case(min_p=1.0))
emit(logits_of(160, "normal"), case(top_k=40, top_p=0.8, min_p=0.02, t=0.9))
emit(logits_of(160, "flat"), case(top_k=33, top_p=0.5))
emit(logits_of(120, "normal"), case(top_p=0.85, min_p=0.05, t=1.4))
for rep in (1.0, 1.3, 0.8):
    emit(logits_of(60, "normal"), case(counts=counts(60, 25), rep=rep, freq=0.4, pres=-0.7))
emit(logits_of(60, "normal"), case(counts=counts(60, 25), freq=-1.0, pres=1.5, top_p=0.9))
emit(logits_of(70, "normal"), case(bias=biases(70, 20)))
emit(logits_of(70, "normal"), case(bias=biases(70, 10) + [(3, float("-inf")), (69, float("-inf"))],
                                   counts=counts(70, 30), rep=1.1, top_k=12))
b = biases(70, 1)
emit(logits_of(70, "normal"), case(bias=b + [(b[0][0], 2.5)]))
emit(logits_of(100, "normal"), case(allowed=sorted(ids(100, 31))))
emit(logits_of(101, "normal"), case(allowed=[100], top_p=0.5))
emit(logits_of(333, "normal"), case(allowed=sorted(ids(333, 64)), bias=biases(333, 40),
                                    counts=counts(333, 50), rep=1.2, freq=0.2, pres=0.1, t=0.8,
                                    top_k=30, top_p=0.95, min_p=0.001))
emit(logits_of(1000, "normal"), case(top_p=0.95, t=1.1))
