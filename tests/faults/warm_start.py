"""Starts a program that has loaded its libraries already, and runs it to its end: a small job takes less processor time than to load libtorch.

For each program and each choice of what it loads one process waits (tests/support/warm_start.cpp) and is forked for every command. The new
process is a child of this one, and what it runs, reads and prints is what it would from a shell; but it ends without libtorch's destructors.
Where there is no such library (sanitizers) or HYPERION_TEST_COLD is set, every command starts a program of its own.
Standard library only.
"""

import array
import atexit
import ctypes
import os
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

LIBRARY = "libwarm_start.so"
# Read before main().
EARLY = re.compile("HYPERION_WARM_LIBRARY|OMP_|GOMP_|KMP_|MKL_|LD_|GLIBC_|MALLOC_|TORCH|PYTORCH_|ATEN_|CUDA_|KINETO_")
COLD = {"HYPERION_TEST_COLD", "HYPERION_SIMULATED_LOAD_SECONDS"}
PR_SET_CHILD_SUBREAPER = 36
_lock = threading.Lock()  # one command at a time
_servers = {}  # program and variables that it reads before main() -> socket


class Process:
    """What the tests use of a subprocess.Popen."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None
        self.handle = os.pidfd_open(pid)
        self.lock = threading.Lock()  # of what is known of its end

    def poll(self):
        return self.returncode if self.ended_within(0) else None

    def wait(self, timeout=None):
        if not self.ended_within(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def ended_within(self, seconds):
        if self.returncode is not None:
            return True
        ready = select.poll()
        ready.register(self.handle, select.POLLIN)
        if not ready.poll(None if seconds is None else 1000 * seconds):
            return False
        with self.lock:
            if self.returncode is None:  # else another thread has it
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return True

    def __del__(self):
        os.close(self.handle)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _server(waiting, environment):
    """The socket of the process that waits for commands."""
    early = {name: value for name, value in environment.items() if EARLY.match(name)}
    key = *map(str, waiting), *sorted(early.items())
    if key not in _servers:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **early, "HYPERION_WARM_START": str(theirs.fileno())}
        with theirs:
            process = subprocess.Popen(waiting, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(process.wait)
        atexit.register(ours.close)  # which is done first, and ends it
        _servers[key] = ours
    return _servers[key]


def _server_of_program(program, environment):
    """Nothing where there can be none."""
    library = program.parent / LIBRARY
    if not library.exists() or COLD & environment.keys():
        return None
    preloaded = environment.get("LD_PRELOAD", "")
    more = {"LD_PRELOAD": f"{library}:{preloaded}".rstrip(":")}
    if "simulated_gpu" in preloaded and not any(name.startswith("PYTORCH_") for name in environment):
        # What the program loads for a GPU, and how.
        more |= {"HYPERION_WARM_LIBRARY": str(program.parent / "libhyperion_cuda.so"), "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    return _server([program], {**environment, **more})


def start(command, env, cwd, stdout, stderr, waiting=None):
    """A process of `command`, whose first word is a program's path; outputs are open files. `waiting`: the command of a process that waits
    for this one, where it is not the program itself."""
    command = [os.fspath(word) if isinstance(word, Path) else str(word) for word in command]
    environment = {name: str(value) for name, value in env.items()}
    with _lock:
        server = _server(waiting, environment) if waiting else _server_of_program(Path(command[0]), environment)
        if server is None:
            return subprocess.Popen(command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        environment.pop("LD_PRELOAD", None)  # it is loaded, and not meant for what the program starts
        words = [str(len(command)), os.path.abspath(cwd or os.getcwd()), *command, *(f"{name}={value}" for name, value in environment.items())]
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        outputs = array.array("i", [stdout.fileno(), stderr.fileno()])
        server.sendmsg([struct.pack("I", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, outputs)])
        server.sendall(text)
        answer = server.recv(5, socket.MSG_WAITALL)
        if len(answer) != 5:
            raise RuntimeError(f"{command[0]}: the process that waits for commands has ended")
        return Process(struct.unpack("=iB", answer)[0])


def run(command, env=None, cwd=None, stderr=None, check=False, text=True, timeout=240):
    """As subprocess.run(capture_output=True); stderr=subprocess.STDOUT: both outputs are one."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(command, os.environ if env is None else env, cwd, out, out if stderr == subprocess.STDOUT else err)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace") if text else file.read())
    done = subprocess.CompletedProcess(command, code, *said)
    if check:
        done.check_returncode()
    return done
