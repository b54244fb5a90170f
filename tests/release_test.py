"""What scripts/release.sh refuses before it builds anything, in small repositories.

    python3 tests/release_test.py SOURCE_FOLDER

Standard library and git.
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()


class Refusals(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "scripts").mkdir()
        for name in ("release.sh", "common.sh"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts")
        (self.folder / "CMakeLists.txt").write_text("project(hyperion VERSION 0.1.0 LANGUAGES C CXX)\n")
        (self.folder / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.1.0\n\n- The first.\n\n## 0.0.9\n")
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.folder, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *arguments], check=True)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=a")

    def assert_refused(self, *texts, version="0.1.0", options=()):
        done = subprocess.run([self.folder / "scripts/release.sh", version, *options], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("  remedy: ", done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 2, done.stderr)

    def test_what_is_no_version(self):
        for version in ("0.1", "v0.1.0", "0.1.0-rc1", "0.01.0", "0.1.0.0", ".."):
            with self.subTest(version):
                self.assert_refused(f"'{version}' is not a version", version=version)

    def test_another_version_than_the_program_has(self):
        self.assert_refused("declares version 0.1.0, not 0.2.0", version="0.2.0")

    def test_a_folder_that_holds_other_files(self):
        with tempfile.TemporaryDirectory() as into:
            other = Path(into, "hyperion-0.0.9.tar.gz")
            other.touch()
            self.assert_refused(f"--into {into} is not empty", options=["--into", into])
            self.assertTrue(other.exists())

    def test_files_that_are_not_as_in_the_commit(self):
        (self.folder / "new.txt").touch()
        self.assert_refused("?? new.txt", "commit, stash or remove them")
        self.commit()
        (self.folder / "CMakeLists.txt").write_text("project(hyperion VERSION 0.1.0 LANGUAGES C)\n")
        self.assert_refused(" M CMakeLists.txt")

    def test_a_changelog_without_the_version_or_without_notes(self):
        for text in ("## Unreleased\n- Something.\n", "## 0.1.0\n\n## 0.0.9\n- Old.\n", "## 0.1.0.1\n- Something.\n"):
            with self.subTest(text):
                (self.folder / "CHANGELOG.md").write_text(text)
                self.commit()
                self.assert_refused("CHANGELOG.md has no section '## 0.1.0' with notes")

    def test_a_folder_in_which_nothing_is_set_up(self):
        self.assert_refused("Hyperion is not set up", "scripts/setup.sh")

    def test_a_folder_that_is_no_repository(self):
        shutil.rmtree(self.folder / ".git")
        self.assert_refused("no git repository")


class Repository(unittest.TestCase):
    def test_this_version_has_notes(self):
        version = subprocess.run(["sed", "-n", r"s/^project(hyperion VERSION \([0-9.]*\).*/\1/p", ROOT / "CMakeLists.txt"], capture_output=True, text=True,
                                 check=True).stdout.strip()
        self.assertIn(f"\n## {version}\n", (ROOT / "CHANGELOG.md").read_text())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
