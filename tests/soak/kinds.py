"""The faults of a soak. Each is a function of the soak that does one thing to the job and returns what it did.

A kind says how the job may end after it: `codes` of the launcher, as a shell has them. 0 may come after any: the job was about to end. Without codes
the job is to go on.
"""

import contextlib
import dataclasses
import os
import signal
import time

import processes

KILLED, LOST, STOPPED, INTERRUPTED, TERMINATED, NO_SAVE, NO_START = 137, 71, 75, 130, 143, 74, 73  # docs/exit_codes.md


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    what: str
    act: object
    codes: frozenset = frozenset()
    needs: object = lambda: True
    may_go_on: bool = False  # the job may also go on


KINDS = []


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kind(*codes, needs=lambda: True, may_go_on=False):
    def add(act):
        KINDS.append(Kind(act.__name__, act.__doc__, act, frozenset(codes), needs, may_go_on))
        return act
    return add


def mounted():
    return not processes.refused()


@kind(KILLED)
def kill_rank(soak, job):
    """kill -9 of one rank"""
    return job.signal_rank(soak.choose.randrange(soak.ranks), signal.SIGKILL)


@kind(KILLED)
def kill_all(soak, job):
    """kill -9 of all ranks"""
    for rank in range(soak.ranks):
        job.signal_rank(rank, signal.SIGKILL)
    return "all ranks"


@kind(KILLED)
def kill_launcher(soak, job):
    """kill -9 of the launcher"""
    job.process.kill()
    return "launcher"


@kind(STOPPED, TERMINATED)
def term(soak, job):
    """TERM to the launcher"""
    job.process.terminate()
    return "launcher"


@kind(STOPPED, TERMINATED)
def usr1(soak, job):
    """USR1 to the launcher, as a batch system warns"""
    job.process.send_signal(signal.SIGUSR1)
    return "launcher"


@kind(STOPPED, TERMINATED, LOST)  # 71: of the others, when the rank was still starting
def term_rank(soak, job):
    """TERM to one rank"""
    return job.signal_rank(soak.choose.randrange(soak.ranks), signal.SIGTERM)


@kind(INTERRUPTED)
def interrupt(soak, job):
    """Ctrl-C"""
    job.process.send_signal(signal.SIGINT)
    return "launcher"


@kind(KILLED, LOST, may_go_on=True)  # where the machine held up the others
def stop_long(soak, job):
    """STOP of one rank for longer than the timeout, then CONT"""
    rank = soak.choose.randrange(soak.ranks)
    said = job.signal_rank(rank, signal.SIGSTOP)
    soak.later(soak.timeout * 1.5, lambda: job.signal_rank(rank, signal.SIGCONT))
    return said


@kind()
def stop_short(soak, job):
    """STOP of one rank for less than the timeout, then CONT"""
    rank, seconds = soak.choose.randrange(soak.ranks), soak.choose.uniform(0.05, 0.3) * soak.timeout
    job.signal_rank(rank, signal.SIGSTOP)
    soak.later(seconds, lambda: job.signal_rank(rank, signal.SIGCONT))
    return f"rank {rank} for {seconds:.1f} s"


@kind()
def stop_everything(soak, job):
    """STOP of the launcher and all ranks, then CONT, as a virtual machine that is paused"""
    seconds = soak.choose.uniform(0.05, 0.3) * soak.timeout
    pids = [job.process.pid, *job.ranks().values()]
    for pid in pids:
        send(pid, signal.SIGSTOP)
    soak.later(seconds, lambda: [send(pid, signal.SIGCONT) for pid in pids])
    return f"{seconds:.1f} s"


@kind(NO_SAVE, NO_START, needs=mounted)
def full_disk(soak, job):
    """the disk of the checkpoints is full for a while"""
    seconds = soak.choose.uniform(0.5, 1) * soak.interval
    size = soak.fill_disk()
    soak.later(seconds, soak.free_disk)
    return f"{size >> 20} MiB for {seconds:.0f} s, on_save_failure={job.policy}"


@kind(LOST, KILLED, needs=processes.can_cut, may_go_on=True)
def cut_connections(soak, job):
    """every connection of one rank is reset"""
    rank = soak.choose.randrange(soak.ranks)
    return f"rank {rank}, {processes.cut_connections(job.ranks()[rank])} connections"


def damaging(what):
    """The launcher is killed; what the decorated function does to a file happens to the newest checkpoint before the restart."""
    def add(change):
        def act(soak, job):
            job.process.kill()
            soak.damage = change
            return "launcher"
        KINDS.append(Kind(change.__name__, f"kill -9 of the launcher, and {what}", act, frozenset({KILLED})))
        return change
    return add


@damaging("one bit of the newest checkpoint is changed")
def flip_bit(soak, path):
    with open(path, "r+b") as file:
        place = soak.choose.randrange(path.stat().st_size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << soak.choose.randrange(8)]))
    return f"byte {place} of {path.parent.name}/{path.name}"


@damaging("one file of the newest checkpoint is cut short")
def truncate_file(soak, path):
    size = soak.choose.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.parent.name}/{path.name} to {size} bytes"


@damaging("one file of the newest checkpoint is removed")
def remove_file(soak, path):
    path.unlink()
    return f"{path.parent.name}/{path.name}"


def of_mode(restarts, names=None):
    """The kinds that can be had here, and the lines that say which cannot. `names`: no others."""
    if names:
        unknown = set(names) - {found.name for found in KINDS}
        if unknown:
            raise SystemExit(f"--kinds: there is no {', '.join(sorted(unknown))}; there are {', '.join(found.name for found in KINDS)}")
    quiet = {"stop_short", "stop_everything", "full_disk"}
    chosen = [found for found in KINDS if (found.name in names if names else restarts or found.name in quiet)]
    return [found for found in chosen if found.needs()], [found.name for found in chosen if not found.needs()]


class Later:
    """What is to be done at a time."""

    def __init__(self):
        self.entries = []

    def add(self, seconds, act):
        self.entries.append((time.monotonic() + seconds, act))

    def run(self, everything=False):
        due = [entry for entry in self.entries if everything or entry[0] <= time.monotonic()]
        self.entries = [entry for entry in self.entries if entry not in due]
        for _, act in due:
            act()
