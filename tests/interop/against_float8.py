"""Judges Hyperion's FP8 training by torchtitan and torchao: same tokens, same initial weights; exits 1 outside the tolerance.

    .venv-interop/bin/python tests/interop/against_float8.py --binary build/hyperion [CASE ... | loop | all]

The curves of FP8 and bf16 differ by a few 1e-3 only, so being near the FP8 curve proves little. Three things are compared:
  losses      20 steps: within 2e-3 of the recorded FP8 run (tests/goldens/torchtitan), and closer to it (RMS over the steps) than to bf16
  gradients   step 1, each parameter, on one rank: at least 3 times closer to those of float8_loop.py than to its gradients
              in bf16; and closer to the right recipe than to any other
  loop        step 1 of float8_loop.py with two microbatches against torchtitan itself with two ranks: the same numbers
              (it does not concern Hyperion, but what Hyperion is judged by)
Only equal splits of a batch can be compared: each rank or microbatch has scales of its own.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from against_torchtitan import TITLE, Finding, attempt, conclude, run_ours
from cases import FLOAT8_CASES, golden
from make_goldens import run_peer

LOSS = 2e-3  # absolute
GRAD_NORM = 5e-3  # relative
CLOSER = 3.0
TITLE |= {"curve": "loss, by RMS", "recipe": "recipe, gradient"}


def plain_of(name: str) -> str:
    """The run in bf16 that stands beside an FP8 case."""
    return "llama3-bf16-loop" if FLOAT8_CASES[name].loop else "llama3-bf16-fsdp2"


def rms(a: list[float], b: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(np.subtract(a, b)))))


def ratio(a: float, b: float) -> float:
    return a / b if b else float("inf")


def judge_curves(name: str, ours: dict) -> list[Finding]:
    theirs, plain = golden(name), golden(plain_of(name))
    if len(ours["losses"]) != len(theirs["losses"]):
        raise ValueError(f"{len(ours['losses'])} steps against {len(theirs['losses'])}")
    losses, norms = (np.abs(np.subtract(ours[key], theirs[key])) for key in ("losses", "grad_norms"))
    norms /= theirs["grad_norms"]
    closeness = ratio(rms(ours["losses"], theirs["losses"]), rms(ours["losses"], plain["losses"]))
    return [
        Finding(name, "losses", f"step {losses.argmax() + 1}", float(losses.max()), LOSS),
        Finding(name, "grad_norms", f"step {norms.argmax() + 1}", float(norms.max()), GRAD_NORM),
        Finding(name, "curve", "RMS distance to FP8 / to bf16", closeness, 1.0),
    ]


def read(folder: Path) -> dict[str, np.ndarray]:
    gradients = {f.stem: np.fromfile(f, "<f4").astype(np.float64) for f in sorted(folder.glob("*.f32"))}
    if not gradients:
        raise FileNotFoundError(f"{folder} has no gradients")
    return gradients


def distances(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, float]:
    """Relative L2 distance of every parameter's gradient."""
    if set(a) != set(b):
        raise ValueError(f"names differ: {', '.join(sorted(set(a) ^ set(b))[:4])}")
    found = {name: ratio(float(np.linalg.norm(a[name] - b[name])), float(np.linalg.norm(b[name]))) for name in a}
    return {name: distance if distance == distance else float("inf") for name, distance in found.items()}


def typical(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    return float(np.median(list(distances(a, b).values())))


class References:
    """Gradients of the loop at step 1, of every case; each computed once, when first asked for."""

    def __init__(self, python: Path, folder: Path):
        self.python, self.folder, self.known = python, folder, {}

    def gradients(self, name: str) -> dict[str, np.ndarray]:
        if name not in self.known:
            print(f"running {name}, step 1 ...", file=sys.stderr, flush=True)
            run_peer(self.python, FLOAT8_CASES[name], self.folder / name, steps=1)
            self.known[name] = read(self.folder / name)
        return self.known[name]


def judge_gradients(name: str, ours: dict[str, np.ndarray], references: References) -> list[Finding]:
    to_float8 = distances(ours, references.gradients(name))
    to_plain = distances(ours, references.gradients(plain_of(name)))
    worst, where = max((ratio(to_float8[p], to_plain[p]), p) for p in ours)
    findings = [Finding(name, "gradients", f"{where}: to FP8 {to_float8[where]:.1e}, to bf16 {to_plain[where]:.1e}",
                        worst, 1 / CLOSER)]
    others = [other for other, case in FLOAT8_CASES.items() if case.loop and case.float8 and other != name]
    distance, nearest = min((typical(ours, references.gradients(other)), other) for other in others)
    findings.append(Finding(name, "recipe", f"median distance to this recipe / to the next ({nearest})",
                            ratio(typical(ours, references.gradients(name)), distance), 1 / 2))
    return findings


def judge(binary: Path, name: str, references: References) -> list[Finding]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        gradients = folder / "gradients" if FLOAT8_CASES[name].loop else None
        if gradients:
            gradients.mkdir()
        findings = judge_curves(name, run_ours(binary, name, folder / "run", gradients))
        if gradients:
            findings += judge_gradients(name, read(gradients), references)
    return findings


def judge_loop(python: Path, name: str) -> Finding:
    """The loop's gradients against those of torchtitan with two ranks, bf16 left to torch on both sides."""
    print(f"running {name} and its loop, step 1 ...", file=sys.stderr, flush=True)
    case = FLOAT8_CASES[name]
    twin = replace(case, shard=1, accumulation=case.shard, loop=True)
    with tempfile.TemporaryDirectory() as temporary:
        theirs, looped = Path(temporary) / "torchtitan", Path(temporary) / "loop"
        run_peer(python, case, theirs, steps=1)
        run_peer(python, twin, looped, steps=1, env={"PEER_BF16": "plain"})
        error, where = max((error, parameter) for parameter, error in distances(read(looped), read(theirs)).items())
    return Finding(f"{name} (loop)", "gradients", where, error, 1e-6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("build/hyperion"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the Python that has torchtitan and torchao")
    parser.add_argument("--table", type=Path, help="write the table to this file too")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("cases", nargs="*", default=["all"], metavar="CASE")
    options = parser.parse_args()
    known = [name for name, case in FLOAT8_CASES.items() if case.float8] + ["loop"]
    if options.list:
        print(*known, sep="\n")
        return 0
    names = known if options.cases == ["all"] else options.cases
    if set(names) - set(known):
        parser.error(f"no such case: {', '.join(sorted(set(names) - set(known)))} (--list names them)")
    if not options.binary.exists():
        parser.error(f"{options.binary} does not exist: build first")
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        references = References(options.python, Path(folder))
        for name in names:
            print(f"running {name} ...", file=sys.stderr, flush=True)
            if name != "loop":
                attempt(findings, name, lambda: judge(options.binary, name, references))
                continue
            for peer in ("llama3-tensorwise-fsdp2", "llama3-tensorwise-gather-fsdp2"):
                attempt(findings, peer, lambda: [judge_loop(options.python, peer)])
    return conclude(findings, options.table)


if __name__ == "__main__":
    sys.exit(main())
