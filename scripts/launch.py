#!/usr/bin/env python3
"""Starts one process per rank on this host, shows their output, and ends all of them when one fails.

usage: launch.py [--max-restarts N] PROGRAM [ARGUMENT...]

  --max-restarts N  start all ranks again here after exit codes 71, 76, 137 and 139, at most N times, as long as no two starts in a row
                    save nothing new: docs/launch.md. Default: HYPERION_MAX_RESTARTS, else 0

What it reads from the environment:
  NPROC             ranks on this host; default: the GPUs that are present, else 1
  NNODES, NODE_RANK number of hosts and which one this is; default 1 and 0. With more than one host, run this on each,
                    with the same MASTER_ADDR (host of rank 0) and MASTER_PORT (default 29500)
  LOG_RANK          ranks whose output is shown, as "0" (the default) or "0,3"; every rank's output is kept in a file
                    until the job has ended well
  HYPERION_LOG_DIR  folder for those files, then kept in any case; default: a new one among the temporary files
  HYPERION_DEVICE   cpu: use no GPU even where there is one
  HYPERION_KILL_SECONDS  how long the others have to end when a rank has failed, from TERM to KILL; default 5. Raise it with
                    comm.peer_response_timeout_seconds: docs/faults.md
  HYPERION_RESTART_PORT  with several hosts and restarts: where the launcher of host 0 listens for the others; default MASTER_PORT + 1
  HYPERION_RESTART_WAIT_SECONDS  how long it waits for the ranks of all hosts to end; default 600
  OMP_NUM_THREADS   CPU threads per rank; default: an equal share of the cores
Each rank gets RANK, LOCAL_RANK, GROUP_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as from torchrun,
and HYPERION_FAILURE_DIR: a folder next to its output where it records how it failed.

A rank that fails ends the job: the others get TERM, and KILL five seconds later. One summary says which rank failed first
or was lost, its exit code or signal, host, operation and phase, what it said last, and who lost it; its code is returned
(128 + signal where a signal ended it). Ctrl-C, TERM and USR1 are passed
on to the ranks: once for an orderly end; Ctrl-C or TERM twice for one at once. Exit codes: docs/exit_codes.md.
"""
import signal

# Until the ranks can be told: the warning of SLURM waits, and Ctrl-C ends this program without a traceback.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.signal(signal.SIGINT, signal.SIG_DFL)

import collections
import ctypes
import fcntl
import functools
import glob
import itertools
import os
import pathlib
import re
import select
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import time
import tty

import failures
import restarts

SETTLE_SECONDS = 0.5  # after a first failure: time for the rank that caused it to show up as well
KILL_SECONDS = 5.0  # from TERM to KILL
DRAIN_SECONDS = 1.0  # for output of ranks that have ended, should a process they left behind hold the pipe open
USAGE = 2  # docs/exit_codes.md


def say(text):
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # the reader has closed the pipe (`| head`): the exit code says the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where Python would try again when it ends


def fail(problem, remedy):
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in problem)  # it may hold a variable's value
    say(f"[launch] {shown}\n  remedy: {remedy}")
    sys.exit(USAGE)


# --- what to start -----------------------------------------------------------------------------------------------


def number(name, default, low=1, high=1 << 20):
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        fail(f"{name} is '{text}'", f"give a whole number from {low} to {high}")
    return int(text)


def gpu_count():
    """GPUs this job may use: those present, less those that CUDA_VISIBLE_DEVICES hides."""
    if os.environ.get("HYPERION_DEVICE", "").lower() == "cpu":
        return 0
    present = len(glob.glob("/dev/nvidia[0-9]*"))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
        present = sum(line.startswith("GPU") for line in listed.stdout.splitlines()) or present
    except (OSError, subprocess.TimeoutExpired):
        pass
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if present and visible is not None:
        return min(present, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
    return present


def core_count():
    """Cores this job may use: its CPU set, less what a container's quota takes."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no quota
    return cores


held_ports = []


def free_port():
    """The loopback address of this host, of IPv6 where it has no other, and a port on which rank 0 can listen there, which the
    system gives to nobody else while this program runs."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            holder = socket.socket(family)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, 0))
        except OSError as error:
            problem = error
            continue
        held_ports.append(holder)
        return address, holder.getsockname()[1]
    fail(f"this host has no loopback address to meet at: {problem}", "bring the interface lo up, or set MASTER_ADDR and MASTER_PORT")


def check_cuda_library(program, gpus):
    """A GPU that the binary has no code for must not lead to a silent run on the CPU."""
    folder = pathlib.Path(program).resolve().parent
    libraries = [folder / "libhyperion_cuda.so", folder / "libexec" / "libhyperion_cuda.so"]  # of a build, of a bundle
    if gpus and pathlib.Path(program).name == "hyperion" and not any(library.exists() for library in libraries):
        build = "install a CUDA 13.0 toolkit (or set CUDA_HOME to one) and run scripts/setup.sh and scripts/build.sh again"
        if not pathlib.Path(__file__).with_name("build.sh").exists():
            build = "install a package of Hyperion that says \"CUDA code: yes\" where it is made, and in its METADATA or BUNDLE"
        fail(f"this host has {gpus} GPU(s), but Hyperion's CUDA code was not built ({libraries[0]} does not exist)",
             f"{build}; or set HYPERION_DEVICE=cpu to train on the CPU")


def open_descriptors(command):
    """The descriptors that arguments such as /dev/fd/63 name: `train <(sed ...)` reads its configuration from one."""
    numbers = (re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]+)", str(argument)) for argument in command)
    return tuple({int(number[1]) for number in numbers if number and int(number[1]) > 2})


def rank_environments(gpus):
    """The environment of each rank of this host."""
    nproc = number("NPROC", gpus or 1, high=1024)
    nodes = number("NNODES", 1)
    node = number("NODE_RANK", 0, low=0, high=nodes - 1)
    if nodes > 1 and not os.environ.get("MASTER_ADDR"):
        fail(f"NNODES is {nodes}, but MASTER_ADDR is not set", "set it to the host of rank 0, the same on every host")
    address, port = ("127.0.0.1", 29500) if nodes > 1 else free_port()
    common = dict(
        os.environ,
        GROUP_RANK=str(node),
        WORLD_SIZE=str(nodes * nproc),
        LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR=os.environ.get("MASTER_ADDR") or address,
        MASTER_PORT=str(number("MASTER_PORT", port, high=65535)),
        LOG_RANK=os.environ.get("LOG_RANK") or "0",
    )
    common.setdefault("OMP_NUM_THREADS", str(max(1, core_count() // nproc)))
    return [dict(common, RANK=str(node * nproc + local), LOCAL_RANK=str(local)) for local in range(nproc)]


def shown_ranks():
    text = os.environ.get("LOG_RANK") or "0"
    ranks = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 8 for part in ranks):
        fail(f"LOG_RANK is '{text}'", "give ranks separated by commas, as 0 or 0,3")
    return {int(part) for part in ranks}


# --- ranks and their output ---------------------------------------------------------------------------------------


def die_with_launcher(launcher, unblocks_warning):
    """Runs in the child: should the launcher, a process number, be killed, the rank gets TERM. Until the program runs, the
    child has the launcher's handlers, which would swallow it; and a launcher that was killed before has no children. `hyperion`
    starts with USR1 blocked, and takes one that comes meanwhile when it can answer; another program gets it at once."""
    pr_set_pdeathsig = 1
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not unblocks_warning:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != launcher:
        os._exit(failures.TERMINATED)


class Stream:
    """One output stream of a rank on its way to its log file and, where it is shown, to our own stream."""

    def __init__(self, rank, target, whole_lines):
        self.rank, self.target, self.whole_lines, self.pending = rank, target, whole_lines, b""
        if target is not None and os.isatty(target):
            # a terminal of its own, so that the rank shows colours and progress as it would on ours
            self.source, self.child_end = os.openpty()
            tty.setraw(self.child_end)
            size = fcntl.ioctl(target, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.child_end, termios.TIOCSWINSZ, size)
        else:
            self.source, self.child_end = os.pipe()

    def read(self):
        """Forwards the available output; False at the end of the stream."""
        try:
            data = os.read(self.source, 65536)
        except OSError:  # how a terminal says that its other side is closed
            data = b""
        self.rank.keep(data)
        if self.target is not None:
            self.show(data)
        return bool(data)

    def show(self, data):
        at_end, data = not data, self.pending + data
        complete = data.rfind(b"\n") + 1 if self.whole_lines and not at_end else len(data)
        data, self.pending = data[:complete], data[complete:]
        while data:
            try:
                data = data[os.write(self.target, data) :]
            except BlockingIOError:  # our stream is in non-blocking mode, and full
                select.select([], [self.target], [])
            except OSError:  # the reader has closed the pipe (`| head`): continue, the log file has it
                self.target = None
                return


class Rank:
    def __init__(self, command, environment, log_path, targets, whole_lines):
        self.number = int(environment["RANK"])
        self.code = None  # as a shell has it: 128 + number for a signal
        self.ended_at = 0.0
        self.tail = collections.deque(maxlen=failures.LAST_LINES)
        self.partial = b""
        self.log = open(log_path, "wb", buffering=0)
        self.streams = [Stream(self, target, whole_lines) for target in targets]
        try:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=None if "/dev/stdin" in command else subprocess.DEVNULL,
                pass_fds=open_descriptors(command),
                stdout=self.streams[0].child_end,
                stderr=self.streams[1].child_end,
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on
                preexec_fn=functools.partial(die_with_launcher, os.getpid(), pathlib.Path(command[0]).name == "hyperion"),
            )
        finally:
            for stream in self.streams:
                os.close(stream.child_end)

    def keep(self, data):
        try:
            self.log.write(data)
        except OSError:  # a full disk of temporary files must not end the training
            pass
        *lines, self.partial = (self.partial + data).split(b"\n")
        self.partial = self.partial[-4096:]  # also bounds a progress line that never ends
        self.tail.extend(lines)

    def last_lines(self):
        lines = [line.decode(errors="replace").split("\r")[-1] for line in [*self.tail, self.partial]]
        return [line[:500] for line in lines if line.strip()][-failures.LAST_LINES:]


class Job:
    """All ranks of this host, from start to end."""

    def __init__(self, kill_seconds, signals):
        self.ranks = []
        self.asked_to_stop = False  # a signal was passed on
        self.urgency = 0  # how often it was Ctrl-C or TERM; USR1 is a warning, which may be repeated
        self.failed = []  # ranks that failed, in the order it was seen
        self.failed_at = None  # when the first did
        self.term_sent = self.kill_sent = False
        self.kill_at = None
        self.kill_seconds = kill_seconds  # from TERM to KILL, once a rank has failed
        self.open_streams = 0
        self.selector = selectors.DefaultSelector()
        self.signals = signals
        self.selector.register(signals.wake, selectors.EVENT_READ, None)

    def add(self, rank):
        self.ranks.append(rank)
        for stream in rank.streams:
            self.selector.register(stream.source, selectors.EVENT_READ, stream)
            self.open_streams += 1

    def run(self):
        """Returns the exit code of the job."""
        self.reap()
        while any(rank.code is None for rank in self.ranks):
            for key, _ in self.selector.select(self.seconds_to_next_deadline()):
                if key.data is not None:
                    self.read(key)
                else:
                    for number in self.signals.read():
                        self.pass_on(number)
            self.reap()
            self.keep_deadlines()
        self.drain()
        return self.result()

    def signal_all(self, number):
        self.kill_sent = self.kill_sent or number == signal.SIGKILL
        for rank in self.ranks:
            if rank.process.poll() is None:
                os.killpg(rank.process.pid, number)

    def read(self, key):
        if not key.data.read():
            self.selector.unregister(key.fileobj)
            os.close(key.fileobj)
            self.open_streams -= 1

    def drain(self):
        """Reads to the end, or what a pipe holds when the time is over, which on a busy host may be at once."""
        self.selector.unregister(self.signals.wake)
        end, late_rounds = time.monotonic() + DRAIN_SECONDS, 0
        while self.open_streams and late_rounds < 4:
            seconds_left = end - time.monotonic()
            late_rounds += seconds_left <= 0
            for key, _ in self.selector.select(max(0.0, seconds_left)):
                self.read(key)

    def pass_on(self, number):
        number = signal.SIGTERM if number == signal.SIGHUP else number
        self.asked_to_stop = True
        self.urgency += number != signal.SIGUSR1
        if self.urgency > 1 and self.kill_at is None:
            self.kill_at = time.monotonic() + KILL_SECONDS
        self.signal_all(number if self.urgency < 3 else signal.SIGKILL)

    def is_failure(self, code):
        orderly = {failures.DONE, failures.STOPPED_SAVED}
        if self.asked_to_stop:  # the ranks end by the signal, each in its own time
            orderly |= {130, failures.TERMINATED, 128 + signal.SIGUSR1}
        return code not in orderly

    def reap(self):
        for rank in self.ranks:
            if rank.code is None and rank.process.poll() is not None:
                code = rank.process.returncode  # negative for a signal
                rank.code = code if code >= 0 else 128 - code
                rank.ended_at = time.monotonic()
                if self.is_failure(rank.code) and not (self.term_sent or self.kill_sent):
                    self.failed.append(rank)
                    self.failed_at = self.failed_at or time.monotonic()

    def seconds_to_next_deadline(self):
        deadlines = [self.kill_at] if self.kill_at and not self.kill_sent else []
        if self.failed and not self.term_sent:
            deadlines.append(self.failed_at + SETTLE_SECONDS)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def keep_deadlines(self):
        now = time.monotonic()
        if self.failed and not self.term_sent and now >= self.failed_at + SETTLE_SECONDS:
            self.term_sent = True
            self.kill_at = self.kill_at or now + self.kill_seconds
            self.signal_all(signal.SIGTERM)
        if self.kill_at and not self.kill_sent and now >= self.kill_at:
            self.signal_all(signal.SIGKILL)

    def result(self):
        return next((rank.code for rank in self.ranks if rank.code), failures.DONE)


def report(job, shown, log_folder, failure_folder, started):
    """Prints which rank failed first or was lost, how, and where its output is. Returns the Cause."""
    records = failures.read_records(failure_folder)
    records = {number: record for number, record in records.items() if record["time"] >= started}  # not an earlier run's
    ends = []
    for rank in job.ranks:
        code = rank.code if rank in job.failed else None  # the others were ended by us
        ends.append(failures.RankEnd(rank.number, code, rank.ended_at, record=records.pop(rank.number, {})))
    ends += [failures.RankEnd(number, record=record) for number, record in records.items()]  # of other hosts, where shared
    cause = failures.find_cause(ends, shown)
    own = next((rank for rank in job.ranks if rank.number == cause.rank.number), None)
    said_above = own is not None and own.number in shown and (len(job.ranks) == 1 or cause.rank.record.get("message"))
    last_lines = own.last_lines() if own and not said_above else None
    lines = failures.summary(cause, last_lines, said_above)
    others = [f"rank {rank.number}: {failures.describe(rank.code)}" for rank in job.ranks if rank is not own]
    if others:
        some = ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
        lines.append(f"the others have ended: {some}")
    lines.append(f"all output: {log_folder}/rank_N.log")
    say("\n".join(line if line.startswith(" ") else f"[launch] {line}" for line in lines))
    return cause


def run_start(command, environments, shown, log_folder, failure_folder, signals):
    """Starts the ranks and waits for their end. Returns the Job and, where a rank failed, the Cause."""
    kill_seconds = number("HYPERION_KILL_SECONDS", KILL_SECONDS)
    several = sum(int(environment["RANK"]) in shown for environment in environments) > 1
    started = time.time()
    job = Job(kill_seconds, signals)
    try:
        for environment in environments:
            environment["HYPERION_FAILURE_DIR"] = failure_folder
            targets = (1, 2) if int(environment["RANK"]) in shown else (None, None)
            log_path = os.path.join(log_folder, f"rank_{environment['RANK']}.log")
            job.add(Rank(command, environment, log_path, targets, several))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        job.run()
    except OSError as error:
        fail(f"cannot start the ranks: {error}", f"check {command[0]} and {log_folder}")
    finally:
        job.signal_all(signal.SIGKILL)  # whatever happened here, no rank is left behind
    return job, report(job, shown, log_folder, failure_folder, started) if job.failed else None


def option_of_restarts(words):
    """How often to start again at most, and the command behind the option."""
    option, value = "--max-restarts", None
    if words[0] == option and len(words) > 1:
        value, words = words[1], words[2:]
    elif words[0].startswith(option + "="):
        value, words = words[0].partition("=")[2], words[1:]
    if value is not None:
        os.environ["HYPERION_MAX_RESTARTS"] = value
    if not words:
        fail("no program to start is given", "write it behind the options")
    return number("HYPERION_MAX_RESTARTS", 0, low=0, high=1000000), words


def peers_of_restarts(environment, signals):
    """The launchers of the other hosts, where there are any."""
    node, nodes = int(environment["GROUP_RANK"]), int(environment["WORLD_SIZE"]) // int(environment["LOCAL_WORLD_SIZE"])
    if nodes == 1:
        return None
    address, port = environment["MASTER_ADDR"], number("HYPERION_RESTART_PORT", int(environment["MASTER_PORT"]) % 65535 + 1, high=65535)
    if node > 0:
        return restarts.OtherHost(address, port, node, signals)
    try:
        return restarts.FirstHost(address, port, nodes, signals)
    except OSError as error:
        fail(f"the launchers of the other hosts cannot reach this one at {address}:{port}: {error}", "set HYPERION_RESTART_PORT to a free port, the same on every host")


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
        print(__doc__.strip(), file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        return 0 if len(sys.argv) > 1 else USAGE
    most, command = option_of_restarts(sys.argv[1:])
    program = shutil.which(command[0])
    if program is None:
        fail(f"'{command[0]}' is no program that can be run", "build it with scripts/build.sh, or check the name")
    gpus = gpu_count()
    check_cuda_library(program, gpus)
    environments = rank_environments(gpus)
    shown = shown_ranks()
    patience = number("HYPERION_RESTART_WAIT_SECONDS", 600)
    kept = os.environ.get("HYPERION_LOG_DIR")
    failure_folder, progress_file = os.environ.get("HYPERION_FAILURE_DIR"), os.environ.get("HYPERION_PROGRESS_FILE")
    signals = restarts.Signals()
    try:
        log_folder = kept or tempfile.mkdtemp(prefix="hyperion-logs-")
        policy = restarts.Restarts(most, signals, say, peers_of_restarts(environments[0], signals) if most else None, patience)
        for start in itertools.count():
            folder = os.path.join(log_folder, f"start-{start}") if most else log_folder
            os.makedirs(folder, exist_ok=True)
            if most:  # rank 0 writes there what it saves
                progress = pathlib.Path(os.path.abspath(progress_file or os.path.join(folder, "progress")))
                progress.unlink(missing_ok=True)
                environments[0]["HYPERION_PROGRESS_FILE"] = str(progress)
            began = time.monotonic()
            job, cause = run_start([program, *command[1:]], environments, shown, folder,
                                   failure_folder or os.path.join(os.path.abspath(folder), "failures"), signals)
            code = cause.code if cause else job.result()
            if most and job.asked_to_stop:
                policy.end(code)
                break
            if not most or not policy.again(code, failures.headline(cause) if cause else "", progress, time.monotonic() - began):
                break
    except restarts.Stopped as stopped:
        say(f"[launch] ended before the next start: {stopped}")
        return 130 if stopped.signal_number == signal.SIGINT else failures.TERMINATED
    except OSError as error:
        fail(f"no folder can be made for the output of the ranks: {error}", "set HYPERION_LOG_DIR to a folder that can be written")
    if not cause and not kept:
        shutil.rmtree(log_folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
