"""What the tests of this folder share: jobs of the real program on a small model, and a folder with data for each test.

Standard library only. The program is the first argument of the test's command line.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import warm_start

BINARY = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parents[2]
ALL = "all" in sys.argv[2:]  # also what shows a second time what the rest shows (label slow)
PATIENCE = 240  # seconds; what is waited for so long takes one or a few on an idle host
TOML = """
[model]
hf_assets_path = "{root}/tests/assets/tokenizer"
[model.args]
dim = 32
n_layers = 2
n_heads = 4
[training]
dataset = "jsonl"
dataset_path = "{folder}/data.jsonl"
local_batch_size = 2
seq_len = 32
steps = 5
[metrics]
log_freq = 1
[job]
dump_folder = "{folder}/out"
[lr_scheduler]
warmup_steps = 0
[debug]
seed = 1
"""


class Job:
    """One or more ranks of the program, with what they printed.

    `per_rank`: further options of each rank. `before`: rank -> words before its command, such as a limit to run under.
    `env_of`: rank -> variables of its own. `config`: the TOML file, by default the folder's job.toml. `cold`: nothing is loaded before
    (warm_start.py), where its memory is measured.
    """

    def __init__(self, folder, *options, ranks=1, env=None, per_rank=None, before=None, config=None, env_of=None, cold=False):
        self.port = socket.socket()  # held until the end: rank 0 can listen on it, and nobody else is given it
        self.port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port.bind(("127.0.0.1", 0))
        self.ranks = []
        started = subprocess.Popen if cold else warm_start.start
        for rank in range(ranks):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port.getsockname()[1], "OMP_NUM_THREADS": 1, "HYPERION_DEVICE": "cpu",
                   "LOG_RANK": ",".join(map(str, range(ranks))), **(env or {}), **(env_of or {}).get(rank, {})}
            if own["HYPERION_DEVICE"] == "cuda" and not any("speed_check_seconds" in str(option) for option in options):
                options = (*options, "--comm.speed_check_seconds=0")  # simulated GPUs are not equally fast
            words = [*(before or {}).get(rank, [])]
            if words and "LD_PRELOAD" in own:  # into the program alone: one that loads libtorch costs half a second each time
                words += ["env", f"LD_PRELOAD={own.pop('LD_PRELOAD')}"]
            command = [*words, BINARY, "train", config or folder / "job.toml", *options,
                       *(per_rank[rank] if per_rank else [])]
            path = folder / f"rank{rank}.log"
            path.write_bytes(b"")  # an earlier job's
            # For appending: the rank would write at the place in the file that text() moves.
            output = open(path, "a+", encoding="utf-8", errors="replace")
            environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
            self.ranks.append((started(command, env=environment, cwd=folder, stdout=output, stderr=output), output))

    def text(self, rank=0):
        output = self.ranks[rank][1]
        output.seek(0)
        return output.read()

    def wait_for(self, text, rank=0, times=1):
        end = time.monotonic() + PATIENCE
        while True:
            ended = self.ranks[rank][0].poll() is not None  # asked before its text is read, which then is all of it
            said = self.text(rank)
            if said.count(text) >= times:
                return
            if ended or time.monotonic() > end:
                raise AssertionError(f"rank {rank} never printed {text!r}:\n{said}")
            time.sleep(0.02)

    def wait_for_stop(self, rank, times=1):
        """Waits until a fault with action=stop has stopped the rank for the `times`-th time."""
        end = time.monotonic() + PATIENCE
        self.wait_for("stops this process", rank, times)
        process, change = self.ranks[rank][0], None
        while not change and time.monotonic() < end:
            time.sleep(0.02)
            change = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if not change or change.si_code != os.CLD_STOPPED:
            raise AssertionError(f"rank {rank} never stopped:\n{self.text(rank)}")

    def signal_at_stop(self, rank, number):
        """Waits until a fault with action=stop has stopped the rank, which then goes on with the signal `number` pending."""
        self.wait_for_stop(rank)
        process = self.ranks[rank][0]
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)

    def wait_until_idle(self, rank):
        """Waits until the rank waits for others: for a second all its threads sleep and use no time. One that a busy host holds up
        is running, stopped or waits for a disk."""
        end = time.monotonic() + PATIENCE
        seen = since = None
        while seen is None or time.monotonic() - since < 1:
            if time.monotonic() > end or self.ranks[rank][0].poll() is not None:
                raise AssertionError(f"rank {rank} never waited:\n{self.text(rank)}")
            time.sleep(0.1)
            now = self.threads(rank)
            if now != seen or any(state != "S" for state, *_ in now.values()):
                seen, since = now, time.monotonic()

    def threads(self, rank):
        """Thread -> (state, user time, system time), of those that are there."""
        found = {}
        for thread in Path(f"/proc/{self.ranks[rank][0].pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                words = (thread / "stat").read_text().rpartition(")")[2].split()
                found[thread.name] = words[0], words[11], words[12]
        return found

    def codes(self, seconds=PATIENCE):
        try:
            return [process.wait(timeout=seconds) for process, _ in self.ranks]
        finally:
            self.kill()

    def kill(self):
        for process, _ in self.ranks:
            if process.poll() is None:
                process.kill()
                process.wait()

    def end(self):
        self.kill()
        for _, output in self.ranks:
            output.close()
        self.port.close()


class JobTest(unittest.TestCase):
    """A folder with job.toml and data.jsonl for each test; everything in it goes with the test."""

    toml = TOML

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        self.prepare(self.folder)

    def prepare(self, folder):
        (folder / "job.toml").write_text(self.toml.format(root=ROOT, folder=folder))
        documents = [f"Document {i} has a few words, and some of them are its own: {i * 7919}." for i in range(200)]
        (folder / "data.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))

    def start(self, *options, folder=None, **kwargs):
        job = Job(folder or self.folder, *options, **kwargs)
        self.addCleanup(job.end)
        return job

    def run_job(self, *options, code, says=(), **kwargs):
        job = self.start(*options, **kwargs)
        codes = job.codes()
        self.assertEqual(codes, [code] * len(codes), job.text())
        for text in says:
            self.assertIn(text, job.text())
        return job

    def metrics(self, folder=None):
        """The lines of metrics.jsonl that hold metrics: of logged steps and validations."""
        return [line for line in self.metrics_file(folder) if "event" not in line]

    def metrics_of(self, *options, **kwargs):
        """Those of a job that ends well, and of no other."""
        (self.folder / "out" / "metrics.jsonl").unlink(missing_ok=True)
        self.run_job(*options, code=0, **kwargs)
        return self.metrics()

    def assert_near_metrics(self, lines, expected, loss):
        """Losses of training and validation within `loss` of them, norms within 2e-5, and the same tokens in the same steps; no rank's mean
        loss is above the largest one."""
        self.assertEqual(len(lines), len(expected))
        for line, wanted in zip(lines, expected):
            if "grad_norm" in line:
                self.assertGreaterEqual(line["loss_metrics/global_max_loss"], (1 - 1e-6) * line["loss_metrics/global_avg_loss"], line["step"])
            for name, tolerance in (("loss_metrics/global_avg_loss", loss), ("grad_norm", 2e-5), ("n_tokens_seen", 0), ("validation_metrics/loss", loss)):
                self.assertEqual(name in line, name in wanted)
                if name in line:
                    self.assertLessEqual(abs(line[name] - wanted[name]), tolerance * abs(wanted[name]), (name, line["step"]))

    def assert_lost_in(self, text, operation, group, phase):
        """A rank that waits for a killed one says where: its operation fails, or the watch over the ranks ends it where a busy host holds that up."""
        self.assertRegex(text, rf"{operation} \(number \d+ of group {group}, ranks 0 1\) failed in phase '{phase}'"
                               rf"|in phase '{phase}': rank 1 has ended, .*started last: {operation}, number \d+ of group {group}")

    def events(self, name=None, folder=None):
        """The events of metrics.jsonl, all or those of a name."""
        return [line for line in self.metrics_file(folder) if "event" in line and name in (None, line["event"])]

    def metrics_file(self, folder=None):
        return self.lines((folder or self.folder) / "out" / "metrics.jsonl")

    @staticmethod
    def lines(path):
        return [json.loads(line) for line in path.read_text().splitlines()]


def assert_lost(test, records, lost):
    """Each of the survivors' records names the rank that was lost, and no other."""
    for record in records:
        test.assertEqual(record["lost"], [lost], records)


def patient_launcher(settle=60, kill=60):
    """The command that scripts/launch.py is, with another time between a first failure and TERM, and from TERM to KILL. By default it
    is longer than a busy host holds up a rank that is about to say why it ends."""
    script = (f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import launch; "
              f"launch.SETTLE_SECONDS, launch.KILL_SECONDS = {settle}, {kill}; sys.exit(launch.main())")
    return [sys.executable, "-c", script]


def main():
    unittest.main(argv=[sys.argv[0], *(word for word in sys.argv[2:] if word != "all")], verbosity=2)
