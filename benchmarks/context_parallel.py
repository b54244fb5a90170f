#!/usr/bin/env python3
"""What context parallelism of two ranks reaches on this machine's CPU against FSDP, how even its ranks' attention is, and its memory.

usage: benchmarks/context_parallel.py [--binary build/hyperion] [--pairs 5] [--steps 16] [speed] [short] [balance] [memory]

speed    C 2, gathered and ring, against FSDP 2: tokens a second, and processor time of all ranks. Both train on the same two sequences of 4096 tokens
         a step: FSDP gives each rank one of them, C 2 takes one after the other (two microbatches of 1 x 4096, of which each rank has half). So
         tokens, attention and the optimizer's steps are equal, and C 2 gathers weights and reduces gradients twice as often
short    one sequence of 4096 tokens a step by C 2 against FSDP 2 with 2 x 2048, gathered and ring. Tokens are equal and C 2 has twice the pairs of
         queries and keys, which the ratio pays for: no other program that attends to 4096 tokens could avoid them
balance  attention of the slowest over the fastest rank, gathered, "headtail" and None: milliseconds of a step (of its recorded step) and pairs of
         queries and keys. Milliseconds need an idle machine, pairs do not
memory   the largest resident set of a rank, 100 million parameters, 1 x 8192 tokens: C 2 against one rank, gathered and ring, as it is, and without
         what the program takes with a model of next to nothing

The debug model in bf16, without activation checkpointing. Runs alternate, and every second pair begins with the other side. A figure is the median
of all runs, a ratio the median of the ratios of neighbouring runs, with the smallest and the largest. A step's time is the distance of two step
lines of rank 0 (the median of the second half). Standard library only.
"""

import collections
import json
import re
import shutil
import statistics
import tempfile
from pathlib import Path

from pipeline import ROOT, Bench, memory
from step_profile import ATTENTION, attention_pairs
from tensor_parallel import compare, parsed, parser_of

PARTS = ("speed", "short", "balance", "memory")
LENGTH, LONG = 4096, 8192
METHODS = {"gathered": "allgather", "ring": "alltoall"}


def job(seq_len, sequences):
    """Options of a job with that number of sequences per step, of which a rank takes one at a time."""
    return (f"--training.seq_len={seq_len}", f"--training.global_batch_size={sequences}", "--training.local_batch_size=1")


def context(method, balancer="headtail"):
    return ("--parallelism.context_parallel_degree=2", f"--parallelism.context_parallel_rotate_method={METHODS[method]}",
            f"--parallelism.context_parallel_load_balancer={balancer}")


def attention_of(trace):
    """Milliseconds of attention, and pairs of queries and keys of one head that it has counted."""
    milliseconds, pairs = 0.0, 0
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("name") in ATTENTION:
            milliseconds += event["dur"] / 1e3
            pairs += attention_pairs(event)
    return milliseconds, pairs


def balance(bench, balancer):
    steps = 4
    options = [*job(LENGTH, 1), *context("gathered", balancer), "--profiling.enable_profiling", f"--profiling.profile_freq={steps}"]
    _, output = bench.ours(2, options, steps, keep=True)
    found = {int(re.search(r"rank(\d+)_", trace.name)[1]): attention_of(trace) for trace in output.rglob("rank*_trace.json")}
    shutil.rmtree(output)
    return [found[rank] for rank in range(2)]


def print_balance(bench, balancer):
    runs = [balance(bench, balancer) for _ in range(bench.options.pairs)]
    ratios = collections.defaultdict(list)
    for ranks in runs:
        for name, values in zip(("milliseconds", "pairs"), zip(*ranks)):
            ratios[name].append(max(values) / min(values))
    times = " and ".join(f"{statistics.median(run[rank][0] for run in runs):.0f}" for rank in range(2))
    print(f"{balancer}: attention of ranks 0 and 1 takes {times} ms of a step; slowest / fastest: {statistics.median(ratios['milliseconds']):.2f} "
          f"({min(ratios['milliseconds']):.2f} .. {max(ratios['milliseconds']):.2f}), of pairs {ratios['pairs'][0]:.3f}", flush=True)


def main():
    parser = parser_of(__doc__, PARTS)
    parser.add_argument("--steps", type=int, default=16, help="of a run, half of which are measured (default 16)")
    options, parts = parsed(parser, PARTS)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        # Sequences of a step of C 2, and the length of FSDP's two
        for part, sequences, fsdp_length in (("speed", 2, LENGTH), ("short", 1, LENGTH // 2)):
            if part not in parts:
                continue
            for method in METHODS:
                compare(f"C 2, {method} / FSDP 2, 2 x {fsdp_length}, bfloat16", options.pairs,
                        lambda: bench.speed((*job(LENGTH, sequences), *context(method)), sequences * LENGTH),
                        lambda: bench.speed(job(fsdp_length, 2), 2 * fsdp_length))
        if "balance" in parts:
            for balancer in ("headtail", "None"):
                print_balance(bench, balancer)
        if "memory" in parts:
            memory(bench, {f"C 2, {method}": [*job(LONG, 1), *context(method)] for method in METHODS}, job(LONG, 1))


if __name__ == "__main__":
    main()
