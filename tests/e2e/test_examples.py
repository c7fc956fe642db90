"""docs/examples.md, run from top to bottom as it stands, but for the server's address."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from server import ROOT, TINY, Server

MODEL = os.environ.get("GRAFT_EXAMPLES_MODEL", TINY)


def blocks():
    with open(os.path.join(ROOT, "docs/examples.md"), encoding="utf-8") as f:
        return re.findall(r"^```(sh|python)\n(.*?)^```$", f.read(), re.S | re.M)


class Examples(unittest.TestCase):
    def test_page(self):
        folder = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, folder)
        server = Server(MODEL, "--served-model-name", "smollm2", "--data-dir", "data", "--enable-lora", cwd=folder)
        self.addCleanup(server.stop)

        def run(command, text):
            text = text.replace("http://127.0.0.1:8000", server.url)
            r = subprocess.run([*command, text], cwd=folder, capture_output=True, text=True, timeout=600)
            self.assertEqual(r.returncode, 0, text + r.stdout + r.stderr)
            if os.environ.get("GRAFT_EXAMPLES_SHOW"):
                print(r.stdout)
            return r.stdout

        # In the page's order: Python's examples use a file that the shell's have made.
        shell = python = ""
        for kind, text in blocks():
            if kind == "sh":
                shell += text + "echo\n"
            else:
                python += text
        out = run(["bash", "-euo", "pipefail", "-c"], shell.replace("curl -sS", "curl -sS --fail-with-body"))
        self.assertIn('"status":"succeeded"', out)
        self.assertIn("data: [DONE]", out)
        self.assertIn("Success: LoRA adapter 'mine' removed", out)
        out = run([sys.executable, "-c"], python)
        self.assertIn("succeeded ft:smollm2:graft:colours:", out)
        self.assertIn("New fine-tuned model created: ft:smollm2:graft:colours:", out)
        self.assertIn("\ncancelled\n", out)


if __name__ == "__main__":
    unittest.main()
