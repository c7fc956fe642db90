"""Sampling defaults of generation_config.json: each is heard, a request's own value goes before it, and
--generation-config none leaves them out."""
import json
import os
import shutil
import tempfile
import unittest

from server import ROOT, Server

BASE = os.path.join(ROOT, "tests/golden/models/hf-f32")


def ask(server, **fields):
    body = {"prompt": [5, 6, 7], "max_tokens": 12, "seed": 3, "ignore_eos": True, "logprobs": 0,
            "return_tokens_as_token_ids": True, **fields}
    status, answer = server.json("POST", "/v1/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["logprobs"]["tokens"]


class Defaults(unittest.TestCase):
    def start(self, defaults, *options, **kw):
        folder = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, folder)
        model = os.path.join(folder, "model")
        shutil.copytree(BASE, model)
        with open(os.path.join(model, "generation_config.json"), "w", encoding="ascii") as f:
            json.dump(defaults, f)
        server = Server(model, *options, **kw)
        self.addCleanup(server.stop)
        return server

    def test_each(self):
        with Server(BASE) as server:
            greedy, drawn = ask(server, temperature=0), ask(server)
            self.assertNotEqual(greedy, drawn)
            penalised = ask(server, repetition_penalty=3)
            self.assertNotEqual(penalised, drawn)
        # Each of these leaves only the likeliest token, so what it does is seen at once.
        for name, value, neutral in (("min_p", 1.0, 0), ("top_k", 1, -1), ("top_p", 1e-6, 1), ("temperature", 0, 1)):
            with self.subTest(name=name):
                server = self.start({name: value})
                self.assertEqual(ask(server), greedy)
                self.assertEqual(ask(server, **{name: neutral}), drawn)
                server.stop()
        server = self.start({"repetition_penalty": 3})
        self.assertEqual(ask(server), penalised)
        server.stop()
        self.assertEqual(ask(self.start({"min_p": 1.0}, "--generation-config", "none")), drawn)

    def test_out_of_range(self):
        for defaults in ({"min_p": 1.5}, {"min_p": "x"}, {"top_p": 2}):
            server = self.start(defaults, wait=False)
            self.assertEqual(server.process.wait(30), 1)
            server.stop()
            self.assertIn(next(iter(defaults)), "\n".join(server.log))


if __name__ == "__main__":
    unittest.main()
