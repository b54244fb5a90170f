"""Speed, memory and start-up of Hyperion and torchtitan 0.2.2 (benchmarks/vs_torchtitan.sh starts this).

Both train the llama3 debugmodel from the same token shard, without activation checkpointing, watched from outside in the
same way: a step's time is the distance of two step lines of rank 0, memory the largest resident set of a rank.
Runs alternate (ours, theirs, ours, ...). A figure is the median over the repetitions of each run's median over the second
half of its steps (11-20 of 20); a ratio is the median of the ratios of neighbouring runs, with the smallest and largest.
Start-up is from launch to the first step line, best of all repetitions, for a batch of 1 x 256; Hyperion then reads its
default corpus through the tokenizer, torchtitan the recorded tokens, which favours torchtitan. How busy the machine was
before each run is printed and recorded, because figures from a busy one mean little.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from machine import processor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from ranks import Run, run_hyperion, run_torchtitan  # noqa: E402

CONFIG = str(ROOT / "tests" / "interop" / "configs" / "llama3.toml")


@dataclass(frozen=True)
class Setting:
    title: str
    world: int
    threads: int  # a rank
    batch: int  # sequences per rank, or per group of tensor parallel ranks
    seq_len: int = 1024
    tensor: int = 1  # tensor parallel ranks


THROUGHPUT = {
    "one_rank": Setting("1 rank x 2 threads, 2 x 1024", 1, 2, 2),
    "fsdp2": Setting("FSDP on 2 ranks x 1 thread, 1 x 1024 each", 2, 1, 1),
}
TENSOR_PARALLEL = {
    "tp2": Setting("TP on 2 ranks x 1 thread, 2 x 1024", 2, 1, 2, tensor=2),
    "fsdp2_tp2": Setting("FSDP 2 x TP 2, 4 ranks x 1 thread, 1 x 1024", 4, 1, 1, tensor=2),
}
LAUNCH = Setting("launch to first step line, 1 x 256", 1, 2, 1, 256)


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder, self.runs, self.busy = options, folder, 0, []
        from make_goldens import make_tokens, write_shard  # needs numpy, which --help does without

        write_shard(folder / "tokens", make_tokens(64 * 1024 + 1, seed=1))

    def arguments(self, setting: Setting, steps: int) -> list[str]:
        dtype = {"bf16": "bfloat16", "fp32": "float32"}[self.options.precision]
        return [f"--training.local_batch_size={setting.batch}", f"--training.seq_len={setting.seq_len}",
                f"--training.steps={steps}", f"--training.mixed_precision_param={dtype}",
                f"--parallelism.tensor_parallel_degree={setting.tensor}"]

    def look_around(self) -> None:
        """Notes how much of the machine others use, over one second before a run."""
        def idle_and_all() -> tuple[int, int]:
            ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
            return ticks[3] + ticks[4], sum(ticks)
        idle, everything = idle_and_all()
        time.sleep(1)
        later_idle, later = idle_and_all()
        self.busy.append(1 - (later_idle - idle) / max(1, later - everything))

    def ours(self, setting: Setting, steps: int, default_corpus: bool = False) -> Run:
        self.runs += 1
        self.look_around()
        data = [] if default_corpus else [f"--training.dataset_path={self.folder / 'tokens'}"]
        output = f"--job.dump_folder={self.folder / str(self.runs)}"
        arguments = [CONFIG, *self.arguments(setting, steps), *data, output]
        return run_hyperion(self.options.binary, arguments, setting.world, setting.threads)

    def theirs(self, setting: Setting, steps: int) -> Run:
        self.look_around()
        arguments = ["--job.config_file", CONFIG, *self.arguments(setting, steps)]
        env = {"PEER_TOKENS": self.folder / "tokens" / "tokens.bin"}
        return run_torchtitan(Path(sys.executable), arguments, setting.world, setting.threads, env)


def measure(run: Run, setting: Setting, steps: int) -> dict[str, float]:
    times = run.step_seconds
    step = statistics.median(times[k] - times[k - 1] for k in range(steps // 2 + 1, steps + 1))
    return {"step_seconds": step, "tokens_per_second_per_rank": setting.batch * setting.seq_len / setting.tensor / step,
            "processor_seconds": run.processor_seconds,
            "peak_rss_mib": max(run.peak_rss) / 2**20}


def summarise(ours: list[dict], theirs: list[dict]) -> dict:
    """Medians of both sides, and for each figure the median, smallest and largest of ours / theirs, pair by pair."""
    result = {}
    for key in ours[0]:
        ratios = [a[key] / b[key] for a, b in zip(ours, theirs)]
        result[key] = {"hyperion": statistics.median(r[key] for r in ours),
                       "torchtitan": statistics.median(r[key] for r in theirs),
                       "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return result


def print_row(title: str, figure: dict, unit: str, digits: int) -> None:
    spread = f"{figure['ratio']:6.2f} ({figure['ratio_min']:.2f} .. {figure['ratio_max']:.2f})"
    print(f"{title:44} {figure['hyperion']:11,.{digits}f} {figure['torchtitan']:11,.{digits}f} {unit:10} {spread}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "hyperion")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="steps per run; the second half is measured")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--json", type=Path, default=ROOT / "outputs" / "vs_torchtitan.json")
    parser.add_argument("parts", nargs="*", metavar="PART", help="one_rank, fsdp2, launch (default: these), tp2, fsdp2_tp2")
    options = parser.parse_args()
    settings = THROUGHPUT | TENSOR_PARALLEL
    known = [*settings, "launch"]
    parts = options.parts or [*THROUGHPUT, "launch"]
    if set(parts) - set(known) or options.repetitions < 1 or options.steps < 2:
        parser.error(f"parts are {', '.join(known)}; at least 1 repetition and 2 steps")

    avx512 = "avx512" in Path("/proc/cpuinfo").read_text()
    result = {"processor": processor(), "cpus": os.cpu_count(), "avx512": avx512, "precision": options.precision,
              "repetitions": options.repetitions, "steps": options.steps, "figures": {}}
    print(f"{result['processor']}, {os.cpu_count()} CPUs, {'with' if avx512 else 'without'} AVX-512; llama3 debugmodel, "
          f"{options.precision}, {options.repetitions} interleaved repetitions of {options.steps} steps")
    print(f"{'':44} {'hyperion':>11} {'torchtitan':>11} {'':10} ratio  (min .. max)", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options, Path(temporary))
        for part in parts:
            setting = settings.get(part, LAUNCH)
            ours, theirs = [], []
            for _ in range(options.repetitions):
                if part == "launch":
                    ours.append({"first_step_seconds": bench.ours(setting, 1, default_corpus=True).step_seconds[1]})
                    theirs.append({"first_step_seconds": bench.theirs(setting, 1).step_seconds[1]})
                else:
                    ours.append(measure(bench.ours(setting, options.steps), setting, options.steps))
                    theirs.append(measure(bench.theirs(setting, options.steps), setting, options.steps))
            figures = result["figures"][part] = summarise(ours, theirs)
            figures["runs"] = {"hyperion": ours, "torchtitan": theirs}
            if part == "launch":
                launch = figures["first_step_seconds"]
                launch["hyperion"] = min(r["first_step_seconds"] for r in ours)
                launch["torchtitan"] = min(r["first_step_seconds"] for r in theirs)
                print_row(setting.title, launch, "s", 2)
            else:
                print_row(setting.title, figures["tokens_per_second_per_rank"], "tok/s/rank", 0)
                print_row("   peak resident memory of a rank", figures["peak_rss_mib"], "MiB", 0)
                print_row("   processor time of all ranks", figures["processor_seconds"], "s", 1)
    result["busy_before_runs"] = bench.busy
    print(f"the machine was {100 * min(bench.busy):.0f} to {100 * max(bench.busy):.0f} % busy before the runs"
          + (": too busy for figures to quote" if max(bench.busy) > 0.2 else ""))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
