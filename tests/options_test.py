"""Every option that docs/configuration.md says works is read somewhere in the program.

    python3 tests/options_test.py SOURCE_FOLDER

Standard library only.
"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop() if len(sys.argv) > 1 else ".")
COMMENTS_AND_TEXTS = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')


class Options(unittest.TestCase):
    def test_what_works_is_read(self):
        rows = re.findall(r"^\| `(\w+)` \|.*\| ([a-z ]+) \|$", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE)
        self.assertGreater(len(rows), 150)
        code = "".join(COMMENTS_AND_TEXTS.sub("", path.read_text())
                       for top in ("app", "data", "models", "trainer") for path in (ROOT / top).rglob("*") if path.suffix in (".cpp", ".h"))
        read = set(re.findall(r"(?:\.|->|::)(\w+)", code))
        members = dict(re.findall(r"^OVERRIDE\(\w+, (\w+), (?:\w+\.)*(\w+),", (ROOT / "models/flavors/overrides.def").read_text(), re.MULTILINE))
        self.assertEqual([key for key, status in rows if status == "works" and members.get(key, key) not in read], [])


if __name__ == "__main__":
    unittest.main()
