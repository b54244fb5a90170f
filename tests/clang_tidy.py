"""Runs clang-tidy on the libraries and files of a configured build, but on none that it has found nothing in before.

    python3 tests/clang_tidy.py CLANG_TIDY SOURCE_FOLDER BUILD_FOLDER [COMMIT]

COMMIT: only what a change since that commit touches, by a file itself or by one that it includes.
What a file is to clang-tidy is its text with all that it includes as the compiler reads it, with comments (NOLINT) and macros, its flags,
.clang-tidy and clang-tidy's version. Where
clang-tidy finds nothing, a file named by the hash of these is left in hyperion/clang-tidy of the user's cache folder (XDG_CACHE_HOME, ~/.cache):
remove that folder to read everything again. Files of a library are read as one (CMake's unity build). Standard library only.
"""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = "app|base|checkpoint|data|models|parallel|trainer|CMakeFiles/hyperion_cuda.dir"
KEPT_SECONDS = 60 * 86400  # of a result that nothing has asked for


def units(source, build):
    """file -> compile command: the unity files, which take longest, first."""
    commands = {entry["file"]: entry for entry in json.loads((build / "compile_commands.json").read_text())}
    chosen = [name for name in commands
              if re.match(rf"{re.escape(str(build))}/({FOLDERS})/.*/unity_[^/]*$|{re.escape(str(source))}/({FOLDERS})/", name)
              and name.endswith((".cpp", ".cxx"))]
    chosen.sort(key=lambda name: ("/unity_" not in name, -os.stat(name).st_size))
    return {name: commands[name] for name in chosen}


def preprocessed(entry, source, tool):
    """(A hash of all that clang-tidy reads, the files that this is); nothing where the compiler cannot read the file, which is then
    clang-tidy's to say."""
    words = shlex.split(entry["command"])
    at = words.index("-o")
    words[at:at + 2] = []
    words.remove("-c")
    text = subprocess.run([*words, "-E", "-CC", "-dD"], cwd=entry["directory"], capture_output=True, check=False)
    if text.returncode != 0:
        return None, None
    marker = rb'(?m)^# \d+ "([^"]*)".*$'  # of the lines that follow
    found = hashlib.sha256(tool)
    for part in ("\0".join(words).encode(), re.sub(marker, b"", text.stdout)):
        found.update(part.replace(os.fsencode(source), b"."))
    return found.hexdigest(), {os.path.realpath(os.fsdecode(name)) for name in set(re.findall(marker, text.stdout))}


def main():
    program, source, build = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyperion" / "clang-tidy"
    cache.mkdir(parents=True, exist_ok=True)
    for old in cache.iterdir():
        if time.time() - old.stat().st_mtime > KEPT_SECONDS:
            old.unlink(missing_ok=True)
    version = subprocess.run([program, "--version"], capture_output=True, check=True).stdout
    tool = version + (source / ".clang-tidy").read_bytes()
    changed = None
    if len(sys.argv) > 4:
        listed = subprocess.run(["git", "-C", source, "diff", "--name-only", sys.argv[4]], capture_output=True, text=True, check=True)
        changed = None if ".clang-tidy" in listed.stdout.splitlines() else {os.path.realpath(source / name) for name in listed.stdout.splitlines()}

    def read(item):
        name, entry = item
        known, files = preprocessed(entry, source, tool)
        if changed is not None and files is not None and not files & changed:
            return "untouched"
        if known and (cache / known).exists():
            (cache / known).touch()
            return "known"
        done = subprocess.run([program, "--quiet", "-p", build, name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout, done.stderr, flush=True)
            return "found"
        if known:
            (cache / known).touch()
        return "read"

    chosen = units(source, build)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(read, chosen.items()))
    print(f"{len(results)} libraries and files: {results.count('read')} read without a finding, {results.count('known')} unchanged since then, "
          f"{results.count('untouched')} that the change does not touch, {results.count('found')} with findings")
    return "found" in results or not results


if __name__ == "__main__":
    sys.exit(main())
