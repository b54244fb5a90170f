#!/usr/bin/env python3
"""Seconds of the clock and of the processor until the first batch, and tokens a second, from token files that are not in the page
cache, compared with reads of the same bytes in pieces of 1 MiB. Their pages are dropped in front of every run (posix_fadvise DONTNEED).

usage: benchmarks/cold_tokens.py BENCHMARK_DOCUMENTS [--tokens N] [--rounds N] [--folder FOLDER]

BENCHMARK_DOCUMENTS: build/benchmark_documents. uint16 tokens in documents of 1,000 on average. Run it in the interop environment.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

import numpy as np
from first_batch import ROOT, write_tokens

PIECE = 1 << 20
SEQ_LEN = 8192


def drop(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def read(path, random):
    """Bytes a second of pread in order, or of the same pieces in random order."""
    size = path.stat().st_size
    places = np.arange(0, size, PIECE)
    if random:
        np.random.default_rng(1).shuffle(places)
    file = os.open(path, os.O_RDONLY)
    begin = time.monotonic()
    for place in places:
        os.pread(file, PIECE, int(place))
    seconds = time.monotonic() - begin
    os.close(file)
    return size / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="BENCHMARK_DOCUMENTS")
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="for the files (default: the system's temporary folder)")
    options = parser.parse_args()
    tokenizer = ROOT / "configs/tokenizers/austen_8192"
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())
    eos = next(token["id"] for token in vocabulary["added_tokens"] if token["content"] == config["eos_token"])
    random = np.random.default_rng(1)
    lengths = random.exponential(1000, options.tokens // 1000).astype(np.int64) + 1
    tokens = random.integers(10, 8000, lengths.sum(), dtype=np.uint16)
    tokens[np.cumsum(lengths) - 1] = eos
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        write_tokens(folder, tokens, lengths)
        formats = {"Megatron": ("x.bin", "x.idx"), "datatrove": ("x.ds", "x.ds.index"), "OLMo": ("x.npy",)}
        for what, files in formats.items():
            (folder / what).mkdir()
            for file in files:
                os.rename(folder / file, folder / what / file)
        found = {}
        for _ in range(options.rounds):
            for what, files in formats.items():
                path = folder / what / files[0]

                def loader(sequences):
                    drop(folder)
                    begin = time.monotonic()
                    done = subprocess.run([options.program, "loader", folder / what, tokenizer, str(SEQ_LEN), str(sequences), folder / "state"],
                                          check=True, stdout=subprocess.PIPE)
                    return json.loads(done.stdout.splitlines()[-1]) | {"clock": time.monotonic() - begin}

                row = found.setdefault(what, {})
                for order in ("in order", "random"):
                    drop(folder)
                    row.setdefault(f"pread {order}, MB/s", []).append(read(path, order == "random") / 1e6)
                first = loader(1)
                row.setdefault("first batch, ms", []).append(first["first"] * 1e3)
                row.setdefault("of CPU, ms", []).append(first["seconds"] * 1e3)
                whole = loader(0)
                row.setdefault("loader, M tokens/s", []).append(len(tokens) / whole["clock"] / 1e6)
                row.setdefault("of CPU, s", []).append(whole["seconds"])
                row.setdefault("of the clock, s", []).append(whole["clock"])
        print(f"{len(tokens):,} tokens in {len(lengths):,} documents, {options.rounds} rounds: medians and quartiles")
        for what, row in found.items():
            for name, values in row.items():
                low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
                print(f"{what:10} {name:22} {middle:10.1f} [{low:.1f} to {high:.1f}]")


if __name__ == "__main__":
    main()
