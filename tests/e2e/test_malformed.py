"""Bad input: each request gets exactly this status, error type and param, and the server lives on."""
import json
import unittest

from server import Server

C, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
INVALID = "invalid_request_error"


def completion(**fields):
    return {"prompt": "hello", "max_tokens": 1, **fields}


def chat(**fields):
    return {"messages": USER, "max_tokens": 1, **fields}


# path, body, status, type, param
CASES = [
    (C, b"", 400, INVALID, None),
    (C, b"{", 400, INVALID, None),
    (C, b"[]", 400, INVALID, None),
    (C, b'"text"', 400, INVALID, None),
    (C, b"{\"prompt\": \"\xff\"}", 400, INVALID, None),
    (C, b"{\"prompt\": \"a\", \"prompt\": \"b\"}", 400, INVALID, None),
    (C, b"{\"prompt\": \"a\", \"seed\": 99999999999999999999}", 400, INVALID, None),
    (C, b"{\"prompt\": " + b"[" * 2000 + b"]" * 2000 + b"}", 400, INVALID, None),
    (C, b"{\"prompt\": \"a\"} trailing", 400, INVALID, None),
    (C, {}, 400, INVALID, "prompt"),
    (C, {"prompt": None}, 400, INVALID, "prompt"),
    (C, completion(prompt=5), 400, INVALID, "prompt"),
    (C, completion(prompt={}), 400, INVALID, "prompt"),
    (C, completion(prompt=[]), 400, INVALID, "prompt"),
    (C, completion(prompt=""), 400, INVALID, "prompt"),
    (C, completion(prompt=[1, "a"]), 400, INVALID, "prompt"),
    (C, completion(prompt=[1, 2.5]), 400, INVALID, "prompt"),
    (C, completion(prompt=[-1]), 400, INVALID, "prompt"),
    (C, completion(prompt=[1 << 40]), 400, INVALID, "prompt"),
    (C, completion(prompt=[288]), 400, INVALID, "prompt"),
    (C, completion(prompt=["ok", 5]), 400, INVALID, "prompt[1]"),
    (C, completion(prompt=[[1], [999]]), 400, INVALID, "prompt[1]"),
    (C, completion(prompt=["a"] * 200), 400, INVALID, "prompt"),
    (C, completion(prompt="word " * 100000), 400, INVALID, "prompt"),
    (C, completion(max_tokens=-1), 400, INVALID, "max_tokens"),
    (C, completion(max_tokens="5"), 400, INVALID, "max_tokens"),
    (C, completion(max_tokens=1.5), 400, INVALID, "max_tokens"),
    (C, completion(max_tokens=10**9), 400, INVALID, "max_tokens"),
    (C, completion(temperature=-1), 400, INVALID, "temperature"),
    (C, completion(temperature=2.1), 400, INVALID, "temperature"),
    (C, completion(temperature="hot"), 400, INVALID, "temperature"),
    (C, completion(top_p=5), 400, INVALID, "top_p"),
    (C, completion(top_p=-0.1), 400, INVALID, "top_p"),
    (C, completion(top_k=-2), 400, INVALID, "top_k"),
    (C, completion(min_p=1.1), 400, INVALID, "min_p"),
    (C, completion(n=0), 400, INVALID, "n"),
    (C, completion(n=129), 400, INVALID, "n"),
    (C, completion(n=128), 400, INVALID, "n"),  # more than --max-num-seqs
    (C, completion(n=True), 400, INVALID, "n"),
    (C, completion(best_of=3), 400, INVALID, "best_of"),
    (C, completion(suffix="x"), 400, INVALID, "suffix"),
    (C, completion(echo="yes"), 400, INVALID, "echo"),
    (C, completion(logprobs=21), 400, INVALID, "logprobs"),
    (C, completion(logprobs=True), 400, INVALID, "logprobs"),
    (C, completion(prompt_logprobs=-1), 400, INVALID, "prompt_logprobs"),
    (C, completion(prompt_logprobs=1, stream=True), 400, INVALID, "prompt_logprobs"),
    (C, completion(presence_penalty=3), 400, INVALID, "presence_penalty"),
    (C, completion(frequency_penalty=-3), 400, INVALID, "frequency_penalty"),
    (C, completion(repetition_penalty=0), 400, INVALID, "repetition_penalty"),
    (C, completion(logit_bias=[]), 400, INVALID, "logit_bias"),
    (C, completion(logit_bias={"x": 1}), 400, INVALID, "logit_bias"),
    (C, completion(logit_bias={"288": 1}), 400, INVALID, "logit_bias"),
    (C, completion(logit_bias={"1": 101}), 400, INVALID, "logit_bias"),
    (C, completion(logit_bias={"1": "1"}), 400, INVALID, "logit_bias"),
    (C, completion(stop=["a", "b", "c", "d", "e"]), 400, INVALID, "stop"),
    (C, completion(stop=""), 400, INVALID, "stop"),
    (C, completion(stop=[1]), 400, INVALID, "stop"),
    (C, completion(stop_token_ids=[288]), 400, INVALID, "stop_token_ids"),
    (C, completion(stop_token_ids=5), 400, INVALID, "stop_token_ids"),
    (C, completion(seed="x"), 400, INVALID, "seed"),
    (C, completion(stream="yes"), 400, INVALID, "stream"),
    (C, completion(stream_options={"include_usage": True}), 400, INVALID, "stream_options"),
    (C, completion(stream=True, stream_options=[]), 400, INVALID, "stream_options"),
    (C, completion(min_tokens=5), 400, INVALID, "min_tokens"),
    (C, completion(truncate_prompt_tokens=0), 400, INVALID, "truncate_prompt_tokens"),
    (C, completion(cache_salt=""), 400, INVALID, "cache_salt"),
    (C, completion(priority="high"), 400, INVALID, "priority"),
    (C, completion(user=5), 400, INVALID, "user"),
    (C, completion(model="other"), 404, INVALID, "model"),
    (C, completion(model=5), 400, INVALID, "model"),
    (C, completion(add_special_tokens=1), 400, INVALID, "add_special_tokens"),
    (CHAT, {}, 400, INVALID, "messages"),
    (CHAT, chat(messages=[]), 400, INVALID, "messages"),
    (CHAT, chat(messages="hi"), 400, INVALID, "messages"),
    (CHAT, chat(messages=["hi"]), 400, INVALID, "messages[0]"),
    (CHAT, chat(messages=[{"content": "hi"}]), 400, INVALID, "messages[0]"),
    (CHAT, chat(messages=[{"role": "king", "content": "hi"}]), 400, INVALID, "messages[0]"),
    (CHAT, chat(messages=USER + [{"role": "user"}]), 400, INVALID, "messages[1].content"),
    (CHAT, chat(messages=[{"role": "user", "content": 5}]), 400, INVALID, "messages[0].content"),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        400,
        INVALID,
        "messages[0].content[0]",
    ),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400, INVALID, "messages[0].content[0]"),
    (CHAT, chat(messages=[{"role": "user", "content": "w " * 100000}]), 400, INVALID, "messages"),
    (CHAT, chat(top_logprobs=2), 400, INVALID, "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, INVALID, "top_logprobs"),
    (CHAT, chat(logprobs=1), 400, INVALID, "logprobs"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), 400, INVALID, "tools"),
    (CHAT, chat(tool_choice="required"), 400, INVALID, "tool_choice"),
    (CHAT, chat(parallel_tool_calls=False), 400, INVALID, "parallel_tool_calls"),
    (CHAT, chat(response_format={"type": "json_object"}), 400, INVALID, "response_format"),
    (CHAT, chat(max_completion_tokens=-1), 400, INVALID, "max_completion_tokens"),
    (CHAT, chat(chat_template_kwargs=[]), 400, INVALID, "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), 400, INVALID, "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs={"chat_template": "x"}), 400, INVALID, "chat_template_kwargs"),
    (CHAT, chat(continue_final_message=True, add_generation_prompt=True), 400, INVALID, "continue_final_message"),
    ("/tokenize", {}, 400, INVALID, "prompt"),
    ("/detokenize", {"tokens": "x"}, 400, INVALID, "tokens"),
    ("/detokenize", {"tokens": [288]}, 400, INVALID, "tokens"),
]

# Legal although unusual: fields at their defaults, unknown fields, boundary values.
LEGAL = [
    (C, completion(logit_bias={}, stop=[], suffix="", best_of=1, user="u", unknown_field={"a": 1})),
    (C, completion(max_tokens=0)),
    (C, completion(temperature=0, top_p=0)),
    (C, completion(temperature=2, top_p=1, top_k=-1, min_p=1)),
    (C, completion(prompt=[3, 4, 5])),
    (C, completion(prompt=[[3, 4], [5]])),
    (C, completion(seed=-5, n=2, stop=None, stream=None)),
    (C, completion(prompt="a\u0000b", cache_salt="s", priority=-1, truncate_prompt_tokens=-1)),
    (CHAT, chat(tools=[], tool_choice="none", response_format={"type": "text"}, parallel_tool_calls=True)),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])),
    (CHAT, chat(max_tokens=None, max_completion_tokens=2, logprobs=True, top_logprobs=0)),
]


class Malformed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_table(self):
        self.assertGreaterEqual(len(CASES), 60)
        for path, body, status, kind, param in CASES:
            with self.subTest(path=path, body=str(body)[:100]):
                got, headers, data = self.server.request("POST", path, body)
                error = json.loads(data)["error"]
                self.assertEqual((got, error["type"], error["param"]), (status, kind, param), error)
                self.assertEqual(set(error), {"message", "type", "param", "code"})
                self.assertTrue(error["message"])
                self.assertTrue(error["code"] is None or isinstance(error["code"], str))
                self.assertIn("x-request-id", headers)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_legal(self):
        for path, body in LEGAL:
            with self.subTest(path=path, body=str(body)[:100]):
                status, answer = self.server.json("POST", path, body)
                self.assertEqual(status, 200, answer)

    def test_context_overflow_has_its_code(self):
        for path, body in [(C, completion(prompt="word " * 100000)), (C, completion(max_tokens=10**6))]:
            _, answer = self.server.json("POST", path, body)
            self.assertEqual(answer["error"]["code"], "context_length_exceeded")

    def test_routes(self):
        for method, path, status in [
            ("GET", "/v1/nothing", 404),
            ("GET", C, 405),
            ("DELETE", "/v1/models", 405),
            ("GET", "/v1/models/none", 404),
            ("POST", "/v1", 404),
        ]:
            got, answer = self.server.json(method, path, b"" if method == "POST" else None)
            self.assertEqual(got, status, path)
            self.assertEqual(answer["error"]["type"], INVALID)

    def test_content_type(self):
        got, answer = self.server.json("POST", C, b"{}", {"Content-Type": "text/plain"})
        self.assertEqual((got, answer["error"]["type"]), (415, INVALID))


if __name__ == "__main__":
    unittest.main()
