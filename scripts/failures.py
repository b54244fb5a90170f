#!/usr/bin/env python3
"""Says once for a whole job which of its ranks failed first, how and where, from what its ranks have recorded.

usage: failures.py FOLDER CODE

What scripts/train.slurm calls when srun has ended with CODE. FOLDER holds, for each rank N,
  rank_N.json   what the rank wrote when it failed (HYPERION_FAILURE_DIR), and
  rank_N.end    "HOST", and once the rank has ended "HOST CODE SECONDS", from scripts/slurm_rank.sh;
the folder above it the output of each rank, rank_N.HOST.log. LOG_RANK: the ranks whose output is above the summary.
The summary goes to stderr; stdout gets one line: the exit code of the job, the host to avoid, if there is one, and "repeated" where
that host's GPUs have failed before: the folders of earlier starts, next to FOLDER, have their causes (cause.json).
scripts/launch.py, which sees its ranks end, uses the functions.
"""
import collections
import dataclasses
import json
import os
import pathlib
import re
import signal
import sys

DONE, BUG, COMMUNICATION, STOPPED_SAVED, HARDWARE, TERMINATED = 0, 70, 71, 75, 76, 143  # docs/exit_codes.md
INTERRUPTED = (130, TERMINATED)
RETRIED = frozenset({COMMUNICATION, HARDWARE, 137, 139})  # after which another start may help
LAST_LINES = 15  # of a rank's output, for one without a record
ENDED_BY_US_SECONDS = 5.0  # a rank that ends so long after the first failure was ended because of it


@dataclasses.dataclass
class RankEnd:
    number: int
    code: int | None = None  # as a shell has it; None: it was ended because another had failed, or nothing is known
    at: float = 0.0  # seconds
    host: str = ""
    record: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Cause:
    """The rank that a job failed by: by its own failure, or lost to the ranks that report so."""

    rank: RankEnd
    code: int
    lost_by: list  # RankEnds whose record names it as lost, the first one first


def describe(code):
    """An exit code as a shell has it: "exit code 65", "signal 9 (SIGKILL)"."""
    if code <= 128:
        return f"exit code {code}"
    try:
        return f"signal {code - 128} ({signal.Signals(code - 128).name})"
    except ValueError:
        return f"exit code {code}"


def read_records(folder):
    """What failed ranks wrote, by rank. What cannot be read was cut off by the failure."""
    records = {}
    for path in pathlib.Path(folder).glob("rank_*.json"):
        try:
            record = json.loads(path.read_text(errors="replace"))
            if isinstance(record["rank"], int) and isinstance(record["time"], float):
                records[record["rank"]] = record
        except (OSError, ValueError, KeyError, TypeError):
            pass
    return records


def find_cause(ends, shown=frozenset()):
    """The Cause among RankEnds, or None when no rank failed. A rank that only lost a peer is not the cause as long
    as there is another failure; a GPU that failed is the cause of whatever else did. Of ranks that failed alike it
    is one of those whose output is shown."""
    reports = collections.defaultdict(list)
    for end in sorted(ends, key=lambda end: end.record.get("time", 0.0)):
        for lost in end.record.get("lost", []):
            reports[lost].append(end)
    own = [end for end in ends if end.code not in (None, DONE, STOPPED_SAVED, COMMUNICATION)]
    noticed = [end for end in ends if end.code == COMMUNICATION]
    if own:
        cause = min(own, key=lambda end: (end.code != HARDWARE, end.number not in reports, end.at))
        if cause.number not in reports and cause.code != HARDWARE:
            cause = next((end for end in own if end.code == cause.code and end.number in shown), cause)
        return Cause(cause, cause.code, reports[cause.number])
    if not noticed:
        return None
    if reports:  # one that hangs, or whose host is gone
        number = max(reports, key=lambda number: (len(reports[number]), -number))
        cause = next((end for end in ends if end.number == number), RankEnd(number))
        return Cause(cause, COMMUNICATION, reports[number])
    cause = min(noticed, key=lambda end: end.at)
    return Cause(cause, COMMUNICATION, [])


def place(record):
    """ "all_reduce of group world/0 in phase 'step 3 data'", as far as the record says."""
    parts = []
    if record.get("operation"):
        parts.append(f"{record['operation']} of group {record.get('group', '?')}")
    if record.get("phase"):
        parts.append(f"in phase '{record['phase']}'")
    return " ".join(parts)


def headline(cause):
    """ "rank 1 failed with signal 9 (SIGKILL) on n1", or that it was lost."""
    rank = cause.rank
    host = rank.record.get("host") or rank.host
    return f"rank {rank.number} {'was lost' if rank.code is None else 'failed with ' + describe(rank.code)}{' on ' + host if host else ''}"


def summary(cause, last_lines=None, said_above=False):
    """The lines that tell of a Cause. last_lines: of the rank's output, for one without a record. said_above:
    its output has been shown."""
    record, text = cause.rank.record, headline(cause)
    where = place(record)
    text += f", {where}" if where else ""
    message = record.get("message", "")
    if said_above:
        lines = [text + "; its last lines are above"]
    elif message:
        lines = [text + "; it said:", *(f"  | {line}" for line in message.splitlines())]
    elif last_lines is None:
        lines = [text]
    else:
        lines = [text + "; its last lines:", *([f"  | {line}" for line in last_lines] or ["  | (it printed nothing)"])]
    if cause.lost_by:
        first = place(cause.lost_by[0].record)
        numbers = [str(end.number) for end in cause.lost_by]
        some = ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
        lines.append(f"{len(numbers)} other rank{'s' * (len(numbers) > 1)} lost it{': ' + first if first else ''} (rank {some})")
    return lines


def read_ends(folder):
    """RankEnds from the files of a SLURM job."""
    records = read_records(folder)
    ends = []
    for path in pathlib.Path(folder).glob("rank_*.end"):
        matched = re.fullmatch(r"rank_(\d+)\.end", path.name)
        words = path.read_text(errors="replace").split() if matched else []
        if not words:
            continue
        end = RankEnd(int(matched[1]), host=words[0], record=records.get(int(matched[1]), {}))
        if len(words) == 3:
            end.code, end.at = int(words[1]), float(words[2])
        ends.append(end)
    # srun ends the other ranks by TERM, and SLURM by KILL later.
    first = min((end.at for end in ends if end.code not in (None, DONE, STOPPED_SAVED, *INTERRUPTED)), default=0.0)
    for end in ends:
        if end.code in INTERRUPTED or (end.code == 128 + signal.SIGKILL and end.at > first + ENDED_BY_US_SECONDS):
            end.code = None
    return ends


def last_lines(path):
    try:
        with open(path, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 20000))
            lines = [line.split("\r")[-1][:500] for line in log.read().decode(errors="replace").splitlines()]
    except OSError:
        return []
    return [line for line in lines if line.strip()][-LAST_LINES:]


def judge_hardware(folder, cause):
    """Code, whether the host's GPUs have failed before, and what to say of it: of a Cause whose code is HARDWARE."""
    host = cause.rank.host
    illegal = "CUDA error 700" in cause.rank.record.get("message", "")
    job, earlier = os.environ.get("SLURM_JOB_ID"), []
    for path in sorted(folder.parent.glob("start-*/cause.json")):
        try:  # what cannot be read was cut off by the failure
            other = json.loads(path.read_text(errors="replace"))
            if path.parent != folder and other["job"] == job and isinstance(other["host"], str):
                earlier.append(other)
        except (OSError, ValueError, KeyError, TypeError):
            pass
    try:
        (folder / "cause.json").write_text(json.dumps({"job": job, "host": host, "illegal_address": illegal}))
    except OSError as error:
        print(f"[train.slurm] {folder}/cause.json: {error}", file=sys.stderr)
    elsewhere = [other["host"] for other in earlier if other.get("illegal_address") and other["host"] != host]
    if illegal and elsewhere:
        return BUG, False, [f"an illegal address on {elsewhere[0]} before, and now on {host}: not a GPU's fault but a bug, to be reported"]
    repeated = any(other["host"] == host for other in earlier)
    return HARDWARE, repeated, [f"a GPU of {host} has failed in an earlier start, too"] if repeated else []


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder, code = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    shown = {int(number) for number in re.findall(r"\d+", os.environ.get("LOG_RANK") or "0")}
    cause = find_cause(read_ends(folder), shown)
    if cause is None:
        print(code)
        return 0
    number, host = cause.rank.number, cause.rank.host
    lines = summary(cause, last_lines(folder.parent / f"rank_{number}.{host}.log"), number in shown)
    code, repeated = cause.code, False
    if code == HARDWARE:
        code, repeated, more = judge_hardware(folder, cause)
        lines += more
    print("\n".join(line if line.startswith(" ") else f"[train.slurm] {line}" for line in lines), file=sys.stderr, flush=True)
    print(code, host, *(["repeated"] if repeated else []))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    sys.exit(main())
