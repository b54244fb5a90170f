"""The column "at least" of docs/what_fits.md is what `hyperion check` says of each row, and no row fits a card that has less.

    python3 tests/docs/what_fits_test.py build/hyperion [--update]

--update writes what the program says into the page.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "what_fits.md"
ROW = re.compile(r"^\| [^|]+ \| `(?P<job>[^`|]+)` \| (?P<ranks>\d+) \| (?P<least>[\d.]+) \| [^|]* \| (?P<fits>.*) \|$", re.MULTILINE)


def least(binary: Path, options: list[str], job: str, ranks: str) -> str:
    """GiB that a rank must hold, from the refusal of a card of 1 GB."""
    said = subprocess.run([binary, "check", *job.split(), "--ranks", ranks, "--gpu-memory", "1", *options],
                          cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"each rank needs at least ([\d.]+) GiB of memory", said.stdout + said.stderr)
    assert found, f"{job}: {said.stdout}{said.stderr}"
    return found[1]


def main(binary: Path, update: bool) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    options = re.search(r'(?m)^ {4}FIT="([^"]*)"$', text)[1].split()
    cards = [float(size) for size in re.findall(r"(\d+) GB", re.search(r"(?m)^\| model \| preset.*$", text)[0])]
    problems = [] if len(ROW.findall(text)) >= 10 else ["the table has fewer than ten rows"]
    for row in ROW.finditer(text):
        now = least(binary, options, row["job"], row["ranks"])
        if now != row["least"]:
            problems.append(f"{row['job']} on {row['ranks']} GPUs: at least {row['least']} in the page, {now} by the program")
            text = text.replace(row[0], row[0].replace(f"| {row['least']} |", f"| {now} |", 1))
        for card, fits in zip(cards, row["fits"].split(" | "), strict=True):
            if float(now) > card and fits != "no":
                problems.append(f"{row['job']} on {row['ranks']} GPUs of {card:.0f} GB: {fits!r}, but it needs {now} GiB")
    if update:
        PAGE.write_text(text, encoding="utf-8")
    return problems


if __name__ == "__main__":
    found = main(Path(sys.argv[1]).resolve(), "--update" in sys.argv)
    print("\n".join(found) or "docs/what_fits.md says what hyperion check says")
    sys.exit(bool(found))
