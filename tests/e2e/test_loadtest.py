"""The load tester against the server: answers are checked, numbers add up, faults are seen."""
import http.server
import json
import subprocess
import threading
import unittest

from server import BIN, Server


def loadtest(url, *options):
    r = subprocess.run(
        [BIN, "loadtest", "--url", url + "/v1", "--json", "-", "--no-progress", *options],
        capture_output=True, text=True, timeout=120,
    )
    return r.returncode, json.loads(r.stdout) if r.stdout else None, r.stderr


class LoadTest(unittest.TestCase):
    def test_closed_and_open_loop(self):
        with Server() as server:
            for load in (["--users", "8"], ["--rate", "200"]):
                for endpoint in ("completions", "chat"):
                    status, r, err = loadtest(
                        server.url, *load, "--requests", "40", "--input-tokens", "uniform:4:12",
                        "--output-tokens", "uniform:2:20", "--check-tokens", "--endpoint", endpoint,
                    )
                    self.assertEqual(status, 0, (r, err))
                    self.assertEqual((r["sent"], r["ok"]), (40, 40))
                    self.assertEqual(r["e2e_seconds"]["count"], 40)
                    self.assertEqual(r["ttft_seconds"]["count"], 40)
                    self.assertGreater(r["completion_tokens"], 80)
                    self.assertGreaterEqual(r["e2e_seconds"]["p99"], r["ttft_seconds"]["p50"])

    def test_address_without_version(self):
        with Server() as server:
            for options in ([], ["--model", "x", "--requests", "2"]):
                r = subprocess.run([BIN, "loadtest", "--url", server.url, "--no-progress", *options], capture_output=True,
                                   text=True, timeout=120)
                self.assertNotEqual(r.returncode, 0)
                self.assertIn("give --url the /v1 at its end", r.stderr)

    def test_same_seed_same_load(self):
        with Server() as server:
            runs = [
                loadtest(server.url, "--requests", "12", "--users", "1", "--prompt", "ids", "--vocab", "288",
                         "--input-tokens", "normal:20:8:2:60", "--output-tokens", "lognormal:6:0.5:1:20")[1]
                for _ in range(2)
            ]
            for key in ("prompt_tokens", "completion_tokens", "ok"):
                self.assertEqual(runs[0][key], runs[1][key])

    def test_faulty_servers_are_noticed(self):
        good = {"choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        wrong = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}}
        line = lambda o: b"data: " + json.dumps(o).encode() + b"\n\n"
        done = b"data: [DONE]\n\n"
        cases = {
            "finish_reason": line(good) + line(usage),
            "usage": line(good) + line(wrong) + done,
            "framing": line(good) + b"event without data\n\n" + line(usage) + done,
            "json": b"data: {\n\n" + done,
            "error_event": line({"error": {"message": "no"}}),
        }
        answer = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer["body"])))
                self.end_headers()
                self.wfile.write(answer["body"])

            def log_message(self, *_):
                pass

        fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        try:
            for kind, data in cases.items():
                answer["body"] = data
                status, r, _ = loadtest(
                    f"http://127.0.0.1:{fake.server_port}", "--requests", "2", "--users", "1", "--model", "m",
                    "--output-tokens", "1",
                )
                self.assertEqual(status, 3, kind)
                self.assertEqual(r["errors"][kind], 2, (kind, r))
        finally:
            fake.shutdown()


if __name__ == "__main__":
    unittest.main()
