"""What is trained is what is served: the validation loss that a job reports is, to the last bit, what the served model's
log-probabilities add up to, with the adapter and without it."""
import json
import unittest

import test_jobs
from server import MODEL, TINY, Server

TRAIN = [{"messages": [{"role": "user", "content": f"abab {i}"}, {"role": "assistant", "content": "cdcdcdcd"[: 3 + i % 5]}]}
         for i in range(20)]
CHATS = [{"messages": [{"role": "user", "content": f"abab {i} x"}, {"role": "assistant", "content": f"The {i * i}. And?"}]}
         for i in range(7)]
COMPLETIONS = [{"prompt": f"{i} and {i + 1}", "completion": f" in the {'wes'[i % 3:]} {i * 37}"} for i in range(9)]
# Several turns, some of which are not learnt; the last is longer than a few blocks of the cache.
TURNS = [{"messages": [{"role": "system", "content": "in"}, {"role": "user", "content": "abab"},
                       {"role": "assistant", "content": f"the {i}", "weight": i % 2}, {"role": "user", "content": "an er"},
                       {"role": "assistant", "content": "on " * (1 + 9 * i)}]} for i in range(6)]


def text(lines):
    return "".join(json.dumps(x) + "\n" for x in lines).encode()


class ServedLoss(test_jobs.Folder):
    model = TINY

    def begin(self):
        self.server = Server(self.model, "--served-model-name", "tiny", "--data-dir", self.folder, "--enable-lora",
                             "--cache-dir", self.folder)
        self.addCleanup(self.server.stop)
        self.client = self.connect(self.server)

    def ids(self, **what):
        status, r = self.server.json("POST", "/tokenize", {"model": "tiny", **what})
        self.assertEqual(status, 200, r)
        return r["tokens"]

    def sequence(self, line):
        """Ids of a line, and the places of its targets."""
        if "prompt" in line:
            begin = self.ids(prompt=line["prompt"])
            end = self.ids(prompt=line["completion"], add_special_tokens=False)
            end += self.ids(prompt="<|im_end|>", add_special_tokens=False)
            return begin + end, list(range(len(begin), len(begin + end)))
        ids, targets = [], []
        for i, m in enumerate(line["messages"]):
            if m["role"] == "assistant":
                said = [{k: v for k, v in x.items() if k != "weight"} for x in line["messages"][:i]]
                begin = self.ids(messages=said, add_generation_prompt=True)
                self.assertEqual(begin[:len(ids)], ids)
                ids = begin + self.ids(prompt=m["content"] + "<|im_end|>", add_special_tokens=False)
                targets += range(len(begin), len(ids)) if m.get("weight", 1) else []
        return ids, targets

    def served(self, model, lines):
        """f64 sum in the file's order, over the number of targets."""
        total, n = 0.0, 0
        for line in lines:
            ids, targets = self.sequence(line)
            body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 0}
            status, r = self.server.json("POST", "/v1/completions", body)
            self.assertEqual(status, 200, r)
            logprobs = r["choices"][0]["logprobs"]["token_logprobs"]
            for at in targets:
                total -= logprobs[at]
            n += len(targets)
        return total / n

    def check(self, lines, **graft):
        files = [self.client.files.create(file=(name, text(x)), purpose="fine-tune").id
                 for name, x in (("train.jsonl", TRAIN), ("valid.jsonl", lines))]
        job = self.client.fine_tuning.jobs.create(
            model="tiny", training_file=files[0], validation_file=files[1], seed=3,
            method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1, "batch_size": 8}}},
            extra_body={"graft": {"learning_rate": 5e-3, **graft}})
        job = self.wait(self.client, job.id, "succeeded")
        events = [e.data for e in self.client.fine_tuning.jobs.list_events(job.id, limit=100) if e.type == "metrics"]
        found = next(e["full_valid_loss"] for e in events if e.get("full_valid_loss") is not None)
        self.assertEqual(self.served(job.fine_tuned_model, lines), found)
        self.assertGreater(abs(self.served("tiny", lines) - found), 1e-3)

    def test_chats(self):
        self.begin()
        self.check(CHATS)
        self.check(CHATS, lora={"r": 5, "alpha": 3, "use_rslora": True, "dropout": 0.3,
                                "target_modules": ["k_proj", "gate_proj", "down_proj"]})

    def test_turns(self):
        self.begin()
        self.check(TURNS)

    def test_completions(self):
        self.begin()
        self.check(COMPLETIONS, packing=False)


@unittest.skipUnless(MODEL, "GRAFT_TEST_MODEL is not set")
class RealModel(ServedLoss):
    model = MODEL


if __name__ == "__main__":
    unittest.main()
