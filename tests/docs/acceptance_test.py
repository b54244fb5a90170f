"""Every test that docs/notes/acceptance.md names exists, and every row names a test or says why there is none.

    python3 tests/docs/acceptance_test.py SOURCE_FOLDER
"""

import re
import sys
from pathlib import Path


def test_names(file: Path) -> set[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return set(re.findall(r"def (test_\w+)\(", text))
    cases = re.findall(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text)
    return {"".join(re.findall(r'"((?:[^"\\]|\\.)*)"', case)) for case in cases}


def problems(page: Path):
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| ") or line.startswith("| what must hold"):
            continue
        requirement, shown_by = line.strip("| ").split(" | ")
        for part in shown_by.split("<br>"):
            link = re.fullmatch(r"\[[^]]*\]\(([^)]+)\)(?:: (`.*`))?", part)
            if not link:
                if part.startswith("[") or len(part.split()) < 3:
                    yield f"{requirement}: neither tests nor a reason: {part!r}"
                continue
            file = page.parent / link[1]
            if not file.is_file():
                yield f"{requirement}: there is no {link[1]}"
                continue
            for name in re.findall(r"`([^`]*)`", link[2] or ""):
                if name not in test_names(file):
                    yield f"{requirement}: {link[1]} has no test {name!r}"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve() / "docs" / "notes" / "acceptance.md"))
    print("\n".join(found) or "every test named in docs/notes/acceptance.md exists")
    sys.exit(bool(found))
