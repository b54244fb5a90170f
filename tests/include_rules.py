"""Fails when an #include leaves the folders that its file's folder may use, and where a loop would run in one thread.

    python3 tests/include_rules.py SOURCE_FOLDER
"""

import re
import sys
from pathlib import Path

# Folder -> folders that it may include, besides itself: what is below comes first. A name stands for the folder
# and for everything in it that has no entry of its own; NAME/* for the folder and all entries in it.
RULES = {
    "base": (),
    "base/device": ("base",),
    "models/args": ("base",),
    "models/description": ("base", "models/args"),
    "models/flavors": ("base", "models/args", "models/description"),
    "models/kernels": ("base/*", "models/args"),
    "models/float8": ("base/*", "models/args", "models/kernels"),
    "models/layers": ("base/*", "models/args", "models/kernels", "models/float8"),
    "models/parts/experts/exchange": ("base/*", "models/args", "models/kernels", "models/layers"),
    "models/parts/experts/products": ("base/*", "models/args", "models/kernels", "models/float8", "models/layers",
                                      "models/parts/experts/exchange"),
    "models/parts": ("base/*", "models/args", "models/description", "models/kernels", "models/float8", "models/layers",
                     "models/parts/*"),
    "models": ("base/*", "models/*"),
    "parallel": ("base",),
    "parallel/pipeline": ("base",),
    "parallel/job": ("base/*",),
    "parallel/health": ("base/*", "parallel/job"),
    "parallel/comm": ("base/*", "parallel", "parallel/job", "parallel/health"),
    "parallel/fsdp": ("base/*", "parallel", "parallel/comm"),
    "checkpoint/types": ("base",),
    "checkpoint/format": ("base", "checkpoint/types"),
    "checkpoint/storage": ("base", "checkpoint/types"),
    "checkpoint": ("base", "checkpoint/types", "checkpoint/format", "checkpoint/storage"),
    "checkpoint/tools": ("base", "checkpoint/*"),
    "data": ("base",),
    "trainer/config": ("base", "checkpoint/types", "models/args", "models/description", "models/flavors", "parallel/pipeline"),
    "trainer/metrics": ("base", "models/args", "models/description", "trainer/config"),
    "trainer/optim": ("base/*", "checkpoint/types", "models/kernels", "parallel/*", "trainer/config"),
    "trainer/hugging_face": ("base", "models/args", "models/description", "models/flavors", "checkpoint/types", "data", "trainer/config"),
    "trainer/data": ("base", "data", "trainer/config"),
    "trainer/plan": ("base", "models/args", "models/description", "parallel", "parallel/pipeline", "trainer/config", "trainer/optim"),
    "trainer/runtime": ("base/*", "models/args", "parallel/*", "trainer/config", "trainer/metrics", "trainer/plan"),
    "trainer/checkpointing": ("base/*", "models/*", "parallel/*", "checkpoint", "checkpoint/types", "checkpoint/format",
                              "checkpoint/storage", "data", "trainer/config", "trainer/optim", "trainer/hugging_face",
                              "trainer/metrics", "trainer/runtime"),
    "trainer/engine": ("base/*", "models/*", "parallel/*", "data", "trainer/config", "trainer/metrics", "trainer/data",
                       "trainer/runtime"),
    "trainer/build": ("base/*", "models/*", "parallel/*", "checkpoint", "trainer/config", "trainer/optim", "trainer/plan",
                      "trainer/engine", "trainer/checkpointing"),
    "trainer": ("base/*", "models/*", "parallel/*", "checkpoint", "data", "trainer/*"),
    "app/report": ("base",),
    "app/monitor": ("base", "app/report"),
    "app/inference": ("base/*", "models/*", "data", "trainer/*"),
    "app": ("base/*", "models/*", "parallel/*", "checkpoint/*", "data", "trainer/*", "app/*"),
}


# The descriptions: a model as plain data, apart from the layers made from it.
DESCRIPTIONS = re.compile(r"models/(parts/(\w+/)?)?description\.")
# The arguments of parts, which ModelArgs is made of.
ARGUMENTS = re.compile(r"models/parts/\w+/args\.")


def expanded(names: tuple[str, ...]) -> set[str]:
    """The entries of RULES that `names` stand for."""
    return {folder for name in names for folder in RULES
            if folder == name.removesuffix("/*") or (name.endswith("/*") and folder.startswith(name[:-1]))}


def folder_of(path: str) -> str:
    """The entry of RULES that a file belongs to: the longest."""
    if DESCRIPTIONS.match(path):
        return "models/description"
    if ARGUMENTS.match(path):
        return "models/args"
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
                if include and folder_of(include[1]) not in {folder} | expanded(RULES[folder]):
                    yield f"{place}:{number}: {folder} may not include {include[1]}"
                if re.search(r"at::parallel_(for|reduce)\(", line):
                    yield f"{place}:{number}: libtorch's loop runs in one thread here: use base/device/parallel_for.h"


if __name__ == "__main__":
    problems = list(broken_includes(Path(sys.argv[1])))
    print("\n".join(problems) or "every include points the right way")
    sys.exit(bool(problems))
