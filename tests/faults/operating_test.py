"""Every command of docs/operating.md, on a small job.

    python3 tests/faults/operating_test.py build/hyperion

Standard library only. scripts/train.sh sets up and builds first, so scripts/launch.py stands for it; scripts/gpu_check.sh
has a test of its own (faults.gpu_check).
"""

import os
import re
import shlex
import signal
import subprocess
import sys

from checkpoints import CHECKPOINT_TOML, CheckpointTest
from jobs import BINARY, PATIENCE, ROOT, main

PAGE = ROOT / "docs/operating.md"
LAUNCH = [sys.executable, str(ROOT / "scripts/launch.py"), str(BINARY), "train"]
ELSEWHERE = ("scripts/gpu_check.sh", "kill")


def commands():
    """The lines of the page's blocks."""
    lines, block = PAGE.read_text(encoding="utf-8").splitlines(), False
    for before, line in zip([""] + lines, lines):
        block = line.startswith("    ") and (block or not before) and not line.strip().startswith(("|", "-"))
        if block and re.match(r"\s{4,7}(build/|scripts/|HYPERION_|kill )", line):
            yield line.strip()


class Operating(CheckpointTest):
    toml = CHECKPOINT_TOML.replace("global_batch_size = 4", "global_batch_size = 32").replace("interval = 3", "interval = 4")

    def command(self, text):
        """The words of a command and its environment, for the small job."""
        words = shlex.split(text.replace("RUN BEFORE", "RUN").replace("RUN", str(self.folder / "out"))
                            .replace("FILE.toml", str(self.folder / "job.toml")).replace("STEP", "4"))
        env = dict(os.environ, NPROC="1", OMP_NUM_THREADS="1", HYPERION_DEVICE="cpu")
        while "=" in words[0] and not words[0].startswith("-"):
            name, value = words.pop(0).split("=", 1)
            env[name] = value
        if words[0] == "scripts/train.sh":
            words = [*LAUNCH, *words[1:]]
        elif words[0] == "build/hyperion":
            words[0] = str(BINARY)
        return words, env

    def test_every_command_of_the_page_runs(self):
        self.run_job(code=0)  # what the commands look at
        found = list(commands())
        self.assertGreater(len(found), 10)
        for text in found:
            if text.split()[0] in ELSEWHERE:
                continue
            with self.subTest(command=text):
                words, env = self.command(text)
                if "--checkpoint.load_step=4" in words:
                    words.append("--checkpoint.keep_latest_k=0")
                done = subprocess.run(words, env=env, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.folder / "report.html").exists())

    def test_term_saves_and_the_same_command_goes_on(self):
        words, env = self.command("scripts/train.sh FILE.toml --training.steps=100000 --lr_scheduler.total_steps=200000")
        with subprocess.Popen(words, env=env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
            for line in job.stdout:
                if "step:  3" in line:
                    job.send_signal(signal.SIGTERM)
                    break
            self.assertIn("start again with the same command to resume", job.stdout.read())
            self.assertEqual(job.wait(PATIENCE), 75)
        step = self.saved()[0][-1]
        done = subprocess.run([*words, f"--training.steps={step + 1}"], env=env, cwd=self.folder, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"Training starts at step {step + 1}", done.stdout)


if __name__ == "__main__":
    main()
