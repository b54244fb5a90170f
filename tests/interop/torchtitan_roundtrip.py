"""Checkpoints between Hyperion and torchtitan 0.2.2, both ways and at other rank counts; exits 1 outside the tolerance.

    tests/interop/torchtitan_roundtrip.sh [--binary build/hyperion] [llama3-fsdp llama3 qwen3 llama3-tp llama3-pp llama3-cp qwen3_moe deepseek_v3 deepseek_v3-ep]

torchtitan trains on an HSDP mesh of 2 x 2 and saves; Hyperion goes on from that on 1, 2, 3 and 4 ranks. Hyperion trains on
2 ranks and saves; torchtitan goes on from that on 2 x 2 (without `dataloader`, which is Python's). In case llama3-fsdp torchtitan's
mesh is FSDP 2, and Hyperion goes on on 1 and 3 ranks. In case llama3-tp the
mesh is FSDP 2 x TP 2 on both sides, and Hyperion goes on from torchtitan's on 3 ranks too; in case llama3-pp it is a pipeline of
2 ranks, from which Hyperion goes on with as many, four stages and one rank; in case llama3-cp it is FSDP 2, and Hyperion has
context parallelism. In cases qwen3_moe and deepseek_v3, with experts, it is FSDP 2, for us also with expert parallelism, and the
experts' biases of the last step are compared too; in case deepseek_v3-ep it is FSDP 4 x E 2. Each time the ten steps after the
hand-over are compared with the run that was not interrupted. Same recorded tokens, global batch 12, fp32.
"""

import argparse
import json
import math
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch
from cases import HERE, SHARD, SMALLER, WEIGHTS_SEEDS, largest_errors
from ranks import PEER_MODULES, preloaded, run_hyperion, run_ranks, run_torchtitan
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

TOLERANCE = {"losses": 1e-5, "grad_norms": 2e-4}
BIAS_TOLERANCE = 1e-8  # a step of one expert is 1e-3: only the order of a mean may differ
HAND_OVER, STEPS, GLOBAL_BATCH, SEQ_LEN = 5, 15, 12, 32
Mesh = tuple[int, ...]
MESHES: dict[str, Mesh] = {  # replicate, shard, tensor, pipeline
    "1 rank": (1, 1, 1, 1), "FSDP 2": (1, 2, 1, 1), "FSDP 3": (1, 3, 1, 1), "HSDP 2 x 2": (2, 2, 1, 1), "FSDP 2 x TP 2": (1, 2, 2, 1),
    "FSDP 2 x E 2": (1, 2, 1, 1), "FSDP 4 x E 2": (1, 4, 1, 1), "PP 2": (1, 1, 1, 2), "PP 2, 4 stages": (1, 1, 1, 2),
    "C 2": (1, 2, 1, 1), "FSDP 2 x C 2": (1, 4, 1, 1)}
OPTIONS = {"C 2": ["--parallelism.data_parallel_shard_degree=1", "--parallelism.context_parallel_degree=2"],
           "FSDP 2 x C 2": ["--parallelism.data_parallel_shard_degree=2", "--parallelism.context_parallel_degree=2"],
           "PP 2, 4 stages": ["--parallelism.pipeline_parallel_schedule=Interleaved1F1B"],
           "FSDP 2 x E 2": ["--parallelism.expert_parallel_degree=2"], "FSDP 4 x E 2": ["--parallelism.expert_parallel_degree=2"]}


def arguments(model: str, mesh: Mesh) -> list[str]:
    """Options that both programs take."""
    replicate, shard, tensor, pipeline = mesh
    return [str(HERE / "configs" / f"{model}.toml"), f"--training.steps={STEPS}", f"--training.seq_len={SEQ_LEN}",
            f"--training.local_batch_size={GLOBAL_BATCH // (replicate * shard)}", f"--training.global_batch_size={GLOBAL_BATCH}",
            "--training.mixed_precision_param=float32", f"--parallelism.data_parallel_replicate_degree={replicate}",
            f"--parallelism.data_parallel_shard_degree={shard}", f"--parallelism.tensor_parallel_degree={tensor}",
            *([f"--parallelism.pipeline_parallel_degree={pipeline}"] if pipeline > 1 else []), "--checkpoint.enable",
            "--checkpoint.no_last_save_model_only", f"--checkpoint.interval={HAND_OVER}", "--checkpoint.keep_latest_k=0"]


def own_arguments(model: str) -> list[str]:
    """Those of a model that is smaller than its flavour."""
    return [f"--model.args.{key}={value}" for key, value in SMALLER[model][1].items()] if model in SMALLER else []


def ours(binary: Path, model: str, mesh: Mesh, folder: Path, *options: str) -> dict[str, list[float]]:
    run_hyperion(binary, [*arguments(model, mesh), f"--training.dataset_path={SHARD}", f"--job.dump_folder={folder}",
                          f"--debug.seed={WEIGHTS_SEEDS[model]}", *own_arguments(model), *options], math.prod(mesh))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "event" not in line]
    return {"losses": [float(line["loss_metrics/global_avg_loss"]) for line in lines],
            "grad_norms": [float(line["grad_norm"]) for line in lines], "biases": biases_in(folder / "checkpoint" / f"step-{STEPS}") if model in SMALLER else {}}


def biases_in(checkpoint: Path) -> dict[str, list[float]]:
    """Every expert_bias of a checkpoint of ours."""
    with tempfile.TemporaryDirectory() as folder:
        dcp_to_torch_save(checkpoint, f"{folder}/all.pt")
        state = torch.load(f"{folder}/all.pt", weights_only=False)
    return {name: value.tolist() for name, value in state.items() if name.endswith("expert_bias")}


def theirs(model: str, mesh: Mesh, folder: Path, *options: str, first_step: int = 0) -> dict[str, list[float]]:
    env = {"PEER_TOKENS": SHARD / "tokens.bin", "PEER_WEIGHTS_SEED": WEIGHTS_SEEDS[model], "PEER_FIRST_STEP": first_step,
           "PEER_METRICS": folder / "metrics.json"}
    folder.mkdir(parents=True, exist_ok=True)
    if model in SMALLER:
        flavor = tomllib.loads((HERE / "configs" / f"{model}.toml").read_text())["model"]["flavor"]
        env |= {"PEER_FLAVOR": json.dumps({"name": "smaller", "base": flavor, "args": SMALLER[model][0]}),
                "PEER_BALANCE": folder / "biases.json"}
        options += ("--model.flavor=smaller",)
    run_torchtitan(Path(sys.executable), ["--job.config_file", *arguments(model, mesh), f"--checkpoint.folder={folder}/checkpoint",
                                          *options], math.prod(mesh), env=env)
    biases = json.loads((folder / "biases.json").read_text()) if model in SMALLER else {}
    return json.loads((folder / "metrics.json").read_text()) | {"biases": biases}


@dataclass
class Finding:
    what: str
    errors: dict[str, tuple[float, int]]
    bias_error: float  # the largest; infinite where the names or numbers of experts differ

    @property
    def passed(self) -> bool:
        return all(self.errors[key][0] <= TOLERANCE[key] for key in TOLERANCE) and self.bias_error <= BIAS_TOLERANCE


def bias_error(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> float:
    if {name: len(values) for name, values in ours.items()} != {name: len(values) for name, values in theirs.items()}:
        return math.inf
    return max((abs(a - b) for name in ours for a, b in zip(ours[name], theirs[name])), default=0)


def compare(what: str, resumed: dict, whole: dict) -> Finding:
    after = {key: whole[key][HAND_OVER:] for key in TOLERANCE}
    finding = Finding(what, largest_errors(resumed, after), bias_error(resumed["biases"], whole["biases"]))
    biases = f"  biases {finding.bias_error:.1e} of {len(whole['biases'])} blocks" if whole["biases"] else ""
    print(f"{what:60} " + "  ".join(f"{key} {finding.errors[key][0]:.1e}" for key in TOLERANCE) + biases
          + ("" if finding.passed else "  FAILED"), flush=True)
    return finding


def check_with_torch(checkpoint: Path) -> None:
    """PyTorch's own loaders read every tensor and object of what we wrote, whole and cut for 1 to 4 ranks."""
    manifest = checkpoint.parent / "manifest.json"
    for options in (["--write-manifest"], ["--reshard", "1", "2", "3", "4"]):
        run_ranks([sys.executable, str(HERE / "check_dcp.py"), str(checkpoint), str(manifest), *options], 1,
                  waiting=preloaded(sys.executable, *PEER_MODULES))


@dataclass
class Case:
    """Which of our meshes go on from torchtitan's mesh, and which of ours hands over to it."""

    model: str
    theirs: str
    ours: list[str]
    back: str


CASES = {"llama3-fsdp": Case("llama3", "FSDP 2", ["1 rank", "FSDP 3"], "FSDP 2"),
         "llama3": Case("llama3", "HSDP 2 x 2", ["1 rank", "FSDP 2", "FSDP 3", "HSDP 2 x 2"], "FSDP 2"),
         "qwen3": Case("qwen3", "HSDP 2 x 2", ["1 rank", "FSDP 2", "FSDP 3", "HSDP 2 x 2"], "FSDP 2"),
         "llama3-tp": Case("llama3", "FSDP 2 x TP 2", ["FSDP 3", "FSDP 2 x TP 2"], "FSDP 2 x TP 2"),
         "llama3-pp": Case("llama3", "PP 2", ["1 rank", "PP 2, 4 stages"], "PP 2, 4 stages"),
         "llama3-cp": Case("llama3", "FSDP 2", ["C 2", "FSDP 2 x C 2"], "C 2"),
         "qwen3_moe": Case("qwen3_moe", "FSDP 2", ["1 rank", "FSDP 2"], "FSDP 2"),
         "deepseek_v3": Case("deepseek_v3", "FSDP 2", ["1 rank", "FSDP 2 x E 2"], "FSDP 2 x E 2"),
         "deepseek_v3-ep": Case("deepseek_v3", "FSDP 4 x E 2", ["1 rank", "FSDP 2 x E 2"], "FSDP 2 x E 2")}


def roundtrip(binary: Path, case: Case, folder: Path):
    model = case.model
    start = [f"--checkpoint.initial_load_path={folder}/peer/checkpoint/step-{HAND_OVER}", "--checkpoint.no_initial_load_model_only"]
    of_theirs = OPTIONS.get(case.theirs, [])
    uninterrupted = theirs(model, MESHES[case.theirs], folder / "peer", *of_theirs)
    for name in case.ours:
        resumed = ours(binary, model, MESHES[name], folder / f"ours {name}", *start, *OPTIONS.get(name, []))
        yield compare(f"{model}: torchtitan {case.theirs} -> Hyperion {name}", resumed, uninterrupted)
    uninterrupted = ours(binary, model, MESHES[case.back], folder / "ours", *OPTIONS.get(case.back, []))
    check_with_torch(folder / "ours" / "checkpoint" / f"step-{HAND_OVER}")
    start = [f"--checkpoint.initial_load_path={folder}/ours/checkpoint/step-{HAND_OVER}",
             "--checkpoint.no_initial_load_model_only", "--checkpoint.exclude_from_loading=dataloader"]
    resumed = theirs(model, MESHES[case.theirs], folder / "peer resumed", *start, *of_theirs, first_step=HAND_OVER)
    yield compare(f"{model}: Hyperion {case.back} -> torchtitan {case.theirs}", resumed, uninterrupted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=HERE.parent.parent / "build" / "hyperion")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    findings = []
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            findings += roundtrip(options.binary, CASES[name], Path(folder))
    return 0 if all(finding.passed for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
