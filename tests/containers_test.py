"""The files of scripts/containers/ say the same and follow the rules for images; tests/packaging/containers.sh builds them and trains in them.

    python3 tests/containers_test.py SOURCE_FOLDER

Standard library and, where .venv-interop or the PATH has it, hadolint.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
CONTAINERFILE = ROOT / "scripts/containers/Containerfile"
DEFINITION = ROOT / "scripts/containers/hyperion.def"


def sections():
    """Name -> lines of a section of hyperion.def; those before the first are ""'s."""
    found, name = {"": []}, ""
    for line in map(str.strip, DEFINITION.read_text().splitlines()):
        if line.startswith("%"):
            name = line[1:]
            found[name] = []
        elif line and not line.startswith("#"):
            found[name].append(line)
    return found


class Containers(unittest.TestCase):
    def test_hadolint_finds_nothing(self):
        hadolint = shutil.which("hadolint", path=f"{ROOT}/.venv-interop/bin:{os.environ['PATH']}")
        if hadolint is None:
            self.skipTest("no hadolint: scripts/setup.sh --interop installs it")
        done = subprocess.run([hadolint, "--no-color", CONTAINERFILE], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_both_begin_with_one_pinned_image_and_install_the_same(self):
        text, found = CONTAINERFILE.read_text(), sections()
        (image,) = re.findall(r"(?m)^FROM (\S+)$", text)
        self.assertRegex(image, r":\d+\.\d+-slim$")
        self.assertEqual(found[""], ["Bootstrap: docker", f"From: {image}"])
        self.assertEqual(re.findall(r"(?m)^ARG (.*)$", text), found["arguments"])
        commands = re.sub(r" *\\\n *(&& )?", "\n", "\n".join(re.findall(r"(?ms)^RUN (.*?[^\\])$", text)))
        of_container_alone = r"useradd .*|install -d .*"  # Apptainer runs as the user who starts it
        installed = [line.strip() for line in commands.splitlines() if not re.fullmatch(of_container_alone, line.strip())]
        self.assertEqual(installed, [line.replace("{{ DEVICE }}", "$DEVICE") for line in found["post"]])
        self.assertNotRegex(commands, r"\b(gcc|g\+\+|build-essential|clang)\b")

    def test_the_image_runs_as_an_ordinary_user(self):
        (user,) = re.findall(r"(?m)^USER (\d+)$", CONTAINERFILE.read_text())
        self.assertIn(f"--uid {user} ", CONTAINERFILE.read_text())
        self.assertGreater(int(user), 0)

    def test_what_is_installed_for_a_cpu_is_what_setup_installs(self):
        pinned = set(re.findall(r"(?m)^([a-z-]+==[\d.]+)$", (ROOT / "scripts/requirements/torch-cpu.in").read_text()))
        (line,) = re.findall(r"cpu\) set -- --no-deps (.*) ;;", CONTAINERFILE.read_text())
        self.assertEqual(set(line.split()), pinned)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
