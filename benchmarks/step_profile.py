#!/usr/bin/env python3
"""Where the time of a training step on a CPU goes, and what the machine could do: a Markdown table.

    benchmarks/step_profile.py [--model debugmodel|100M|qwen3_moe|deepseek_v3] [--precision bf16|fp32] [--ranks N] [--threads N] [--operations KIND] [-- OPTION...]

Runs the program with its profiler on the default corpus, without activation checkpointing, and adds up the self times of rank
0's recorded steps by kind of operation, and with --operations one kind's by name; OPTIONs go to the program. Products and
attention are counted in GFLOP, attention at the pairs of queries and keys that it needs (4 * head_dim for a pair of a head, 2.5 times that
for its backward; that documents need fewer is not seen), operations that go element by element in the bytes that they read and write
once. Their limits are measured in the same run by benchmark_machine: the best of the products of 1024^3 and of the step's largest shapes,
libtorch's or ours, and a copy that no cache holds. What a cache still holds can be faster than that.
"""

import argparse
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import processor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from ranks import run_hyperion  # noqa: E402
from vs_torchtitan import MODELS  # noqa: E402

STEPS = 12  # of the run; the last ones are recorded
RECORDED = 3
SHAPES = 16  # products that are measured by themselves, those with most of the step's FLOPs: experts have one for each number of rows
BYTES = {"c10::BFloat16": 2, "float": 4, "double": 8, "long int": 8}

# Kinds of operations in the order of the table, each with the names of its events. A range (no "::") stands for all within it.
KINDS = {
    "products": r"(aten|hyperion)::mm$",
    "attention, forward": r"hyperion::attention$|aten::_scaled_dot_product.*_for_cpu$",
    "attention, backward": r"hyperion::attention_backward$|aten::_scaled_dot_product.*_for_cpu_backward$",
    "SwiGLU": r"hyperion::gated_activation",
    "norms and residual sums": r"hyperion::(add_)?rms_norm",
    "RoPE": r"hyperion::(rope|latent_heads)",
    "routing and order": r"hyperion::(route_tokens|routing_weights|order_rows|gather_rows|sum_rows|products_of_rows|weight_rows|pack_row_sums|sum_packed_rows)",
    "cross-entropy": r"hyperion::(cross_entropy|vocab_)",
    "embedding": r"aten::embedding",
    "gradient norm and clipping": r"gradient (norm|clipping)$",
    "optimizer": r"optimizer$",
    "collectives": r"(all-gather|reduce-scatter|all-reduce) ",
    "data": r"data$",
    "metrics": r"metrics$",
    "copies and sums of tensors": r"aten::(copy_|add|add_|cat|sum|zero_|fill_|mul_|_foreach_copy_)$|hyperion::(pack|add|unpack)_keys_$",
}
REST = "the walk over units, autograd and all else"
# Of operations that go element by element: how often each element of the first input is read or written.
PASSES = {"hyperion::gated_activation": 3, "hyperion::gated_activation_backward": 5, "hyperion::rms_norm": 2, "hyperion::rms_norm_backward": 3,
          "hyperion::add_rms_norm": 4, "hyperion::add_rms_norm_backward": 4, "hyperion::cross_entropy_": 2,
          "hyperion::vocab_gradient_": 2, "hyperion::vocab_statistics": 1, "hyperion::sum_of_squares": 1,
          "hyperion::pack_keys_": 2, "hyperion::unpack_keys_": 2}
ATTENTION = {"hyperion::attention": 4.0, "hyperion::attention_backward": 10.0}  # FLOPs of a pair and element of a head
ADAM_BYTES = 28  # of an element: weight, gradient and two moments are read, all but the gradient written


def kind_of(name: str) -> str | None:
    return next((kind for kind, names in KINDS.items() if re.match(names, name)), None)


def attention_pairs(event: dict) -> int:
    """Pairs of queries and keys of one head: causal from the last key, or all."""
    (*_, queries, _), (*_, keys, _) = event["args"]["Input Dims"][-4:-2]  # inputs are (the gradient,) q, k, v and whether it is causal
    causal = event["args"]["Concrete Inputs"][-1] == "True"
    return queries * (keys - queries) + queries * (queries + 1) // 2 if causal else queries * keys


def flops(event: dict) -> float:
    shapes = event["args"].get("Input Dims", [])
    if event["name"].endswith("::mm"):
        (m, k), (_, n) = shapes[:2]
        return 2.0 * m * k * n
    if event["name"] in ATTENTION:
        batch, heads, _, size = shapes[-4]
        return ATTENTION[event["name"]] * batch * heads * attention_pairs(event) * size
    return 0.0


def elements(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def moved_bytes(event: dict) -> float:
    name, shapes, types = event["name"], event["args"].get("Input Dims", []), event["args"].get("Input type", [])
    if name in PASSES:
        return PASSES[name] * elements(shapes[0]) * BYTES.get(types[0], 4)
    if name.startswith("hyperion::rope"):
        return sum(2 * elements(shape) * BYTES.get(kind, 4) for shape, kind in zip(shapes[:2], types[:2]))
    if name == "aten::copy_":
        return sum(elements(shape) * BYTES.get(kind, 4) for shape, kind in zip(shapes[:2], types[:2]))
    if name in ("aten::add_", "aten::add", "aten::mul_") and shapes[0]:
        return (3 if shapes[1] else 2) * elements(shapes[0]) * BYTES.get(types[0], 4)
    return 0.0


class Profile:
    """Microseconds of self time, calls, FLOPs and bytes by kind, of all recorded steps together."""

    def __init__(self, trace: Path):
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("ph") == "X" and "dur" in e]
        steps = [e for e in events if e["name"].startswith("ProfilerStep")]
        self.steps = len(steps)
        self.microseconds = sum(e["dur"] for e in steps)
        self.time, self.calls = collections.Counter(), collections.Counter()
        self.flops, self.bytes = collections.Counter(), collections.Counter()
        self.shapes = collections.Counter()  # "MxKxN" of products -> FLOPs
        self.operations = collections.defaultdict(lambda: [0.0, 0])  # (kind, name) -> microseconds with all that is within, calls
        thread = steps[0]["tid"]
        own = sorted((e for e in events if e["tid"] == thread and not e["name"].startswith("PyTorch Profiler")),
                     key=lambda e: (e["ts"], -e["dur"]))
        stack = []  # of [event, kind, microseconds of what is within it]
        for event in own:
            while stack and stack[-1][0]["ts"] + stack[-1][0]["dur"] <= event["ts"]:
                self._close(stack)
            # Within an operation of ours, within the optimizer or a collective everything counts to it.
            outer = stack[-1][1] if stack else None
            kind = outer if outer not in (None, "copies and sums of tensors") else kind_of(event["name"])
            stack.append([event, kind, 0.0])
            self.bytes[kind or REST] += moved_bytes(event)
            if event["name"] == "hyperion::sum_of_squares":  # of all gradients
                self.bytes["optimizer"] += ADAM_BYTES * elements(event["args"]["Input Dims"][0])
            if outer != kind:
                self.calls[kind or REST] += 1
                self.flops[kind or REST] += flops(event)
                operation = self.operations[kind or REST, event["name"]]
                operation[0] += event["dur"]
                operation[1] += 1
                if kind == "products":
                    (m, k), (_, n) = event["args"]["Input Dims"][:2]
                    self.shapes[f"{m}x{k}x{n}"] += flops(event)
        while stack:
            self._close(stack)

    def _close(self, stack: list) -> None:
        event, kind, within = stack.pop()
        self.time[kind or REST] += event["dur"] - within
        if stack:
            stack[-1][2] += event["dur"]


def run(options: argparse.Namespace, folder: Path) -> tuple[Path, float]:
    """The trace of rank 0, and the median seconds of the steps before it, which are not recorded."""
    model = MODELS[options.model]
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[options.precision]
    config = ROOT / ("configs/debug_model.toml" if model.config == "llama3" else f"tests/interop/configs/{model.config}.toml")
    job = run_hyperion(options.binary,
                       [str(config), *model.ours(), f"--job.dump_folder={folder}", "--checkpoint.no_enable",
                        "--activation_checkpoint.mode=none", f"--training.local_batch_size={options.batch or model.batch}",
                        f"--training.seq_len={options.seq_len}", f"--training.steps={STEPS}",
                        f"--training.mixed_precision_param={dtype}", "--profiling.enable_profiling",
                        f"--profiling.profile_freq={STEPS}", f"--profiling.profiler_active={RECORDED}", *options.options],
                       options.ranks, options.threads, {"HYPERION_DEVICE": "cpu"})
    times = job.step_seconds
    return next(folder.rglob("rank0_trace.json")), statistics.median(times[k] - times[k - 1] for k in range(3, STEPS - RECORDED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "hyperion")
    parser.add_argument("--machine", type=Path, default=ROOT / "build" / "benchmark_machine")
    parser.add_argument("--model", choices=MODELS, default="debugmodel")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of FSDP on this machine; rank 0 is profiled")
    parser.add_argument("--threads", type=int, help="of a rank (default: an equal share of the cores)")
    parser.add_argument("--batch", type=int, help="sequences of a rank (debugmodel: 2, 100M: 1)")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--operations", choices=KINDS, metavar="KIND", help="also list the operations of this kind")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="of the program")
    options = parser.parse_args()
    for program in (options.binary, options.machine):
        if not program.exists():
            parser.error(f"{program} does not exist: build first (scripts/build.sh)")
    options.threads = options.threads or max(1, (os.cpu_count() or 1) // options.ranks)
    with tempfile.TemporaryDirectory() as temporary:
        trace, plain_step = run(options, Path(temporary))
        profile = Profile(trace)
    environment = {**os.environ, "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": str(options.threads)}
    shapes = [shape for shape, _ in profile.shapes.most_common(SHAPES)]
    best = json.loads(subprocess.run([options.machine, options.precision, *shapes], env=environment, check=True, text=True,
                                     capture_output=True).stdout)
    peak = max(rate for rates in best["products"].values() for rate in rates)
    step = profile.microseconds / profile.steps / 1e3
    print(f"{processor()}, {options.ranks} x {options.threads} threads; {options.model}, {options.batch or MODELS[options.model].batch} x {options.seq_len}, "
          f"{options.precision}: a step takes {plain_step * 1e3:.0f} ms, {step:.0f} ms while it is recorded")
    print(f"products: {peak:.0f} GFLOP/s at best; a copy moves {best['copy']:.1f} GB/s\n")
    print("| | ms | of the step | calls | GFLOP or GB | rate | of the limit |\n|---|---:|---:|---:|---:|---:|---:|")
    for kind, microseconds in profile.time.most_common():
        milliseconds, seconds = microseconds / 1e3 / profile.steps, microseconds / 1e6
        amount, rate, share = "", "", ""
        if profile.flops[kind]:
            speed = profile.flops[kind] / 1e9 / seconds
            amount, rate, share = f"{profile.flops[kind] / 1e9 / profile.steps:.1f}", f"{speed:.0f} GFLOP/s", f"{speed / peak:.0%}"
        elif profile.bytes[kind] / profile.steps > 1e6:
            speed = profile.bytes[kind] / 1e9 / seconds
            amount, rate, share = f"{profile.bytes[kind] / 1e9 / profile.steps:.3f}", f"{speed:.1f} GB/s", f"{speed / best['copy']:.0%}"
        print(f"| {kind} | {milliseconds:.1f} | {milliseconds / step:.1%} | {profile.calls[kind] // profile.steps} | {amount} | {rate} | {share} |")
    if options.operations:
        print(f"\n| {options.operations} | ms | of the step | calls |\n|---|---:|---:|---:|")
        for (kind, name), (microseconds, calls) in sorted(profile.operations.items(), key=lambda item: -item[1][0]):
            if kind == options.operations:
                print(f"| {name} | {microseconds / 1e3 / profile.steps:.2f} | {microseconds / profile.microseconds:.2%} | {calls // profile.steps} |")
    print("\n| product by itself, GFLOP/s | libtorch's | the program's |\n|---|---:|---:|")
    for shape, (theirs, ours) in best["products"].items():
        print(f"| {shape} | {theirs:.0f} | {ours:.0f} |")


if __name__ == "__main__":
    main()
