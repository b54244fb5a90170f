"""`hyperion monitor` in a pseudo-terminal: on a run that begins, grows and is replaced, and on what wants to steer the terminal.

    python3 tests/faults/monitor_test.py build/hyperion

Standard library only. What is shown of which run is tested in tests/unit/app/monitor.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, main

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The monitor in a terminal of its own, with all that it wrote."""

    def __init__(self, *arguments, columns=80, rows=24, **environment):
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.settings = termios.tcgetattr(self.slave)
        self.text = ""
        self.process = subprocess.Popen(
            [BINARY, "monitor", *map(str, arguments)], stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "", "NO_COLOR": "", **environment})

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.master, keys.encode())

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            self.text += os.read(self.master, 65536).decode(errors="replace")

    def frame(self):
        """The lines of the newest frame that is whole."""
        frames = self.text.split("\x1b[H")[1:]
        whole = [frame for frame in frames if frame.partition("\x1b[J")[1]]
        return [ESCAPES.sub("", line) for line in whole[-1].partition("\x1b[J")[0].split("\r\n")] if whole else []

    def wait_for(self, shown):
        """Waits until shown(lines of a frame) is true, or a text is in one."""
        end = time.monotonic() + PATIENCE
        while not (shown(self.frame()) if callable(shown) else shown in "\n".join(self.frame())):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"never shown: {shown}\n" + "\n".join(self.frame()) + f"\n{self.text[-2000:]!r}")
            self.read(0.1)
        return self.frame()

    def end(self):
        """The exit status, when the terminal is as it was; negative: by a signal."""
        try:
            end = time.monotonic() + PATIENCE
            while self.process.poll() is None and time.monotonic() < end:
                self.read(0.02)
            code = self.process.wait(timeout=0)
            self.read(0.1)
            assert termios.tcgetattr(self.slave) == self.settings, "the terminal's settings are not what they were"
            assert self.text.count(ENTER) == self.text.count(LEAVE), self.text[-300:]
            assert self.text.rfind("\x1b[?25h") > self.text.rfind("\x1b[?25l"), "no cursor"
            return code
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.master)
            os.close(self.slave)


def row(step, loss=5.0, **more):
    return json.dumps({"step": step, "time": time.time(), "loss_metrics/global_avg_loss": loss, "throughput(tps)": 1000, **more}) + "\n"


class Monitor(CheckpointTest):
    def once(self, *arguments, code=0, says=(), **environment):
        done = warm_start.run([BINARY, "monitor", *map(str, arguments), "--once"], stderr=subprocess.STDOUT, cwd=self.folder,
                              env={**os.environ, "COLUMNS": "100", **environment})
        self.assertEqual(done.returncode, code, done.stdout)
        for text in says:
            self.assertIn(text, done.stdout)
        return done.stdout

    def write(self, text, mode="a"):
        (self.folder / "run").mkdir(exist_ok=True)
        with open(self.folder / "run" / "metrics.jsonl", mode) as file:
            file.write(text)

    def test_a_training_is_printed_once_as_plain_text(self):
        self.run_job(code=0)
        text = self.once("out", says=["ended: completed, exit code 0", "8 of 8", "checkpoint", "step 8", "Loss", "Throughput", "1 start"],
                         LC_ALL="C", TERM="xterm")
        self.assertNotIn("\x1b", text)
        self.assertTrue(text.isascii())
        self.assertTrue(all(len(line) <= 100 for line in text.splitlines()))
        self.assertIn("\u2524", self.once("out", LC_ALL="C.UTF-8"))
        self.once("out/checkpoint", code=2, says=["did you mean out?"])

    def test_it_waits_for_a_run_follows_it_and_a_resize_and_gives_the_terminal_back(self):
        terminal = Terminal(self.folder / "run", "--interval=0.1")
        self.addCleanup(terminal.process.kill)
        terminal.wait_for("waits for ")
        self.write(row(1) + row(2, 4.5) + row(3)[:30])
        frame = terminal.wait_for("Loss  4.5")
        self.assertEqual(len(frame), 24)
        self.assertIn("q leaves", frame[-1])
        self.assertIn("\x1b[", terminal.text.replace("\x1b[?", ""))
        self.write("\n" + row(3, 4.25, **{"memory/num_ooms": 1, "\x1b]0;evil\x07": 1}) + '{"step": 3, "time": 1, "event": "\x1b[2J"}\n')
        terminal.wait_for("Loss  4.25")
        terminal.wait_for("1 out-of-memory error")
        terminal.resize(40, 10)
        frame = terminal.wait_for(lambda lines: len(lines) == 10)
        self.assertTrue(all(len(line.rstrip("\r")) <= 40 for line in frame), frame)
        terminal.resize(200, 60)
        terminal.wait_for(lambda lines: len(lines) == 60)
        (self.folder / "run" / "metrics.jsonl").rename(self.folder / "run" / "metrics-a.jsonl")
        self.write(row(1, 8.5) + row(2, 7.5))
        frame = terminal.wait_for("Loss  7.5")
        self.assertNotIn("out-of-memory", "\n".join(frame))
        self.assertNotIn("evil", terminal.text)
        terminal.type("xq")
        self.assertEqual(terminal.end(), 0)

    def test_whatever_ends_it_gives_the_terminal_back(self):
        self.write(row(1) + row(2))
        for number, keys in ((signal.SIGINT, "\x03"), (signal.SIGTERM, ""), (signal.SIGSEGV, "")):
            with self.subTest(number):
                terminal = Terminal(self.folder / "run", NO_COLOR="1")
                self.addCleanup(terminal.process.kill)
                terminal.wait_for("Loss")
                self.assertNotRegex(terminal.text, r"\x1b\[[0-9;]*[1-9]m")
                terminal.type(keys) if keys else terminal.process.send_signal(number)
                self.assertEqual(terminal.end(), -number)

    def test_a_stopped_monitor_leaves_the_terminal_to_the_shell_and_draws_again(self):
        self.write(row(1))
        terminal = Terminal(self.folder / "run")
        self.addCleanup(terminal.process.kill)
        terminal.wait_for("Loss")
        terminal.process.send_signal(signal.SIGTSTP)  # Ctrl-Z; the kernel stops no group without a shell
        end = time.monotonic() + PATIENCE
        while LEAVE not in terminal.text and time.monotonic() < end:
            terminal.read(0.1)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.text = terminal.text.partition(LEAVE)[2]
        terminal.wait_for("Loss")
        terminal.text = ENTER + terminal.text.replace(ENTER, "")
        terminal.type("q")
        self.assertEqual(terminal.end(), 0)

    def test_what_cannot_be_shown_is_refused_by_its_documented_code(self):
        self.once("nowhere", code=2, says=["nowhere: holds no metrics.jsonl"])
        self.write("\n")
        self.once("run", code=2, says=["holds no line yet"])
        self.write("junk\n")
        self.once("run", code=65, says=["holds 1 line and no row"])
        done = warm_start.run([BINARY, "monitor", "run"], stderr=subprocess.STDOUT, cwd=self.folder)
        self.assertEqual((done.returncode, "give --once" in done.stdout), (2, True), done.stdout)
        (self.folder / "folder" / "metrics.jsonl").mkdir(parents=True)
        self.once("folder", code=65, says=["not a regular file"])
        terminal = Terminal(self.folder / "folder")
        self.assertEqual(terminal.end(), 65)
        self.assertIn("not a regular file", terminal.text)


if __name__ == "__main__":
    main()
