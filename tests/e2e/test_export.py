"""`graft export`, `graft verify`, and a server's job that goes on from its exported set on the command line with
the bits of a job that nobody disturbed."""
import csv
import hashlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest

import manifests
import test_finetune
from server import BIN, TINY, wait_until


class Export(test_finetune.Trainer):
    def setUp(self):
        super().setUp()
        self.sets = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, self.sets)

    def graft(self, *arguments):
        return subprocess.run([BIN, *arguments], capture_output=True, text=True)

    def export(self, job, name, *options, ok=True):
        output = os.path.join(self.sets, name)
        r = self.graft("export", job, "--data-dir", self.folder, "--output", output, *options)
        if ok:
            self.assertEqual(r.returncode, 0, r.stderr)
        return output, r

    def verify(self, folder, *options):
        r = self.graft("verify", folder, "--json", *options)
        return r.returncode, json.loads(r.stdout)

    def resume(self, folder, name, *options):
        output = os.path.join(self.sets, name)
        r = self.graft("train", "--model", TINY, "--resume", folder, "--output", output, "--cache-dir", self.folder, *options)
        return output, r

    def pause(self, job, step):
        """Stops it behind that step, with a checkpoint; returns the checkpoint's step."""
        self.wait_step(job, step)
        self.assertEqual(self.jobs.pause(job).status, "paused")
        wait_until(lambda: self.step(job) in [c.step_number for c in self.jobs.checkpoints.list(job).data])
        return self.step(job)

    def test_elsewhere(self):
        self.begin()
        v = self.client.files.create(file=("valid.jsonl", test_finetune.DATA), purpose="fine-tune").id
        for packing in (True, False):
            whole = self.create(epochs=12, validation_file=v, graft={"packing": packing})
            self.wait(self.client, whole.id, "succeeded")
            job = self.create(epochs=12, validation_file=v, graft={"packing": packing})
            at = self.pause(job.id, 9)
            output, _ = self.export(job.id, f"set-{packing}")  # while the server runs
            self.check_set(output, job.id, [at], adapter=False)
            ended, r = self.resume(output, f"run-{packing}")
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertIn(f"going on from step-{at}", r.stderr)
            sha = manifests.sha256(os.path.join(ended, "adapter/adapter_model.safetensors"))
            self.assertEqual(sha, self.adapter(whole.id))
            m = manifests.check(self, os.path.join(ended, "adapter"), "adapter")
            self.assertEqual((m["run_id"], len(m["kernel_sets"])), (job.id, 1))
            with open(os.path.join(ended, "metrics.csv"), encoding="utf-8") as f:
                self.assertEqual([int(x["step"]) for x in csv.DictReader(f)], list(range(1, 73)))
            self.assertEqual(self.verify(ended, "--model", TINY, "--cache-dir", self.folder)[0], 0)
            # The set stays as it was, and the job goes on in its server, too.
            self.check_set(output, job.id, [at], adapter=False)
            self.jobs.resume(job.id)
            self.wait(self.client, job.id, "succeeded")
            self.assertEqual(self.adapter(job.id), sha)
        self.server.stop()
        # A job that has ended, without its server, with every checkpoint.
        output, _ = self.export(job.id, "ended", "--checkpoints", "all")
        steps = [int(x[5:]) for x in os.listdir(os.path.join(self.folder, "jobs", job.id, "checkpoints"))]
        self.assertGreater(len(steps), 1)
        self.check_set(output, job.id, steps, adapter=True)
        _, r = self.export(job.id, "without", "--checkpoints", "none")
        self.assertFalse(os.path.exists(os.path.join(self.sets, "without/checkpoints")))

    def check_set(self, output, job, steps, adapter):
        m = manifests.check(self, output, "export")
        self.assertEqual(m["run_id"], job)
        data = hashlib.sha256(test_finetune.DATA).hexdigest()
        for name in ("training", "validation"):
            self.assertEqual(m["files"][f"data/{name}.jsonl"]["sha256"], data)
        self.assertEqual((m["dataset_digest"], m["validation_digest"]), (data, data))
        self.assertEqual(m["base_digest"], manifests.sha256(TINY))
        self.assertEqual(m["template_digest"], m["files"]["chat_template.jinja"]["sha256"])
        folders = [(f"checkpoints/step-{s}", "checkpoint") for s in steps] + ([("adapter", "adapter")] if adapter else [])
        for folder, kind in folders:
            self.assertEqual(manifests.check(self, os.path.join(output, folder), kind)["hyperparameters"], m["hyperparameters"])
        for f in ("run.json", "metrics.csv", "job.json", "events.jsonl"):
            self.assertIn(f, m["files"])
        self.assertEqual(sorted(os.listdir(os.path.join(output, "checkpoints"))), sorted(f"step-{s}" for s in steps))
        with open(os.path.join(output, "job.json"), encoding="utf-8") as f:
            record = json.load(f)
        self.assertEqual(record["job"]["id"], job)
        self.assertEqual({x["sha256"] for x in record["files"][:2]}, {data})
        self.assertTrue(set(steps) <= {c["step_number"] for c in record["checkpoints"]})
        with open(os.path.join(output, "events.jsonl"), encoding="utf-8") as f:
            events = [json.loads(x) for x in f]
        self.assertEqual(events[0]["message"], "Created fine-tuning job: " + job)
        self.assertEqual([e["data"]["step"] for e in events if e["type"] == "metrics"], list(range(1, max(steps) + 1)))
        code, found = self.verify(output, "--model", TINY, "--cache-dir", self.folder)
        self.assertEqual((code, found["kind"], found["wrong"]), (0, "exported set", 0), found)
        self.assertEqual(sorted(x["file"] for x in found["files"]), manifests.below(output))

    def test_running(self):
        self.begin()
        job = self.create(epochs=50, batch=1, graft={"save_steps": 2})
        self.wait_step(job.id, 4)
        for i in range(12):  # checkpoints come and go meanwhile
            output, _ = self.export(job.id, f"set-{i}", *(("--checkpoints", "all") if i % 2 else ()))
            manifests.check(self, output, "export")
            code, found = self.verify(output)
            self.assertEqual(code, 0, found)
            self.assertIn("checkpoints/step-", json.dumps(found))
        self.assertEqual(self.jobs.retrieve(job.id).status, "running")

    def test_damage(self):
        self.begin()
        job = self.create(epochs=1, graft={"evaluation": {"sample_prompts": ["abab 1"]}})
        self.wait(self.client, job.id, "succeeded")
        output, _ = self.export(job.id, "set")
        with open(os.path.join(output, "samples.json"), encoding="utf-8") as f:
            self.assertIn("abab 1", json.dumps(json.load(f)))
        draw = random.Random(3)
        for name in manifests.below(output):
            path = os.path.join(output, name)
            with open(path, "rb") as f:
                content = f.read()
            for at in {0, len(content) - 1, *(draw.randrange(len(content)) for _ in range(4))}:
                with open(path, "r+b") as f:
                    f.seek(at)
                    f.write(bytes([content[at] ^ 1 << draw.randrange(8)]))
                r = self.graft("verify", output)
                self.assertEqual(r.returncode, 1, (name, at))
                self.assertIn("WRONG", r.stdout)
                if not name.endswith("COMPLETE"):
                    self.assertTrue(any(x.startswith("WRONG " + name) for x in r.stdout.splitlines()), (name, at, r.stdout))
                with open(path, "r+b") as f:
                    f.seek(at)
                    f.write(content[at : at + 1])
            os.rename(path, path + ".gone")
            self.assertEqual(self.graft("verify", output).returncode, 1, name)
            os.rename(path + ".gone", path)
        self.assertEqual(self.graft("verify", output).returncode, 0)
        # Nothing is gone on with from a set that is damaged.
        with open(os.path.join(output, "data/training.jsonl"), "ab") as f:
            f.write(b"\n")
        _, r = self.resume(output, "run")
        self.assertEqual(r.returncode, 1)
        self.assertIn("is damaged: data/training.jsonl", r.stderr)

    def test_refused(self):
        self.begin()
        job = self.create(epochs=1)
        self.wait(self.client, job.id, "succeeded")
        output, _ = self.export(job.id, "set")
        _, r = self.export(job.id, "set", ok=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn(f"{output} is not empty: it holds", r.stderr)
        link = os.path.join(self.sets, "link")
        os.symlink(os.path.join(self.folder, "jobs"), link)
        for name in (self.folder, self.folder + "/jobs/zz//", self.sets + "/../" + os.path.basename(self.folder) + "/zz",
                     link, link + "/zz"):
            _, r = self.export(job.id, name, ok=False)
            self.assertEqual(r.returncode, 1)
            self.assertIn(f"--output {name} is inside the data folder", r.stderr)
        self.assertEqual(os.listdir(link), [job.id])
        r = subprocess.run([BIN, "export", job.id, "--data-dir", ".", "--output", "zz"], cwd=self.folder,
                           capture_output=True, text=True)
        self.assertIn("--output zz is inside the data folder", r.stderr)
        self.export(job.id, self.folder + "-beside")
        shutil.rmtree(self.folder + "-beside")
        _, r = self.export("ftjob-none", "other", ok=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn("has no job ftjob-none", r.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.sets, "other")))
        r = self.graft("export", job.id, "--data-dir", output, "--output", os.path.join(self.sets, "other"))
        self.assertEqual(r.returncode, 1)
        self.assertIn("it has no graft.db", r.stderr)
        self.assertEqual(self.graft("export", job.id).returncode, 2)
        # A set stays as it is.
        r = self.graft("train", "--model", TINY, "--resume", output)
        self.assertEqual(r.returncode, 1)
        self.assertIn("is an exported set and stays as it is", r.stderr)
        self.assertEqual(self.graft("verify", self.folder).returncode, 1)
        self.assertEqual(self.graft("verify").returncode, 2)

    def test_deleted_file(self):
        self.begin()
        job = self.create(epochs=3)
        whole = self.wait(self.client, job.id, "succeeded")
        self.client.files.delete(job.training_file)
        output, r = self.export(job.id, "set")
        self.assertIn("was deleted; the set has the tokens", r.stderr)
        self.assertEqual(self.graft("verify", output).returncode, 0)
        ended, r = self.resume(output, "run")
        self.assertEqual(r.returncode, 0, r.stderr)
        sha = manifests.sha256(os.path.join(ended, "adapter/adapter_model.safetensors"))
        self.assertEqual(sha, self.adapter(whole.id))


if __name__ == "__main__":
    unittest.main()
