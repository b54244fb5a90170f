"""Fails when an #include leaves the folders that its file's folder may use, and where a loop would run in one thread.

    python3 tests/include_rules.py SOURCE_FOLDER
"""

import re
import sys
from pathlib import Path

CHECKPOINT = ("checkpoint", "checkpoint/types", "checkpoint/format", "checkpoint/storage")
TRAINER_PARTS = ("trainer/config", "trainer/data", "trainer/metrics", "trainer/optim", "trainer/hugging_face")

# Folder -> folders that it may include, besides itself: what is below comes first. A name stands for the folder
# and for everything in it that has no entry of its own.
RULES = {
    "base": (),
    "base/device": ("base",),
    "models/flavors": ("base",),
    "models": ("base", "base/device", "models/flavors"),
    "parallel": ("base", "base/device"),
    "checkpoint/types": ("base",),
    "checkpoint/format": ("base", "checkpoint/types"),
    "checkpoint/storage": ("base", "checkpoint/types"),
    "checkpoint": ("base", *CHECKPOINT),
    "checkpoint/tools": ("base", *CHECKPOINT),
    "trainer/config": ("base", "checkpoint/types", "models/flavors"),
    "trainer/data": ("base",),
    "trainer/metrics": ("base", "models/flavors", "trainer/config"),
    "trainer/report": ("base",),
    "trainer/optim": ("base", "base/device", "models", "parallel", "trainer/config"),
    "trainer/hugging_face": ("base", "models/flavors", "trainer/config", "trainer/data"),
    "trainer/runtime": ("base", "base/device", "models/flavors", "parallel", "trainer/config", "trainer/metrics"),
    "trainer/checkpointing": ("base", "base/device", "models", "models/flavors", "parallel", *CHECKPOINT,
                              *TRAINER_PARTS, "trainer/runtime"),
    "trainer/setup": ("base", "base/device", "models", "models/flavors", "parallel", *CHECKPOINT, *TRAINER_PARTS,
                      "trainer/runtime", "trainer/checkpointing"),
    "trainer/inference": ("base", "base/device", "models", "models/flavors", *TRAINER_PARTS, "trainer/setup"),
    "trainer/commands": ("base", "base/device", "models", "models/flavors", "parallel", *CHECKPOINT,
                              "checkpoint/tools", *TRAINER_PARTS, "trainer/runtime", "trainer/checkpointing",
                              "trainer/setup", "trainer/inference", "trainer/report", "trainer"),
    "trainer": ("base", "base/device", "models", "models/flavors", "parallel", *TRAINER_PARTS, "trainer/runtime",
                "trainer/checkpointing", "trainer/setup"),
}


def folder_of(path: str) -> str:
    """The entry of RULES that a file belongs to: the longest."""
    folder = path.rpartition("/")[0]
    while folder and folder not in RULES:
        folder = folder.rpartition("/")[0]
    return folder


def broken_includes(root: Path):
    for top in sorted({folder.split("/")[0] for folder in RULES}):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
                continue
            place = str(file.relative_to(root))
            folder = folder_of(place)
            for number, line in enumerate(file.read_text().splitlines(), 1):
                include = re.match(r'\s*#include "([^"]+)"', line)
                if include and folder_of(include[1]) not in (folder, *RULES[folder]):
                    yield f"{place}:{number}: {folder} may not include {include[1]}"
                if re.search(r"at::parallel_(for|reduce)\(", line):
                    yield f"{place}:{number}: libtorch's loop runs in one thread here: use base/device/parallel_for.h"


if __name__ == "__main__":
    problems = list(broken_includes(Path(sys.argv[1])))
    print("\n".join(problems) or "every include points the right way")
    sys.exit(bool(problems))
