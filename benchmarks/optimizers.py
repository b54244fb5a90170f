#!/usr/bin/env python3
"""What a step with Muon takes on a CPU compared with one with AdamW, and what its FLOPs predict: a Markdown table.

    benchmarks/optimizers.py [--model debugmodel|100M] [--sequences N] [--threads N] [--rounds N] [--steps N] [--binary FILE]

Jobs of one rank run in turn, AdamW, Muon with its iteration in fp32 and in bf16, in `--rounds` rounds, each on the default corpus in
sequences of 1,024 tokens, in bf16. A step's seconds are medians over the steps of all rounds without the first of each job, its processor
seconds medians over the rounds of what a job takes beyond one of a single step: on a busy machine these mean more. FLOPs are those of
`hyperion check`, of the model causal and without recomputation.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import processor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from ranks import run_hyperion  # noqa: E402
from vs_torchtitan import CONFIGS, MODELS  # noqa: E402

TOKENS = 1024  # of a sequence
JOBS = {
    "AdamW": ["--optimizer.name=AdamW"],
    "Muon, fp32": ["--optimizer.name=Muon", "--optimizer.muon.ns_dtype=float32"],
    "Muon, bf16": ["--optimizer.name=Muon", "--optimizer.muon.ns_dtype=bfloat16"],
}


def options(model: str, sequences: int, folder: str) -> list[str]:
    return [str(CONFIGS / f"{MODELS[model].config}.toml"), *MODELS[model].ours(), f"--job.dump_folder={folder}",
            f"--training.local_batch_size={sequences}", f"--training.seq_len={TOKENS}", "--training.mixed_precision_param=bfloat16"]


def measure(binary: Path, arguments: list[str], steps: int, threads: int) -> tuple[list[float], float]:
    """Seconds of each step after the first, and processor seconds per step."""
    def job(count):
        return run_hyperion(binary, [*arguments, f"--training.steps={count}"], 1, threads, timeout=3600)
    short, run = job(1), job(steps)
    arrivals = run.step_seconds
    return ([arrivals[step] - arrivals[step - 1] for step in range(2, steps + 1)],
            (run.processor_seconds - short.processor_seconds) / (steps - 1))


def facts(binary: Path, arguments: list[str]) -> dict:
    answer = subprocess.run([binary, "check", *arguments, "--json", "--ranks=1"], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["debugmodel", "100M"], default="debugmodel")
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "hyperion")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        common = options(asked.model, asked.sequences, folder)
        seconds, processed = {name: [] for name in JOBS}, {name: [] for name in JOBS}
        for _ in range(asked.rounds):
            for name, own in JOBS.items():
                steps, each = measure(asked.binary, [*common, *own], asked.steps, asked.threads)
                seconds[name] += steps
                processed[name].append(each)
        answer = facts(asked.binary, [*common, *JOBS["Muon, bf16"]])
    tokens = asked.sequences * TOKENS
    model, muon = answer["model"]["flops_per_token"] * tokens, answer["muon"]["flops"]
    print(f"{processor()}, {asked.threads} threads; {asked.model}, {tokens:,} tokens per step: {model / 1e12:.3f} TFLOP of the model and "
          f"{muon / 1e12:.3f} of Muon, {muon / model:.2f} times as many; {asked.rounds} rounds of {asked.steps} steps\n")
    print("| optimizer | seconds per step: median (min to max) | processor seconds | beyond AdamW, over AdamW's |\n|---|---|---|---|")
    base = statistics.median(processed["AdamW"])
    for name, some in seconds.items():
        each = statistics.median(processed[name])
        print(f"| {name} | {statistics.median(some):.2f} ({min(some):.2f} to {max(some):.2f}) | {each:.2f} | {(each - base) / base:.2f} |")


if __name__ == "__main__":
    main()
