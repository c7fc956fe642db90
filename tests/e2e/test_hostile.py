"""Clients that mean harm and operators who err: what a server must still do then."""
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from server import BIN, TINY, WAIT_S, Server, events, wait_until

C, CHAT = "/v1/completions", "/v1/chat/completions"
CONTEXT = 256  # of the tiny model


def send(server, body, path=C, receive_buffer=2048):
    """A request on a connection that the caller reads, or does not."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.connect((server.host, server.port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    s.sendall(head.encode() + data)
    return s


def rss_mib(server):
    with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


class Health(unittest.TestCase):
    def test_a_client_that_does_not_read_is_no_stall(self):
        flood = dict(prompt=[5, 6, 7], max_tokens=CONTEXT - 3, n=64, stream=True, ignore_eos=True, logprobs=20)
        with Server(TINY, "--stall-timeout", "2s") as server:
            before = rss_mib(server)
            clients = [send(server, flood) for _ in range(3)]
            end = time.monotonic() + 5  # more than twice the stall timeout
            while time.monotonic() < end:
                self.assertEqual(server.request("GET", "/health")[0], 200)
                time.sleep(0.2)
            # They are held back, not computed to their end into the server's memory.
            self.assertEqual(server.metric("graft_requests_running") + server.metric("graft_requests_waiting"), 3)
            self.assertLess(rss_mib(server) - before, 160)  # far less than the answers, also with a sanitizer
            # Others are served meanwhile.
            self.assertEqual(server.json("POST", C, {"prompt": "hello", "max_tokens": 3})[0], 200)
            for c in clients:
                c.close()
            wait_until(lambda: server.metric("graft_requests_running") + server.metric("graft_requests_waiting") == 0)

    def test_work_after_a_rest_is_no_stall(self):
        with Server(TINY, "--stall-timeout", "2s") as server:
            for _ in range(2):
                time.sleep(2.5)  # longer than the stall timeout
                probe = socket.create_connection((server.host, server.port))
                client = send(server, dict(prompt=[5, 6], max_tokens=30, ignore_eos=True))
                probe.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                self.assertIn(b" 200 ", probe.recv(4096)[:15])
                probe.close()
                client.close()


class Streams(unittest.TestCase):
    def test_a_stream_whose_first_write_is_huge_ends_well(self):
        prompt = [5 + i % 200 for i in range(CONTEXT - 1)]
        body = dict(prompt=[prompt] * 40, max_tokens=1, echo=True, logprobs=20, stream=True, ignore_eos=True)
        with Server(TINY) as server:
            status, _, data = server.request("POST", C, body)
            found, done = events(data)
            self.assertEqual(status, 200)
            self.assertTrue(done)
            self.assertGreater(len(data), 5 << 20)
            ends = [c for e in found for c in e["choices"] if c["finish_reason"]]
            self.assertEqual(len(ends), 40)

    def test_stop_strings_do_not_count_before_min_tokens(self):
        with Server() as server:
            body = dict(prompt="hello", max_tokens=24, seed=1, ignore_eos=True)
            text = server.json("POST", C, body)[1]["choices"][0]["text"]
            stop = next(c for c in text if c.isascii() and c.isprintable())
            early = server.json("POST", C, {**body, "stop": stop})[1]
            self.assertEqual(early["choices"][0]["text"], text[: text.index(stop)])
            late = server.json("POST", C, {**body, "stop": stop, "min_tokens": 20})[1]
            self.assertGreaterEqual(late["usage"]["completion_tokens"], 20)
            self.assertTrue(late["choices"][0]["text"].startswith(text[: text.index(stop) + 1]))


class Loop(unittest.TestCase):
    def test_text_that_no_context_bounds_is_bounded(self):
        text = "x" + " " * (2 << 20)
        with Server() as server:
            for path, body, param in [
                ("/tokenize", {"prompt": text}, "prompt"),
                (C, {"prompt": text, "truncate_prompt_tokens": 3}, "prompt"),
                (CHAT, {"messages": [{"role": "user", "content": text}], "truncate_prompt_tokens": 3}, "messages"),
            ]:
                status, answer = server.json("POST", path, body)
                self.assertEqual((status, answer["error"]["param"]), (400, param))
            self.assertEqual(server.json("POST", "/tokenize", {"prompt": text[: 1 << 20]})[0], 200)


class Drain(unittest.TestCase):
    def test_a_drain_shuts_the_door_before_it_answers(self):
        with Server() as server:
            status, answer = server.json("POST", "/admin/v1/drain", b"")
            self.assertEqual((status, answer), (200, {"drained": True, "in_flight": 0}))
            self.assertEqual(server.request("GET", "/ready")[0], 503)
            self.assertEqual(server.json("POST", C, {"prompt": "a"})[0], 503)

    def test_a_drain_waits_for_the_time_in_which_requests_are_taken(self):
        with Server(TINY, "--drain-delay", "4s") as server:
            begin, answers = time.monotonic(), []
            t = threading.Thread(target=lambda: answers.append(server.json("POST", "/admin/v1/drain", b"")))
            t.start()
            while server.request("GET", "/ready")[0] != 503:
                time.sleep(0.01)
            self.assertEqual(server.json("POST", C, {"prompt": "a", "max_tokens": 1})[0], 200)
            t.join()
            self.assertEqual(answers[0][0], 200)
            self.assertGreaterEqual(time.monotonic() - begin, 4)
            self.assertEqual(server.json("POST", C, {"prompt": "a"})[0], 503)


class Operator(unittest.TestCase):
    def refused(self, *options, seconds=WAIT_S):
        r = subprocess.run([BIN, "serve", TINY, "--port", "0", *options], capture_output=True, text=True, timeout=seconds)
        self.assertNotEqual(r.returncode, 0)
        return r.stderr

    def test_mistakes_at_the_start(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("# no key yet\n\n")
            keys.flush()
            self.assertIn("holds no key", self.refused("--api-key-file", keys.name))
        self.assertIn("/dev/zero", self.refused("--chat-template", "/dev/zero"))
        self.assertIn("memory here", self.refused("--kv-cache-memory-bytes", "900T"))
        self.assertIn("must not be empty", self.refused("--served-model-name", ""))
        for name in ("--slo-itl-ms", "--slo-ttft-ms"):
            for value in ("1e-300", "0.09"):
                self.assertIn(name + " must be 0 (no target)", self.refused(name, value))


if __name__ == "__main__":
    unittest.main()
