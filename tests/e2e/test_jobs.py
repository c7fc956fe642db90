"""Fine-tuning jobs: the official SDK, malformed bodies, and what lasts when the process is killed."""
import hashlib
import http.client
import json
import os
import shutil
import signal
import sqlite3
import tempfile
import unittest

import openai

from server import ROOT, TINY, WAIT_S, Server, events, wait_until

GOOD = b"".join(b'{"prompt": "question %d", "completion": "answer %d"}\n' % (i, i) for i in range(12))
INVALID = "invalid_request_error"


class Folder(unittest.TestCase):
    model = TINY

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, *options, **kw):
        return Server(self.model, "--served-model-name", "tiny", "--data-dir", self.folder, *options, **kw)

    def connect(self, server, key="x"):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)
        self.addCleanup(client.close)
        return client

    def wait(self, client, job, status, seconds=WAIT_S):
        def reached():
            got = client.fine_tuning.jobs.retrieve(job)
            return got if got.status == status else None
        return wait_until(reached, lambda: f"not {status}: {client.fine_tuning.jobs.retrieve(job)}", seconds)


class Sdk(Folder):
    def setUp(self):
        super().setUp()
        self.server = self.start()
        self.addCleanup(self.server.stop)
        self.client = self.connect(self.server)
        self.jobs = self.client.fine_tuning.jobs

    def upload(self, content=GOOD):
        return self.client.files.create(file=("train.jsonl", content), purpose="fine-tune").id

    def failed(self, content, **more):
        job = self.jobs.create(model="tiny", training_file=self.upload(content), **more)
        self.assertEqual(job.status, "validating_files")  # a bad file is accepted, and fails then
        job = self.wait(self.client, job.id, "failed")
        self.assertIsNotNone(job.finished_at)
        messages = [e.message for e in self.jobs.list_events(job.id) if e.level == "error"]
        return job.error, messages

    def test_life(self):
        f = self.upload()
        job = self.jobs.create(
            model="tiny", training_file=f, validation_file=self.upload(), suffix="facts", seed=7,
            metadata={"team": "a"}, method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
            extra_body={"graft": {"lora": {"r": 8, "target_modules": ["q_proj", "v_proj"]}, "save_steps": 5}},
        )
        self.assertEqual((job.object, job.status, job.seed), ("fine_tuning.job", "validating_files", 7))
        self.assertEqual(job.hyperparameters.n_epochs, 2)
        self.assertEqual(job.hyperparameters.batch_size, "auto")
        self.assertEqual(job.metadata, {"team": "a"})
        self.assertEqual(job.result_files, [])
        self.assertEqual(job.method.type, "supervised")
        self.wait(self.client, job.id, "queued")
        found = list(self.jobs.list_events(job.id, limit=2))  # the SDK follows the pages
        text = [e.message for e in found]
        self.assertIn("Files validated, moving job to queued state", text)
        self.assertEqual(text[-1], "Created fine-tuning job: " + job.id)
        report = next(e.data for e in found if e.data and e.data["file"] == f)
        self.assertEqual((report["samples"], report["lines"], report["kind"]), (12, 12, "completion"))
        self.assertTrue(any("12 samples stand in the training file" in e.message for e in found if e.level == "warn"))
        self.assertEqual(list(self.jobs.checkpoints.list(job.id)), [])
        self.assertEqual([j.id for j in self.jobs.list()], [job.id])
        self.assertEqual([j.id for j in self.jobs.list(metadata={"team": "a"})], [job.id])
        self.assertEqual([j.id for j in self.jobs.list(metadata={"team": "b"})], [])
        self.assertEqual(self.jobs.pause(job.id).status, "paused")
        self.assertEqual(self.jobs.resume(job.id).status, "queued")
        with self.assertRaises(openai.BadRequestError):  # in use
            self.client.files.delete(f)
        done = self.jobs.cancel(job.id)
        self.assertEqual(done.status, "cancelled")
        self.assertIsNotNone(done.finished_at)
        with self.assertRaises(openai.BadRequestError):  # 400, which the SDK does not try again
            self.jobs.cancel(job.id)
        self.assertTrue(self.client.files.delete(f).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.jobs.retrieve("ftjob-none")

    def test_pages(self):
        f = self.upload()
        ids = [self.jobs.create(model="tiny", training_file=f).id for _ in range(5)]
        self.assertEqual([j.id for j in self.jobs.list(limit=2)], ids[::-1])

    def test_bad_files(self):
        error, messages = self.failed(b'{"prompt": "a", "completion": "b"}\n' * 5)
        self.assertEqual((error.code, error.param), ("invalid_n_examples", "training_file"))
        self.assertEqual(error.message, "Training file has 5 example(s), but must have at least 10 examples")
        error, messages = self.failed(GOOD[: GOOD.index(b"\n") + 1] * 6 + b"[1]\n" + GOOD)
        self.assertEqual(error.code, "invalid_jsonl")
        self.assertIn("line 7 is not a JSON object", error.message)
        self.assertEqual(len([m for m in messages if "line 7 is not a JSON object" in m]), 1)
        self.assertEqual(messages[0], "The job has failed: its files have 1 error")  # the newest first
        error, _ = self.failed(b"")
        self.assertEqual(error.code, "invalid_n_examples")
        error, _ = self.failed(b"\xff\xfe\n" * 20)
        self.assertEqual(error.code, "invalid_jsonl")
        error, _ = self.failed(GOOD, method={"type": "dpo"})
        self.assertIsNotNone(error.code)
        cut = {"graft": {"max_seq_length": 40, "truncation": "drop"}}
        long = b'{"prompt": "%s", "completion": "x"}\n' % (b"a b " * 100)
        error, _ = self.failed(long * 9 + GOOD[: GOOD.index(b"\n") + 1] * 9, extra_body=cut)
        self.assertEqual((error.code, error.param), ("invalid_n_examples", "training_file"))
        job = self.jobs.create(model="tiny", training_file=self.upload(), validation_file=self.upload(b"{}\n"))
        self.assertEqual(self.wait(self.client, job.id, "failed").error.param, "validation_file")
        self.assertEqual(self.server.json("GET", "/health")[0], 200)

    def test_event_stream(self):
        job = self.jobs.create(model="tiny", training_file=self.upload(b"[]\n"))
        status, headers, data = self.server.request("GET", f"/v1/fine_tuning/jobs/{job.id}/events?stream=true")
        self.assertEqual(status, 200)
        self.assertTrue(headers["content-type"].startswith("text/event-stream"))
        found, done = events(data)
        self.assertTrue(done)
        self.assertEqual([e["object"] for e in found], ["fine_tuning.job.event"] * len(found))
        self.assertEqual(found[0]["message"], "Created fine-tuning job: " + job.id)
        self.assertEqual(found[-1]["level"], "error")

    def test_admin(self):
        f = self.upload()
        first = self.jobs.create(model="tiny", training_file=f)
        second = self.jobs.create(model="tiny", training_file=f, extra_body={"graft": {"priority": -1}})
        for j in (first, second):
            self.wait(self.client, j.id, "queued")
        listed = {j["id"]: j for j in self.server.json("GET", "/admin/v1/jobs")[1]["data"]}
        self.assertEqual(listed[second.id]["queue_position"], 0)
        self.assertEqual(listed[first.id]["queue_position"], 1)
        self.assertEqual(listed[first.id]["state"], "queued")
        self.assertGreaterEqual(listed[first.id]["times"]["queued"], listed[first.id]["times"]["accepted"])
        # Nobody trains here, and each job says so.
        for j in (first, second):
            def reason():
                return self.server.json("GET", "/admin/v1/jobs/" + j.id)[1]["reason"] or ""
            wait_until(lambda: reason().endswith("without --enable-lora"), reason)
            warned = [e.message for e in self.jobs.list_events(j.id) if e.level == "warn"]
            self.assertEqual(warned, ["The job waits in the queue: " + reason()])

    def test_refused(self):
        f = self.upload()
        table = [
            ({"model": "none"}, openai.NotFoundError, "model"),
            ({"training_file": "file-none"}, openai.BadRequestError, "training_file"),
            ({"validation_file": "file-none"}, openai.BadRequestError, "validation_file"),
            ({"suffix": "x" * 65}, openai.BadRequestError, "suffix"),
            ({"seed": -1}, openai.BadRequestError, "seed"),
            ({"metadata": {"k": "v" * 513}}, openai.BadRequestError, "metadata.k"),
            ({"hyperparameters": {"n_epochs": 51}}, openai.BadRequestError, "hyperparameters.n_epochs"),
            ({"method": {"type": "reinforcement"}}, openai.BadRequestError, "method.type"),
            ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 3}}}}, openai.BadRequestError,
             "method.dpo.hyperparameters.beta"),
            ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, openai.BadRequestError,
             "integrations[0].type"),
            ({"extra_body": {"graft": {"lora": {"r": 1000}}}}, openai.BadRequestError, "graft.lora.r"),
            ({"extra_body": {"graft": {"max_seq_length": 100000}}}, openai.BadRequestError, "graft.max_seq_length"),
            ({"extra_body": {"graft": {"evaluation": {"max_valid_loss": 1}}}}, openai.BadRequestError,
             "validation_file"),
        ]
        for change, error, param in table:
            with self.subTest(change=change), self.assertRaises(error) as caught:
                self.jobs.create(**{"model": "tiny", "training_file": f, **change})
            self.assertEqual((caught.exception.type, caught.exception.param), (INVALID, param))


class Trainer(Folder):
    def test_what_could_not_be_served(self):
        adapter = os.path.join(ROOT, "tests/golden/adapters/qv")
        base = os.path.join(ROOT, "tests/golden/models/hf-f32")
        options = ["--data-dir", self.folder, "--served-model-name", "tiny", "--enable-lora", "--max-lora-rank", "8"]
        with Server(base, *options, "--lora-modules", f"mine={adapter}") as server:
            client = self.connect(server)
            f = client.files.create(file=("a.jsonl", GOOD), purpose="fine-tune").id
            for change, param, text in (
                ({"extra_body": {"graft": {"lora": {"r": 9}}}}, "graft.lora.r", "--max-lora-rank"),
                ({"model": "mine"}, "model", "adapter"),
            ):
                with self.subTest(change=change), self.assertRaises(openai.BadRequestError) as caught:
                    client.fine_tuning.jobs.create(**{"model": "tiny", "training_file": f, **change})
                self.assertEqual(caught.exception.param, param)
                self.assertIn(text, caught.exception.message)
            self.assertEqual(list(client.fine_tuning.jobs.list()), [])
        # A job that was taken by a server with other options fails, and keeps the field.
        with Server(base, *options[:4]) as server:
            job = self.connect(server).fine_tuning.jobs.create(
                model="tiny", training_file=f, extra_body={"graft": {"lora": {"r": 9}}})
        with Server(base, *options) as server:
            failed = self.wait(self.connect(server), job.id, "failed")
            self.assertEqual((failed.error.code, failed.error.param), ("cannot_start", "graft.lora.r"))


class Stopping(Folder):
    def test_event_streams_do_not_hold_a_drain(self):
        server = self.start("--drain-timeout", "600")
        client = self.connect(server)
        f = client.files.create(file=("a.jsonl", GOOD), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(model="tiny", training_file=f.id)
        client.fine_tuning.jobs.pause(job.id)
        c = http.client.HTTPConnection(server.host, server.port, timeout=60)
        self.addCleanup(c.close)
        c.request("GET", f"/v1/fine_tuning/jobs/{job.id}/events?stream=true")
        answer = c.getresponse()
        first = answer.readline()
        self.assertEqual(server.stop(), 0)  # long before the 600 s are over
        found, done = events(first + answer.read())  # read() fails where the last chunk is missing
        self.assertFalse(done)
        self.assertEqual(found[-1]["error"]["code"], "draining")


class Durable(Folder):
    def test_kill(self):
        """What was answered is there after each kill, and a job goes on where it was."""
        ids, states = [], {}
        for i in range(3):
            server = self.start()
            client = self.connect(server)
            for job, status in states.items():
                self.assertEqual(client.fine_tuning.jobs.retrieve(job).status, status)
            f = client.files.create(file=("a.jsonl", GOOD), purpose="fine-tune")
            for j in range(3):
                job = client.fine_tuning.jobs.create(model="tiny", training_file=f.id)
                ids.append(job.id)
                if j == 0:
                    states[job.id] = client.fine_tuning.jobs.cancel(job.id).status
                elif j == 1:
                    states[job.id] = client.fine_tuning.jobs.pause(job.id).status
            server.stop(signal.SIGKILL)
        with self.start() as server:
            client = self.connect(server)
            self.assertEqual([j.id for j in client.fine_tuning.jobs.list()], ids[::-1])
            for job in ids[2::3]:  # these were left to themselves
                self.wait(client, job, "queued")

    def test_a_job_that_ran_goes_back_to_the_queue(self):
        with self.start() as server:
            client = self.connect(server)
            f = client.files.create(file=("a.jsonl", GOOD), purpose="fine-tune")
            job = client.fine_tuning.jobs.create(model="tiny", training_file=f.id)
            self.wait(client, job.id, "queued")
        db = sqlite3.connect(os.path.join(self.folder, "graft.db"))
        db.execute("UPDATE jobs SET state = 'publishing'")
        db.commit()
        db.close()
        with self.start() as server:
            _, listed = server.json("GET", "/admin/v1/jobs")
            self.assertEqual(listed["data"][0]["state"], "queued")
            client = self.connect(server)
            found = [e.message for e in client.fine_tuning.jobs.list_events(job.id)]
            self.assertIn("The server was restarted; the job goes on from its newest checkpoint", found)


class Keys(Folder):
    def keys(self, text):
        path = os.path.join(self.folder, "keys")
        with open(path, "w", encoding="ascii") as out:
            out.write(text)
        return path

    def see(self, client):
        return [f.id for f in client.files.list()], [j.id for j in client.fine_tuning.jobs.list()]

    def test_default_tenant(self):
        """What is made without keys is still there with them, whatever key it is, and nobody else's."""
        with self.start() as server:
            client = self.connect(server)
            f = client.files.create(file=("a.jsonl", GOOD), purpose="fine-tune").id
            job = client.fine_tuning.jobs.create(model="tiny", training_file=f).id
            self.wait(client, job, "queued")
        for key in ("sk-first", "sk-second"):
            with self.start(env={"GRAFT_API_KEY": key}) as server:
                client = self.connect(server, key)
                self.assertEqual(self.see(client), ([f], [job]))
                self.assertEqual(client.fine_tuning.jobs.pause(job).status, "paused")
                self.assertEqual(client.fine_tuning.jobs.resume(job).status, "queued")
        keys = self.keys("sk-first default train\nsk-other two train\n")
        with self.start("--api-key-file", keys) as server:
            client, other = self.connect(server, "sk-first"), self.connect(server, "sk-other")
            self.assertEqual(self.see(client), ([f], [job]))
            self.assertEqual(self.see(other), ([], []))
            with self.assertRaises(openai.NotFoundError):
                other.fine_tuning.jobs.cancel(job)
            with self.assertRaises(openai.NotFoundError):
                other.files.delete(f)
            self.assertEqual(client.fine_tuning.jobs.cancel(job).status, "cancelled")
        with self.start() as server:  # and back
            self.assertEqual(self.see(self.connect(server)), ([f], [job]))

    def test_administrator(self):
        """Anybody's job can be seen and stopped by an administrator, whose key is told in the log."""
        def ask(server, method, path, key="sk-admin"):
            return server.json(method, "/admin/v1/jobs" + path, headers={"Authorization": "Bearer " + key})

        keys = self.keys("sk-trainer one train\nsk-admin ops admin\n")
        with self.start("--api-key-file", keys) as server:
            client = self.connect(server, "sk-trainer")
            f = client.files.create(file=("a.jsonl", GOOD), purpose="fine-tune").id
            job = client.fine_tuning.jobs.create(model="tiny", training_file=f).id
            self.wait(client, job, "queued")
            status, listed = ask(server, "GET", "")
            self.assertEqual((status, [(j["id"], j["tenant"]) for j in listed["data"]]), (200, [(job, "one")]))
            number = listed["data"][0]["tenant_id"]
            mine = wait_until(lambda: [json.loads(line) for line in server.access if "/v1/files" in line])
            self.assertEqual({line["tenant_id"] for line in mine}, {number})
            for act, state in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
                path = f"/{job}/{act}"
                self.assertEqual(ask(server, "POST", path, "sk-trainer")[0], 403)
                status, got = ask(server, "POST", path)
                self.assertEqual((status, got["state"], got["tenant"]), (200, state, "one"))
            name = hashlib.sha256(b"sk-admin").digest()[3::-1].hex()
            done = f"job {job} of tenant {number} (one) was cancelled by an administrator, key {name}, from 127.0.0.1, "
            wait_until(lambda: [line for line in server.log if done in line], lambda: server.log)
            status, _, data = server.request("GET", f"/admin/v1/jobs/{job}/events?stream=true",
                                             headers={"Authorization": "Bearer sk-admin"})
            found, ended = events(data)
            self.assertEqual((status, ended), (200, True))
            self.assertEqual(found[-1]["message"], "Fine-tuning job cancelled by an administrator")
            self.assertEqual(next(iter(client.fine_tuning.jobs.list_events(job))).id, found[-1]["id"])
            self.assertEqual(ask(server, "GET", f"/{job}/checkpoints")[1]["data"], [])
            self.assertEqual(ask(server, "POST", f"/{job}/cancel")[0], 400)
            self.assertEqual(ask(server, "POST", "/ftjob-none/cancel")[0], 404)
        with self.start(env={"GRAFT_API_KEY": "sk-admin"}) as server:  # nobody knows the name any more
            got = ask(server, "GET", f"/{job}")[1]
            self.assertEqual((got["tenant"], got["tenant_id"]), (None, number))

    def test_older_folder(self):
        """Before the default tenant had one number, what a directly given key had made bore that of its name."""
        with self.start() as server:
            client = self.connect(server)
            f = client.files.create(file=("a.jsonl", GOOD), purpose="fine-tune").id
            job = client.fine_tuning.jobs.create(model="tiny", training_file=f).id
        number = int.from_bytes(hashlib.sha256(b"default").digest()[:8], "little", signed=True) | 1
        db = sqlite3.connect(os.path.join(self.folder, "graft.db"))
        for table in ("files", "jobs"):
            db.execute(f"UPDATE {table} SET tenant = ?", (number,))
        db.execute("DELETE FROM migrations WHERE name = 'default_tenant'")
        db.commit()
        db.close()
        with self.start(env={"GRAFT_API_KEY": "sk-x"}) as server:
            self.assertEqual(self.see(self.connect(server, "sk-x")), ([f], [job]))

    def test_roles(self):
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w", encoding="ascii") as out:
            out.write("sk-plain one\nsk-trainer one train\nsk-other two train\n")
        with self.start("--api-key-file", keys) as server:
            trainer, other = self.connect(server, "sk-trainer"), self.connect(server, "sk-other")
            plain = self.connect(server, "sk-plain")
            f = trainer.files.create(file=("a.jsonl", GOOD), purpose="fine-tune")
            for ask in (  # of the same tenant, but for inference alone
                lambda: plain.files.create(file=("a.jsonl", GOOD), purpose="fine-tune"),
                lambda: list(plain.files.list()),
                lambda: plain.files.retrieve(f.id),
                lambda: plain.files.content(f.id),
                lambda: plain.files.delete(f.id),
                lambda: plain.fine_tuning.jobs.create(model="tiny", training_file=f.id),
                lambda: list(plain.fine_tuning.jobs.list()),
            ):
                with self.assertRaises(openai.PermissionDeniedError):
                    ask()
            _, told = server.json("GET", "/v1/files", headers={"Authorization": "Bearer sk-plain"})
            self.assertEqual(told["error"]["message"], "this route needs an API key with the role train")
            self.assertEqual([x.id for x in trainer.files.list()], [f.id])
            status, _, data = server.request("GET", "/metrics", headers={"Authorization": "Bearer sk-plain"})
            self.assertIn(b'graft_http_requests_total{route="/v1/files",method="POST",status="403"} 1\n', data)
            with self.assertRaises(openai.BadRequestError):
                other.fine_tuning.jobs.create(model="tiny", training_file=f.id)
            job = trainer.fine_tuning.jobs.create(model="tiny", training_file=f.id)
            with self.assertRaises(openai.NotFoundError):
                other.fine_tuning.jobs.retrieve(job.id)
            self.assertEqual(list(other.fine_tuning.jobs.list()), [])
            status, _, data = server.request("GET", "/admin/v1/jobs", headers={"Authorization": "Bearer sk-trainer"})
            self.assertEqual(status, 403, json.loads(data))


if __name__ == "__main__":
    unittest.main()
