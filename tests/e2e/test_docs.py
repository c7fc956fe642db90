"""The reference page of options is what the binary prints."""
import os
import subprocess
import unittest

from server import BIN, ROOT


class Docs(unittest.TestCase):
    def test_options_page_is_current(self):
        printed = subprocess.run([BIN, "help", "--markdown"], capture_output=True, text=True, check=True).stdout
        with open(os.path.join(ROOT, "docs/options.md"), encoding="utf-8") as f:
            self.assertEqual(f.read(), printed, "run: graft help --markdown > docs/options.md")

    def test_help(self):
        for command in ("serve", "train", "loadtest"):
            r = subprocess.run([BIN, command, "--help"], capture_output=True, text=True)
            self.assertEqual(r.returncode, 0)
            self.assertIn("Usage: graft " + command, r.stdout)
        self.assertEqual(subprocess.run([BIN, "nonsense"], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
