"""File systems that only one test sees: small, with a quota, or read-only.

enter() starts the test program anew in a mount namespace of its own, where the machine lets it; whatever is mounted there goes
with the process.
"""

import os
import subprocess
import sys
import tempfile

ENTERED = "HYPERION_TEST_MOUNTS"  # set to "yes" inside, or to why there are none


def enter():
    if ENTERED in os.environ:
        return
    unshare = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() != 0 else [])]
    with tempfile.TemporaryDirectory() as folder:
        try:
            probe = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", folder], capture_output=True, text=True)
            answer = "yes" if probe.returncode == 0 else probe.stderr.strip()
        except OSError as error:
            answer = str(error)
    os.environ[ENTERED] = answer
    if answer == "yes":
        os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])


def refused():
    """Why nothing can be mounted here, or an empty text."""
    answer = os.environ.get(ENTERED, "mounts.enter() was not called")
    return "" if answer == "yes" else f"this machine lets tests mount nothing: {answer}"


def mount(test, *arguments):
    """mount ARGUMENTS... FOLDER, until `test` ends. Skips the test where this kind cannot be had."""
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        test.skipTest(f"mount: {done.stderr.strip()}")
    test.addCleanup(subprocess.run, ["umount", "--lazy", str(arguments[-1])], check=True)
