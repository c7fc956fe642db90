#!/usr/bin/env python3
"""Compares LoRA training in graft with PyTorch + peft on one machine, in alternating rounds; prints medians and ratios.

    scripts/compare-torch.py --graft build/release --python VENV/bin/python MODEL.gguf [MODEL.gguf ...]
        [--rounds 5] [--threads 2] [--tokens 512] [--r 16] [--dropout 0,0.05] [--compile] [--json FILE]

VENV has torch, transformers and peft. Both train SmolLM2-135M's shape: rank r on q, k, v, o, gate, up, down, alpha 32,
one row of `tokens` tokens, forward, backward and AdamW. PyTorch's weights are random: its speed does not depend on
their values. Its faster of f32, bf16 and bf16 autocast counts (--compile: torch.compile too), anew in each round, for each
way: activations kept, or recomputed (gradient checkpointing). A process warms up before its steps are timed; the median of
its steps counts.

Then what adapters cost in a step of 32 streams (graft_bench_lora), on the last of the models.

A round in which graft's own measure of the machine (FMA rate before and after) moved by more than 10% is repeated.

Memory is VmHWM. graft's `over serving` is the peak of training minus that of the same process before its first step (model
loaded); PyTorch's is the peak of its whole process, as a server would need it beside itself.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

WAYS = {"kept": False, "recomputed": True}
PEER = ["f32", "bf16", "autocast"]


# ---- the peer: this file run by the venv's python

def peak_mib():
    with open("/proc/self/status", encoding="ascii") as f:
        return int(re.search(r"VmHWM:\s*(\d+)", f.read()).group(1)) >> 10


def peer_main(spec):
    import contextlib
    import time

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
                         rope_parameters={"rope_theta": 100000.0, "rope_type": "default"}, rms_norm_eps=1e-5,
                         tie_word_embeddings=True, use_cache=False)
    torch.set_default_dtype(torch.bfloat16 if spec["type"] == "bf16" else torch.float32)
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model = get_peft_model(model, LoraConfig(
        r=spec["r"], lora_alpha=32, lora_dropout=spec["dropout"], task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    if spec["recompute"]:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1e-4)
    ids = torch.randint(0, 49152, (1, spec["tokens"]))
    run = torch.compile(model) if spec["compile"] else model
    cast = torch.autocast("cpu", torch.bfloat16) if spec["type"] == "autocast" else contextlib.nullcontext()
    times = []
    for _ in range(spec["warm"] + spec["steps"]):
        t = time.perf_counter()
        with cast:
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adamw.step()
        adamw.zero_grad()
        times.append(time.perf_counter() - t)
    print(json.dumps({"tok_s": spec["tokens"] / statistics.median(times[spec["warm"]:]), "peak_mib": peak_mib()}))


def run(command):
    r = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if r.returncode:
        raise SystemExit(f"{' '.join(command)}\n{r.stdout}{r.stderr}")
    return json.loads([line for line in r.stdout.splitlines() if line.startswith("{")][-1])


def peer(args, kind, compiled, recompute, dropout):
    spec = {"type": kind, "compile": compiled, "recompute": recompute, "dropout": dropout, "threads": args.threads,
            "tokens": args.tokens, "r": args.r, "warm": 3 if not compiled else 5, "steps": args.steps}
    return run([args.python, os.path.abspath(__file__), "--peer", json.dumps(spec)])


def graft(args, model, recompute, dropout):
    return run([os.path.join(args.graft, "finetune/graft_bench_unit"), model, "--json", "--threads", str(args.threads),
                "--tokens", str(args.tokens), "--r", str(args.r), "--reps", str(args.steps), "--dropout", str(dropout),
                *(["--forget"] if recompute else [])])


def steady(args, model, recompute, dropout):
    """graft's numbers of a round in which the machine stayed as it was."""
    for _ in range(args.repeat):
        x = graft(args, model, recompute, dropout)
        if abs(x["fma_after"] / x["fma_before"] - 1) <= 0.1:
            return x
    print("  the machine does not keep still; the last round counts", file=sys.stderr)
    return x


def compare(args, way, dropout):
    kinds = [(kind, compiled) for kind in PEER for compiled in ([False, True] if args.compile else [False])]
    rounds = []
    for i in range(args.rounds):
        theirs = {}
        for kind, compiled in kinds:
            x = peer(args, kind, compiled, WAYS[way], dropout)
            theirs[kind + (", compiled" if compiled else "")] = x
        ours = {m: steady(args, m, WAYS[way], dropout) for m in args.models}
        rounds.append((ours, theirs))
        if i == 0 and args.rounds > 2 and not args.all_kinds:  # those that are far behind are not run again
            best = max(x["tok_s"] for x in theirs.values())
            kinds = [k for k, x in zip(kinds, theirs.values()) if x["tok_s"] > 0.8 * best]
    names = [k for k in rounds[0][1] if all(k in theirs for _, theirs in rounds)]
    name = max(names, key=lambda k: statistics.median(theirs[k]["tok_s"] for _, theirs in rounds))
    peer_speed = statistics.median(max(x["tok_s"] for x in theirs.values()) for _, theirs in rounds)
    peer_peak = statistics.median(theirs[name]["peak_mib"] for _, theirs in rounds)
    print(f"activations {way}, dropout {dropout}: PyTorch's best ({name}) {peer_speed:.0f} tok/s, {peer_peak:.0f} MiB",
          flush=True)
    results = []
    for m in args.models:
        median = lambda f: statistics.median(f(ours[m], theirs) for ours, theirs in rounds)
        row = {"way": way, "dropout": dropout, "model": os.path.basename(m), "peer": name, "peer_tok_s": peer_speed,
               "tok_s": median(lambda a, b: a["tok_s"]),
               "ratio": median(lambda a, b: a["tok_s"] / max(x["tok_s"] for x in b.values())),
               "of_fma": median(lambda a, b: a["of_fma"]), "over_mib": median(lambda a, b: a["over_mib"]),
               "peer_mib": peer_peak}
        row["memory"] = row["over_mib"] / peer_peak
        results.append(row)
        print(f"  {row['model']:38} {row['tok_s']:6.0f} tok/s  ratio {row['ratio']:5.2f}  {row['of_fma']*100:4.0f}% of FMA  "
              f"{row['over_mib']:5.0f} MiB over serving, {row['memory']:.2f} of PyTorch's", flush=True)
    return results


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*")
    p.add_argument("--graft")
    p.add_argument("--python")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=5, help="timed steps of a process")
    p.add_argument("--repeat", type=int, default=5, help="how often a round is repeated at most")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--r", type=int, default=16)
    p.add_argument("--dropout", type=lambda s: [float(x) for x in s.split(",")], default=[0.0, 0.05])
    p.add_argument("--compile", action="store_true", help="try torch.compile, too (minutes)")
    p.add_argument("--all-kinds", action="store_true", help="run slow kinds in every round")
    p.add_argument("--json")
    p.add_argument("--peer", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.peer:
        peer_main(json.loads(args.peer))
        return
    if not args.graft or not args.python or not args.models:
        p.error("--graft, --python and a model are needed")
    results = [row for d in args.dropout for way in WAYS for row in compare(args, way, d)]
    r = subprocess.run([os.path.join(args.graft, "model/graft_bench_lora"), args.models[-1], "32", "40"],
                       capture_output=True, text=True, timeout=1800, check=True)
    print("\n".join(line for line in r.stdout.splitlines() if line.startswith("32 streams")), flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
