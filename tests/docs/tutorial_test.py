"""Runs the commands of docs/tutorial.md, in order, in a folder that looks like the repository's root.

    python3 tests/docs/tutorial_test.py build/hyperion [folder to keep]

Blocks that begin with "# needs: MODULE" run with the Python that has the module (.venv-interop or python3); without one they are
passed over, and the test says so.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"  # to import takes seconds of a processor


def python_with(module: str) -> Path | None:
    """The folder of a python3 that has the module."""
    for folder in (ROOT / ".venv-interop" / "bin", ROOT / ".venv" / "bin", Path("/usr/bin")):
        python = folder / "python3"
        if python.exists() and subprocess.run([python, "-c", FIND, module]).returncode == 0:
            return folder
    return None


def run(binary: Path, folder: Path) -> list[str]:
    for name in ("docs", "configs", "scripts", "tests", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build").mkdir()
    (folder / "build" / "hyperion").symlink_to(binary)
    # train.sh starts this binary as it is; the CPU is shared with other tests
    environment = {**os.environ, "HYPERION_BINARY": str(binary), "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1",
                   "NPROC": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    passed_over = []
    for block in blocks((ROOT / "docs" / "tutorial.md").read_text()):
        path = environment["PATH"]
        if needed := re.match(r"# needs: (\w+)", block):
            python = python_with(needed[1])
            if python is None:
                passed_over.append(needed[1])
                continue
            path = f"{python}:{path}"
        print(f"--- {block.splitlines()[0]} ...", flush=True)
        subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=folder, env={**environment, "PATH": path}, check=True,
                       timeout=1700, stdin=subprocess.DEVNULL)
    return passed_over


def check(folder: Path, passed_over: list[str]) -> None:
    rows = [json.loads(line) for line in (folder / "my-run" / "metrics.jsonl").read_text().splitlines()]
    steps = {row["step"]: row["loss_metrics/global_avg_loss"] for row in rows if "loss_metrics/global_avg_loss" in row}
    assert sorted(steps) == [1, 10, 20, 30, 40, 50, 60], steps
    assert steps[60] < steps[1] - 1, f"the loss did not fall: {steps}"
    for name in ("my-run/checkpoint/step-60/.metadata", "my-model/config.json", "my-model/tokenizer.json", "my-run.html"):
        assert (folder / name).exists(), name
    print("every command of docs/tutorial.md works" + "".join(f"; without {name}, so its block was passed over" for name in passed_over))


if __name__ == "__main__":
    assert len(blocks((ROOT / "docs" / "tutorial.md").read_text())) >= 9
    if len(sys.argv) > 2:
        Path(sys.argv[2]).mkdir()
        check(Path(sys.argv[2]), run(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder), run(Path(sys.argv[1]).resolve(), Path(folder)))
