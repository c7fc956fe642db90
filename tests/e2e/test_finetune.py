"""Fine-tuning end to end with the official SDK: a job trains beside serving, its model answers otherwise than the
base; pause, resume, cancel, preemption; killed at any time it ends with the same bits."""
import hashlib
import json
import os
import signal
import threading
import time
import unittest

import openai

import manifests
import test_jobs
from server import TINY, wait_until

ANSWER = "cdcdcdcdcdcd"
LINES = [{"messages": [{"role": "user", "content": f"abab {i}"}, {"role": "assistant", "content": ANSWER}]}
         for i in range(24)]
DATA = "".join(json.dumps(x) + "\n" for x in LINES).encode()
ASK = {"messages": [{"role": "user", "content": "abab 3"}], "max_tokens": 8, "temperature": 0}


class Trainer(test_jobs.Folder):
    def begin(self, *options, folder=None):
        if folder:
            self.folder = folder
        self.server = self.start("--enable-lora", "--cache-dir", self.folder, *options)
        self.addCleanup(self.server.stop)
        self.client = self.connect(self.server)
        self.jobs = self.client.fine_tuning.jobs

    def create(self, epochs=4, batch=4, **more):
        graft = {"lora": {"r": 8, "dropout": 0.1}, "learning_rate": 1e-2, **more.pop("graft", {})}
        f = self.client.files.create(file=("train.jsonl", DATA), purpose="fine-tune").id
        hyper = {"n_epochs": epochs, "batch_size": batch}
        return self.jobs.create(model="tiny", training_file=f, seed=5,
                                method={"type": "supervised", "supervised": {"hyperparameters": hyper}},
                                extra_body={"graft": graft}, **more)

    def ask(self, model):
        r = self.client.chat.completions.create(model=model, **ASK)
        return r.choices[0].message.content

    def step(self, job):
        return self.server.json("GET", f"/admin/v1/jobs/{job}")[1].get("step", 0)

    def wait_step(self, job, step):
        wait_until(lambda: self.step(job) >= step, lambda: self.jobs.retrieve(job))

    def adapter(self, job):
        with open(os.path.join(self.folder, "jobs", job, "adapter/adapter_model.safetensors"), "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()


class FineTune(Trainer):
    def test_life(self):
        self.begin()
        before = self.ask("tiny")
        v = self.client.files.create(file=("valid.jsonl", DATA), purpose="fine-tune").id
        job = self.create(validation_file=v, suffix="letters", graft={"retention_class": "keep"})
        job = self.wait(self.client, job.id, "succeeded")
        name = job.fine_tuned_model
        self.assertRegex(name, r"^ft:tiny:graft:letters:[0-9A-Za-z]+$")
        self.assertGreater(job.trained_tokens, 0)
        self.assertEqual(job.hyperparameters.batch_size, 4)
        self.assertEqual(job.hyperparameters.learning_rate_multiplier, 1)
        after = self.ask(name)
        self.assertNotEqual(after, before)
        self.assertTrue(ANSWER.startswith(after) or after.startswith(ANSWER), after)
        self.assertEqual(self.ask("tiny"), before)
        self.assertIn(name, [m.id for m in self.client.models.list()])
        found = [e for e in self.jobs.list_events(job.id, limit=50)]
        steps = [e.data for e in reversed(found) if e.type == "metrics"]
        self.assertEqual([x["step"] for x in steps], list(range(1, 25)))
        self.assertLess(steps[-1]["train_loss"], steps[0]["train_loss"] / 2)
        self.assertLess(steps[-1]["full_valid_loss"], steps[0]["train_loss"] / 2)
        ckpts = self.jobs.checkpoints.list(job.id).data
        self.assertEqual(ckpts[0].step_number, 24)
        self.assertEqual(ckpts[0].fine_tuned_model_checkpoint, name + ":ckpt-step-24")
        self.pages_of_checkpoints(job.id, ckpts)
        with self.assertRaises(openai.BadRequestError):
            self.jobs.cancel(job.id)
        times = self.server.json("GET", f"/admin/v1/jobs/{job.id}")[1]["times"]
        order = ["accepted", "queued", "assigned", "prepared", "first_step", "last_checkpoint", "finished"]
        self.assertEqual([times[k] for k in order], sorted(times[k] for k in order))
        self.assertEqual(set(times), set(order))
        csv = self.client.files.content(job.result_files[0]).text.splitlines()
        self.assertTrue(csv[0].startswith("step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"))
        self.assertEqual(len(csv), 25)
        self.manifests(job.id)
        lines = self.server.request("GET", "/metrics")[2].decode().splitlines()
        for line in ("graft_training_steps_total 24", f"graft_training_tokens_total {job.trained_tokens}",
                     'graft_jobs{state="succeeded"} 1', 'graft_jobs_finished_total{outcome="succeeded"} 1',
                     'graft_adapter_versions{status="active"} 1'):
            self.assertIn(line, lines)
        self.assertIn(f"{job.id}: published as {name}", "\n".join(self.server.log))
        # Another start serves it still.
        self.server.stop()
        self.assertRegex(self.server.log[-1], r" stopped$")
        self.begin()
        self.assertEqual(self.ask(name), after)

    def pages_of_checkpoints(self, job, newest):
        steps = [c.step_number for c in self.jobs.checkpoints.list(job, limit=2)]  # the SDK follows the pages
        self.assertEqual(steps, sorted(steps, reverse=True))
        self.assertGreater(len(steps), 2)
        at = f"/v1/fine_tuning/jobs/{job}/checkpoints"
        page = self.server.json("GET", at + "?limit=2")[1]
        ids = [c["id"] for c in page["data"]]
        self.assertEqual((page["first_id"], page["last_id"], page["has_more"]), (ids[0], ids[-1], True))
        self.assertEqual(ids, [c.id for c in newest[:2]])
        keys = {"step", "train_loss", "train_mean_token_accuracy"}
        for c in newest:
            self.assertEqual(c.fine_tuning_job_id, job)
            self.assertLessEqual(keys, set(c.metrics.to_dict()))
        self.assertIsNotNone(newest[0].metrics.full_valid_loss)
        last = self.server.json("GET", f"{at}?after={ids[-1]}&limit=100")[1]
        self.assertEqual([c["step_number"] for c in last["data"]], steps[2:])
        self.assertFalse(last["has_more"])
        for query, status in (("limit=0", 400), ("limit=101", 400), ("after=ftckpt_none", 404)):
            self.assertEqual(self.server.json("GET", f"{at}?{query}")[0], status, query)

    def manifests(self, job):
        folder = os.path.join(self.folder, "jobs", job)
        for name, kind in (("checkpoints/step-24", "checkpoint"), ("adapter", "adapter")):
            m = manifests.check(self, os.path.join(folder, name), kind)
            self.assertEqual((m["run_id"], m["retention_class"], m["seed"]), (job, "keep", 5))
            self.assertEqual(m["dataset_digest"], hashlib.sha256(DATA).hexdigest())
            self.assertEqual(m["base_digest"], manifests.sha256(TINY))
            self.assertRegex(m["tokenizer_digest"], "^[0-9a-f]{64}$")
            self.assertRegex(m["template_digest"], "^[0-9a-f]{64}$")

    def test_pause_and_cancel(self):
        self.begin()
        job = self.create(epochs=50, batch=1, graft={"save_steps": 1000})
        self.wait_step(job.id, 3)
        self.assertEqual(self.jobs.pause(job.id).status, "paused")
        wait_until(lambda: self.jobs.checkpoints.list(job.id).data)  # it ends with a checkpoint
        at = self.jobs.checkpoints.list(job.id).data[0].step_number
        time.sleep(0.2)
        self.assertEqual(self.step(job.id), at)
        self.jobs.resume(job.id)
        self.wait_step(job.id, at + 2)
        # A more urgent job comes first.
        urgent = self.create(epochs=1, graft={"priority": -1})
        self.wait(self.client, urgent.id, "succeeded")
        self.assertIn(self.jobs.retrieve(job.id).status, ("queued", "running"))
        self.assertIn("preempted", "".join(e.message for e in self.jobs.list_events(job.id, limit=100)))
        self.assertEqual(self.jobs.cancel(job.id).status, "cancelled")
        other = self.create(epochs=1)
        self.wait(self.client, other.id, "succeeded")
        self.assertEqual(self.jobs.retrieve(job.id).status, "cancelled")

    def test_colocation(self):
        self.begin("--slo-itl-ms", "40", "--slo-ttft-ms", "60000")
        seen = lambda: self.server.json("GET", "/admin/v1/colocation")[1]
        quiet = seen()
        nothing = {"state_bytes": 0, "state_in_file_bytes": 0, "activation_bytes": 0, "state_taken": 0}
        self.assertEqual(quiet["training"], {"job": None, "reason": None, "memory": nothing})
        self.assertEqual(quiet["engines"][0]["slo"], {"itl_ms": 40, "ttft_ms": 60000})
        self.assertEqual(quiet["engines"][0]["all"]["slices"]["count"], 0)
        job = self.create(epochs=50, batch=1, graft={"save_steps": 1000})
        self.wait_step(job.id, 3)
        busy = seen()
        self.assertEqual(busy["training"]["job"], job.id)
        e = busy["engines"][-1]  # training is beside the last replica
        memory = busy["training"]["memory"]
        self.assertGreater(memory["state_bytes"], 0)
        self.assertEqual(memory["state_bytes"] + memory["activation_bytes"], e["memory"]["lent_bytes"])
        self.assertEqual(memory["state_in_file_bytes"], 0)
        self.assertGreater(e["all"]["training_seconds"], 0)
        self.assertGreater(e["memory"]["lent_bytes"], e["memory"]["needed_bytes"] - 1)
        self.assertGreater(e["recent"]["slices"]["count"], 0)
        for part in (e["all"], e["recent"]):
            self.assertAlmostEqual(part["serving"] + part["training"] + part["idle"], 1, 2)
        # Under load, too, it ends at once.
        over = threading.Event()

        def load():
            while not over.is_set():
                self.client.completions.create(model="tiny", prompt="abab", max_tokens=100, extra_body={"ignore_eos": True})
        users = [threading.Thread(target=load) for _ in range(4)]
        for u in users:
            u.start()
        try:
            self.jobs.pause(job.id)
            wait_until(lambda: not seen()["training"]["job"])
            self.assertEqual(seen()["engines"][0]["memory"]["lent_bytes"], 0)
        finally:
            over.set()
            for u in users:
                u.join()
        text = self.server.request("GET", "/metrics")[2].decode()
        for name in ('graft_engine_seconds_total{replica="0",use="training"} ', "graft_background_slice_seconds_count",
                     'graft_background_lent_bytes{replica="0"} 0', 'graft_training_memory_bytes{what="state"} 0',
                     "graft_training_state_taken_total 0"):
            self.assertIn(name, text)

    def test_gates(self):
        self.begin()
        v = self.client.files.create(file=("valid.jsonl", DATA), purpose="fine-tune").id
        for gates, passes in (({"max_valid_loss": 1e-9}, False), ({"min_improvement": 100}, False),
                              ({"max_valid_loss": 100, "min_improvement": 0.1}, True)):
            job = self.create(epochs=2, validation_file=v, graft={"evaluation": gates})
            job = self.wait(self.client, job.id, "succeeded" if passes else "failed")
            served = any(job.id[6:18] in m.id for m in self.client.models.list())
            self.assertEqual(served, passes)
            if not passes:
                gate = next(iter(gates))
                self.assertEqual((job.error.code, job.error.param), ("release_gate", "graft.evaluation." + gate))
                self.assertIn(gate, job.error.message)
                self.assertIsNone(job.fine_tuned_model)
        # All of them are looked at, and the samples are answered, whatever fails.
        gates = {"max_valid_loss": 1e-9, "min_improvement": -100, "sample_prompts": ["abab"],
                 "required": [{"prompt": "abab", "output": "nowhere"}], "forbidden": [{"prompt": "abab", "output": "zz"}]}
        job = self.create(epochs=2, validation_file=v, graft={"evaluation": gates})
        job = self.wait(self.client, job.id, "failed")
        self.assertEqual((job.error.code, job.error.param), ("release_gate", "graft.evaluation.required"))
        told = [e for e in self.client.fine_tuning.jobs.list_events(job.id, limit=100) if "gates" in (e.data or {})]
        self.assertEqual(len(told), 1)
        for says in (told[0].message, job.error.message):
            self.assertRegex(says, r'max_valid_loss is 1e-09, and [0-9.e-]+ was found; required\[0\]: the answer lacks "nowhere"')
            self.assertNotIn("min_improvement", says)
        self.assertEqual([(g["gate"], g["limit"], g["passed"]) for g in told[0].data["gates"]],
                         [("max_valid_loss", 1e-9, False), ("min_improvement", -100, True),
                          ("required[0]", "nowhere", False), ("forbidden[0]", "zz", True)])
        self.assertGreater(told[0].data["gates"][0]["found"], 1e-9)
        self.assertTrue(self.server.json("GET", f"/admin/v1/jobs/{job.id}")[1]["samples"][0]["after"])

    def test_killed(self):
        self.begin()
        whole = self.create(epochs=20)
        self.wait(self.client, whole.id, "succeeded")
        job, kills = self.create(epochs=20, graft={"save_steps": 7}), 0
        for i in range(8):
            enough = min(self.step(job.id) + 5, 119)
            wait_until(lambda: self.step(job.id) >= enough or self.jobs.retrieve(job.id).status == "succeeded",
                       lambda: self.jobs.retrieve(job.id))
            self.server.stop(signal.SIGTERM if i % 3 == 2 else signal.SIGKILL)
            kills += 1
            self.begin()
        self.wait(self.client, job.id, "succeeded")
        self.assertEqual(kills, 8)
        self.assertEqual(self.adapter(job.id), self.adapter(whole.id))
        steps = [e.data["step"] for e in self.jobs.list_events(job.id, limit=100) if e.type == "metrics"]
        self.assertEqual(sorted(set(steps)), list(range(1, 121)))
        self.assertEqual(self.ask(self.jobs.retrieve(job.id).fine_tuned_model),
                         self.ask(self.jobs.retrieve(whole.id).fine_tuned_model))


if __name__ == "__main__":
    unittest.main()
