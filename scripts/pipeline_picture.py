#!/usr/bin/env python3
"""Draws docs/pipeline.svg: three schedules of a pipeline, from the program's own lists.

    usage: scripts/pipeline_picture.py [--check] [--times build/benchmark_pipeline_times]

Each row is a rank, each box an action as long as it takes: a forward 1, a backward 2, half of a backward 1. --check writes nothing and fails when
the picture is not current.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEDULES = (("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2))
RANKS, MICROBATCHES = 4, 8
UNIT, ROW, LEFT, TITLE, GAP = 22, 24, 60, 26, 16  # of a stage's time: with two stages a rank a stage is half as long
COLOURS = {"F": ("#9ecae9", "#dbe9f6"), "B": ("#f2b48c", "#fbe5d6"), "I": ("#f2b48c", "#fbe5d6"), "W": ("#a8d08d", "#e2f0d9")}
LEGEND = (("F", "forward"), ("B", "backward, or I: the gradient of its input"), ("W", "W: the gradients of its weights"))


def times_of(program: Path, kind: str, stages: int) -> dict:
    done = subprocess.run([program, kind, str(RANKS), str(stages), str(MICROBATCHES)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def picture(program: Path) -> str:
    parts, y, width = [], 10, 0
    for kind, stages in SCHEDULES:
        times = times_of(program, kind, stages)
        unit = UNIT / stages
        parts.append(f'<text x="10" y="{y + 16}" font-size="13" font-weight="bold">{kind}: {stages} stage{"s" * (stages > 1)} on each of {RANKS} ranks, '
                     f'{MICROBATCHES} microbatches, bubble {100 * times["bubble"]:.1f} %</text>')
        y += TITLE
        for rank, actions in enumerate(times["ranks"]):
            parts.append(f'<text x="10" y="{y + 16}">rank {rank}</text>')
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{times["seconds"] * unit:.1f}" height="{ROW - 2}" fill="#f4f4f4"/>')
            own = [stage for stage, of in enumerate(times["rank_of_stage"]) if of == rank]
            for action, start, end in actions:
                stage, op, microbatch = re.fullmatch(r"(\d+)([A-Z])(\d+)", action).groups()
                x, long = LEFT + start * unit, (end - start) * unit
                parts.append(f'<rect x="{x:.1f}" y="{y}" width="{long:.1f}" height="{ROW - 2}" fill="{COLOURS[op][own.index(int(stage))]}" '
                             f'stroke="white"><title>{action}</title></rect>')
                parts.append(f'<text x="{x + long / 2:.1f}" y="{y + 15}" text-anchor="middle" font-size="{9 if stages > 1 else 11}">{microbatch}</text>')
            y += ROW
            width = max(width, LEFT + times["seconds"] * unit + 10)
        y += GAP
    x = LEFT
    for op, text in LEGEND:
        parts += [f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[op][0]}"/>', f'<text x="{x + 20}" y="{y + 11}">{text}</text>']
        x += 40 + 7 * len(text)
    parts.append(f'<text x="{x}" y="{y + 11}">pale: the rank\'s second stage; grey: the bubble</text>')
    width = max(width, x + 300)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {y + 26}" font-family="sans-serif" font-size="11">',
                      "<title>Schedules of a pipeline: which rank runs which microbatch when</title>",
                      f'<rect width="{width:.0f}" height="{y + 26}" fill="white"/>', *parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the picture is not current")
    parser.add_argument("--times", type=Path, default=ROOT / "build" / "benchmark_pipeline_times")
    options = parser.parse_args()
    file = ROOT / "docs/pipeline.svg"
    if not options.check:
        file.write_text(picture(options.times))
    elif not file.exists() or file.read_text() != picture(options.times):
        sys.exit("docs/pipeline.svg is not current: run scripts/pipeline_picture.py")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
