"""Each row of docs/from_torchtitan.md's table of presets, over TOML files in the form of torchtitan v0.2.2's: the exit code, the keys that
are named and what is said to be missing.

    python3 tests/unit/trainer/config/preset_verdicts_test.py build/hyperion
"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY = Path(sys.argv[1]).resolve()
PRESETS = Path(__file__).resolve().parent / "presets"
TABLE = Path(__file__).resolve().parents[4] / "docs" / "from_torchtitan.md"
DATA = {"training.dataset"}  # "c4" downloads in v0.2.2; here it needs training.dataset_path


def file_of(preset):
    """llama3/debug_model is llama3_debug.toml, llama3/llama3_8b llama3_8b.toml."""
    return PRESETS / (preset.replace("/debug_model", "_debug").rpartition("/")[2] + ".toml")


def rows():
    """(preset, verdict, keys or options of the last column, what is missing) of each row."""
    table = re.findall(r"^\| `(\w+/[\w.]+)` \| ([a-z ]+) \| (.*)\|$", TABLE.read_text(), re.MULTILINE)
    return [(preset, verdict, re.findall("`([^`]+)`", more), more.rpartition(": ")[2].strip()) for preset, verdict, more in table]


class PresetVerdicts(unittest.TestCase):
    def run_on(self, command, preset, options, keys):
        """What `hyperion config` or `check` says of the preset; it must name exactly `keys`."""
        file = file_of(preset)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([BINARY, command, file, *options], capture_output=True, text=True, timeout=300, cwd=folder)
        problems = re.findall(rf"^  {re.escape(str(file))}:\d+:\d+: ([\w.]+) = ", done.stderr, re.MULTILINE)
        if command == "check":  # which looks for the tokenizer's files and at one rank's mesh too
            problems = [key for key in problems if key in keys]
        self.assertEqual((done.returncode, sorted(problems)), (2 if keys else 0, sorted(keys)), done.stderr)
        # A configuration that is accepted is printed whole and nothing is complained about; one that is not, is not printed.
        self.assertEqual("[parallelism]" in done.stdout, not keys, done.stdout)
        self.assertEqual(done.stderr == "", not keys, done.stderr)
        return done.stderr

    def test_every_preset_has_a_row(self):
        self.assertEqual(sorted(file_of(preset) for preset, *_ in rows()), sorted(PRESETS.glob("*.toml")))
        self.assertEqual(len(rows()), 16)

    def test_presets_as_they_are(self):
        for preset, verdict, named, missing in rows():
            with self.subTest(preset=preset):
                self.run_on("config", preset, [], named if verdict == "refused" else [])
                if verdict == "runs with":
                    self.run_on("check", preset, ["--ranks=1024", "--training.global_batch_size=-1"], DATA)

    def test_presets_run_with_the_options_of_their_row(self):
        for preset, verdict, named, missing in rows():
            if verdict == "runs with":
                with self.subTest(preset=preset):
                    self.run_on("config", preset, [f"{option}=c4/*.json.gz" for option in named], [])

    def test_a_check_of_a_refused_preset_says_what_is_missing(self):
        for preset, verdict, named, missing in rows():
            if verdict == "refused":
                with self.subTest(preset=preset):
                    self.assertIn(missing, self.run_on("check", preset, [], named))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
