"""A data folder on a disk of a few megabytes: what frees room works while it is full, jobs wait with a reason and go
on, a start succeeds, the log stays short. Needs to be allowed to mount a tmpfs; skipped where that is not so."""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import openai

from server import TINY, Server, wait_until

CLONE_NEWNS = 0x20000
LINES = [{"messages": [{"role": "user", "content": f"abab {i}"}, {"role": "assistant", "content": "cdcdcd"}]}
         for i in range(24)]
DATA = "".join(json.dumps(x) + "\n" for x in LINES).encode()


def may_mount():
    """In a namespace of this process's own, so that nobody else sees the mount."""
    if os.geteuid() or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0


class DiskFull(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not may_mount():
            raise unittest.SkipTest("may not mount")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="graft-full-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.cache = tempfile.mkdtemp(prefix="graft-full-cache-")
        self.addCleanup(shutil.rmtree, self.cache)

    def mount(self, size):
        r = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.folder], capture_output=True)
        if r.returncode:
            self.skipTest("cannot mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", self.folder])

    def start(self, *options):
        self.server = Server(TINY, "--served-model-name", "tiny", "--data-dir", self.folder, "--enable-lora",
                             "--cache-dir", self.cache, *options)
        self.addCleanup(self.server.stop)
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="x", max_retries=0)
        self.addCleanup(self.client.close)
        self.jobs = self.client.fine_tuning.jobs

    def fill(self):
        """Takes up all that is free."""
        with open(os.path.join(self.folder, "filler"), "ab", buffering=0) as f:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        f.write(b"x" * size)
                except OSError:
                    pass

    def upload(self, content=DATA):
        return self.client.files.create(file=("train.jsonl", content), purpose="fine-tune").id

    def create(self, epochs=4, **graft):
        return self.jobs.create(model="tiny", training_file=self.upload(), seed=5, extra_body={"graft": graft},
                                method={"type": "supervised",
                                        "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": 4}}}).id

    def admin(self, job):
        return self.server.json("GET", f"/admin/v1/jobs/{job}")[1]

    def wait(self, what):
        wait_until(what, lambda: "\n".join(self.server.log[-20:]))

    def refused(self, call):
        with self.assertRaises(openai.APIStatusError) as caught:
            call()
        self.assertEqual(caught.exception.status_code, 503)
        self.assertEqual(caught.exception.code, "disk_full")

    def test_frees_room(self):
        """Deletes, cancels and a restart, with not a byte free; afterwards all is as before."""
        self.mount("3m")
        self.start()
        self.assertGreater(os.path.getsize(os.path.join(self.folder, "reserve")), 100000)
        much = b'{"prompt": "a", "completion": "b"}\n' * 10000
        big = self.upload(much)
        small, other = self.upload(), self.upload()
        job = self.jobs.create(model="tiny", training_file=small, extra_body={"graft": {"priority": 9}},
                               hyperparameters={"n_epochs": 50}).id
        self.fill()
        self.refused(lambda: self.upload(3 * much))  # more than the job, which runs, may just have freed
        self.assertEqual(len(self.client.files.list().data), 3)
        self.assertEqual(self.jobs.cancel(job).status, "cancelled")
        self.client.files.delete(other)
        self.fill()
        self.client.files.delete(small)
        # A killed process starts again on the full disk, and knows all of this.
        self.fill()
        self.server.stop(signal.SIGKILL)
        self.fill()
        self.start()
        self.assertEqual([f.id for f in self.client.files.list()], [big])
        self.assertEqual(self.jobs.retrieve(job).status, "cancelled")
        self.refused(lambda: self.upload(3 * much))
        os.unlink(os.path.join(self.folder, "filler"))
        self.upload()
        self.assertTrue(os.path.exists(os.path.join(self.folder, "reserve")))
        self.client.files.delete(big)

    def test_job(self):
        """The disk fills while a job runs: it waits and says why, serving goes on, and it ends well once there is
        room."""
        self.mount("6m")
        self.start()
        job = self.create(epochs=50, save_steps=2)
        self.wait(lambda: self.admin(job).get("step", 0) >= 3)
        self.fill()
        self.wait(lambda: self.admin(job)["state"] == "queued")
        self.assertIn("disk_full", self.admin(job)["reason"])
        events = [e for e in self.jobs.list_events(job, limit=100) if "disk_full" in e.message]
        self.assertTrue(events)
        r = self.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=2)
        self.assertTrue(r.choices)
        before = len([line for line in self.server.log if "jobs:" in line])
        time.sleep(3)  # three turns of the control thread
        self.assertLessEqual(len([line for line in self.server.log if "jobs:" in line]) - before, 1)
        self.assertTrue(any("disk" in line and self.folder in line for line in self.server.log), self.server.log)
        self.jobs.cancel(job)
        self.assertEqual(self.jobs.retrieve(job).status, "cancelled")
        os.unlink(os.path.join(self.folder, "filler"))
        # Another one, which may take up what there is.
        job = self.create(epochs=2, save_steps=2)
        self.wait(lambda: self.jobs.retrieve(job).status == "succeeded")

    def test_goes_on(self):
        """A job that found the disk full goes on from its checkpoint by itself, and tells each step once."""
        self.mount("6m")
        self.start()
        job = self.create(epochs=25, save_steps=2)
        self.wait(lambda: self.admin(job).get("step", 0) >= 3)
        self.fill()
        self.wait(lambda: self.admin(job)["state"] == "queued")
        os.unlink(os.path.join(self.folder, "filler"))
        self.wait(lambda: self.jobs.retrieve(job).status == "succeeded")
        steps = [e.data["step"] for e in self.jobs.list_events(job, limit=100) if e.type == "metrics"]
        self.assertEqual(steps, sorted(set(steps), reverse=True))


if __name__ == "__main__":
    unittest.main()
