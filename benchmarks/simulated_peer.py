#!/usr/bin/env python3
"""Predicted tokens a second of Hyperion and of torchtitan 0.2.2 by its own operators, on one card, without one (docs/notes/step_budget.md).

usage: simulated_peer.py configs/llama3_8b.toml [--world 8] [--mode none selective] [--column torchtitan ...] [--batch SEQUENCES]
                         [--card h100] [--network 400] [--peer-option=--section.key=value ...] [--peer-only] [--keep FOLDER] [--json]

torchtitan trains three steps as rank 0 of `--world` on a simulated GPU that computes nothing (scripts/setup.sh --interop). What the last one launches,
moves, multiplies and sends is priced as `hyperion plan` prices its own (benchmarks/step_seconds.cpp). A ratio takes the same constants for both. Dense models, with
FSDP, tensor and context parallelism, and replicas. Columns: torchtitan, torchtitan-compiled, torchtitan-fp8, and torchtitan-2024[-compiled|-fp8], which runs the
operators with which the figures of torchtitan's benchmarks were measured; torchtitan-2024-products-fp8 gathers weights in bf16, and torchtitan-2024-fused-norms
has fused norms, as its presets of April 2024. --peer-option gives torchtitan an option more, --peer-only leaves Hyperion out. Flavors of llama3 that only torchtitan
has here: llama2_13B and llama2_70B.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/simulated_gpu"))
import step_trace  # noqa: E402

FP8 = ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.enable_fsdp_float8_all_gather",
       "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"]
OURS_FP8 = ["--model.converters=quantize.linear.float8", f"{FP8[2]}=true", f"{FP8[3]}=true"]
OF_2024 = ["--optimizer.implementation", "foreach"]  # and what torchtitan_simulated.py says
COMPILED = "--compile.enable"
COLUMNS = {
    "torchtitan": [], "torchtitan-compiled": [COMPILED], "torchtitan-fp8": [COMPILED, *FP8, "--quantize.linear.float8.filter_fqns", "output"],
    "torchtitan-2024": OF_2024, "torchtitan-2024-compiled": [*OF_2024, COMPILED],
    "torchtitan-2024-fp8": [*OF_2024, COMPILED, *FP8, "--quantize.linear.float8.filter_fqns", "output"],
    "torchtitan-2024-fused-norms": OF_2024,
    "torchtitan-2024-products-fp8": [*OF_2024, COMPILED, *FP8[:2], "--quantize.linear.float8.filter_fqns", "output"],
}
OF_SHARDS = r"^(all-gather|reduce-scatter|FSDP::|gradient norm|metrics|data)"


class Job:
    """The settings of a job that both programs get."""

    def __init__(self, options, mode):
        config = tomllib.loads(pathlib.Path(options.config).read_text())
        degrees = config.get("parallelism", {})
        self.world, self.mode, self.config = options.world, mode, options.config
        self.tensor, self.replicas, self.context = (degrees.get(f"{name}_degree", 1) for name in
                                                    ("tensor_parallel", "data_parallel_replicate", "context_parallel"))
        if self.tensor > 1 and self.context > 1:
            sys.exit("simulated_peer: a trace does not tell tensor parallel groups from context parallel ones: give one of them")
        self.model, self.length = config["model"], config["training"]["seq_len"]
        self.batch = options.batch or config["training"]["local_batch_size"]
        self.ranks = {"fsdp": self.world // self.tensor // self.replicas, "tp": self.tensor, "dp_replicate": self.replicas, "cp": self.context}

    @property
    def tokens(self):
        """Of one GPU and step."""
        return self.length * self.batch / self.tensor / self.context


def collective_of(record, job):
    """(group, bytes sent, whether it overlaps what is computed) of torchtitan's calls of NCCL and of the fake backend, or None."""
    if not re.match(r"nccl|c10d::", record.operator):
        return None
    reduces_all = re.search(r"all.?reduce", record.operator)
    if job.context > 1 and re.search("coalesced|alltoall", record.operator):  # keys and values, and the sums of their gradients
        group = "cp"
    elif reduces_all and job.replicas > 1 and re.match(r"all-reduce|FSDP::", record.range):
        group = "dp_replicate"
    else:
        group = "fsdp" if job.tensor == 1 or re.search(OF_SHARDS, record.range) else "tp"
    ranks = job.ranks[group]
    share = (ranks - 1) / ranks
    if reduces_all:
        sent = 2 * share * max(record.read, record.written)
    elif "alltoall" in record.operator:
        sent = share * record.read / 2
    elif re.match(r"c10d::.*(allgather|reduce_scatter)", record.operator):  # reads what goes in and what comes out
        sent = share * record.read * ranks / (ranks + 1)
    else:
        sent = share * max(record.read, record.written)
    return group, sent, group not in ("tp", "cp")  # attention waits for keys


def rate_of(record):
    if step_trace.is_attention(record):
        kernel = next((name for name in ("cudnn", "flash", "efficient") if name in record.operator), "flash")
        wide = "_192" if kernel == "flash" and record.sizes[-1] > 128 else ""
        return f"{kernel}{wide}_{'backward' if 'backward' in record.operator else 'forward'}"
    return record.dtype if record.dtype in ("fp8", "fp8_slow", "fp32") else "bf16"


def priced(step, job, options):
    """Predicted seconds of a step on the card: [fast, middle, slow]."""
    known = {"fills": "casts and copies", step_trace.OTHER: "casts and copies"}
    kernels = [{"family": known.get(family, family), "rate": rate_of(record), "times": times, "launches": record.launches, "flops": record.flops,
                "bytes": record.read + record.written, "casts": family == "FP8 casts" and 4 * record.written > record.read}
               for family, record, times in step_trace.kernels_of(step)]
    collectives = collections.Counter()
    for record, times in step.items():
        if found := collective_of(record, job):
            collectives[found] += times
    work = {"gpus": job.world, "tensor": job.tensor, "replicas": job.replicas, "context": job.context, "network": options.network, "kernels": kernels,
            "collectives": [{"group": group, "sent": sent, "overlaps": overlaps, "times": times} for (group, sent, overlaps), times in collectives.items()]}
    done = subprocess.run([options.build / "benchmark_step_seconds", options.card], input=json.dumps(work), capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)["seconds"], work


def torchtitan(column, job, folder, options):
    """The trace of three steps."""
    trace = folder / f"{column}.{job.mode}.{job.world}"
    trace.unlink(missing_ok=True)
    preload = options.build / "libsimulated_gpu.so"
    driver = folder / "driver"  # the driver under its own name
    driver.mkdir(exist_ok=True)
    for name in ("libcuda.so", "libcuda.so.1"):
        (driver / name).unlink(missing_ok=True)
        (driver / name).symlink_to(preload)
    settings = {"model.name": job.model["name"], "model.flavor": job.model["flavor"], "training.seq_len": job.length, "training.local_batch_size": job.batch,
                "activation_checkpoint.mode": job.mode, "activation_checkpoint.selective_ac_option": "op", "training.steps": 3, "metrics.log_freq": 1,
                "parallelism.tensor_parallel_degree": job.tensor, "parallelism.data_parallel_replicate_degree": job.replicas,
                "parallelism.context_parallel_degree": job.context,
                "comm.mode": "fake_backend", "job.dump_folder": folder / "out"}
    command = [options.peer, ROOT / "benchmarks/torchtitan_gpu.py", *(word for key, value in settings.items() for word in (f"--{key}", str(value))),
               "--metrics.disable_color_printing", "--checkpoint.no_enable", *COLUMNS[column], *options.peer_option]
    environment = os.environ | step_trace.environment(options.build, trace, job.world) | {
        "HYPERION_PEER_SKIP_INIT": "1", "LOCAL_RANK": "0", "WORLD_SIZE": str(job.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29778",
        "HF_HUB_OFFLINE": "1", "TRITON_LIBCUDA_PATH": str(driver), "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_BENCHMARK_KERNEL": "1",
        "LD_LIBRARY_PATH": os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64", **({"HYPERION_PEER_OF_2024": "fused-norms" if "fused-norms" in column else "1"} if "2024" in column else {})}
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=options.seconds)
    if done.returncode:
        sys.exit(f"simulated_peer: {column} ended with {done.returncode}:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    return trace


def ours(job, options, more):
    """Tokens a second and GPU as `hyperion plan` predicts them: [slow, middle, fast]."""
    done = subprocess.run([options.build / "hyperion", "plan", job.config, f"--gpus={job.world}", f"--gpu={options.card}", f"--network={options.network}",
                           "--configured", "--json", f"--activation_checkpoint.mode={job.mode}", "--activation_checkpoint.selective_ac_option=op",
                           f"--training.local_batch_size={job.batch}", *more], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)["plans"][0]["tokens_per_second_per_gpu"]


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__.strip()))
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("config")
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--mode", nargs="+", default=["none", "selective"])
    parser.add_argument("--column", nargs="+", choices=COLUMNS, default=["torchtitan", "torchtitan-compiled"])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--card", default="h100")
    parser.add_argument("--network", type=float, default=400)
    parser.add_argument("--peer-option", action="append", default=[], help="an option more for torchtitan")
    parser.add_argument("--peer-only", action="store_true", help="do not predict Hyperion")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder that keeps the traces")
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build")
    parser.add_argument("--peer", type=pathlib.Path, default=ROOT / ".venv-interop/bin/python", help="the Python that has torchtitan")
    parser.add_argument("--seconds", type=int, default=1800, help="limit of one run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for mode in options.mode:
            job = Job(options, mode)
            of_ours = {} if options.peer_only else {float8: ours(job, options, OURS_FP8 if float8 else []) for float8 in (False, True)}
            for column in options.column:
                step = step_trace.steady_step(torchtitan(column, job, folder, options))
                seconds, work = priced(step, job, options)
                theirs = [job.tokens / one for one in reversed(seconds)]
                compared = {}
                if plan := of_ours.get(column.endswith("fp8")):
                    ratios = [a / b for a, b in zip(plan, theirs)]
                    compared = {"ours": plan, "ratio": [min(ratios), max(ratios)]}
                results[f"{column}, {mode}"] = {
                    "tokens_per_second_per_gpu": theirs, **compared,
                    "flops": sum(row["times"] * row["flops"] for row in work["kernels"]), "kernels": sum(times * record.kernels for record, times in step.items()),
                    "bytes": sum(row["times"] * row["bytes"] for row in work["kernels"])}
    if options.json:
        print(json.dumps(results, indent=1))
        return
    columns = f"{'slow, middle, fast':>22}" if options.peer_only else f"{'torchtitan':>22}{'ours':>22}{'ratio':>16}"
    print(f"predicted tokens a second and GPU, {options.world} x {options.card}\n{'':34}{columns}")
    for name, row in results.items():
        low, middle, high = row["tokens_per_second_per_gpu"]
        if options.peer_only:
            print(f"{name:34}{f'{low:,.0f}, {middle:,.0f}, {high:,.0f}':>22}")
            continue
        print(f"{name:34}{f'{low:,.0f} to {high:,.0f}':>22}{'{:,.0f} to {:,.0f}'.format(row['ours'][0], row['ours'][2]):>22}{'{:.2f} to {:.2f}'.format(*row['ratio']):>16}")


if __name__ == "__main__":
    main()
