#!/usr/bin/env python3
"""scripts/launch.py --max-restarts, with programs that stand in for Hyperion: what is started again, when, and when no more.

usage: restarts_test.py [unittest options]
"""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import failures  # noqa: E402
import restarts  # noqa: E402

LIMIT = 200  # seconds; far above what any of these takes

# launch.py with a first wait of its own.
LAUNCH = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import launch, restarts
restarts.FIRST_SECONDS, restarts.CONNECT_SECONDS, launch.SETTLE_SECONDS = float(sys.argv.pop(1)), 2, 60
sys.exit(launch.main())
"""

# The stand-in for a rank: in start K it does what entry K of the plan says. {"saved": [5, 8], "codes": {"1": 137}}: this start began after
# step 5 and saved step 8, rank 1 is killed and the others lose it. Without codes it ends well; "hang": it waits for a signal.
RANK = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["HYPERION_FAILURE_DIR"]).parent
start = int(folder.name.split("-")[1]) if "-" in folder.name else 0
step, rank = json.loads(sys.argv[1])[start], os.environ["RANK"]
print(f"rank {rank} in start {start}", flush=True)
if rank == "0" and "saved" in step:
    pathlib.Path(os.environ["HYPERION_PROGRESS_FILE"]).write_text("{} {}\\n".format(*step["saved"]))
if step.get("hang"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    while True:
        time.sleep(0.05)
codes, failed = step.get("codes", {}), pathlib.Path(__file__).with_name(f"failed-{start}-{os.environ['MASTER_PORT']}")
code = codes.get(rank, 71) if codes else 0
if rank in codes:
    failed.touch()
while codes and not failed.exists():
    time.sleep(0.02)
if code > 128:
    os.kill(os.getpid(), code - 128)
sys.exit(code)
"""


def free_ports():
    """Returns two ports in a row, reserved while their sockets are open."""
    while True:
        one, two = socket.socket(), socket.socket()
        for each in (one, two):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        with contextlib.suppress(OSError, OverflowError):
            two.bind(("127.0.0.1", one.getsockname()[1] + 1))
            return one, two


class LauncherTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.rank = self.folder / "rank.py"
        self.rank.write_text(RANK)

    def start(self, plan, *options, first=0.05, logs="logs", **environment):
        own = {"NPROC": 2, "HYPERION_DEVICE": "cpu", "HYPERION_LOG_DIR": self.folder / logs, **environment}
        kept = {name: value for name, value in os.environ.items() if name not in ("LOG_RANK", "HYPERION_MAX_RESTARTS", "NNODES")}
        process = subprocess.Popen([sys.executable, "-c", LAUNCH, SCRIPTS, str(first), *options, sys.executable, self.rank, json.dumps(plan)],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**kept, **{k: str(v) for k, v in own.items()}})
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        return process

    def launch(self, plan, *options, code, **environment):
        process = self.start(plan, *options, **environment)
        text, _ = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, code, text)
        return text

    @staticmethod
    def text_until(process, wanted):
        text = ""
        for line in process.stdout:
            text += line
            if wanted in line:
                return text
        raise AssertionError(f"{wanted!r} was never printed:\n{text}")


class Restarts(LauncherTest):
    def test_ranks_that_fail_are_started_again_and_every_start_keeps_its_output(self):
        plan = [{"saved": [0, 4], "codes": {"1": 137}}, {"saved": [4, 8], "codes": {"0": 139}}, {}]
        text = self.launch(plan, "--max-restarts", "3", code=0)
        self.assertIn("[launch] restart 1 of at most 3 in 0 s: rank 1 failed with signal 9 (SIGKILL); it resumes after step 4; 2 more are left", text)
        self.assertIn("[launch] restart 2 of at most 3 in 0 s: rank 0 failed with signal 11 (SIGSEGV); it resumes after step 8; 1 more is left", text)
        for start in range(3):
            for rank in range(2):
                self.assertEqual((self.folder / "logs" / f"start-{start}" / f"rank_{rank}.log").read_text(), f"rank {rank} in start {start}\n")
        self.assertIn("start-1/rank_N.log", text)
        text = self.launch(plan, code=0, HYPERION_MAX_RESTARTS=2)  # by the variable
        self.assertIn("0 more are left", text)

    def test_a_code_that_comes_again_is_not_retried(self):
        for code in (2, 65, 70, 72, 73, 74, 93, 134):
            with self.subTest(code=code):
                text = self.launch([{"saved": [0, 4], "codes": {"0": code, "1": code}}], "--max-restarts=3", code=code)
                self.assertIn("[launch] not started again: rank 0 failed with ", text)
                self.assertNotIn("restart 1", text)
        self.assertNotIn("started again", self.launch([{"saved": [0, 4], "codes": {"0": 75, "1": 75}}], "--max-restarts=3", code=75))

    def test_two_starts_without_progress_are_the_last(self):
        nothing = {"codes": {"1": 137}}
        text = self.launch([nothing, nothing], "--max-restarts=9", code=137)
        self.assertIn("it resumes from its beginning, for nothing is saved; 8 more are left", text)
        self.assertIn("[launch] not started again: this start and the one before it saved no new step\n", text)
        # Progress in between resets the count; a step that is lost and saved again is none.
        plan = [{"saved": [4, 8], "codes": {"1": 71, "0": 71}}, {"saved": [4, 8], "codes": {"1": 137}}, {"saved": [8, 12], "codes": {"1": 137}},
                {"saved": [8, 12], "codes": {"1": 137}}, {"codes": {"1": 137}}]
        text = self.launch(plan, "--max-restarts=9", code=137)
        self.assertEqual(text.count("more are left"), 4, text)
        self.assertIn("saved no new step after step 12", text)

    def test_the_last_restart_is_named(self):
        plan = [{"saved": [0, 4], "codes": {"1": 137}}, {"saved": [4, 8], "codes": {"1": 137}}]
        self.assertIn("[launch] not started again: it has been, 1 time (--max-restarts 1)", self.launch(plan, "--max-restarts=1", code=137))
        text = self.launch([{"codes": {"1": 137}}], code=137, logs="other")  # without --max-restarts
        self.assertNotIn("started again", text)
        self.assertNotIn("start-0", text)

    def test_a_signal_ends_the_wait_before_the_next_start(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)):
            with self.subTest(signal=number):
                process = self.start([{"saved": [0, 4], "codes": {"1": 137}}], "--max-restarts=3", first=1000)
                self.text_until(process, "restart 1 of at most 3 in 1000 s")
                process.send_signal(number)
                text, _ = process.communicate(timeout=LIMIT)
                self.assertEqual(process.returncode, code, text)
                self.assertIn(f"[launch] ended before the next start: {number.name} came", text)

    def test_ranks_that_a_signal_ended_are_not_started_again(self):
        process = self.start([{"saved": [0, 4], "hang": True}], "--max-restarts=3")
        self.text_until(process, "rank 0 in start 0")
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=LIMIT)
        self.assertIn(process.returncode, (75, 143), text)
        self.assertNotIn("restart", text)

    def test_what_is_no_number_is_refused(self):
        self.assertIn("HYPERION_MAX_RESTARTS is 'many'", self.launch([{}], "--max-restarts=many", code=2))


class SeveralHosts(LauncherTest):
    def hosts(self, plan, *options, first=0.05, **environment):
        sockets = free_ports()
        for one in sockets:
            self.addCleanup(one.close)
        common = {"NPROC": 1, "NNODES": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sockets[0].getsockname()[1], "LOG_RANK": "0,1", **environment}
        return [self.start(plan, *options, first=first, logs=f"logs{node}", NODE_RANK=node, **common) for node in range(2)]

    def ends(self, processes):
        texts = [process.communicate(timeout=LIMIT)[0] for process in processes]
        return [process.returncode for process in processes], texts

    def test_the_launchers_of_all_hosts_start_again_together(self):
        plan = [{"saved": [0, 4], "codes": {"1": 137}}, {"saved": [4, 8], "codes": {"0": 137}}, {}]
        codes, texts = self.ends(self.hosts(plan, "--max-restarts=3"))
        self.assertEqual(codes, [0, 0], texts)
        for text in texts:
            self.assertIn("[launch] restart 1 of at most 3 in 0 s: rank 1 failed with signal 9 (SIGKILL) (host 1); it resumes after step 4", text)
            self.assertIn("restart 2 of at most 3", text)

    def test_what_another_host_cannot_mend_ends_all(self):
        codes, texts = self.ends(self.hosts([{"saved": [0, 4], "codes": {"1": 65}}], "--max-restarts=3"))
        self.assertEqual(codes, [71, 65], texts)
        self.assertIn("not started again: rank 1 failed with exit code 65 (host 1)", texts[0])
        self.assertIn("not started again", texts[1])

    def test_a_signal_to_one_launcher_in_the_wait_ends_all(self):
        for signalled in range(2):
            with self.subTest(signalled=signalled):
                processes = self.hosts([{"saved": [0, 4], "codes": {"1": 137}}], "--max-restarts=3", first=1000)
                begun = self.text_until(processes[0], "restart 1 of at most 3 in 1000 s")
                processes[signalled].send_signal(signal.SIGTERM)
                codes, texts = self.ends(processes)
                self.assertEqual(codes, [143, 137] if signalled == 0 else [71, 143], (begun, texts))
                self.assertIn("not started again: host 0 says: SIGTERM came" if signalled == 0 else "not started again: the launcher of host 1 has ended",
                              texts[1 - signalled])

    def test_a_host_that_is_gone_is_waited_for_and_named(self):
        processes = self.hosts([{"saved": [0, 4], "codes": {"0": 71, "1": 71}}], "--max-restarts=3", HYPERION_RESTART_WAIT_SECONDS=1)
        processes[1].kill()
        codes, texts = self.ends(processes)
        self.assertEqual(codes[0], 71, texts)
        self.assertIn("not started again: host 1 (NODE_RANK) did not report within 1 s", texts[0])

    def test_a_launcher_without_that_of_host_0_ends(self):
        processes = self.hosts([{"saved": [0, 4], "codes": {"0": 71, "1": 71}}], "--max-restarts=3")
        processes[0].kill()
        codes, texts = self.ends(processes)
        self.assertEqual(codes[1], 71, texts)
        self.assertIn("not started again: the launcher of host 0 ", texts[1])

    def test_what_no_launcher_sends_is_closed_and_ignored(self):
        signals = mock.Mock()
        signals.wait = lambda end, sockets: (None, list(sockets))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        first = restarts.FirstHost("127.0.0.1", port, 2, signals)
        self.addCleanup(first.listener.close)
        senders = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        for sender, data in zip(senders, (b"GET / HTTP/1.1\r\n\r\n\n", b"[1]\n", b'{"node": 7, "code": 71}\n', b'{"node": 1, "code": 71}\n')):
            self.addCleanup(sender.close)
            sender.sendall(data)
        self.assertEqual(first.collect(LIMIT), {1: {"node": 1, "code": 71}})
        first.tell({"start": False})


class Waits(unittest.TestCase):
    def test_each_wait_is_twice_the_one_before_up_to_a_limit_and_the_first_again_after_a_long_run(self):
        waited, now = [], time.monotonic
        signals = mock.Mock()
        signals.wait = lambda end: (waited.append(round(end - now(), -1) if end - now() > 100 else round(end - now())), (None, []))[1]
        with tempfile.TemporaryDirectory() as folder:
            progress = pathlib.Path(folder, "progress")
            policy = restarts.Restarts(20, signals, lambda _: None)
            for start in range(9):
                progress.write_text(f"{start} {start + 1}\n")
                self.assertTrue(policy.again(failures.COMMUNICATION, "it failed", progress, ran_seconds=1 if start < 8 else 601))
        self.assertEqual(waited, [5, 10, 20, 40, 80, 160, 300, 300, 5])


if __name__ == "__main__":
    unittest.main()
