#!/usr/bin/env python3
"""What tensor parallelism costs and saves on this machine's CPU, beside FSDP and one rank of the same program.

usage: benchmarks/tensor_parallel.py [--binary build/hyperion] [--pairs 5] [speed] [memory] [save]

speed   TP 2 against FSDP 2, and FSDP 2 x TP 2 against FSDP 4, the same global batch; also processor time of all ranks
memory  peak less what is resident after the start, 8 x 2048 tokens, 100 million parameters: TP 2 against one rank
save    the last checkpoint of FSDP 2 x TP 2 against that of FSDP 4: the same bytes

Runs alternate, and every second pair begins with the other side. A figure is the median of all runs, a ratio the median of the ratios of neighbouring runs, with the smallest and the
largest. A step's time is the distance of two step lines of rank 0 (the median of the second half of a run). Standard library only.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from machine import processor

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("speed", "memory", "save")
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from ranks import run_hyperion  # noqa: E402
from vs_torchtitan import MODELS  # noqa: E402

CONFIG = str(ROOT / "configs" / "debug_model.toml")
ONE_RANK, TP2, FSDP2, FSDP4, FSDP2_TP2 = (1, 1), (1, 2), (2, 1), (4, 1), (2, 2)  # data_parallel_shard_degree, tensor_parallel_degree
STEPS = 16


class Job:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.runs = binary, folder, 0

    def run(self, mesh, sequences, seq_len, steps, options=(), threads=1):
        """The run and the lines of its metrics.jsonl."""
        self.runs += 1
        shard, tensor = mesh
        output = self.folder / str(self.runs)
        arguments = [CONFIG, f"--training.steps={steps}", f"--training.seq_len={seq_len}", f"--training.global_batch_size={sequences}",
                     f"--training.local_batch_size={sequences // shard}", f"--parallelism.data_parallel_shard_degree={shard}",
                     f"--parallelism.tensor_parallel_degree={tensor}", "--metrics.log_freq=1", f"--job.dump_folder={output}", *options]
        seen = run_hyperion(self.binary, arguments, shard * tensor, threads)
        (metrics,) = output.rglob("metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        shutil.rmtree(output)  # a run begins with the disk that the one before it found
        return seen, lines


def speed(job, mesh, precision):
    seen, _ = job.run(mesh, 4, 1024, STEPS, [f"--training.mixed_precision_param={precision}", "--checkpoint.no_enable"])
    times = seen.step_seconds
    step = statistics.median(times[k] - times[k - 1] for k in range(STEPS // 2 + 1, STEPS + 1))
    return {"tokens per second": 4 * 1024 / step, "processor seconds": seen.processor_seconds}


def memory(job, mesh, checkpointing):
    seen, _ = job.run(mesh, 8, 2048, 2, [*MODELS["100M"].ours(), f"--activation_checkpoint.mode={checkpointing}", "--checkpoint.no_enable"])
    return {"MiB above the start": (max(seen.peak_rss) - seen.start_rss) / 2**20, "MiB at the start": seen.start_rss / 2**20}


def save(job, mesh):
    _, lines = job.run(mesh, 4, 64, 1, [*MODELS["100M"].ours(), "--checkpoint.enable", "--checkpoint.async_mode=disabled"])
    saved = [line for line in lines if line.get("event") == "checkpoint_durable"]
    return {"seconds of the save": sum(saved[-1][key] for key in ("write_seconds", "commit_seconds"))}


def compare(title, pairs, one, other):
    """Prints one / other for each figure."""
    runs = [(one(), other()) if pair % 2 == 0 else (other(), one())[::-1] for pair in range(pairs)]
    for name in runs[0][0]:
        ratios = [a[name] / b[name] for a, b in runs]
        ours, theirs = (statistics.median(run[i][name] for run in runs) for i in (0, 1))
        print(f"{title:44} {name:22} {ours:10,.2f} {theirs:10,.2f}  {statistics.median(ratios):5.2f} ({min(ratios):.2f} .. {max(ratios):.2f})",
              flush=True)


def parser_of(description, parts):
    """Options that the benchmarks of two ranks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "hyperion")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)} (default: all)")
    return parser


def parsed(parser, parts):
    """The options, and which of the parts to run; says where."""
    options = parser.parse_args()
    if set(options.parts) - set(parts) or options.pairs < 1 or getattr(options, "steps", 2) < 2:
        parser.error(f"parts are {', '.join(parts)}; at least 1 pair and 2 steps")
    print(f"{processor()}, {os.cpu_count()} CPUs; {options.pairs} interleaved pairs", flush=True)
    return options, options.parts or parts


def main():
    options, parts = parsed(parser_of(__doc__, PARTS), PARTS)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options.binary, Path(folder))
        if "speed" in parts:
            for precision in ("float32", "bfloat16"):
                for title, one, other in (("TP 2 / FSDP 2", TP2, FSDP2), ("FSDP 2 x TP 2 / FSDP 4", FSDP2_TP2, FSDP4)):
                    compare(f"{title}, {precision}", options.pairs, lambda: speed(job, one, precision), lambda: speed(job, other, precision))
        if "memory" in parts:
            for mode in ("none", "full"):
                compare(f"TP 2 / one rank, checkpointing {mode}", 1, lambda: memory(job, TP2, mode), lambda: memory(job, ONE_RANK, mode))
        if "save" in parts:
            compare("FSDP 2 x TP 2 / FSDP 4", options.pairs, lambda: save(job, FSDP2_TP2), lambda: save(job, FSDP4))


if __name__ == "__main__":
    main()
