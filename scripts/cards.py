#!/usr/bin/env python3
"""What a GPU reaches in a training step: the constants of scripts/cards.json, each a range with its source, which `hyperion plan` reads;
and their replacement by what scripts/gpu_check.sh measured.

usage: cards.py REPORT.json ... [--card NAME] [--file FILE]
       writes what the reports of gpu_check measured into the entry of their card (default: scripts/cards.json), with card and date. The
       card is the one whose "gpu" and "power_w" all of the reports name, or NAME. Reports of a simulated GPU and of --small are refused with 2.
"""
import argparse
import json
import pathlib
import re
import signal
import sys

FILE = pathlib.Path(__file__).resolve().with_name("cards.json")
FLOPS = ("bf16", "fp32", "cudnn_forward", "cudnn_backward", "flash_forward", "flash_backward", "flash_192_forward", "flash_192_backward",
         "efficient_forward", "efficient_backward")
NAMES = {*FLOPS, "flops", "grouped", "fp8", "fp8_slow", "copy", "plain_share", "cast_share", "launch", "link", "link_share", "network_share", "overhead",
         "peak"}
SOURCES = ("measured", "published", "estimated")
SPREAD = 0.02  # of one card's figure, to both sides, where a report has only one
LAYERS = {"wq, wo": 2 * 4096 * 4096, "wk, wv": 2 * 4096 * 1024, "w1, w3": 2 * 4096 * 14336, "w2": 14336 * 4096}  # of a block of 8B
LARGEST = "8192 x 8192 x 8192"


def read(path=FILE):
    """{card: entry}; SystemExit where the file is wrong."""
    cards = json.loads(pathlib.Path(path).read_text())
    for card, entry in cards.items():
        for name, constant in entry["constants"].items():
            where = f"cards: {path}, {card}, {name}"
            if name not in NAMES:
                sys.exit(f"{where}: no such constant; expected one of {', '.join(sorted(NAMES))}")
            if not 0 < constant["low"] <= constant["high"]:
                sys.exit(f"{where}: {constant['low']} to {constant['high']} is no range of positive numbers")
            if constant["source"] not in SOURCES:
                sys.exit(f"{where}: source '{constant['source']}', expected one of {', '.join(SOURCES)}")
    return cards


def text_of(cards):
    """The file: a line for each constant."""
    lines = []
    for card, entry in cards.items():
        head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in entry.items() if key != "constants")
        rows = ",\n".join(f"   {json.dumps(name)}: {json.dumps(constant)}" for name, constant in entry["constants"].items())
        lines.append(f' {json.dumps(card)}: {{\n{head}  "constants": {{\n{rows}}}}}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


# --- what gpu_check measured ---


def row_of(rows, name, key):
    return next((row[key] for row in rows if row["name"] == name and key in row), None)


def products(rows, dtype):
    """(TFLOP/s of a block's products at the clock of a card that multiplies on end, those of the largest product on end, the former's
    share of a cool card's), or None."""
    cool, sustained = (row_of(rows, f"{LARGEST}, {dtype}{end}", "tflops") for end in ("", ", on end"))
    each = {layer: row_of(rows, f"{layer}, {dtype}", "tflops") for layer in LAYERS}
    if not cool or not sustained or not all(each.values()):
        return None
    clock = min(1.0, sustained / cool)
    return sum(LAYERS.values()) / sum(LAYERS[layer] / rate for layer, rate in each.items()) * clock, sustained, clock


def measured(rows):
    """{constant: (low, high)} of the rows of all benchmarks."""
    found = {}
    bf16, fp8 = products(rows, "bf16"), products(rows, "FP8 tensorwise")
    clock = bf16[2] if bf16 else None
    found |= {"bf16": bf16[:2]} if bf16 else {}
    found |= {"fp8": [fast / plain for fast, plain in zip(fp8[:2], bf16[:2])]} if bf16 and fp8 else {}
    slow = [(row_of(rows, f"{layer}, FP8 tensorwise, slow accumulation", "tflops"), row_of(rows, f"{layer}, FP8 tensorwise", "tflops"))
            for layer in LAYERS]
    if all(a and b for a, b in slow):
        found["fp8_slow"] = [min(1.0, a / b) for a, b in slow]
    for kernel, name in (("cudnn", "attention, cuDNN"), ("flash", "attention, flash")):
        for direction in ("forward", "backward"):
            if (cool := row_of(rows, name, f"{direction}_tflops")) and clock:
                found[f"{kernel}_{direction}"] = cool * clock, cool
    # Three products of one model's experts, compared with those of a dense block.
    experts = {}
    for row in rows:
        if row["name"].startswith("experts of ") and " bf16 " in row["name"]:
            experts.setdefault(row["name"].rpartition(" ")[0], []).append(row["tflops"])
    if experts and bf16:
        found["grouped"] = [len(rates) / sum(1 / rate for rate in rates) / (bf16[0] / clock) for rates in experts.values()]
    if copy := row_of(rows, "copy on the device, bytes read and written", "gb_per_s"):
        found["copy"] = copy * (1 - SPREAD), copy * (1 + SPREAD)
    if shares := [row["of_copy"] for row in rows if row["name"].endswith(", fused") and "of_copy" in row]:
        found["plain_share"] = shares
    if share := row_of(rows, "FP8 cast, both layouts", "of_copy"):
        found["cast_share"] = share * (1 - SPREAD), share * (1 + SPREAD)
    return {name: (min(values), max(values)) for name, values in found.items()}


def first_gpu(report):
    """What nvidia-smi says of the first GPU: (name and memory, clocks and power limit), "" where it says nothing."""
    return tuple(next(iter(report["machine"][key]), "") for key in ("gpus", "clocks"))


def card_in(cards, path, report):
    """The name of the card that a report was made on."""
    gpu, clocks = first_gpu(report)
    gpu, power = gpu.split(",")[0].strip(), re.search(r"([\d.]+) W", clocks)
    fitting = [name for name, entry in cards.items() if entry.get("gpu") == gpu and power and float(power[1]) == entry.get("power_w")]
    if not fitting:
        entry = {"name": gpu, "gpu": gpu, "power_w": float(power[1]) if power else None, "like": next(iter(cards)), "constants": {}}
        refuse(f"{path}: the report is of {gpu}, {power[0] if power else 'of unknown power'}, which no card of the file is",
               (f"add an entry, {json.dumps(entry)}, or " if power else "") + f"name one: --card {', '.join(cards)}")
    return fitting[0]


def refuse(what, remedy):
    print(f"[cards] {what}\n  remedy: {remedy}", file=sys.stderr)
    sys.exit(2)


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__.strip()))
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("reports", nargs="+", type=pathlib.Path)
    parser.add_argument("--card")
    parser.add_argument("--file", type=pathlib.Path, default=FILE)
    options = parser.parse_args()
    cards = read(options.file)
    if options.card and options.card not in cards:
        refuse(f"{options.file} has no card '{options.card}'", f"one of {', '.join(cards)}, or a new entry")
    reports = [json.loads(path.read_text()) for path in options.reports]
    for path, report in zip(options.reports, reports):
        if not report["small"] and "simulated" not in report["machine"]:
            refuse(f"{path} does not say whether its GPU is simulated: an older scripts/gpu_check.sh made it", "make it again with this one")
        if report["small"] or report["machine"]["simulated"]:
            refuse(f"{path} is a rehearsal ({'--small' if report['small'] else 'a simulated GPU'}): its figures say nothing of a card",
                   "give reports that scripts/gpu_check.sh made on a GPU, without --small")
    rows = [row for report in reports for check in report["checks"] if check["outcome"] == "passed" for row in check["figures"].get("rows", [])]
    found = measured(rows)
    if not found:
        refuse("the reports have none of the figures", "run parts 1 to 3 of scripts/gpu_check.sh, or --only ceilings, attention or operations")
    named = {options.card} if options.card else {card_in(cards, path, report) for path, report in zip(options.reports, reports)}
    if len(named) > 1:
        refuse(f"the reports are of several cards: {', '.join(sorted(named))}", "give those of one card, then those of the next")
    entry = cards[named.pop()]
    base = cards[entry["like"]]["constants"] if "like" in entry else {}
    for name, (low, high) in found.items():
        before = entry["constants"].get(name) or base[name]
        entry["constants"][name] = {"low": float(f"{low:.4g}"), "high": float(f"{high:.4g}"), "unit": before["unit"], "source": "measured",
                                    "date": reports[0]["machine"]["date"], "what": before["what"], "why": ", ".join(first_gpu(reports[0]))}
        print(f"{name}: {before['low']:g} to {before['high']:g} ({before['source']}) -> {low:.4g} to {high:.4g} {before['unit']}")
    options.file.write_text(text_of(cards))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
