"""Speed, memory and start-up of Hyperion and torchtitan 0.2.2 (benchmarks/vs_torchtitan.sh starts this).

Both train from the same token shard, without activation checkpointing, watched from outside in the same way: a
step's time is the distance of two step lines of rank 0, memory the largest resident set of a rank. The model is the
debugmodel of llama3 on both sides, or 100M: 97.5 million parameters with heads of 64 and 8,192 tokens, which Hyperion makes by
[model.args] and torchtitan as a flavour that is registered for the run, or qwen3_moe or deepseek_v3: the debug models with experts,
which torchtitan multiplies one by one on a CPU; qwen3_moe_2 has 2 of the 8 blocks, whose 300 million parameters take minutes to start.
Runs alternate (ours, theirs, ours, ...). A figure is the median over the repetitions of each run's median over the second
half of its steps (11-20 of 20); a ratio is the median of the ratios of neighbouring runs, with the smallest and largest.
With --compile torchtitan also runs with its compile.enable, in the same turns; ratios, those of memory and processor time
too, are then to the one of the two that makes more tokens per second. Processor time is that of whole runs: what compiling
takes is in it, until PyTorch's cache of compiled code, which the runs share, has it. Where the compiled form does not run,
that is said with the reason.
Start-up is from launch to the first step line, best of all repetitions, for a batch of 1 x 256; Hyperion then reads its
default corpus through the tokenizer, torchtitan the recorded tokens, which favours torchtitan. How busy the machine was
before each run is printed and recorded, because figures from a busy one mean little.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from machine import processor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from ranks import JobFailed, Run, run_hyperion, run_torchtitan  # noqa: E402

CONFIGS = ROOT / "tests" / "interop" / "configs"
BASE = "debugmodel"  # the flavour that `args` change, on both sides


@dataclass(frozen=True)
class Model:
    vocabulary: int
    tokenizer: str  # of Hyperion, for the default corpus
    batch: int  # sequences per rank at most
    args: dict[str, int]  # fields of both programs' model arguments that differ from BASE
    config: str = "llama3"  # the file that both programs read
    base: str = BASE

    def ours(self) -> list[str]:
        return [f"--model.hf_assets_path={ROOT / self.tokenizer}", *(f"--model.args.{key}={value}" for key, value in self.args.items())]

    def theirs(self, name: str) -> tuple[list[str], dict[str, str]]:
        """Options and environment of the peer."""
        if not self.args:
            return [], {}
        return [f"--model.flavor={name}"], {"PEER_FLAVOR": json.dumps({"name": name, "base": self.base, "args": self.args})}


MODELS = {
    "debugmodel": Model(2048, "tests/assets/tokenizer", 2, {}),
    "100M": Model(8192, "configs/tokenizers/austen_8192", 1,
                  {"dim": 768, "n_layers": 12, "n_heads": 12, "n_kv_heads": 12, "multiple_of": 256, "vocab_size": 8192}),
    "qwen3_moe": Model(2048, "tests/assets/tokenizer", 1, {}, "qwen3_moe"),
    "qwen3_moe_2": Model(2048, "tests/assets/tokenizer", 1, {"n_layers": 2}, "qwen3_moe", "debugmodel_moe"),
    "deepseek_v3": Model(2048, "tests/assets/tokenizer", 2, {}, "deepseek_v3"),
}


@dataclass(frozen=True)
class Setting:
    ranks: str  # for the table
    world: int
    threads: int  # a rank
    batch: int  # sequences per rank, or per group of tensor parallel ranks
    seq_len: int = 1024
    tensor: int = 1  # tensor parallel ranks

    def of(self, model: Model) -> "Setting":
        return replace(self, batch=min(self.batch, model.batch))

    @property
    def title(self) -> str:
        return f"{self.ranks}, {self.batch} x {self.seq_len}" + (" each" if self.world > self.tensor else "")


THROUGHPUT = {
    "one_rank": Setting("1 rank x 2 threads", 1, 2, 2),
    "fsdp2": Setting("FSDP on 2 ranks x 1 thread", 2, 1, 1),
}
TENSOR_PARALLEL = {
    "tp2": Setting("TP on 2 ranks x 1 thread", 2, 1, 2, tensor=2),
    "fsdp2_tp2": Setting("FSDP 2 x TP 2, 4 ranks x 1 thread", 4, 1, 1, tensor=2),
}
LAUNCH = Setting("launch to the first step line", 1, 2, 1, 256)
EAGER, COMPILED = "torchtitan", "torchtitan_compiled"


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder, self.runs, self.busy = options, folder, 0, []
        from make_goldens import make_tokens, write_shard  # needs numpy, which --help does without

        for name in options.model:
            vocabulary = MODELS[name].vocabulary
            write_shard(folder / name, make_tokens(64 * 1024 + 1, seed=1, vocabulary=vocabulary), vocabulary)

    def arguments(self, precision: str, setting: Setting, steps: int) -> list[str]:
        dtype = {"bf16": "bfloat16", "fp32": "float32"}[precision]
        return [f"--training.local_batch_size={setting.batch}", f"--training.seq_len={setting.seq_len}",
                f"--training.steps={steps}", f"--training.mixed_precision_param={dtype}",
                f"--parallelism.tensor_parallel_degree={setting.tensor}"]

    def config(self, model: str) -> str:
        return str(CONFIGS / f"{MODELS[model].config}.toml")

    def look_around(self) -> None:
        """Notes how much of the machine others use, over one second before a run."""
        def idle_and_all() -> tuple[int, int]:
            ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
            return ticks[3] + ticks[4], sum(ticks)
        idle, everything = idle_and_all()
        time.sleep(1)
        later_idle, later = idle_and_all()
        self.busy.append(1 - (later_idle - idle) / max(1, later - everything))

    def ours(self, model: str, precision: str, setting: Setting, steps: int, default_corpus: bool = False) -> Run:
        self.runs += 1
        self.look_around()
        data = [] if default_corpus else [f"--training.dataset_path={self.folder / model}"]
        output = f"--job.dump_folder={self.folder / str(self.runs)}"
        arguments = [self.config(model), *self.arguments(precision, setting, steps), *MODELS[model].ours(), *data, output]
        return run_hyperion(self.options.binary, arguments, setting.world, setting.threads)

    def theirs(self, model: str, precision: str, setting: Setting, steps: int, compiled: bool = False) -> Run:
        self.look_around()
        options, flavor = MODELS[model].theirs(model)
        arguments = ["--job.config_file", self.config(model), *self.arguments(precision, setting, steps), *options]
        env = {"PEER_TOKENS": self.folder / model / "tokens.bin", **flavor}
        if compiled:
            arguments.append("--compile.enable")
            # One cache for all runs; compiled in the ranks themselves, so that no other process is left beside the steps.
            env |= {"TORCHINDUCTOR_CACHE_DIR": self.folder / "compiled", "TORCHINDUCTOR_COMPILE_THREADS": 1}
        return run_torchtitan(Path(sys.executable), arguments, setting.world, setting.threads, env)


def reason_of(failure: JobFailed) -> str:
    """The last line of the rank that names an error, else its last line."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return ([line for line in lines if re.search(r"\w(Error|Exception|Failed|Exceeded|Unsupported)\b.*:", line)] or lines)[-1][:300]


def measure(run: Run, setting: Setting, steps: int) -> dict[str, float]:
    times = run.step_seconds
    step = statistics.median(times[k] - times[k - 1] for k in range(steps // 2 + 1, steps + 1))
    return {"step_seconds": step, "tokens_per_second_per_rank": setting.batch * setting.seq_len / setting.tensor / step,
            "processor_seconds": run.processor_seconds,
            "peak_rss_mib": max(run.peak_rss) / 2**20}


def measure_part(bench: Bench, model: str, precision: str, part: str) -> dict:
    """{"runs": {side: [figures of a run]}, "compiled_does_not_run": the reason, where that is so}"""
    options = bench.options
    if part == "launch":
        def seconds(run: Run) -> dict[str, float]:
            return {"first_step_seconds": run.step_seconds[1]}
        pairs = [(seconds(bench.ours(model, precision, LAUNCH, 1, default_corpus=True)), seconds(bench.theirs(model, precision, LAUNCH, 1)))
                 for _ in range(options.repetitions)]
        return {"runs": {"hyperion": [pair[0] for pair in pairs], EAGER: [pair[1] for pair in pairs]}}
    setting, steps = (THROUGHPUT | TENSOR_PARALLEL)[part].of(MODELS[model]), options.steps
    runs: dict[str, list[dict]] = {"hyperion": [], EAGER: [], **({COMPILED: []} if options.compile else {})}
    result: dict = {"runs": runs}
    for _ in range(options.repetitions):
        runs["hyperion"].append(measure(bench.ours(model, precision, setting, steps), setting, steps))
        runs[EAGER].append(measure(bench.theirs(model, precision, setting, steps), setting, steps))
        if COMPILED not in runs:
            continue
        try:
            runs[COMPILED].append(measure(bench.theirs(model, precision, setting, steps, compiled=True), setting, steps))
        except JobFailed as failure:
            result["compiled_does_not_run"] = reason_of(failure)
            del runs[COMPILED]
    return result


def summarise(runs: dict[str, list[dict]]) -> dict:
    """Medians of each side, and for each figure the median, smallest and largest of ours / theirs, run by run.

    "peer" is who "theirs" is: the one with more tokens per second.
    """
    medians = {side: {key: statistics.median(run[key] for run in mine) for key in mine[0]} for side, mine in runs.items()}
    peers = [side for side in runs if side != "hyperion"]
    peer = max(peers, key=lambda side: medians[side].get("tokens_per_second_per_rank", 0))
    result: dict = {"peer": peer}
    for key in runs["hyperion"][0]:
        ratios = [a[key] / b[key] for a, b in zip(runs["hyperion"], runs[peer])]
        result[key] = {side: medians[side][key] for side in runs}
        result[key] |= {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return result


def print_header(compile_too: bool) -> None:
    """Of the table in docs/notes/measured_cpu.md, whose rows print_row prints."""
    columns = ["", "Hyperion", "torchtitan 0.2.2", *(["compiled"] if compile_too else []), "ratio to the faster" if compile_too else "ratio"]
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)


def print_row(title: str, figure: dict, unit: str, digits: int, compile_too: bool) -> None:
    def cell(side: str) -> str:
        return f"{figure[side]:,.{digits}f} {unit}" if side in figure else "-"
    cells = [title, cell("hyperion"), cell(EAGER), *([cell(COMPILED)] if compile_too else []),
             f"{figure['ratio']:.2f} ({figure['ratio_min']:.2f} .. {figure['ratio_max']:.2f})"]
    print("| " + " | ".join(cells) + " |", flush=True)


def print_part(model: str, precision: str, part: str, figures: dict, compile_too: bool) -> None:
    name = f"{model}, {precision}, "
    if part == "launch":
        print_row(name + LAUNCH.title, figures["first_step_seconds"], "s", 2, compile_too)
        return
    setting = (THROUGHPUT | TENSOR_PARALLEL)[part].of(MODELS[model])
    unit = "tok/s" if setting.world == 1 else "tok/s per rank"
    print_row(name + setting.title, figures["tokens_per_second_per_rank"], unit, 0, compile_too)
    print_row("peak memory of a rank", figures["peak_rss_mib"], "MiB", 0, compile_too)
    print_row("processor time of all ranks", figures["processor_seconds"], "s", 1, compile_too)


def some_of(*known: str):
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, separated by commas, got {text}")
        return chosen
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "hyperion")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="steps per run; the second half is measured")
    parser.add_argument("--model", type=some_of(*MODELS), default=["debugmodel"], help=f"some of {','.join(MODELS)} (default: debugmodel)")
    parser.add_argument("--precision", type=some_of("bf16", "fp32"), default=["bf16"], help="some of bf16,fp32 (default: bf16)")
    parser.add_argument("--compile", action="store_true", help="torchtitan runs eager and compiled; ratios are to the faster")
    parser.add_argument("--json", type=Path, default=ROOT / "outputs" / "vs_torchtitan.json")
    parser.add_argument("parts", nargs="*", metavar="PART", help="one_rank, fsdp2, launch (default: these), tp2, fsdp2_tp2")
    options = parser.parse_args()
    known = [*THROUGHPUT, *TENSOR_PARALLEL, "launch"]
    parts = options.parts or [*THROUGHPUT, "launch"]
    if set(parts) - set(known) or options.repetitions < 1 or options.steps < 2:
        parser.error(f"parts are {', '.join(known)}; at least 1 repetition and 2 steps")

    avx512 = "avx512" in Path("/proc/cpuinfo").read_text()
    result: dict = {"processor": processor(), "cpus": os.cpu_count(), "avx512": avx512, "repetitions": options.repetitions,
                    "steps": options.steps, "figures": []}
    print(f"{result['processor']}, {os.cpu_count()} CPUs, {'with' if avx512 else 'without'} AVX-512; "
          f"{options.repetitions} interleaved repetitions of {options.steps} steps")
    print_header(options.compile)
    notes = []
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options, Path(temporary))
        for model, precision, part in ((m, p, part) for m in options.model for p in options.precision for part in parts):
            measured = measure_part(bench, model, precision, part)
            figures = summarise(measured["runs"])
            result["figures"].append({"model": model, "precision": precision, "part": part, **figures, **measured})
            if part == "launch":
                launch = figures["first_step_seconds"]
                for side, runs in measured["runs"].items():
                    launch[side] = min(run["first_step_seconds"] for run in runs)
            print_part(model, precision, part, figures, options.compile)
            if "compiled_does_not_run" in measured:
                notes.append(f"torchtitan compiled does not run {model}, {precision}, {part}: {measured['compiled_does_not_run']}")
    result["busy_before_runs"] = bench.busy
    print()
    for note in notes:
        print(note)
    print(f"the machine was {100 * min(bench.busy):.0f} to {100 * max(bench.busy):.0f} % busy before the runs"
          + (": too busy for figures to quote" if max(bench.busy) > 0.2 else ""))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
