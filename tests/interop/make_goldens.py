"""Records everything under tests/goldens/torchtitan again: the token shard, and torchtitan's losses and gradient norms for every case.

    .venv-interop/bin/python tests/interop/make_goldens.py [CASE ...]

Without names all cases are run (about 20 minutes on two cores without AVX-512, most of it bf16); with names only those.
PEER_FLOAT64=0 has qwen3 computed in fp32, as torchtitan runs by itself, and not in fp64 (cases.py).
The tokens are a seeded Markov chain over a Zipf vocabulary, so that the loss falls. The weights are a formula
(reference_weights.py), so only tokens and numbers are committed. At the end the peer is compared with itself across
meshes: that is the noise below which no comparison can judge.
"""

import json
import os
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import xxhash
from cases import ALL_CASES, CASES, GOLDENS, SHARD, TOKENS_SEED, Case, golden, golden_path, largest_errors
from ranks import run_torchtitan
from reference_weights import philox4x32

VOCABULARY = 2048


def make_tokens(count: int, seed: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Token i+1 is, six times of ten, one of two successors of token i, else a Zipf draw (p ~ 1 / (rank + 2))."""
    words = [w / 2.0**32 for w in philox4x32(seed, np.arange(count))]
    zipf = np.cumsum(1.0 / (np.arange(vocabulary) + 2.0))
    draws = np.searchsorted(zipf / zipf[-1], words[1]).clip(max=vocabulary - 1)
    tokens = np.empty(count, np.int64)
    token = 0
    for i in range(count):
        token = (token * 31 + 17 + int(words[2][i] * 2)) % vocabulary if words[0][i] < 0.6 else int(draws[i])
        tokens[i] = token
    return tokens


def write_shard(folder: Path, tokens: np.ndarray, vocabulary: int = VOCABULARY) -> None:
    """Writes one document in the format of data/token_shards.h; a single document is never shuffled."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens.astype("<u2").tofile(folder / "tokens.bin")
    np.array([len(tokens)], "<u8").tofile(folder / "documents.bin")
    header = {"format": "hyperion-token-shard", "version": 1, "dtype": "uint16", "tokens": len(tokens), "documents": 1,
              "vocab_size": vocabulary, "tokenizer": ""}
    for key in ("tokens", "documents"):
        header[f"{key}_xxh3"] = xxhash.xxh3_64_hexdigest((folder / f"{key}.bin").read_bytes())
    (folder / "index.json").write_text(json.dumps(header, indent=2) + "\n")


def run_peer(python: Path, case: Case, gradients: Path | None = None, steps: int | None = None, env: dict | None = None) -> dict:
    """Runs a case with its peer; {"losses", "grad_norms"} and, with experts, {"biases": {name: after the last step}}, of a pipeline those of
    rank 0's stage. `gradients`: folder for the gradients of step 1."""
    with tempfile.TemporaryDirectory() as folder:
        biases = Path(folder) / "biases.json"
        env = {"PEER_BALANCE": biases, "PEER_TOKENS": SHARD / "tokens.bin", "PEER_WEIGHTS_SEED": case.weights_seed,
               "PEER_METRICS": Path(folder) / "metrics.json",
               "PEER_FLOAT64": os.environ.get("PEER_FLOAT64", int(case.peer_float64)), **(env or {})}
        if gradients:
            env["PEER_GRADIENTS"] = gradients
        arguments = ["--job.config_file", str(case.config), *case.arguments()]
        if case.smaller:
            flavor = tomllib.loads(case.config.read_text())["model"]["flavor"]
            env["PEER_FLAVOR"] = json.dumps({"name": "smaller", "base": flavor, "args": case.smaller[0]})
            arguments.append("--model.flavor=smaller")
        if steps:
            arguments += [f"--training.steps={steps}", f"--lr_scheduler.total_steps={case.steps}"]
        run_torchtitan(python, arguments, case.world, env=env, program=case.program)
        numbers = json.loads((Path(folder) / "metrics.json").read_text())
        return numbers | ({"biases": json.loads(biases.read_text())} if case.smaller else {})


def record(name: str) -> None:
    case = ALL_CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        gradients = Path(folder) if case.world == 1 and not case.loop else None
        numbers = run_peer(Path(sys.executable), case, gradients)
        if gradients:
            files = sorted(gradients.glob("*.f32"))
            norms = {f.stem: float(np.linalg.norm(np.fromfile(f, "<f4").astype(np.float64))) for f in files}
            numbers["gradient_norms"] = norms
    made_by = {package: version(package) for package in ("torchtitan", "torch", *(["torchao"] if case.float8 else []))}
    head = {"case": name, "made_by": made_by, "weights_seed": case.weights_seed, "tokens": "tokens/tokens.bin",
            "config": f"configs/{case.config.name}", "world_size": case.world, "options": case.arguments()}
    golden_path(name).write_text(json.dumps(head | numbers, indent=1) + "\n")
    print(f"{name:28} loss {numbers['losses'][0]:.5f} -> {numbers['losses'][-1]:.5f}", flush=True)


def compare_peer_with_itself() -> None:
    print(f"\n{'torchtitan against itself':44} {'loss':>10} {'grad norm':>10}  (largest relative difference)")
    for name, case in CASES.items():
        base = f"{case.model}-fp32-1" if case.precision == "fp32" else f"{case.model}-bf16-fsdp2"
        twins = name != base and not case.judge and (case.precision == "bf16" or not case.small)
        if twins and golden_path(name).exists() and golden_path(base).exists():
            errors = largest_errors(golden(name), golden(base))
            print(f"{name + ' / ' + base:44} {errors['losses'][0]:10.1e} {errors['grad_norms'][0]:10.1e}")


def main(names: list[str]) -> None:
    unknown = set(names) - set(ALL_CASES)
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are: {', '.join(ALL_CASES)}")
    GOLDENS.mkdir(exist_ok=True)
    longest = max(case.steps * case.global_batch * case.seq_len for case in ALL_CASES.values())
    write_shard(SHARD, make_tokens(longest + 1, TOKENS_SEED))
    for name in names or ALL_CASES:
        if not ALL_CASES[name].judge:
            record(name)
    compare_peer_with_itself()


if __name__ == "__main__":
    main(sys.argv[1:])
