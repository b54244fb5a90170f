"""Fails when an #include breaks the direction of the rooms: trainer -> {checkpoint, parallel, models} -> base.

    python3 tests/include_rules.py SOURCE_FOLDER
"""

import re
import sys
from pathlib import Path

ALLOWED = {
    "base": {"base"},
    "models": {"models", "base"},
    "parallel": {"parallel", "base"},
    "checkpoint": {"checkpoint", "base"},
    "trainer": {"trainer", "checkpoint", "parallel", "models", "base"},
}
# Parts of the trainer that know nothing of models or ranks, so that they compile without libtorch.
PURE = {folder: {"trainer", "base"} for folder in ("trainer/config", "trainer/data", "trainer/metrics", "trainer/report")}


def broken_includes(root: Path):
    for room in ALLOWED:
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
                continue
            place = file.relative_to(root)
            allowed = PURE.get("/".join(place.parts[:2]), ALLOWED[room])
            for number, line in enumerate(file.read_text().splitlines(), 1):
                include = re.match(r'\s*#include "([a-z]+)/', line)
                if include and include[1] not in allowed:
                    yield f"{place}:{number}: {place.parts[0]} may not include {include[1]}/"


if __name__ == "__main__":
    problems = list(broken_includes(Path(sys.argv[1])))
    print("\n".join(problems) or "every include points the right way")
    sys.exit(bool(problems))
