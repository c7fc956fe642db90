#!/usr/bin/env python3
"""What a swap of adapters costs those who wait for it and those who do not: `graft serve` with replicas and two adapters
that are made here, swapped while streams run.

    scripts/bench-swap.py [--graft build/release] [--replicas 2] [--streams 8] [--rounds 5] MODEL.gguf

Prints the time from "ready on each replica" (the version is verified; its name has not moved) to the first token of a
request that the new version answers, the same from the request that loads it, and the p99 of the time between two tokens
of a stream while a swap goes on, beside that of quiet time, in the same run. A swap lasts from the request that loads
the version until it is answered and the first token of the new version came. Each follows a quiet time that is as long
as the swap before it, so that both kinds have about as many tokens, and as many prompts of streams that begin anew: how
many is printed. Before the first round come --warm swaps: until the third one each takes new memory from the system.
"""
import argparse
import array
import http.client
import json
import os
import random
import re
import statistics
import struct
import subprocess
import tempfile
import threading
import time

TARGETS = {  # outputs and inputs of each, by name of the shape's numbers
    "self_attn.q_proj": ("q", "hidden"), "self_attn.k_proj": ("kv", "hidden"), "self_attn.v_proj": ("kv", "hidden"),
    "self_attn.o_proj": ("hidden", "q"), "mlp.gate_proj": ("inner", "hidden"), "mlp.up_proj": ("inner", "hidden"),
    "mlp.down_proj": ("hidden", "inner"),
}


def make_adapter(folder, shape, rank, seed):
    rng = random.Random(seed)
    pool = array.array("f", (rng.uniform(-0.02, 0.02) for _ in range(1 << 16)))
    header, blobs, at = {}, [], 0
    for layer in range(shape["layers"]):
        for target, (n, k) in TARGETS.items():
            for side, (rows, cols) in (("A", (rank, shape[k])), ("B", (shape[n], rank))):
                size = rows * cols
                first = rng.randrange(1 << 14)
                values = (pool[first:] * (size // len(pool[first:]) + 1))[:size]
                header[f"base_model.model.model.layers.{layer}.{target}.lora_{side}.weight"] = {
                    "dtype": "F32", "shape": [rows, cols], "data_offsets": [at, at + 4 * size]}
                at += 4 * size
                blobs.append(values.tobytes())
    os.makedirs(folder)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none",
                   "target_modules": [t.split(".")[1] for t in TARGETS]}, f)


class Server:
    def __init__(self, args, work):
        command = [os.path.join(args.graft, "gateway/graft"), "serve", args.model, "--port", "0", "--enable-lora",
                   "--replicas", str(args.replicas), "--max-lora-rank", "256", "--data-dir", os.path.join(work, "data"),
                   "--no-access-log", "--max-model-len", "2048", *args.serve]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.ready_at, self.port, self.lines = {}, None, []
        self.seen = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        with self.seen:
            if not self.seen.wait_for(lambda: self.port or self.process.poll() is not None, 120) or not self.port:
                raise SystemExit("\n".join(self.lines))

    def read(self):
        for line in self.process.stderr:
            now = time.perf_counter()
            with self.seen:
                self.lines.append(line.rstrip())
                if found := re.search(r"ready in .*:(\d+)/v1", line):
                    self.port = int(found.group(1))
                elif found := re.search(r"adapter \S+@(\d+) is ready on each replica", line):
                    self.ready_at[int(found.group(1))] = now
                self.seen.notify_all()

    def post(self, route, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request("POST", route, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        c.close()
        if r.status != 200:
            raise SystemExit(f"{route}: {r.status} {data.decode()}")

    def stream(self, model, prompt, tokens):
        """Yields (time, version) of each token."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request("POST", "/v1/completions", json.dumps({
            "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 1, "ignore_eos": True, "stream": True}),
            {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status == 404:  # the name's first version is ready, and the name does not stand for it yet
            return
        if r.status != 200:
            raise RuntimeError(f"completions: {r.status} {r.read().decode()}")
        for line in r:
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                part = json.loads(line[6:])
                if part["choices"]:
                    yield now, int(part["system_fingerprint"].rpartition("@")[2])
        c.close()


class Streams:
    """Clients whose answers never end; the gaps between their tokens."""

    def __init__(self, server, n):
        self.server, self.gaps, self.begun, self.over = server, [], [], False
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, i):
        rng = random.Random(i)
        while not self.over:
            last = None
            prompt = [rng.randrange(100, 20000) for _ in range(32)]
            self.begun.append(time.perf_counter())
            for now, _ in self.server.stream("swapped", prompt, 400):
                if last is not None:
                    self.gaps.append((last, now))
                last = now
                if self.over:
                    break

    def stop(self):
        self.over = True
        for t in self.threads:
            t.join()


def first_token(server, version):
    """When the first token of the version came, to a request that is made once it is ready."""
    with server.seen:
        server.seen.wait_for(lambda: version in server.ready_at, 120)
    while True:
        for now, got in server.stream("swapped", [1, 2, 3, 4], 1):
            if got == version:
                return now


def swap(server, folder, version):
    result = {}
    asker = threading.Thread(target=lambda: result.update(token=first_token(server, version)))
    asker.start()
    begin = time.perf_counter()
    server.post("/admin/v1/adapters", {"name": "swapped", "path": folder})
    end = time.perf_counter()
    asker.join()
    return begin, end, result["token"]


LEFT_OVER = 0.3  # s after a swap that are neither: old versions end


def run_round(server, streams, folders, swaps, version, quiet):
    """The windows of a round, (begin, end), of both kinds; the swaps; the next version and quiet time."""
    going, calm, made = [], [], []
    for _ in range(swaps):
        time.sleep(LEFT_OVER)
        begin = time.perf_counter()
        time.sleep(quiet)
        calm.append((begin, time.perf_counter()))
        version += 1
        begin, end, token = swap(server, folders[version % 2], version)
        going.append((begin, max(end, token)))
        made.append((begin, token, server.ready_at[version]))
        quiet = max(0.5, going[-1][1] - begin)
    return going, calm, made, version, quiet


def gaps_within(streams, windows, whole):
    """Gaps that lie in a window, or touch one."""
    gaps = list(streams.gaps)
    if whole:
        return [b - a for a, b in gaps if any(a >= begin and b <= end for begin, end in windows)]
    return [b - a for a, b in gaps if any(a < end and b > begin for begin, end in windows)]


def begun_within(streams, windows):
    return sum(any(begin <= t <= end for begin, end in windows) for t in list(streams.begun))


def p99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--graft", default="build/release")
    p.add_argument("--replicas", type=int, default=2)
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--swaps", type=int, default=6, help="of a round")
    p.add_argument("--warm", type=int, default=3, help="swaps before the first round")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--shape", default="layers=30,hidden=576,q=576,kv=192,inner=1536", help="of the model; SmolLM2-135M's")
    p.add_argument("--serve", nargs="*", default=[], help="more options of graft serve")
    p.add_argument("--json")
    args = p.parse_args()
    shape = {k: int(v) for k, v in (x.split("=") for x in args.shape.split(","))}
    rows = []
    with tempfile.TemporaryDirectory(prefix="graft-swap-") as work:
        folders = [os.path.join(work, name) for name in "ab"]
        for i, folder in enumerate(folders):
            make_adapter(folder, shape, args.rank, i)
        server = Server(args, work)
        try:
            version, quiet = 1, 1.0
            swap(server, folders[0], version)
            streams = Streams(server, args.streams)
            time.sleep(2)
            *_, version, quiet = run_round(server, streams, folders, args.warm, version, quiet)
            for r in range(args.rounds):
                going, calm, made, version, quiet = run_round(server, streams, folders, args.swaps, version, quiet)
                during = gaps_within(streams, going, False)
                between = gaps_within(streams, calm, True)
                row = {
                    "ready_to_first_token_ms": 1e3 * statistics.median(t - at for _, t, at in made),
                    "ready_to_first_token_worst_ms": 1e3 * max(t - at for _, t, at in made),
                    "load_to_first_token_ms": 1e3 * statistics.median(t - begin for begin, t, _ in made),
                    "itl_p99_swap_ms": 1e3 * p99(during), "itl_p99_quiet_ms": 1e3 * p99(between),
                    "itl_mean_swap_ms": 1e3 * statistics.mean(during),
                    "itl_mean_quiet_ms": 1e3 * statistics.mean(between),
                    "gaps": [len(during), len(between)],
                    "prompts": [begun_within(streams, going), begun_within(streams, calm)],
                }
                row["ratio"] = row["itl_p99_swap_ms"] / row["itl_p99_quiet_ms"]
                rows.append(row)
                print(f"round {r + 1}: ready to first token {row['ready_to_first_token_ms']:.0f} ms (worst "
                      f"{row['ready_to_first_token_worst_ms']:.0f}), load to first token "
                      f"{row['load_to_first_token_ms']:.0f} ms; inter-token p99 {row['itl_p99_swap_ms']:.1f} ms (mean "
                      f"{row['itl_mean_swap_ms']:.2f}) of {len(during)} tokens and {row['prompts'][0]} prompts during "
                      f"swaps, {row['itl_p99_quiet_ms']:.1f} ms (mean {row['itl_mean_quiet_ms']:.2f}) of "
                      f"{len(between)} and {row['prompts'][1]} quiet: {row['ratio']:.2f}", flush=True)
            streams.stop()
        finally:
            server.process.terminate()
            server.process.wait()
    print(f"medians: ready to first token {statistics.median(r['ready_to_first_token_ms'] for r in rows):.0f} ms, "
          f"inter-token p99 ratio {statistics.median(r['ratio'] for r in rows):.2f} "
          f"({min(r['ratio'] for r in rows):.2f} to {max(r['ratio'] for r in rows):.2f}), of the means "
          f"{statistics.median(r['itl_mean_swap_ms'] / r['itl_mean_quiet_ms'] for r in rows):.2f}; "
          f"{sum(r['gaps'][0] for r in rows)} tokens during swaps, {sum(r['gaps'][1] for r in rows)} quiet")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
