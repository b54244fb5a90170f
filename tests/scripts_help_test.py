"""Every script answers -h and --help with its usage, at once and without doing anything; a missing Python module is one sentence.

    python3 tests/scripts_help_test.py SOURCE_FOLDER

Standard library only.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
SOURCED = {"common.sh", "bundle_environment.sh", "bounded_command.py", "gpu_checks.py", "needed.py", "restarts.py"}  # and imported
SCRIPTS = [path for path in sorted((ROOT / "scripts").iterdir())
           if path.suffix in {".sh", ".slurm", ".py"} and path.name not in SOURCED]
SCRIPTS += sorted((ROOT / "benchmarks").glob("*.sh"))
NEED_A_MODULE = {"fp8_curves.py": "matplotlib", "make_unicode_tables.py": "tokenizers", "train_tokenizer.py": "tokenizers"}


def run(script, *arguments, **environment):
    program = [sys.executable] if script.suffix == ".py" else ["bash"]
    return subprocess.run([*program, script, *arguments], capture_output=True, text=True, timeout=300, cwd=tempfile.gettempdir(),
                          env={**os.environ, **environment})


class Help(unittest.TestCase):
    def test_help_is_the_usage_and_nothing_else_happens(self):
        for script in SCRIPTS:
            for option in ("-h", "--help"):
                with self.subTest(script=script.name, option=option):
                    done = run(script, option)
                    self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                    self.assertRegex(done.stdout, "(?m)^usage[:,]")

    def test_a_reader_that_leaves_ends_the_help_without_a_traceback(self):
        for script in SCRIPTS:
            if script.suffix != ".py":
                continue
            with self.subTest(script=script.name):
                read, write = os.pipe()
                os.close(read)
                try:
                    done = subprocess.run([sys.executable, script, "--help"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=300)
                finally:
                    os.close(write)
                self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""))

    def test_a_missing_python_module_is_one_sentence_with_the_remedy(self):
        with tempfile.TemporaryDirectory() as folder:
            for module in NEED_A_MODULE.values():
                Path(folder, f"{module}.py").write_text("raise ImportError('not here')")
            for name, module in NEED_A_MODULE.items():
                with self.subTest(script=name):
                    self.assertEqual(run(ROOT / "scripts" / name, "--help", PYTHONPATH=folder).returncode, 0)
                    done = run(ROOT / "scripts" / name, PYTHONPATH=folder)
                    self.assertEqual(done.returncode, 2)
                    self.assertIn(f"cannot import {module}", done.stderr)
                    self.assertIn("remedy: run scripts/setup.sh --interop", done.stderr)
                    self.assertNotIn("Traceback", done.stderr)


class JoinGradients(unittest.TestCase):
    """Files that are not what they should be end scripts/join_gradients.py with one sentence, at once."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def refusal(self, head=None, **entry):
        file = self.folder / "rank_0.gradients"
        if head is None:
            entry = {"name": "a.w", "shape": [4], "extent": [4], "offset": [0], **entry}
            head = json.dumps({"rank": 0, "ranks": 1, "parameters": [entry]}).encode()
        if head:
            file.write_bytes(head + b"\n" + struct.pack("<4f", 1, 2, 3, 4))
        done = run(ROOT / "scripts/join_gradients.py", self.folder)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertNotIn("\x1b", done.stderr)
        return done.stderr

    def test_sizes_and_names_are_checked_before_they_are_used(self):
        self.assertIn("larger than the files", self.refusal(shape=[1 << 40]))
        self.assertIn("expected a list of whole numbers", self.refusal(extent=[-4]))
        self.assertIn("is no name of a parameter", self.refusal(name="\x1b[31m/a"))

    def test_bytes_that_are_no_head_and_a_pipe_are_refused(self):
        self.assertIn("is no JSON", self.refusal(b"\xff\xfe{"))
        self.assertIn("is no JSON", self.refusal(b"[" * 100000))
        (self.folder / "rank_0.gradients").unlink()
        os.mkfifo(self.folder / "rank_0.gradients")
        self.assertIn("is no regular file", self.refusal(b""))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
