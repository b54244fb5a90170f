#!/usr/bin/env python3
"""Seconds from the making of the loader to the first sequence of 100 GB, those of the processor, and bytes read until then; seconds and
bytes of a resume behind 200 sequences; and the largest memory of the process, for each format of data. torchtitan 0.2.2's loader streams
the same text files (benchmarks/data_peers.py).

usage: benchmarks/first_batch.py BENCHMARK_DOCUMENTS [--tokenizer FOLDER] [--text FILE.jsonl.gz] [--files N] [--folder FOLDER]

BENCHMARK_DOCUMENTS: build/benchmark_documents. "files": N hard links (10,000) to one file of 10 MB, in 100 folders. "sparse": one file of 100 GB
that takes no space on the disk (its tokens are 0), with the ends of 10 million documents. Each is started twice and the
second start counts, when names and places are in the system's caches. Run it in the interop environment.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from documents import ROOT, documents
from tokenizers import Tokenizer

BYTES = 100 * 10**9


def write_megatron(path, lengths):
    """X.idx of documents of one sequence each in uint16."""
    count = len(lengths)
    pointers = np.zeros(count, "<i8")
    np.cumsum(lengths[:-1].astype("<i8") * 2, out=pointers[1:])
    with open(path, "wb") as out:
        out.write(b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + bytes([8]) + np.array([count, count + 1], "<u8").tobytes())
        for part in (lengths.astype("<i4"), pointers, np.arange(count + 1, dtype="<i8")):
            part.tofile(out)


def write_tokens(folder, ids, lengths):
    """The formats with small files of the same documents, and their names in the folder `one`."""
    ends = np.cumsum(lengths).astype("<u8")
    tokens = np.array(ids, "<u2")
    tokens.tofile(folder / "x.bin")
    write_megatron(folder / "x.idx", lengths)
    tokens.tofile(folder / "x.ds")
    ends.tofile(folder / "x.ds.index")
    tokens.tofile(folder / "x.npy")
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    with open(folder / "llm_c.bin", "wb") as out:
        out.write(header.tobytes() + tokens.tobytes())


def link(files, folder, count):
    for i in range(count):
        place = folder / f"{i % 100:02}"
        place.mkdir(parents=True, exist_ok=True)
        for file, name in files:
            os.link(file, place / name.format(i))


def sparse(path):
    with open(path, "wb") as out:
        out.truncate(BYTES)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="BENCHMARK_DOCUMENTS")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=ROOT / "configs/tokenizers/austen_8192")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "data/austen.jsonl.gz")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--folder", help="for the files (default: the system's temporary folder)")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    eos = tokenizer.token_to_id(json.loads((options.tokenizer / "tokenizer_config.json").read_text())["eos_token"])
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        one = folder / "one"
        one.mkdir()
        texts = documents(options.text, 1)
        encoded = [[*encoding.ids, eos] for encoding in tokenizer.encode_batch_fast(texts)]
        repeats = 5_000_000 // sum(map(len, encoded)) + 1
        write_tokens(one, [token for ids in encoded for token in ids] * repeats, np.array([len(ids) for ids in encoded] * repeats))
        (one / "x.jsonl").write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts * 3), encoding="utf-8")
        pq.write_table(pa.table({"text": texts * 5}), one / "x.parquet", row_group_size=1000, compression="snappy")
        corpora, peers = {}, {}
        for what, files in {"JSON lines": [(one / "x.jsonl", "{:05}.jsonl")], "Parquet": [(one / "x.parquet", "{:05}.parquet")],
                            "Megatron": [(one / "x.bin", "{:05}.bin"), (one / "x.idx", "{:05}.idx")],
                            "datatrove": [(one / "x.ds", "{:05}.ds"), (one / "x.ds.index", "{:05}.ds.index")],
                            "OLMo": [(one / "x.npy", "{:05}.npy")]}.items():
            place = folder / what.replace(" ", "_")
            link(files, place, options.files)
            if len(files) == 1 and what != "OLMo":
                peers[f"{what}, {options.files:,} files"] = place / "*" / f"*{files[0][0].suffix}"
            corpora[f"{what}, {options.files:,} files"] = place, files[0][0].stat().st_size * options.files
        # llm.c counts tokens in 32 bits, and a folder with .bin alone is none of its own: named by a pattern.
        link([(one / "llm_c.bin", "{:05}.bin")], folder / "llm_c", options.files)
        corpora[f"llm.c, {options.files:,} files"] = str(folder / "llm_c/*/*.bin"), (one / "llm_c.bin").stat().st_size * options.files
        lengths = np.full(10_000_000, BYTES // 2 // 10_000_000)
        ends = np.cumsum(lengths).astype("<u8")
        for what in ("megatron", "datatrove", "shard"):
            (folder / f"sparse_{what}").mkdir()
        sparse(folder / "sparse_megatron/x.bin")
        write_megatron(folder / "sparse_megatron/x.idx", lengths)
        sparse(folder / "sparse_datatrove/x.ds")
        ends.tofile(folder / "sparse_datatrove/x.ds.index")
        sparse(folder / "sparse_shard/tokens.bin")
        ends.tofile(folder / "sparse_shard/documents.bin")
        (folder / "sparse_shard/index.json").write_text(json.dumps({
            "format": "hyperion-token-shard", "version": 1, "dtype": "uint16", "tokens": BYTES // 2, "documents": len(lengths),
            "vocab_size": tokenizer.get_vocab_size(), "tokenizer": ""}))
        for what in ("megatron", "datatrove", "shard"):
            corpora[f"{what}, one sparse file"] = folder / f"sparse_{what}", BYTES
        def run(*command):
            done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE)
            return json.loads(done.stdout.splitlines()[-1])

        print(f"{'':26} {'GB':>5} {'first, s':>9} {'of CPU':>7} {'MB read':>8} {'resume, s':>9} {'MB read':>8} {'MiB':>6}")
        for what, (path, size) in corpora.items():
            ours = lambda mode, count: run(options.program, mode, path, options.tokenizer, 8192, count, folder / "state")
            peer = lambda count: run(sys.executable, ROOT / "benchmarks/data_peers.py", "resume", peers[what], options.tokenizer, folder / "peer_state", count)
            starts = {what: (lambda: ours("loader", 1), lambda: ours("loader", 200), lambda: ours("resume", 1))}
            if what in peers:
                starts["  torchtitan"] = lambda: peer(1), lambda: peer(200), lambda: peer(0)
            for name, (start, go, resume) in starts.items():
                start()
                first, more, again = start(), go(), resume()
                print(f"{name:26} {size / 1e9:5.0f} {first['first']:9.2f} {first['seconds']:7.2f} {first['bytes_first'] / 1e6:8.1f} {again['first']:9.2f} "
                      f"{again['bytes_first'] / 1e6:8.1f} {max(run['memory'] for run in (first, more, again)) / 2**20:6.0f}", flush=True)


if __name__ == "__main__":
    main()
