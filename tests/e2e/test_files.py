"""Files: the official SDK against /v1/files, malformed forms, and what lasts when the process is killed."""
import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import unittest

import openai

from server import BIN, TINY, WAIT_S, Server, wait_until

LINES = b"".join(b'{"prompt": "%d", "completion": "x"}\n' % i for i in range(20))
INVALID = "invalid_request_error"


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, *options):
        return Server(TINY, "--data-dir", self.folder, *options)


class Sdk(Folder):
    def setUp(self):
        super().setUp()
        self.server = self.start()
        self.addCleanup(self.server.stop)
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="x", max_retries=0)
        self.addCleanup(self.client.close)

    def test_life(self):
        f = self.client.files.create(file=("train.jsonl", LINES), purpose="fine-tune")
        self.assertEqual((f.object, f.bytes, f.filename, f.purpose), ("file", len(LINES), "train.jsonl", "fine-tune"))
        self.assertEqual(f.status, "processed")
        self.assertIsNone(f.expires_at)
        self.assertLess(abs(f.created_at - time.time()), 60)
        self.assertEqual(self.client.files.wait_for_processing(f.id).status, "processed")
        self.assertEqual(self.client.files.retrieve(f.id), f)
        self.assertEqual(self.client.files.content(f.id).read(), LINES)
        self.assertEqual([x.id for x in self.client.files.list()], [f.id])
        gone = self.client.files.delete(f.id)
        self.assertTrue(gone.deleted and gone.id == f.id and gone.object == "file")
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(f.id)

    def test_from_a_path(self):
        path = os.path.join(self.folder, "on disk \u00e9.jsonl")
        with open(path, "wb") as out:
            out.write(LINES)
        with open(path, "rb") as handle:
            f = self.client.files.create(file=handle, purpose="fine-tune")
        self.assertEqual(f.filename, "on disk \u00e9.jsonl")
        self.assertEqual(self.client.files.content(f.id).read(), LINES)

    def test_expires_after(self):
        f = self.client.files.create(
            file=("a.jsonl", LINES), purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        self.assertEqual(f.expires_at, f.created_at + 3600)
        f = self.client.files.create(
            file=("a.jsonl", LINES), purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 2592000}
        )
        self.assertEqual(f.expires_at, f.created_at + 2592000)
        for after, param in (
            ({"anchor": "created_at", "seconds": 3599}, "seconds"),
            ({"anchor": "created_at", "seconds": 2592001}, "seconds"),
            ({"anchor": "created_at", "seconds": -3600}, "seconds"),
            ({"anchor": "created_at", "seconds": "1e4"}, "seconds"),
            ({"anchor": "last_active_at", "seconds": 3600}, "anchor"),
            ({"anchor": "created_at"}, "seconds"),
            ({"seconds": 3600}, "anchor"),
        ):
            with self.subTest(after=after), self.assertRaises(openai.BadRequestError) as caught:
                self.client.files.create(file=("a.jsonl", LINES), purpose="fine-tune", expires_after=after)
            self.assertEqual(caught.exception.param, "expires_after." + param)

    def test_what_has_expired_is_not_there(self):
        kept = self.client.files.create(file=("a.jsonl", LINES), purpose="fine-tune")
        gone, used = (
            self.client.files.create(
                file=("a.jsonl", LINES), purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 3600}
            )
            for _ in range(2)
        )
        model = self.client.models.list().data[0].id
        job = self.client.fine_tuning.jobs.create(model=model, training_file=used.id)
        self.client.fine_tuning.jobs.pause(job.id)  # it will want its file
        self.server.stop()
        db = sqlite3.connect(os.path.join(self.folder, "graft.db"))
        db.execute("UPDATE files SET expires_at = 1000 WHERE expires_at IS NOT NULL")
        db.commit()
        db.close()
        self.server = self.start()
        self.addCleanup(self.server.stop)
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="x", max_retries=0)
        self.addCleanup(self.client.close)
        files = self.client.files
        self.assertEqual([f.id for f in files.list()], [kept.id])
        for ask in (files.retrieve, files.content, files.delete, files.wait_for_processing):
            for f in (gone, used):
                with self.assertRaises(openai.NotFoundError):
                    ask(f.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.fine_tuning.jobs.create(model=model, training_file=gone.id)
        self.assertEqual(caught.exception.param, "training_file")
        # The content goes, but for what a job still needs.
        wait_until(lambda: gone.id not in os.listdir(os.path.join(self.folder, "files")))
        self.assertIn(used.id, os.listdir(os.path.join(self.folder, "files")))

    def test_filenames(self):
        """Whatever a client calls its file: the last part of a path, and text."""
        for sent, kept in (
            ("dir/x.jsonl", "x.jsonl"),
            ("../../etc/x.jsonl", "x.jsonl"),
            ("C:\\data\\x.jsonl", "x.jsonl"),
            ('a"b.jsonl', "a%22b.jsonl"),  # as the SDK sends it
            ("a\nb.jsonl", "a%0Ab.jsonl"),
            ("\U0001f600 \u202e\u00e9.jsonl", "\U0001f600 \u202e\u00e9.jsonl"),
            ("a'; DROP TABLE files;--.JSONL", "a'; DROP TABLE files;--.JSONL"),
            ("%2e%2e%2fx.jsonl", "%2e%2e%2fx.jsonl"),
            ("x" * 249 + ".jsonl", "x" * 249 + ".jsonl"),
        ):
            with self.subTest(sent=sent):
                f = self.client.files.create(file=(sent, LINES), purpose="fine-tune")
                self.assertEqual(f.filename, kept)
                self.assertEqual(self.client.files.retrieve(f.id).filename, kept)
                self.assertEqual(self.client.files.content(f.id).read(), LINES)
        for sent in ("x" * 250 + ".jsonl", "x/", "jsonl", "x.jsonl.gz"):
            with self.subTest(sent=sent), self.assertRaises(openai.BadRequestError) as caught:
                self.client.files.create(file=(sent, LINES), purpose="fine-tune")
            self.assertEqual(caught.exception.param, "file")

    def test_queries(self):
        f = self.client.files.create(file=("a.jsonl", LINES), purpose="fine-tune")
        for query, status, found in (
            ("limit=10000", 200, 1), ("limit=10001", 400, "limit"), ("limit=0", 400, "limit"), ("limit=x", 400, "limit"),
            ("limit=1&limit=1", 400, "limit"), ("order=asc", 200, 1), ("order=up", 400, "order"),
            ("purpose=fine-tune", 200, 1), ("purpose=fine-tune-results", 200, 0), ("after=file-none", 404, "after"),
            ("after=" + f.id, 200, 0), ("unknown=1", 200, 1), ("limit=%zz", 400, None), ("after=%00", 400, None),
        ):
            with self.subTest(query=query):
                got, answer = self.server.json("GET", "/v1/files?" + query)
                self.assertEqual(got, status, answer)
                if status == 200:
                    self.assertEqual(len(answer["data"]), found)
                    ids = [x["id"] for x in answer["data"]] or [None]
                    self.assertEqual((answer["first_id"], answer["last_id"]), (ids[0], ids[-1]))
                else:
                    self.assertEqual(answer["error"]["param"], found)
        status, headers, data = self.server.request(
            "GET", f"/v1/files/{f.id}/content", headers={"Accept": "application/binary"})
        self.assertEqual((status, headers["content-type"], data), (200, "application/octet-stream", LINES))

    def test_pages(self):
        ids = [self.client.files.create(file=("a.jsonl", b"%d" % i), purpose="fine-tune").id for i in range(7)]
        self.assertEqual([f.id for f in self.client.files.list(limit=3)], ids[::-1])  # the SDK follows the pages
        self.assertEqual([f.id for f in self.client.files.list(limit=2, order="asc")], ids)
        self.assertEqual([f.id for f in self.client.files.list(purpose="batch")], [])

    def test_refused(self):
        for name, purpose, param in (("a.jsonl", "assistants", "purpose"), ("a.txt", "fine-tune", "file")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.files.create(file=(name, LINES), purpose=purpose)
            self.assertEqual((caught.exception.type, caught.exception.param), (INVALID, param))

    def test_large_file_in_little_memory(self):
        def peak():
            with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

        before = peak()
        data = os.urandom(1 << 20) * 96
        f = self.client.files.create(file=("big.jsonl", data), purpose="fine-tune")
        with self.client.files.with_streaming_response.content(f.id) as r:
            got = b"".join(r.iter_bytes())
        self.assertEqual(got, data)
        self.assertLess(peak() - before, 24 << 10)  # KiB


class Forms(Folder):
    """Bodies as bytes: status, type and param of each, and what curl and chunked clients send."""

    B = "--b\r\n"
    PURPOSE = B + 'Content-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    FILE = B + 'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\r\n'
    CASES = [
        (b"", 400, None),
        (b"garbage", 400, None),
        (b"--b", 400, None),
        (b"--b--", 400, "file"),
        (PURPOSE + FILE, 400, None),
        (PURPOSE + FILE + "--b-", 400, None),
        (PURPOSE + "--b--", 400, "file"),
        (FILE + "--b--", 400, "purpose"),
        (PURPOSE + PURPOSE + FILE + "--b--", 400, "purpose"),
        (PURPOSE + FILE + FILE + "--b--", 400, "file"),
        (PURPOSE.replace("fine-tune", "batch") + FILE + "--b--", 400, "purpose"),
        (PURPOSE.replace("fine-tune", "x" * 100) + FILE + "--b--", 400, "purpose"),
        (PURPOSE + FILE.replace("a.jsonl", "a.csv") + "--b--", 400, "file"),
        (PURPOSE + FILE.replace('; filename="a.jsonl"', "") + "--b--", 400, "file"),
        (PURPOSE + FILE.replace('name="file"; ', "") + "--b--", 400, None),
        (PURPOSE + FILE.replace("\r\n", "\n") + "--b--", 400, "purpose"),
        (PURPOSE + FILE.replace("Content-Disposition", "X" * 5000), 400, None),
        (B + "\r\nx\r\n--b--", 400, None),
        (PURPOSE.replace('"purpose"', '"purpose') + FILE + "--b--", 400, None),
        (PURPOSE * 65 + "--b--", 400, "purpose"),
        (FILE.replace("file", "other") * 65 + "--b--", 400, None),
        (b"x" * 5000 + b"\r\n--b--", 400, None),
        (PURPOSE + FILE + "--b--\r\n" + "x" * 5000, 400, None),
        (PURPOSE + FILE.replace("{}", "x" * 70000) + "--b--", 413, "file"),
        (PURPOSE + FILE.replace("{}", "x" * 1200000) + "--b--", 413, None),
        (PURPOSE + FILE + "--b--", 200, None),
        ("\r\n" + PURPOSE + FILE + "--b--\r\n", 200, None),
        (FILE + PURPOSE + "--b--\r\n", 200, None),
    ]

    def test_table(self):
        with self.start("--max-file-size", "64K") as server:
            for body, status, param in self.CASES:
                body = body.encode() if isinstance(body, str) else body
                with self.subTest(body=body[:120], length=len(body)):
                    got, _, data = server.request(
                        "POST", "/v1/files", body, {"Content-Type": "multipart/form-data; boundary=b"}
                    )
                    self.assertEqual(got, status, data)
                    if status != 200:
                        error = json.loads(data)["error"]
                        self.assertEqual((error["type"], error["param"]), (INVALID, param), error)
            for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=", "text/plain"):
                got, _, data = server.request("POST", "/v1/files", b"--b--", {"Content-Type": kind})
                self.assertEqual(got, 400 if kind.startswith("multi") else 415, data)
            self.assertEqual(len(os.listdir(os.path.join(self.folder, "files"))), 3)
            self.assertEqual(server.json("GET", "/health")[0], 200)

    def test_curl(self):
        path = os.path.join(self.folder, "c.jsonl")
        with open(path, "wb") as out:
            out.write(LINES * 200)  # large enough for Expect: 100-continue
        with self.start() as server:
            for extra in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"]):
                out = subprocess.run(
                    ["curl", "-sS", *extra, "-F", "purpose=fine-tune", "-F", "file=@" + path, server.url + "/v1/files"],
                    capture_output=True, check=True,
                )
                f = json.loads(out.stdout)
                self.assertEqual(f["bytes"], len(LINES) * 200)
                got = server.request("GET", f"/v1/files/{f['id']}/content")
                self.assertEqual(got[2], LINES * 200)

    def test_without_data_dir(self):
        with Server(TINY) as server:
            for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("DELETE", "/v1/files/x")):
                status, body = server.json(method, path)
                self.assertEqual(status, 400)
                self.assertIn("--data-dir", body["error"]["message"])


class Durable(Folder):
    def upload(self, server, content):
        body = Forms.PURPOSE.encode() + Forms.FILE.encode().replace(b"{}", content) + b"--b--"
        status, _, data = server.request(
            "POST", "/v1/files", body, {"Content-Type": "multipart/form-data; boundary=b"}
        )
        self.assertEqual(status, 200, data)
        return json.loads(data)["id"]

    def test_kill_after_the_answer(self):
        kept = {}
        for i in range(3):
            server = self.start()
            for name, content in kept.items():
                self.assertEqual(server.request("GET", f"/v1/files/{name}/content")[2], content)
            for j in range(3):
                content = os.urandom(1000 + 100000 * j)
                kept[self.upload(server, content)] = content
            server.stop(signal.SIGKILL)
        with self.start() as server:
            listed = server.json("GET", "/v1/files")[1]["data"]
            self.assertEqual([f["id"] for f in listed], list(kept)[::-1])
            self.assertTrue(all(f["status"] == "processed" for f in listed))
            for name, content in kept.items():
                self.assertEqual(server.request("GET", f"/v1/files/{name}/content")[2], content)

    def test_kill_during_an_upload(self):
        server = self.start()
        head = Forms.PURPOSE + Forms.FILE.split("{}")[0]
        s = socket.create_connection((server.host, server.port))
        s.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n" + head.encode() + b"x" * 300000
        )
        folder = os.path.join(self.folder, "files")
        wait_until(lambda: any(os.path.getsize(os.path.join(folder, n)) >= 300000 - 70000 for n in os.listdir(folder)))
        server.stop(signal.SIGKILL)
        s.close()
        self.assertEqual(len(os.listdir(folder)), 1)
        with self.start() as server:
            self.assertEqual(os.listdir(folder), [])
            self.assertEqual(server.json("GET", "/v1/files")[1]["data"], [])

    def test_kill_at_each_step(self):
        """The process dies at the Nth sync, rename or unlink: what was answered is there, nothing else is."""
        if not shutil.which("strace"):
            self.skipTest("strace is not installed")
        for call in ("fsync", "fdatasync", "renameat"):
            for when in range(1, 40):
                shutil.rmtree(self.folder)
                os.mkdir(self.folder)
                kept, hit = self.run_until_killed(call, when)
                with self.start() as server:
                    listed = [f["id"] for f in server.json("GET", "/v1/files")[1]["data"]]
                    self.assertLessEqual(set(kept), set(listed), (call, when))
                    self.assertLessEqual(len(listed), len(kept) + 1)  # one may be kept and not yet answered
                    for name, content in kept.items():
                        self.assertEqual(server.request("GET", f"/v1/files/{name}/content")[2], content)
                    self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "files"))), sorted(listed))
                if not hit:
                    break
            self.assertGreater(when, 2, call)

    def run_until_killed(self, call, when):
        """Uploads two files under a tracer that kills at a call; what was answered, and whether it was killed.

        The tracer counts the calls of each thread by itself, so there is one I/O thread.
        """
        kept = {}
        trace = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=SIGKILL:when={when}"]
        server = Server.__new__(Server)
        server.process = subprocess.Popen(
            [*trace, BIN, "serve", TINY, "--port", "0", "--data-dir", self.folder, "--io-threads", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        server.log, server.access, server._threads, server.url = [], [], [], None
        t = threading.Thread(target=Server._read, args=(server.process.stderr, server.log), daemon=True)
        t.start()
        server._threads.append(t)
        try:
            server.wait_ready()
            for content in (b"first", b"second"):
                kept[self.upload(server, content)] = content
        except (AssertionError, OSError, http.client.HTTPException):
            server.process.wait(20)
            return kept, True
        return kept, server.stop() != 0


class Owner(Folder):
    def test_second_process_is_refused(self):
        with self.start() as server:
            r = subprocess.run(
                [BIN, "serve", TINY, "--port", "0", "--data-dir", self.folder], capture_output=True, text=True, timeout=WAIT_S
            )
            self.assertEqual(r.returncode, 1)
            self.assertIn(f"in use by process {server.process.pid} on ", r.stderr)

    def test_newer_schema_is_refused(self):
        self.start().stop()
        db = sqlite3.connect(os.path.join(self.folder, "graft.db"))
        db.execute("INSERT INTO migrations (name) VALUES ('from-the-future')")
        db.commit()
        db.close()
        r = subprocess.run(
            [BIN, "serve", TINY, "--port", "0", "--data-dir", self.folder], capture_output=True, text=True, timeout=WAIT_S
        )
        self.assertEqual(r.returncode, 1)
        self.assertIn("'from-the-future'", r.stderr)


if __name__ == "__main__":
    unittest.main()
