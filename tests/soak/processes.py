"""What Linux says of the processes of a soak: who they are, what they hold, and what is left when all of them have ended.

Standard library only.
"""

import contextlib
import fcntl
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ENTERED = "HYPERION_SOAK_SPACES"  # set to "yes" inside, or to why there are none
MARK = "HYPERION_SOAK"  # a variable that every process of a soak has, with its number
STATUS_FIELDS = ("PPid", "VmRSS", "Threads")


def enter():
    """Re-executes this program in namespaces of its own for mounts, network and shared memory, where the machine lets it: there the
    checkpoints have a small file system, connections can be cut, and whatever is left afterwards is left by the soak."""
    if ENTERED in os.environ:
        return
    command = ["unshare", "--mount", "--net", "--ipc", *(["--map-root-user"] if os.getuid() != 0 else [])]
    setup = ["sh", "-c", 'mount -t tmpfs -o size=1g none /dev/shm && ip link set lo up && exec "$@"', "-"]
    try:
        probe = subprocess.run([*command, *setup, "true"], capture_output=True, text=True)
        answer = "yes" if probe.returncode == 0 else probe.stderr.strip()
    except OSError as error:
        answer = str(error)
    os.environ[ENTERED] = answer
    if answer == "yes":
        os.execvp(command[0], [*command, *setup, sys.executable, *sys.argv])


def refused():
    """Why there are no namespaces, or an empty text."""
    answer = os.environ.get(ENTERED, "processes.enter() was not called")
    return "" if answer == "yes" else f"this machine gives no namespaces for mounts and network: {answer}"


def status(pid):
    """The numbers of /proc/PID/status that are used here; empty when the process has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    found = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", text, re.MULTILINE) if name in STATUS_FIELDS}
    return {} if re.search(r"^State:\s+[ZX]", text, re.MULTILINE) else found


def variables(pid):
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def marked(mark):
    """pid -> variables of the processes of this soak, but this one."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if pid != os.getpid() and status(pid):
            own = variables(pid)
            if own.get(MARK) == mark:
                found[pid] = own
    return found


def sample(pid):
    """Resident KiB, open files and threads of a process, or None when it has ended."""
    now = status(pid)
    try:
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    return (now["VmRSS"], files, now["Threads"]) if "VmRSS" in now else None


def growth_per_hour(points):
    """The median slope between any two of (seconds, value), as a share of the median value an hour."""
    step = max(1, len(points) // 300)
    few = points[::step]
    slopes = [(b - a) / (t - s) for i, (s, a) in enumerate(few) for t, b in few[i + 1:] if t > s]
    middle = statistics.median(value for _, value in few) if few else 0
    return 3600 * statistics.median(slopes) / middle if slopes and middle else 0.0


def cut_connections(pid):
    """Ends every TCP connection of a process as a broken network does: both ends are reset. Returns how many."""
    shown = subprocess.run(["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=True).stdout
    ends = [line.split()[2:4] for line in shown.splitlines() if f"pid={pid}," in line]
    for local, peer in ends:
        subprocess.run(["ss", "-K", "src", local, "dst", peer], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return len(ends)


def can_cut():
    return not refused() and shutil.which("ss") is not None


def shared_memory():
    """Names of shared memory objects and numbers of System V segments."""
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir()} | {f"segment {line.split()[1]}" for line in segments}


def sockets():
    """TCP sockets that listen or are connected, in this network namespace."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] in ("01", "08", "0A"):  # established, closed by the peer alone, listening
                    found.add(f"{name} {fields[1]} {fields[2]}")
    return found


def locked(path):
    """Whether a process still holds the lock of a checkpoint folder."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


class LeftBehind:
    """What a soak leaves: compared with what was there before it."""

    def __init__(self, mark):
        self.mark, self.shared = mark, shared_memory()

    def found(self, out, temporary, seconds):
        """One line for each thing. Processes that are about to end are waited for."""
        end = time.monotonic() + seconds
        while marked(self.mark) and time.monotonic() < end:
            time.sleep(0.1)
        lines = [f"process {pid}: rank {own.get('RANK', '-')}" for pid, own in marked(self.mark).items()]
        lines += [f"shared memory: {name}" for name in sorted(shared_memory() - self.shared)]
        if not refused():
            lines += [f"socket: {text}" for text in sorted(sockets())]
        unfinished = re.compile(r"\.(incoming|trash|tmp|partial)|\.(tmp|partial)$|~$")
        lines += [f"file: {path}" for path in sorted(out.rglob("*")) if unfinished.search(path.name)]
        lines += [f"temporary file: {path}" for path in sorted(temporary.iterdir())]
        checkpoints = out / "checkpoint"
        lines += [f"in the folder of checkpoints: {path.name}" for path in sorted(checkpoints.iterdir())
                  if path.name != ".lock" and not re.fullmatch(r"step-\d+", path.name)]
        if (checkpoints / ".lock").exists() and locked(checkpoints / ".lock"):
            lines.append("the lock of the folder of checkpoints is held")
        return lines
