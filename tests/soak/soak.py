#!/usr/bin/env python3
"""Trains a small model for hours while faults come at random, and shows that it ends as the undisturbed run and leaves nothing behind.

    python3 tests/soak/soak.py build/hyperion --minutes=120
    python3 tests/soak/soak.py build/hyperion --minutes=60 --no-restarts

Ranks run under scripts/launch.py. A fault comes every --interval seconds or so (random, from the seed that is printed) until the minutes are over;
a job that it ends is started again by the same command, until the last step. With --no-restarts the faults are such that the job goes on, and
memory, open files and threads of every process are followed.
The result is a table and, with --json, a file. Exit code 1: something did not hold; the folder is kept then.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "faults"), str(Path(__file__).resolve().parent)]

import kinds
import processes
import report
from checkpoints import CHECKPOINT_TOML
from jobs import BINARY, PATIENCE, ROOT

TINY = ["--training.seq_len=32"]
IN_VAIN = 900  # seconds in which starts may make no new step: faults come while they recover
DEBUG = ["--model.flavor=debugmodel", "--training.seq_len=64"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], usage="soak.py PROGRAM [option...] [-- option of the program...]")
    parser.add_argument("program")
    parser.add_argument("--minutes", type=float, default=120, help="for how long faults come (120)")
    parser.add_argument("--interval", type=float, default=45, help="mean seconds from fault to fault; each is two thirds to four thirds of it (45)")
    parser.add_argument("--steps", type=int, help="last step (as many as the minutes take at the measured speed)")
    parser.add_argument("--no-restarts", action="store_true", help="stalls and failed saves alone: one start; memory, files and threads are followed")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--model", choices=("debug", "tiny"), default="debug")
    parser.add_argument("--pace", type=float, default=0.35, help="seconds that each step of the disturbed run sleeps, to leave the machine to others (0.35)")
    parser.add_argument("--save-every", type=int, default=25, help="steps from save to save (25)")
    parser.add_argument("--timeout", type=int, default=30, help="comm.train_timeout_seconds (30)")
    parser.add_argument("--seed", type=int, help="of the faults (random)")
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="these faults alone, in this order, repeated")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--folder", type=Path, help="where the runs are kept (a temporary folder, removed when all holds)")
    parser.add_argument("--nice", type=int, default=10, help="priority of all processes (10)")
    words, more = sys.argv[1:], []
    if "--" in words:
        words, more = words[:words.index("--")], words[words.index("--") + 1:]
    return parser.parse_args(words), more


class Job:
    """One start of the launcher with its ranks."""

    def __init__(self, command, environment, log, policy=""):
        self.log, self.policy, self.known = log, policy, {}
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.started = time.monotonic()

    def ranks(self):
        """rank -> pid, of those that have been seen as children of the launcher."""
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in map(int, path.read_text().split()):
                own = {} if pid in self.known.values() else processes.variables(pid)
                if "RANK" in own:
                    self.known[int(own["RANK"])] = pid
        return self.known

    def signal_rank(self, rank, number):
        kinds.send(self.ranks()[rank], number)
        return f"rank {rank}"

    def code(self):
        """Returns the exit code in a shell's form; None while the job runs."""
        code = self.process.poll()
        return None if code is None else code if code >= 0 else 128 - code

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        for pid in [self.process.pid, *self.ranks().values()]:
            if processes.MARK in processes.variables(pid):  # else it has ended, and the number may be another process's
                kinds.send(pid, signal.SIGKILL)
        self.process.wait()


class Progress:
    """The steps that metrics.jsonl has, read as it grows."""

    def __init__(self, path):
        self.path, self.place, self.inode = path, 0, None
        self.last, self.highest, self.at = 0, 0, time.monotonic()

    def read(self):
        """Whether there is a new line of a step."""
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self.inode:  # a start that continues nothing begins a new file
                    self.inode, self.place = inode, 0
                file.seek(self.place)
                data = file.read()
        except OSError:
            return False
        data = data[:data.rfind(b"\n") + 1]
        self.place += len(data)
        steps = [line["step"] for line in map(json.loads, data.splitlines()) if "grad_norm" in line]
        if steps:
            self.last, self.highest, self.at = steps[-1], max(self.highest, *steps), time.monotonic()
        return bool(steps)


@dataclasses.dataclass
class Event:
    """A fault, or an end that no fault explains."""

    kind: str
    detail: str
    seconds: float  # since the start of the soak
    step: int  # the last one before it
    codes: list = dataclasses.field(default_factory=list)  # of the ends that followed
    lost_seconds: float | None = None  # until there was a step that had not been made before
    highest: int = 0  # the last step that had been made then


class Soak:
    def __init__(self, options, more, folder):
        self.options, self.more, self.folder = options, more, folder
        self.ranks, self.timeout, self.interval = options.ranks, options.timeout, options.interval
        self.choose = random.Random(options.seed)
        self.mark = uuid.uuid4().hex
        self.kinds, self.missing = kinds.of_mode(not options.no_restarts, options.kinds)
        self.deck, self.events, self.problems, self.samples = [], [], [], []
        self.damage, self.damaged = None, []  # folders of damaged checkpoints
        self.new_step_at, self.highest_at_start = time.monotonic(), 0
        self.events_are_over = False  # and the job was stopped, to go on without --pace
        self.waiting = kinds.Later()
        self.later = self.waiting.add
        self.starts, self.first_step, self.failed_saves = 0, None, 0
        self.step_seconds, self.start_seconds = 1.0, 10.0
        self.temporary, self.logs = folder / "tmp", folder / "logs"
        for path in (self.temporary, self.logs):
            path.mkdir(parents=True)
        (folder / "data.jsonl").write_text("".join(json.dumps({"text": f"Document {i} has a few words, and some are its own: {i * 7919}."}) + "\n"
                                                   for i in range(2000)))
        self.left = processes.LeftBehind(self.mark)

    # --- jobs ---

    def start(self, name, *options, steps, pace=0.0, policy="stop", faults=()):
        out = self.folder / name
        out.mkdir(exist_ok=True)
        text = CHECKPOINT_TOML
        if self.options.model == "debug":
            text = text.replace("[model.args]\ndim = 32\nn_layers = 2\nn_heads = 4\n", "")
        (self.folder / f"{name}.toml").write_text(text.format(root=ROOT, folder=self.folder))
        environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FAULT", "MASTER_PORT")}
        environment |= {"NPROC": str(self.ranks), "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "LOG_RANK": "0", processes.MARK: self.mark,
                        "TMPDIR": str(self.temporary), "HYPERION_LOG_DIR": str(self.logs / f"{name}-{self.starts}")}
        environment["FAULT"] = ",".join([*([f"point=step.opt;nth=0;action=sleep:{pace}"] if pace else []), *faults])
        command = [sys.executable, ROOT / "scripts" / "launch.py", BINARY, "train", self.folder / f"{name}.toml",
                   *(DEBUG if self.options.model == "debug" else TINY), "--training.local_batch_size=1", f"--training.global_batch_size={self.ranks}",
                   f"--job.dump_folder={out}", f"--training.steps={steps}", "--checkpoint.async_mode=async_with_pinned_mem", "--ema.enable",
                   "--checkpoint.keep_latest_k=4", f"--checkpoint.on_save_failure={policy}", f"--comm.train_timeout_seconds={self.timeout}",
                   "--allow-faults", *options, *self.more]
        self.starts += 1
        return Job([str(word) for word in command], environment, self.logs / f"{name}-{self.starts}.log", policy)

    def finish(self, job, what):
        code = job.process.wait()
        if code != 0:
            raise SystemExit(f"{what} ended with {code}:\n{job.text()[-4000:]}")

    def measure(self):
        """The seconds of a step and of a start, as they are on this machine now."""
        begin = time.monotonic()
        self.finish(self.start("speed", "--checkpoint.no_enable", steps=20), "the measurement of the speed")
        self.note_speed("speed", time.monotonic() - begin)
        shutil.rmtree(self.folder / "speed")

    def note_speed(self, name, seconds):
        at = [line["time"] for line in report.lines(self.folder / name) if "grad_norm" in line]
        step = (at[-1] - at[0]) / (len(at) - 1)
        self.step_seconds, self.start_seconds = step + self.options.pace, max(1.0, seconds - len(at) * step)

    def undisturbed(self, steps):
        begin = time.monotonic()
        self.finish(self.start("undisturbed", f"--checkpoint.interval={steps}", "--checkpoint.no_validate_before_training", steps=steps),
                    "the undisturbed run")
        self.note_speed("undisturbed", time.monotonic() - begin)

    # --- what the faults use ---

    def fill_disk(self):
        filler = self.folder / "disturbed" / "checkpoint" / "filler"
        free = shutil.disk_usage(filler.parent).free
        with open(filler, "ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), free)
        return free

    def free_disk(self):
        (self.folder / "disturbed" / "checkpoint" / "filler").unlink(missing_ok=True)

    def damage_newest(self):
        """The newest checkpoint, where the one before it is intact: else the job could not go on from it."""
        change, self.damage = self.damage, None
        steps = sorted((self.folder / "disturbed" / "checkpoint").glob("step-*"), key=lambda path: int(path.name[5:]))
        good = [path for path in steps if subprocess.run([BINARY, "ckpt", "verify", path], stdout=subprocess.DEVNULL,
                                                         stderr=subprocess.DEVNULL).returncode == 0]
        if len(good) < 2 or good[-1] != steps[-1]:
            return "nothing: it needs two intact checkpoints"
        self.damaged.append(good[-1])
        return change(self, self.choose.choice(sorted(path for path in good[-1].iterdir() if path.stat().st_size)))

    def remove_damaged(self):
        """What an operator does: no start resumes from them and no retention removes them, so that they would fill the disk."""
        intact = [path for path in (self.folder / "disturbed" / "checkpoint").glob("step-*") if path not in self.damaged]
        newest = max((int(path.name[5:]) for path in intact), default=0)
        for path in [path for path in self.damaged if int(path.name[5:]) < newest]:
            shutil.rmtree(path, ignore_errors=True)
            self.damaged.remove(path)

    def failing_writes(self, steps):
        """Faults of about one save in five: a file that cannot be opened, or that takes seconds."""
        saves = steps // self.options.save_every
        for _ in range(saves // 5):
            rank, action = self.choose.randrange(self.ranks), self.choose.choice(("errno:EIO", "errno:EIO", "sleep:5"))
            # Each save opens the file once; the last one must succeed.
            yield f"rank={rank};point=file.open;on=__{rank}_0;nth={self.choose.randrange(2, max(3, saves))};action={action}"

    # --- the soak ---

    def next_kind(self):
        if not self.deck:
            names = self.options.kinds or []
            self.deck = [found for name in names for found in self.kinds if found.name == name] or self.choose.sample(self.kinds, len(self.kinds))
        return self.deck.pop(0)

    def limit(self):
        """Seconds without a step after which a job hangs: many times what it takes on this machine."""
        return max(PATIENCE, 40 * self.start_seconds, 100 * self.step_seconds) + 3 * self.timeout

    def run(self, steps):
        """Until the last step, whatever it takes."""
        checkpoints = self.folder / "disturbed" / "checkpoint"
        checkpoints.mkdir(parents=True)
        if not processes.refused():
            size = "700m" if self.options.model == "debug" else "40m"
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", checkpoints], check=True)
        self.begin, self.last_step = time.monotonic(), steps
        self.progress = Progress(self.folder / "disturbed" / "metrics.jsonl")
        while True:
            policy = "continue" if self.options.no_restarts else self.choose.choice(("continue", "stop"))
            pace = self.options.pace if self.is_disturbed(time.monotonic()) else 0.0
            job = self.start("disturbed", f"--checkpoint.interval={self.options.save_every}", steps=steps, pace=pace, policy=policy,
                             faults=self.failing_writes(steps) if self.options.no_restarts else ())
            self.progress.at = time.monotonic()
            code = self.watch(job)
            if self.progress.highest > self.highest_at_start:
                self.highest_at_start, self.new_step_at = self.progress.highest, time.monotonic()
            elif time.monotonic() - self.new_step_at > IN_VAIN:
                self.problems.append(f"{IN_VAIN} s of starts after step {self.progress.highest} made no new step:\n{job.text()[-4000:]}")
            self.failed_saves += job.text().count("training continues")
            if code == 0 or self.problems:
                break
            if self.options.no_restarts:
                self.problems.append(f"the job ended with {code}:\n{job.text()[-4000:]}")
                break
        self.waiting.run(everything=True)
        self.settle()
        self.seconds = time.monotonic() - self.begin

    def now(self):
        return time.monotonic() - self.begin

    def watch(self, job):
        """Until the job ends; its code."""
        every, sampled, expected = max(0.5, 60 * self.options.minutes / 400), 0.0, None
        while (code := job.code()) is None:
            time.sleep(0.05)
            self.waiting.run(everything=self.options.no_restarts and self.last_step - self.progress.highest <= self.options.save_every)
            self.settle()
            now = time.monotonic()
            if now - sampled >= every:
                sampled = now
                self.sample(job)
            if expected and expected.may_go_on and self.progress.last > self.events[-1].step + 5:
                expected = None
            if self.is_time_for_a_fault(job) and expected is None:
                found = self.next_kind()
                self.settle()
                event = Event(found.name, "", self.now(), self.progress.last, highest=self.progress.highest)
                self.events.append(event)
                event.detail = found.act(self, job)
                self.say(f"step {event.step}: {found.name}: {event.detail}")
                self.next_fault = now + self.choose.uniform(2, 4) / 3 * self.interval
                expected = found if found.codes and found.name != "full_disk" else None
            if not (self.options.no_restarts or self.events_are_over or self.is_disturbed(now) or expected or self.waiting.entries):
                self.events_are_over, expected = True, next(found for found in kinds.KINDS if found.name == "term")
                self.events.append(Event("term", "after the last fault, to go on without --pace", self.now(), self.progress.last, highest=self.progress.highest))
                job.process.send_signal(signal.SIGTERM)
            if now - self.progress.at > self.limit():
                self.problems.append(f"no step for {now - self.progress.at:.0f} s after step {self.progress.last}:\n{job.text()[-4000:]}")
                job.kill()
        self.settle()
        return self.ended(job, code, expected)

    def is_disturbed(self, now):
        """Whether faults still come. Time counts from the first step."""
        return self.first_step is None or now < self.first_step + 60 * self.options.minutes

    def is_time_for_a_fault(self, job):
        """Whether the interval is over, all ranks are there, and what the last fault began has an end."""
        now = time.monotonic()
        if self.first_step is None and self.progress.highest:
            self.first_step, self.next_fault = now, now + self.choose.uniform(2, 4) / 3 * self.interval
        if self.options.no_restarts and self.last_step - self.progress.highest < max(2 * self.options.save_every, 0.1 * self.last_step):
            return False  # the last save must succeed
        return (self.first_step is not None and self.next_fault <= now and self.is_disturbed(now) and not self.waiting.entries
                and len(job.ranks()) == self.ranks and job.code() is None)

    def ended(self, job, code, expected):
        """Whether a fault explains the end, and what is to happen before the next start."""
        allowed, cause = set(expected.codes) if expected else set(), self.events[-1:]
        if code in (kinds.NO_SAVE, kinds.NO_START):  # a save that the full disk has failed may end the job when there is room again
            cause = [event for event in self.events if event.kind == "full_disk"][-1:]
            allowed |= {code} if cause else set()
        for event in cause:
            event.codes.append(code)
        if code != 0 and code not in allowed:
            self.problems.append(f"code {code} after {self.events[-1] if self.events else 'nothing'}:\n{job.text()[-4000:]}")
        end = time.monotonic() + self.limit()
        while processes.marked(self.mark):  # of a launcher that was killed: they save and end
            self.waiting.run()
            time.sleep(0.1)
            if time.monotonic() > end:
                self.problems.append(f"processes still there {self.limit():.0f} s after their launcher: {processes.marked(self.mark)}")
                job.kill()
        self.settle()
        for event in cause if code != 0 else ():
            event.highest, event.lost_seconds = self.progress.highest, None
        self.remove_damaged()
        if self.damage:
            self.events[-1].detail = self.damage_newest()
            self.say(self.events[-1].detail)
        return code

    def settle(self):
        """Notes when the job is further than it was at a fault."""
        if self.progress.read():
            for event in self.events:
                if event.lost_seconds is None and self.progress.highest > event.highest:
                    event.lost_seconds = max(0.0, self.now() - event.seconds - self.step_seconds)

    def sample(self, job):
        found = {"launcher": processes.sample(job.process.pid)}
        ranks = job.ranks()
        found |= {f"rank {rank}": processes.sample(pid) for rank, pid in ranks.items()}
        for pid, own in processes.marked(self.mark).items():
            if pid != job.process.pid and pid not in ranks.values() and "RANK" not in own:
                with contextlib.suppress(OSError):  # it has just ended
                    found[f"process {Path(f'/proc/{pid}/comm').read_text().strip()}"] = processes.sample(pid)
        self.samples.append((self.now(), time.monotonic() - job.started, {name: value for name, value in found.items() if value}))

    def say(self, text):
        print(f"[{self.now():7.1f} s] {text}", flush=True)


def main():
    options, more = arguments()
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    os.nice(max(0, options.nice - os.nice(0)))
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="hyperion-soak-", dir=options.folder))
    print(f"seed {options.seed}; the runs are in {folder}", flush=True)
    if processes.refused():
        print(f"without a full disk and cut connections: {processes.refused()}", flush=True)
    soak = Soak(options, more, folder)
    try:
        return judged(soak, options, folder)
    finally:  # also where this program fails or is interrupted
        for pid in processes.marked(soak.mark):
            kinds.send(pid, signal.SIGKILL)


def judged(soak, options, folder):
    """Runs the soak and prints what came of it; returns the exit code."""
    steps = options.steps
    if steps is None:
        soak.measure()
        # Restarts and steps that are made again take about a third of the time.
        steps = max(40, round((1 if options.no_restarts else 0.65) * 60 * options.minutes / soak.step_seconds))
    print(f"{steps} steps; the undisturbed run comes first", flush=True)
    soak.undisturbed(steps)
    print(f"a step of the disturbed run takes {soak.step_seconds:.2f} s, a start {soak.start_seconds:.1f} s", flush=True)
    soak.run(steps)
    result = report.result(soak, steps)
    print(report.table(result), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if not processes.refused():
        subprocess.run(["umount", "--lazy", folder / "disturbed" / "checkpoint"], check=True)
    if result["holds"]:
        shutil.rmtree(folder)
        return 0
    return 1


if __name__ == "__main__":
    processes.enter()
    sys.exit(main())
