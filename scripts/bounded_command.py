"""Commands under a time limit of which nothing is left behind, whatever they started: for scripts/gpu_check.py. Linux.

The ranks of scripts/launch.py are in sessions of their own, and one that hangs on a GPU may ignore TERM. So this process adopts
the orphans among its descendants (it is their subreaper), and finds all of them in /proc.
"""
import ctypes
import os
import pathlib
import signal
import subprocess
import time

TERM_SECONDS = 3.0  # from TERM to KILL
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

libc = ctypes.CDLL(None, use_errno=True)
background = {}  # process -> Popen: what runs alongside the commands until the end


class Stopped(Exception):
    """TERM or INT came."""

    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.number = number


def prepare():
    """Once, before the first command: adopt orphans, and let TERM and INT raise Stopped."""
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")

    def stop(number, _):
        for caught in (signal.SIGTERM, signal.SIGINT):
            signal.signal(caught, signal.SIG_IGN)  # what follows is the orderly end that was asked for
        raise Stopped(number)

    for caught in (signal.SIGTERM, signal.SIGINT):
        signal.signal(caught, stop)


def processes():
    """[(process, its state, its parent)] of this system."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue  # it ended meanwhile
            found.append((int(entry.name), state, int(parent)))
    return found


def descendants():
    """Processes started by this one, directly or not, without those that have ended or run in the background."""
    living = [(process, parent) for process, state, parent in processes() if state not in "ZX"]
    found, newest = set(), {os.getpid()}
    while newest:
        newest = {process for process, parent in living if parent in newest} - found - set(background)
        found |= newest
    return found


def reap(child):
    """Collects what has ended: `child`, whose exit code its Popen keeps, and orphans."""
    if child:
        child.poll()
    for process, state, parent in processes():
        if state == "Z" and parent == os.getpid():
            try:
                os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                pass


def send(receivers, number):
    for process in receivers:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def end_descendants(child=None):
    """TERM, and KILL to what is left after three seconds, until nothing is left. Returns how many processes got KILL."""
    killed, end = set(), time.monotonic() + TERM_SECONDS
    send(descendants(), signal.SIGTERM)
    while left := descendants():
        if time.monotonic() > end:
            killed |= left
            send(left, signal.SIGKILL)
        reap(child)
        time.sleep(0.02)
    reap(child)
    return len(killed)


def die_with_parent(number):
    return lambda: libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def start_background(command, output, environment):
    """A process that outlives the commands, with stdout into the file `output`: end_background() ends it, or the end of this one."""
    with open(output, "wb") as file:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                 start_new_session=True, preexec_fn=die_with_parent(signal.SIGKILL))
    background[child.pid] = child
    return child


def end_background():
    for child in background.values():
        child.kill()
        child.wait()
    background.clear()


def run(command, seconds, output, cwd, environment):
    """Runs `command` with stdout and stderr into the file `output`. Returns its exit code (negative: a signal ended it; None: it was
    ended at its limit) and how many of its processes had to be killed. Stopped passes through when nothing of it is left."""
    with open(output, "wb") as file:
        child = subprocess.Popen(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                 start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM))
    code = None
    try:
        code = child.wait(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        pass
    finally:
        killed = end_descendants(child)
    return code, killed
