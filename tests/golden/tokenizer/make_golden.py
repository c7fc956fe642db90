#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes this folder's files with the `tokenizers` library (0.23), the oracle of model/tokenizer.

    python make_golden.py [--gguf SmolLM2-135M-Instruct.Q4_1.gguf]

lines_N.txt    10,000 varied texts, one JSON string a line (a fixed seed)
NAME.json      small tokenizers trained here, with the split patterns of GPT-2, Llama 3 and SmolLM2, and
               "flags", whose added tokens use every flag and whose unknown bytes become a token
NAME.expect    a line for each text: the hash of its ids, and after a space the hash with special tokens
               left as text (encode_special_tokens) where that differs
NAME.ids       the ids themselves of each 25th text, so that a failure can be read
smollm2.*      the same for the real SmolLM2 tokenizer, built from the GGUF file's arrays (--gguf)

The hash is FNV-1a (64 bits) over the ids as little-endian 32-bit numbers, folded to 24 bits.
"""
import argparse
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
COUNT = 10000
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x2000, 0x2003, 0x200A, 0x2028,
                           0x2029, 0x202F, 0x205F, 0x3000)]
NEAR_SPACES = [chr(c) for c in (0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x1C, 0x1D, 0x1E, 0x1F, 8)]
CONTROLS = [chr(c) for c in list(range(32)) + [0x7F, 0x80, 0x9F, 0xAD, 0xFFF9, 0xFFFD, 0xFFFF, 0xE0001]]
# First digits of runs of ten in many scripts, and numbers that are no digits.
ZEROS = [0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6,
         0xE50, 0xED0, 0xF20, 0x1040, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1B50, 0x1BB0, 0x1C40, 0xA620,
         0xA8D0, 0xA900, 0xA9D0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x10D40, 0x11066, 0x110F0, 0x116D0,
         0x11BF0, 0x11DE0, 0x11F50, 0x16130, 0x16D70, 0x1CCF0, 0x1D7CE, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E5F1,
         0x1E950, 0x1FBF0]
NUMBERS = [chr(c) for c in (0xB2, 0xB9, 0xBC, 0xBE, 0x9F4, 0xBF0, 0xF33, 0x1369, 0x16EE, 0x2070, 0x2150, 0x2160,
                            0x2188, 0x2460, 0x24EA, 0x2776, 0x3007, 0x3021, 0x3192, 0x3220, 0x3280, 0xA6E6,
                            0x10107, 0x10140, 0x12400, 0x16FF4, 0x1D2C0, 0x1D360, 0x1F100)]
# Blocks of code points: all of the scripts, letters of Unicode 15 to 17, private use, unassigned planes.
BLOCKS = [(0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF),
          (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7B1),
          (0x7C0, 0x7FF), (0x800, 0x85E), (0x8A0, 0x8FF), (0x900, 0xDFF), (0xE01, 0xEDF), (0xF00, 0xFDA),
          (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x13FD),
          (0x1400, 0x169C), (0x16A0, 0x16F8), (0x1700, 0x17F9), (0x1800, 0x18AA), (0x1900, 0x1AAD),
          (0x1B00, 0x1C8F), (0x1C90, 0x1DFF), (0x1E00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x218B),
          (0x2190, 0x23FF), (0x2400, 0x27FF), (0x2900, 0x2BFF), (0x2C00, 0x2DFF), (0x2E00, 0x2FFF),
          (0x3000, 0x30FF), (0x3105, 0x31FF), (0x3200, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF),
          (0xA4D0, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF),
          (0xFE00, 0xFFFF), (0x10000, 0x101FF), (0x10280, 0x105F3), (0x10600, 0x10AFF), (0x10B00, 0x10FFF),
          (0x11000, 0x117FF), (0x11800, 0x11FFF), (0x12000, 0x1254F), (0x12F90, 0x1342F), (0x13430, 0x143FF),
          (0x14400, 0x1467F), (0x16100, 0x1613F), (0x16800, 0x16FFF), (0x17000, 0x18DFF), (0x1B000, 0x1B2FF),
          (0x1BC00, 0x1BCAF), (0x1CC00, 0x1D24F), (0x1D2C0, 0x1D7FF), (0x1D800, 0x1DFFF), (0x1E000, 0x1E5FF),
          (0x1E800, 0x1EEFF), (0x1F000, 0x1F2FF), (0x1F300, 0x1FAFF), (0x1FB00, 0x1FBFF), (0x20000, 0x2A6DF),
          (0x2A700, 0x2EE5D), (0x2F800, 0x2FA1D), (0x30000, 0x323AF), (0x40000, 0x40100), (0xE0000, 0xE01EF),
          (0xF0000, 0xF0100), (0x10FF00, 0x10FFFF)]
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
            "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "<pad>", "<mask>",
            "<strip>", "word", "  ", "<|a|>", "<|a|><|b|>", "<é>", "[INST]", "\n\n", "<one>", "<ñ>", "ñ", "\t\t"]
SUFFIXES = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D",
            "'\u017f", "'\u212a", "\u2019s", "''s", "'", "'l", "'sx", "'Sx", "'LLama", "'Tis",
            "'\u017fa", "n't"]
EMOJI = ["\U0001F600", "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F44D\U0001F3FD",
         "\U0001F1E9\U0001F1EA", "\U0001F1EF", "1\ufe0f\u20e3", "#\ufe0f\u20e3", "\u2764\ufe0f\u200d\U0001F525",
         "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F", "\u263a\ufe0e",
         "\U0001F9D1\U0001F3FF\u200d\U0001F680", "\U0001FAE8", "\U0001FADF"]


class Lines:
    """The texts. Each maker gives one; `make` takes them in turn."""

    def __init__(self, sentences):
        self.r = random.Random(20261130)
        self.sentences = sentences

    def some(self, pool, low, high):
        return "".join(self.r.choice(pool) for _ in range(self.r.randint(low, high)))

    def piece(self):
        s = self.r.choice(self.sentences)
        a = self.r.randrange(len(s))
        return s[a:a + self.r.randint(1, 40)]

    def char(self):
        while True:
            c = self.r.randint(*self.r.choice(BLOCKS))
            if not 0xD800 <= c <= 0xDFFF:
                return chr(c)

    def block(self):
        low, high = self.r.choice(BLOCKS)
        cps = [self.r.randint(low, high) for _ in range(self.r.randint(2, 12))]
        text = [chr(c) for c in cps if not 0xD800 <= c <= 0xDFFF]
        for _ in range(self.r.randint(0, 3)):
            text.insert(self.r.randrange(len(text) + 1), self.r.choice([" ", "1", "a", ".", "\n", "'"]))
        return "".join(text)

    def pieces(self):
        return self.r.choice([" ", "", "\n", "  "]).join(self.piece() for _ in range(self.r.randint(1, 2)))

    def spaces(self):
        parts = []
        for _ in range(self.r.randint(1, 5)):
            parts.append(self.some(self.r.choice([SPACES, [" "], [" ", "\n"], ["\r\n", " "], ["\t"]]), 1, 5))
            parts.append(self.r.choice(["", "a", "Word", "1", "!", "é", "字", "\u0301", self.r.choice(NEAR_SPACES)]))
        return "".join(parts)

    def digits(self):
        parts = []
        for _ in range(self.r.randint(1, 4)):
            zero = self.r.choice(ZEROS)
            parts.append("".join(chr(zero + self.r.randrange(10)) for _ in range(self.r.randint(1, 7))))
            parts.append(self.r.choice(["", " ", ".", ",", "  ", "x", "-", self.r.choice(NUMBERS)]))
        return "".join(parts)

    def words(self):
        parts = []
        for _ in range(self.r.randint(1, 3)):
            parts.append(self.r.choice(["", " ", "\n", "."]) + self.r.choice(["it", "we", "WE", "éa", "I", "9", "да", ""]))
            parts.append(self.r.choice(SUFFIXES))
        return "".join(parts)

    def emoji(self):
        return self.some(EMOJI + [" ", "a", "\ufe0f", "\u200d"], 1, 5)

    def marks(self):
        out = ""
        for _ in range(self.r.randint(1, 4)):
            out += self.r.choice("aeo й字1 ") + "".join(chr(self.r.randint(0x300, 0x36F)) for _ in range(self.r.randint(1, 4)))
        return out

    def mixed(self):
        return "".join(self.char() for _ in range(self.r.randint(1, 10)))

    def controls(self):
        return self.some(CONTROLS + ["a", " ", "0"], 1, 6)

    def specials(self):
        parts = []
        for _ in range(self.r.randint(1, 4)):
            s = self.r.choice(SPECIALS)
            if self.r.random() < 0.2:
                s = s[:self.r.randint(1, len(s))]
            parts.append(self.r.choice(["", " ", "  ", "\n", "a", "_", "é", "\u0301", "x ", "1", "\u3000", "\u0cf3",
                                        "\U000113d0"]) + s)
        return "".join(parts) + self.r.choice(["", " ", " b", "s", "\t\n "])

    def run(self):
        unit = self.r.choice(["a", " ", "\n", "ab", "7", "!", "字", "\u0e01", "\t", "-=", "é", "\r\n", "\U0001F600"])
        return self.piece() + unit * self.r.randint(10, 100) + self.r.choice(["", "a", " b"])

    def all(self):
        makers = [self.pieces] * 6 + [self.block] * 4 + [self.spaces] * 3 + [self.specials] * 3 + \
                 [self.digits, self.words, self.emoji, self.marks, self.mixed, self.controls]
        texts = ["", " ", "a", "\n", "<|im_start|>", "zqzq graftable zqzq fooword zqzqs      x",
                 "[INST]\t\t x", "<strip> \t\t<strip>", "word\u0cf3 word\u0897"] + self.sentences
        while len(texts) < COUNT:
            texts.append(self.run() if len(texts) % 100 == 0 else makers[len(texts) % len(makers)]())
        return texts


def new_tokenizer(steps, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    t.decoder = decoders.ByteLevel()
    return t


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def train(t, corpus, size, alphabet=True, special=()):
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=list(special), min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if alphabet else [])
    t.train_from_iterator(corpus, trainer)
    return t


def with_words(t, ignore_merges):
    """Adds tokens that no merge leads to; with ignore_merges, as in Llama 3's file, words become them."""
    data = json.loads(t.to_str())
    data["model"]["ignore_merges"] = ignore_merges
    for word in ["Ġgraftable", "zqzq", "Ġfooword", "ĠĠĠĠĠ", "'Sx"]:
        data["model"]["vocab"].setdefault(word, len(data["model"]["vocab"]))
    return Tokenizer.from_str(json.dumps(data))


def make_gpt2(corpus):
    t = train(new_tokenizer([byte_level(True)]), corpus, 1500, special=["<|endoftext|>"])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return with_words(t, False)


def make_llama3(corpus):
    split = pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated")
    t = train(new_tokenizer([split, byte_level(False)]), corpus, 1500)
    t = with_words(t, True)
    t.add_special_tokens(SPECIALS[:5] + ["<|reserved_special_token_%d|>" % i for i in range(6)])
    bos = t.token_to_id(SPECIALS[0])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single=SPECIALS[0] + " $A", pair=SPECIALS[0] + " $A $B",
                                      special_tokens=[(SPECIALS[0], bos)])])
    return t


def smollm_steps():
    return [pre_tokenizers.Digits(individual_digits=True), byte_level(True)]


def make_smollm(corpus):
    return train(new_tokenizer(smollm_steps()), corpus, 1200, special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def make_flags(corpus):
    t = new_tokenizer([pre_tokenizers.Digits(individual_digits=False), byte_level(True)],
                      unk_token="<unk>", fuse_unk=True)
    train(t, [s for s in corpus if s.isascii()], 500, alphabet=False, special=["<unk>", "<pad>"])
    t.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<|a|>"), AddedToken("<|a|><|b|>"),
                          AddedToken("<strip>", lstrip=True, rstrip=True), AddedToken("[INST]", rstrip=True), AddedToken("<one>", single_word=True),
                          AddedToken("<ñ>")])
    t.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("wordy", normalized=True),
                  AddedToken("  ", normalized=False), AddedToken("\n\n", rstrip=True, normalized=True),
                  AddedToken("<é>", single_word=True), AddedToken("it", single_word=True, lstrip=True),
                  AddedToken("<|im", normalized=True), AddedToken("ñ", normalized=False),
                  AddedToken("\t\t", lstrip=True, rstrip=True, normalized=False)])
    bos, eos = "<pad>", "<|a|>"
    t.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=[(bos, t.token_to_id(bos)), (eos, t.token_to_id(eos))])
    return t


def from_gguf(path):
    """The tokenizer.json of the model, from the arrays in its GGUF file."""
    from gguf import GGUFReader
    fields = {k: f.contents() for k, f in GGUFReader(path).fields.items() if k.startswith("tokenizer.ggml")}
    assert fields["tokenizer.ggml.pre"] == "smollm"
    tokens = fields["tokenizer.ggml.tokens"]
    t = new_tokenizer(smollm_steps(), vocab={s: i for i, s in enumerate(tokens)},
                      merges=[tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"]])
    types = fields["tokenizer.ggml.token_type"]
    t.add_special_tokens([AddedToken(s, normalized=False) for s, kind in zip(tokens, types) if kind == 3])
    return t


def hash_ids(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return "%06x" % ((h ^ h >> 24 ^ h >> 48) & 0xFFFFFF)


def write(name, text):
    with open(os.path.join(HERE, name), "w", encoding="utf-8", newline="\n") as f:
        f.write(text)


def expect(name, t, texts):
    t.encode_special_tokens = False
    special = [t.encode(s).ids for s in texts]
    t.encode_special_tokens = True
    plain = [t.encode(s).ids for s in texts]
    t.encode_special_tokens = False
    lines = [hash_ids(a) + ("" if a == b else " " + hash_ids(b)) for a, b in zip(special, plain)]
    write(name + ".expect", "\n".join(lines) + "\n")
    write(name + ".ids", "".join(" ".join(map(str, [i, *special[i]])) + "\n" for i in range(0, len(texts), 25)))


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--gguf")
    args = args.parse_args()
    with open(os.path.join(HERE, "sentences.txt"), encoding="utf-8") as f:
        sentences = f.read().split("\n")[:-1]
    texts = Lines(sentences).all()
    rows = [json.dumps(s, ensure_ascii=False).replace("\x85", "\\u0085").replace("\u2028", "\\u2028")
            .replace("\u2029", "\\u2029") for s in texts]
    for k in range(3):
        part = rows[k * len(rows) // 3:(k + 1) * len(rows) // 3]
        write("lines_%d.txt" % k, "\n".join(part) + "\n")
    corpus = sentences * 4 + texts[:3000]
    for make in (make_gpt2, make_llama3, make_smollm, make_flags):
        name = make.__name__[5:]
        t = make(corpus)
        write(name + ".json", t.to_str(pretty=False) + "\n")
        expect(name, t, texts)
    if args.gguf:
        expect("smollm2", from_gguf(args.gguf), texts)


if __name__ == "__main__":
    main()
