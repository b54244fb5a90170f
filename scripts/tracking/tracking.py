#!/usr/bin/env python3
"""Passes the lines of a job's metrics.jsonl on while it trains: to Weights & Biases, to MLflow, or events to a command of the user.

usage: tracking.py [--check] <JOB

Rank 0 of the job starts it (trainer/metrics/tracking.cpp), one process for each tracker.
  stdin   a pipe from rank 0. Its first line is JSON: `tracker` (with --check `trackers`), `folder` (the job's dump_folder), `run` (the id
          of this start), `program` (the path of hyperion) and `options` (the keys of [metrics]). The second is the job's exit code when
          it ends; the end of the pipe without a code says that rank 0 was killed.
  stdout  lines that rank 0 logs
  stderr  FOLDER/tracking/TRACKER.log
It always reads the file from its beginning and asks the tracker how many rows it holds: a row is sent once, whoever was killed when.
With --check it only says on stdout, in one sentence, what is missing, and ends with 2.
docs/tracking.md. Standard library, and the package of the tracker.
"""
import fcntl
import importlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

FINISH_SECONDS = 600.0  # after the job's end
POLL_SECONDS = 0.5
ALERT_COMMAND_SECONDS = 60.0
USAGE = 2
ORDERLY = (0, 75, 130, 143)  # docs/exit_codes.md: done, or stopped by a signal
CAUSES = {71: "a rank was lost or stood still", 72: "memory, threads or files ran out", 73: "storage before step 1", 74: "a save failed",
          76: "a GPU failed", 93: "numbers are not finite"}


def say(text):
    """A line for the job's log."""
    print(text, file=sys.stderr, flush=True)
    try:
        print(" ".join(text.splitlines()), flush=True)
    except OSError:  # rank 0 has ended
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


def number(value):
    return float(value) if isinstance(value, str) else value  # "NaN", "Infinity", "-Infinity"


def parse_row(line):
    """None for a line that a crash has cut off."""
    try:
        row = json.loads(line)
        return row if isinstance(row["step"], int) and isinstance(row["time"], (int, float)) and isinstance(row["run_id"], str) else None
    except (ValueError, KeyError, TypeError):
        return None


class Rows:
    """The rows of a file that grows. It stays the same file when a later job renames it."""

    def __init__(self, path):
        self.file = open(path, "rb")
        self.partial = b""

    def read(self):
        """The rows of the lines that have been completed since the last call."""
        while data := self.file.read(1 << 20):
            *lines, self.partial = (self.partial + data).split(b"\n")
            yield from filter(None, map(parse_row, lines))


class History:
    """Counts the rows of metrics. Of a step that a resume makes again the first row counts: a tracker cannot take a point back."""

    def __init__(self):
        self.count = 0
        self.highest = {}

    def add(self, row):
        """The number of the row, or None."""
        kind = any(key.startswith("validation_metrics/") for key in row)
        if row["step"] <= self.highest.get(kind, -1):
            return None
        self.highest[kind] = row["step"]
        self.count += 1
        return self.count - 1


class State(dict):
    """Keeps the state of a tracker over restarts of the job, in FOLDER/tracking/TRACKER.json."""

    def __init__(self, path, job, run):
        self.path = path
        try:
            kept = json.loads(path.read_text())
        except (OSError, ValueError):
            kept = {}
        super().__init__(kept if kept.get("job") == job else {"job": job})  # another job of this folder has a run of its own
        if self.get("run") != run:
            self.update(run=run, alerts=0)

    def save(self):
        new = self.path.with_suffix(".new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(self, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)


def alert_of(row):
    """The title of an event that somebody should hear of, or None."""
    code = row.get("exit_code", 0)
    if row["event"] == "end" and code not in ORDERLY:
        return f"the job ended with code {code}: {CAUSES.get(code, 'see its log')}"
    return {"checkpoint_failed": "a checkpoint could not be saved", "killed": "rank 0 was killed",
            "stalled": "the job stands still"}.get(row["event"])


class Command:
    """metrics.alert_command: runs it for the end of the job and for alerts, with the event on stdin."""

    def __init__(self, job, state):
        self.job, self.rows = job, 0

    def row(self, at, row):
        pass

    def event(self, row):
        pass

    def flush(self):
        pass

    def alert(self, title, row):
        text = json.dumps({**row, "title": title or "the job ended", "folder": self.job["folder"]}) + "\n"
        process = subprocess.Popen(self.job["options"]["alert_command"], shell=True, stdin=subprocess.PIPE, stdout=sys.stderr,
                                   start_new_session=True)
        try:
            process.communicate(text.encode(), timeout=ALERT_COMMAND_SECONDS)
            if process.returncode:
                say(f"metrics.alert_command ended with code {process.returncode}: see {self.job['folder']}/tracking/alert.log")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            say(f"metrics.alert_command was ended after {ALERT_COMMAND_SECONDS:.0f} s")

    def finish(self, code):
        pass


def make_tracker(job, state):
    if job["tracker"] == "alert":
        return Command(job, state)
    return importlib.import_module(f"to_{job['tracker']}").Tracker(job, state)


def missing(job):
    """Returns a sentence that names the missing package or credential, or None."""
    for tracker in job["trackers"]:
        if tracker == "alert":
            continue
        packages = {"wandb": ["wandb"], "mlflow": ["mlflow"]}[tracker]
        packages += [] if sys.version_info >= (3, 11) else ["tomli"]
        for package in packages:
            try:
                importlib.import_module(package)
            except Exception as error:  # whatever a broken package raises
                name = {"mlflow": "mlflow-skinny"}.get(package, package)
                return (f"metrics.enable_{tracker} = true: {sys.executable} cannot import {package} "
                        f"({str(error).splitlines()[0] if str(error) else type(error).__name__}): {sys.executable} -m pip install {name}, "
                        "or name another Python (metrics.tracking_python)")
        problem = importlib.import_module(f"to_{tracker}").problem(job["options"])
        if problem:
            return f"metrics.enable_{tracker} = true: {problem}"
    return None


def read_config(folder, run):
    """Returns the configuration of a start as nested tables."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads((pathlib.Path(folder) / "runs" / run / "config.toml").read_text(encoding="utf-8"))


def write_report(job):
    """The path of the HTML page of the job's folder, or None where it cannot be made."""
    page = pathlib.Path(job["folder"]) / "tracking" / "report.html"
    try:
        done = subprocess.run([job["program"], "report", job["folder"], "-o", page], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=FINISH_SECONDS / 2)
        if done.returncode == 0:
            return page
        say(f"the report could not be made: {done.stderr.strip()[-500:]}")
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"the report could not be made: {error}")
    return None


def recorded_code(since):
    """Returns the code that rank 0 recorded for its launcher after `since`, or None. A rank that lost a peer or its GPU ends at once and writes
    no event."""
    try:
        record = json.loads((pathlib.Path(os.environ["HYPERION_FAILURE_DIR"]) / "rank_0.json").read_text(encoding="utf-8"))
        return int(record["code"]) if record["time"] >= since else None
    except (KeyError, OSError, TypeError, ValueError):
        return None


class JobEnd(threading.Thread):
    """Waits for rank 0's word that the job has ended, and bounds what this process does afterwards."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.started = time.time()
        self.code = None

    def run(self):
        code = sys.stdin.readline()
        self.code = int(code) if code else None
        self.ended.set()
        time.sleep(FINISH_SECONDS)
        say(f"not all was sent {FINISH_SECONDS:.0f} s after the job's end: the next start sends the rest")
        os._exit(1)


class Alerts:
    """Tells the tracker of events of this start, each once, and of a job that stands still."""

    def __init__(self, job, state, tracker):
        self.job, self.state, self.tracker = job, state, tracker
        self.seen = self.step = 0
        self.patience = job["options"]["alert_after_seconds"]
        self.since = time.monotonic()

    def read(self, row):
        self.since, self.step = time.monotonic(), row["step"]
        if "event" in row and row["run_id"] == self.job["run"] and (row["event"] == "end" or alert_of(row)):
            self.seen += 1
            if self.seen > self.state["alerts"]:
                self.state["alerts"] = self.seen
                self.state.save()
                self.tracker.alert(alert_of(row), row)

    def tell(self, event, message, **more):
        row = {"step": self.step, "time": time.time(), "run_id": self.job["run"], "event": event, "message": message, **more}
        self.tracker.alert(alert_of(row), row)

    def look_at_clock(self):
        seconds = time.monotonic() - self.since
        if self.patience and seconds > self.patience:
            self.tell("stalled", f"no line in metrics.jsonl for {seconds:.0f} s, after step {self.step}")
            self.since = float("inf")


def follow(job, end):
    folder = pathlib.Path(job["folder"])
    rows = Rows(folder / "metrics.jsonl")
    unread = rows.read()  # read row by row: the file may be large
    while not (first := next(unread, None)):
        if end.ended.is_set():
            return  # the job ended before its first line
        end.ended.wait(POLL_SECONDS)
        unread = rows.read()
    state = State(folder / "tracking" / f"{job['tracker']}.json", first["run_id"], job["run"])
    unread = itertools.chain((first,), unread)
    tracker = make_tracker(job, state)
    alerts, history, orderly = Alerts(job, state, tracker), History(), False
    while True:
        ended = end.ended.is_set()  # asked before the file is read, which then is complete
        for row in itertools.chain(unread, rows.read()):
            if "event" in row:
                tracker.event(row)
                orderly = orderly or (row["event"] == "end" and row["run_id"] == job["run"])
            else:
                at = history.add(row)
                if at is not None and at >= tracker.rows:
                    tracker.row(at, row)
            alerts.read(row)
        unread = ()
        tracker.flush()
        if ended:
            break
        alerts.look_at_clock()
        end.ended.wait(POLL_SECONDS)
    code = recorded_code(end.started) if end.code is None else end.code
    if not orderly and code is None:
        alerts.tell("killed", f"rank 0 was killed after step {alerts.step}")
    elif not orderly:  # it ended outside of training, or by a failure detector
        alerts.tell("end", f"rank 0 ended after step {alerts.step}", exit_code=code)
    tracker.finish(1 if code is None else code)


def lock(job):
    """Waits until no process of an earlier start sends to the same tracker. The lock ends with the process, after its package's last acts."""
    file = os.open(pathlib.Path(job["folder"]) / "tracking" / f"{job['tracker']}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    waits = False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waits:
                say("waits for the process of an earlier start, which is still sending")
            waits = True
            time.sleep(POLL_SECONDS)
        except OSError as error:
            say(f"this file system knows no locks ({error.strerror}): an earlier start's process is not waited for")
            return None


def leave_the_job_alone():
    """This process needs no core of rank 0's, gives way to it, and is the first to go where memory runs out."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):  # of SLURM, for the job, whose end comes on stdin
        signal.signal(ignored, signal.SIG_IGN)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.nice(10)
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        pass  # a sandbox


def main(arguments):
    if "-h" in arguments or "--help" in arguments:
        print(__doc__.split("\n", 2)[2])
        return 0
    sys.modules["tracking"] = sys.modules["__main__"]
    job = json.loads(sys.stdin.readline())
    if "--check" in arguments:
        problem = missing(job)
        if problem:
            print(problem, flush=True)
        return USAGE if problem else 0
    leave_the_job_alone()
    end = JobEnd()
    end.start()
    lock(job)
    follow(job, end)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
