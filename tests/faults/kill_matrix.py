"""kill -9 at every point of a save, on each rank, synchronous and not, into a fresh folder and beside a checkpoint.

    python3 tests/faults/kill_matrix.py build/hyperion

64 cells (F-K1 ... F-K8 of the fault matrix), F-K9 and F-K10, two at a time. In each a rank of two dies at the point; then the
same command is run again and must end with the loss lines of the undisturbed run. After each cell:
  I1  every folder named step-N verifies fully        I4  the restart leaves nothing unfinished behind
  I2  the checkpoint before the fault is intact       I5  the other rank ends by itself with a documented code
  I3  the restart's curve equals the control          I6  it names a rank, and what it was doing
"""

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checkpoints import CHECKPOINT_TOML
from jobs import BINARY, ROOT, Job

POINTS = ["ckpt.plan", "ckpt.stage", "ckpt.before_data", "ckpt.mid_data", "ckpt.after_data", "ckpt.before_meta",
          "ckpt.after_meta", "ckpt.before_commit"]
OPTIONS = ["--training.steps=6", "--checkpoint.interval=2", "--checkpoint.no_validate_before_training",
           "--lr_scheduler.total_steps=6"]
LAST_STEP = 6


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.toml").write_text(CHECKPOINT_TOML.format(root=ROOT, folder=folder))
    documents = [f"Document {i} has a few words, and some of them are its own: {i * 7919}." for i in range(200)]
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))


def run(folder: Path, *options: str, env: dict | None = None) -> tuple[list[int], list[str]]:
    job = Job(folder, *OPTIONS, *options, ranks=2, env=env)
    try:
        codes = job.codes(60)
        return codes, [job.text(rank) for rank in range(2)]
    finally:
        job.end()


def curve(folder: Path) -> dict:
    lines = map(json.loads, (folder / "out" / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: (line["loss_metrics/global_avg_loss"], line["grad_norm"], line["lr"]) for line in lines}


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out" / "checkpoint").glob("*") if path.name != ".lock")


def verify(folder: Path, problems: list[str], invariant: str) -> None:
    for path in (folder / "out" / "checkpoint").glob("step-*"):
        done = subprocess.run([BINARY, "ckpt", "verify", "--full", path], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            problems.append(f"{invariant}: {path.name}: {done.stdout}{done.stderr}")


def cell(base: Path, expected: dict, started: Path, point: str, rank: int, mode: str, existing: bool) -> tuple[str, list[str]]:
    name = f"{point} rank {rank} {mode} {'existing' if existing else 'fresh'}"
    folder = base / name.replace(" ", "-")
    if existing:
        shutil.copytree(started, folder)
    prepare(folder)
    problems: list[str] = []
    options = [f"--checkpoint.async_mode={mode}"]
    codes, texts = run(folder, *options, "--allow-faults", env={"FAULT": f"rank={rank};point={point};action=kill"})
    other = 1 - rank
    # A point that only a copy to the pool passes is not there in a synchronous save.
    if point == "ckpt.stage" and mode == "disabled":
        if codes != [0, 0]:
            problems.append(f"I5: codes {codes}: {texts[0][-600:]}")
        return name, problems
    if codes[rank] != -9:
        problems.append(f"rank {rank} was not killed: {codes}")
    if codes[other] not in (71, 74):
        problems.append(f"I5: rank {other} ended with {codes[other]}: {texts[other][-600:]}")
    if "rank" not in texts[other].splitlines()[-1] if texts[other] else True:
        problems.append(f"I6: rank {other} says: {texts[other][-300:]}")
    verify(folder, problems, "I1")
    if existing and "step-2" not in checkpoints(folder):
        problems.append(f"I2: step-2 is gone: {checkpoints(folder)}")
    codes, texts = run(folder, *options)
    if codes != [0, 0]:
        problems.append(f"I3: the restart ended with {codes}: {texts[0][-600:]}")
    elif curve(folder) != expected:
        problems.append(f"I3: the curve is {curve(folder)}, expected {expected}")
    left = [entry for entry in checkpoints(folder) if not entry.startswith("step-")]
    if left:
        problems.append(f"I4: left behind: {left}")
    verify(folder, problems, "I1 after the restart")
    shutil.rmtree(folder)
    return name, problems


def after_commit_cells(base: Path, expected: dict, started: Path):
    for point, options in (("ckpt.after_commit", []), ("purge.mid", ["--checkpoint.keep_latest_k=2"])):
        folder = base / point
        shutil.copytree(started, folder)
        prepare(folder)
        problems: list[str] = []
        run(folder, *options, "--allow-faults", env={"FAULT": f"rank=0;point={point};action=kill"})
        verify(folder, problems, "I1")
        codes, texts = run(folder, *options)
        if codes != [0, 0] or curve(folder) != expected:
            problems.append(f"I3: {codes}: {texts[0][-600:]}")
        if any(not entry.startswith("step-") for entry in checkpoints(folder)):
            problems.append(f"I4: left behind: {checkpoints(folder)}")
        yield f"{point} rank 0", problems


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        control, started = base / "control", base / "started"
        for folder, options in ((control, []), (started, ["--training.steps=2"])):
            prepare(folder)
            codes, texts = run(folder, *options)
            assert codes == [0, 0], texts[0]
        expected = curve(control)
        cells = list(itertools.product(POINTS, (0, 1), ("disabled", "async"), (True, False)))
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda c: cell(base, expected, started, *c), cells))
        results += after_commit_cells(base, expected, started)
    failed = [(name, problems) for name, problems in results if problems]
    for name, problems in failed:
        print(f"FAILED {name}", *problems, sep="\n    ")
    print(f"{len(results) - len(failed)} of {len(results)} cells hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
