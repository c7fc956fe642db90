"""DPO end to end with the official SDK: served with its adapter, the preferred answers have become likelier and the
others less likely, also for questions that were not in the file."""
import json
import math
import unittest

import test_jobs
from server import TINY, Server


def pair(i):
    return {"input": {"messages": [{"role": "user", "content": f"abab {i}"}]},
            "preferred_output": [{"role": "assistant", "content": "in the and"}],
            "non_preferred_output": [{"role": "assistant", "content": f"or {i % 3} on"}]}


class Dpo(test_jobs.Folder):
    def logprob(self, model, messages, answer):
        ids = []
        for body in ({"messages": messages, "add_generation_prompt": True},
                     {"prompt": answer + "<|im_end|>", "add_special_tokens": False}):
            status, r = self.server.json("POST", "/tokenize", {"model": "tiny", **body})
            self.assertEqual(status, 200, r)
            ids.append(r["tokens"])
        r = self.client.completions.create(model=model, prompt=ids[0] + ids[1], max_tokens=1, echo=True, logprobs=0)
        return sum(r.choices[0].logprobs.token_logprobs[len(ids[0]):len(ids[0]) + len(ids[1])])

    def test_preferences(self):
        self.server = Server(TINY, "--served-model-name", "tiny", "--data-dir", self.folder, "--enable-lora")
        self.addCleanup(self.server.stop)
        self.client = self.connect(self.server)
        data = "".join(json.dumps(pair(i)) + "\n" for i in range(24)).encode()
        held = "".join(json.dumps(pair(i)) + "\n" for i in range(90, 100)).encode()
        v = self.client.files.create(file=("held.jsonl", held), purpose="fine-tune").id
        f = self.client.files.create(file=("pairs.jsonl", data), purpose="fine-tune").id
        job = self.client.fine_tuning.jobs.create(
            model="tiny", training_file=f, validation_file=v, seed=1,
            method={"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 4, "batch_size": 4, "beta": 0.1}}},
            extra_body={"graft": {"learning_rate": 2e-3, "lora": {"r": 8},
                                  "evaluation": {"min_improvement": 0.2, "max_valid_loss": 0.5}}})
        job = self.wait(self.client, job.id, "succeeded")
        events = [e.data for e in self.client.fine_tuning.jobs.list_events(job.id, limit=100) if e.type == "metrics"]
        losses = [e["train_loss"] for e in reversed(events)]
        self.assertEqual(len(losses), 24)
        self.assertAlmostEqual(losses[0], 0.693147, places=5)  # policy and reference are the same at first
        self.assertLess(losses[-1], 0.4)
        # The validation loss is DPO's, too, and so are the gates: the base's is log 2.
        last = events[0]
        z = []
        for i in range(90, 100):
            p = pair(i)
            gained = [self.logprob(job.fine_tuned_model, p["input"]["messages"], p[k][0]["content"]) -
                      self.logprob("tiny", p["input"]["messages"], p[k][0]["content"])
                      for k in ("preferred_output", "non_preferred_output")]
            z.append(0.1 * (gained[0] - gained[1]))
        self.assertAlmostEqual(last["full_valid_loss"], sum(math.log1p(math.exp(-x)) for x in z) / len(z), places=9)
        self.assertEqual(last["full_valid_mean_token_accuracy"], sum(x > 0 for x in z) / len(z))
        for i in (3, 100):
            p = pair(i)
            ratios = [self.logprob(job.fine_tuned_model, p["input"]["messages"], p[k][0]["content"]) -
                      self.logprob("tiny", p["input"]["messages"], p[k][0]["content"])
                      for k in ("preferred_output", "non_preferred_output")]
            self.assertGreater(ratios[0], 0.5, ratios)
            self.assertLess(ratios[1], -0.5, ratios)


if __name__ == "__main__":
    unittest.main()
