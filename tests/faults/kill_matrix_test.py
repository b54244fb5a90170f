"""kill -9 at every point of a save, on each rank, synchronous and not, into a fresh folder and beside a checkpoint.

    python3 tests/faults/kill_matrix_test.py build/hyperion [sample | replicas]

56 cells, one kill after the commit and one inside a removal, two at a time. In each a rank dies at the point; then the
same command is run again and must end with the loss lines of the undisturbed run. After each cell:
  I1  every folder named step-N verifies fully        I4  the restart leaves nothing unfinished behind
  I2  the checkpoint before the fault is intact       I5  the other ranks end by themselves with a documented code
  I3  curve and last checkpoint equal the control's   I6  they name a rank, and what it was doing

`sample`: every point into both kinds of folder, rank and mode in turns; 20 cells. `replicas`: chosen points on meshes with replicas
(also a rank that writes nothing) and with averages instead.
"""

import itertools
import json
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import warm_start
from checkpoints import CHECKPOINT_TOML
from jobs import BINARY, ROOT, Job

# Rank 0 makes a checkpoint of the files while the others wait for it.
BOTH = ["ckpt.plan", "ckpt.stage", "ckpt.before_data", "ckpt.mid_data", "ckpt.after_data"]
COMMIT = {0: ["ckpt.before_meta", "ckpt.after_meta", "ckpt.before_commit"], 1: ["ckpt.await_commit"]}
OPTIONS = ["--training.steps=6", "--checkpoint.interval=2", "--checkpoint.no_validate_before_training",
           "--lr_scheduler.total_steps=6"]
LAST_STEP = 6


class Family:
    """Cells of one layout, with its undisturbed run and a run that has saved step-2 alone."""

    def __init__(self, base: Path, name: str, ranks: int = 2, options: tuple[str, ...] = ()):
        self.base, self.name, self.ranks, self.options = base / name, name, ranks, options
        self.started = self.base / "started"
        control = self.base / "control"
        for folder, more in ((control, []), (self.started, ["--training.steps=2"])):
            prepare(folder)
            codes, texts = self.run(folder, *more)
            assert codes == [0] * ranks, texts[0]
        self.expected = outcome(control)

    def run(self, folder: Path, *options: str, env: dict | None = None) -> tuple[list[int], list[str]]:
        job = Job(folder, *OPTIONS, *self.options, *options, ranks=self.ranks, env=env)
        try:
            codes = job.codes()
            return codes, [job.text(rank) for rank in range(self.ranks)]
        finally:
            job.end()


@dataclass(frozen=True)
class Cell:
    family: Family
    point: str
    rank: int
    mode: str = "async"
    existing: bool = True

    @property
    def name(self) -> str:
        return f"{self.family.name} {self.point} rank {self.rank} {self.mode} {'existing' if self.existing else 'fresh'}"


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.toml").write_text(CHECKPOINT_TOML.format(root=ROOT, folder=folder))
    documents = [f"Document {i} has a few words, and some of them are its own: {i * 7919}." for i in range(200)]
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))


def outcome(folder: Path) -> tuple[dict, str]:
    """step -> (loss, gradient norm, learning rate), and a hash of everything in the last checkpoint."""
    lines = map(json.loads, (folder / "out" / "metrics.jsonl").read_text().splitlines())
    curve = {line["step"]: (line["loss_metrics/global_avg_loss"], line["grad_norm"], line["lr"])
             for line in lines if "event" not in line}
    digest = warm_start.run([BINARY, "ckpt", "digest", folder / "out" / "checkpoint" / f"step-{LAST_STEP}"])
    return curve, digest.stdout + digest.stderr


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out" / "checkpoint").glob("*") if path.name != ".lock")


def verify(folder: Path, problems: list[str], invariant: str) -> None:
    for path in (folder / "out" / "checkpoint").glob("step-*"):
        done = warm_start.run([BINARY, "ckpt", "verify", path])
        if done.returncode != 0:
            problems.append(f"{invariant}: {path.name}: {done.stdout}{done.stderr}")


def check_restart(family: Family, folder: Path, options: list[str], problems: list[str]) -> None:
    codes, texts = family.run(folder, *options)
    if codes != [0] * family.ranks:
        problems.append(f"I3: the restart ended with {codes}: {texts[0][-600:]}")
    elif outcome(folder) != family.expected:
        problems.append(f"I3: the outcome is {outcome(folder)}, expected {family.expected}")
    left = [entry for entry in checkpoints(folder) if not entry.startswith("step-")]
    if left:
        problems.append(f"I4: left behind: {left}")
    verify(folder, problems, "I1 after the restart")


def run_cell(cell: Cell) -> tuple[str, list[str]]:
    family = cell.family
    folder = family.base / cell.name.replace(" ", "-")
    if cell.existing:
        shutil.copytree(family.started, folder)
    prepare(folder)
    problems: list[str] = []
    options = [f"--checkpoint.async_mode={cell.mode}"]
    codes, texts = family.run(folder, *options, "--allow-faults",
                              env={"FAULT": f"rank={cell.rank};point={cell.point};action=kill"})
    # A point that only a copy to the pool passes is not there in a synchronous save.
    if cell.point == "ckpt.stage" and cell.mode == "disabled":
        if codes != [0] * family.ranks:
            problems.append(f"I5: codes {codes}: {texts[0][-600:]}")
        return cell.name, problems
    if codes[cell.rank] != -9:
        problems.append(f"rank {cell.rank} was not killed: {codes}")
    for rank in set(range(family.ranks)) - {cell.rank}:
        if codes[rank] not in (71, 74):
            problems.append(f"I5: rank {rank} ended with {codes[rank]}: {texts[rank][-600:]}")
        if "rank" not in "".join(texts[rank].splitlines()[-1:]):
            problems.append(f"I6: rank {rank} says: {texts[rank][-300:]}")
    verify(folder, problems, "I1")
    if cell.existing and "step-2" not in checkpoints(folder):
        problems.append(f"I2: step-2 is gone: {checkpoints(folder)}")
    check_restart(family, folder, options, problems)
    shutil.rmtree(folder)
    return cell.name, problems


def after_commit_cells(family: Family):
    for point, options in (("ckpt.after_commit", []), ("purge.mid", ["--checkpoint.keep_latest_k=2"])):
        folder = family.base / point
        shutil.copytree(family.started, folder)
        prepare(folder)
        problems: list[str] = []
        family.run(folder, *options, "--allow-faults", env={"FAULT": f"rank=0;point={point};action=kill"})
        verify(folder, problems, "I1")
        check_restart(family, folder, options, problems)
        yield f"{point} rank 0", problems


MODES = ("disabled", "async")


def matrix(base: Path) -> tuple[list[Cell], list]:
    family = Family(base, "fsdp-2")
    places = [(point, rank) for rank, points in COMMIT.items() for point in BOTH + points]
    cells = [Cell(family, *place, *how) for place, *how in itertools.product(places, MODES, (True, False))]
    return cells, list(after_commit_cells(family))


def sample(base: Path) -> tuple[list[Cell], list]:
    family = Family(base, "fsdp-2")
    cells = [Cell(family, point, (i + existing) % 2, "async" if point == "ckpt.stage" else MODES[(i // 2 + existing) % 2],
                  bool(existing)) for i, point in enumerate(BOTH) for existing in (0, 1)]
    cells += [Cell(family, point, rank, MODES[(i + existing) % 2], bool(existing))
              for rank, points in COMMIT.items() for i, point in enumerate(points) for existing in (0, 1)]
    return cells, list(after_commit_cells(family))


def replicas(base: Path) -> tuple[list[Cell], list]:
    mesh = "--parallelism.data_parallel_replicate_degree=2"
    few = "--checkpoint.writers=one_replica"
    small = "--training.local_batch_size=1"
    pair, shared = Family(base, "2x1-few", 2, (mesh, few)), Family(base, "2x1-all", 2, (mesh,))
    square = Family(base, "2x2-few", 4, (mesh, few, small))
    averaged = Family(base, "ema", 2, ("--ema.enable",))
    # Rank 1 of `pair` writes nothing, nor do ranks 2 and 3 of `square`.
    cells = [Cell(pair, point, rank, mode) for rank in (0, 1) for point, mode in (
        ("ckpt.before_data", "disabled"), ("ckpt.after_data", "async"), (COMMIT[rank][-1], "async"))]
    cells += [Cell(shared, "ckpt.mid_data", 1), Cell(shared, "ckpt.await_commit", 1, "disabled")]
    cells += [Cell(square, "ckpt.after_data", 3), Cell(square, "ckpt.before_commit", 0)]
    cells += [Cell(averaged, "ckpt.stage", 0), Cell(averaged, "ckpt.mid_data", 1), Cell(averaged, "ckpt.before_commit", 0),
              Cell(averaged, "ckpt.mid_data", 1, "async_with_pinned_mem", existing=False)]
    return cells, []


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        which = {"": matrix, "sample": sample, "replicas": replicas}["".join(sys.argv[2:])]
        cells, results = which(Path(temporary))
        with ThreadPoolExecutor(2) as pool:
            results += pool.map(run_cell, cells)
    failed = [(name, problems) for name, problems in results if problems]
    for name, problems in failed:
        print(f"FAILED {name}", *problems, sep="\n    ")
    print(f"{len(results) - len(failed)} of {len(results)} cells hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
