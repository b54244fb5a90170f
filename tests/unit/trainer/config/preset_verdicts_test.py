"""`hyperion config` over TOML files in the form of every dense preset of torchtitan v0.2.2: exit code and keys named.

    python3 tests/unit/trainer/config/preset_verdicts_test.py build/hyperion
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

BINARY = Path(sys.argv[1]).resolve()
PRESETS = Path(__file__).resolve().parent / "presets"

DATA = "training.dataset"  # "c4" downloads in v0.2.2; here it needs training.dataset_path
REFUSED = {  # the keys named for each preset as it is; those but DATA are named when the data set is given, too
    "llama3_debug": set(),
    "llama3_8b": {DATA},
    "llama3_70b": {DATA},
    "llama3_405b": {DATA},
    "qwen3_0.6b": {DATA},
    "qwen3_1.7b": {DATA},
    "qwen3_32b": {DATA},
}


class PresetVerdicts(unittest.TestCase):
    def check(self, name, options, keys):
        file = PRESETS / f"{name}.toml"
        done = subprocess.run([BINARY, "config", file, *options], capture_output=True, text=True, timeout=300)
        problems = re.findall(rf"^  {re.escape(str(file))}:\d+:\d+: ([\w.]+) = ", done.stderr, re.MULTILINE)
        self.assertEqual((done.returncode, set(problems), len(problems)), (2 if keys else 0, keys, len(keys)), done.stderr)
        # A configuration that is accepted is printed whole and nothing is complained about; one that is not, is not printed.
        self.assertEqual("[parallelism]" in done.stdout, not keys, done.stdout)
        self.assertEqual(done.stderr == "", not keys, done.stderr)

    def test_every_preset_has_a_verdict(self):
        self.assertEqual({file.stem for file in PRESETS.glob("*.toml")}, set(REFUSED))

    def test_presets_as_they_are(self):
        for name, keys in REFUSED.items():
            with self.subTest(preset=name):
                self.check(name, [], keys)

    def test_presets_with_a_data_set(self):
        for name, keys in REFUSED.items():
            with self.subTest(preset=name):
                self.check(name, ["--training.dataset_path=c4/*.json.gz"], keys - {DATA})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
