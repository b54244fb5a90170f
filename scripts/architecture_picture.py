#!/usr/bin/env python3
"""Draws docs/architecture.svg: the source folders, and which of them include which.

    scripts/architecture_picture.py [--check]

The arrows come from the #include lines of the sources, the sentences from the table in docs/architecture.md. An
arrow that follows from others is left out. --check writes nothing and fails when the picture is not current.
"""

import argparse
import re
import signal
import sys
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from include_rules import RULES, folder_of  # noqa: E402

WIDTH, MARGIN, GAP_X, GAP_Y, LINE = 1180, 20, 22, 46, 15
COLOURS = {"app": "#f3dff0", "trainer": "#dbe9f6", "data": "#d9efec", "checkpoint": "#e2f0d9", "parallel": "#fff2cc", "models": "#fbe5d6",
           "base": "#ededed"}


def sentences() -> dict[str, str]:
    table = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_/]+)/` \| (.+?) \|$", table, re.M)
    return {folder: re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", text) for folder, text in rows}


def includes() -> dict[str, set[str]]:
    """Folder -> folders that it includes, by the entries of RULES."""
    found: dict[str, set[str]] = {folder: set() for folder in RULES}
    for file in sorted(ROOT.glob("*/**/*")):
        folder = folder_of(str(file.relative_to(ROOT)))
        if file.suffix not in {".h", ".cpp", ".cu", ".cuh"} or not folder:
            continue
        for included in re.findall(r'^\s*#include "([^"]+)"', file.read_text(), re.M):
            if (other := folder_of(included)) and other != folder:
                found[folder].add(other)
    return found


def below(folder: str, edges: dict[str, set[str]], seen: frozenset = frozenset()) -> set[str]:
    """Every folder that can be reached."""
    reached = set()
    for other in edges[folder] - seen:
        reached |= {other} | below(other, edges, seen | {folder, other})
    return reached


def direct(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""
    return sorted((folder, other) for folder, others in edges.items() for other in others
                  if not any(other in below(third, edges) for third in others - {other}))


def levels(edges: dict[str, set[str]]) -> dict[str, int]:
    """0 for a folder that includes no other; above all that it includes."""
    level: dict[str, int] = {}

    def of(folder: str, path: tuple = ()) -> int:
        if folder not in level:
            others = [other for other in edges[folder] if other not in path]
            level[folder] = max((of(other, (*path, folder)) + 1 for other in others), default=0)
        return level[folder]

    for folder in edges:
        of(folder)
    return level


def picture() -> str:
    edges = includes()
    level = levels(edges)
    text = sentences()
    missing = sorted(set(RULES) - set(text))
    if missing:
        sys.exit(f"docs/architecture.md has no row for {', '.join(missing)}")
    rows = [[folder for folder in sorted(edges) if level[folder] == n] for n in reversed(range(max(level.values()) + 1))]
    boxes, parts, y = {}, [], MARGIN
    for row in rows:
        width = min(340, (WIDTH - 2 * MARGIN - GAP_X * (len(row) - 1)) / len(row))
        wrapped = {folder: textwrap.wrap(text[folder], int(width / 6.5)) for folder in row}
        height = 30 + LINE * max(len(lines) for lines in wrapped.values())
        x = (WIDTH - width * len(row) - GAP_X * (len(row) - 1)) / 2
        for folder in row:
            boxes[folder] = (x, y, width, height)
            parts.append(f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="6" '
                         f'fill="{COLOURS[folder.split("/")[0]]}" stroke="#666"/>')
            parts.append(f'<text x="{x + 10:.0f}" y="{y + 19}" font-weight="bold">{folder}/</text>')
            for n, line in enumerate(wrapped[folder]):
                parts.append(f'<text x="{x + 10:.0f}" y="{y + 37 + LINE * n}" font-size="11">{escape(line)}</text>')
            x += width + GAP_X
        y += height + GAP_Y
    arrows = []
    outgoing = {folder: [o for f, o in direct(edges) if f == folder] for folder in edges}
    incoming = {folder: [f for f, o in direct(edges) if o == folder] for folder in edges}
    centre = {folder: box[0] + box[2] / 2 for folder, box in boxes.items()}
    for folder, other in direct(edges):
        (x1, y1, w1, h1), (x2, y2, w2, _) = boxes[folder], boxes[other]
        out, into = sorted(outgoing[folder], key=centre.get), sorted(incoming[other], key=centre.get)
        start = x1 + w1 * (out.index(other) + 1) / (len(out) + 1)
        end = x2 + w2 * (into.index(folder) + 1) / (len(into) + 1)
        bottom, middle = y1 + h1, (y2 - y1 - h1) / 2
        arrows.append(f'<path d="M{start:.0f},{bottom} C{start:.0f},{bottom + middle:.0f} {end:.0f},{y2 - middle:.0f} '
                      f'{end:.0f},{y2 - 2}" fill="none" stroke="#555" stroke-opacity="0.65" marker-end="url(#head)"/>')
    height = y - GAP_Y + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        "<title>Source folders; an arrow goes from a folder to one whose headers it includes</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *arrows, *parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the picture is not current")
    options = parser.parse_args()
    file = ROOT / "docs/architecture.svg"
    if not options.check:
        file.write_text(picture())
    elif not file.exists() or file.read_text() != picture():
        sys.exit("docs/architecture.svg is not current: run scripts/architecture_picture.py")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
