#!/usr/bin/env python3
"""Trains the committed byte-level BPE tokenizers on the default corpus (the training novels only).

usage: scripts/train_tokenizer.py [--data data/austen.jsonl.gz]

Needs Python's `tokenizers` (0.23.3 made the committed files; the result is the same on every run). Writes
tests/assets/tokenizer/ (2,048 entries: the vocabulary of debugmodel, at v0.2.2's default path) and
configs/tokenizers/austen_8192/, each with tokenizer.json and tokenizer_config.json. The sizes include the two special
tokens, which take the last ids, so that ids 0..255 are the bytes.
"""
import argparse
import gzip
import json
import pathlib
import signal

from needed import IN_THE_INTEROP_ENVIRONMENT, answer_help, needed

answer_help(__doc__)
needed("tokenizers", IN_THE_INTEROP_ENVIRONMENT)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
OUTPUTS = {2048: "tests/assets/tokenizer", 8192: "configs/tokenizers/austen_8192"}
# How Llama 3 splits text into words.
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(texts, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size - 2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (BOS, EOS)])
    assert tokenizer.get_vocab_size() == size
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/austen.jsonl.gz")
    with gzip.open(parser.parse_args().data, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    for size, folder in OUTPUTS.items():
        tokenizer = train(texts, size)
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
        (ROOT / folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
        (ROOT / folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        count = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
        print(f"{folder}: {size} entries, {sum(len(t.encode()) for t in texts) / count:.2f} bytes a token, {count:,} tokens")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
