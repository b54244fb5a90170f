"""What scripts/package.sh says of the bundle that it makes of build/ is true of the files in it.

    python3 tests/package_test.py SOURCE_FOLDER

Standard library and readelf only.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()


def highest(prefix, files):
    """The highest version of a library's symbols that these ELF files need, by readelf, as numbers."""
    said = subprocess.run(["readelf", "--version-info", "--wide", *files], capture_output=True, text=True, check=True).stdout
    needed = re.sub(r"(?ms)^Version definition section.*?(?=^Version needs section|^File: |\Z)", "", said)
    return max(tuple(map(int, version.split("."))) for version in re.findall(rf"Name: {prefix}_([\d.]+)", needed))


class Bundle(unittest.TestCase):
    def test_a_bundle_names_the_highest_glibc_that_any_of_its_files_needs(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        done = subprocess.run([ROOT / "scripts/package.sh", "--no-build", "--into", folder / "made"], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        (archive,) = (folder / "made").glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder / "unpacked")
        (root,) = (folder / "unpacked").iterdir()
        programs = [path for path in root.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
        text = (root / "BUNDLE").read_text()
        said = re.search(r"GLIBC ([\d.]+), a C\+\+ library with GLIBCXX ([\d.]+)$", text, re.MULTILINE)
        self.assertIsNotNone(said, text)
        self.assertIn(said[0], done.stderr)
        found = [tuple(map(int, version.split("."))) for version in said.groups()]
        self.assertEqual(found, [highest("GLIBC", programs), highest("GLIBCXX", programs)])
        self.assertLessEqual(found, [(2, 34), (3, 4, 29)])  # RHEL 9's


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
