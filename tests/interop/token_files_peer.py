#!/usr/bin/env python3
"""Judges the readers of token files by what other programs write: Megatron Core's IndexedDatasetBuilder, numpy, and the layouts of datatrove and
llm.c by numpy. Tokens and ends of documents are equal. Megatron Core's IndexedDataset reads what `hyperion tokenize --format megatron` writes.

usage: token_files_peer.py HYPERION. Exit status: 0 equal, 1 different, 77 without the package megatron-core.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy

warnings.simplefilter("ignore")  # Megatron Core misses Transformer Engine
try:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
except ImportError as error:
    print(f"SKIPPED: no Python package megatron-core ({error}; scripts/setup.sh --interop)")
    sys.exit(77)

BOS, EOS, VOCABULARY = 50256, 59999, 60000


def write_tokenizer(folder: pathlib.Path):
    """One token for each byte, and 60,000 entries in all."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    vocabulary = {character: i for i, character in enumerate(characters)}
    vocabulary.update({f"token{i}": i for i in range(256, VOCABULARY - 1)})
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "added_tokens": [{"id": EOS, "content": "<eos>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": None, "eos_token": "<eos>"}))


def write_megatron(prefix: pathlib.Path, documents, dtype, sentences: bool):
    builder = IndexedDatasetBuilder(str(prefix) + ".bin", dtype=dtype)
    for document in documents:
        half = len(document) // 2 if sentences else 0
        builder.add_document(torch.from_numpy(document.astype(numpy.int64)), [half, len(document) - half] if half else [len(document)])
    builder.finalize(str(prefix) + ".idx")


def write_llm_c(path: pathlib.Path, tokens):
    header = numpy.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


def read_shard(folder: pathlib.Path):
    dtype = "<" + json.loads((folder / "index.json").read_text())["dtype"].replace("uint16", "u2").replace("uint32", "u4")
    return numpy.fromfile(folder / "tokens.bin", dtype), numpy.fromfile(folder / "documents.bin", "<u8")


def main():
    binary = sys.argv[1]
    random = numpy.random.default_rng(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokenizer(folder / "tokenizer")

        def tokenize(out, *arguments):
            subprocess.run([binary, "tokenize", "--out", folder / out, "--tokenizer", folder / "tokenizer", *arguments], check=True)

        # Every document begins as those of llm.c and ends as those of OLMo.
        documents = [numpy.concatenate([[BOS], random.integers(0, BOS, random.integers(0, 3000)), [EOS]]) for _ in range(500)]
        tokens = numpy.concatenate(documents)
        ends = numpy.cumsum([len(document) for document in documents])
        inputs = []
        for dtype in (numpy.uint16, numpy.int32, numpy.int64):
            inputs.append(folder / f"megatron_{dtype.__name__}")
            write_megatron(inputs[-1], documents, dtype, sentences=dtype is numpy.int32)
        for dtype in ("<u2", "<u4"):
            inputs += [folder / f"raw_{dtype[1:]}.npy", folder / f"trove_{dtype[1:]}.ds"]
            tokens.astype(dtype).tofile(inputs[-2])
            tokens.astype(dtype).tofile(inputs[-1])
            ends.astype("<u8").tofile(str(inputs[-1]) + ".index")
        for dtype in ("<u2", "<u4", "<i4"):
            inputs.append(folder / f"numpy_{dtype[1:]}.npy")
            numpy.save(inputs[-1], tokens.astype(dtype))
        inputs.append(folder / "llm_c.bin")
        write_llm_c(inputs[-1], tokens)
        tokenize("all", *inputs)
        found, found_ends = read_shard(folder / "all")
        for i, path in enumerate(inputs):
            same = numpy.array_equal(found[i * len(tokens):(i + 1) * len(tokens)], tokens)
            same = same and numpy.array_equal(found_ends[i * len(ends):(i + 1) * len(ends)], ends + i * len(tokens))
            print(f"{path.name}: {len(documents)} documents, {len(tokens)} tokens {'equal' if same else 'DIFFERENT'}")
            if not same:
                return 1

        # Without an end token: only files with an index can be.
        bare = [document[1:-1] for document in documents if len(document) > 2]
        write_megatron(folder / "bare", bare, numpy.uint16, sentences=False)
        tokenize("bare_shard", folder / "bare.idx")
        found, found_ends = read_shard(folder / "bare_shard")
        assert numpy.array_equal(found, numpy.concatenate(bare)) and numpy.array_equal(found_ends, numpy.cumsum([len(d) for d in bare]))

        # The way back, judged by Megatron Core's reader.
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": "é word " * i}) + "\n" for i in range(1, 201)))
        tokenize("text_shard", folder / "text.jsonl")
        tokenize("text_megatron", "--format", "megatron", folder / "text.jsonl")
        tokens, ends = read_shard(folder / "text_shard")
        dataset = IndexedDataset(str(folder / "text_megatron"))
        assert len(dataset) == len(ends) == 200 and dataset.index.dtype == numpy.uint16
        assert numpy.array_equal(dataset.document_indices, numpy.arange(201))
        for i, document in enumerate(numpy.split(tokens, ends[:-1].astype(int))):
            assert numpy.array_equal(dataset[i], document), f"document {i}"
        print("hyperion tokenize --format megatron: read by Megatron Core's IndexedDataset, 200 documents equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
