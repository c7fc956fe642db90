"""Adapter folders that graft writes, against what `peft` writes and reads. Names, types, shapes, values and
configuration need nothing but this file; where torch, transformers and peft are there, peft loads the folders, too."""
import hashlib
import json
import os
import re
import struct
import subprocess
import tempfile
import unittest

try:
    import peft
    import torch
    import transformers
except ImportError:
    peft = None

from server import BIN, ROOT, Server

COPY = os.environ.get("GRAFT_ADAPTER_COPY",
                      os.path.join(os.path.dirname(BIN), "../tests/model/graft_adapter_copy"))
MODEL = os.path.join(ROOT, "tests/golden/models/hf-f32")
ADAPTERS = os.path.join(ROOT, "tests/golden/adapters")
NAMES = ("all", "qv", "rslora", "patterns")
# Fields without which a reader would guess.
NEEDED = {"peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "target_modules",
          "rank_pattern", "alpha_pattern", "bias", "use_dora", "fan_in_fan_out", "modules_to_save", "lora_dropout"}


def config_of(folder):
    with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as f:
        return json.load(f)


def values_of(dtype, data):
    """As f32, the way peft computes."""
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    code, size = ("e", 2) if dtype == "F16" else ("f", 4)
    return struct.unpack(f"<{len(data) // size}{code}", data)


def tensors_of(folder):
    """Name -> type, shape, values; and the metadata."""
    with open(os.path.join(folder, "adapter_model.safetensors"), "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(n)), f.read()
    metadata = head.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], values_of(t["dtype"], data[slice(*t["data_offsets"])]))
            for k, t in head.items()}, metadata


def scales(folder):
    """Name of each module -> its rank and what its product is scaled by, as peft reads the configuration: the last
    entry of a pattern counts that the name ends with."""
    c, out = config_of(folder), {}
    for key, (_, shape, _) in tensors_of(folder)[0].items():
        if not key.endswith("lora_A.weight"):
            continue
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")

        def pattern(which, usual):
            for k, v in c[which].items():  # peft takes the first that matches
                if re.match(rf"(.*\.)?({k})$", name):
                    return v
            return usual
        r, alpha = pattern("rank_pattern", c["r"]), pattern("alpha_pattern", c["lora_alpha"])
        assert r == shape[0], (name, r, shape)
        out[name] = (r, alpha / (r ** 0.5 if c["use_rslora"] else r))
    return out


@unittest.skipUnless(os.path.exists(COPY), f"{COPY} is not built")
class Copied(unittest.TestCase):
    """What peft wrote, read and written again."""

    def copy(self, name, to):
        done = subprocess.run([COPY, MODEL, os.path.join(ADAPTERS, name), to], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def test_tensors(self):
        for name in NAMES:
            with self.subTest(name), tempfile.TemporaryDirectory() as to:
                digest = self.copy(name, to)
                with open(os.path.join(to, "adapter_model.safetensors"), "rb") as f:
                    self.assertEqual(digest, hashlib.sha256(f.read()).hexdigest())
                before, _ = tensors_of(os.path.join(ADAPTERS, name))
                after, metadata = tensors_of(to)
                self.assertEqual(metadata, {"format": "pt"})
                self.assertEqual(before.keys(), after.keys())
                for k, (_, shape, values) in before.items():
                    self.assertEqual(after[k], ("F32", shape, values), k)

    def test_meaning(self):
        for name in NAMES:
            with self.subTest(name), tempfile.TemporaryDirectory() as to:
                self.copy(name, to)
                self.assertEqual(scales(os.path.join(ADAPTERS, name)), scales(to))
                self.assertEqual(NEEDED - config_of(to).keys(), set())

    @unittest.skipUnless(peft, "peft, torch and transformers are not all there")
    def test_logits(self):
        for name in NAMES:
            with self.subTest(name), tempfile.TemporaryDirectory() as to:
                self.copy(name, to)
                ids = torch.arange(3, 60)[None]
                self.assertTrue(torch.equal(logits(os.path.join(ADAPTERS, name), ids), logits(to, ids)))


def logits(folder, ids):
    base = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder).float().eval()
    with torch.inference_mode():
        return model(ids).logits


class Trained(unittest.TestCase):
    def train(self, folder, options):
        data = os.path.join(folder, "data.jsonl")
        with open(data, "w", encoding="utf-8") as f:
            for i in range(12):
                f.write(json.dumps({"prompt": f"{i}+{i}=", "completion": f"{2 * i}."}) + "\n")
        to = os.path.join(folder, "out")
        r = subprocess.run([BIN, "train", "--model", MODEL, "--data", data, "--output", to, "--epochs", "8",
                            "--batch-size", "4", "--learning-rate", "2e-2", "--cache-dir", folder, *options],
                           capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        return os.path.join(to, "adapter")

    def test_format(self):
        """The same names, types and shapes as peft has, and no field that peft would write otherwise."""
        with open(os.path.join(ADAPTERS, "format.json"), encoding="utf-8") as f:
            cases = json.load(f)
        for name, case in cases.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                to = self.train(folder, case["options"])
                tensors, metadata = tensors_of(to)
                self.assertEqual(metadata, {"format": "pt"})
                self.assertEqual({k: [t[0], t[1]] for k, t in tensors.items()}, case["tensors"])
                for k, t in tensors.items():
                    self.assertTrue(any(t[2]), k)  # B began as zero
                config = config_of(to)
                self.assertEqual(NEEDED - config.keys(), set())
                config["target_modules"].sort()
                del config["base_model_name_or_path"]
                self.assertEqual(config, {k: case["config"].get(k, "no such field") for k in config})

    @unittest.skipUnless(peft, "peft, torch and transformers are not all there")
    def test_logits(self):
        """peft computes with it what is served, but for the rounding of K and V to bf16."""
        with tempfile.TemporaryDirectory() as folder:
            to = self.train(folder, ["--use-rslora", "--lora-r", "6", "--lora-alpha", "9"])
            with Server(MODEL, "--served-model-name", "base", "--enable-lora", "--lora-modules", "a=" + to) as s:
                ids = list(range(3, 60))
                found = {}
                for model in ("base", "a"):
                    _, r = s.json("POST", "/v1/completions", {"model": model, "prompt": ids, "max_tokens": 1,
                                                              "echo": True, "logprobs": 0})
                    found[model] = torch.tensor(r["choices"][0]["logprobs"]["token_logprobs"][1:len(ids)])
            x = torch.tensor(ids)[None]
            expected = logits(to, x)[0, :-1].log_softmax(-1).gather(1, x[0, 1:, None])[:, 0]
            self.assertGreater((found["a"] - found["base"]).abs().max(), 2)
            self.assertLess((found["a"] - expected).abs().max(), 0.4)
            self.assertLess((found["a"] - expected).abs().mean(), 0.05)


if __name__ == "__main__":
    unittest.main()
