#!/usr/bin/env python3
"""Judges the reading of Parquet and Arrow by pyarrow and datasets: what they write in every codec, type and size of row groups
is read as the texts that they read, and gives the tokens of the same texts as JSON lines.

usage: arrow_peer.py DOCUMENT_TEXTS_TOOL HYPERION

Exit status: 0 equal, 1 different, 77 without the packages pyarrow and datasets.
"""
import itertools
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
try:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    print("SKIPPED: no Python packages pyarrow and datasets (scripts/setup.sh --interop)")
    sys.exit(77)

TOOL, HYPERION = sys.argv[1:]
CODECS = ["NONE", "SNAPPY", "GZIP", "ZSTD", "BROTLI", "LZ4"]
TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string()),
         pa.dictionary(pa.int8(), pa.large_string()), pa.string_view(), pa.binary_view()]
WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have \u00e9t\u00e9 \u4e2d\u6587 \U0001f600 \n\n".split(" ")
rng = random.Random(1)
checks = 0


def texts(count, words=60, distinct=None):
    made = [" ".join(rng.choices(WORDS, k=rng.randrange(words))) if rng.random() > 0.1 else rng.choice([None, ""]) for _ in range(distinct or count)]
    return made if distinct is None else [rng.choice(made) for _ in range(count)]


def array(values, kind):
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    encode = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view()
    return pa.array([value.encode() if encode and value is not None else value for value in values], kind)


def expected(values):
    return [b"" if value is None else value.encode() for value in values]


def read(path, field="text"):
    done = subprocess.run([TOOL, path, field], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path}: {done.returncode}: {done.stderr.decode()}")
    found, at = [], 0
    while at < len(done.stdout):
        (size,) = struct.unpack_from("<I", done.stdout, at)
        found.append(done.stdout[at + 4:at + 4 + size])
        at += 4 + size
    return found


def check(what, path, values, field="text"):
    global checks
    checks += len(list(path.iterdir())) if path.is_dir() else 1
    if (found := read(path, field)) != (wanted := expected(values)):
        first = next((i for i, (a, b) in enumerate(itertools.zip_longest(found, wanted)) if a != b), None)
        raise SystemExit(f"{what}: differs at document {first}: {len(found)} of {len(wanted)}")


def parquet(folder):
    for codec in CODECS:
        (files := folder / codec).mkdir()
        every = []
        for number, kind in enumerate(TYPES):
            values = texts(500, distinct=100 if pa.types.is_dictionary(kind) else None)
            table = pa.table({"id": range(500), "text": array(values, kind)})
            for rows, version, options in ((1, "2.6", {}), (7, "1.0", {"use_dictionary": False}), (500, "2.6", {"data_page_version": "2.0"}),
                                           (300, "2.6", {"data_page_size": 500, "write_page_checksum": True})):
                pq.write_table(table, path := files / f"{number}-{rows:03}.parquet", compression=codec, row_group_size=rows, version=version, **options)
                assert [None if v is None else v if isinstance(v, str) else v.decode() for v in pq.read_table(path)["text"].to_pylist()] == values
            every += values * 4
        check(f"Parquet {codec}", files, every)
    path = folder / "a.parquet"
    for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"):
        values = texts(5000)
        pq.write_table(pa.table({"text": values}), path, use_dictionary=False, column_encoding={"text": encoding}, data_page_size=2000)
        check(f"Parquet {encoding}", path, values)
    # a column without nulls, in a struct of a struct, beside lists
    inner = [{"deep": {"text": value, "n": 1}} if rng.random() > 0.2 else None for value in texts(500)]
    values = [None if row is None else row["deep"]["text"] for row in inner]
    table = pa.table({"a": inner, "l": [[1, 2]] * 500, "text": pa.array(["x"] * 500)}, pa.schema([
        ("a", pa.struct([("deep", pa.struct([("text", pa.string()), ("n", pa.int64())]))])), ("l", pa.list_(pa.int64())),
        pa.field("text", pa.string(), nullable=False)]))
    pq.write_table(table, path, row_group_size=99)
    check("Parquet, nested", path, values, "a.deep.text")
    check("Parquet, not nullable", path, ["x"] * 500)
    # a row group of more than 64 MiB: read in batches
    values = [rng.choice("abcdefgh") * rng.randrange(200_000) for _ in range(900)]
    pq.write_table(pa.table({"text": values}), path, use_dictionary=False, compression="SNAPPY")
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size > 64 << 20
    check("Parquet, one large row group", path, values)


def arrow(folder):
    for writer, codec in itertools.product((pa.ipc.new_file, pa.ipc.new_stream), (None, "zstd", "lz4")):
        (files := folder / f"{writer.__name__}-{codec}").mkdir()
        every = []
        for number, kind in enumerate(TYPES):
            values = texts(500, distinct=100 if pa.types.is_dictionary(kind) else None)
            table = pa.table({"id": range(500), "text": array(values, kind), "kind": pa.array(["a", "b"] * 250).dictionary_encode()})
            for rows in (1, 300, 500):
                with writer(str(files / f"{number}-{rows:03}.arrow"), table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out:
                    out.write_table(table, max_chunksize=rows)
            every += values * 3
        check(f"Arrow {files.name}", files, every)
    path = folder / "a.arrow"
    # a dictionary that grows from batch to batch
    with pa.ipc.new_stream(str(path), pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))]),
                           options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as out:
        for words in (["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]):
            out.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int32()), words)], ["text"]))
    check("Arrow, a growing dictionary", path, [*"ab", *"abc", *"abcd"])


def saved(folder):
    values = {"train": texts(2500), "test": texts(50)}
    whole = datasets.DatasetDict({split: datasets.Dataset.from_dict({"text": column}) for split, column in values.items()})
    whole.save_to_disk(folder / "saved", num_shards={"train": 3, "test": 1})
    check("datasets, saved in three files", folder / "saved/train", values["train"])
    whole["train"].shuffle(seed=1).save_to_disk(folder / "shuffled")
    check("datasets, shuffled", folder / "shuffled", datasets.load_from_disk(str(folder / "shuffled"))["text"])
    whole["test"].to_parquet(folder / "hub/test-00000-of-00001.parquet")
    check("datasets, Parquet", folder / "hub", values["test"])
    done = subprocess.run([TOOL, folder / "saved", "text"], capture_output=True, text=True, check=False)
    assert (done.returncode, "saved/train (3 train files)" in done.stderr) == (65, True), done.stderr


def tokens(folder):
    values = texts(3000)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": value or ""}) + "\n" for value in values))
    pq.write_table(pa.table({"text": values}), folder / "a.parquet", row_group_size=700)
    shards = []
    for name in ("a.jsonl", "a.parquet"):
        shard = folder / f"{name}.shard"
        subprocess.run([HYPERION, "tokenize", folder / name, "--out", shard, "--tokenizer", ROOT / "tests/assets/tokenizer"], check=True, capture_output=True)
        shards.append([(shard / part).read_bytes() for part in ("tokens.bin", "documents.bin")])
    assert shards[0] == shards[1], "the tokens of Parquet are not those of JSON lines"


with tempfile.TemporaryDirectory() as name:
    for judge in (parquet, arrow, saved, tokens):
        (place := pathlib.Path(name, judge.__name__)).mkdir()
        judge(place)
print(f"{checks} files of pyarrow {pa.__version__} and datasets {datasets.__version__}: the same texts, and the tokens of JSON lines")
