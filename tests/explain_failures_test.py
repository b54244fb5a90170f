"""Failed tests are explained before ctest's list of them: python3 tests/explain_failures_test.py (needs ctest)."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

EXPLAIN = Path(__file__).with_name("explain_failures.py")
FAILING = """import unittest
class Test(unittest.TestCase):
    def test_codes(self):
        self.assertEqual([0, 71], [0, 0], "a line of a log\\n" * 100)
unittest.main()
"""
TESTS = """add_test(good "true")
add_test(python "python3" "failing.py")
add_test(catch "printf" "a line\\na_test.cpp:29: FAILED:\\n  CHECK( code == 0 )\\nwith expansion:\\n  71 == 0\\n")
set_tests_properties(catch PROPERTIES FAIL_REGULAR_EXPRESSION "FAILED")
add_test(without_end "sleep" "60")
set_tests_properties(without_end PROPERTIES TIMEOUT 1)
"""


class Explained(unittest.TestCase):
    def run_tests(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "CTestTestfile.cmake").write_text(TESTS)
            (Path(folder) / "failing.py").write_text(FAILING)
            ctest = subprocess.run(["ctest", "--output-on-failure", *options], cwd=folder, capture_output=True, text=True)
            done = subprocess.run([sys.executable, EXPLAIN, folder], input=ctest.stdout, capture_output=True, text=True, check=True)
        return ctest.stdout, done.stdout

    def test_what_failed_is_said_before_the_names(self):
        printed, explained = self.run_tests()
        heading = printed.index("The following tests FAILED:")
        self.assertTrue(explained.startswith(printed[:heading]))
        self.assertTrue(explained.endswith(printed[heading:]))
        why = explained[heading : -len(printed[heading:])]
        for text in ("python:\n", "FAIL: test_codes", "AssertionError: Lists differ: [0, 71] != [0, 0]", "FAILED (failures=1)",
                     "catch:\n  a_test.cpp:29: FAILED:\n    CHECK( code == 0 )\n  with expansion:\n    71 == 0\n", "without_end:\n"):
            self.assertIn(text, why)
        self.assertLess(len(why.splitlines()), 40)

    def test_a_run_without_failures_is_passed_on(self):
        printed, explained = self.run_tests("-R", "good")
        self.assertIn("100% tests passed", printed)
        self.assertEqual(explained, printed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
