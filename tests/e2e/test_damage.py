"""What the disk has damaged or lost: files, token caches, checkpoints. And jobs that cannot go well: each ends with a
code that says why, or goes on with what is whole."""
import os
import random
import shutil
import struct
import tempfile
import unittest

import test_finetune
import test_kill


class Damage(test_finetune.Trainer):
    """Jobs are validated by a server that trains none, then something happens to the data folder, then one trains."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="graft-damage-", dir=test_kill.MEMORY)
        self.addCleanup(shutil.rmtree, self.folder)

    def validated(self, n=1):
        self.server = self.start()
        self.addCleanup(self.server.stop)
        self.client = self.connect(self.server)
        self.jobs = self.client.fine_tuning.jobs
        made = []
        for _ in range(n):
            job = self.create(epochs=2, graft={"save_steps": 2})
            self.wait(self.client, job.id, "queued")
            made.append((job.id, job.training_file))
        self.server.stop()
        return made

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    @staticmethod
    def flip(path, at):
        with open(path, "r+b") as f:
            f.seek(at)
            old = f.read(1)
            f.seek(at)
            f.write(bytes([old[0] ^ 4]))

    def test_token_cache(self):
        """A cache that is gone, cut, or has any byte changed is made again."""
        choose = random.Random(5)
        made = self.validated(4)
        caches = [self.path("jobs", job, "training.tokens") for job, _ in made]
        os.unlink(caches[0])
        os.truncate(caches[1], os.path.getsize(caches[1]) // 2)
        for cache in caches[2:]:  # a sample's bytes, which are looked at when it is read; and anywhere
            self.flip(cache, 100 if cache == caches[2] else choose.randrange(os.path.getsize(cache)))
        self.begin()
        results = set()
        for job, _ in made:
            got = self.wait(self.client, job, "succeeded")
            results.add(self.adapter(job))
            steps = [e.data["step"] for e in self.jobs.list_events(job, limit=100) if e.type == "metrics"]
            self.assertEqual(steps, list(range(12, 0, -1)), got)
        self.assertEqual(len(results), 1)

    def test_content(self):
        """Files that are gone or changed: their jobs fail and say so, and so do the files from then on."""
        made = self.validated(3)
        for job, _ in made:
            os.unlink(self.path("jobs", job, "training.tokens"))
        os.unlink(self.path("files", made[0][1]))
        self.flip(self.path("files", made[1][1]), 30)  # a letter: still valid JSON
        self.flip(self.path("files", made[2][1]), 0)  # no JSON any more
        self.begin()
        for (job, file), code in zip(made, ("file_missing", "file_damaged", "file_damaged")):
            error = self.wait(self.client, job, "failed").error
            self.assertEqual((error.code, error.param), (code, "training_file"))
            self.assertIn(file, error.message)
            f = self.client.files.retrieve(file)
            self.assertEqual(f.status, "error")
            self.assertTrue(f.status_details)
            status, answer = self.server.json("POST", "/v1/fine_tuning/jobs", {"model": "tiny", "training_file": file})
            self.assertEqual(status, 400)
            self.assertIn("damaged", answer["error"]["message"])
            self.client.files.delete(file)

    def checkpoints(self, job):
        return sorted(int(x[5:]) for x in os.listdir(self.path("jobs", job, "checkpoints")) if x.startswith("step-"))

    def test_checkpoint(self):
        """The newest checkpoint is damaged: the one before is taken, the reason told, the bits are the same."""
        self.begin()
        undisturbed = self.create(epochs=20, graft={"save_steps": 2}).id
        self.wait(self.client, undisturbed, "succeeded")
        choose = random.Random(7)
        for name in ("adapter_model.safetensors", "optimizer.safetensors", "manifest.json"):
            job = self.create(epochs=20, graft={"save_steps": 2}).id
            self.wait_step(job, 5)
            self.jobs.pause(job)
            self.server.stop()
            newest = f"step-{self.checkpoints(job)[-1]}"
            path = self.path("jobs", job, "checkpoints", newest, name)
            self.flip(path, choose.randrange(os.path.getsize(path) - 1))
            self.begin()
            self.jobs.resume(job)
            self.wait(self.client, job, "succeeded")
            events = [e for e in self.jobs.list_events(job, limit=100)]
            self.assertTrue(any(e.message.startswith(f"skipping {newest}: ") for e in events), name)
            self.assertEqual(self.adapter(job), self.adapter(undisturbed), name)

    def test_not_finite(self):
        """A loss that is not finite ends the job, with a line of its data; it is not tried again."""
        model = self.path("huge.gguf")
        with open(os.path.join(test_kill.ROOT, "tests/golden/models/f32.gguf"), "rb") as f:
            content = bytearray(f.read())
        row = 6624 + 280 * 128  # of the embedding, which comes first
        content[row:row + 128] = struct.pack("<32f", *[3e38] * 32)
        with open(model, "wb") as f:
            f.write(content)
        self.model = model
        self.begin()
        job = self.create().id
        error = self.wait(self.client, job, "failed").error
        self.assertEqual(error.code, "non_finite_loss")
        self.assertRegex(error.message, r"line \d+")
        events = [e.message for e in self.jobs.list_events(job)]
        self.assertEqual(len([e for e in events if "back to the queue" in e]), 0)

    def test_no_digest(self):
        """The model's digest cannot be made: jobs fail and say so instead of waiting for ever."""
        if not test_kill.may_trace():
            self.skipTest("may not trace")
        log = self.path("log")
        s = self.start("--enable-lora", prefix=test_kill.tracer("trace=fcntl", log=log))
        s.stop()
        for x in set(os.listdir(self.folder)) - {"log"}:  # as new, so that the calls are the same
            shutil.rmtree(self.path(x)) if os.path.isdir(self.path(x)) else os.unlink(self.path(x))
        calls = [line.split(None, 1) for line in open(log, encoding="utf-8")]
        at = next(i for i, (_, call) in enumerate(calls) if "F_DUPFD_CLOEXEC" in call)
        n = sum(thread == calls[at][0] for thread, _ in calls[:at + 1])
        inject = test_kill.tracer("trace=fcntl", f"inject=fcntl:error=EMFILE:when={n}")
        self.server = self.start("--enable-lora", prefix=inject)
        self.addCleanup(self.server.stop)
        self.client = self.connect(self.server)
        self.jobs = self.client.fine_tuning.jobs
        error = self.wait(self.client, self.create().id, "failed").error
        self.assertEqual((error.code, error.param), ("cannot_start", "model"))
        self.assertIn("digest", error.message)


if __name__ == "__main__":
    unittest.main()
