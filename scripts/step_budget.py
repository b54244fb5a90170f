#!/usr/bin/env python3
"""Where the time of a training step goes on a given GPU, without one: launches, bytes and FLOPs of a steady step, counted on a
simulated GPU (docs/notes/step_budget.md), and the time that a card needs for them by its roofline: a prediction, from low to high, as the
constants of the card are (scripts/cards.json). The shares of a step are those of constants in the middle of their ranges.

usage: step_budget.py NAME=TRACE[,SHORTER] ... [--world W] [--tensor-parallel T] [--replicas R] [--layers L] [--tokens N] [options]
       step_budget.py --run configs/llama3_8b.toml [--world 8] [--mode none selective] [--column ours torchtitan ...] [--keep FOLDER]
                      [--set SECTION.KEY=VALUE ...]
       options: [--card h100-700w] [--network 400] [--node 8] [--rank 0] [--json] [--svg FILE]

The first form reads traces (HYPERION_SIMULATED_TRACE): the last whole step of one, or the mean step by which one is longer than
another. The second runs the programs as a rank of W on the fake backend with nothing computed; torchtitan's columns need the interop
environment (scripts/setup.sh --interop). Columns: ours, ours-fp8, ours-heads, torchtitan, torchtitan-compiled, torchtitan-fp8, and torchtitan-2024[-...],
which runs the operators with which the figures of torchtitan's benchmarks were measured.

Experts are multiplied at a rate of their own; what is sent to those of other ranks is exposed dispatch (scripts/step_experts.py). What ranks
that share sequences exchange for attention, and nothing hides, is exposed sequence exchange (scripts/step_context.py); the column ours-heads
predicts it for an exchange of heads by all-to-all, which the program does not have.

Figures are of one GPU: the ranks of a tensor parallel group share their tokens. Collectives within a node of --node GPUs go over the card's
links, between nodes over a network of --network Gb/s per GPU, in rings (scripts/step_collectives.py). With a pipeline the step is that of the
stages of --rank, with the bubble and the exposed transfers of its schedule where all ranks take as long (scripts/step_pipeline.py): play a
rank of the first and of the last stage, and take the slower one.
"""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import tomllib

import cards
from step_collectives import FAKE, Cluster, collective_of, group_sizes, is_transfer
from step_collectives import seconds_of as seconds_of_collectives
from step_context import CONTEXT, is_of_context, sequence_exchange, with_heads_exchanged
from step_experts import DISPATCH, expert_tensor_degree, is_exchange, ranks_of_experts, rows_sent, seconds_of_dispatch
from step_families import ELEMENTWISE, GROUPED, HEAD_PRODUCTS, OF_BLOCKS, OTHER, PRODUCTS, ROUTING, Record, Widths, family_of, is_attention
from step_picture import bars, between, picture
from step_pipeline import BUBBLE, EXPOSED, pipeline_of_facts, pipeline_of_log, transfer_bytes

ROOT = pathlib.Path(__file__).resolve().parent.parent


CARDS = cards.read()
COLLECTIVES, OVERHEAD = "collectives", "not modelled"
ORDER = (PRODUCTS, HEAD_PRODUCTS, GROUPED, "attention", "norms", "RoPE", "SwiGLU", ROUTING, "residual adds", "casts and copies", "FP8 casts", "loss",
         "gather, pack, reduce", COLLECTIVES, DISPATCH, CONTEXT, "optimizer", "embedding", "fills", OTHER, BUBBLE, EXPOSED, OVERHEAD)

# --- traces ---


def read_trace(path):
    """(steps, facts): the records of each part of the trace that ends with an optimizer's, and what step_budget's run wrote beside them."""
    steps, records, outside, facts, updating = [], [], [], {}, False
    for line in pathlib.Path(path).read_text(errors="replace").splitlines():
        kind, *fields = line.split("\t")
        if kind == "kernel":
            outside.append(fields[0] if fields else "?")
        elif kind == "step_budget":
            facts = json.loads(fields[0])
        elif kind in ("range", "cost"):
            values = dict(field.split("=", 1) for field in fields[1:])
            record = Record(fields[0], **{key: int(values.get(key, 0)) for key in ("kernels", "copies", "read", "written", "flops")},
                            of=values.get("of", ""), range=values.get("in", "")) if kind == "cost" else Record("range", range=fields[0])
            now = updating if FAKE.match(record.range) else bool(re.match(r"optimizer|Optimizer\.step", record.range))
            if updating and not now:
                steps.append(records)
                records = []
            updating = now
            # Kernels before the operator's own were launched by no operator.
            own = len(outside) - (0 if record.operator.startswith("nccl") else record.kernels)
            records += [Record("kernel " + name, kernels=1) for name in outside[:max(0, own)]]
            outside = [] if kind == "cost" else outside[max(0, own):]
            records.append(record)
    if updating:
        steps.append(records)
    return steps, facts


def steady_step(path, shorter=None):
    """(Counter of the records of one steady step, facts)."""
    steps, facts = read_trace(path)
    if shorter is None:
        if len(steps) < 2:
            sys.exit(f"step_budget: {path} has {len(steps)} whole steps, and the second is the first that is like the others: "
                     "train for 3 steps or more")
        return collections.Counter(steps[-1]), facts
    before, _ = read_trace(shorter)
    more = len(steps) - len(before)
    if more < 1:
        sys.exit(f"step_budget: {path} has {len(steps)} steps and {shorter} has {len(before)}: the first must be the longer")
    count = collections.Counter(record for step in steps for record in step)
    count.subtract(collections.Counter(record for step in before for record in step))
    return collections.Counter({record: times / more for record, times in count.items() if times > 0}), facts


# --- the time on a card ---


def launches_of(record):
    """A simulated GPU asks cuDNN for no plan: its attention is one kernel forward and three backward."""
    if is_attention(record) and not record.kernels:
        return 3 if "backward" in record.operator else 1
    return record.kernels + record.copies


@dataclasses.dataclass(frozen=True)
class Work:
    """What records of a step ask of a card."""

    family: str
    times: float
    launches: int
    bytes: int
    flops: int
    memory: str  # the rates of Card.rates
    compute: str

    def seconds(self, card):
        """Of one, without the gap before the next kernel."""
        return max(self.bytes / card.rates[self.memory], self.flops / card.rates[self.compute])


def work_of(record, times, family):
    if is_attention(record):
        kernel = next((name for name in ("cudnn", "flash", "efficient") if name in record.operator), "flash")
        if kernel == "flash" and record.sizes[-1] > 128:
            kernel = "flash_192"
        compute = f"{kernel}_{'backward' if 'backward' in record.operator else 'forward'}"
    else:
        compute = "grouped" if "_grouped_mm" in record.operator and record.dtype == "bf16" else record.dtype if record.dtype in ("fp8", "fp8_slow", "fp16", "fp32") else "bf16"
    casts = family == "FP8 casts" and 4 * record.written > record.read  # a search for the largest element writes next to nothing
    return Work(family, times, launches_of(record), record.read + record.written, record.flops, "cast" if casts else "memory", compute)


@dataclasses.dataclass
class Row:
    launches: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0


class Step:
    """A steady step of one GPU, to which `tokens` tokens fall."""

    def __init__(self, records, cluster, *, layers, tokens, flops_per_token=None, pipeline=None):
        self.cluster, self.layers, self.tokens, self.flops_per_token = cluster, layers, tokens, flops_per_token
        self.pipeline, self.transfer = pipeline, transfer_bytes(records)
        widths = Widths(records)
        self.works, self.collectives, self.unknown, self.kernels = [], collections.Counter(), collections.Counter(), 0.0
        self.exchanges, self.rows_sent = 0.0, collections.Counter()  # with ranks that have other experts: how many, and their bytes by group
        self.context = sequence_exchange(records)
        self.attention = [], []  # works of it, forward and backward, in the order of a rank's parts
        for record, times in records.items():
            self.kernels += times * record.kernels
            if (sent := rows_sent(record)) is not None:
                self.exchanges += times
                self.rows_sent[sent[0]] += times * sent[1]
            if is_transfer(record) or is_exchange(record) or is_of_context(record):
                continue
            if collective := collective_of(record, cluster):
                self.collectives[collective] += times
            elif record.operator != "range" and not FAKE.match(record.range):  # not what a dry run copies instead
                family = family_of(record, widths)
                self.works.append(work_of(record, times, family))
                if is_attention(record):
                    self.attention["backward" in record.operator].append(self.works[-1])
                if family == OTHER:
                    self.unknown[record.operator] += times * max(1, record.read + record.written)

    @property
    def block_runs(self):
        """How often the step runs a block forward and backward; `layers` where it has one microbatch."""
        return self.layers * self.pipeline.microbatches / self.pipeline.ranks if self.pipeline else self.layers

    def attention_of_a_block(self, card):
        """Seconds of a rank's parts of a sequence, forward and backward."""
        directions = []
        for works in self.attention:
            by_part = collections.Counter()  # which differ by how many tokens lie before them
            for work in works:
                by_part[work.flops] += work.times * (work.seconds(card) + card.launch * work.launches) / self.context.runs
            directions.append([seconds for _, seconds in sorted(by_part.items())])
        return directions

    def rows(self, card):
        """{family: Row} on a card."""
        rows = {family: Row() for family in ORDER}
        for collective, times in self.collectives.items():
            rows[COLLECTIVES].bytes += times * collective.sent
            rows[COLLECTIVES].launches += times
        for work in self.works:
            row = rows[work.family]
            row.launches += work.times * work.launches
            row.bytes += work.times * work.bytes
            row.flops += work.times * work.flops
            row.seconds += work.times * (work.seconds(card) + card.launch * work.launches)
        rows[COLLECTIVES].seconds = seconds_of_collectives(self.collectives, sum(row.seconds for row in rows.values()), card, self.cluster)
        if self.context:
            waits, hidden = self.context.seconds(*self.attention_of_a_block(card), self.cluster, card)
            rows[CONTEXT] = Row(self.context.runs, self.context.runs * self.context.bytes, 0.0, waits + card.link_share * hidden)
        rows[DISPATCH] = Row(self.exchanges, sum(self.rows_sent.values()), 0.0, seconds_of_dispatch(self.rows_sent, self.cluster, card))
        if self.pipeline:
            computing = sum(row.seconds for family, row in rows.items() if family != "optimizer")  # and waiting for its stage's collectives
            rows[BUBBLE].seconds, rows[EXPOSED].seconds = self.pipeline.seconds(
                computing, self.transfer / self.cluster.hop_bytes_per_second("pp", card))
        rows[OVERHEAD].seconds = (card.overhead - 1) * sum(row.seconds for row in rows.values())
        return rows

    def seconds(self, card):
        return sum(row.seconds for row in self.rows(card).values())


def budget(step, card):
    """Of a Step on a card: rows by family, of one block too, operators that no family takes, and tokens a second."""
    rows, layers, tokens = step.rows(card), step.layers, step.tokens
    seconds = sum(row.seconds for row in rows.values())
    elementwise = sum(rows[family].bytes for family in ELEMENTWISE)
    result = {
        "card": card.name, "layers": layers, "tokens": tokens, "kernels": step.kernels, "launches": sum(row.launches for row in rows.values()),
        "bytes": sum(row.bytes for row in rows.values()), "flops": sum(row.flops for row in rows.values()), "seconds": seconds,
        "tokens_per_second": tokens / seconds, "kib_per_token_and_layer": elementwise / tokens / layers / 1024,
        "families": {family: dataclasses.asdict(row) for family, row in rows.items() if row.launches or row.seconds},
        "blocks": {family: {key: value / (step.block_runs if key == "launches" else layers) for key, value in dataclasses.asdict(rows[family]).items()}
                   for family in ORDER if family in OF_BLOCKS and rows[family].launches},
        "other": dict(step.unknown.most_common(8)), "cluster": dataclasses.asdict(step.cluster),
    }
    if step.flops_per_token:
        result["mfu"] = tokens / seconds * step.flops_per_token / card.peak
    return result


def ranges(step, card, reference=None):
    """budget() in the middle of the card's constants; "range": (low, high) of its results, "ratio": that to the Step `reference`."""
    result, slow, fast = (budget(step, one) for one in (card.middle, card.slow, card.fast))
    result["range"] = {key: (slow[key], fast[key]) for key in ("tokens_per_second", "mfu") if key in slow}
    result["range"]["seconds"] = fast["seconds"], slow["seconds"]
    for part in ("families", "blocks"):
        result["range"][part] = {family: (fast[part].get(family, {"seconds": 0.0})["seconds"], row["seconds"]) for family, row in slow[part].items()}
    result["groups"] = [text for group in ("tp", "cp", "fsdp", *(["efsdp", "ep"] if step.cluster.experts > 1 else []), "dp_replicate", "pp") if (text := step.cluster.text_of(group, (card.slow, card.fast)))]
    result["network_share"] = card.slow.network_share, card.fast.network_share
    if reference:
        result["ratio"] = card.ratio(step, reference)
    return result


# --- what is printed ---


def three_digits(ends):
    return between([float(f"{end:.3g}") for end in ends])


def text_of(name, result, reference):
    tokens, layers, ends = result["tokens"], result["layers"], result["range"]
    cluster = result["cluster"]
    lines = [f"{name}: predicted {three_digits(ends['tokens_per_second'])} tokens a second and GPU on {result['card']}"
             + (f", MFU {between(ends['mfu'], factor=100)} %" if "mfu" in ends else "")
             + f"; {between(ends['seconds'], 1, 1e6 / tokens)} us a token, {result['kib_per_token_and_layer']:,.0f} KiB a token and layer "
               f"element by element, {result['kernels']:,.0f} kernels in the trace"
             + (f"; the host took {1e3 * result['host_seconds']:.0f} ms of its own" if "host_seconds" in result else "")
             + (f"; {result['gib']:.1f} GiB reserved" if "gib" in result else "")]
    lines += [f"{between(result['ratio'], 2)} times the tokens a second of {reference} on the same card"] if "ratio" in result else []
    lines += [f"collectives in rings: {'; '.join(result['groups']) or 'none'} (nodes of {cluster['node']} GPUs; between them "
              f"{cluster['network']:g} Gb/s per GPU, of which {between(result['network_share'], factor=100)} % are taken to be reached)",
              f"{'':24} {'launches':>9} {'GB':>8} {'TFLOP':>8} {'ms':>16} {'share':>6} | a block: {'launches':>8} {'KiB/token':>10} {'us/token':>16}"]
    for family, row in result["families"].items():
        line = (f"{family:24} {row['launches']:9,.0f} {row['bytes'] / 1e9:8.1f} {row['flops'] / 1e12:8.1f} {between(ends['families'][family], 1, 1e3):>16} "
                f"{100 * row['seconds'] / result['seconds']:5.0f}% |")
        if block := result["blocks"].get(family):
            line += (f"{'':10}{block['launches']:8,.1f} {block['bytes'] / tokens / 1024:10,.1f} "
                     f"{between(ends['blocks'][family], 3, 1e6 / tokens):>16}")
        lines.append(line.rstrip())
    block = {key: sum(row[key] for row in result["blocks"].values()) for key in ("launches", "bytes")}
    of_blocks = [sum(end) for end in zip(*ends["blocks"].values())] or (0, 0)
    lines.append(f"{'all':24} {result['launches']:9,.0f} {result['bytes'] / 1e9:8.1f} {result['flops'] / 1e12:8.1f} {between(ends['seconds'], 1, 1e3):>16}   100% |"
                 f"{'':10}{block['launches']:8,.1f} {block['bytes'] / tokens / 1024:10,.1f} {between(of_blocks, 3, 1e6 / tokens):>16}")
    if result["other"]:
        lines.append("other: " + ", ".join(f"{operator} {size / 1e9:.2f} GB" for operator, size in result["other"].items()))
    return "\n".join(lines)


# --- running the programs ---

FLAGS = ("--model.name", "--model.flavor", "--training.seq_len", "--training.local_batch_size", "--activation_checkpoint.mode",
         "--parallelism.tensor_parallel_degree", "--parallelism.data_parallel_replicate_degree")
FP8 = ("--quantize.linear.float8.enable_fsdp_float8_all_gather", "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
       "--quantize.linear.float8.filter_fqns")
PEER_FP8 = ["--model.converters", "quantize.linear.float8", *FP8[:2], FP8[2], "output"]
OF_2024 = ["--optimizer.implementation", "foreach"]  # and what benchmarks/torchtitan_simulated.py says
COLUMNS = {  # name: (Hyperion?, options, environment)
    "ours": (True, [], {}),
    "ours-fp8": (True, ["--model.converters=float8", *(f"{flag}=true" for flag in FP8[:2])], {}),
    "ours-heads": (True, ["--parallelism.context_parallel_degree=1"], {}),
    "torchtitan": (False, [], {}),
    "torchtitan-compiled": (False, ["--compile.enable"], {}),
    "torchtitan-fp8": (False, ["--compile.enable", *PEER_FP8], {}),
    "torchtitan-2024": (False, OF_2024, {"HYPERION_PEER_OF_2024": "1"}),
    "torchtitan-2024-compiled": (False, [*OF_2024, "--compile.enable"], {"HYPERION_PEER_OF_2024": "1"}),
    "torchtitan-2024-fp8": (False, [*OF_2024, "--compile.enable", *PEER_FP8], {"HYPERION_PEER_OF_2024": "1"}),
}


def run(column, config, world, mode, steps, folder, options):
    """Trains `steps` steps as rank 0 of `world` on a simulated GPU; the trace, with the facts that a budget needs beside it."""
    hyperion, extra, environment = COLUMNS[column]
    if hyperion:
        extra = extra + [f"--{key}={value}" for key, value in options.set if f"--{key}" not in FLAGS
                         and not (column == "ours-heads" and key.startswith("parallelism.context_parallel"))]
    if not hyperion and config.get("parallelism", {}).get("pipeline_parallel_degree", 1) > 1:
        sys.exit(f"step_budget: {column} has no dry run of a pipeline: give --column ours")
    model, training = config["model"], config["training"]
    batch = options.batch or training["local_batch_size"]
    tensor, replicas, context = (config.get("parallelism", {}).get(f"{key}_degree", 1) for key in
                                 ("tensor_parallel", "data_parallel_replicate", "context_parallel"))
    heads = context if column == "ours-heads" else 1  # as a job whose sequences have the tokens of a rank's part
    if column == "ours-heads" and context == 1:
        sys.exit("step_budget: ours-heads is of a job with parallelism.context_parallel_degree above 1: give it with --set")
    length = training["seq_len"] // heads
    name = f"{column}.{mode}.{world}" + (f".{options.rank}" if options.rank else "")
    trace = folder / name
    trace.unlink(missing_ok=True)
    values = (model["name"], model["flavor"], length, batch, mode, tensor, replicas)
    common = ["--comm.mode", "fake_backend", "--training.steps", str(steps), "--metrics.log_freq", "1", "--metrics.disable_color_printing",
              "--activation_checkpoint.selective_ac_option", "op", "--job.dump_folder", str(folder / "out"),
              *(str(word) for pair in zip(FLAGS, values) for word in pair)]
    preload = options.build / "libsimulated_gpu.so"
    environment = {**os.environ, **environment, "NGPU": str(world), "RANK": str(options.rank), "HYPERION_SIMULATED_COMPUTE": "off", "HYPERION_SIMULATED_GPUS": "8",
                   "HYPERION_SIMULATED_TRACE": str(trace), "LD_PRELOAD": str(preload)}
    if hyperion:
        arguments = [f"{flag}={value}" if not value.startswith("--") else flag
                     for flag, value in zip(common, [*common[1:], "--"]) if flag.startswith("--")]
        command = [str(options.build / "hyperion"), "train", options.run, *arguments, *extra, "--training.dataset=c4_test",
                   f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer"]
        environment["HYPERION_DEVICE"] = "cuda"
        environment["LD_LIBRARY_PATH"] = os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64"
    else:
        # The driver under its own name, and the libraries that stand before libtorch's own.
        (folder / "driver").mkdir(exist_ok=True)
        for name in ("libcuda.so", "libcuda.so.1"):
            (folder / "driver" / name).unlink(missing_ok=True)
            (folder / "driver" / name).symlink_to(preload)
        command = [str(options.peer), str(ROOT / "benchmarks" / "torchtitan_gpu.py"), *common, *extra, "--checkpoint.no_enable"]
        environment |= {"HYPERION_PEER_SKIP_INIT": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": "29778", "HF_HUB_OFFLINE": "1", "TRITON_LIBCUDA_PATH": str(folder / "driver"),
                        "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_BENCHMARK_KERNEL": "1",
                        "LD_LIBRARY_PATH": os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64"}
    log = folder / f"{name}.log"
    with log.open("w") as output:
        code = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=options.seconds).returncode
    text = log.read_text(errors="replace")
    found = re.findall(r"tps:\s*([\d,]+)\s+tflops:\s*([\d,.]+)", text)
    if code or not found:
        sys.exit(f"step_budget: {column} ended with {code}:\n" + "\n".join(text.splitlines()[-15:]))
    tps, tflops = (float(number.replace(",", "")) for number in found[-1])
    pipeline = pipeline_of_log(text, mode)
    tokens = training["seq_len"] * batch / tensor / context / (pipeline["ranks"] if pipeline else 1)  # of one GPU, as both programs count them
    memory = re.findall(r"memory:\s*([\d.]+)GiB", text)
    facts = {"world": world, "tensor": tensor, "replicas": replicas, "mode": mode, "tokens": tokens,
             "flops_per_token": tflops * 1e12 / tps if heads == 1 else None,  # of attention to a part of a sequence
             "host_seconds": tokens / tps, "pipeline": pipeline, "heads": heads, "gib": max(map(float, memory)) if memory and heads == 1 else None}
    with trace.open("a") as file:
        file.write(f"step_budget\t{json.dumps(facts)}\n")
    return trace


def setting(text):
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise argparse.ArgumentTypeError(f"{text} is no SECTION.KEY=VALUE")
    return key, value


def positive(text):
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__.strip()))
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("traces", nargs="*", metavar="NAME=TRACE[,SHORTER]")
    parser.add_argument("--run", metavar="CONFIG")
    parser.add_argument("--world", type=int)
    parser.add_argument("--rank", type=int, default=0, help="the rank that is played (ours alone; default 0)")
    parser.add_argument("--mode", nargs="+", default=["none", "selective"])
    parser.add_argument("--column", nargs="+", choices=COLUMNS, default=["ours", "torchtitan"])
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="KEY=VALUE", help="keys of the configuration (ours alone)")
    parser.add_argument("--batch", type=int, help="sequences of a rank, instead of the configuration's")
    parser.add_argument("--tensor-parallel", type=int, help="ranks of a tensor parallel group, of a trace that does not say it")
    parser.add_argument("--replicas", type=int, help="replicas of the weights, of a trace that does not say it")
    parser.add_argument("--node", type=int, choices=(1, 2, 4, 8), default=Cluster.node, help="GPUs of a node")
    parser.add_argument("--network", type=positive, default=Cluster.network, help="Gb/s per GPU between nodes (400: InfiniBand NDR)")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, help="of a step and GPU: what a tensor parallel group shares, divided by its ranks")
    parser.add_argument("--card", choices=CARDS, default="h100-700w")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder that keeps the traces")
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build")
    parser.add_argument("--peer", type=pathlib.Path, default=ROOT / ".venv-interop" / "bin" / "python", help="the Python that has torchtitan")
    parser.add_argument("--seconds", type=int, default=1800, help="limit of one run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--svg", type=pathlib.Path)
    options = parser.parse_args()
    if bool(options.run) == bool(options.traces):
        parser.error("either --run CONFIG or traces")
    with tempfile.TemporaryDirectory() as temporary:
        named = dict(entry.partition("=")[::2] for entry in options.traces)
        if options.run:
            folder = (options.keep or pathlib.Path(temporary)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            config = tomllib.loads(pathlib.Path(options.run).read_text())
            for key, value in options.set:
                section, _, name = key.rpartition(".")
                config.setdefault(section, {})[name] = int(value) if value.isdigit() else value
            named = {f"{column}, {mode}": str(run(column, config, options.world or 8, mode, 3, folder, options))
                     for mode in options.mode for column in options.column}
        results, reference, card = {}, None, cards.Range(CARDS, options.card)
        for name, paths in named.items():
            step, facts = steady_step(*paths.split(",", 1))
            if (heads := facts.get("heads", 1)) > 1:
                step = with_heads_exchanged(step, heads, facts["mode"] == "full")
            tokens = options.tokens or facts.get("tokens")
            sizes = group_sizes(step)
            pipeline = pipeline_of_facts(facts, sizes, options.build, paths)
            # Attention runs backward once for each block, in a pipeline once for each of a rank's blocks and microbatch, where ranks share a
            # sequence for each part of it.
            context = sequence_exchange(step)
            runs = context.runs if context else sum(times for record, times in step.items() if is_attention(record) and "backward" in record.operator)
            layers = options.layers or round(runs * (pipeline.ranks / pipeline.microbatches if pipeline else 1))
            if not tokens or not layers:
                sys.exit(f"step_budget: {paths} does not say how many tokens a step has, or has no attention: give --tokens and --layers")
            tensor = options.tensor_parallel or facts.get("tensor") or sizes.get("tp", 1)
            replicas = options.replicas or facts.get("replicas") or sizes.get("dp_replicate", 1)
            world = options.world or facts.get("world") or tensor * replicas * sizes.get("fsdp", 1)
            stages = pipeline.ranks if pipeline else 1
            if world % (tensor * replicas * stages):
                parser.error(f"{world} ranks are no tensor parallel groups of {tensor} in {replicas} replicas")
            cluster = Cluster(world, tensor, replicas, options.node, options.network, stages, ranks_of_experts(sizes),
                              expert_tensor_degree(sizes, world // (tensor * replicas * stages), tensor), sizes.get("cp", 1))
            priced = Step(step, cluster, layers=layers, tokens=tokens, flops_per_token=facts.get("flops_per_token"), pipeline=pipeline)
            results[name] = ranges(priced, card, reference)
            reference = reference or priced
            results[name] |= {key: facts[key] for key in ("host_seconds", "gib") if facts.get(key)}
    if options.svg:
        options.svg.write_text(picture(results, ORDER))
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        print("\n\n".join([*(text_of(name, result, next(iter(results))) for name, result in results.items()), bars(results, ORDER)]))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
