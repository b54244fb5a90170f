"""Does PyTorch read what our format writers write?

    dcp_reencode.py REENCODE_TOOL

Each DCP golden is read by the tool (our reader) and written again (our writers) with another number of shards;
check_dcp.py then lets PyTorch load the result: blind, prepared, and resharded to 1, 2, 3 and 4 ranks. And tensor
entries cut out of a file are archives of their own: torch.load(weights_only=True) reads each of them.
"""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

import check_dcp
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

GOLDENS = Path(__file__).resolve().parent.parent / "goldens" / "dcp"
SHARDS = {"fsdp4": 3, "hsdp2x2": 1, "compiled": 2, "compiled_whole": 5, "bf16": 3, "misc": 2}


def check_cut_out(folder: Path) -> int:
    metadata = FileSystemReader(folder).read_metadata()
    tensors = 0
    for index, place in metadata.storage_data.items():
        record = metadata.state_dict_metadata[index.fqn]
        with open(folder / place.relative_path, "rb") as file:
            file.seek(place.offset)
            entry = io.BytesIO(file.read(place.length))
        is_tensor = isinstance(record, TensorStorageMetadata)
        value = torch.load(entry, weights_only=is_tensor)
        if not is_tensor:
            continue
        chunk = record.chunks[index.index]
        assert value.dtype == record.properties.dtype and value.shape == chunk.sizes, (index, value.dtype, value.shape)
        assert value.is_contiguous(), index
        tensors += 1
    return tensors


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for name, shards in SHARDS.items():
            folder = Path(scratch) / name
            subprocess.run([sys.argv[1], GOLDENS / name, folder, str(shards)], check=True)
            print(f"{name} with {shards} shards: torch.load reads {check_cut_out(folder)} cut-out tensors", flush=True)
            check_dcp.problems.clear()
            failed |= check_dcp.main([str(folder), str(GOLDENS / f"{name}.json"), "--reshard", "1", "2", "3", "4"]) != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
