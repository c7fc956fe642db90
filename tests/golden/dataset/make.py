#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chatml.json, tools.json, llama3.json, plain.json: training lines, and the token ids and loss
masks that transformers makes of them.

usage: make.py [SmolLM2.gguf]      (with the model file: smollm2.json, too, with the real tokenizer)

The mask's oracle is transformers' own: each template has a twin in which {% generation %} stands around
what the assistant writes, and apply_chat_template(return_assistant_tokens_mask=True) marks its tokens.
Two rules differ from transformers' and are computed here from the tokens' bytes: a token that begins
before the answer is no target (transformers takes it), and weight 0 takes a turn out. Where a case has
no such token, both masks are compared here. Needs transformers 5.x and tokenizers; gguf for the model.
"""
import json
import os
import re
import sys

from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZERS = os.path.join(HERE, "..", "tokenizer")

# G and E stand where the twin has its markers.
CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe of help.<|im_end|>\n' }}{% endif %}"
    "{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}G{{ m['content'] + '<|im_end|>' }}E"
    "{{ '\n' }}{% else %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\nTools:' }}{% for t in tools %}{{ '\n' + (t | tojson) }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}G{% if m['content'] %}{{ m['content'] }}{% endif %}"
    "{% for c in m['tool_calls'] or [] %}{{ '<call>' + (c['function'] | tojson) + '</call>' }}{% endfor %}"
    "{{ '<|im_end|>' }}E{{ '\n' }}{% else %}{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{% if m['role'] == 'assistant' %}G{{ (m['content'] | trim) + '<|eot_id|>' }}E{% else %}"
    "{{ (m['content'] | trim) + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Never ends a turn with a token: end-of-sequence is appended to the last one.
PLAIN = (
    "{% for m in messages %}{{ '### ' + m['role'] + ':' }}{% if m['role'] == 'assistant' %}"
    "G{{ ' ' + m['content'] + '\n' }}E{% else %}{{ ' ' + m['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant:' }}{% endif %}"
)


def u(text, **more):
    return dict({"role": "user", "content": text}, **more)


def a(text, **more):
    return dict({"role": "assistant", "content": text}, **more)


def s(text):
    return {"role": "system", "content": text}


LONG = "The quick brown fox jumps over the lazy dog. " * 12
CHATS = [
    [u("What is the capital of France?"), a("Paris.")],
    [s("You are terse."), u("Hi"), a("Hello."), u("And now?"), a("Bye.")],
    [u("1 + 1 = ?"), a("2"), u("2 * 21 = ?"), a("42"), u("100 - 1 = ?"), a("99")],
    [u("Zeig mir Umlaute: äöüß"), a("Ä Ö Ü ẞ — „so“")],
    [u("emoji 🦊👩‍👩‍👧‍👦?"), a("🇫🇷 is a flag, 👍🏽 a thumb")],
    [u("def f(x):\n    return x\n"), a("```python\ndef f(x: int) -> int:\n\treturn x\n```\n")],
    [u("starts with a newline"), a("\nHello\n\n")],
    [u("starts with spaces"), a("   three of them   ")],
    [u("ends in a newline\n\n"), a("\n\n\nyes")],
    [u("empty"), a("")],
    [u(LONG), a(LONG)],
    [u("weights"), a("not this", weight=0), u("but"), a("this", weight=1)],
    [u("weights"), a("this", weight=1), u("but not"), a("that", weight=0), u("so")],
    [u("two in a row"), a("one"), a("two")],
    [s("x"), u("ends with the user"), a("yes"), u("really?")],
    [u([{"type": "text", "text": "first part"}, {"type": "text", "text": "second part"}]),
     a([{"type": "text", "text": "a list, too"}])],
    [u("العربية ‏و עברית"), a("日本語の文章です。한국어도요.")],
    [u("CR LF\r\nlines\r\n"), a("a\r\nb\r\n")],
    [u("combining é and e\u0301", name="ada"), a("\u00a0nbsp\u2028line separator")],
    [u("a quote \" and a \\ backslash \u007f \u0001"), a("\t\ttabs\t\n \n  ")],
    [a("Welcome!", weight=0), u("thanks"), a("sure")],
    [u("x" * 300), a("y" * 300 + " " * 40 + "z")],
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, "x"]}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a <city> & more",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
TOOL_LINES = [
    {"messages": [u("add"), {"role": "assistant", "tool_calls": [CALL]},
                  {"role": "tool", "content": "3", "tool_call_id": "call_1"}, a("3.")], "tools": [WEATHER]},
    {"messages": [u("no tools"), a("right")], "tools": []},
    {"messages": [u("add"), {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}],
     "tools": [WEATHER, WEATHER], "parallel_tool_calls": False},
    {"messages": [u("text and call"), a("Let me see.", tool_calls=[CALL])]},
]


def flat(messages):
    out = []
    for m in messages:
        m = {k: v for k, v in m.items() if k != "weight"}
        if isinstance(m.get("content"), list):
            m["content"] = "\n".join(p["text"] for p in m["content"])
        m.setdefault("content", None)
        out.append(m)
    return out


def byte_table():
    """Of the byte alphabet: character -> byte."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {chr(b): b for b in keep}
    for n, b in enumerate(b for b in range(256) if b not in keep):
        table[chr(256 + n)] = b
    return table


BYTES = byte_table()


def token_bytes(tok, i):
    text = tok.convert_ids_to_tokens(i)
    if i in tok.added_tokens_decoder:
        return text.encode()
    return bytes(BYTES[c] for c in text)


def case(tok, template, line, open_end):
    twin = template.replace("G", "{% generation %}").replace("E", "{% endgeneration %}")
    messages = flat(line["messages"])
    args = dict(tools=line.get("tools") or None, chat_template=twin)
    got = tok.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True, **args)
    ids, theirs = got["input_ids"], got["assistant_masks"]
    text = tok.apply_chat_template(messages, tokenize=False, **args)
    plain = template.replace("G", "").replace("E", "")
    assert text == tok.apply_chat_template(messages, tokenize=False, tools=args["tools"], chat_template=plain)

    # Where the answers are in the text, by a marker that no case contains.
    marked = tok.apply_chat_template(messages, tokenize=False, tools=args["tools"],
                                     chat_template=template.replace("G", "\ue000").replace("E", "\ue001"))
    spans, at = [], 0
    for piece in re.split("([\ue000\ue001])", marked):
        if piece == "\ue000":
            spans.append([at])
        elif piece == "\ue001":
            spans[-1].append(at)
        else:
            at += len(piece.encode())
    weights = [m.get("weight", 1) for m in line["messages"] if m["role"] == "assistant"]
    assert len(spans) == len(weights)

    begins, at = [], 0
    for i in ids:
        begins.append(at)
        at += len(token_bytes(tok, i))
    assert at == len(text.encode()), (text, ids)
    ours = [int(any(b <= x < e for b, e in spans)) for x in begins]
    straddle = any(x < b < y for b, e in spans for x, y in zip(begins, begins[1:]))
    assert straddle or ours == theirs, (text, ours, theirs)
    mask = [int(any(w and b <= x < e for (b, e), w in zip(spans, weights))) for x in begins]
    if open_end and line["messages"][-1]["role"] == "assistant" and weights[-1]:
        ids = ids + [tok.eos_token_id]
        mask = mask + [1]
    mask[0] = 0
    return {"line": line, "ids": ids, "mask": "".join(map(str, mask)), "straddle": straddle}


def write(name, tok, template, lines, open_end=False):
    plain = template.replace("G", "").replace("E", "")
    cases = [case(tok, template, x, open_end) for x in lines]
    print(name, len(cases), "cases,", sum(c["straddle"] for c in cases), "with a token across the border")
    out = {"template": plain, "bos": tok.bos_token, "eos": tok.eos_token}
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as f:
        head = json.dumps(out)[:-1]
        f.write(head + ',\n"cases":[\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")


def load(name, bos, eos):
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(TOKENIZERS, name + ".json"),
                                   bos_token=bos, eos_token=eos, clean_up_tokenization_spaces=False)


def main():
    lines = [{"messages": m} for m in CHATS]
    smol = load("smollm", "<|im_start|>", "<|im_end|>")
    write("chatml", smol, CHATML, lines)
    write("tools", smol, TOOLS, TOOL_LINES)
    write("plain", load("smollm", "<|endoftext|>", "<|endoftext|>"), PLAIN, lines, open_end=True)
    write("llama3", load("llama3", "<|begin_of_text|>", "<|eot_id|>"), LLAMA3, lines)
    if len(sys.argv) > 1:
        sys.path.insert(0, TOKENIZERS)
        import make_golden
        real = PreTrainedTokenizerFast(tokenizer_object=make_golden.from_gguf(sys.argv[1]),
                                       bos_token="<|im_start|>", eos_token="<|im_end|>")
        write("smollm2", real, CHATML, lines)


main()
