"""Which tests scripts/test.sh has ctest run, and that each line of tests/default.txt names some of them.

    python3 tests/default_test.py SOURCE_FOLDER BUILD_FOLDER

Standard library only.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT, BUILD = (Path(word).resolve() for word in sys.argv[1:3])
ALL = ["-LE", "^slow$"]
# A ctest that says what it was asked for, and how many tests that are.
CTEST = """#!/usr/bin/env python3
import json, sys
arguments = sys.argv[1:]
if "-N" in arguments:
    print("Total Tests:", 100 if "-R" in arguments else 1000)
else:
    print("ASKED", json.dumps(arguments[arguments.index("-j") + 2:]))
    sys.exit(8 if "fails" in arguments else 0)
"""


def patterns():
    return [line for line in (ROOT / "tests/default.txt").read_text().splitlines() if line and not line.startswith("#")]


class Default(unittest.TestCase):
    def test_each_line_names_tests_that_are_not_slow(self):
        shown = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout
        labels = {test["name"]: {label for prop in test.get("properties", []) if prop["name"] == "LABELS" for label in prop["value"]}
                  for test in json.loads(shown)["tests"]}
        for line in patterns():
            found = [name for name in labels if re.fullmatch(line, name)]
            known = line.startswith(("simulated_gpu", r"faults\.lost_peer", "pipeline_picture"))  # not there without CUDA's headers or benchmarks
            self.assertTrue(known or any("slow" not in labels[name] for name in found), line)


class Selection(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        for file in ("scripts/test.sh", "scripts/common.sh", "tests/default.txt", "tests/explain_failures.py"):
            (self.folder / file).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / file, self.folder / file)
        for file, text in (("scripts/setup.sh", '#!/bin/sh\necho "SET UP $*"\n'), ("scripts/build.sh", "#!/bin/sh\n"), ("bin/ctest", CTEST)):
            (self.folder / file).parent.mkdir(exist_ok=True)
            (self.folder / file).write_text(text)
            (self.folder / file).chmod(0o755)
        self.default = [*ALL, "-R", "|".join(f"^{line}$" for line in patterns())]

    def run_script(self, *arguments, code=0, **environment):
        """What ctest was asked for, and what the script printed."""
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "HYPERION_PRESET", "HYPERION_NO_INTEROP")}
        done = subprocess.run([self.folder / "scripts/test.sh", *arguments], env={**kept, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", **environment},
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(re.search("^ASKED (.*)", done.stdout, re.MULTILINE)[1]), done.stdout

    def test_by_default_the_list_is_run_and_the_last_line_says_what_ci_adds(self):
        asked, said = self.run_script()
        self.assertEqual(asked, self.default)
        self.assertIn("SET UP \n", said)
        self.assertRegex(said.splitlines()[-1], "^CI=true scripts/test.sh runs 900 more tests, in about ")
        self.assertEqual(self.run_script("--repeat", "until-fail:2")[0], [*self.default, "--repeat", "until-fail:2"])

    def test_ci_runs_all_but_slow_with_the_interop_packages(self):
        asked, said = self.run_script(CI="true")
        self.assertEqual(asked, ALL)
        self.assertIn("SET UP --interop\n", said)
        self.assertNotIn("more tests", said)

    def test_what_is_asked_for_is_chosen_from_all_but_slow_and_slow_from_everything(self):
        for arguments in (["-L", "faults"], ["-Lfaults"], ["-R", "resume"], ["--tests-regex", "resume"], ["-I", "1,5"], ["--rerun-failed"]):
            with self.subTest(arguments):
                asked, said = self.run_script(*arguments)
                self.assertEqual(asked, [*ALL, *arguments])
                self.assertNotIn("more tests", said)
        self.assertEqual(self.run_script("-L", "slow")[0], ["-L", "slow"])

    def test_the_exit_code_is_that_of_ctest(self):
        self.run_script("fails", code=8)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
