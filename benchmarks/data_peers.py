#!/usr/bin/env python3
"""Tokens a second of one core from the same files: our loader, torchtitan 0.2.2's, Hugging Face datasets with tokenizers, and
megatron-core's IndexedDataset. Rounds interleave all of them; printed are medians, quartiles, and the median of the ratios in a round.
Then what each needs to go on in the middle: bytes read until the first batch, seconds, and the largest memory of the process.

usage: benchmarks/data_peers.py BENCHMARK_DOCUMENTS [--tokenizer FOLDER] [--text FILE.jsonl.gz] [--copies N] [--rounds N] [--folder FOLDER]

BENCHMARK_DOCUMENTS: build/benchmark_documents. The documents and the Parquet file are those of benchmarks/documents.py. torchtitan
streams, as its preset of C4 does, in one process (num_workers = 0), and is measured over its first tokens (--peer-tokens), from its second
batch on. It has no reader of Megatron's files; megatron-core's documents are joined to sequences as its GPTDataset does it (int64
inputs and labels), in random order. Processor time of the process, all threads. Run it in the interop environment.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
import datasets  # noqa: E402  (reads the environment)
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402
from documents import ROOT, documents, hugging_face  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

SEQ_LEN = 2048


def number_of(path, name):
    return int(pathlib.Path(path).read_text().split(name)[1].split()[0])


def torchtitan_loader(path, tokenizer):
    """torchtitan's loader of the file, as build_text_dataloader() makes it."""
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets import DatasetConfig, text_datasets
    kind = "parquet" if path.suffix == ".parquet" else "json"
    text_datasets.DATASETS["measured"] = DatasetConfig(
        path=str(path), loader=lambda name: datasets.load_dataset(kind, data_files=name, split="train", streaming=True), sample_processor=lambda row: row["text"])
    data = text_datasets.HuggingFaceTextDataset("measured", None, HuggingFaceTokenizer(str(tokenizer)), seq_len=SEQ_LEN)
    return ParallelAwareDataloader(data, dp_rank=0, dp_world_size=1, batch_size=1)


def torchtitan(path, tokenizer, most):
    batches = iter(torchtitan_loader(path, tokenizer))
    next(batches)
    begin, tokens = time.process_time(), 0
    for batch in batches:
        tokens += batch[1].numel()
        if tokens >= most:
            break
    return tokens / (time.process_time() - begin)


def resume_torchtitan(path, tokenizer, state, sequences):
    """In a process of its own: makes a state behind that number of sequences, or continues at it."""
    from torchtitan.hf_datasets import text_datasets  # noqa: F401  (loaded before the clock starts)
    before, begin, processor = number_of("/proc/self/io", "rchar:"), time.monotonic(), time.process_time()
    loader = torchtitan_loader(path, tokenizer)
    if sequences == 0:
        loader.load_state_dict(torch.load(state, weights_only=False))
    for number, _ in enumerate(loader, 1):
        if number >= sequences:
            break
    if sequences > 0:
        torch.save(loader.state_dict(), state)
    print(json.dumps({"bytes_first": number_of("/proc/self/io", "rchar:") - before, "first": time.monotonic() - begin, "seconds": time.process_time() - processor,
                      "memory": number_of("/proc/self/status", "VmHWM:") * 1024}))


def write_megatron(prefix, texts, tokenizer, eos, tokens):
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(tokenizer.get_vocab_size()))
    encoded = [torch.tensor([*encoding.ids, eos]) for encoding in tokenizer.encode_batch_fast(texts)]
    written = 0
    while written < tokens:
        for ids in encoded:
            builder.add_document(ids, [len(ids)])
            written += len(ids)
    builder.finalize(f"{prefix}.idx")
    return written


def megatron(prefix):
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    data = IndexedDataset(str(prefix))
    order = np.random.RandomState(1).permutation(len(data.sequence_lengths))
    begin, tokens, parts, length = time.process_time(), 0, [], 0
    for document in order:
        parts.append(data.get(int(document)))
        length += len(parts[-1])
        if length <= SEQ_LEN:
            continue
        text = np.concatenate(parts)
        at = 0
        while length - at > SEQ_LEN:
            window = torch.from_numpy(text[at:at + SEQ_LEN + 1]).long()
            inputs, labels = window[:-1].contiguous(), window[1:].contiguous()  # noqa: F841  (what a batch holds)
            at += SEQ_LEN
        tokens += at
        parts, length = [text[at:]], length - at
    return tokens / (time.process_time() - begin)


def run(*command):
    return json.loads(subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="BENCHMARK_DOCUMENTS")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=ROOT / "configs/tokenizers/austen_8192")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "data/austen.jsonl.gz")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer-tokens", type=int, default=400_000)
    parser.add_argument("--megatron-tokens", type=int, default=50_000_000)
    parser.add_argument("--folder", help="for the files (default: the system's temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    eos = tokenizer.token_to_id(json.loads((options.tokenizer / "tokenizer_config.json").read_text())["eos_token"])
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        texts = documents(options.text, options.copies)
        random.Random(2).shuffle(texts)
        lines, parquet, prefix = folder / "a.jsonl", folder / "a.parquet", folder / "m"
        table = pa.table({"id": [f"<urn:uuid:{i:032x}>" for i in range(len(texts))], "text": texts})
        lines.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()), encoding="utf-8")
        pq.write_table(table, parquet, row_group_size=1000, compression="snappy")
        megatron_tokens = write_megatron(prefix, texts, tokenizer, eos, options.megatron_tokens)

        def ours(path):
            said = run(options.program, "loader", path, options.tokenizer, SEQ_LEN, 0, folder / "state")
            return said["tokens"] / said["seconds"]

        def streamed(path):
            tokens, seconds = hugging_face(path, tokenizer, folder / "cache")
            return tokens / seconds

        works = {"JSON lines": {"ours": lambda: ours(lines), "torchtitan": lambda: torchtitan(lines, options.tokenizer, options.peer_tokens)},
                 "Parquet": {"ours": lambda: ours(parquet), "torchtitan": lambda: torchtitan(parquet, options.tokenizer, options.peer_tokens),
                             "datasets + tokenizers": lambda: streamed(parquet)},
                 "Megatron": {"ours": lambda: ours(prefix.with_suffix(".bin")), "megatron-core": lambda: megatron(prefix)}}
        rates = {}
        for _ in range(options.rounds):
            for kind, programs in works.items():
                for who, work in programs.items():
                    rates.setdefault((kind, who), []).append(work())
        print(f"{len(texts)} documents, {lines.stat().st_size:,} bytes of JSON lines; Megatron: {megatron_tokens:,} tokens; {options.rounds} rounds; tokens/s of one core")
        for (kind, who), found in rates.items():
            low, middle, high = quartiles(found)
            ratios = [mine / theirs for mine, theirs in zip(rates[kind, "ours"], found)]
            print(f"{kind:12} {who:22} {middle:14,.0f}  [{low:,.0f} to {high:,.0f}]" + ("" if who == "ours" else f"  ours is {quartiles(ratios)[1]:.1f} times [{quartiles(ratios)[0]:.1f} to {quartiles(ratios)[2]:.1f}]"))
        print("a resume behind half of the file, until its first sequence: bytes read, seconds, largest memory of the process")
        said = run(options.program, "loader", lines, options.tokenizer, SEQ_LEN, 0, folder / "state")
        half = said["tokens"] // SEQ_LEN // 2
        for path in (lines, parquet):
            run(options.program, "loader", path, options.tokenizer, SEQ_LEN, half, folder / "state")
            own = run(options.program, "resume", path, options.tokenizer, SEQ_LEN, 1, folder / "state")
            peer = [sys.executable, __file__, "resume", path, options.tokenizer, folder / "peer_state"]
            run(*peer, half)
            for who, found in (("ours", own), ("torchtitan", run(*peer, 0))):
                print(f"{path.name:12} {who:22} {found['bytes_first']:14,} of {path.stat().st_size:,} {found['first']:8.3f} s {found['memory'] / 2**20:8.0f} MiB")


if __name__ == "__main__":
    if len(sys.argv) == 6 and sys.argv[1] == "resume":
        resume_torchtitan(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main()
