"""Is a checkpoint of PyTorch's dcp.save(use_collectives=False), with an index per rank, read as the one it was made from?

    rank_indices.py HYPERION

Hyperion trains and saves. Four ranks of PyTorch load that as sharded, replicated and plain values, and save it without
collectives; each loads its own part again. Then Hyperion lists, verifies and converts the folder and trains from it on
two ranks: tensors, converted files and losses are those of the first checkpoint, bit for bit. Without the index of a
rank, or of all, the folder is refused by the name of the file that is missing.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, zeros

from cases import HERE, SHARD, WEIGHTS_SEEDS
from ranks import preloaded, run_hyperion, run_ranks, warm_start

RANKS = 4
CONFIG = HERE / "configs" / "llama3.toml"
AS_THEY_ARE = {"flatten_state_dict": False, "flatten_sharded_tensors": False}  # objects that are dicts stay one value


def empty_state(checkpoint: Path) -> dict:
    """Zeros for every tensor of the checkpoint: copies of shards, tiles, and whole ones; None for its objects."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    state = {}
    for number, (key, entry) in enumerate(FileSystemReader(checkpoint).read_metadata().state_dict_metadata.items()):
        if not isinstance(entry, TensorStorageMetadata):
            state[key] = None
            continue
        dtype, shape = entry.properties.dtype, entry.size
        if len(shape) == 2:
            placements = [[Replicate(), Shard(0)], [Shard(0), Shard(1)], [Shard(0), Shard(0)]][number % 3]
            state[key] = zeros(shape, dtype=dtype, device_mesh=mesh, placements=placements)
        else:
            state[key] = torch.zeros(shape, dtype=dtype)
    return state


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def same(a, b) -> bool:
    return torch.equal(whole(a), whole(b)) if isinstance(a, torch.Tensor) else a == b


def rank_main(checkpoint: Path, folder: Path) -> None:
    dist.init_process_group("gloo")
    state = empty_state(checkpoint)
    dcp.load(state, checkpoint_id=checkpoint, planner=DefaultLoadPlanner(**AS_THEY_ARE))
    dcp.save(state, checkpoint_id=folder, planner=DefaultSavePlanner(**AS_THEY_ARE), use_collectives=False)
    again = empty_state(checkpoint)
    dcp.load(again, checkpoint_id=folder, planner=DefaultLoadPlanner(**AS_THEY_ARE))
    for key, value in state.items():
        assert same(value, again[key]), key
    dist.destroy_process_group()


def tool(hyperion: Path, *arguments, code: int = 0) -> str:
    ran = warm_start.run([hyperion, "ckpt", *map(str, arguments)])
    assert ran.returncode == code, f"{arguments}: {ran.returncode}, expected {code}\n{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


def training(steps: int, folder: Path, *options: str) -> list[str]:
    return [str(CONFIG), f"--training.steps={steps}", "--training.seq_len=32", "--training.local_batch_size=2", "--training.global_batch_size=4",
            "--training.mixed_precision_param=float32", f"--training.dataset_path={SHARD}", f"--debug.seed={WEIGHTS_SEEDS['llama3']}",
            "--checkpoint.enable", f"--checkpoint.interval={steps}", "--checkpoint.no_last_save_model_only", f"--job.dump_folder={folder}",
            *options]


def losses(hyperion: Path, start: Path, folder: Path) -> list[float]:
    """Of two steps that two ranks make from the checkpoint `start`."""
    run_hyperion(hyperion, training(4, folder, f"--checkpoint.initial_load_path={start}", "--checkpoint.no_initial_load_model_only",
                                    "--checkpoint.load_only"), 2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss_metrics/global_avg_loss"] for line in lines if "event" not in line]


def check_reading(hyperion: Path, first: Path, folder: Path, scratch: Path) -> None:
    listed = {path: json.loads(tool(hyperion, "ls", path, "--json")) for path in (first, folder)}
    for name in ("values", "tensors"):
        assert set(listed[folder][name]) == set(listed[first][name]), name
    output = tool(hyperion, "verify", folder)
    for rank in range(RANKS):
        assert f"__{rank}.metadata" in output, output
    assert "no damage seen" in output and "DCP, no manifest" in output, output
    digests = [tool(hyperion, "digest", path).splitlines()[-1].split()[0] for path in (first, folder)]
    assert digests[0] == digests[1], digests
    for path in (first, folder):
        tool(hyperion, "convert", path, scratch / f"{path.name} as safetensors", "--to=safetensors", f"--config={CONFIG}")
        tool(hyperion, "convert", path, scratch / f"{path.name} as dcp", "--to=dcp")
    weights = [(scratch / f"{path.name} as safetensors" / "model.safetensors").read_bytes() for path in (first, folder)]
    assert weights[0] == weights[1]
    tool(hyperion, "diff", scratch / f"{first.name} as dcp", scratch / f"{folder.name} as dcp")  # 65 for any difference
    ours = [losses(hyperion, path, scratch / f"from {path.name}") for path in (first, folder)]
    assert len(ours[0]) == 2 and ours[0] == ours[1], ours
    print(f"losses of steps 3 and 4: {ours[1]}, digest {digests[1]}", flush=True)


def check_refusals(hyperion: Path, folder: Path, scratch: Path) -> None:
    def refused(says: str) -> None:
        for command in (["ls", folder], ["verify", folder], ["digest", folder], ["convert", folder, scratch / "never", "--to=safetensors"]):
            assert says in tool(hyperion, *command, code=65), command
        ran = subprocess.run([hyperion, "train", *training(4, scratch / "no run", f"--checkpoint.initial_load_path={folder}")],
                             capture_output=True, text=True)
        assert ran.returncode == 65 and says in ran.stdout + ran.stderr, ran.stdout + ran.stderr

    whole_index = (folder / "__1.metadata").read_bytes()
    (folder / "__1.metadata").write_bytes(whole_index[:-1])
    assert re.search(r"\n__1.metadata .* DAMAGED\n", tool(hyperion, "verify", folder, code=65))
    refused("__1.metadata: byte")
    (folder / "__1.metadata").unlink()
    refused("__1.metadata: is missing")
    for rank in (0, 2, 3):
        (folder / f"__{rank}.metadata").unlink()
    refused(f"{folder}/.metadata: is missing")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hyperion", type=Path)
    parser.add_argument("--rank-of", nargs=2, type=Path)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(*options.rank_of)
        return 0
    hyperion = options.hyperion.resolve()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        run_hyperion(hyperion, training(2, scratch), 1)
        first, folder = scratch / "checkpoint" / "step-2", scratch / "without collectives"
        run_ranks([sys.executable, str(Path(__file__).resolve()), str(hyperion), "--rank-of", str(first), str(folder)], RANKS,
                  waiting=preloaded(sys.executable, "torch.distributed.checkpoint"))
        assert sorted(path.name for path in folder.iterdir() if path.name.endswith(".metadata")) == [f"__{rank}.metadata" for rank in range(RANKS)]
        check_reading(hyperion, first, folder, scratch)
        check_refusals(hyperion, folder, scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
