"""Writes the files of this folder, with pyarrow 26.0.1: two row groups or record batches of three rows each.

    python3 tests/assets/arrow/make.py
"""

import pathlib

import pyarrow as pa
import pyarrow.parquet

FOLDER = pathlib.Path(__file__).resolve().parent
TEXTS = ["one", None, "", "zw\u00f6lf", "five", "six " * 40]
TABLE = pa.table({
    "id": pa.array(range(6), pa.int64()),
    "text": pa.array(TEXTS, pa.string()),
    "meta": pa.array([{"text": f"in {i}", "kind": "a"} if i != 2 else None for i in range(6)],
                     pa.struct([("text", pa.large_string()), ("kind", pa.string())])),
    "kind": pa.array(["a", "b", "a", None, "b", "a"]).dictionary_encode(),
    "tags": pa.array([["x", "y"]] * 6, pa.list_(pa.string())),
})

pyarrow.parquet.write_table(TABLE, FOLDER / "small.parquet", row_group_size=3, compression="snappy")
for name, writer in ("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream):
    with writer(str(FOLDER / name), TABLE.schema) as out:
        out.write_table(TABLE, max_chunksize=3)
