"""Table and plot of scripts/fp8_curves.sh: reads OUT/*/metrics.jsonl, writes DOCS/float8_curves.{md,png}; exits 1 beyond the limit.

usage: fp8_curves.py OUT DOCS WHERE     WHERE: what ran on what, for the text
"""

import json
import signal
import sys
from pathlib import Path

from needed import IN_THE_INTEROP_ENVIRONMENT, answer_help, needed

answer_help(__doc__)
matplotlib = needed("matplotlib", IN_THE_INTEROP_ENVIRONMENT)
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

LIMIT = 0.01  # of the final smoothed loss, relative to bf16's
WINDOW = 20  # steps averaged
NAMES = {"bf16": "bf16", "tensorwise": "tensorwise", "tensorwise_gather": "tensorwise, FP8 gather", "rowwise": "rowwise",
         "rowwise_with_gw_hp": "rowwise_with_gw_hp"}


def losses(path: Path) -> list[float]:
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [line["loss_metrics/global_avg_loss"] for line in lines if "event" not in line]


def smoothed(values: list[float]) -> list[float]:
    """Mean of the last WINDOW values at each step."""
    return [sum(values[max(0, i - WINDOW + 1):i + 1]) / (i + 1 - max(0, i - WINDOW + 1)) for i in range(len(values))]


def plot(curves: dict[str, list[float]], path: Path) -> None:
    figure, (loss, difference) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, height_ratios=(3, 2))
    for number, (name, values) in enumerate(curves.items()):
        steps, style = range(1, len(values) + 1), {"label": NAMES[name], "linewidth": 1.2, "color": f"C{number}"}
        loss.plot(steps, smoothed(values), **style)
        if name != "bf16":
            distance = [100 * (a / b - 1) for a, b in zip(smoothed(values), smoothed(curves["bf16"]))]
            difference.plot(steps, distance, **style)
    loss.set_ylabel(f"loss, mean of {WINDOW} steps")
    loss.legend()
    difference.axhline(0, color="black", linewidth=0.6)
    difference.set_ylabel("difference to bf16, %")
    difference.set_xlabel("step")
    for axes in (loss, difference):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    out, docs, where = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    curves = {name: losses(out / name) for name in NAMES}
    reference = smoothed(curves["bf16"])[-1]
    plot(curves, docs / "float8_curves.png")
    lines = ["# Loss curves in FP8", "",
             f"The debug model on the default corpus, {len(curves['bf16'])} steps of {where};",
             "made by `scripts/fp8_curves.sh`.", "",
             f"| run | loss of step 1 | final loss, mean of {WINDOW} steps | difference to bf16 |", "|---|---|---|---|"]
    worst = 0.0
    for name, values in curves.items():
        distance = smoothed(values)[-1] / reference - 1
        worst = max(worst, abs(distance))
        lines.append(f"| {NAMES[name]} | {values[0]:.5f} | {smoothed(values)[-1]:.4f} | {100 * distance:+.2f} % |")
    lines += ["", "![loss curves](float8_curves.png)", ""]
    (docs / "float8_curves.md").write_text("\n".join(lines))
    print("\n".join(lines[6:-3]))
    print(f"largest difference {100 * worst:.2f} %, limit {100 * LIMIT:.0f} %")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    sys.exit(main())
