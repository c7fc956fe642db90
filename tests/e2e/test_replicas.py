"""Several replicas in one server: the same answers as from one, swaps that no request notices, states by replica."""
import json
import os
import shutil
import signal
import tempfile
import threading
import unittest

from server import ROOT, WAIT_S, Server, events

BASE = os.path.join(ROOT, "tests/golden/models/hf-f32")
ADAPTERS = ("all", "qv", "rslora")
OPTIONS = ("--enable-lora", "--max-loras", "4", "--max-lora-rank", "16")
TWO = ("--replicas", "2", "--threads", "2")


def path(name):
    return os.path.join(ROOT, "tests/golden/adapters", name)


def body(model, prompt, **more):
    return {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": True,
            "return_tokens_as_token_ids": True, **more}


def ask(server, *args, **more):
    status, answer = server.json("POST", "/v1/completions", body(*args, **more))
    assert status == 200, answer
    return answer


def states(server, name):
    """Of each version of an adapter: (version, status, status on each replica)."""
    listed = server.json("GET", "/admin/v1/adapters/" + name)[1]["data"]
    return [(v["version"], v["status"], [r["status"] for r in v["replicas"]]) for v in listed]


class Replicas(unittest.TestCase):
    def serve(self, *options):
        server = Server(BASE, *OPTIONS, *options)
        self.addCleanup(server.stop)
        return server

    def post(self, server, route, request, expected=200):
        status, _, data = server.request("POST", route, request)
        self.assertEqual(status, expected, data)

    def load(self, server, name, folder, **more):
        self.post(server, "/admin/v1/adapters", {"name": name, "path": path(folder), **more})

    def test_the_same_bits(self):
        modules = [x for a in ADAPTERS for x in ("--lora-modules", f"{a}={path(a)}")]
        one, two = self.serve(*modules), self.serve(*modules, *TWO)
        self.assertEqual(one.json("GET", "/version")[1]["replicas"], 1)
        self.assertEqual(two.json("GET", "/version")[1]["replicas"], 2)
        jobs = [
            (model, [3 + (i * 7 + k) % 90 for k in range(n)], {"temperature": t, "seed": i, "n": 1 + i % 2})
            for i, n in enumerate((1, 5, 16, 17, 33, 40))
            for model in ("hf-f32", *ADAPTERS)
            for t in (0, 1)
        ]
        answers = [[ask(one, model, prompt, **more)["choices"] for model, prompt, more in jobs]]
        got = [None] * len(jobs)

        def client(k):
            for i in range(k, len(jobs), 6):
                model, prompt, more = jobs[i]
                got[i] = ask(two, model, prompt, **more)["choices"]

        for _ in range(2):  # the second time from the prefix caches
            threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            answers.append(list(got))
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])
        text = two.request("GET", "/metrics")[2].decode()
        for replica in "01":  # both had their part
            series = f'graft_requests_finished_total{{model="hf-f32",replica="{replica}",reason="length"}} '
            self.assertGreater(int(text.split(series)[1].split("\n")[0]), 5)

    def test_swaps_under_load(self):
        server = self.serve(*TWO)
        prompt = [5, 6, 7]
        for name in ADAPTERS:
            self.load(server, name, name)
        expected = [ask(server, name, prompt)["choices"][0]["logprobs"]["tokens"] for name in ADAPTERS]
        self.assertEqual(len({tuple(t) for t in expected}), 3)
        self.load(server, "swapped", ADAPTERS[0])
        first = int(ask(server, "swapped", prompt)["system_fingerprint"].rpartition("@")[2])
        done, wrong, answers, seen = threading.Event(), [], [0], set()

        def check(version, tokens, count=8):
            seen.add(version)
            if tokens != expected[(version - first) % 3][:count] or len(tokens) != count:
                wrong.append((version, tokens))

        def client(k):
            while not done.is_set():
                count = 1 + (answers[0] + k) % 8
                status, _, data = server.request(
                    "POST", "/v1/completions", body("swapped", prompt, stream=k % 2 == 0, max_tokens=count))
                if status != 200:
                    wrong.append((status, data))
                    return
                if k % 2:
                    a = json.loads(data)
                    check(int(a["system_fingerprint"].rpartition("@")[2]), a["choices"][0]["logprobs"]["tokens"], count)
                else:
                    parts, ended = events(data)
                    versions = {p["system_fingerprint"] for p in parts}
                    tokens = [t for p in parts for c in p["choices"] for t in (c["logprobs"] or {"tokens": []})["tokens"]]
                    if len(versions) != 1 or not ended:
                        wrong.append((versions, ended))
                    check(int(versions.pop().rpartition("@")[2]), tokens, count)
                answers[0] += 1

        threads = [threading.Thread(target=client, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for i in range(1, 60):
            self.load(server, "swapped", ADAPTERS[i % 3])
            if i % 10 == 9:
                self.post(server, "/admin/v1/adapters/swapped/rollback", None)
        done.set()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertGreater(len(seen), 5)

    def test_states_and_restart(self):
        folder = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, folder)
        data = ("--data-dir", os.path.join(folder, "data"))
        server = self.serve(*TWO, *data)
        both, none = ["ready", "ready"], ["none", "none"]
        self.load(server, "a", "all")
        self.assertEqual(states(server, "a"), [(1, "active", both)])
        self.load(server, "a", "qv", promote=False)
        self.assertEqual(states(server, "a"), [(1, "active", both), (2, "ready", none)])
        self.post(server, "/admin/v1/adapters/a/promote", {"version": 2})
        self.assertEqual(states(server, "a"), [(1, "ready", both), (2, "active", both)])
        self.post(server, "/admin/v1/adapters/a/rollback", None)
        self.assertEqual(states(server, "a"), [(1, "active", both), (2, "rolled_back", both)])
        before = ask(server, "a", [1, 2, 3])["choices"]
        server.stop(signal.SIGKILL)
        server = self.serve(*TWO, *data)
        # What was active is there again before the first request.
        self.assertEqual(states(server, "a"), [(1, "active", both), (2, "rolled_back", none)])
        self.assertEqual(ask(server, "a", [1, 2, 3])["choices"], before)

    def test_more_replicas_than_threads(self):
        server = Server(BASE, "--replicas", "3", "--threads", "2", wait=False)
        self.assertEqual(server.process.wait(WAIT_S), 1)
        server.stop()
        self.assertIn("graft serve: --replicas 3 needs as many compute threads, and there are 2 (--threads)", server.log)


if __name__ == "__main__":
    unittest.main()
