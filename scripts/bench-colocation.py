#!/usr/bin/env python3
"""Measures what training beside serving costs and gets, on one server, in rounds that alternate.

    scripts/bench-colocation.py --graft build/release/gateway/graft MODEL.gguf [--rounds 5] [--seconds 30]
        [--prefix "chrt -f 10"] [--only poisson,streams] [--json FILE]

poisson   Poisson arrivals at which steps take half of wall time; no target. Training off (the job is paused) against
          on: inter-token p99, time to first token p99; training's tokens/s against its speed alone.
streams   8 continuous streams, quiet first; then with --slo-itl-ms at twice the quiet p99: what part of the slack
          training got, and the inter-token p99.

A server of its own is started on a free port with a data folder in a temporary place. Rounds with training off and on
get the very same requests at the same times, so that its prefix cache is off. Prompts are words: answers to random token
ids are full of split characters, whose tokens reach a client together. What a client sees comes from `graft loadtest`,
the shares of time from /admin/v1/colocation, training's progress from /admin/v1/jobs.
"""
import argparse
import json
import os
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, args, folder, options=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(os.path.join(folder, "server.log"), "a", encoding="utf-8")
        command = [*args.prefix, args.graft, "serve", args.model, "--port", str(self.port), "--data-dir",
                   os.path.join(folder, "data"), "--enable-lora", "--no-access-log",
                   "--no-enable-prefix-caching", *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.wait_for(lambda: self.get("/ready")["status"] == "ready", 120, "the server")

    def call(self, method, path, body=None, kind="application/json"):
        data = json.dumps(body).encode() if body is not None and kind == "application/json" else body
        q = urllib.request.Request(self.url + path, data=data, method=method, headers={"Content-Type": kind})
        with urllib.request.urlopen(q, timeout=30) as r:
            return json.loads(r.read())

    def get(self, path):
        return self.call("GET", path)

    def wait_for(self, what, seconds, name):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended; see {self.log.name}")
            try:
                if what():
                    return
            except (OSError, urllib.error.HTTPError):
                pass
            time.sleep(0.1)
        raise SystemExit(f"waited {seconds} s for {name}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)

    def upload(self, lines):
        text = "\n".join(json.dumps(x) for x in lines).encode()
        mark = "graft-bench-boundary"
        body = (f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--{mark}\r\n'
                'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n').encode() + text + \
            f"\r\n--{mark}--\r\n".encode()
        return self.call("POST", "/v1/files", body, f"multipart/form-data; boundary={mark}")["id"]


def samples(n):
    words = "river stone lamp garden winter copper letter harbour quiet violet engine ladder".split()
    draw = random.Random(7)
    text = lambda k: " ".join(draw.choice(words) for _ in range(k))
    return [{"messages": [{"role": "user", "content": text(150)}, {"role": "assistant", "content": text(150)}]}
            for _ in range(n)]


class Training:
    """One job that never ends by itself, and its progress."""

    def __init__(self, server, args):
        self.server = server
        model = server.get("/v1/models")["data"][0]["id"]
        job = server.call("POST", "/v1/fine_tuning/jobs", {
            "model": model, "training_file": server.upload(samples(400)),
            "hyperparameters": {"n_epochs": 50, "batch_size": 1},
            "graft": {"save_steps": 1000}})
        self.id = job["id"]
        self.times = []
        self.over = False

    def tokens(self):
        return self.server.get("/admin/v1/jobs/" + self.id)["trained_tokens"] or 0

    def on(self):
        state = self.server.get("/admin/v1/jobs/" + self.id)["state"]
        if state == "paused":
            self.server.call("POST", f"/v1/fine_tuning/jobs/{self.id}/resume")
        before = self.tokens()
        self.server.wait_for(lambda: self.tokens() > before, 300, "a training step")

    def off(self):
        start = time.monotonic()
        self.server.call("POST", f"/v1/fine_tuning/jobs/{self.id}/pause")
        free = lambda: self.server.get("/admin/v1/colocation")["training"]["job"] is None
        self.server.wait_for(free, 60, "the job's end")
        return time.monotonic() - start

    def watch(self):
        seen = self.tokens()
        while not self.over:
            now = self.tokens()
            if now != seen:
                self.times.append((time.monotonic(), now))
                seen = now
            time.sleep(0.3)

    def measure(self, work):
        """Tokens/s between the first and the last step that ended while `work` ran."""
        self.times, self.over = [], False
        t = threading.Thread(target=self.watch)
        t.start()
        try:
            out = work()
        finally:
            self.over = True
            t.join()
        if len(self.times) < 2:
            return out, 0.0
        (a, n), (b, m) = self.times[0], self.times[-1]
        return out, (m - n) / (b - a)


def load(args, server, extra, seconds, seed):
    """The load tester's report, and how the engine's time was used meanwhile."""
    before = server.get("/admin/v1/colocation")["engines"][0]["all"]
    out = subprocess.run([*args.prefix, args.graft, "loadtest", "--url", server.url + "/v1", "--requests", "1000000",
                          "--duration", f"{seconds}s", "--seed", str(seed),
                          "--no-progress", "--json", "-", *extra], capture_output=True, text=True, timeout=seconds + 300)
    after = server.get("/admin/v1/colocation")["engines"][0]
    if out.returncode:
        raise SystemExit(out.stdout + out.stderr)
    wall = after["all"]["seconds"] - before["seconds"]
    r = json.loads(out.stdout)
    r["serving"] = (after["all"]["serving_seconds"] - before["serving_seconds"]) / wall
    r["training"] = (after["all"]["training_seconds"] - before["training_seconds"]) / wall
    r["slices"] = after["recent"]["slices"]
    r["engine_itl"] = after["recent"]["inter_token"]
    r["margin_ms"] = after["margin_ms"]
    return r


def ms(x):
    return f"{x * 1e3:8.1f} ms"


def find_rate(args, server, shape):
    """Arrivals per second at which steps take half of the time."""
    rate, best = 1.0, None
    for i in range(6):
        r = load(args, server, ["--rate", f"{rate:.3f}", *shape], max(8, args.seconds / 3), 50 + i)
        best = best if best and abs(best[1] - 0.5) < abs(r["serving"] - 0.5) else (rate, r["serving"])
        if abs(r["serving"] - 0.5) < 0.03:
            break
        rate *= min(3.0, max(0.4, 0.5 / max(r["serving"], 0.05)))
    print(f"rate {best[0]:.2f}/s: steps take {best[1] * 100:.0f}% of the time", flush=True)
    return best[0]


def solo(args, training):
    training.on()
    used = lambda: training.server.get("/admin/v1/colocation")["engines"][-1]["all"]
    before = used()
    _, speed = training.measure(lambda: time.sleep(max(10, args.seconds / 2)))
    after = used()
    busy = (after["training_seconds"] - before["training_seconds"]) / (after["seconds"] - before["seconds"])
    print(f"training alone: {speed:.1f} tokens/s, on the engine {busy * 100:.0f}% of the time; slices p99 "
          f"{after['slices']['p99_ms']:.2f} ms", flush=True)
    return speed


def poisson(args, server, training, alone):
    shape = ["--input-tokens", "128", "--output-tokens", "64"]
    training.off()
    rate = find_rate(args, server, shape)
    rows = []
    for i in range(args.rounds):
        extra = ["--rate", f"{rate:.3f}", *shape]
        off = load(args, server, extra, args.seconds, 100 + i)
        training.on()
        on, speed = training.measure(lambda: load(args, server, extra, args.seconds, 100 + i))
        ended = training.off()
        rows.append({"off": off, "on": on, "tokens_s": speed, "of_idle": speed / ((1 - off["serving"]) * alone),
                     "end_s": ended, "itl": on["itl_seconds"]["p99"] / off["itl_seconds"]["p99"],
                     "ttft": on["ttft_seconds"]["p99"] - off["ttft_seconds"]["p99"]})
        r = rows[-1]
        print(f"  off: busy {off['serving'] * 100:3.0f}%  itl p99 {ms(off['itl_seconds']['p99'])}  ttft p99 "
              f"{ms(off['ttft_seconds']['p99'])}\n  on:  busy {on['serving'] * 100:3.0f}%  itl p99 "
              f"{ms(on['itl_seconds']['p99'])}  ttft p99 {ms(on['ttft_seconds']['p99'])}  training {on['training'] * 100:.0f}% "
              f"of the time, {speed:.1f} tokens/s; slices p99 {on['slices']['p99_ms']:.2f} ms; paused in {ended:.2f} s",
              flush=True)
    med = lambda f: statistics.median(f(r) for r in rows)
    print(f"poisson: itl p99 x {med(lambda r: r['itl']):.3f} (goal 1.15), ttft p99 + {med(lambda r: r['ttft']) * 1e3:.1f} ms "
          f"(goal 10), training at {med(lambda r: r['of_idle']) * 100:.0f}% of (1 - busy) x alone (goal 80)", flush=True)
    return {"rate": rate, "alone_tokens_s": alone, "rounds": rows}


STREAMS = ["--users", "8", "--input-tokens", "64", "--output-tokens", "400"]


def quiet_streams(args, server):
    r = load(args, server, STREAMS, args.seconds, 7)
    print(f"8 streams, quiet: itl mean {ms(r['itl_seconds']['mean'])}  p99 {ms(r['itl_seconds']['p99'])}", flush=True)
    return r


def streams(args, server, training, alone, quiet, target):
    slack = 1 - quiet["itl_seconds"]["mean"] / target
    rows = []
    training.on()
    for i in range(args.rounds):
        r, speed = training.measure(lambda: load(args, server, STREAMS, args.seconds, 200 + i))
        rows.append({"on": r, "of_slack": r["training"] / slack, "tokens_s": speed, "itl": r["itl_seconds"]["p99"] / target})
        print(f"  itl p50 {ms(r['itl_seconds']['p50'])}  p99 {ms(r['itl_seconds']['p99'])}  training {r['training'] * 100:.0f}% of "
              f"the time, {speed:.1f} tokens/s ({speed / alone / slack * 100:.0f}% of slack x alone); slices p99 "
              f"{r['slices']['p99_ms']:.2f} ms; margin {r['margin_ms']:.2f} ms; in the engine itl p50 {r['engine_itl']['p50_ms']:.1f} "
              f"p99 {r['engine_itl']['p99_ms']:.1f} ms", flush=True)
    med = lambda f: statistics.median(f(r) for r in rows)
    print(f"streams: target {ms(target)}, slack {slack * 100:.0f}%: training got {med(lambda r: r['of_slack']) * 100:.0f}% of it "
          f"(goal 80), itl p99 at {med(lambda r: r['itl']):.3f} of the target (goal 1)", flush=True)
    return {"target_s": target, "slack": slack, "quiet": quiet, "rounds": rows}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--graft", required=True, help="the binary")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=30, help="of a round")
    p.add_argument("--prefix", type=shlex.split, default=[], help="before server and load tester")
    p.add_argument("--only", default="poisson,streams")
    p.add_argument("--json")
    args = p.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="graft-colocation-") as folder:
        server = Server(args, folder)
        try:
            training = Training(server, args)
            alone = solo(args, training)
            if "poisson" in args.only:
                results["poisson"] = poisson(args, server, training, alone)
            else:
                training.off()
            quiet = quiet_streams(args, server) if "streams" in args.only else None
        finally:
            server.stop()
        if quiet:
            target = 2 * quiet["itl_seconds"]["p99"]
            server = Server(args, folder, ["--slo-itl-ms", f"{target * 1e3:.3f}"])
            try:
                training.server = server
                results["streams"] = streams(args, server, training, alone, quiet, target)
            finally:
                server.stop()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    sys.exit(main())
