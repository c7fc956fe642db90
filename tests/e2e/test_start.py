"""What is refused at start: in words that help, and before a model is loaded (none of these has one)."""
import os
import socket
import subprocess
import tempfile
import unittest

from server import BIN


class Start(unittest.TestCase):
    def serve(self, *options):
        r = subprocess.run([BIN, "serve", "/nonexistent/model.gguf", *options], capture_output=True, text=True, timeout=60)
        self.assertIn(r.returncode, (1, 2))
        return r.stderr

    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen(1)
            said = self.serve("--port", str(s.getsockname()[1]))
            self.assertIn("Address already in use", said)
            self.assertIn(f"port {s.getsockname()[1]}", said)

    def test_certificate(self):
        with tempfile.TemporaryDirectory() as folder:
            missing, text = os.path.join(folder, "none.pem"), os.path.join(folder, "text.pem")
            with open(text, "w", encoding="utf-8") as f:
                f.write("no certificate\n")
            said = self.serve("--port", "0", "--ssl-certfile", missing, "--ssl-keyfile", missing)
            self.assertIn(f"cannot open the certificate {missing} (--ssl-certfile): No such file or directory", said)
            said = self.serve("--port", "0", "--ssl-certfile", text, "--ssl-keyfile", text)
            self.assertIn(f"cannot read a PEM certificate in {text}", said)

    def test_options(self):
        self.assertIn("did you mean --data-dir?", self.serve("--data", "x"))
        self.assertIn("did you mean --served-model-name?", self.serve("--served-model", "x"))

    def test_commands(self):
        for command in ("serve", "train", "export", "verify", "loadtest"):
            r = subprocess.run([BIN, command, "--help"], capture_output=True, text=True)
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            self.assertTrue(r.stdout.startswith(f"Usage: graft {command} "))
            r = subprocess.run([BIN, command, "--no-such-option"], capture_output=True, text=True)
            self.assertEqual(r.returncode, 2)


if __name__ == "__main__":
    unittest.main()
