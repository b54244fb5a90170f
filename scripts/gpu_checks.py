"""What scripts/gpu_check.py runs, in four parts, with a limit for each check; and how its output is read.

Part 0, the first hour on a card: NCCL and the newest kernels, losses of three models, products of experts, and steps of five models as rank
0 of a job (collectives are copies on this GPU). Part 1: the other kernels and numbers, and llama3 8B in other forms. Part 2: speed, what
the card can do and torchtitan 0.2.2 on the same task. Part 3: the rest, memory errors last.
"""
import dataclasses
import functools
import importlib.util
import json
import pathlib
import re
import shutil
import statistics
import sys
from typing import Callable

import gpu_trace

START_SECONDS = 45  # of a part, before its first check
PART_SECONDS = 540  # the limits of a part's checks and its start add up to no more
FIRST_WITH_FP8 = 8.9  # compute capability
LARGE = "configs/llama3_8b.toml"
DEBUG = "configs/debug_model.toml"
ASSETS = ["--model.hf_assets_path=tests/assets/tokenizer", "--training.dataset=c4_test"]
FP8 = ["--model.converters=quantize.linear.float8", "--quantize.linear.float8.recipe_name=tensorwise",
       "--quantize.linear.float8.enable_fsdp_float8_all_gather"]
# FLOPs of a token of llama3 8B with 8192 tokens: torchtitan's formula behind mfu counts every pair of tokens, a causal model needs half.
MATMUL_FLOPS, ATTENTION_FLOPS = 6 * (8_030_261_248 - 128_256 * 4096), 6 * 32 * 32 * 2 * 128 * 8192
CAUSAL_SHARE = (MATMUL_FLOPS + ATTENTION_FLOPS / 2) / (MATMUL_FLOPS + ATTENTION_FLOPS)


@dataclasses.dataclass
class Check:
    """`commands`: run one after the other until one fails, together within `limit` seconds; "{folder}" in a word stands for a new
    folder. `read`: output and folder -> (a note, figures); raises ValueError when they are wrong. `skipped`: why the check cannot
    run here. `skip`: expressions; a command that prints a line with one of them was skipped."""

    kind: str
    name: str
    limit: float
    commands: list
    environment: dict = dataclasses.field(default_factory=dict)
    read: Callable = lambda output, folder: ("", {})
    skipped: str = ""
    skip: tuple = ()
    allotment: str = ""  # checks of one allotment share ALLOTMENTS[allotment] seconds


ALLOTMENTS = {"first tests": 120, "kernel tests": 140, "other tests": 125}
# Tests of part 0 by what is in their names: the only contact with NCCL that one GPU allows comes first.
FIRST_TESTS = ("every collective of NCCL", "exchanges with itself", "products of groups", "fused kernels of experts", "attention to keys of another length",
               "attention on a GPU", "products of experts in FP8", "the FP8 cast on a GPU", "gradients of blocks with experts")
KERNEL_TESTS = ("fused kernel", "kernel of a norm", "every kernel", "products of bf16", "gradients that a GPU packs", "FP8 scales", "FP8 products",
                "cast of a training")  # of part 1
RANK_OF_FOUR = ("a rank of four",)
SANITIZED = "every kernel takes odd shapes and one row and long rows and unaligned addresses in one process"  # of gpu_tests


@dataclasses.dataclass
class Place:
    root: pathlib.Path
    binary: pathlib.Path
    programs: pathlib.Path  # the folder of tests and benchmarks
    tests: list  # of label gpu
    capabilities: list  # of each GPU
    small: bool  # a rehearsal: a small model in the place of 8B, small tensors
    peer: str  # what is missing for torchtitan; "": nothing
    peer_float8: str = ""  # the same for its FP8
    simulated: bool = False  # the GPU


# --- reading outputs ---------------------------------------------------------------------------------------------------

STEP = re.compile(r"step:\s*(\d+)\s+loss:\s*(\S+)\s+grad_norm:\s*(\S+)\s+memory:\s*([\d.]+)GiB\([^)]*\)\s+tps:\s*([\d,]+)\s+"
                  r"tflops:\s*([\d.,]+)\s+mfu:\s*([\d.]+)%")


def steps_of(output):
    """[{step, loss, ...}] of the step lines of Hyperion or torchtitan."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    names = ("step", "loss", "grad_norm", "reserved_gib", "tps", "tflops", "mfu")
    return [dict(zip(names, (float(value.replace(",", "")) for value in found))) for found in STEP.findall(plain)]


def falling_loss(output, _):
    steps = steps_of(output)
    if len(steps) < 2:
        raise ValueError("fewer than two step lines")
    first, last = steps[0], steps[-1]
    if not last["loss"] < first["loss"]:
        raise ValueError(f"the loss did not fall: {first['loss']} at first, {last['loss']} at last")
    return (f"loss {first['loss']} -> {last['loss']}; memory: {last['reserved_gib']}GiB  tps: {last['tps']:,.0f}", {"steps": steps})


def speed(output, _, causal_share=CAUSAL_SHARE):
    """Medians of the steps from the fourth on. No `causal_share`: of another model or length than llama3 8B's 8192."""
    steps = steps_of(output)
    warm = [step for step in steps if step["step"] >= 4]
    if not warm:
        raise ValueError("no step line of step 4 or later")
    figures = {name: statistics.median(step[name] for step in warm) for name in ("tps", "tflops", "mfu")}
    if causal_share:
        figures["mfu_causal"] = figures["mfu"] * causal_share
    figures["reserved_gib"] = max(step["reserved_gib"] for step in steps)
    causal = f" (causal {figures['mfu_causal']:.1f} %)" if causal_share else ""
    return (f"{figures['tps']:,.0f} tokens/s, {figures['tflops']:.0f} TFLOP/s, MFU {figures['mfu']:.1f} %{causal}, "
            f"{figures['reserved_gib']:.1f} GiB reserved", figures)


def same_losses(output, _):
    """Of two trainings, one after the other: the first on the GPU, the second on the CPU."""
    losses = [step["loss"] for step in steps_of(output)]
    half = len(losses) // 2
    if half < 2 or len(losses) != 2 * half:
        raise ValueError(f"{len(losses)} step lines of two trainings")
    apart = max(abs(here - there) for here, there in zip(losses[:half], losses[half:]))
    if not apart < 0.02:
        raise ValueError(f"the losses are up to {apart:.4f} apart")
    return f"losses at most {apart:.5f} apart over {half} steps", {"gpu": losses[:half], "cpu": losses[half:]}


def as_one_rank(output, _):
    """Of trainings of one model: one rank, a pipeline, other meshes; then the digests of the first two."""
    digests, steps = re.findall(r"^([0-9a-f]{16})  total ", output, re.MULTILINE), steps_of(output)
    runs = [[step["loss"] for step in steps[first:first + STAGED_STEPS]] for first in range(0, len(steps), STAGED_STEPS)]
    if len(digests) != 2 or len(steps) != STAGED_STEPS * (2 + len(STAGED_MESHES)):
        raise ValueError(f"{len(steps)} step lines and {len(digests)} digests of {2 + len(STAGED_MESHES)} trainings")
    if digests[0] != digests[1]:
        raise ValueError("the pipeline's digest is not one rank's")
    apart = max(abs(here - there) for run in runs[2:] for here, there in zip(run, runs[0]))
    if not apart < 0.005:
        raise ValueError(f"the losses of other meshes are up to {apart:.4f} apart from one rank's")
    return f"the pipeline has one rank's digest; losses of other meshes at most {apart:.5f} apart from one rank's", {"losses": runs, "digest": digests[0]}


def json_lines(output, _):
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not rows:
        raise ValueError("no figures were printed")
    wrong = [row for row in rows if row.get("wrong")]
    if wrong:
        raise ValueError("; ".join(f"{row['name']}: {row['wrong']}" for row in wrong))
    return f"{len(rows)} figures", {"rows": rows}


def candidates(output, folder):
    """What changes that are not made would save."""
    _, figures = json_lines(output, folder)
    return "; ".join(f"{row['name']}: {row['saved_ms_per_step']:.2f} ms per step" if "saved_ms_per_step" in row else f"{row['name']}: refused"
                     for row in figures["rows"]), figures


def traced(_, folder):
    traces = sorted(folder.glob("profile_traces/iteration_*/rank0_trace.json"))
    if not traces:
        raise ValueError("no trace was written")
    table = gpu_trace.reduce(json.loads(traces[-1].read_text()))
    if not table["launches_per_step"]:
        return "the trace holds no kernels: the profiler has no access to this GPU", table
    copies = table["copies_in_blocks"]
    return (f"{table['launches_per_step']:,.0f} launches per step, GPU busy {100 * table['busy']:.1f} %, {sum(copies.values()):g} copies inside "
            f"blocks (0 expected){''.join(f', {name[:60]}' for name in copies)}; collectives overlap nothing for {table['exposed_ms_per_step']:.2f} ms per step",
            table)


def traced_speed(output, folder, causal_share=CAUSAL_SHARE):
    """Medians leave the few steps out that the profiler slows down."""
    (speed_note, figures), (trace_note, table) = speed(output, folder, causal_share), traced(output, folder)
    return f"{speed_note}; {trace_note}", {**figures, "trace": table}


# --- the checks --------------------------------------------------------------------------------------------------------


SMALL_BATCH = ["--training.local_batch_size=1", "--training.seq_len=64"]


def benchmark(place, part, limit, name=""):
    small = ["--small"] if place.small else []
    return Check("benchmark", name or part, limit, [[str(place.programs / "benchmark_gpu"), *small, part]], read=json_lines)


def rank_0(place, name, limit, mode, options=(), ranks=8, steps=8, read=speed, skipped="", model=LARGE, small=(DEBUG,)):
    """`small`: what a rehearsal trains in the place of `model`: a configuration and options. No mode: the configuration's."""
    given = [small[0], *options, *SMALL_BATCH, *small[1:]] if place.small else [model, *options]
    mode = [f"--activation_checkpoint.mode={mode}"] if mode else []
    command = [str(place.binary), "train", given[0], "--comm.mode=fake_backend", *ASSETS, f"--training.steps={steps}", "--metrics.log_freq=1",
               "--metrics.disable_color_printing", *mode, "--job.dump_folder={folder}", *given[1:]]
    return Check("rank 0", name, limit, [command], {"NGPU": str(ranks), "HYPERION_DEVICE": "cuda"}, read, skipped)


def torchtitan(place, name, limit, mode, compiled=False, float8=False):
    model = "debugmodel" if place.small else "8B"
    command = [sys.executable, str(place.root / "benchmarks" / "torchtitan_gpu.py"), "--comm.mode", "fake_backend", "--model.name", "llama3",
               "--model.flavor", model, "--training.local_batch_size", "1", "--training.seq_len", "64" if place.small else "8192",
               "--training.steps", "8", "--metrics.log_freq", "1", "--metrics.disable_color_printing", "--activation_checkpoint.mode", mode,
               "--activation_checkpoint.selective_ac_option", "op", "--job.dump_folder", "{folder}"]
    command += ["--compile.enable"] if compiled else []
    command += ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.enable_fsdp_float8_all_gather"] if float8 else []
    skipped = place.peer or (no_fp8(place) or place.peer_float8 if float8 else "")
    if compiled and place.simulated:
        skipped = "on a simulated GPU benchmarks/simulated_peer.py compiles it"
    elif compiled and not skipped:
        missing = [tool for tool in ("gcc",) if not shutil.which(tool)] + [name for name in ("triton",) if not importlib.util.find_spec(name)]
        skipped = f"no {' and no '.join(missing)}, which torch.compile needs" if missing else ""
    environment = {"NGPU": "8", "WORLD_SIZE": "8", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777",
                   "HF_HUB_OFFLINE": "1"}
    if place.simulated:  # which has no kernels that are compiled while running: torchtitan's initial weights need one
        environment["HYPERION_PEER_SKIP_INIT"] = "1"
    return Check("torchtitan", name, limit, [command], environment, speed, skipped)


def training(place, name, limit, options, ranks=1, skipped="", read=falling_loss, devices=("cuda",), model=DEBUG):
    commands = []
    for device in devices:
        launch = ["env", f"HYPERION_DEVICE={device}", f"NPROC={ranks}", sys.executable, str(place.root / "scripts" / "launch.py")]
        commands.append([*launch, str(place.binary), "train", model, "--metrics.log_freq=1", "--metrics.disable_color_printing",
                         f"--job.dump_folder={{folder}}/{device}", *options, *(SMALL_BATCH if place.small else [])])
    return Check("training", name, limit, commands, read=read, skipped=skipped)


def losses_as_on_the_cpu(place, model, options=()):
    name = pathlib.Path(model).stem.removesuffix("_debug").replace("debug_model", "llama3")
    simulated = ["--comm.speed_check_seconds=0"] if place.small else []  # products of that size take a CPU without bf16 minutes
    return training(place, f"losses as on the CPU, {name}", 20, ["--training.steps=6", "--training.local_batch_size=1", "--training.seq_len=512",
                                                                 "--debug.seed=1", *simulated, *options], read=same_losses, devices=("cuda", "cpu"), model=model)


STAGED_STEPS = 3
STAGED_MESHES = {"experts": ["--parallelism.expert_parallel_degree=2"], "context": ["--parallelism.context_parallel_degree=2"]}


def staged(place, limit):
    """Two ranks on one GPU (HYPERION_COMM=staged): kernels, streams and what is exchanged are those of several GPUs, NCCL is not."""
    common = [str(place.binary), "train", "configs/deepseek_v3_debug.toml", *FEW_EXPERTS, f"--training.steps={STAGED_STEPS}", "--training.global_batch_size=4",
              f"--training.seq_len={64 if place.small else 512}", "--metrics.log_freq=1", "--metrics.disable_color_printing", "--debug.seed=1",
              "--debug.deterministic", "--checkpoint.enable", "--checkpoint.interval=1000", "--comm.speed_check_seconds=0"]
    pipeline = ["--training.local_batch_size=4", "--parallelism.pipeline_parallel_degree=2", "--parallelism.fsdp_reshard_after_forward=always"]
    runs = {"one": ["--training.local_batch_size=1"], "pipeline": pipeline,
            **{name: ["--training.local_batch_size=1", *options] for name, options in STAGED_MESHES.items()}}
    commands = [["env", "HYPERION_DEVICE=cuda", *(["NPROC=1"] if name == "one" else ["NPROC=2", "HYPERION_COMM=staged"]), sys.executable,
                 str(place.root / "scripts" / "launch.py"), *common, f"--job.dump_folder={{folder}}/{name}", *options] for name, options in runs.items()]
    commands += [[str(place.binary), "ckpt", "digest", f"{{folder}}/{name}/checkpoint/step-{STAGED_STEPS}"] for name in ("one", "pipeline")]
    return Check("training", "ranks on one GPU give one rank's numbers", limit, commands, read=as_one_rank)


def no_fp8(place):
    return "" if all(capability >= FIRST_WITH_FP8 for capability in place.capabilities) else "this GPU has no FP8"


def gpu_tests(place, names, allotment, but=()):
    """The tests with one of these in their names and none of `but`, in the order of the names."""
    def order(test):
        left_out = any(name in test["name"] for name in but)
        return next((number for number, name in enumerate(names) if name in test["name"] and not left_out), len(names))

    return [Check("test", test["name"], 60, [test["command"]], dict(entry.split("=", 1) for entry in test["environment"]),
                  skip=tuple(test["skip"]), allotment=allotment)
            for test in sorted(place.tests, key=order) if order(test) < len(names)]


def sanitized(place, tool):
    sanitizer = shutil.which("compute-sanitizer")
    return Check("memory", f"{tool} of our kernels", 60,
                 [[str(sanitizer), "--tool", tool, "--error-exitcode", "1", str(place.programs / "gpu_tests"), SANITIZED]],
                 skip=("^skipped: ",), skipped="" if sanitizer else "no compute-sanitizer on the PATH")


def training_options(place):
    return [f"--training.steps={6 if place.small else 20}"]


PROFILED = ["--profiling.enable_profiling", "--profiling.profile_freq=12", "--profiling.profiler_warmup=1", "--profiling.profiler_active=2"]
# A ring of 8 ranks with 32k tokens of a sequence on each, in 4 blocks: a step of all 32 takes some 20 seconds.
LONG_OF_8B = ["--training.seq_len=262144", "--model.args.max_seq_len=262144", "--model.args.n_layers=4"]
# Rank 0 of the 405B pipeline with 4 stages of 2 layers, the embedding among them: half of what it has, and half of its microbatches.
HALF_OF_405B = ["--model.args.n_layers=62", "--parallelism.pipeline_parallel_layers_per_stage=2", "--training.local_batch_size=8"]
FEW_EXPERTS = ["--model.args.n_layers=2", "--model.args.num_experts=16"]  # of a debug model


def part_0(place):
    other_speed, other_trace = (functools.partial(read, causal_share=None) for read in (speed, traced_speed))
    experts = ["configs/qwen3_moe_debug.toml", *FEW_EXPERTS, "--parallelism.expert_parallel_degree=8"]
    latent = ["configs/deepseek_v3_debug.toml", *FEW_EXPERTS, "--parallelism.expert_parallel_degree=8"]
    ring = [DEBUG, "--parallelism.context_parallel_degree=8", "--parallelism.context_parallel_rotate_method=alltoall"]
    pipeline = [DEBUG, "--model.args.n_layers=6", "--parallelism.pipeline_parallel_degree=4", "--parallelism.pipeline_parallel_schedule=Interleaved1F1B",
                "--parallelism.pipeline_parallel_layers_per_stage=1", "--parallelism.tensor_parallel_degree=2", "--training.local_batch_size=4",
                "--parallelism.pipeline_parallel_microbatch_size=1"]
    return [
        *gpu_tests(place, FIRST_TESTS, "first tests"),
        losses_as_on_the_cpu(place, DEBUG),
        losses_as_on_the_cpu(place, "configs/qwen3_moe_debug.toml", FEW_EXPERTS),
        losses_as_on_the_cpu(place, "configs/deepseek_v3_debug.toml", FEW_EXPERTS),
        benchmark(place, "experts", 45, "experts, timed"),
        rank_0(place, "30B-A3B, traced", 50, "", PROFILED, steps=12, read=other_trace, model="configs/qwen3_30b_a3b.toml", small=experts),
        rank_0(place, "16B, traced", 50, "", ["--training.local_batch_size=2", *PROFILED], steps=12, read=other_trace,
               model="configs/deepseek_v3_16b.toml", small=latent),
        rank_0(place, "none, traced", 50, "none", PROFILED, steps=12, read=traced_speed),
        rank_0(place, "8B, ring of 8, 32k local tokens, 4 blocks", 40, "full", LONG_OF_8B, steps=5, read=other_speed,
               model="configs/llama3_8b_128k.toml", small=ring),
        rank_0(place, "405B, of 512, 8 layers", 45, "", HALF_OF_405B, ranks=512, steps=5, read=other_speed,
               model="configs/llama3_405b_512gpus.toml", small=pipeline),
        staged(place, 35),
    ]


def part_1(place):
    return [
        *gpu_tests(place, KERNEL_TESTS, "kernel tests", but=FIRST_TESTS),
        *gpu_tests(place, RANK_OF_FOUR, "kernel tests"),
        rank_0(place, "none, reshard never", 45, "none", ["--parallelism.fsdp_reshard_after_forward=never"]),
        rank_0(place, "FP8, none", 45, "none", FP8, skipped=no_fp8(place)),
        benchmark(place, "attention", 30),
        rank_0(place, "none, of 1024", 45, "none", ranks=1024),
        Check("benchmark", "candidates", 30, [[str(place.programs / "benchmark_candidates"), *(["--small"] if place.small else [])]], read=candidates),
    ]


def part_2(place):
    return [
        benchmark(place, "ceilings", 60),
        rank_0(place, "none", 45, "none"),
        torchtitan(place, "compiled, none", 110, "none", compiled=True),
        rank_0(place, "selective", 45, "selective"),
        torchtitan(place, "selective", 80, "selective"),
        rank_0(place, "FP8, none", 45, "none", FP8, skipped=no_fp8(place)),
        torchtitan(place, "FP8, compiled, none", 110, "none", compiled=True, float8=True),
    ]


def part_3(place):
    gpus, steps = len(place.capabilities), training_options(place)
    learns = speed if place.small else falling_loss  # a few tokens per step do not lower the loss for certain
    return [
        *gpu_tests(place, ("",), "other tests", but=FIRST_TESTS + KERNEL_TESTS + RANK_OF_FOUR),
        training(place, "FP8 tensorwise", 25, [*steps, *FP8], skipped=no_fp8(place), read=learns),
        training(place, "FP8 rowwise", 25, [*steps, FP8[0], "--quantize.linear.float8.recipe_name=rowwise"],
                 skipped=no_fp8(place), read=learns),
        training(place, "all GPUs, FSDP over NCCL", 30, steps, ranks=gpus,
                 skipped="this host has one GPU" if gpus == 1 else ""),
        rank_0(place, "full", 45, "full"),
        benchmark(place, "block", 25),
        benchmark(place, "operations", 40),
        benchmark(place, "float8", 20),
        Check("benchmark", "FP8 layers", 30, [[str(place.programs / "benchmark_float8"), "5"]], read=lambda output, _: ("\n" + output, {}),
              skipped="its layers are those of 8B, too large for a rehearsal" if place.small else ""),
        sanitized(place, "memcheck"),
        sanitized(place, "racecheck"),
    ]


PARTS = {0: part_0, 1: part_1, 2: part_2, 3: part_3}


def limits(checks):
    """The sum of the limits, an allotment counted once."""
    shared = {check.allotment for check in checks if check.allotment}
    return sum(ALLOTMENTS[name] for name in shared) + sum(check.limit for check in checks if not check.allotment)
