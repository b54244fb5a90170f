#!/usr/bin/env python3
"""Tokens a second of one thread from JSON lines, Parquet and Arrow, and of Hugging Face datasets with tokenizers from the same
Parquet, in processor time: one round of all after the other, the median of the ratios of the rounds. Then what a resume in the middle
reads of each file until its first sequence, and the largest memory of the process.

usage: benchmarks/documents.py BENCHMARK_DOCUMENTS [--tokenizer FOLDER] [--text FILE.jsonl.gz] [--copies N] [--rounds N] [--no-peer]

BENCHMARK_DOCUMENTS: build/benchmark_documents. The text is cut into documents of 1,000 words on average and written N times, in row
groups of 1,000 rows with snappy, as FineWeb is. Run it in the interop environment.
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_DATASETS_OFFLINE"] = "1"
import datasets  # noqa: E402  (reads the environment)
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def documents(path, copies):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        words = " ".join(json.loads(line)["text"] for line in lines).split(" ")
    rng, made = random.Random(1), []
    for _ in range(copies):
        at = 0
        while at < len(words):
            count = int(rng.expovariate(1 / 1000)) + 1
            made.append(" ".join(words[at:at + count]))
            at += count
    return made


def hugging_face(path, tokenizer, cache):
    begin = time.process_time()
    data = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True, cache_dir=cache)
    tokens = 0
    for batch in data.select_columns(["text"]).iter(batch_size=1000):
        tokens += sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(batch["text"]))
    return tokens, time.process_time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="BENCHMARK_DOCUMENTS")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=ROOT / "tests/assets/tokenizer")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "data/austen.jsonl.gz")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true", help="without datasets and tokenizers")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts = documents(options.text, options.copies)
        table = pa.table({"id": [f"<urn:uuid:{i:032x}>" for i in range(len(texts))], "text": texts})
        (folder / "a.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()), encoding="utf-8")
        pq.write_table(table, folder / "a.parquet", row_group_size=1000, compression="snappy")
        pq.write_table(table, folder / "zstd.parquet", row_group_size=1000, compression="zstd")
        with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as out:
            out.write_table(table, max_chunksize=1000)
        for file, codec in (("b.jsonl.gz", "gzip"), ("b.jsonl.zst", "zstd")):
            with pa.CompressedOutputStream(str(folder / file), codec) as out:
                out.write((folder / "a.jsonl").read_bytes())
        peer, rates, clock = "", {}, {}  # tokens a second of the processor and, with the start of the process, of the clock
        for _ in range(options.rounds):
            for file in ("a.jsonl", "a.parquet", "zstd.parquet", "a.arrow"):
                begin = time.monotonic()
                said = json.loads(subprocess.run([options.program, "texts", folder / file, options.tokenizer], check=True, capture_output=True).stdout)
                rates.setdefault(file, []).append(said["tokens"] / (said["seconds"] - said["opened"]))  # without loading Apache Arrow, once in a process
                clock.setdefault(file, []).append(said["tokens"] / (time.monotonic() - begin))
            if options.no_peer:
                continue
            tokens, seconds = hugging_face(folder / "a.parquet", tokenizer, folder / "cache")
            peer = f" (Hugging Face: {tokens})"
            rates.setdefault("datasets and tokenizers, a.parquet", []).append(tokens / seconds)
        print(f"{len(texts)} documents, {said['tokens']} tokens{peer}; tokens a second of one thread, and the ratio to JSON lines with its quartiles")
        for of, table in (("processor", rates), ("clock", clock)):
            for what, found in table.items():
                low, ratio, high = statistics.quantiles([rate / base for rate, base in zip(found, table["a.jsonl"])], n=4, method="inclusive")
                print(f"{of:9} {what:36} {statistics.median(found):12,.0f} {ratio:6.2f} [{low:.2f} to {high:.2f}]")
        print("read by a resume behind half of the sequences until its first one, of a file of so many bytes; seconds; memory")
        for path in sorted(folder.glob("*.*")):
            if not path.is_file():
                continue
            run = lambda mode, count: json.loads(subprocess.run(
                [options.program, mode, path, options.tokenizer, "2048", str(count), folder / "state"], check=True, capture_output=True).stdout)
            run("loader", said["tokens"] // 2048 // 2)
            found = run("resume", 1)
            print(f"{path.name:16} {found['bytes_first']:14,} of {path.stat().st_size:14,} {found['first']:8.3f} s {found['memory'] / 2**20:8.0f} MiB")


if __name__ == "__main__":
    main()
