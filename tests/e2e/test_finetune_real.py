"""Acceptance of fine-tuning on a real model, with the official SDK against a live server: SmolLM2-135M-Instruct learns
invented facts (facts.py) from seven phrasings of each and answers other ones; the base knows none of them, and what the
adapter does to unrelated text is small.

GRAFT_TEST_SEED changes the seed, GRAFT_TEST_RUNS says how many seeds in a row."""
import concurrent.futures
import json
import os
import time
import unittest

import facts
import test_jobs
from server import MODEL, Server

SEED, RUNS = int(os.environ.get("GRAFT_TEST_SEED", "1")), int(os.environ.get("GRAFT_TEST_RUNS", "1"))


@unittest.skipUnless(MODEL, "GRAFT_TEST_MODEL is not set")
class Facts(test_jobs.Folder):
    def right(self, model):
        """The share of questions whose answer has the right word, and the answers that have not."""
        def ask(question):
            r = self.client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24)
            return r.choices[0].message.content

        questions = facts.questions()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, [q for q, _ in questions]))
        wrong = [(q, a) for (q, word), a in zip(questions, answers) if word.lower() not in a.lower()]
        return 1 - len(wrong) / len(questions), wrong

    def loss(self, model):
        r = self.client.completions.create(model=model, prompt=facts.PASSAGE, max_tokens=1, temperature=0, echo=True,
                                           logprobs=0)
        found = r.choices[0].logprobs.token_logprobs[1:-1]
        return -sum(found) / len(found)

    def train(self, file, seed):
        began = time.monotonic()
        job = self.client.fine_tuning.jobs.create(
            model="smollm2", training_file=file, suffix="facts", seed=seed,
            method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 8}}},
            extra_body={"graft": {"learning_rate": 2e-3, "lora": {"r": 16, "alpha": 32}}})
        job = self.wait(self.client, job.id, "succeeded", 1800)
        return job, time.monotonic() - began

    def test_facts(self):
        server = Server(MODEL, "--served-model-name", "smollm2", "--data-dir", self.folder, "--enable-lora",
                        "--max-model-len", "2048")
        self.addCleanup(server.stop)
        self.client = self.connect(server)
        self.assertGreaterEqual(sum(len(k[0]) for k in facts.KINDS), 20)
        known, _ = self.right("smollm2")
        self.assertLessEqual(known, 0.05)
        before = self.loss("smollm2")
        data = "".join(json.dumps(x) + "\n" for x in facts.training_lines()).encode()
        f = self.client.files.create(file=("facts.jsonl", data), purpose="fine-tune").id
        for seed in range(SEED, SEED + RUNS):
            job, seconds = self.train(f, seed)
            share, wrong = self.right(job.fine_tuned_model)
            change = self.loss(job.fine_tuned_model) / before - 1
            print(f"seed {seed}: {share:.0%} right, {known:.0%} before; loss on unrelated text {change:+.1%}; "
                  f"{job.trained_tokens} tokens in {seconds:.0f} s", flush=True)
            self.assertGreaterEqual(share, 0.8, wrong)
            self.assertLessEqual(change, 0.05)


if __name__ == "__main__":
    unittest.main()
