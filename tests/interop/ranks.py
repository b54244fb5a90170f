"""Starts the ranks of one job on this host and watches them from outside: when step lines arrive, how much memory."""

import contextlib
import ctypes
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "faults"))

import warm_start  # noqa: E402

WARM = "HYPERION_TEST_WARM"  # set by run.sh: ranks start from a process that has loaded their libraries; never where speed is measured
PEER_MODULES = "torchao.float8", "torchtitan.train"
ROOT = HERE.parent.parent  # every rank runs here: v0.2.2's default paths are relative to the repository
_LIBC = ctypes.CDLL(None)
_STEP_LINE = re.compile(r"step:\s+(\d+)\s+loss:")


@dataclass
class Run:
    """What was seen of a job: times in seconds since launch, memory in bytes."""

    seconds: float = 0.0
    step_seconds: dict[int, float] = field(default_factory=dict)  # step -> arrival of rank 0's step line
    peak_rss: list[int] = field(default_factory=list)  # by rank
    start_rss: int = 0  # of rank 0, resident when our first step begins
    processor_seconds: float = 0.0  # of all ranks


def _resident(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _die_with_parent(parent: int) -> None:
    """In a rank before it starts: Linux kills it when we are killed, by ctest's time limit for example."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # killed before
        os._exit(1)


class JobFailed(RuntimeError):
    """A rank ended with an error, or the time was up. The message has the rank's last lines."""


def run_ranks(command: list[str], world: int, threads: int = 1, env: dict | None = None, timeout: float = 900,
              waiting: list[str] | None = None) -> Run:
    """Runs `command` once a rank, with the environment of torchrun. Ends all ranks when one fails. `waiting`: see warm_start.start()."""
    holder = socket.socket()  # until all is done: rank 0 can listen on its port, and nobody else is given it
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    run = Run(peak_rss=[0] * world)
    lines, codes = [[] for _ in range(world)], [None] * world
    changed = threading.Condition()
    start = time.perf_counter()

    def spawn(rank):
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        of_rank |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads, **(env or {})}
        environment = os.environ | {key: str(value) for key, value in of_rank.items()}
        if os.environ.get(WARM):
            out, into = os.pipe()
            with open(into, "wb") as output:
                process = warm_start.start(command, environment, ROOT, output, output, waiting)
            process.stdout = open(out, errors="replace")
            return process
        return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, errors="replace",
                                preexec_fn=functools.partial(_die_with_parent, os.getpid()), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    processes = [spawn(rank) for rank in range(world)]

    def watch(rank):
        for line in processes[rank].stdout:
            lines[rank].append(line)
            match = _STEP_LINE.search(line)
            if rank == 0 and match:
                run.step_seconds.setdefault(int(match[1]), time.perf_counter() - start)
            if rank == 0 and "Training starts at step" in line:
                run.start_rss = _resident(processes[0].pid)
        _, status, usage = os.wait4(processes[rank].pid, 0)
        processes[rank].returncode = os.waitstatus_to_exitcode(status)
        run.peak_rss[rank] = usage.ru_maxrss * 1024
        with changed:
            run.processor_seconds += usage.ru_utime + usage.ru_stime
            codes[rank] = processes[rank].returncode
            changed.notify()

    watchers = [threading.Thread(target=watch, args=(rank,), daemon=True) for rank in range(world)]
    for watcher in watchers:
        watcher.start()
    with changed:
        done = changed.wait_for(lambda: None not in codes or any(codes), timeout)
        failed = next((rank for rank in range(world) if codes[rank]), 0)
        error = f"rank {failed} ended with {codes[failed]}" if done else f"not done after {timeout:.0f} s"
    if not done or any(codes):
        for process in processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # its watcher waits for it, and no one else
                    os.kill(process.pid, signal.SIGKILL)
        for watcher in watchers:
            watcher.join(10)
        raise JobFailed(f"{error}: {' '.join(command)}\n{''.join(lines[failed][-30:])}")
    for watcher in watchers:
        watcher.join()
    run.seconds = time.perf_counter() - start
    return run


def preloaded(python: Path | str, *modules: str) -> list[str]:
    """The command of a process that has imported the modules and waits for programs of that Python."""
    return [os.path.abspath(python), str(HERE / "peer" / "preloaded.py"), *modules]


def run_torchtitan(python: Path, arguments: list[str], world: int, threads: int = 1, env: dict | None = None,
                   timeout: float = 1800, program: str = "peer/torchtitan_cpu.py") -> Run:
    """Runs the peer (a program of this folder, which documents the environment) with that Python."""
    libraries = [f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/lib64", os.environ.get("LD_LIBRARY_PATH", "")]
    peer = {"PEER_THREADS": threads, "HF_HUB_OFFLINE": 1}
    peer |= {"LD_LIBRARY_PATH": ":".join(filter(None, libraries)), **(env or {})}
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.abspath(python), str(HERE / program), *arguments, f"--job.dump_folder={folder}"]
        return run_ranks(command, world, threads, peer, timeout, preloaded(python, *PEER_MODULES))


def run_hyperion(binary: Path, arguments: list[str], world: int, threads: int = 1, env: dict | None = None,
                 timeout: float = 900) -> Run:
    """Runs `hyperion train` with those arguments."""
    return run_ranks([os.path.abspath(binary), "train", *arguments], world, threads, env, timeout)


if __name__ == "__main__":
    sys.exit("ranks.py is a library: see make_goldens.py and against_torchtitan.py")
