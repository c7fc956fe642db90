#!/usr/bin/env python3
"""Compares graft with llama.cpp on one machine and one model file, in alternating rounds; prints medians and ratios.

    scripts/compare-llama.py --graft build/release --llama LLAMA_BUILD/bin MODEL.gguf [MODEL.gguf ...]
        [--rounds 5] [--threads 2] [--server] [--json FILE]

LLAMA_BUILD is a native build of llama.cpp with llama-bench, llama-batched-bench and (for --server) llama-server; the best
of its settings (flash attention off and on; --llama-threads for other thread counts) counts in each round. A round is
thrown away if graft's own measure of the machine (read bandwidth, FMA rate before and after) moved by more than 10%.
"""
import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import time
import urllib.request


def run(command, timeout=900):
    r = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if r.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}\n{r.stdout}{r.stderr}")
    return r.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Peer:
    def __init__(self, args, model):
        self.args, self.model = args, model
        self.bench = os.path.join(args.graft, "model/graft_bench_model")

    def graft(self, only, extra):
        out = json_lines(run([self.bench, self.model, "--only", only, "--reps", "1", "--json", *extra]))
        return out[-1]

    def llama_bench(self, prompt, generate):
        best = 0.0
        for fa in ("0", "1"):
            for threads in self.args.llama_threads:
                out = run([os.path.join(self.args.llama, "llama-bench"), "-m", self.model, "-p", str(prompt), "-n",
                           str(generate), "-t", str(threads), "-fa", fa, "-r", "1", "-o", "json"])
                best = max(best, json.loads(out)[0]["avg_ts"])
        return best

    def llama_streams(self):
        best = 0.0
        for fa in ("off", "on"):
            out = run([os.path.join(self.args.llama, "llama-batched-bench"), "-m", self.model, "-c", "4096", "-b", "2048",
                       "-ub", "512", "-npp", "32", "-ntg", "16", "-npl", "32", "-t", str(self.args.threads), "-fa", fa,
                       "--output-format", "jsonl"])
            best = max(best, max(line["speed_tg"] for line in json_lines(out)))
        return best

    def rows(self):
        return [
            ("decode, 1 stream", lambda: self.graft("generate", ["--generate", "64"]), lambda: self.llama_bench(0, 64)),
            ("prefill of 512", lambda: self.graft("prompt", []), lambda: self.llama_bench(512, 0)),
            ("decode, 32 streams", lambda: self.graft("streams", ["--context", "32"]), self.llama_streams),
        ]


def compare_model(args, model):
    peer = Peer(args, model)
    results = []
    for name, ours, theirs in peer.rows():
        pairs, shares = [], []
        for _ in range(args.rounds):
            a, b = ours(), theirs()
            pairs.append((a["tok_s"], b))
            shares.append((a["of_read"], a["of_peak"], a["peak"]))
        row = {
            "model": os.path.basename(model), "what": name,
            "graft": statistics.median(p[0] for p in pairs), "llama": statistics.median(p[1] for p in pairs),
            "ratio": statistics.median(p[0] / p[1] for p in pairs),
            "of_read": statistics.median(s[0] for s in shares), "of_peak": statistics.median(s[1] for s in shares),
            "peak": shares[0][2], "rounds": len(pairs),
        }
        results.append(row)
        print(f"{row['model']:38} {name:20} graft {row['graft']:8.1f}  llama {row['llama']:8.1f} tok/s  ratio "
              f"{row['ratio']:5.2f}  {row['of_read']*100:4.0f}% of read, {row['of_peak']*100:4.0f}% of {row['peak']}", flush=True)
    return results


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Served:
    """One of the two servers, up and warm."""

    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=1) as r:
                    if r.status == 200 and urllib.request.urlopen(self.url + "/v1/models", timeout=1).status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit("no server: " + " ".join(command))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def serve(args, which, model):
    port = free_port()
    if which == "graft":
        return Served([os.path.join(args.graft, "gateway/graft"), "serve", model, "--port", str(port), "--no-access-log"], port)
    return Served([os.path.join(args.llama, "llama-server"), "-m", model, "--port", str(port), "-t", str(args.threads), "-tb",
                   str(args.threads), "-np", "32", "-c", "16384", "-fa", "on", "--no-webui"], port)


def load(args, server, users, requests, inputs, outputs, seed):
    out = run([os.path.join(args.graft, "gateway/graft"), "loadtest", "--url", server.url + "/v1", "--users", str(users),
               "--requests", str(requests), "--input-tokens", str(inputs), "--output-tokens", str(outputs), "--prompt", "ids",
               "--vocab", "49000", "--seed", str(seed), "--warmup", "1", "--no-progress", "--json", "-"])
    return json.loads(out)


def compare_server(args, model):
    rows = {"graft": [], "llama": []}
    for i in range(args.rounds):
        for which in rows:
            server = serve(args, which, model)
            try:
                rows[which].append(load(args, server, 32, 64, 128, 64, 100 + i))
            finally:
                server.stop()
    med = lambda which, f: statistics.median(f(r) for r in rows[which])
    result = {"model": os.path.basename(model), "what": "server, 32 users of 128 + 64", "rounds": args.rounds}
    for key, f in {
        "tok_s": lambda r: r["output_tokens_per_second"],
        "ttft_p99": lambda r: r["ttft_seconds"]["p99"],
        "itl_p99": lambda r: r["itl_seconds"]["p99"],
    }.items():
        a, b = med("graft", f), med("llama", f)
        result[key] = {"graft": a, "llama": b, "ratio": a / b if b else None}
    print(json.dumps(result), flush=True)
    return [result]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--graft", required=True)
    p.add_argument("--llama", required=True)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--llama-threads", type=lambda s: [int(x) for x in s.split(",")])
    p.add_argument("--server", action="store_true", help="compare the servers instead of the bare engines")
    p.add_argument("--json")
    args = p.parse_args()
    args.llama_threads = args.llama_threads or [args.threads]
    results = []
    for model in args.models:
        results += compare_server(args, model) if args.server else compare_model(args, model)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
