"""kill -9 at system calls, by strace's injection: uploads, adapters, jobs and `graft train`. What was acknowledged is
there afterwards, whole; nothing half-done is left; runs end with the bits of one that nobody disturbed.

GRAFT_KILL_POINTS: how many points of each system call are tried (0: all). Skipped where there is no strace or it may
not trace."""
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import openai

import test_finetune
from server import BIN, ROOT, TINY, Server, wait_until

POINTS = int(os.environ.get("GRAFT_KILL_POINTS", "2"))
LATE = -14  # strace gave up its child: on a loaded machine it took too long to attach
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # where a sync costs nothing
CALLS = ("fsync", "fdatasync", "renameat", "openat", "write", "pwrite64", "unlinkat", "mkdirat")


def tracer(*expressions, log="/dev/null"):
    # -D: the traced process stays our child. Counts are a thread's own.
    command = ["strace", "-D", "-f", "-qq", "-o", log]
    for e in expressions:
        command += ["-e", e]
    return command


def run(command):
    while True:
        r = subprocess.run(command, capture_output=True)
        if r.returncode != LATE:
            return r


def may_trace():
    try:
        r = run(tracer("trace=close", "inject=close:signal=KILL:when=1") + ["true"])
        return r.returncode == -9
    except OSError:
        return False


def points(n, salt):
    """Numbers from 1 to n, spread, always the same."""
    if not POINTS or n <= POINTS:
        return list(range(1, n + 1))
    return sorted({(2 * i + 1) * n // (2 * POINTS) + salt % 3 for i in range(POINTS)} & set(range(1, n + 1))) or [n]


def counts(log):
    """How often the busiest thread made each call."""
    found = {}
    with open(log, encoding="utf-8", errors="replace") as f:
        for line in f:
            thread, rest = line.split(None, 1)
            call = rest.split("(", 1)[0]
            if call in CALLS:
                found[call, thread] = found.get((call, thread), 0) + 1
    most = {}
    for (call, _), n in found.items():
        most[call] = max(most.get(call, 0), n)
    return most


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Killed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not may_trace():
            raise unittest.SkipTest("may not trace")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="graft-kill-", dir=MEMORY)
        self.addCleanup(shutil.rmtree, self.folder)

    def leftovers(self, folder):
        return [os.path.join(d, f) for d, _, files in os.walk(folder) for f in files if ".aside-" in f]


class Train(Killed):
    def command(self, output, *options):
        return [BIN, "train", "--model", TINY, "--data", self.data, "--output", output, "--epochs", "4", "--batch-size",
                "4", "--learning-rate", "1e-3", "--lora-r", "4", "--lora-dropout", "0.1", "--save-steps", "2",
                "--cache-dir", self.folder, *options]

    def outcome(self, output):
        return [sha256(os.path.join(output, x)) for x in (
            "adapter/adapter_model.safetensors", "adapter/adapter_config.json",
            "checkpoints/step-12/optimizer.safetensors", "checkpoints/step-12/trainer_state.json")]

    def test_train(self):
        self.data = os.path.join(self.folder, "data.jsonl")
        with open(self.data, "w", encoding="utf-8") as f:
            for i in range(12):
                f.write(json.dumps({"prompt": f"What is {i}?", "completion": f" It is {i * i}."}) + "\n")
        whole, log = os.path.join(self.folder, "whole"), os.path.join(self.folder, "log")
        r = run(tracer("trace=" + ",".join(CALLS), log=log) + self.command(whole))
        self.assertEqual(r.returncode, 0, r.stderr)
        killed = resumed = 0
        for call, n in sorted(counts(log).items()):
            for at in points(n, len(call)):
                output = os.path.join(self.folder, f"{call}-{at}")
                inject = tracer(f"trace={call}", f"inject={call}:signal=KILL:when={at}")
                r = run(inject + self.command(output))
                killed += r.returncode == -9
                steps = os.path.join(output, "checkpoints")
                there = os.path.isdir(steps) and any(x.startswith("step-") for x in os.listdir(steps))
                if r.returncode == -9:
                    resumed += there
                    if not there:
                        shutil.rmtree(output, ignore_errors=True)
                    r = subprocess.run(self.command(output, *(["--resume"] if there else [])), capture_output=True)
                self.assertEqual(r.returncode, 0, f"{call} {at}: {r.stderr.decode()}")
                self.assertEqual(self.outcome(output), self.outcome(whole), f"{call} {at}")
                with open(os.path.join(output, "metrics.csv"), encoding="utf-8") as f:
                    self.assertEqual([x.split(",")[0] for x in f][1:], [str(i) for i in range(1, 13)], f"{call} {at}")
                self.assertEqual(self.leftovers(output), [])
                shutil.rmtree(output)
        self.assertGreater(killed, 5)
        self.assertGreater(resumed, 2)


class Sets(Killed):
    """`graft export`, and going on from a set elsewhere."""

    def setUp(self):
        super().setUp()
        data = os.path.join(self.folder, "data")
        with Server(TINY, "--served-model-name", "tiny", "--data-dir", data, "--enable-lora", "--cache-dir",
                    self.folder) as s:
            client = openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0)
            f = client.files.create(file=("t.jsonl", test_finetune.DATA), purpose="fine-tune").id
            job = client.fine_tuning.jobs.create(model="tiny", training_file=f, seed=4,
                                                 extra_body={"graft": {"save_steps": 5, "lora": {"r": 4}}})
            wait_until(lambda: client.fine_tuning.jobs.retrieve(job.id).status == "succeeded")
            client.close()
        self.job, self.whole = job.id, os.path.join(data, "jobs", job.id)
        self.export = [BIN, "export", job.id, "--data-dir", data, "--checkpoints", "all", "--output"]

    def verify(self, folder):
        return subprocess.run([BIN, "verify", folder], capture_output=True, text=True)

    def each(self, command, log):
        """Each point of each call, of a command that is given an output folder."""
        r = subprocess.run(tracer("trace=" + ",".join(CALLS), log=log) + command + [log + "-out"], capture_output=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        for call, n in sorted(counts(log).items()):
            for at in points(n, len(call)):
                output = os.path.join(self.folder, f"{call}-{at}")
                inject = tracer(f"trace={call}", f"inject={call}:signal=KILL:when={at}")
                r = subprocess.run(inject + command + [output], capture_output=True)
                yield f"{call} {at}", output, r.returncode == -9

    def test_export(self):
        killed = 0
        for name, output, dead in self.each(self.export, os.path.join(self.folder, "log")):
            killed += dead
            complete = os.path.exists(os.path.join(output, "COMPLETE"))
            self.assertEqual(self.verify(output).returncode, 0 if complete else 1, name)
            self.assertTrue(complete or dead, name)
        self.assertGreater(killed, 5)

    def test_elsewhere(self):
        given, steps = os.path.join(self.folder, "set"), os.path.join(self.whole, "checkpoints")
        # As the job was at its first checkpoint.
        for x in sorted(os.listdir(steps), key=lambda x: int(x[5:]))[1:]:
            shutil.rmtree(os.path.join(steps, x))
        self.assertEqual(subprocess.run(self.export + [given], capture_output=True).returncode, 0)
        begin = [BIN, "train", "--model", TINY, "--cache-dir", self.folder, "--save-steps", "2", "--resume"]
        killed = 0
        for name, output, dead in self.each(begin + [given, "--output"], os.path.join(self.folder, "log")):
            killed += dead
            if dead:
                begun = all(os.path.exists(os.path.join(output, x)) for x in ("run.json", "metrics.csv"))
                r = subprocess.run(begin + ([output] if begun else [given, "--output", output]), capture_output=True)
                self.assertEqual(r.returncode, 0, f"{name}: {r.stderr.decode()}")
            adapter = "adapter/adapter_model.safetensors"
            self.assertEqual(sha256(os.path.join(output, adapter)), sha256(os.path.join(self.whole, adapter)), name)
            self.assertEqual(self.leftovers(output), [])
            r = self.verify(output)
            self.assertEqual(r.returncode, 0, f"{name}: {r.stdout}")
        self.assertGreater(killed, 5)
        self.assertEqual(self.verify(given).returncode, 0)


class Serve(Killed):
    model = TINY

    def start(self, *expressions, log="/dev/null", wait=True):
        prefix = tracer(*expressions, log=log) if expressions else ()
        s = Server(self.model, "--served-model-name", "tiny", "--data-dir", os.path.join(self.folder, "data"), "--enable-lora",
                   "--cache-dir", self.folder, "--io-threads", "1", "--http-threads", "1", prefix=prefix, wait=wait)
        self.addCleanup(s.stop)
        return s

    def disturbed(self, call, at, work):
        """Runs `work` on a server that is killed at a system call, which may be before it is ready."""
        shutil.rmtree(os.path.join(self.folder, "data"), ignore_errors=True)
        s = self.start(f"trace={call}", f"inject={call}:signal=KILL:when={at}", wait=False)
        try:
            s.wait_ready()
        except AssertionError:
            if s.process.poll() == LATE:
                return self.disturbed(call, at, work)
            self.assertEqual(s.process.poll(), -9, "\n".join(s.log))
            return s.process.poll()
        try:
            work(s)
        except (openai.APIConnectionError, OSError, json.JSONDecodeError):
            pass
        return s.stop()

    def try_points(self, calls, work, check):
        """work(server) says what was acknowledged as it goes; check(server, where) looks after the next start."""
        log = os.path.join(self.folder, "log")
        s = self.start("trace=" + ",".join(calls), log=log)
        work(s)
        s.stop()
        killed = 0
        for call, n in sorted(counts(log).items()):
            for at in points(n, len(call)):
                self.acknowledged = []
                killed += self.disturbed(call, at, work) == -9
                s = self.start()
                check(s, f"{call} {at}")
                self.assertEqual(s.stop(), 0)
                left = self.leftovers(os.path.join(self.folder, "data"))
                self.assertEqual(left, [], f"{call} {at}")
        self.assertGreater(killed, len(calls) // 2)

    def client(self, s):
        c = openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0)
        self.addCleanup(c.close)
        return c

    def test_uploads(self):
        self.acknowledged = []

        def content(i):
            return b'{"prompt": "a", "completion": "%d"}\n' % i * 3000

        def work(s):
            client = self.client(s)
            for i in range(3):
                f = client.files.create(file=(f"{i}.jsonl", content(i)), purpose="fine-tune")
                self.acknowledged.append((i, f.id))
            self.acknowledged.append(("deletes", f.id))
            client.files.delete(f.id)
            self.acknowledged.append(("deleted", f.id))

        def check(s, where):
            client = self.client(s)
            there = {f.id: f for f in client.files.list()}
            for f in there.values():
                self.assertEqual(f.status, "processed", where)
                self.assertEqual(client.files.content(f.id).read(), content(int(f.filename[0])), where)
            gone = [x for what, x in self.acknowledged if what == "deleted"]
            perhaps = [x for what, x in self.acknowledged if what == "deletes"]
            for what, x in self.acknowledged:
                if x in gone:
                    self.assertNotIn(x, there, where)
                elif x not in perhaps:
                    self.assertIn(x, there, where)
            self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "data/files"))), sorted(there), where)

        self.try_points(("fsync", "fdatasync", "renameat", "write", "pwrite64", "unlinkat"), work, check)

    def test_errors(self):
        """The disk says no, once: an error of the right kind, nothing half-done, and the next call succeeds."""
        data = b'{"prompt": "a", "completion": "b"}\n' * 3000
        first, folder = os.path.join(self.folder, "first"), os.path.join(self.folder, "data")
        self.start().stop()  # so that later starts write little
        os.rename(folder, first)
        seen = set()
        for call, error, status, at in (("fsync", "EIO", 500, 7), ("fsync", "EIO", 500, 12), ("renameat", "ENOSPC", 503, 4),
                                        ("pwrite64", "ENOSPC", 503, 40)):
            shutil.copytree(first, folder)
            s = self.start(f"trace={call}", f"inject={call}:error={error}:when={at}")
            client, kept = self.client(s), 0
            for _ in range(8):
                try:
                    client.files.create(file=("a.jsonl", data), purpose="fine-tune")
                    kept += 1
                except openai.APIStatusError as e:
                    self.assertEqual(e.status_code, status, (call, at, e))
                    seen.add(call)
            there = list(client.files.list())
            self.assertEqual(len(there), kept, (call, at))
            self.assertGreaterEqual(kept, 7, (call, at))
            for f in there:
                self.assertEqual(client.files.content(f.id).read(), data)
            self.assertEqual(s.stop(), 0)
            self.assertEqual(len(os.listdir(os.path.join(folder, "files"))), kept, (call, at))
            shutil.rmtree(folder)
        self.assertEqual(seen & {"fsync", "renameat"}, {"fsync", "renameat"}, seen)

    def test_adapters(self):
        self.acknowledged = []
        self.model = os.path.join(ROOT, "tests/golden/models/f32.gguf")
        sources = [os.path.join(ROOT, "tests/golden/adapters", x) for x in ("qv", "rslora")]

        def load(s, name, path):
            status, body = s.json("POST", "/admin/v1/adapters", {"name": name, "path": path})
            self.assertLess(status, 300, body)
            self.acknowledged.append((name, path))

        def work(s):
            for name, path in (("a", sources[0]), ("b", sources[1]), ("a", sources[1])):
                load(s, name, path)

        def check(s, where):
            found = s.json("GET", "/admin/v1/adapters")[1]
            names = {x["name"] for x in found["data"] if x["status"] in ("active", "ready")}
            for name, _ in self.acknowledged:
                self.assertIn(name, names, where)
            for name in names:
                r = s.json("POST", "/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})
                self.assertEqual(r[0], 200, (where, r))
            versions = [x for x in os.listdir(os.path.join(self.folder, "data/adapters")) if x[0] == "v"]
            kept = [x for x in found["data"] if x["status"] in ("active", "ready", "rolled_back")]
            self.assertEqual(len(versions), len(kept), (where, found))

        self.try_points(("fsync", "renameat", "write", "openat", "mkdirat", "unlinkat"), work, check)

    def job(self, client):
        f = client.files.create(file=("train.jsonl", test_finetune.DATA), purpose="fine-tune").id
        return client.fine_tuning.jobs.create(
            model="tiny", training_file=f, seed=5, hyperparameters={"n_epochs": 2, "batch_size": 4},
            extra_body={"graft": {"lora": {"r": 4, "dropout": 0.1}, "save_steps": 3}}).id

    def wait(self, s, job):
        def ended():
            got = s.json("GET", f"/v1/fine_tuning/jobs/{job}")[1]
            return got if got["status"] in ("succeeded", "failed", "cancelled") else None
        return wait_until(ended)

    def test_job(self):
        self.acknowledged = []
        outcomes = set()

        def work(s):
            job = self.job(self.client(s))
            self.acknowledged.append(job)
            self.assertEqual(self.wait(s, job)["status"], "succeeded")
            outcomes.add(sha256(os.path.join(self.folder, "data/jobs", job, "adapter/adapter_model.safetensors")))

        def check(s, where):
            for job in self.acknowledged:
                got = self.wait(s, job)
                self.assertEqual(got["status"], "succeeded", (where, got))
                self.assertEqual(len(got["result_files"]), 1, where)
                outcomes.add(sha256(os.path.join(self.folder, "data/jobs", job, "adapter/adapter_model.safetensors")))
                self.assertEqual(len(outcomes), 1, where)
                found = s.json("GET", f"/v1/fine_tuning/jobs/{job}/events?limit=100")[1]["data"]
                steps = [e["data"]["step"] for e in found if e["type"] == "metrics"]
                self.assertEqual(steps, list(range(12, 0, -1)), where)
                ckpts = s.json("GET", f"/v1/fine_tuning/jobs/{job}/checkpoints")[1]["data"]
                self.assertEqual(ckpts[0]["step_number"], 12, where)

        self.try_points(("fsync", "fdatasync", "renameat", "write", "pwrite64", "unlinkat", "mkdirat"), work, check)


if __name__ == "__main__":
    unittest.main()
