#!/usr/bin/env python3
"""scripts/launch.py and scripts/train.sh with programs that stand in for Hyperion: fail, hang, die, print, wait.

usage: launcher_test.py [unittest options]
"""
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import failures  # noqa: E402

LIMIT = 200  # seconds; far above what any of these takes, so that a slow machine fails none of them

# launch.py with other times: for a rank that caused a failure to show up as well, and from TERM to KILL.
WITH_TIMES = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import launch
launch.SETTLE_SECONDS, launch.KILL_SECONDS = float(sys.argv.pop(1)), float(sys.argv.pop(1))
sys.exit(launch.main())
"""

# launch.py on a host whose loopback address of IPv4 is not there.
WITH_IPV6_ALONE = """
import socket, sys
class Socket(socket.socket):
    def bind(self, address):
        if address[0] == "127.0.0.1":
            raise OSError(99, "Cannot assign requested address")
        super().bind(address)
socket.socket = Socket
sys.path.insert(0, sys.argv.pop(1))
import launch
sys.exit(launch.main())
"""

# The stand-in for a rank: does what its first argument says.
RANK = r"""
import os, signal, sys, time
rank, action = int(os.environ["RANK"]), sys.argv[1]
say = lambda text: print(text, flush=True)
stop = []
if action == "environment":
    say(" ".join(os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                               "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "LOG_RANK")))
elif action == "arguments":
    say(repr(sys.argv[2:]))
elif action == "fail":
    if rank == int(os.environ.get("RANK_OF_FAILURE", "1")):
        say("before the last words")
        print("the last words", file=sys.stderr, flush=True)
        sys.exit(7)
    time.sleep(300)
elif action == "hang":  # deaf to TERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 0:
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.02)
        sys.exit(9)
    say(f"pid {os.getpid()}")
    open(sys.argv[2], "w").close()
    time.sleep(300)
elif action == "segv":
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(300)
elif action == "lost_peer":  # rank 1 is the cause; rank 0 notices, and may be the first to end
    if rank == 1:
        time.sleep(0.1)
        sys.exit(66)
    sys.exit(71)
elif action == "lines":
    for i in range(20000):
        say(f"rank {rank} line {i}")
elif action == "terminal":
    say(f"terminal {sys.stdout.isatty()} {sys.stderr.isatty()}")
elif action == "wait":  # an orderly end after a signal, at once after two; it takes rank seconds
    def handler(number, frame):
        stop.append(number)
        os.write(1, f"signal {int(number)}\n".encode())
        if len(stop) > 1:
            os._exit(130)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, handler)
    say(f"ready, pid {os.getpid()}")
    while not stop:
        time.sleep(0.02)
    time.sleep(float(sys.argv[2]) * rank)
    say(f"orderly {stop[0]}")
    sys.exit(int(sys.argv[3]))
elif action == "warned":  # as the program: answers a warning that came while it was loaded
    signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    while not stop:
        time.sleep(0.02)
    sys.exit(75)
elif action == "saved":  # both stop by themselves with their state saved, one later
    time.sleep(1.5 * rank)
    say("saved")
    sys.exit(75)
"""


def running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class CauseTest(unittest.TestCase):
    """Which of several ranks that ended a job failed by (scripts/failures.py)."""

    @staticmethod
    def end(number, code, at=0.0, lost=(), **record):
        return failures.RankEnd(number, code, at, f"n{number}", {"time": at, "lost": list(lost), **record} if lost or record else {})

    def cause(self, *ends, shown=()):
        found = failures.find_cause(ends, shown)
        return found and (found.rank.number, found.code, [end.number for end in found.lost_by])

    def test_jobs_that_ended_in_order_have_no_cause(self):
        self.assertIsNone(self.cause(self.end(0, 0), self.end(1, 75), self.end(2, None)))

    def test_the_first_failure_counts_and_one_that_others_lost_before_it(self):
        self.assertEqual(self.cause(self.end(0, 65, 2), self.end(1, 93, 1)), (1, 93, []))
        self.assertEqual(self.cause(self.end(0, 65, 1), self.end(1, 139, 2), self.end(2, 71, 3, lost=[1])), (1, 139, [2]))

    def test_who_only_lost_a_peer_is_no_cause_beside_another(self):
        self.assertEqual(self.cause(self.end(0, 71, 1, lost=[1]), self.end(1, 137, 2), self.end(2, 71, 1, lost=[1])),
                         (1, 137, [0, 2]))

    def test_a_rank_that_hung_or_whose_host_is_gone_is_named_by_those_who_lost_it(self):
        self.assertEqual(self.cause(self.end(0, 71, 1, lost=[1, 3]), self.end(1, None), self.end(2, 71, 2, lost=[3])),
                         (3, 71, [0, 2]))

    def test_a_gpu_that_failed_is_the_cause_of_what_others_met(self):
        self.assertEqual(self.cause(self.end(0, 70, 1), self.end(1, 76, 2), self.end(2, 71, 1, lost=[0])), (1, 76, []))
        self.assertEqual(self.cause(self.end(0, 76, 2), self.end(1, 76, 1), shown={0}), (1, 76, []))  # its own host, not a shown one's

    def test_a_host_whose_gpus_fail_in_two_starts_and_an_illegal_address_on_two_hosts_are_told(self):
        def answer(start, host, number):
            folder = self.folder / f"start-{start}"
            folder.mkdir()
            (folder / "rank_0.end").write_text(f"{host} 76 100.0")
            (folder / "rank_0.json").write_text(json.dumps({"rank": 0, "time": 100.0, "message": f"the GPU failed (CUDA error {number}: it)"}))
            return subprocess.run([sys.executable, SCRIPTS / "failures.py", folder, "76"], capture_output=True, text=True)

        with tempfile.TemporaryDirectory() as folder:
            self.folder = pathlib.Path(folder)
            self.assertEqual(answer(0, "n0", 214).stdout, "76 n0\n")
            self.assertEqual(answer(1, "n1", 700).stdout, "76 n1\n")
            again = answer(2, "n0", 719)
            self.assertEqual(again.stdout, "76 n0 repeated\n")
            self.assertIn("a GPU of n0 has failed in an earlier start, too", again.stderr)
            (self.folder / "start-2" / "cause.json").write_text("")  # cut off
            bug = answer(3, "n2", 700)
            self.assertEqual(bug.stdout, "70 n2\n")
            self.assertIn("an illegal address on n1 before, and now on n2", bug.stderr)

    def test_ranks_that_failed_alike_are_told_of_by_one_that_is_shown(self):
        self.assertEqual(self.cause(self.end(0, 2, 2), self.end(1, 2, 1), shown={0}), (0, 2, []))
        self.assertEqual(self.cause(self.end(0, 70, 2), self.end(1, 2, 1), shown={0}), (1, 2, []))

    def test_files_of_a_SLURM_job_tell_who_was_ended_because_of_another(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("rank_0.end", "n0 137 131.0"), ("rank_1.end", "n1 139 100.5"), ("rank_2.end", "n2 143 101.0"),
                               ("rank_3.end", "n3"), ("rank_4.end", ""), ("rank_1.json", '{"rank": 1, "ti')):
                pathlib.Path(folder, name).write_text(text)
            ends = {end.number: end.code for end in failures.read_ends(folder)}
            self.assertEqual(ends, {0: None, 1: 139, 2: None, 3: None})
            done = subprocess.run([sys.executable, SCRIPTS / "failures.py", folder, "143"], capture_output=True, text=True)
            self.assertEqual(done.stdout, "139 n1\n")
            self.assertEqual(done.stderr.count("rank 1 failed with signal 11 (SIGSEGV) on n1"), 1, done.stderr)


class LauncherTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="launcher test ")  # a path with spaces
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.logs = self.folder / "logs"
        self.program = self.folder / "rank program"
        self.program.write_text(f"#!{sys.executable}\n{RANK}")
        self.program.chmod(0o755)

    def environment(self, **extra):
        own = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NPROC", "NNODES", "NODE_RANK", "LOG_RANK", "OMP_NUM_THREADS")
        kept = {name: value for name, value in os.environ.items() if name not in own}
        return {**kept, "HYPERION_DEVICE": "cpu", "HYPERION_LOG_DIR": str(self.logs), **{k: str(v) for k, v in extra.items()}}

    def start(self, *arguments, settle=None, kill=None, **environment):
        launcher = [SCRIPTS / "launch.py"]
        if settle or kill:
            launcher = ["-c", WITH_TIMES, SCRIPTS, settle or 0.5, kill or 5]
        process = subprocess.Popen(
            [sys.executable, *map(str, [*launcher, self.program, *arguments])],
            env=self.environment(**environment), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def launch(self, *arguments, **options):
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def log(self, rank):
        return (self.logs / f"rank_{rank}.log").read_text()

    # --- what ranks get ---

    def test_environment_is_torchruns(self):
        code, out, err = self.launch("environment", NPROC=3, OMP_NUM_THREADS=5)
        self.assertEqual((code, err), (0, ""))
        fields = [self.log(rank).split() for rank in range(3)]
        for rank, field in enumerate(fields):
            self.assertEqual(field[:6], [str(rank), str(rank), "0", "3", "3", "127.0.0.1"])
            self.assertEqual(field[7:], ["5", "0"])
        self.assertEqual(len({field[6] for field in fields}), 1, "all ranks have one port")
        self.assertEqual(out, self.log(0), "rank 0 is shown, the others are not")

    def test_second_of_two_hosts(self):
        code, _, err = self.launch("environment", NPROC=2, NNODES=2, NODE_RANK=1, MASTER_ADDR="first.host")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(self.log(3).split()[:7], ["3", "1", "1", "4", "2", "first.host", "29500"])

    def test_one_rank_without_gpu_or_NPROC(self):
        self.assertEqual(self.launch("environment")[0], 0)
        self.assertEqual([path.name for path in self.logs.iterdir()], ["rank_0.log"])

    def test_ranks_meet_over_IPv6_on_a_host_that_has_nothing_else(self):
        done = subprocess.run([sys.executable, "-c", WITH_IPV6_ALONE, SCRIPTS, self.program, "environment"], capture_output=True, text=True,
                              env=self.environment(), timeout=LIMIT)
        if "no loopback address" in done.stderr:
            self.skipTest("there is no ::1 here")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.log(0).split()[5], "::1")

    def test_cores_are_shared(self):
        self.launch("environment", NPROC=2)
        threads = int(self.log(0).split()[7])
        self.assertGreaterEqual(threads, 1)
        self.assertLessEqual(2 * threads, max(2, len(os.sched_getaffinity(0))))

    def test_arguments_arrive_as_given(self):
        _, out, _ = self.launch("arguments", "a b", "--x.y=1 2", "$HOME", "*")
        self.assertEqual(out.strip(), repr(["a b", "--x.y=1 2", "$HOME", "*"]))

    def test_bad_settings_are_refused(self):
        for setting in ({"NPROC": "0"}, {"NPROC": "two"}, {"LOG_RANK": "0;1"}, {"NNODES": 2}, {"NNODES": 2, "NODE_RANK": 2}):
            code, _, err = self.launch("environment", **setting)
            self.assertEqual(code, 2, setting)
            self.assertIn("remedy:", err)

    def test_missing_program(self):
        done = subprocess.run([sys.executable, SCRIPTS / "launch.py", "/no/such/program"], capture_output=True, text=True,
                              env=self.environment(), timeout=LIMIT)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/no/such/program", done.stderr)

    # --- output ---

    def test_much_output_arrives_complete_and_in_whole_lines(self):
        code, out, _ = self.launch("lines", NPROC=2, LOG_RANK="0,1")
        self.assertEqual(code, 0)
        lines = out.splitlines()
        for rank in range(2):
            expected = [f"rank {rank} line {i}" for i in range(20000)]
            self.assertEqual([line for line in lines if line.startswith(f"rank {rank} ")], expected)
            self.assertEqual(self.log(rank).splitlines(), expected)
        self.assertEqual(len(lines), 40000)

    def test_a_reader_that_leaves_does_not_end_the_ranks(self):
        process = self.start("lines")
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=LIMIT), 0)
        self.assertTrue(self.log(0).endswith("line 19999\n"))

    def test_ranks_on_a_terminal_see_a_terminal(self):
        pid, terminal = pty.fork()
        if pid == 0:
            command = [sys.executable, str(SCRIPTS / "launch.py"), str(self.program), "terminal"]
            os.execve(sys.executable, command, self.environment())
        out = b""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and select.select([terminal], [], [], LIMIT)[0]:
            try:
                data = os.read(terminal, 4096)
            except OSError:
                break
            if not data:
                break
            out += data
        os.close(terminal)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(out.decode().strip(), "terminal True True")

    def test_logs_of_a_good_run_are_removed(self):
        environment = self.environment(TMPDIR=self.folder)
        del environment["HYPERION_LOG_DIR"]
        command = [sys.executable, SCRIPTS / "launch.py", self.program, "arguments"]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["rank program"])

    # --- failures ---

    def test_a_failing_rank_ends_all_and_is_named(self):
        code, out, err = self.launch("fail", NPROC=3, kill=LIMIT)  # the others would sleep for 300 s
        self.assertEqual(code, 7)
        self.assertIn("rank 1 failed with exit code 7", err)
        self.assertIn("| before the last words", err)
        self.assertIn("| the last words", err)
        self.assertIn("rank 0: signal 15 (SIGTERM)", err)
        self.assertIn(f"{self.logs}/rank_N.log", err)

    def test_a_lone_rank_that_is_shown_is_not_repeated(self):
        code, out, err = self.launch("fail", RANK_OF_FAILURE=0)
        self.assertEqual((code, out, err.count("the last words")), (7, "before the last words\n", 1))
        self.assertIn("rank 0 failed with exit code 7; its last lines are above", err)

    def test_ranks_deaf_to_TERM_are_killed(self):
        code, _, err = self.launch("hang", self.folder / "deaf", NPROC=2)
        self.assertEqual(code, 9)
        self.assertIn("rank 0 failed with exit code 9", err)
        self.assertIn("rank 1: signal 9 (SIGKILL)", err)
        self.assertFalse(running(self.pid(1)))

    def test_HYPERION_KILL_SECONDS_says_when_ranks_deaf_to_TERM_are_killed(self):
        code, _, err = self.launch("hang", self.folder / "deaf", NPROC=2, kill=10 * LIMIT, HYPERION_KILL_SECONDS=1)
        self.assertEqual(code, 9)
        self.assertIn("rank 1: signal 9 (SIGKILL)", err)
        code, _, err = self.launch("arguments", HYPERION_KILL_SECONDS="soon")
        self.assertEqual(code, 2)
        self.assertIn("HYPERION_KILL_SECONDS is 'soon'", err)

    def test_a_signal_is_named_and_returned(self):
        code, _, err = self.launch("segv", NPROC=3)
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertIn("rank 2 failed with signal 11 (SIGSEGV)", err)
        self.assertIn("(it printed nothing)", err)

    def test_the_cause_is_named_before_those_who_lost_a_peer(self):
        code, _, err = self.launch("lost_peer", NPROC=3, settle=LIMIT)
        self.assertEqual(code, 66)
        self.assertIn("rank 1 failed with exit code 66", err)

    # --- orderly ends ---

    def stop(self, process, *signals):
        """Sends them one after the other, each when the ranks have got the one before."""
        for rank in range(2):
            self.wait_for_line(rank, "ready, pid ")
        for i, number in enumerate(signals):
            if i > 0:
                self.wait_for_line(1, f"signal {int(signals[i - 1])}")
            process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def wait_for_line(self, rank, begin):
        path = self.logs / f"rank_{rank}.log"
        self.wait_for(lambda: path.exists() and any(line.startswith(begin) for line in path.read_text().split("\n")[:-1]))

    def pid(self, rank):
        return int(re.search(r"pid (\d+)\n", self.log(rank)).group(1))

    def wait_for(self, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_one_signal_is_passed_on_and_ranks_take_their_time(self):
        for number, exit_code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 75)):
            with self.subTest(signal=number):
                process = self.start("wait", 1.5, exit_code, NPROC=2)
                code, _, err = self.stop(process, number)
                self.assertEqual((code, err), (exit_code, ""))
                for rank in range(2):
                    self.assertIn(f"orderly {int(number)}", self.log(rank))
                for path in self.logs.iterdir():
                    path.unlink()

    def test_a_warning_that_comes_while_ranks_are_started_waits_for_them(self):
        program = self.program.rename(self.folder / "hyperion")  # which says when it can answer
        (self.folder / "libhyperion_cuda.so").touch()
        process = subprocess.Popen([sys.executable, SCRIPTS / "launch.py", program, "warned"], env=self.environment(), stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}))
        self.addCleanup(process.kill)
        process.send_signal(signal.SIGUSR1)  # before its first instruction
        self.assertEqual(process.communicate(timeout=LIMIT), (None, ""))
        self.assertEqual(process.returncode, 75)

    def test_two_signals_end_the_ranks_at_once(self):
        process = self.start("wait", 300, 0, NPROC=2, LOG_RANK="1", kill=LIMIT)
        code, _, _ = self.stop(process, signal.SIGINT, signal.SIGINT)
        self.assertEqual(code, 130)
        self.assertNotIn("orderly", self.log(1))

    def test_a_repeated_warning_kills_nobody(self):
        process = self.start("wait", 0, 75)
        self.wait_for_line(0, "ready, pid ")
        os.kill(self.pid(0), signal.SIGSTOP)  # it cannot answer for a while
        for _ in range(3):
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.2)
        self.assertIsNone(process.poll())
        os.kill(self.pid(0), signal.SIGCONT)
        self.assertEqual(process.communicate(timeout=LIMIT)[1], "")
        self.assertEqual(process.returncode, 75)

    def test_ranks_that_saved_and_stopped_wait_for_each_other(self):
        code, _, err = self.launch("saved", NPROC=2)
        self.assertEqual((code, err), (75, ""))
        self.assertIn("saved", self.log(1))

    def test_ranks_do_not_outlive_a_killed_launcher(self):
        process = self.start("wait", 0, 0, NPROC=2)
        self.stop(process, signal.SIGKILL)
        for rank in range(2):
            self.wait_for(lambda pid=self.pid(rank): not running(pid))

    def test_a_rank_whose_launcher_is_killed_while_it_starts_does_not_train_on(self):
        self.program.write_text(f"#!/bin/sh\ntouch '{self.folder}/started'\nexec sleep {LIMIT}\n")
        for moment in ("before prctl", "after prctl"):  # both in the child, before it becomes the program
            with self.subTest(moment=moment):
                driver = self.folder / "driver.py"
                driver.write_text(f"""
import ctypes, os, signal, sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
import launch

launcher, cdll = os.getpid(), ctypes.CDLL
def kill_launcher(moment):
    if moment == {moment!r} and os.getpid() != launcher:
        with open({str(self.folder / "child")!r}, "w") as child:
            print(os.getpid(), file=child)
        os.kill(launcher, signal.SIGKILL)
        while os.getppid() == launcher:
            time.sleep(0.01)
class Library:
    def __init__(self, name):
        self.library = cdll(name)
    def prctl(self, *arguments):
        kill_launcher("before prctl")
        self.library.prctl(*arguments)
        kill_launcher("after prctl")
ctypes.CDLL = Library
sys.argv = ["launch.py", {str(self.program)!r}]
launch.main()
""")
                process = subprocess.run([sys.executable, driver], env=self.environment(), timeout=LIMIT)
                self.assertEqual(process.returncode, -signal.SIGKILL)
                child, started = int((self.folder / "child").read_text()), self.folder / "started"
                self.wait_for(lambda child=child, started=started: started.exists() or not running(child))
                if started.exists():
                    os.kill(child, signal.SIGKILL)
                    started.unlink()
                    self.fail("the rank trains on")

    # --- train.sh ---

    def test_train_sh_starts_the_train_command(self):
        link = self.folder / "link to scripts"
        link.symlink_to(SCRIPTS)
        done = subprocess.run([link / "train.sh", "arguments", "--a.b=c d"], cwd=self.folder, capture_output=True, text=True,
                              env=self.environment(HYPERION_BINARY="/bin/echo"), timeout=LIMIT)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "train arguments --a.b=c d\n", ""))

    def test_train_sh_without_file(self):
        done = subprocess.run([SCRIPTS / "train.sh"], capture_output=True, text=True, env=self.environment(), timeout=LIMIT)
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage:", done.stderr)


if __name__ == "__main__":
    unittest.main()
