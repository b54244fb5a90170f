"""Saves and loads of PyTorch's Distributed Checkpoint (DCP), for benchmarks/ckpt.py to compare with Hyperion's.

    checkpoint_peer.py save|memory FOLDER [VOCAB [LAYERS]]

The same tensors and values as benchmarks/checkpoint_state.h, on 2 Gloo ranks with one thread each. After "ready", each line
on stdin starts a round, whose figures rank 0 prints as one line of JSON; times are in seconds, of the slowest rank.

async:  dcp.async_save as torchtitan 0.2.2 calls it in mode "async".
cached: the same with a stager that keeps its copy in host memory from save to save, the best that DCP has on a CPU
        (torchtitan's async_with_pinned_mem needs an accelerator).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

RANK = int(os.environ.get("RANK", 0))
WORLD = 2
WINDOW = 25  # steps of the window after a save, at least


def start_ranks() -> subprocess.Popen | None:
    """Rank 0 starts the other one."""
    other = None
    if RANK == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), WORLD_SIZE=str(WORLD),
                              OMP_NUM_THREADS="1", RANK="0")
        other = subprocess.Popen([sys.executable, *sys.argv], env=dict(os.environ, RANK="1"), stdin=subprocess.DEVNULL)
    return other


if __name__ == "__main__":
    OTHER = start_ranks()  # before torch is imported, which takes seconds

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.staging import BlockingAsyncStager  # noqa: E402
from torch.distributed._state_dict_utils import _create_cpu_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402


def llama_shapes(vocab: int, layers: int) -> list[tuple[str, tuple[int, ...]]]:
    dim, hidden, shapes = 512, 1408, []
    shapes.append(("tok_embeddings.weight", (vocab, dim)))
    for layer in range(layers):
        parts = [(f"attention.{name}", (dim, dim)) for name in ("wq", "wk", "wv", "wo")]
        parts += [("feed_forward.w1", (hidden, dim)), ("feed_forward.w2", (dim, hidden)), ("feed_forward.w3", (hidden, dim))]
        parts += [("attention_norm", (dim,)), ("ffn_norm", (dim,))]
        shapes += [(f"layers.{layer}.{name}.weight", shape) for name, shape in parts]
    return [*shapes, ("norm.weight", (dim,)), ("output.weight", (vocab, dim))]


OPTIONS = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False, "foreach": None,
           "maximize": False, "capturable": False, "fused": True, "differentiable": False, "initial_lr": 3e-4,
           "decoupled": True}


def make_state(shapes: list[tuple[str, tuple[int, ...]]]) -> dict:
    mesh = init_device_mesh("cpu", (WORLD,))

    def sharded(shape: tuple[int, ...], seed: int) -> DTensor:
        rows = (shape[0] + WORLD - 1) // WORLD
        numbers = torch.arange(rows * (shape[1] if len(shape) > 1 else 1), dtype=torch.int64) + seed
        local = (numbers * 2654435761 % 1000003).float().reshape(rows, *shape[1:])
        return DTensor.from_local(local, mesh, [Shard(0)])

    model = {name: sharded(shape, i) for i, (name, shape) in enumerate(shapes)}
    optimizer: dict = {}
    for i, (name, shape) in enumerate(shapes):
        optimizer[f"state.{name}.exp_avg"] = sharded(shape, 100 + i)
        optimizer[f"state.{name}.exp_avg_sq"] = sharded(shape, 200 + i)
        optimizer[f"state.{name}.step"] = torch.tensor(float(i))
        optimizer |= {f"param_groups.{name}.{option}": value for option, value in OPTIONS.items()}
    return {**model, "optimizer": optimizer, "train_state": {"step": 1}}


class CachedStager(BlockingAsyncStager):
    """BlockingAsyncStager keeps its copy only in pinned memory, which a CPU alone does not have."""

    def __init__(self, state: dict):
        super().__init__(cache_staged_state_dict=True)
        self.state_dict_cache = _create_cpu_state_dict(state, pin_memory=False)


class Bench:
    def __init__(self, folder: Path, state: dict):
        self.folder, self.state = folder, state
        self.group = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))  # of the saves, as in torchtitan
        self.cached = CachedStager(self.state)
        self.matrix = torch.full((192, 192), 1e-3)

    def slowest(self, value: float) -> float:
        most = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return most.item()

    def clear(self) -> None:
        """Nothing of the last save is left."""
        if RANK == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        dist.barrier()

    def settle(self) -> None:
        """Waits until the disk has nothing left to do."""
        if RANK == 0:
            os.sync()
        dist.barrier()

    def sync_save(self) -> float:
        self.clear()
        self.settle()
        begin = time.perf_counter()
        dcp.save(self.state, checkpoint_id=self.folder / "save")
        return self.slowest(time.perf_counter() - begin)

    def load(self) -> float:
        """After sync_save(): its files are there."""
        if RANK == 0:
            for path in (self.folder / "save").iterdir():
                file = os.open(path, os.O_RDONLY)
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)
        dist.barrier()
        begin = time.perf_counter()
        dcp.load(self.state, checkpoint_id=self.folder / "save")
        return self.slowest(time.perf_counter() - begin)

    def compute_step(self) -> None:
        for _ in range(40):
            torch.mm(self.matrix, self.matrix)

    def measure_step(self, steps: int = WINDOW) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            self.compute_step()
        return (time.perf_counter() - begin) / steps

    def async_save(self, stager, computing: bool = False) -> dict[str, float]:
        self.clear()
        if computing:
            self.settle()
        step = self.measure_step() if computing else 0.0
        dist.barrier()
        begin = time.perf_counter()
        future = dcp.async_save(self.state, checkpoint_id=self.folder / "save", process_group=self.group, async_stager=stager)
        result = {"stall": time.perf_counter() - begin}
        if computing:
            window, steps = time.perf_counter(), 0
            while steps < WINDOW or not future.done():
                self.compute_step()
                steps += 1
            result["window"] = time.perf_counter() - window - steps * step
        future.result()
        result["durable"] = time.perf_counter() - begin
        return {key: self.slowest(value) for key, value in result.items()}

    def save_round(self) -> dict[str, float]:
        figures = {"sync_save": self.sync_save(), "load": self.load()}
        for name, stager in (("async", None), ("cached", self.cached)):
            for suffix, computing in (("", False), ("_computing", True)):
                measured = self.async_save(stager, computing)
                figures |= {f"{name}{suffix}_{key}": value for key, value in measured.items()}
        return figures

    def memory_round(self) -> dict[str, float]:
        figures = {}
        for save in range(1, 51):
            self.async_save(self.cached)
            if save in (5, 50):
                resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                figures[f"resident_after_{save}"] = self.slowest(resident)
        return figures


def main() -> None:
    part, folder = sys.argv[1], Path(sys.argv[2])
    vocab = int(sys.argv[3]) if len(sys.argv) > 3 else 31168
    layers = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    bench = Bench(folder, make_state(llama_shapes(vocab, layers)))
    one_round = {"save": bench.save_round, "memory": bench.memory_round}[part]
    if part == "save":  # the first saves, which plan and allocate, do not count
        bench.sync_save(), bench.async_save(None), bench.async_save(bench.cached)
    if RANK == 0:
        print("ready", flush=True)
    while True:
        more = [RANK == 0 and sys.stdin.readline() != ""]
        dist.broadcast_object_list(more, src=0)
        if not more[0]:
            break
        figures = one_round()
        if RANK == 0:
            print(json.dumps(figures), flush=True)
    dist.destroy_process_group()
    if RANK == 0:
        sys.exit(OTHER.wait())


if __name__ == "__main__":
    main()
