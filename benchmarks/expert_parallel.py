#!/usr/bin/env python3
"""What expert parallelism costs on this machine's CPU against FSDP alone.

usage: benchmarks/expert_parallel.py [--binary build/hyperion] [--model qwen3_moe_2,deepseek_v3,qwen3_moe] [--precision bf16,fp32] [--pairs 3] [--steps 8]

EP 2 against FSDP 2, whose ranks gather all experts: tokens a second, and processor time of both ranks; the debug models with 2 x 512 tokens a rank.

Runs alternate, and every second pair begins with the other side. A figure is the median of all runs, a ratio the median of the ratios of neighbouring
runs, with the smallest and the largest. A step's time is the distance of two step lines of rank 0 (the median of the second half of a run). Standard library only.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from machine import processor
from pipeline import step_of
from tensor_parallel import compare
from vs_torchtitan import MODELS, some_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from ranks import run_hyperion  # noqa: E402

WITH_EXPERTS = ("qwen3_moe_2", "deepseek_v3", "qwen3_moe")
BATCH, SEQ_LEN = 2, 512


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.runs = options, folder, 0

    def run(self, model, precision, ranks, steps, *options):
        self.runs += 1
        output = self.folder / str(self.runs)
        config = ROOT / "tests" / "interop" / "configs" / f"{MODELS[model].config}.toml"
        dtype = {"bf16": "bfloat16", "fp32": "float32"}[precision]
        arguments = [str(config), *MODELS[model].ours(), f"--training.steps={steps}", f"--training.local_batch_size={BATCH}",
                     f"--training.seq_len={SEQ_LEN}", f"--training.mixed_precision_param={dtype}", f"--job.dump_folder={output}", *options]
        return run_hyperion(self.options.binary, arguments, ranks, max(1, (os.cpu_count() or 1) // ranks))

    def speed(self, model, precision, experts):
        steps = self.options.steps
        run = self.run(model, precision, 2, steps, f"--parallelism.expert_parallel_degree={experts}")
        return {"tokens per second": 2 * BATCH * SEQ_LEN / step_of(run, steps), "processor seconds": run.processor_seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "hyperion")
    parser.add_argument("--model", type=some_of(*WITH_EXPERTS), default=list(WITH_EXPERTS[:2]))
    parser.add_argument("--precision", type=some_of("bf16", "fp32"), default=["fp32"], help="some of bf16,fp32 (default: fp32)")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps per run; the second half is measured")
    options = parser.parse_args()
    if options.pairs < 1 or options.steps < 4:
        parser.error("at least 1 pair and 4 steps")
    print(f"{processor()}, {os.cpu_count()} CPUs; {options.pairs} interleaved pairs")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        for model, precision in ((m, p) for m in options.model for p in options.precision):
            compare(f"{model}, {precision}, EP 2 / FSDP 2", options.pairs, lambda: bench.speed(model, precision, 2),
                    lambda: bench.speed(model, precision, 1))


if __name__ == "__main__":
    main()
