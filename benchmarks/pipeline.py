#!/usr/bin/env python3
"""What a pipeline of two ranks reaches on this machine's CPU against FSDP, torchtitan, its own simulation, and one rank.

usage: benchmarks/pipeline.py [--binary build/hyperion] [--pairs 5] [--steps 16] [fsdp] [torchtitan] [zbv] [memory]

fsdp        PP 2, 1F1B, 8 microbatches of 1 x 512 tokens, against FSDP 2 with 4 x 512 each: tokens a second, and processor time of all ranks.
            Without anything but the bubble the ratio would be 8/9
torchtitan  the same pipeline against torchtitan's (.venv-interop; scripts/setup.sh --interop): tokens a second, the same recorded tokens
zbv         ZBVZeroBubble over 1F1B, 8 blocks of which each stage has as many, against the simulation of both lists where each stage's actions
            cost what the runs' own traces say: the two ratios and theirs
memory      the largest resident set of a rank, 100 million parameters, 8 microbatches of 1 x 1024: PP 2 against one rank, as it is, and without
            what the program takes with a model of next to nothing

Runs alternate, and every second pair begins with the other side. A figure is the median of all runs, a ratio the median of the ratios of
neighbouring runs, with the smallest and the largest. A step's time is the distance of two step lines of rank 0 (the median of the second
half of the steps that are not traced). Standard library only, but for torchtitan.
"""

import collections
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tensor_parallel import compare, parsed, parser_of
from vs_torchtitan import MODELS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from ranks import run_hyperion, run_torchtitan  # noqa: E402

CONFIG = str(ROOT / "tests" / "interop" / "configs" / "llama3.toml")
PARTS = ("fsdp", "torchtitan", "zbv", "memory")
TRACED = 4  # steps after those that are measured, of which the last one is traced
MICROBATCHES, SEQ_LEN = 8, 512
PP2 = ("--parallelism.pipeline_parallel_degree=2", f"--training.local_batch_size={MICROBATCHES}")
FSDP2 = (f"--training.local_batch_size={MICROBATCHES // 2}",)


def schedule(name):
    return (*PP2, f"--parallelism.pipeline_parallel_schedule={name}")


def step_of(run, steps):
    """Seconds."""
    times = run.step_seconds
    return statistics.median(times[k] - times[k - 1] for k in range(steps // 2 + 1, steps + 1))


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.runs = options, folder, 0

    def ours(self, ranks, options, steps, keep=False):
        """The run, and the folder that it has written where that is kept."""
        self.runs += 1
        output = self.folder / str(self.runs)
        run = run_hyperion(self.options.binary, [
            CONFIG, f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer", f"--training.steps={steps}", f"--training.seq_len={SEQ_LEN}",
            f"--training.global_batch_size={MICROBATCHES}", "--training.mixed_precision_param=bfloat16", f"--job.dump_folder={output}", *options],
            ranks)
        if not keep:
            shutil.rmtree(output)  # a run begins with the disk that the one before it found
        return run, output

    def speed(self, options, tokens=MICROBATCHES * SEQ_LEN):
        """tokens: of a step, of both ranks."""
        steps = self.options.steps
        run, _ = self.ours(2, options, steps)
        return {"tokens per second": tokens / step_of(run, steps), "processor seconds": run.processor_seconds}

    def recorded(self):
        """Options of a job of ours that reads what the peer reads."""
        from make_goldens import make_tokens, write_shard
        tokens = self.folder / "tokens"
        if not tokens.exists():
            write_shard(tokens, make_tokens(64 * 1024 + 1, seed=1, vocabulary=2048), 2048)
        return (f"--training.dataset_path={tokens}",)

    def of_peer(self, precision):
        steps = max(2, self.options.steps // 2)
        run = run_torchtitan(self.options.peer, [
            "--job.config_file", CONFIG, f"--training.steps={steps}", f"--training.seq_len={SEQ_LEN}", f"--training.mixed_precision_param={precision}",
            f"--training.global_batch_size={MICROBATCHES}", *schedule("1F1B")], 2, env={"PEER_TOKENS": self.folder / "tokens" / "tokens.bin"})
        return {"tokens per second": MICROBATCHES * SEQ_LEN / step_of(run, steps)}


# --- ZBV over 1F1B, measured and simulated ---

RANGES = {"forward": "F", "backward": "B", "input gradient": "I", "weight gradients": "W", "forward and backward": "head"}


def costs_of(trace, stages):
    """{"0F": seconds of an action} from a rank's trace; stages: {unit: stage}. The head runs in its stage's backward."""
    found = collections.defaultdict(list)
    for event in json.loads(trace.read_text())["traceEvents"]:
        match = re.fullmatch(f"({'|'.join(RANGES)}) (\\S+)", event.get("name", ""))
        if match and event.get("cat") == "user_annotation" and match[2] in stages:
            found[stages[match[2]], RANGES[match[1]], match[2]].append(event["dur"] / 1e6)
    costs = collections.defaultdict(float)
    for (stage, op, _), seconds in found.items():
        mean = statistics.median(seconds)
        for name in ("B", "I") if op == "head" else (op,):
            costs[f"{stage}{name}"] += mean
    return costs


# Stages with as many blocks each: the embedding and the head count as none.
ALIKE = ("--model.args.n_layers=8", "--parallelism.pipeline_parallel_first_stage_less_layers=0",
         "--parallelism.pipeline_parallel_last_stage_less_layers=0")


def step_and_simulation(bench, name):
    """Seconds of a step of the run, and of its list where actions cost what the run's trace says."""
    steps = bench.options.steps + TRACED
    run, output = bench.ours(2, [*schedule(name), *ALIKE, "--profiling.enable_profiling", f"--profiling.profile_freq={steps}"], steps, keep=True)
    per_rank = 1 if name == "1F1B" else 2
    blocks = 8 // (2 * per_rank)
    stages = {f"layers.{i}": i // blocks for i in range(8)} | {"tok_embeddings": 0, "norm,output": 2 * per_rank - 1}
    costs = {}
    for trace in output.rglob("rank*_trace.json"):
        costs |= costs_of(trace, stages)
    shutil.rmtree(output)
    words = [f"{action}={seconds}" for action, seconds in costs.items()]
    simulated = subprocess.run([bench.options.times, name, "2", str(per_rank), str(MICROBATCHES), *words], capture_output=True, text=True, check=True)
    times = json.loads(simulated.stdout)
    return step_of(run, bench.options.steps), times["seconds"], times["bubble"]


def zbv(bench, pairs):
    measured, planned, rest = [], [], []
    for pair in range(pairs):
        names = ("1F1B", "ZBVZeroBubble")
        found = {name: step_and_simulation(bench, name) for name in (names if pair % 2 == 0 else names[::-1])}
        (step, simulated, bubble), (step_v, simulated_v, bubble_v) = (found[name] for name in names)
        measured.append(step / step_v)
        planned.append(simulated / simulated_v)
        rest.append((step - simulated, step_v - simulated_v, bubble, bubble_v))
    ratios = [a / b for a, b in zip(measured, planned)]
    print(f"ZBVZeroBubble over 1F1B: measured {statistics.median(measured):.3f}, simulated at measured costs {statistics.median(planned):.3f}; "
          f"measured / simulated {statistics.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})")
    ms, ms_v, bubble, bubble_v = (statistics.median(column) for column in zip(*rest))
    print(f"  simulated bubbles {100 * bubble:.1f} % and {100 * bubble_v:.1f} %; what a step takes besides its list (norm, optimizer, transfers): "
          f"{1e3 * ms:.0f} and {1e3 * ms_v:.0f} ms")


# --- memory ---

TINY = ("--model.args.dim=16", "--model.args.n_layers=2", "--model.args.n_heads=1", "--model.args.n_kv_heads=1")


def memory(bench, pairs_of_ranks, one):
    """Of 100 million parameters. pairs_of_ranks: {title: options of a job of two ranks}; one: options of one rank."""
    def peaks(title, ranks, options):
        runs = [bench.ours(ranks, [*options, *model], steps=1)[0] for model in (MODELS["100M"].ours(), TINY)]
        all_of_it, program = (max(run.peak_rss) / 2**20 for run in runs)
        print(f"{title}: {all_of_it:,.0f} MiB at most, {program:,.0f} MiB with a model of next to nothing", flush=True)
        return all_of_it, program
    b, b0 = peaks("one rank", 1, one)
    for title, options in pairs_of_ranks.items():
        a, a0 = peaks(title, 2, options)
        print(f"memory of a rank, {title} / one rank: {a / b:.2f}, without the program's own {(a - a0) / (b - b0):.2f}", flush=True)


def main():
    parser = parser_of(__doc__, PARTS)
    parser.add_argument("--times", type=Path, help="benchmark_pipeline_times (default: where the binary is)")
    parser.add_argument("--peer", type=Path, default=ROOT / ".venv-interop" / "bin" / "python", help="the Python that has torchtitan")
    parser.add_argument("--steps", type=int, default=16, help="of a run, half of which are measured; of torchtitan half as many (default 16)")
    options, parts = parsed(parser, PARTS)
    options.times = (options.times or options.binary.parent / "benchmark_pipeline_times").resolve()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        if "fsdp" in parts:
            compare("PP 2, 1F1B / FSDP 2, bfloat16", options.pairs, lambda: bench.speed(schedule("1F1B")), lambda: bench.speed(FSDP2))
        if "torchtitan" in parts:
            recorded = bench.recorded()
            compare("PP 2, 1F1B / torchtitan's, bfloat16", options.pairs,
                    lambda: {"tokens per second": bench.speed((*schedule("1F1B"), *recorded))["tokens per second"]}, lambda: bench.of_peer("bfloat16"))
        if "zbv" in parts:
            zbv(bench, options.pairs)
        if "memory" in parts:
            length = "--training.seq_len=1024"
            memory(bench, {"PP 2": [length, *PP2]}, [length, "--training.local_batch_size=1"])


if __name__ == "__main__":
    main()
