#!/usr/bin/env python3
"""Judges the tokenizer by Hugging Face `tokenizers`: ids and decoded text equal on 10,000 generated strings of all
scripts and on the corpora, for each vocabulary that is there, and for variants of our own with every supported option.

usage: tokenizers_peer.py TOKENIZE_TOOL [--vocabularies FOLDER] [--strings N] [--text FILE...]

FOLDER (default: $HYPERION_VOCABULARIES) is filled by vocabularies.py; what it lacks is named and left out. --text gives
further text files. Exit status: 0 equal, 1 different, 77 without the package `tokenizers`.
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
try:
    from tokenizers import Tokenizer
except ImportError:
    print("SKIPPED: no Python package tokenizers (scripts/setup.sh --interop)")
    sys.exit(77)
import vocabularies

SPACES = [*"\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000", "\u180e", "\u200b", "\ufeff", "\r\n"]
WORDS = ("the it's WE'LL I'd don't they'VE you're 'S 'ſ 'm x'll 'Re naïve façade e\u0301te\u0301 Ångström \u212b \u1e9b\u0323 "
         "\u0344 q\u0323\u0307 q\u0307\u0323 ﬁne 12 1234567 ١٢٣٤ Ⅷ ½ ²³ 𝟘𝟙 \U00011f50 中文字符，標點。 日本語テキスト が か\u3099 한국어 "
         "\u1112\u1161\u11ab हिन्दी क्ष्म ภาษาไทย العَرَبِيَّة עִבְרִית Ελληνικά русский ქართული 👩‍👩‍👧 🇩🇪 ✈️ _snake_case :: != -> !?! !?!? "
         "... --- http://a.b/c?d=e&f #include <stdio.h> \U00010d50 \U000105d2 \U0003134a \ue000 \U000f0000 \x00 \x7f "
         "<|begin_of_text|> <|end_of_text|> <|endoftext|> <|im_start|> <|im_end|> <|eot_id|> <|begin <tag> <TAG>").split(" ")
# the planes in use; private use and unassigned code points come along
BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x250, 0x800), (0x800, 0x1000), (0x1000, 0x2000), (0x2000, 0x2E00),
          (0x2E00, 0x3400), (0x3400, 0xA000), (0xA000, 0xD800), (0xE000, 0x10000), (0x10000, 0x13000), (0x13000, 0x20000),
          (0x20000, 0x32400), (0xE0000, 0x110000)]


def generate(count, seed=20261121):
    """Strings of mixed scripts, spaces, digits, marks, special tokens, long words; every assigned block is met."""
    rng = random.Random(seed)

    def piece():
        kind = rng.random()
        if kind < 0.35:
            return rng.choice(WORDS)
        if kind < 0.55:
            return "".join(rng.choice(SPACES) for _ in range(rng.choice([1, 1, 1, 2, 3, 8])))
        if kind < 0.60:
            return rng.choice("aA0'! \n\u4e00\u0301") * rng.choice([2, 5, 17, 70, 300])
        low, high = rng.choice(BLOCKS)
        return "".join(chr(rng.randrange(low, high)) for _ in range(rng.choice([1, 2, 4, 12, 60])))

    # every code point that is not a surrogate, once, in order: 4,096 to a string
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    every = ["".join(map(chr, points[i:i + 4096])) for i in range(0, len(points), 4096)]
    spaced = [" ".join(map(chr, points[i:i + 4096])) for i in range(0, 0x34000, 4096)]
    mixed = ["".join(piece() for _ in range(rng.randrange(1, 12))) for _ in range(count)]
    return ["", " ", *mixed, *every, *spaced]


def corpora(files):
    """The default corpus, when it was made, and further text files: one string a document."""
    documents = []
    for path in sorted((ROOT / "data").glob("austen*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            documents += [json.loads(line)["text"] for line in lines]
    documents += [pathlib.Path(path).read_text(encoding="utf-8", errors="replace") for path in files]
    return documents


def ours(tool, tokenizer, texts):
    """[(ids, decoded text)] by the C++ tokenizer."""
    request = b"".join(struct.pack("<I", len(data)) + data for data in (text.encode() for text in texts))
    result = subprocess.run([tool, tokenizer], input=request, capture_output=True)
    if result.returncode != 0:
        raise SystemExit(f"{tool} {tokenizer}: exit status {result.returncode}: {result.stderr.decode()}")
    answer, position = [], 0
    for _ in texts:
        (count,) = struct.unpack_from("<I", result.stdout, position)
        ids = list(struct.unpack_from(f"<{count}i", result.stdout, position + 4))
        position += 4 + 4 * count
        (size,) = struct.unpack_from("<I", result.stdout, position)
        answer.append((ids, result.stdout[position + 4:position + 4 + size].decode()))
        position += 4 + size
    return answer


def compare(name, tool, path, judge, texts, add_special_tokens=True):
    """Prints one line; returns whether all are equal."""
    wrong, tokens = 0, 0
    for text, (ids, decoded) in zip(texts, ours(tool, path, texts)):
        expected = judge.encode(text, add_special_tokens=add_special_tokens).ids
        tokens += len(expected)
        problem = "ids" if ids != expected else ""
        if not problem and decoded != judge.decode(expected, skip_special_tokens=False):
            problem = "decoded text"
        if problem:
            wrong += 1
            if wrong <= 3:
                at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
                print(f"  {name}: {problem} differ for {text[:60]!r}... at token {at}: ours {ids[at:at + 5]} "
                      f"({[judge.id_to_token(i) for i in ids[at:at + 5]]}), theirs {expected[at:at + 5]} "
                      f"({[judge.id_to_token(i) for i in expected[at:at + 5]]})")
    print(f"{name}: {len(texts):,} texts, {tokens:,} tokens, {wrong} differ", flush=True)
    return wrong == 0


def variants(base):
    """Our 8,192-entry tokenizer with other components: {name: tokenizer.json content}."""
    split, byte_level = base["pre_tokenizer"]["pretokenizers"]

    def edited(**changes):
        return {**base, **changes}

    def pretokenizer(*parts, **byte_level_changes):
        return {"type": "Sequence", "pretokenizers": [*parts, {**byte_level, **byte_level_changes}]}

    def regex(pattern, behavior="Isolated", invert=False):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}

    def added(content, number, **flags):
        return {"id": 8192 + number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": False, **flags}

    pattern = split["pattern"]["Regex"]
    template = {"type": "TemplateProcessing", "pair": [],
                "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}}],
                "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}
                                   for token, number in (("<|begin_of_text|>", 8190), ("<|end_of_text|>", 8191))}}
    digits = regex(r"\p{N}{1,3}")
    deepseek = [digits, regex("[一-龥\u3040-ゟ゠-ヿ]+"),
                regex(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\s]?[\p{L}]+| ?[^\s\p{L}\p{N}]+[\r\n]*"
                      r"|\s*[\r\n]+|\s+(?!\S)|\s+")]
    return {
        "gpt2 regex of ByteLevel": edited(pre_tokenizer={**byte_level, "use_regex": True}),
        "prefix space": edited(pre_tokenizer={**byte_level, "use_regex": True, "add_prefix_space": True}),
        "prefix space after a split": edited(pre_tokenizer=pretokenizer(digits, add_prefix_space=True, use_regex=True)),
        "split removed and inverted": edited(pre_tokenizer=pretokenizer(regex(pattern, "Removed", True))),
        "split removed": edited(pre_tokenizer=pretokenizer(regex(r"\s+|\p{N}", "Removed"))),
        "split at a string": edited(pre_tokenizer=pretokenizer({**regex(""), "pattern": {"String": "e."}})),
        "pattern by PCRE2": edited(pre_tokenizer=pretokenizer(regex(pattern + "|^nothing$"))),
        "negated classes by PCRE2": edited(pre_tokenizer=pretokenizer(regex(r"[\P{L}]|\S+?\P{N}|[\s\S]"))),
        "three splits in a row": edited(pre_tokenizer=pretokenizer(*deepseek)),
        "template": edited(post_processor={"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template]}),
        "ignore merges": edited(model={**base["model"], "ignore_merges": True}),
        "merges as strings": edited(model={**base["model"], "merges": [" ".join(m) for m in base["model"]["merges"]]}),
        "a byte without a token": edited(model={**base["model"], "merges": [],
            "vocab": {chr(ord(c) + 0x4000) if c == "e" else c: i for c, i in base["model"]["vocab"].items()}}),
        "added tokens": edited(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}, added_tokens=[
            *base["added_tokens"], added("<tag>", 0, lstrip=True), added("<TAG>", 1, rstrip=True),
            added("->", 2, lstrip=True, rstrip=True), added("éa", 3, normalized=True), added("e\u0301te\u0301", 4, normalized=True),
            added("!?!", 5), added("!?!?", 6), added("aaa", 7, special=True), added(" 中", 8, rstrip=True)]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--vocabularies", type=pathlib.Path, default=os.environ.get("HYPERION_VOCABULARIES"))
    parser.add_argument("--strings", type=int, default=10000)
    parser.add_argument("--text", nargs="*", default=[])
    options = parser.parse_args()
    texts = generate(options.strings) + corpora(options.text)
    print(f"Unicode {unicodedata.unidata_version} in Python; {len(texts):,} texts, {sum(map(len, texts)):,} characters")
    good = True
    paths = {folder.name: folder for folder in (ROOT / "tests/assets/tokenizer", ROOT / "configs/tokenizers/austen_8192")}
    for name, path in paths.items():
        good &= compare(name, options.tool, path, Tokenizer.from_file(str(path / "tokenizer.json")), texts)
    for name, (_, _, file_name, *_) in vocabularies.VOCABULARIES.items():
        rank_file = options.vocabularies and options.vocabularies / name / file_name
        if not rank_file or not rank_file.is_file():
            print(f"{name}: left out: no {file_name} (vocabularies.py FOLDER fetches it, --vocabularies FOLDER gives it)")
            continue
        folder = vocabularies.convert(name, rank_file)
        judge = Tokenizer.from_file(str(folder / "tokenizer.json"))
        good &= compare(f"{name} tokenizer.json", options.tool, folder, judge, texts)
        good &= compare(f"{name} rank file", options.tool, rank_file, judge, texts, add_special_tokens=False)
    few = texts[:options.strings // 20] + texts[options.strings + 2:][::32]
    base = json.loads((paths["austen_8192"] / "tokenizer.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in variants(base).items():
            path = pathlib.Path(folder) / "tokenizer.json"
            path.write_text(json.dumps(content), encoding="utf-8")
            good &= compare(f"variant: {name}", options.tool, path, Tokenizer.from_file(str(path)), few)
    print("tokenizers_peer: " + ("all equal" if good else "DIFFERENT"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
