"""What scripts/setup.sh promises, in a copy of scripts/ with a stand-in for libtorch, and what it installs from.

    python3 tests/setup_test.py SOURCE_FOLDER

Standard library only; no network.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
REQUIREMENTS = ROOT / "scripts/requirements"


class SetUp(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        (self.folder / "data").mkdir()
        (self.folder / "data/text.jsonl.gz").touch()
        self.torch = self.folder / "torch"
        (self.torch / "lib").mkdir(parents=True)
        shutil.copy("/bin/true", self.torch / "lib/libtorch_cpu.so")
        (self.torch / "version.py").write_text("__version__ = '2.11.0'\n")

    def run_setup(self, *arguments, torch=None, user=None):
        environment = {**os.environ, "HYPERION_TORCH": str(torch or ""), "HYPERION_CUDA": "OFF"}
        return subprocess.run(["bash", self.folder / "scripts/setup.sh", *arguments], env=environment, user=user,
                              capture_output=True, text=True, timeout=300)

    def test_a_second_run_does_nothing_until_a_list_changes(self):
        first = self.run_setup("--no-apt", torch=self.torch)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("done: libtorch at", first.stderr)
        second = self.run_setup()  # the torch folder, and that apt is not asked, are remembered
        self.assertEqual((second.returncode, second.stderr), (0, ""))
        (self.folder / "scripts/requirements/torch-cpu.lock").touch()
        self.assertIn("done: libtorch at", self.run_setup("--no-apt").stderr)

    def test_a_folder_that_is_no_torch_2_11_is_refused_and_not_remembered(self):
        (self.torch / "version.py").write_text("__version__ = '2.10.0'\n")
        refused = self.run_setup("--no-apt", torch=self.torch)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("is torch 2.10.0; Hyperion is written for torch 2.11", refused.stderr)
        self.assertFalse((self.folder / "build/setup").exists())

    @unittest.skipUnless(shutil.which("dpkg-query"), "this is no Debian system")
    def test_without_root_missing_packages_are_named_with_the_command(self):
        with open(self.folder / "scripts/requirements/apt.txt", "w") as packages:
            packages.write("# one that exists nowhere\nhyperion-no-such-package\n")
        user = None
        if os.geteuid() == 0:
            user = "nobody"
            subprocess.run(["chown", "-R", user, self.folder], check=True)
        refused = self.run_setup(user=user)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("these Debian packages are missing: hyperion-no-such-package", refused.stderr)
        self.assertIn("remedy: sudo apt-get install --yes --no-install-recommends hyperion-no-such-package", refused.stderr)


class Lists(unittest.TestCase):
    def test_every_locked_package_has_a_version_and_hashes_and_no_host_is_named(self):
        locks = sorted(REQUIREMENTS.glob("*.lock"))
        self.assertEqual([lock.stem for lock in locks], sorted(file.stem for file in REQUIREMENTS.glob("*.in")))
        for lock in locks:
            text = lock.read_text()
            self.assertNotIn("://", text)
            packages = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
            self.assertTrue(packages)
            for package in packages:
                self.assertRegex(package, r"^[\w.-]+==\S+[^\n]*\\\n +--hash=sha256:[0-9a-f]{64}")

    def test_what_an_in_file_names_is_locked_in_that_version(self):
        for wanted in REQUIREMENTS.glob("*.in"):
            locked = set(re.findall(r"^([\w.-]+==[^\s;]+)", wanted.with_suffix(".lock").read_text(), re.MULTILINE))
            for line in wanted.read_text().splitlines():
                if line and not line.startswith("#"):
                    name, version = line.split("==")
                    self.assertIn(f"{name.lower().replace('_', '-')}=={version}", locked, wanted.name)


class CMakeFiles(unittest.TestCase):
    def test_no_cmake_file_compiles_the_sources_of_another_folder(self):
        for file in subprocess.run(["git", "-C", ROOT, "ls-files", "*CMakeLists.txt", "*.cmake"], capture_output=True,
                                   text=True).stdout.split():
            if file != "tests/fuzz/CMakeLists.txt":  # compiles everything once more, with sanitizers
                self.assertNotRegex((ROOT / file).read_text(), r"(\.\./|_SOURCE_DIR\}/)[\w/.]*\.(cpp|cu)\b", file)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
