"""Adapter folders that graft writes, read by peft and safetensors: the values, the configuration's meaning
and the logits of the golden adapters come back as they were. Needs graft_adapter_copy beside the tests."""
import hashlib
import os
import subprocess
import tempfile
import unittest

try:
    import peft
    import torch
    import transformers
    from safetensors import safe_open
except ImportError:
    peft = None

from server import BIN, ROOT

COPY = os.environ.get("GRAFT_ADAPTER_COPY",
                      os.path.join(os.path.dirname(BIN), "../tests/model/graft_adapter_copy"))
MODEL = os.path.join(ROOT, "tests/golden/models/hf-f32")
ADAPTERS = os.path.join(ROOT, "tests/golden/adapters")


def tensors(folder):
    with safe_open(os.path.join(folder, "adapter_model.safetensors"), framework="pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, f.metadata()


def logits(folder):
    base = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder).float().eval()
    with torch.inference_mode():
        return model(torch.arange(3, 60)[None]).logits


@unittest.skipUnless(peft, "peft, torch, transformers and safetensors are not all there")
@unittest.skipUnless(os.path.exists(COPY), f"{COPY} is not built")
class AdapterFiles(unittest.TestCase):
    def test_written_again(self):
        for name in ("all", "qv", "rslora", "patterns"):
            with self.subTest(name), tempfile.TemporaryDirectory() as to:
                source = os.path.join(ADAPTERS, name)
                done = subprocess.run([COPY, MODEL, source, to], check=True, capture_output=True, text=True)
                with open(os.path.join(to, "adapter_model.safetensors"), "rb") as f:
                    self.assertEqual(done.stdout.strip(), hashlib.sha256(f.read()).hexdigest())
                before, _ = tensors(source)
                after, metadata = tensors(to)
                self.assertEqual(metadata, {"format": "pt"})
                self.assertEqual(before.keys(), after.keys())
                for k, v in before.items():
                    self.assertEqual(after[k].dtype, torch.float32)
                    self.assertTrue(torch.equal(after[k], v.float()), k)
                self.assertTrue(torch.equal(logits(source), logits(to)))


if __name__ == "__main__":
    unittest.main()
