"""Starts and stops graft servers for the tests, on loopback and free ports.

A server dies with the test program, also one whose test failed before it could stop it.
"""
import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.parse

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BIN = os.path.abspath(os.environ.get("GRAFT_BIN", os.path.join(ROOT, "build/release/gateway/graft")))
MODEL = os.environ.get("GRAFT_TEST_MODEL", "")  # SmolLM2-135M-Instruct, Q4_1
TINY = os.path.join(ROOT, "tests/golden/models/q8_0.gguf")
WAIT_S = 180  # only ends a test that would hang: a loaded machine may take its time

_running = set()


@atexit.register
def _kill_running():
    for process in list(_running):
        process.kill()


def wait_until(holds, otherwise=lambda: "", seconds=WAIT_S):
    """Waits until holds() is true, and returns what it gave; otherwise() says in a failure how things stand."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"it never came true: {otherwise()}")
        time.sleep(0.02)
    return found


class Server:
    """A running `graft serve`. `log` holds its messages, `access` its access log lines."""

    def __init__(self, model=TINY, *options, env=None, wait=True, cwd=None, prefix=()):
        command = [*prefix, BIN, "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}, cwd=cwd
        )
        _running.add(self.process)
        self.log, self.access = [], []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stderr, self.log), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stdout, self.access), daemon=True),
        ]
        for t in self._threads:
            t.start()
        self.url = None
        if wait:
            self.wait_ready()

    @staticmethod
    def _read(pipe, into):
        for line in pipe:
            into.append(line.rstrip("\n"))

    def wait_ready(self, seconds=WAIT_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in list(self.log):
                found = re.search(r"ready in .*: (https?://\S+)/v1", line)
                if found:
                    self.url = found.group(1)
                    parts = urllib.parse.urlsplit(self.url)
                    self.host, self.port = parts.hostname, parts.port
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.stop()
        raise AssertionError("the server did not become ready:\n" + "\n".join(self.log))

    def stop(self, sig=signal.SIGTERM, seconds=WAIT_S):
        """Stops it and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the server did not stop:\n" + "\n".join(self.log[-20:]))
        _running.discard(self.process)
        for t in self._threads:
            t.join(5)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def request(self, method, path, body=None, headers=None, timeout=120):
        """One request on a connection of its own: (status, headers, body bytes)."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            h = {"Content-Type": "application/json"} if body is not None else {}
            c.request(method, path, body, {**h, **(headers or {})})
            r = c.getresponse()
            return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
        finally:
            c.close()

    def json(self, method, path, body=None, headers=None, timeout=120):
        status, _, data = self.request(method, path, body, headers, timeout)
        return status, json.loads(data)

    def metric(self, name):
        """Sum of a metric's series."""
        text = self.request("GET", "/metrics")[2].decode()
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith(name) and line[len(name)] in " {"
        ]
        return sum(values)


def events(data):
    """The JSON objects of an event stream, and whether [DONE] ended it."""
    found, done = [], False
    for line in data.decode().split("\n\n"):
        if line.startswith("data: [DONE]"):
            done = True
        elif line.startswith("data: "):
            found.append(json.loads(line[6:]))
    return found, done
