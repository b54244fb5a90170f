"""Are the checkpoints of PyTorch's tensor parallelism and ours each other's?

    dcp_tiles.py TILES_TOOL HYPERION

Four ranks divide the matrices of a tiny block as torchtitan does (colwise and rowwise over 2, then fully_shard over 2: strided
row tiles and column tiles), train two steps of AdamW and save with PyTorch's DCP. The tool loads that with our loader into
the parts of several meshes and saves those with our saver; PyTorch loads each into its own mesh and compares every weight
and moment, bit for bit. All have one digest.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ranks import preloaded, run_ranks, warm_start

DIM, HIDDEN = 16, 24
MESHES = [(1, 1), (3, 1), (1, 2), (2, 2), (1, 4), (2, 3)]  # shards x tensor parallel ranks


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(DIM)
        self.wq, self.wo = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.w1, self.w2 = nn.Linear(DIM, HIDDEN, bias=False), nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        x = x + self.wo(self.wq(self.norm(x)))
        return x + self.w2(torch.nn.functional.silu(self.w1(x)))


def sharded_job(seed: int):
    torch.manual_seed(seed)
    model = Block()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    parallelize_module(model, mesh["tp"], {"wq": ColwiseParallel(), "wo": RowwiseParallel(), "w1": ColwiseParallel(), "w2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["fsdp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(2):
        model(torch.randn(4, DIM, generator=torch.Generator().manual_seed(seed + step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    moments = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    moments = {key: value for key, value in moments.items() if isinstance(value, torch.Tensor)}
    return {**model.state_dict(), "optimizer": moments}


def flat(state: dict) -> dict[str, torch.Tensor]:
    tensors = {key: value for key, value in state.items() if key != "optimizer"}
    tensors |= {f"optimizer.{key}": value for key, value in state["optimizer"].items()}
    return {key: value.full_tensor() if isinstance(value, DTensor) else value.clone() for key, value in tensors.items()}


def rank_main(folder: Path) -> None:
    """One rank: saves without our folders, else loads each of them into a job with other numbers."""
    dist.init_process_group("gloo")
    trained = sharded_job(1)
    theirs = folder / "theirs"
    placements = {key: trained[f"{key}.weight"].placements for key in ("norm", "wq", "wo", "w1", "w2")}
    assert "StridedShard" in repr(placements["wq"]) and repr(placements["wo"]) == "(Shard(dim=0), Shard(dim=1))", placements
    if not theirs.exists():
        dist.barrier()
        dcp.save(trained, checkpoint_id=theirs)
    else:
        expected = flat(trained)
        for path in sorted((folder / "ours").iterdir()):
            loaded = sharded_job(2)
            before = flat(loaded)
            assert not torch.equal(before["wo.weight"], expected["wo.weight"])
            dcp.load(loaded, checkpoint_id=path / "step-1")
            found = flat(loaded)
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                assert torch.equal(found[key], value), (path, key)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", type=Path)
    parser.add_argument("hyperion", type=Path)
    parser.add_argument("--rank-of", type=Path)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ranks = [sys.executable, str(Path(__file__).resolve()), str(options.tool), str(options.hyperion), "--rank-of", str(folder)]
        waiting = preloaded(sys.executable, "torch.distributed.checkpoint.state_dict", "torch.distributed.tensor.parallel")
        run_ranks(ranks, 4, waiting=waiting)
        digests = {"theirs": digest(options.hyperion, folder / "theirs")}
        for shards, tensor in MESHES:
            path = folder / "ours" / f"{shards} x {tensor}"
            subprocess.run([options.tool, folder / "theirs", path, str(shards), str(tensor)], check=True)
            digests[path.name] = digest(options.hyperion, path / "step-1")
        print("digests: " + ", ".join(f"{name} {value}" for name, value in digests.items()), flush=True)
        run_ranks(ranks, 4, waiting=waiting)  # fails for bits that differ
        print(f"PyTorch's FSDP 2 x TP 2 loads what we saved on {', '.join(list(digests)[1:])} (shards x tensor parallel ranks)")
    return 0 if len(set(digests.values())) == 1 else 1


def digest(hyperion: Path, checkpoint: Path) -> str:
    ran = warm_start.run([hyperion, "ckpt", "digest", checkpoint], check=True)
    return ran.stdout.splitlines()[-1].split()[0]


if __name__ == "__main__":
    sys.exit(main())
