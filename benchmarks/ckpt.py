"""The cost of checkpoints, compared with PyTorch's DCP and the plainest way to move the same bytes (benchmarks/ckpt.sh starts this).

Two ranks with 256 MiB each. Rounds of Hyperion's program and of DCP's alternate; each process lives as long as the run, and
the first save of each kind does not count. Times are those of the slowest rank. A figure is the median over the rounds; a
ratio is the median of the ratios within a round, with the smallest and largest.

The plain way is the faster (by its median) of two: large writes or reads through the page cache, with fsync at the end of a
write; and O_DIRECT from and into aligned memory. Both move exactly one file a rank, without checksums, index or commit.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import processor

ROOT = Path(__file__).resolve().parent.parent


class Side:
    """A program that measures one round for each line that it is sent."""

    def __init__(self, command: list):
        self.name = Path(str(command[0])).name
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        self.line()  # "ready": the warm-up of one side shall not disturb that of the other

    def line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"ckpt.py: {self.name} ended with code {self.process.wait()}")
        return line

    def round(self) -> dict:
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def rounds(ours: list, theirs: list | None, count: int) -> tuple[list[dict], list[dict]]:
    sides = [Side(command) for command in (ours, theirs) if command]
    results: list[list[dict]] = [[] for _ in sides]
    for number in range(count):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            results[side].append(sides[side].round())
        print(f"  round {number + 1} of {count}, load average {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    for side in sides:
        side.close()
    return results[0], results[1] if theirs else []


def spread(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(above: list[float], below: list[float]) -> dict:
    return spread([a / b for a, b in zip(above, below)])


def column(runs: list[dict], key: str) -> list[float]:
    return [run[key] for run in runs]


def faster(runs: list[dict], kind: str) -> tuple[str, list[float]]:
    ways = {way: column(runs, f"{kind}_{way}") for way in ("buffered", "direct")}
    best = min(ways, key=lambda way: statistics.median(ways[way]))
    return best, ways[best]


def summarise(ours: list[dict], theirs: list[dict]) -> dict:
    """Rows: title -> {hyperion, dcp, plain: seconds; ratio, dcp_ratio: to the plain way}."""
    rows: dict[str, dict] = {}

    def add(title: str, key: str, dcp_key: str | None, plain: list[float] | None, plain_name: str = "") -> None:
        row = rows[title] = {"hyperion": spread(column(ours, key))}
        if plain:
            row |= {"plain": spread(plain), "plain_way": plain_name, "ratio": ratio(column(ours, key), plain)}
        if dcp_key and theirs:
            row["dcp"] = spread(column(theirs, dcp_key))
            if plain:
                row["dcp_ratio"] = ratio(column(theirs, dcp_key), plain)

    way, write = faster(ours, "raw_write")
    add("synchronous save", "sync_save", "sync_save", write, f"write + fsync, {way}")
    way, read = faster(ours, "raw_read")
    add("load, evicted, verified", "load", "load", read, f"read, {way}")
    for mode in ("async", "overlapped"):
        for suffix, title in (("", "nothing computed"), ("_computing", "computing")):
            key = mode + suffix
            add(f"{mode}: stall, {title}", f"{key}_stall", f"cached{suffix}_stall", column(ours, f"{key}_memcpy"), "memcpy")
            if suffix:
                add(f"{mode}: window longer by", f"{key}_window", f"cached{suffix}_window", None)
            add(f"{mode}: durable after, {title}", f"{key}_durable", f"cached{suffix}_durable", None)
    if theirs:
        plain = column(ours, "async_memcpy")
        for suffix, title in (("", "nothing computed"), ("_computing", "computing")):
            rows[f"DCP without cached staging: stall, {title}"] = {
                "dcp": spread(column(theirs, f"async{suffix}_stall")), "plain": spread(plain), "plain_way": "memcpy",
                "dcp_ratio": ratio(column(theirs, f"async{suffix}_stall"), plain)}
    return rows


def text(figure: dict | None, digits: int) -> str:
    return f"{figure['median']:.{digits}f} ({figure['min']:.{digits}f}..{figure['max']:.{digits}f})" if figure else "-"


def print_rows(rows: dict) -> None:
    print(f"{'seconds, median (min..max)':48} {'Hyperion':21} {'DCP':21} {'plain':21} {'ours/plain':18} {'DCP/plain':18} plain is")
    for title, row in rows.items():
        print(f"{title:48} {text(row.get('hyperion'), 3):21} {text(row.get('dcp'), 3):21} {text(row.get('plain'), 3):21} "
              f"{text(row.get('ratio'), 2):18} {text(row.get('dcp_ratio'), 2):18} {row.get('plain_way', '')}", flush=True)


def print_writers(runs: list[dict]) -> dict:
    result = {}
    print(f"\n{'mesh of 2 x 2: checkpoint.writers':34} {'data files':>10} {'with data':>10} {'bytes of data files':>20}  seconds")
    for kind in ("all", "one_replica"):
        files = {name: size for name, size in runs[0][f"{kind}_files"].items() if name.endswith(".distcp")}
        seconds = spread(column(runs, f"{kind}_save"))
        result[kind] = {"files": runs[0][f"{kind}_files"], "seconds": seconds}
        big = sum(size > 1 << 20 for size in files.values())
        print(f"{kind:34} {len(files):10} {big:10} {sum(files.values()):20,}  {text(seconds, 3)}")
        for name, size in sorted(files.items()):
            print(f"{'':34} {name:>21} {size:20,}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--peer-python", type=Path, help="a Python with torch; without one DCP is not measured")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=31168, help="sets the size: 31168 is 256 MiB a rank")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs", help="on the disk to measure")
    parser.add_argument("--json", type=Path, default=ROOT / "outputs" / "ckpt.json")
    parser.add_argument("parts", nargs="*", metavar="PART", help="save, writers, memory, ema, plan (default: all)")
    options = parser.parse_args()
    known = ("save", "writers", "memory", "ema", "plan")
    parts = options.parts or known
    if set(parts) - set(known) or options.pairs < 1:
        parser.error(f"parts are {', '.join(known)}; at least 1 pair")

    options.folder.mkdir(parents=True, exist_ok=True)
    result: dict = {"processor": processor(), "cpus": os.cpu_count(), "pairs": options.pairs, "load_average": os.getloadavg()[0]}
    print(f"{result['processor']}, {result['cpus']} CPUs, load average {result['load_average']:.1f} before the run, "
          f"{options.pairs} interleaved rounds" + ("" if options.peer_python else "; no Python with torch: DCP is not measured"))
    begin = time.time()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ckpt-") as temporary:
        ours = [options.build / "benchmark_checkpoint"]
        peer = [options.peer_python, ROOT / "benchmarks" / "checkpoint_peer.py"] if options.peer_python else None

        def sides(part: str, count: int, *size: int, with_peer: bool = True) -> tuple[list[dict], list[dict]]:
            theirs = [*peer, part, Path(temporary) / "dcp", *size] if peer and with_peer else None
            return rounds([*ours, part, Path(temporary) / "ours", *size], theirs, count)

        if "save" in parts:
            mine, theirs = sides("save", options.pairs, options.vocab)
            result["save"] = {"rows": summarise(mine, theirs), "hyperion": mine, "dcp": theirs}
            print(f"\n2 ranks, {mine[0]['bytes_per_rank'] / 2**20:.0f} MiB each")
            print_rows(result["save"]["rows"])
            first = mine[0]
            print(f"exchanges of the first save: {first['first_save_exchanges']}, of the second: "
                  f"{first['second_save_exchanges']}; stall of the first "
                  f"asynchronous save {first['first_async_stall']:.3f} s, of the second {first['second_async_stall']:.3f} s, "
                  f"of a first one without a prepared pool {first['unprepared_async_stall']:.3f} s; the pool was prepared after "
                  f"{first['pool_prepared_after']:.1f} s of steps")
        if "writers" in parts:
            mine, _ = sides("writers", options.pairs, options.vocab, with_peer=False)
            result["writers"] = print_writers(mine)
        if "memory" in parts:
            mine, theirs = sides("memory", 1, 256, 1)
            result["memory"] = {"hyperion": mine[0], "dcp": theirs[0] if theirs else None}
            print(f"\nresident memory of the larger rank, state of {mine[0]['bytes_per_rank'] / 2**20:.0f} MiB")
            for name, run in result["memory"].items():
                if run:
                    early, late = run["resident_after_5"], run["resident_after_50"]
                    print(f"{name:10} after 5 saves {early / 2**20:.1f} MiB, after 50 {late / 2**20:.1f} MiB: {100 * (late / early - 1):+.2f} %")
        if "ema" in parts:
            mine, _ = sides("ema", options.pairs, options.vocab, with_peer=False)
            stalls = {name: column(mine, f"{name}_stall") for name in ("with", "without")}
            result["ema"] = {name: spread(values) for name, values in stalls.items()}
            result["ema"]["ratio"] = ratio(stalls["with"], stalls["without"])
            print(f"\nstall of an asynchronous save with EMA {text(result['ema']['with'], 3)}, without "
                  f"{text(result['ema']['without'], 3)}: {text(result['ema']['ratio'], 2)}; bytes: "
                  f"{mine[0]['bytes_per_rank_with_ema'] / mine[0]['bytes_per_rank']:.2f}")
        if "plan" in parts:
            print("\nplanning, seconds")
            result["plan"] = []
            for replicas in (1, 2):
                output = subprocess.run([options.build / "benchmark_save_plan", "10000", "256", str(replicas)], check=True,
                                        capture_output=True, text=True).stdout
                result["plan"].append(json.loads(output))
                print(output.strip())
    result["minutes"] = (time.time() - begin) / 60
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten: {options.json} ({result['minutes']:.1f} minutes)")


if __name__ == "__main__":
    main()
