"""Judges Hyperion by torchtitan 0.2.2: same tokens, same initial weights, 20 steps; exits 1 outside the tolerance.

    .venv-interop/bin/python tests/interop/against_torchtitan.py --binary build/hyperion [CASE ... | all]

Our losses, gradient norms and, after the last step, biases of experts are compared with the recorded ones (tests/goldens/torchtitan).
For our runs on one rank and those with tensor, expert or context parallelism torchtitan also runs one step, on one rank, and the gradient of every
parameter is compared element by element (--live none, and with a pipeline: only its recorded norm; --live all: torchtitan runs all steps of
every case, and the fresh numbers are compared too). Prints one line a comparison, largest error first. --list names the cases; --python is the
Python that has torchtitan (default: this one).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cases import ALL_CASES, CASES, SHARD, golden, largest_errors
from make_goldens import run_peer
from ranks import ROOT, JobFailed, run_hyperion
from torchtitan_roundtrip import BIAS_TOLERANCE, bias_error, biases_in

# Largest relative differences. The peer differs from itself (one rank against FSDP) by 5e-7 and 9e-5 in fp32 (llama3; qwen3 is
# judged in fp64, see cases.py).
TOLERANCE = {
    "fp32": {"losses": 1e-5, "grad_norms": 2e-4, "gradients": 1e-5, "biases": BIAS_TOLERANCE},  # of biases absolute
    "bf16": {"losses": 2e-3, "grad_norms": 5e-3},
}
TITLE = {"losses": "loss", "grad_norms": "gradient norm", "gradients": "gradient at step 1",
         "biases": "experts' biases"}


@dataclass
class Finding:
    case: str
    what: str
    where: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # false for NaN

    @property
    def severity(self) -> float:
        return self.error / self.tolerance if self.tolerance and self.error == self.error else float("inf")


def run_ours(binary: Path, name: str, folder: Path, gradients: Path | None) -> dict:
    """Our {"losses", "grad_norms"} of a case, with experts also {"biases"}; `gradients`: folder for the gradients of step 1."""
    case = ALL_CASES[name]
    arguments = [str(case.config), *case.arguments(), f"--training.dataset_path={SHARD}",
                 f"--debug.seed={case.weights_seed}", f"--job.dump_folder={folder}"]
    if case.first:
        arguments += [f"--training.steps={case.first}", f"--lr_scheduler.total_steps={case.steps}"]
    if case.smaller:
        arguments += [f"--model.args.{key}={value}" for key, value in case.smaller[1].items()]
        arguments += ["--checkpoint.enable", "--checkpoint.no_validate_before_training"]  # the last save has the biases
    environment = {"HYPERION_DUMP_GRADIENTS": gradients} if gradients else {}
    if case.float8:  # rounding to FP8 makes a difference in the last bit of an operation as large as that of two recipes
        arguments.append("--model.attention=flash")
        environment["HYPERION_KERNELS"] = "plain"
    run_hyperion(binary, arguments, case.world, env=environment)
    if gradients and case.world > 1:  # each rank writes what it holds
        subprocess.run([sys.executable, ROOT / "scripts" / "join_gradients.py", gradients], check=True)
    files = sorted(folder.rglob("metrics.jsonl"))
    if len(files) != 1:
        raise FileNotFoundError(f"{name}: expected one metrics.jsonl under {folder}, found {len(files)}")
    steps = [line for line in map(json.loads, files[0].read_text().splitlines()) if "event" not in line]
    return {"losses": [float(s["loss_metrics/global_avg_loss"]) for s in steps],
            "grad_norms": [float(s["grad_norm"]) for s in steps],
            **({"biases": biases_in(folder / "checkpoint" / f"step-{case.steps}")} if case.smaller else {})}


def compare_gradients(ours: Path, theirs: Path) -> tuple[float, str]:
    """Largest relative L2 difference over all parameters, and the name of that parameter."""
    expected, found = ({f.name for f in folder.glob("*.f32")} for folder in (theirs, ours))
    # A tied head is one parameter to torchtitan; a copy under the second name is allowed.
    if not expected or expected - found or found - expected - {"output.weight.f32"}:
        return float("inf"), f"names differ: {', '.join(sorted(expected ^ found)[:4]) or 'no gradients'}"
    errors = []
    for name in expected:
        a, b = (np.fromfile(folder / name, "<f4").astype(np.float64) for folder in (ours, theirs))
        error = np.linalg.norm(a - b) / np.linalg.norm(b) if a.shape == b.shape else np.inf
        errors.append((float(error) if error == error else float("inf"), name.removesuffix(".f32")))
    return max(errors)


def compare_gradient_norms(ours: Path, theirs: dict[str, float]) -> tuple[float, str]:
    """The same, as far as the recorded norms can tell: relative difference of norms."""
    errors = []
    for name, norm in theirs.items():
        file = ours / f"{name}.f32"
        if not file.exists():
            return float("inf"), f"{name} is missing"
        error = abs(np.linalg.norm(np.fromfile(file, "<f4").astype(np.float64)) - norm) / norm
        errors.append((float(error) if error == error else float("inf"), f"{name}, its norm"))
    return max(errors)


def judge(binary: Path, python: Path, name: str, live: str) -> list[Finding]:
    case, recorded = CASES[name], golden(name)
    if case.first:
        recorded |= {key: recorded[key][: case.first] for key in ("losses", "grad_norms")}
    tolerance = TOLERANCE[case.precision]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # A gradient does not depend on the mesh: torchtitan's of one rank judge ours.
        one_rank = f"{case.model}-{case.precision}-1"
        divided = max(case.tensor, case.expert, case.pipeline, case.context) > 1
        has_gradients = one_rank in CASES and (case.world == 1 or divided)
        gradients = folder / "ours" if has_gradients else None
        if gradients:
            gradients.mkdir()
        ours = run_ours(binary, name, folder / "run", gradients)
        rows = {f"{name} (recorded)": recorded}
        findings = []
        if live == "all" and not case.judge and case.world > 1:
            rows[f"{name} (live)"] = run_peer(python, case)
        if gradients and (live == "all" or live == "gradients" and case.pipeline == 1):
            theirs = folder / "theirs"
            numbers = run_peer(python, CASES[one_rank], theirs, steps=None if live == "all" else 1)
            if live == "all" and case.world == 1:
                rows[f"{name} (live)"] = numbers
            error, where = compare_gradients(gradients, theirs)
            findings.append(Finding(f"{name} (live)", "gradients", where, error, tolerance["gradients"]))
        if gradients:
            error, where = compare_gradient_norms(gradients, golden(one_rank)["gradient_norms"])
            findings.append(Finding(f"{name} (recorded)", "gradients", where, error, tolerance["gradients"]))
    for row, theirs in rows.items():
        for what, (error, step) in largest_errors(ours, theirs).items():
            findings.append(Finding(row, what, f"step {step}", error, tolerance[what]))
    if case.smaller:
        for row, numbers in rows.items():
            theirs = numbers["biases"]  # of a pipeline those of one stage
            found = {name: values for name, values in ours["biases"].items() if case.pipeline == 1 or name in theirs}
            error = bias_error(found, theirs) if any(map(any, theirs.values())) else float("inf")  # zeros judge nothing
            findings.append(Finding(row, "biases", f"step {case.steps}", error, tolerance["biases"]))
    if case.precision == "bf16":  # a run that silently stays in fp32 would pass everything above
        twin = golden(name.replace("bf16", "fp32").replace("fsdp4", "fsdp2").removesuffix("-tp2") + "-small")
        difference = largest_errors(ours, twin)["losses"][0]
        if not difference > TOLERANCE["fp32"]["losses"]:
            findings.append(Finding(name, "losses", "bf16 equals fp32: not computed in bf16", float("inf"), 0.0))
    return findings


def table_of(findings: list[Finding]) -> str:
    rows = [f"{'run':42} {'what':18} {'error':>9} {'allowed':>9}         where"]
    for f in sorted(findings, key=lambda f: f.severity, reverse=True):
        verdict = "ok" if f.passed else "FAILED"
        rows.append(f"{f.case:42} {TITLE[f.what]:18} {f.error:9.1e} {f.tolerance:9.1e}  {verdict:6} {f.where}")
    return "\n".join(rows) + "\n"


def attempt(findings: list[Finding], name: str, judged: Callable[[], list[Finding]]) -> None:
    """Adds the findings of a case; a case that does not run is one of them."""
    try:
        findings += judged()
    except (JobFailed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        findings.append(Finding(name, "losses", "did not run, see above", float("inf"), 0.0))


def conclude(findings: list[Finding], file: Path | None) -> int:
    """Prints the table, and writes it to `file`; returns the exit code."""
    table = table_of(findings)
    print(table, end="")
    if file:
        file.write_text(table)
    return 0 if all(f.passed for f in findings) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("build/hyperion"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the Python that has torchtitan")
    parser.add_argument("--live", choices=("none", "gradients", "all"), default="gradients", help="how much torchtitan runs")
    parser.add_argument("--table", type=Path, help="write the table to this file too")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("cases", nargs="*", default=["all"], metavar="CASE")
    options = parser.parse_args()
    if options.list:
        print(*CASES, sep="\n")
        return 0
    names = list(CASES) if options.cases == ["all"] else options.cases
    if set(names) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(set(names) - set(CASES)))} (--list names them)")
    if not options.binary.exists():
        parser.error(f"{options.binary} does not exist: build first")
    findings = []
    for name in names:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        attempt(findings, name, lambda: judge(options.binary, options.python, name, options.live))
    return conclude(findings, options.table)


if __name__ == "__main__":
    sys.exit(main())
