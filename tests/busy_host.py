"""Runs a command as if the host were busy: the processes that it starts stand still at random, each for a moment, all for longer.

    python3 tests/busy_host.py [--one SECONDS] [--all SECONDS] [--seed N] COMMAND...
    python3 tests/busy_host.py ctest --test-dir build -R faults -j 3

A test that fails so counts on when something happens. The command itself runs on; its exit code is this program's. Standard library
only.
"""

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
BETWEEN = {"one": 1.5, "all": 6.0}  # seconds, at most


def children(process: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has ended
        return [int(child) for task in Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()]
    return []


def running_below(root: int) -> list[int]:
    """The descendants of a process that nobody has stopped and that have not ended."""
    found, left = [], children(root)
    while left:
        process = left.pop()
        left += children(process)
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "RSD":
                found.append(process)
    return found


def send(processes: list[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def disturb(command: subprocess.Popen, longest: dict[str, float], choose: random.Random) -> None:
    """Until the command ends."""
    next_time = {kind: time.monotonic() + choose.uniform(0, BETWEEN[kind]) for kind in longest}
    while command.poll() is None:
        kind = min(next_time, key=next_time.get)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(max(0, next_time[kind] - time.monotonic()))
        processes = [process for process in running_below(os.getpid()) if process != command.pid]
        stopped = choose.sample(processes, 1 if kind == "one" else len(processes)) if processes else []
        send(stopped, signal.SIGSTOP)
        time.sleep(choose.uniform(0, longest[kind]))
        send(stopped, signal.SIGCONT)
        next_time[kind] = time.monotonic() + choose.uniform(0, BETWEEN[kind])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--one", type=float, default=0.25, metavar="SECONDS", help="the longest pause of one process (0.25)")
    parser.add_argument("--all", type=float, default=2, metavar="SECONDS", help="the longest pause of all at once (2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, and its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error("no command")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what outlives its parent stays below this process
    command = subprocess.Popen(options.command)
    try:
        disturb(command, {"one": options.one, "all": options.all}, random.Random(options.seed))
    except KeyboardInterrupt:  # the command has got it too
        command.wait()
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


if __name__ == "__main__":
    raise SystemExit(main())
