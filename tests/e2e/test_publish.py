"""What becomes of a trained model: release gates on its answers, samples before and after, verification's event,
cancelling while it is published, a process that dies then."""
import glob
import json
import os
import signal
import subprocess
import threading
import time

import openai
import test_finetune
from server import BIN, wait_until

PROMPT = "abab 3"
MESSAGES = [{"role": "user", "content": PROMPT}]


class Publish(test_finetune.Trainer):
    def finish(self, job, status="succeeded"):
        return self.wait(self.client, job.id, status)

    def evaluate(self, status, **evaluation):
        return self.finish(self.create(graft={"evaluation": evaluation}), status)

    def events(self, job):
        return [e for e in self.jobs.list_events(job.id, limit=100)]

    def models(self):
        return [m.id for m in self.client.models.list()]

    def admin(self, job):
        return self.server.json("GET", f"/admin/v1/jobs/{job.id}")[1]

    def test_outputs(self):
        self.begin()
        good = {"prompt": PROMPT, "output": "cdcd"}
        job = self.evaluate("succeeded", required=[good, {"messages": MESSAGES, "output": ["cd", "dc"]}],
                            forbidden=[{"prompt": PROMPT, "output": ["sorry", "abab"]}], max_tokens=12)
        self.assertIn("cdcd", self.ask(job.fine_tuned_model))
        verified = [e for e in self.events(job) if e.message.startswith("Verified")]
        self.assertEqual(len(verified), 1)
        self.assertEqual(verified[0].data["sequences"], 24)
        self.assertGreater(verified[0].data["supervised_tokens"], 24)
        self.assertEqual(self.admin(job)["version"], verified[0].data["version"])
        passed = [e for e in self.events(job) if e.message.startswith("Release gates")]
        self.assertEqual([e.message for e in passed], ["Release gates passed: required (2), forbidden (1)"])
        self.assertEqual([(g["gate"], g["limit"], g["passed"]) for g in passed[0].data["gates"]],
                         [("required[0]", "cdcd", True), ("required[1]", "cd", True), ("required[1]", "dc", True),
                          ("forbidden[0]", "sorry", True), ("forbidden[0]", "abab", True)])
        for g in passed[0].data["gates"]:
            self.assertIn("cdcd", g["found"])
        for gate, says in ((dict(required=[good, {"prompt": PROMPT, "output": "nowhere"}]), "required[1]: the answer lacks"),
                           (dict(forbidden=[{"messages": MESSAGES, "output": ["zz", "dc"]}]), "forbidden[0]: the answer has")):
            job = self.evaluate("failed", **gate)
            self.assertEqual(job.error.code, "release_gate")
            self.assertIn(says, job.error.message)
            self.assertIsNone(job.fine_tuned_model)
            self.assertFalse([m for m in self.models() if job.id[6:18] in m])
            self.assertTrue(os.path.exists(os.path.join(self.folder, "jobs", job.id, "adapter/adapter_config.json")))
            versions = [v for v in self.server.json("GET", "/admin/v1/adapters")[1]["data"] if job.id[6:18] in v["name"]]
            self.assertEqual([v["status"] for v in versions], ["failed"])
            self.assertIn(says, versions[0]["reason"])
            with self.assertRaises(openai.NotFoundError):
                self.ask(versions[0]["name"])
            with self.assertRaises(openai.NotFoundError):
                self.ask(f"{versions[0]['name']}@{versions[0]['version']}")

    # A name of one's own for whatever was trained last, and back.
    def test_alias(self):
        self.begin("--replicas", "2")
        models = [self.evaluate("succeeded").fine_tuned_model, self.evaluate("succeeded").fine_tuned_model]
        for target in (*models, models[0]):
            status, _ = self.server.json("POST", "/admin/v1/adapters/aliases", {"alias": "letters", "target": target})
            self.assertEqual(status, 200)
            r = self.client.chat.completions.create(model="letters", **test_finetune.ASK)
            version = [m.version for m in self.client.models.list() if m.id == target][0]
            self.assertTrue(r.system_fingerprint.endswith(f"+{target}@{version}"), r.system_fingerprint)
            self.assertIn("cdcd", r.choices[0].message.content)

    def test_kept(self):
        self.begin("--replicas", "2")
        job = self.evaluate("succeeded", required=[{"prompt": PROMPT, "output": "nowhere"}], on_failure="keep")
        name, version = job.fine_tuned_model.split("@")
        self.assertIn("not released: required[0]", "".join(e.message for e in self.events(job)))
        self.assertFalse([m for m in self.models() if job.id[6:18] in m])
        answer = self.ask(job.fine_tuned_model)
        self.assertIn("cdcd", answer)
        with self.assertRaises(openai.NotFoundError):
            self.ask(name)
        self.server.stop()
        self.begin()
        self.assertEqual(self.ask(job.fine_tuned_model), answer)
        status, _ = self.server.json("POST", f"/admin/v1/adapters/{name}/promote", {"version": int(version)})
        self.assertEqual(status, 200)
        self.assertEqual(self.ask(name), answer)

    def test_samples(self):
        self.begin()
        base = self.ask("tiny")
        job = self.evaluate("succeeded", sample_prompts=[PROMPT, {"messages": MESSAGES}], max_tokens=8)
        samples = self.admin(job)["samples"]
        self.assertEqual(samples[0]["prompt"], PROMPT)
        self.assertEqual(samples[1]["messages"], MESSAGES)
        for s in samples:
            self.assertEqual(s["before"], base)
            self.assertEqual(s["after"], self.ask(job.fine_tuned_model))
        with open(os.path.join(self.folder, "jobs", job.id, "samples.json")) as f:
            self.assertEqual(json.load(f)["samples"], samples)
        told = [e.data for e in self.events(job) if e.message.startswith("Sample ")]
        self.assertEqual(told[::-1], samples)
        self.assertIsNone(self.admin(self.evaluate("succeeded"))["samples"])

    def test_refused_prompts(self):
        self.begin()
        part = {"role": "user", "content": [{"type": "image_url"}]}
        first = "graft.evaluation.required[0].messages[0]"
        for evaluation, param in (
                ({"sample_prompts": ["a" * 8000]}, "graft.evaluation.sample_prompts[0]"),
                ({"forbidden": [{"prompt": "a" * 8000, "output": "x"}]}, "graft.evaluation.forbidden[0].prompt"),
                ({"required": [{"messages": [{"role": "user", "content": None}], "output": "x"}]}, first + ".content"),
                ({"required": [{"messages": [part], "output": "x"}]}, first + ".content[0]"),
                ({"required": [{"messages": [{"role": "zzz", "content": "a"}], "output": "x"}]}, first)):
            with self.subTest(param=param), self.assertRaises(openai.BadRequestError) as caught:
                self.create(graft={"evaluation": evaluation})
            self.assertEqual(caught.exception.param, param)
            self.assertIn(param, caught.exception.message)
        self.assertEqual(list(self.jobs.list()), [])

    # The file that was uploaded is no longer what was trained on: nothing is published.
    def test_changed_file(self):
        self.begin()
        job = self.create(epochs=20, batch=2)
        self.wait_step(job.id, 2)
        with open(os.path.join(self.folder, "files", job.training_file), "r+b") as f:
            text = f.read()
            f.seek(text.index(b"cdcd", text.index(b"abab 2")))  # in the third line
            f.write(b"dddd")
        job = self.finish(job, "failed")
        self.assertEqual(job.error.code, "verification_failed")
        self.assertIn("line 3", job.error.message)
        self.assertIsNone(job.fine_tuned_model)
        self.assertEqual(self.models(), ["tiny"])

    def publishing(self, job):
        def state():
            return self.admin(job)["state"]
        return wait_until(lambda: (s := state()) in ("publishing", "succeeded") and s, state)

    # Whatever moment a cancel hits: it is refused and the model is served, or heard and it is not.
    def test_cancelled_while_published(self):
        self.begin()
        first = self.evaluate("succeeded")
        folder = os.path.join(self.folder, "jobs", first.id, "adapter")

        def load():
            for i in range(12):
                self.server.request("POST", "/v1/load_lora_adapter",
                                    {"lora_name": f"z{i % 3}", "lora_path": folder, "load_inplace": True})

        for i in range(4):
            job = self.create(epochs=1, graft={"evaluation": {"sample_prompts": [PROMPT]}})
            busy = [threading.Thread(target=load) for _ in range(3)]
            for t in busy:
                t.start()
            self.publishing(job)
            time.sleep(0.01 * i)
            status, answer = self.server.json("POST", f"/v1/fine_tuning/jobs/{job.id}/cancel")
            for t in busy:
                t.join()
            if status == 200:
                self.assertEqual(self.finish(job, "cancelled").status, "cancelled")
                def versions():
                    return [v["status"] for v in self.server.json("GET", "/admin/v1/adapters")[1]["data"]
                            if job.id[6:18] in v["name"]]
                wait_until(lambda: all(s == "failed" for s in versions()), versions)  # what runs ends
                self.assertFalse([m for m in self.models() if job.id[6:18] in m])
            else:
                self.assertEqual(status, 400)
                self.assertRegex(answer["error"]["message"], "is being published|is succeeded")
                self.assertIn(self.finish(job).fine_tuned_model, self.models())

    # Killed around publishing: one version, one result file.
    def test_killed_while_published(self):
        self.begin()
        for i in range(4):
            job = self.create(epochs=1, graft={"evaluation": {"sample_prompts": [PROMPT] * 2}})
            self.publishing(job)
            end = time.monotonic() + 0.02 * i
            while time.monotonic() < end:
                if self.admin(job)["version"]:
                    break
            self.server.stop(signal.SIGKILL)
            self.begin()
            done = self.finish(job)
            versions = [v for v in self.server.json("GET", "/admin/v1/adapters")[1]["data"]
                        if v["name"] == done.fine_tuned_model and v["status"] != "failed"]
            self.assertEqual([v["status"] for v in versions], ["active"])
            self.assertEqual(versions[0]["version"], self.admin(job)["version"])
            self.assertEqual(len(done.result_files), 1)
        files = [f for f in self.client.files.list(purpose="fine-tune-results")]
        self.assertEqual(len(files), 4)


class Names(test_finetune.Trainer):
    """Models by name: checkpoints that are loaded when they are asked for, deletion."""

    def listed(self):
        return [m.id for m in self.client.models.list()]

    def refused(self, error, model, says):
        with self.assertRaises(error) as e:
            self.ask(model)
        self.assertIn(says, str(e.exception))

    def tokenize(self, model):
        return self.server.json("POST", "/tokenize", {"model": model, "prompt": "a"})[0]

    def alias(self, alias, target):
        status, _ = self.server.json("POST", "/admin/v1/adapters/aliases", {"alias": alias, "target": target})
        self.assertEqual(status, 200)

    def test_checkpoints(self):
        self.begin()
        job = self.create(graft={"save_steps": 6}, suffix="x" * 64)
        job = self.wait(self.client, job.id, "succeeded")
        rows = self.jobs.checkpoints.list(job.id).data
        self.assertEqual([c.step_number for c in rows], [24, 18, 12])  # step 6 is no longer kept
        names = [c.fine_tuned_model_checkpoint for c in rows]
        self.assertEqual(names[1], job.fine_tuned_model + ":ckpt-step-18")
        final = self.ask(job.fine_tuned_model)
        self.assertEqual(self.ask(names[0]), final)
        # The version in the data folder says what the job's adapter does; the base is called as clients call it.
        made = []
        for folder in (os.path.join(self.folder, "jobs", job.id, "adapter"), *glob.glob(os.path.join(self.folder, "adapters/v*"))):
            with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
                made.append(json.load(f))
            self.assertEqual(made[-1].pop("created_at") > 0, True)
            made[-1].pop("files")
            r = subprocess.run([BIN, "verify", folder], capture_output=True)
            self.assertEqual(r.returncode, 0, r.stdout)
        self.assertEqual(len(made), 2)
        self.assertEqual(made[0], made[1])
        self.assertEqual((made[1]["run_id"], made[1]["base_model"]), (job.id, "tiny"))
        self.alias("early", names[2])  # loads what it is to stand for
        early = self.ask("early")
        # All at once, before they are loaded.
        answers = {}
        asking = [threading.Thread(target=lambda n=n: answers.setdefault(n, self.ask(n))) for n in names[1:] * 2]
        for t in asking:
            t.start()
        for t in asking:
            t.join()
        self.assertEqual(len(answers), 2)
        self.assertEqual(answers[names[2]], early)
        self.assertEqual(self.client.models.retrieve(names[2]).id, names[2])
        r = self.client.chat.completions.create(model=names[1], **test_finetune.ASK, stream=True)
        parts = [c.choices[0].delta.content or "" for c in r if c.choices]
        self.assertEqual("".join(parts), answers[names[1]])
        self.assertEqual([m for m in self.listed() if "ckpt" in m], [])
        for model, says in ((job.fine_tuned_model + ":ckpt-step-6", "does not keep it any more"),
                            (job.fine_tuned_model + ":ckpt-step-7", "has no checkpoint of that step"),
                            (job.fine_tuned_model + ":ckpt-step-", "does not exist"),
                            (job.fine_tuned_model + ":ckpt-step-18x", "does not exist"),
                            ("ft:tiny:graft::0123456789ab:ckpt-step-18", "does not exist"),
                            (names[1].replace("graft", "other"), "does not exist")):
            self.refused(openai.NotFoundError, model, says)
            self.assertEqual(self.tokenize(model), 404)
            with self.assertRaises(openai.NotFoundError):
                self.client.models.delete(model)
        self.assertEqual([self.tokenize(n) for n in names + ["x" * 300, "ft:" + "x" * 300 + ":ckpt-step-1"]],
                         [200] * 3 + [404] * 2)
        self.assertEqual(self.tokenize(names[1] + "\0"), 400)
        with self.assertRaises(openai.BadRequestError):
            self.client.models.delete(names[1])
        self.alias("best", names[1])
        # Another start loads them anew; a damaged one is refused, and says so.
        self.server.stop()
        folder = os.path.join(self.folder, "jobs", job.id, "checkpoints")
        with open(os.path.join(folder, "step-12/adapter_model.safetensors"), "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last[0] ^ 1]))
        self.begin("--replicas", "2")
        self.assertEqual(self.tokenize("best"), 200)
        self.assertEqual(self.ask("best"), answers[names[1]])
        self.assertEqual(self.ask(names[1]), answers[names[1]])
        self.refused(openai.BadRequestError, names[2], "the checkpoint of step 12")
        for target, expected in ((names[2], 400), (job.fine_tuned_model + ":ckpt-step-7", 404)):
            status, body = self.server.json("POST", "/admin/v1/adapters/aliases", {"alias": "best", "target": target})
            self.assertEqual((status, body["error"]["param"]), (expected, "target"), body)
        # One that is just being taken away, whose mark goes first.
        os.unlink(os.path.join(folder, "step-24/COMPLETE"))
        self.refused(openai.NotFoundError, names[0], "any more")
        # What an administrator loads is no checkpoint, whatever its name.
        adapter = os.path.join(self.folder, "jobs", job.id, "adapter")
        for name in ("ft:x:ckpt-step-1", "ft:y:ckpt-step-1"):
            self.assertEqual(self.server.json("POST", "/admin/v1/adapters", {"name": name, "path": adapter})[0], 200)
        self.assertEqual(self.ask("ft:x:ckpt-step-1"), final)
        self.assertTrue(self.client.models.delete("ft:x:ckpt-step-1").deleted)
        self.refused(openai.NotFoundError, "ft:x:ckpt-step-1", "does not exist")
        # The names of a deleted model's checkpoints go with it; those of others, and its files, stay.
        self.assertTrue(self.client.models.delete(job.fine_tuned_model).deleted)
        for name in (names[1], "best"):
            self.refused(openai.NotFoundError, name, "was deleted")
        self.assertEqual(self.ask("ft:y:ckpt-step-1"), final)
        self.server.stop()
        self.begin()
        self.refused(openai.NotFoundError, "best", "was deleted")
        self.assertTrue(os.path.exists(os.path.join(folder, "step-18/COMPLETE")))

    # What the keep policy takes away is served no more.
    def test_pruned(self):
        self.begin()
        job = self.create(epochs=50, batch=2, graft={"save_steps": 4})
        rows = wait_until(lambda: self.jobs.checkpoints.list(job.id).data)
        name = rows[-1].fine_tuned_model_checkpoint
        self.ask(name)

        def gone():
            try:
                self.ask(name)
            except openai.NotFoundError as e:
                self.assertIn("any more", str(e))
                return True
            return False
        wait_until(gone)
        self.jobs.cancel(job.id)

    def test_delete(self):
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w") as f:
            f.write("sk-one one train\nsk-two two train\nsk-user one\nsk-admin ops admin\n")
        os.chmod(keys, 0o600)
        self.server = self.start("--enable-lora", "--api-key-file", keys)
        self.addCleanup(self.server.stop)
        one, two, user, admin = (self.connect(self.server, "sk-" + k) for k in ("one", "two", "user", "admin"))
        self.client, self.jobs = one, one.fine_tuning.jobs
        made = [self.wait(one, self.create(epochs=1).id, "succeeded") for _ in range(2)]
        name, other = [j.fine_tuned_model for j in made]
        self.ask(name)
        with self.assertRaises(openai.PermissionDeniedError):
            two.models.delete(name)
        with self.assertRaises(openai.PermissionDeniedError):
            user.models.delete(name)
        for model, error in (("tiny", openai.BadRequestError), ("none", openai.NotFoundError),
                             (name + "@99", openai.NotFoundError), (name + "@x", openai.NotFoundError),
                             (name + ":ckpt-step-6", openai.BadRequestError),
                             (name + ":ckpt-step-99", openai.NotFoundError), ("x" * 300, openai.NotFoundError)):
            with self.assertRaises(error):
                one.models.delete(model)
        gone = one.models.delete(name)
        self.assertEqual((gone.id, gone.object, gone.deleted), (name, "model", True))
        self.assertNotIn(name, self.listed())
        with self.assertRaises(openai.NotFoundError):
            self.ask(name)
        with self.assertRaises(openai.NotFoundError):
            one.models.delete(name)
        self.assertTrue(admin.models.delete(other).deleted)
        self.server.stop()
        self.server = self.start("--enable-lora", "--api-key-file", keys)
        self.addCleanup(self.server.stop)
        self.client = self.connect(self.server, "sk-one")
        self.assertEqual(self.listed(), ["tiny"])
        self.assertEqual(self.client.fine_tuning.jobs.retrieve(made[0].id).fine_tuned_model, name)

    def test_delete_without_adapters(self):
        self.server = self.start()
        self.addCleanup(self.server.stop)
        client = self.connect(self.server)
        with self.assertRaises(openai.BadRequestError):
            client.models.delete("tiny")
        with self.assertRaises(openai.NotFoundError):
            client.models.delete("ft:tiny:graft::0123456789ab")
