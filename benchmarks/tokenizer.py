#!/usr/bin/env python3
"""Tokenizer speed of one thread and of Hugging Face `tokenizers`, best of 5 in processor time.

usage: benchmarks/tokenizer.py BENCHMARK_TOKENIZER [--tokenizer FOLDER...] [--text FILE...] [--json OUT]

BENCHMARK_TOKENIZER: build/benchmark_tokenizer. FOLDER: with tokenizer.json (default: the two committed ones). FILE: plain text
(default: the default corpus). Files of Chinese, Japanese and Korean come with the Debian package linux-doc-6.1
(Documentation/translations). Run it in the interop environment.
"""
import argparse
import gzip
import json
import os
import pathlib
import subprocess
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402  (reads the environment)

ROOT = pathlib.Path(__file__).resolve().parent.parent


def default_text(folder):
    with gzip.open(ROOT / "data/austen.jsonl.gz", "rt", encoding="utf-8") as lines:
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    path = pathlib.Path(folder) / "austen.txt"
    path.write_text(text, encoding="utf-8")
    return path


def best_of(rounds, action):
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        result = action()
        seconds.append(time.process_time() - begin)
    return min(seconds), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--tokenizer", type=pathlib.Path, nargs="+",
                        default=[ROOT / "tests/assets/tokenizer", ROOT / "configs/tokenizers/austen_8192"])
    parser.add_argument("--text", type=pathlib.Path, nargs="+")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        texts = options.text or [default_text(folder)]
        print(f"{'tokenizer':14} {'text':20} {'MB':>6} {'ours MB/s':>10} {'HF MB/s':>8} {'ratio':>6}  ids")
        for tokenizer in options.tokenizer:
            judge = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
            for path in texts:
                output = subprocess.run([options.bench, tokenizer, path], capture_output=True, text=True, check=True).stdout
                ours = json.loads(output)
                text = path.read_text(encoding="utf-8")
                theirs, encoding = best_of(5, lambda: judge.encode(text, add_special_tokens=False))
                megabytes = ours["bytes"] / 1e6
                row = {"tokenizer": tokenizer.name, "text": path.name, "MB": megabytes,
                       "ours_MBps": megabytes / ours["best_seconds"], "hf_MBps": megabytes / theirs,
                       "ratio": theirs / ours["best_seconds"], "same_count": ours["tokens"] == len(encoding.ids)}
                rows.append(row)
                print(f"{row['tokenizer']:14} {row['text']:20} {megabytes:6.1f} {row['ours_MBps']:10.1f} "
                      f"{row['hf_MBps']:8.2f} {row['ratio']:5.1f}x  {'as many' if row['same_count'] else 'DIFFER'}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
