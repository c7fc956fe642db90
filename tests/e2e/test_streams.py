"""Many streams at once, clients that go away, drain: nothing is cut, nothing is mixed up, nothing stays behind."""
import json
import os
import signal
import socket
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from server import Server, events, wait_until

STREAMS = int(os.environ.get("GRAFT_STREAMS", "500"))


def body(i, **fields):
    ids = [3 + (i * 7 + k * 13) % 280 for k in range(8 + i % 23)]
    return {"prompt": ids, "max_tokens": 8 + i % 17, "temperature": 0, "ignore_eos": True, **fields}


class Streams(unittest.TestCase):
    def test_each_of_many_streams_gets_its_own_answer(self):
        with Server("tests/golden/models/q8_0.gguf", "--max-waiting", "1000") as server:
            kinds = 40
            want = [server.json("POST", "/v1/completions", body(i))[1]["choices"][0]["text"] for i in range(kinds)]

            def one(i):
                _, _, data = server.request(
                    "POST", "/v1/completions", body(i % kinds, stream=True, stream_options={"include_usage": True})
                )
                found, done = events(data)
                text = "".join(c["text"] for e in found for c in e["choices"])
                return done and text == want[i % kinds] and found[-1]["usage"]["completion_tokens"] == 8 + (i % kinds) % 17

            with ThreadPoolExecutor(STREAMS) as pool:
                results = list(pool.map(one, range(STREAMS)))
            refused = results.count(None)
            self.assertEqual(refused, 0)
            self.assertEqual(results.count(True), STREAMS)

    def test_full_queue_answers_at_once(self):
        with Server("tests/golden/models/q8_0.gguf", "--max-waiting", "2", "--max-num-seqs", "1") as server:
            def one(_):
                status, headers, _ = server.request("POST", "/v1/completions", body(0, max_tokens=200))
                return status, headers.get("retry-after")

            with ThreadPoolExecutor(24) as pool:
                results = list(pool.map(one, range(24)))
            statuses = {s for s, _ in results}
            self.assertEqual(statuses, {200, 429})
            self.assertTrue(all(after for s, after in results if s == 429))

    def _open_stream(self, server, request):
        s = socket.create_connection((server.host, server.port))
        data = json.dumps(request).encode()
        s.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % len(data) + data
        )
        return s

    def _wait_idle(self, server):
        wait_until(lambda: server.metric("graft_requests_running") + server.metric("graft_requests_waiting") == 0,
                   lambda: "work goes on although every client has gone")

    def test_a_client_that_goes_away_ends_its_work(self):
        with Server("tests/golden/models/q8_0.gguf", "--max-num-seqs", "2") as server:
            long = body(0, max_tokens=240, stream=True)
            decoding = self._open_stream(server, long)
            decoding.recv(200)  # the first bytes: it decodes
            prefilling = self._open_stream(server, {**long, "prompt": [5] * 200})
            queued = [self._open_stream(server, body(i, max_tokens=240, stream=True)) for i in range(6)]
            time.sleep(0.05)
            for s in [decoding, prefilling, *queued]:
                s.close()
            self._wait_idle(server)
            self.assertEqual(server.request("POST", "/v1/completions", body(1))[0], 200)

    def test_sigterm_under_load_cuts_no_stream(self):
        server = Server("tests/golden/models/q8_0.gguf", "--drain-timeout", "30s")
        results, started = [], threading.Barrier(17)

        def one(i):
            s = self._open_stream(server, body(i, max_tokens=220, stream=True))
            data = s.recv(1000)
            started.wait()
            while chunk := s.recv(65536):
                data += chunk
                if b"data: [DONE]" in data:
                    break
            s.close()
            results.append(b"data: [DONE]" in data and b'"finish_reason":"length"' in data)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        started.wait()
        server.process.send_signal(signal.SIGTERM)
        for t in threads:
            t.join()
        self.assertEqual(server.process.wait(30), 0)
        self.assertEqual(results, [True] * 16)
        server.stop()

    def test_drain_endpoint(self):
        with Server() as server:
            self.assertEqual(server.request("GET", "/ready")[0], 200)
            status, answer = server.json("POST", "/admin/v1/drain", b"")
            self.assertEqual((status, answer["drained"]), (200, True))
            self.assertEqual(server.request("GET", "/ready")[0], 503)
            self.assertEqual(server.request("GET", "/health")[0], 200)
            status, headers, data = server.request("POST", "/v1/completions", body(0))
            self.assertEqual((status, json.loads(data)["error"]["code"]), (503, "draining"))
            self.assertIn("retry-after", headers)

    def test_access_log(self):
        with Server() as server:
            server.request("POST", "/v1/completions", body(3), {"X-Request-Id": "abc-123"})
            server.request("GET", "/nothing")
        lines = [json.loads(line) for line in server.access]
        first = next(x for x in lines if x["request_id"] == "abc-123")
        self.assertEqual(first["status"], 200)
        self.assertEqual(first["completion_tokens"], 11)
        self.assertEqual(first["finish_reason"], "length")
        self.assertTrue(any(x["status"] == 404 for x in lines))


if __name__ == "__main__":
    unittest.main()
