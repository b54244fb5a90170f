#!/usr/bin/env python3
"""The checks behind scripts/gpu_check.sh; and, for scripts/package.sh, the list of tests and benchmarks that need a GPU.

usage: gpu_check.py --root FOLDER [--json FILE]             runs the checks of a source tree (built) or of a bundle
       gpu_check.py --list-gpu-tests BUILD --into FILE.json writes how the tests of label gpu are started, with paths of
                                                            a bundle, and prints the programs that they need
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

BUDGET_SECONDS = 570  # of all checks together
SKIPPED = 77  # exit code of a test that cannot run here
LAST_LINES = 40
REPORTED_CHARACTERS = 20000  # of what a failed check printed, in the JSON report
BENCHMARKS = ["benchmark_float8"]
FIRST_WITH_FP8 = 8.9  # compute capability


class Result:
    def __init__(self, kind, name, outcome, seconds=0.0, note="", output=""):
        self.kind, self.name, self.outcome, self.seconds, self.note, self.output = kind, name, outcome, seconds, note, output


# --- the tests that need a GPU, as ctest knows them --------------------------------------------------------------------


def ctest_gpu_tests(build):
    """[{name, command, environment, seconds}] of the tests with label gpu."""
    listed = subprocess.run(
        ["ctest", "--test-dir", str(build), "-L", "^gpu$", "--show-only=json-v1"], capture_output=True, text=True, check=True
    )
    tests = []
    for test in json.loads(listed.stdout)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        if "command" in test:
            tests.append(
                {
                    "name": test["name"],
                    "command": test["command"],
                    "environment": properties.get("ENVIRONMENT", []),
                    "seconds": properties.get("TIMEOUT", 120),
                    "skip": properties.get("SKIP_REGULAR_EXPRESSION", []),
                }
            )
    return tests


def list_gpu_tests(build, into):
    build = pathlib.Path(build).resolve()
    source = build.parent
    programs = {str(build / name) for name in BENCHMARKS if (build / name).exists()}

    def relocate(word):
        if os.path.isabs(word) and pathlib.Path(word).parent == build and os.access(word, os.X_OK):
            programs.add(word)
            return "{root}/libexec/" + pathlib.Path(word).name
        return word.replace(str(build), "{root}/libexec").replace(str(source), "{root}")

    tests = ctest_gpu_tests(build)
    for test in tests:
        test["command"] = [relocate(word) for word in test["command"]]
        test["environment"] = [relocate(word) for word in test["environment"]]
    pathlib.Path(into).write_text(json.dumps(tests, indent=1) + "\n")
    print("\n".join(sorted(programs)))


def gpu_tests(root):
    if not (root / "BUNDLE").exists():
        return ctest_gpu_tests(root / "build")
    return json.loads((root / "gpu_tests.json").read_text().replace("{root}", str(root)))


# --- running -----------------------------------------------------------------------------------------------------------


class Checks:
    def __init__(self, root):
        self.root = root
        bundle = (root / "BUNDLE").exists()
        self.binary = root / "hyperion" if bundle else root / "build" / "hyperion"
        self.programs = root / "libexec" if bundle else root / "build"
        self.end = time.monotonic() + BUDGET_SECONDS
        self.results = []

    def add(self, result):
        self.results.append(result)
        print(f"  {result.outcome:<7} {result.seconds:7.1f} s  {result.kind:<9} {result.name}  {result.note}", flush=True)

    def run(self, kind, name, command, seconds, environment=None, note=lambda output: "", skip=()):
        """Runs a command; its exit code decides, and `note` (which may raise ValueError) reads its output. `skip`: expressions;
        a command that prints a line with one of them was skipped."""
        left = self.end - time.monotonic()
        if left < 5:
            return self.add(Result(kind, name, "skipped", 0.0, "no time left"))
        start = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=min(seconds, left),
            )
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as expired:
            output = expired.stdout or ""
            output = output.decode(errors="replace") if isinstance(output, bytes) else output
            code = f"no end after {min(seconds, left):.0f} s"
        except OSError as error:
            code, output = str(error), ""
        took = time.monotonic() - start
        why = [line for line in output.splitlines() if any(re.search(text, line) for text in skip)]
        if code == SKIPPED or (code == 0 and why):
            return self.add(Result(kind, name, "skipped", took, why[0] if why else last_lines(output, 1)))
        if code == 0:
            try:
                return self.add(Result(kind, name, "passed", took, note(output)))
            except ValueError as error:
                code = str(error)
        print(last_lines(output, LAST_LINES), file=sys.stderr)
        why = f"exit code {code}" if isinstance(code, int) else code
        return self.add(Result(kind, name, "FAILED", took, why, output[-REPORTED_CHARACTERS:]))

    def train(self, name, ranks, options):
        with tempfile.TemporaryDirectory(prefix="hyperion-gpu-check-") as folder:
            command = [sys.executable, str(self.root / "scripts" / "launch.py"), str(self.binary), "train"]
            command += [str(self.root / "configs" / "debug_model.toml"), f"--job.dump_folder={folder}", *options]
            self.run("training", name, command, 120, {"NPROC": str(ranks), "HYPERION_DEVICE": "cuda"}, read_training)

    def all(self, gpus, with_fp8):
        for test in gpu_tests(self.root):
            environment = dict(entry.split("=", 1) for entry in test["environment"])
            self.run("test", test["name"], test["command"], test["seconds"], environment, skip=test["skip"])
        self.train("1 GPU, 50 steps", 1, ["--training.steps=50"])
        for recipe, further in (("tensorwise", ["--quantize.linear.float8.enable_fsdp_float8_all_gather"]), ("rowwise", [])):
            name = f"1 GPU, FP8 {recipe}, 50 steps"
            if with_fp8:
                options = ["--model.converters=quantize.linear.float8", f"--quantize.linear.float8.recipe_name={recipe}", *further]
                self.train(name, 1, ["--training.steps=50", *options])
            else:
                self.add(Result("training", name, "skipped", 0.0, "this GPU has no FP8"))
        if gpus > 1:
            self.train(f"{gpus} GPUs, FSDP over NCCL, 20 steps", gpus, ["--training.steps=20"])
        else:
            self.add(Result("training", "several GPUs over NCCL", "skipped", 0.0, "this host has one GPU"))
        for name in BENCHMARKS:
            self.run("benchmark", name, [str(self.programs / name)], 180, note=lambda output: "\n" + output)


def last_lines(text, count):
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def read_training(output):
    """First and last loss and the last step line's figures; raises ValueError when the loss did not fall."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    steps = re.findall(r"step:\s*\d+\s+loss:\s*(\S+)\s+grad_norm:\s*\S+\s+(memory:.*)", plain)
    if len(steps) < 2:
        raise ValueError("fewer than two step lines")
    (first, _), (last, figures) = steps[0], steps[-1]
    if not float(last) < float(first):
        raise ValueError(f"the loss did not fall: {first} at first, {last} at last")
    return f"loss {first} -> {last}; {figures.strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("gpu_check.json"))
    parser.add_argument("--list-gpu-tests", metavar="BUILD")
    parser.add_argument("--into", metavar="FILE.json")
    options = parser.parse_args()
    if options.list_gpu_tests:
        return list_gpu_tests(options.list_gpu_tests, options.into)

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=60).stdout.splitlines()
    except OSError as error:
        sys.exit(f"[gpu_check] nvidia-smi cannot be run ({error})\n  remedy: install the NVIDIA driver's tools")
    print(*(f"GPU {index}: {gpu}" for index, gpu in enumerate(gpus)), sep="\n")
    checks = Checks(options.root.resolve())
    checks.all(len(gpus), all(float(gpu.rsplit(",", 1)[1]) >= FIRST_WITH_FP8 for gpu in gpus))

    outcomes = [result.outcome for result in checks.results]
    report = {"gpus": gpus, "checks": [vars(result) for result in checks.results]}
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    failed = outcomes.count("FAILED")
    print(f"{outcomes.count('passed')} passed, {failed} failed, {outcomes.count('skipped')} skipped; {options.json}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
