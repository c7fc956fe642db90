"""`graft train`: from a JSONL file to an adapter; killed and resumed with the same bits; what it refuses."""
import csv
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import manifests
from server import BIN, TINY


class Train(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="graft-train-")
        self.data = self.write("data.jsonl", [self.chat(f"What is {i}?", f"It is {i * i}.") for i in range(30)])
        self.validation = self.write("valid.jsonl", [self.chat(f"Say {i}", f"{i}") for i in range(5)])

    def tearDown(self):
        shutil.rmtree(self.folder)

    @staticmethod
    def chat(question, answer):
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    def write(self, name, lines):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines)
        return path

    def command(self, output, *options):
        return [BIN, "train", "--model", TINY, "--data", self.data, "--validation", self.validation, "--output", output,
                "--epochs", "6", "--batch-size", "3", "--learning-rate", "1e-3", "--lora-r", "8", "--lora-dropout",
                "0.1", "--save-steps", "7", "--eval-steps", "20", "--cache-dir", self.folder, *options]

    def train(self, name, *options):
        output = os.path.join(self.folder, name)
        return output, subprocess.run(self.command(output, *options), capture_output=True, text=True)

    @staticmethod
    def digest(path):
        with open(path, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()

    def outcome(self, output):
        last = os.path.join(output, "checkpoints/step-60")
        return [self.digest(os.path.join(output, "adapter/adapter_model.safetensors"))] + [
            self.digest(os.path.join(last, f)) for f in ("adapter_model.safetensors", "optimizer.safetensors",
                                                         "trainer_state.json")]

    def test_run(self):
        output, r = self.train("out")
        self.assertEqual(r.returncode, 0, r.stderr)
        for f in ("loss.svg", "metrics.csv", "adapter/adapter_config.json"):
            self.assertTrue(os.path.getsize(os.path.join(output, f)), f)
        with open(os.path.join(output, "metrics.csv"), encoding="utf-8") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([int(x["step"]) for x in rows], list(range(1, 61)))
        self.assertLess(float(rows[-1]["train_loss"]), float(rows[0]["train_loss"]) - 0.5)
        self.assertEqual([int(x["step"]) for x in rows if x["valid_loss"]], [20, 40, 60])
        self.assertEqual(sorted(os.listdir(os.path.join(output, "checkpoints"))), ["step-56", "step-60"])
        with open(os.path.join(output, "adapter/adapter_config.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["r"], 8)
        with open(os.path.join(output, "adapter/adapter_model.safetensors"), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        self.assertEqual(len([k for k in header if k != "__metadata__"]), 2 * 7 * 2)
        self.manifests(output)
        # The same command is refused, and with --resume has nothing left to do.
        before = self.outcome(output)
        _, r = self.train("out")
        self.assertEqual(r.returncode, 1)
        self.assertIn("--resume", r.stderr)
        _, r = self.train("out", "--resume")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(self.outcome(output), before)
        # Other hyperparameters are another run.
        _, r = self.train("out", "--resume", "--learning-rate", "5e-4")
        self.assertEqual(r.returncode, 1)
        self.assertIn("--learning-rate is 0.0005, and 0.001 in run.json", r.stderr)

    def manifests(self, output):
        with open(self.data, "rb") as f, open(self.validation, "rb") as v, open(TINY, "rb") as m:
            data, validation, base = (hashlib.sha256(x.read()).hexdigest() for x in (f, v, m))
        found = [manifests.check(self, os.path.join(output, f), kind) for f, kind in
                 (("checkpoints/step-56", "checkpoint"), ("checkpoints/step-60", "checkpoint"), ("adapter", "adapter"))]
        for m in found:
            self.assertEqual((m["base_digest"], m["dataset_digest"], m["validation_digest"]), (base, data, validation))
            self.assertEqual((m["method"], m["seed"], m["retention_class"]), ("supervised", 42, None))
            self.assertEqual(m["kernel_sets"], [{"from_step": 0, "kernel_set": m["kernel_set"]}])
            self.assertRegex(m["tokenizer_digest"], "^[0-9a-f]{64}$")
            self.assertRegex(m["template_digest"], "^[0-9a-f]{64}$")
            self.assertLess(abs(m["created_at"] - time.time()), 600)
            hyper = m["hyperparameters"]
            self.assertEqual((hyper["epochs"], hyper["batch_size"], hyper["lora_r"], hyper["lora_dropout"]), (6, 3, 8, 0.1))
        self.assertEqual([m["parent"] for m in found], ["step-49", "step-56", "step-60"])
        self.assertEqual([m["metrics"]["step"] for m in found], [56, 60, 60])

    def test_killed(self):
        whole, r = self.train("whole")
        self.assertEqual(r.returncode, 0, r.stderr)
        output, kills, resume = os.path.join(self.folder, "killed"), 0, []
        for i in range(200):
            p = subprocess.Popen(self.command(output, *resume), stderr=subprocess.PIPE, text=True)
            for line in p.stderr:
                if line.startswith("step ") or "trainable" in line:
                    break
            time.sleep(0.02 * (i % 5))
            p.send_signal(signal.SIGINT if i % 3 == 2 else signal.SIGKILL)
            text = p.stderr.read()
            code = p.wait()
            p.stderr.close()
            if code == 0:
                break
            self.assertIn(code, (-signal.SIGKILL, 3), text)
            kills += 1
            # Before the first checkpoint a run begins anew.
            there = os.path.isdir(os.path.join(output, "checkpoints")) and any(
                x.startswith("step-") for x in os.listdir(os.path.join(output, "checkpoints")))
            resume = ["--resume"] if there else []
            if not there:
                shutil.rmtree(output, ignore_errors=True)
            if kills == 12:
                r = subprocess.run(self.command(output, *resume), capture_output=True, text=True)
                self.assertEqual(r.returncode, 0, r.stderr)
                break
        self.assertGreater(kills, 1)
        self.assertEqual(self.outcome(output), self.outcome(whole))

    def stop_at(self, output, step, *options):
        """A run that is stopped behind that step; False if it ended before."""
        p = subprocess.Popen(self.command(output, *options), stderr=subprocess.PIPE, text=True)
        path = os.path.join(output, "metrics.csv")
        while p.poll() is None:
            if os.path.exists(path) and open(path, encoding="utf-8").read().count("\n") > step:
                p.send_signal(signal.SIGINT)
                break
            time.sleep(0.005)
        text = p.stderr.read()
        p.stderr.close()
        self.assertIn(p.wait(), (0, 3), text)
        return p.returncode == 3

    def resume(self, *options):
        return subprocess.run([BIN, "train", "--model", TINY, "--cache-dir", self.folder, "--resume", *options],
                              capture_output=True, text=True)

    def test_elsewhere(self):
        whole, r = self.train("whole")
        self.assertEqual(r.returncode, 0, r.stderr)
        begun = os.path.join(self.folder, "begun")
        self.assertTrue(self.stop_at(begun, 20))
        # Another machine: the folder alone, without the data files.
        there = os.path.join(self.folder, "there")
        shutil.copytree(begun, there)
        os.rename(self.data, self.data + ".gone")
        os.rename(self.validation, self.validation + ".gone")
        at = sorted(int(x[5:]) for x in os.listdir(os.path.join(there, "checkpoints")))[-1]
        self.assertGreater(at, 19)
        # In a folder of its own; nothing but the model is named.
        output = os.path.join(self.folder, "output")
        r = self.resume(there, "--output", output)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(f"taking step-{at} over from", r.stderr)
        self.assertEqual(self.outcome(output), self.outcome(whole))
        with open(os.path.join(output, "metrics.csv"), encoding="utf-8") as f:
            self.assertEqual([int(x["step"]) for x in csv.DictReader(f)], list(range(1, 61)))
        m = manifests.check(self, os.path.join(output, "adapter"), "adapter")
        self.assertEqual(m["run_id"], json.load(open(os.path.join(begun, "run.json"), encoding="utf-8"))["run_id"])
        # In place.
        r = self.resume(there)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(self.outcome(there), self.outcome(whole))
        # A folder that holds a run is not written over.
        r = self.resume(begun, "--output", output)
        self.assertEqual(r.returncode, 1)
        self.assertIn("holds a run already; go on with that one by --resume", r.stderr)

    def test_elsewhere_dpo(self):
        ask = lambda i: {"messages": [{"role": "user", "content": f"What is {i}?"}]}
        answer = lambda text: [{"role": "assistant", "content": text}]
        self.data = self.write("pairs.jsonl", [
            {"input": ask(i), "preferred_output": answer(f"It is {i * i}."), "non_preferred_output": answer("No.")}
            for i in range(20)])
        self.validation, options = self.data, ("--method", "dpo", "--epochs", "3", "--no-packing")
        whole, r = self.train("whole", *options)
        self.assertEqual(r.returncode, 0, r.stderr)
        begun, output = os.path.join(self.folder, "begun"), os.path.join(self.folder, "output")
        self.assertTrue(self.stop_at(begun, 8, *options))
        r = self.resume(begun, "--output", output)
        self.assertEqual(r.returncode, 0, r.stderr)
        for f in ("adapter/adapter_model.safetensors", "checkpoints/step-21/optimizer.safetensors"):
            self.assertEqual(self.digest(os.path.join(output, f)), self.digest(os.path.join(whole, f)))

    def test_other_kernel_set(self):
        begun, output = os.path.join(self.folder, "begun"), os.path.join(self.folder, "output")
        self.assertTrue(self.stop_at(begun, 10))
        r = self.resume(begun, "--output", output, "--isa", "portable")
        self.assertEqual(r.returncode, 0, r.stderr)
        sets = manifests.check(self, os.path.join(output, "adapter"), "adapter")["kernel_sets"]
        first = json.load(open(os.path.join(begun, "run.json"), encoding="utf-8"))["kernel_set"]
        self.assertEqual(sets[0], {"from_step": 0, "kernel_set": first})
        if "portable" not in first:
            self.assertIn("warning: step-", r.stderr)
            self.assertEqual(len(sets), 2)
            self.assertIn("portable", sets[1]["kernel_set"])
            self.assertGreaterEqual(sets[1]["from_step"], 10)

    def test_resume_refused(self):
        begun, output = os.path.join(self.folder, "begun"), os.path.join(self.folder, "output")
        self.assertTrue(self.stop_at(begun, 10))
        newest = sorted(os.listdir(os.path.join(begun, "checkpoints")), key=lambda x: int(x[5:]))[-1]
        for options, said in (
                ((begun, "--output", output, "--batch-size", "4"), "--batch-size is 4, and 3 in run.json; leave it out"),
                ((begun, "--output", output, "--target-modules", "q_proj"), "--target-modules names other layers"),
                ((self.folder, "--output", output), "it has no run.json"),
                ((os.path.join(begun, "checkpoints", newest), "--output", output), "is a checkpoint alone"),
                ((os.path.join(self.folder, "none"), "--output", output), "none"),
                ((begun, "--output", output, "--data", TINY), "")):
            r = self.resume(*options)
            self.assertEqual(r.returncode, 1, options)
            self.assertIn(said, r.stderr)
        other = os.path.join(os.path.dirname(TINY), "f32.gguf")
        r = subprocess.run([BIN, "train", "--model", other, "--cache-dir", self.folder, "--resume", begun, "--output",
                            output], capture_output=True, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("the content of --model is not the run's", r.stderr)
        # What is the same may be said, and how often is saved may change.
        r = self.resume(begun, "--output", output, "--batch-size", "3", "--target-modules", "all-linear", "--save-steps", "9")
        self.assertEqual(r.returncode, 0, r.stderr)
        # A run that ended before its first checkpoint.
        shutil.rmtree(os.path.join(begun, "checkpoints"))
        os.mkdir(os.path.join(begun, "checkpoints"))
        r = self.resume(begun)
        self.assertEqual(r.returncode, 1)
        self.assertIn(os.path.join(begun, "checkpoints") + " holds no checkpoint", r.stderr)

    def test_refusals(self):
        for options, said in ((["--lora-r", "300"], "lora-r"), (["--target-modules", "w_proj"], "q_proj"),
                              (["--max-seq-length", "100000"], "context"), (["--method", "ppo"], "method")):
            _, r = self.train("refused", *options)
            self.assertNotEqual(r.returncode, 0)
            self.assertIn(said, r.stderr)
        output, _ = self.train("refused", "--max-seq-length", "100000")
        self.assertFalse(os.path.exists(output))
        good, self.data = self.data, self.write("bad.jsonl", [self.chat("a", "b"), {"messages": [{"role": "king", "content": "x"}]}])
        _, r = self.train("refused")
        self.assertEqual(r.returncode, 1)
        self.assertEqual(r.stderr.count("line 2"), 1, r.stderr)
        self.assertIn("bad.jsonl has 1 error; nothing was trained", r.stderr)
        self.assertFalse(os.path.exists(output))
        os.mkdir(output)  # somebody's own: it stays, with what lies in it
        for name in ("note.txt", "validation.tokens"):
            with open(os.path.join(output, name), "w", encoding="utf-8") as f:
                f.write("x")
        _, r = self.train("refused")
        self.assertEqual(sorted(os.listdir(output)), ["note.txt", "validation.tokens"])
        bad, self.data = self.data, good
        _, r = self.train("refused", "--validation", bad)  # found once the training file has become tokens
        self.assertEqual(r.returncode, 1)
        self.assertEqual(sorted(os.listdir(output)), ["note.txt", "validation.tokens"])
        self.data = bad
        self.data = self.write("few.jsonl", [self.chat("a", "b")] * 3)
        _, r = self.train("few", "--target-modules", "all-linear")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("note: 3 examples; a job in a server must have at least 10", r.stderr)
        # None of these was a run yet: the folder takes one. Then it holds one.
        self.data = good
        _, r = self.train("refused")
        self.assertEqual(r.returncode, 0, r.stderr)
        _, r = self.train("refused")
        self.assertEqual(r.returncode, 1)
        self.assertIn("holds a run already", r.stderr)
        self.assertEqual(subprocess.run([BIN, "train"], capture_output=True).returncode, 2)
        self.assertEqual(subprocess.run([BIN, "train", "--help"], capture_output=True).returncode, 0)


if __name__ == "__main__":
    unittest.main()
