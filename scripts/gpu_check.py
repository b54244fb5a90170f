#!/usr/bin/env python3
"""The checks behind scripts/gpu_check.sh; and, for scripts/package.sh, the list of tests and benchmarks that need a GPU.

usage: gpu_check.py --root FOLDER [options]                 runs the checks of a source tree (built) or of a bundle
       gpu_check.py --list-gpu-tests BUILD --into FILE.json writes how the tests of label gpu are started, with paths of
                                                            a bundle, and prints the programs that they need

The report is written again after each check, so that a run that is cut off leaves what it found. A check that does not end within its
limit is ended with all it started. Exit code: 0 all passed or cannot run on this host, 1 something failed or was not run, 2 it cannot run
at all, 128 + signal when TERM or INT came.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import bounded_command
import gpu_checks

BUDGET_SECONDS = 570  # of a part
MACHINE_SECONDS = 15  # to find out what the machine has
LIBRARIES_SECONDS = 20  # to read CUDA's libraries
CARD_SECONDS = 10  # to take hold of the GPUs; to see whether they run a kernel, which takes a second or two
SKIPPED = 77  # exit code of a test that cannot run here
LAST_LINES = 40
REPORTED_CHARACTERS = 20000  # of what a failed check printed, in the report
PROGRAMS = ["benchmark_gpu", "benchmark_candidates", "benchmark_float8"]
GPU_FREED_SECONDS = 5.0  # for processes that were ended to leave the GPU


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
    programs = {str(build / name) for name in PROGRAMS if (build / name).exists()}

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


# --- the machine -------------------------------------------------------------------------------------------------------


def query_gpus(fields, what="gpu"):
    """Lines of nvidia-smi; SystemExit where it cannot be run."""
    query = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=MACHINE_SECONDS).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"[gpu_check] nvidia-smi cannot be run ({error})\n  remedy: install the NVIDIA driver's tools", file=sys.stderr)
        sys.exit(2)


# Run by the Python whose torch the bundle uses; a line of facts before and after the import of torch, which may take long.
FACTS = """
import importlib.metadata, json, sys
facts = {"python": sys.version.split()[0]}
sys.path.insert(0, sys.argv[1])
try:
    import torchtitan_gpu
    facts["torchtitan"] = torchtitan_gpu.version()
except Exception as error:
    facts["no_torchtitan"] = f"{type(error).__name__}: {error}"
try:
    facts["torchao"] = importlib.metadata.version("torchao")
except importlib.metadata.PackageNotFoundError as error:
    facts["no_torchao"] = str(error)
print("facts " + json.dumps(facts), flush=True)
try:
    import torch
    facts.update(torch=torch.__version__, torch_commit=torch.version.git_version, cuda=torch.version.cuda)
    if torch.version.cuda:
        facts.update(cudnn=torch.backends.cudnn.version(), nccl=".".join(map(str, torch.cuda.nccl.version())))
except Exception as error:
    facts["torch"] = f"cannot be imported: {error}"
print("facts " + json.dumps(facts))
"""


def machine(root, gpus):
    """What the report says about where it was made."""
    found = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "gpus": gpus, "clocks": query_gpus("clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"),
             "system": platform.platform(), "cpus": os.cpu_count()}
    if (root / "BUNDLE").exists():
        found["bundle"] = (root / "BUNDLE").read_text()
    with tempfile.TemporaryDirectory(prefix="hyperion-gpu-check-") as folder:
        output = pathlib.Path(folder) / "output"
        command = [sys.executable, "-c", FACTS, str(root / "benchmarks")]
        code, _ = bounded_command.run(command, MACHINE_SECONDS, output, root, dict(os.environ))
        lines = [line for line in output.read_text(errors="replace").splitlines() if line.startswith("facts ")]
    facts = json.loads(lines[-1][len("facts "):]) if lines else {"no_torchtitan": f"Python's packages could not be asked (exit code {code})"}
    if str(facts.get("torch", "cannot")).startswith("cannot"):
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, timeout=MACHINE_SECONDS).stdout
        found["cuda_libraries"] = [line.strip() for line in listed.splitlines() if "libcuda" in line]
    return {**found, **facts}


def read_libraries(library):
    """Reads what libhyperion_cuda.so is linked with, and what that loads later, into the page cache: the first check shall not pay for a
    cold disk. Returns a line about it."""
    start = time.monotonic()
    listed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, timeout=MACHINE_SECONDS).stdout
    found = [pathlib.Path(path) for path in re.findall(r"=> (/\S+)", listed) if not re.match(r"/(usr/)?lib\d*/", path)]
    files = sorted({file.resolve() for path in found for file in path.parent.glob(path.name.partition(".")[0] + "*.so*")})

    def read(path):
        count = 0
        with open(path, "rb", buffering=0) as file:
            while time.monotonic() < start + LIBRARIES_SECONDS and (block := file.read(1 << 24)):
                count += len(block)
        return count

    with concurrent.futures.ThreadPoolExecutor(8) as readers:
        total = sum(readers.map(read, files))
    return f"{total / 1e9:.1f} GB of {len(files)} CUDA libraries read in {time.monotonic() - start:.1f} s"


# --- the card ----------------------------------------------------------------------------------------------------------

SAMPLED = ("clocks.sm", "power.draw", "temperature.gpu", "clocks_event_reasons.active")
REASONS = {0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal slowdown",
           0x40: "hardware thermal slowdown", 0x80: "power brake", 0x100: "display clocks"}  # of nvidia-smi, why clocks are not the highest


def summary(samples):
    """What nvidia-smi said during a check, of lines of SAMPLED: a note, and figures; "" and {} where it said nothing."""
    rows = [row for row in (line.split(", ") for line in samples.splitlines()) if len(row) == len(SAMPLED) and row[3].startswith("0x")]
    figures = {}
    for column, name in enumerate(("clock_mhz", "power_w", "temperature_c")):
        if values := [float(row[column]) for row in rows if re.fullmatch(r"[\d.]+", row[column])]:
            figures[name] = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    shares = {reason: sum(bool(int(row[3], 16) & bit) for row in rows) / len(rows) for bit, reason in REASONS.items()} if rows else {}
    figures.update({"throttled": {reason: share for reason, share in shares.items() if share}} if rows else {})
    if not {"clock_mhz", "power_w"} <= set(figures):
        return "", figures
    return (f"{figures['clock_mhz']['median']:.0f} MHz, {figures['power_w']['median']:.0f} W"
            + "".join(f", {reason} {100 * share:.0f} %" for reason, share in figures["throttled"].items()), figures)


class Card:
    """The GPUs while checks run: held open by an idle process, sampled by nvidia-smi, and asked whether they still run a kernel."""

    def __init__(self, environment, folder):
        self.command = [sys.executable, str(pathlib.Path(__file__).with_name("gpu_card.py"))]
        self.environment, self.folder = environment, folder
        said = folder / "hold"
        holder = bounded_command.start_background([*self.command, "hold"], said, environment)
        end = time.monotonic() + CARD_SECONDS
        while "held" not in said.read_text() and holder.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        self.problem = "" if "held" in said.read_text() else last_lines(said.read_text(), 1) or f"no answer within {CARD_SECONDS} s"
        self.samples = folder / "samples"
        at_once = ["stdbuf", "-oL"] if shutil.which("stdbuf") else []  # not when a buffer is full
        bounded_command.start_background([*at_once, "nvidia-smi", f"--query-gpu={','.join(SAMPLED)}", "--format=csv,noheader,nounits", "-lms", "500"],
                                         self.samples, dict(os.environ))

    def position(self):
        return self.samples.stat().st_size

    def since(self, position):
        with open(self.samples, "rb") as file:
            file.seek(position)
            return summary(file.read().decode(errors="replace"))

    def probe(self):
        """Whether a kernel runs, in words; `problem` is set when none does."""
        start, said = time.monotonic(), self.folder / "probe"
        code, _ = bounded_command.run([*self.command, "probe"], CARD_SECONDS, said, self.folder, self.environment)
        if code != 0:
            self.problem = last_lines(said.read_text(errors="replace"), 1) or f"no end within {CARD_SECONDS} s"
            return f"no kernel runs any more: {self.problem}"
        return f"a kernel still runs ({time.monotonic() - start:.1f} s)"


# --- running -----------------------------------------------------------------------------------------------------------


def last_lines(text, count):
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def install_peer(wheels, packages, environment):
    """Installs the wheels of a folder into the folder `packages`, for the checks alone; nothing is fetched."""
    files = sorted(map(str, wheels.glob("*.whl")))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", packages, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if not files or done.returncode:
        why = last_lines(done.stderr, 1) if files else "it holds no *.whl"
        print(f"[gpu_check] the wheels of {wheels} cannot be installed ({why})\n  remedy: see docs/install.md", file=sys.stderr)
        sys.exit(2)
    for place in (environment, os.environ):
        place["PYTHONPATH"] = packages + (os.pathsep + place["PYTHONPATH"] if place.get("PYTHONPATH") else "")


class Run:
    """The checks' results, and the report that holds them."""

    def __init__(self, root, report, path, folder):
        self.root, self.report, self.path = root, report, path
        self.used = {}  # seconds of each allotment
        self.environment = dict(os.environ)
        if preload := self.environment.pop("HYPERION_GPU_CHECK_PRELOAD", ""):
            self.environment["LD_PRELOAD"] = preload  # a simulated GPU (docs/simulated_gpu.md), for the checks alone
        self.card = Card(self.environment, folder)
        self.busy_before = set(query_gpus("pid", "compute-apps"))

    def write(self, state):
        self.report["state"] = state
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps(self.report, indent=1) + "\n")
        new.replace(self.path)

    def add(self, part, check, outcome, seconds=0.0, note="", output="", figures=None):
        self.report["checks"].append({"part": part, "kind": check.kind, "name": check.name, "outcome": outcome,
                                      "seconds": round(seconds, 3), "note": note, "output": output, "figures": figures or {}})
        print(f"  {outcome:<7} {seconds:7.1f} s  {check.kind:<10} {check.name}  {note}", flush=True)
        self.write("running")

    def check(self, part, check, left):
        """Runs it in `left` seconds at most."""
        limit = min(check.limit, left)
        if check.allotment:
            limit = min(limit, gpu_checks.ALLOTMENTS[check.allotment] - self.used.get(check.allotment, 0.0))
        if check.skipped:
            return self.add(part, check, "skipped", note=check.skipped)
        if self.card.problem or limit < 2:
            return self.add(part, check, "not run", note=f"no kernel runs: {self.card.problem}" if self.card.problem else "no time left")
        start, samples = time.monotonic(), self.card.position()
        with tempfile.TemporaryDirectory(prefix="hyperion-gpu-check-", ignore_cleanup_errors=True) as folder:
            outcome = self.outcome(check, start + limit, pathlib.Path(folder))
        took = time.monotonic() - start
        self.used[check.allotment] = self.used.get(check.allotment, 0.0) + took
        said, card = self.card.since(samples)
        if outcome["outcome"] == "FAILED":
            said = self.card.probe()
        outcome["note"] = "; ".join(filter(None, (outcome["note"], said)))
        if card:
            outcome["figures"] = {**outcome.get("figures", {}), "card": card}
        return self.add(part, check, outcome.pop("outcome"), took, **outcome)

    def outcome(self, check, end, folder):
        output, code, killed = "", 0, 0
        for number, words in enumerate(check.commands):
            file = folder / f"output.{number}"
            try:
                code, killed = bounded_command.run([word.replace("{folder}", str(folder)) for word in words], end - time.monotonic(), file,
                                                   self.root, {**self.environment, **check.environment})
            except OSError as error:
                code = str(error)
            output += file.read_text(errors="replace") if file.exists() else ""
            if code != 0:
                break
        if code is None:
            code = f"no end within the limit of {check.limit:.0f} s" + (f"; {killed} processes ignored TERM" if killed else "")
            self.wait_for_free_gpu()
        said = [line for line in output.splitlines() if any(re.search(text, line) for text in check.skip)]
        if code == SKIPPED or (code == 0 and said):
            return {"outcome": "skipped", "note": said[0] if said else last_lines(output, 1)}
        if code == 0:
            try:
                note, figures = check.read(output, folder)
                return {"outcome": "passed", "note": note, "figures": figures}
            except ValueError as error:
                code = str(error)
        print(last_lines(output, LAST_LINES), file=sys.stderr)
        return {"outcome": "FAILED", "note": f"exit code {code}" if isinstance(code, int) else code, "output": output[-REPORTED_CHARACTERS:]}

    def wait_for_free_gpu(self):
        end = time.monotonic() + GPU_FREED_SECONDS
        while set(query_gpus("pid", "compute-apps")) - self.busy_before and time.monotonic() < end:
            time.sleep(0.2)


def comparison(checks):
    """Lines: the speed of each training, as a share of what the card's matrix products reach and of torchtitan's."""
    speeds = {(check["kind"], check["name"]): check["figures"] for check in checks if "tps" in check["figures"]}
    ceilings = {"FP8" in row["name"]: row["tflops"] for check in checks for row in check["figures"].get("rows", []) if "sustained" in row}
    for (kind, name), figures in speeds.items():
        text = f"{kind}, {name}: {figures['tps']:,.0f} tokens/s"
        if ceiling := ceilings.get("FP8" in name):
            text += f", {100 * figures['tflops'] / ceiling:.0f} % of a sustained matrix product"
        for (other, peer), theirs in speeds.items():
            if (kind, other) == ("rank 0", "torchtitan") and set(peer.split(", ")) - {"compiled"} == set(name.split(", ")) and theirs["tps"] > 0:
                text += f", {figures['tps'] / theirs['tps']:.2f} x torchtitan ({peer})"
        yield text


def run_parts(options, run, start):
    for part, chosen in options.chosen.items():
        print(f"part {part}: limits of {gpu_checks.limits(chosen):.0f} s in all", flush=True)
        end = start + options.budget
        for check in chosen:
            run.check(part, check, end - time.monotonic())
        start = time.monotonic()


def choose(options, place):
    """The checks of each part that was asked for."""
    parts = list(gpu_checks.PARTS) if options.part == "all" else [int(options.part)]
    chosen = {}
    for part in parts:
        checks = gpu_checks.PARTS[part](place)
        total = gpu_checks.START_SECONDS + gpu_checks.limits(checks)
        if total > gpu_checks.PART_SECONDS:
            raise AssertionError(f"the limits of part {part} add up to {total} s, at most {gpu_checks.PART_SECONDS} s expected")
        chosen[part] = [check for check in checks if options.only in check.name]
    if not any(chosen.values()):
        print(f"[gpu_check] no check of part {options.part} has '{options.only}' in its name\n  remedy: see --list", file=sys.stderr)
        sys.exit(2)
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--part", choices=("0", "1", "2", "3", "all"), default="all",
                        help="0 the first hour: NCCL, experts, rings, pipelines; 1 other kernels and 8B, 2 speed, 3 the rest; each takes less than ten minutes")
    parser.add_argument("--only", metavar="NAME", default="", help="checks with this in their name")
    parser.add_argument("--budget", metavar="SECONDS", type=float, default=BUDGET_SECONDS, help="of each part, its start with it (570)")
    parser.add_argument("--json", type=pathlib.Path, help="the report; default: gpu_check.json, or gpu_check.partN.json of one part")
    parser.add_argument("--peer", metavar="FOLDER", type=pathlib.Path, help="wheels of torchtitan 0.2.2 and what it needs")
    parser.add_argument("--small", action="store_true", help="a rehearsal: small models and tensors")
    parser.add_argument("--list", action="store_true", help="print the checks and their limits")
    parser.add_argument("--list-gpu-tests", metavar="BUILD")
    parser.add_argument("--into", metavar="FILE.json")
    options = parser.parse_args()
    if options.list_gpu_tests:
        return list_gpu_tests(options.list_gpu_tests, options.into)

    bounded_command.prepare()
    start, root = time.monotonic(), options.root.resolve()
    gpus = query_gpus("name,driver_version,memory.total,compute_cap")
    print(*(f"GPU {index}: {gpu}" for index, gpu in enumerate(gpus)), sep="\n")
    bundle = (root / "BUNDLE").exists()
    place = gpu_checks.Place(root, root / "hyperion" if bundle else root / "build" / "hyperion", root / "libexec" if bundle else root / "build",
                             gpu_tests(root), [float(gpu.rsplit(",", 1)[1]) for gpu in gpus], options.small, "", simulated="HYPERION_GPU_CHECK_PRELOAD" in os.environ)
    options.chosen = choose(options, place)
    if options.list:
        for part, chosen in options.chosen.items():
            print(*(f"part {part}  {check.limit:4.0f} s  {check.kind:<10} {check.name}" for check in chosen), sep="\n")
        return 0
    path = options.json or pathlib.Path("gpu_check.json" if options.part == "all" else f"gpu_check.part{options.part}.json")
    report = {"state": "running", "small": options.small, "machine": {}, "checks": []}
    with tempfile.TemporaryDirectory(prefix="hyperion-gpu-check-", ignore_cleanup_errors=True) as packages, \
            tempfile.TemporaryDirectory(prefix="hyperion-gpu-check-", ignore_cleanup_errors=True) as folder:
        code, state = 0, "done"
        try:
            libraries = read_libraries(place.programs / "libhyperion_cuda.so")
            print(libraries, flush=True)
            run = Run(root, report, path, pathlib.Path(folder))
            if options.peer:
                install_peer(options.peer, packages, run.environment)
            report["machine"] = {**machine(root, gpus), "libraries": libraries, "simulated": place.simulated}
            missing = report["machine"].get("no_torchtitan", "")
            place.peer = f"torchtitan cannot be imported ({missing})" if missing else ""
            place.peer_float8 = "" if "torchao" in report["machine"] else f"torchao is not installed ({report['machine'].get('no_torchao', 'not asked')})"
            options.chosen = choose(options, place)
            run.write("running")
            run_parts(options, run, start)
        except bounded_command.Stopped as stopped:
            bounded_command.end_descendants()
            code, state = 128 + stopped.number, f"stopped by {stopped}"
        bounded_command.end_background()
        report["seconds"] = round(time.monotonic() - start, 3)
        run.write(state)
    print(*comparison(report["checks"]), sep="\n")
    outcomes = [check["outcome"] for check in report["checks"]]
    failed, missing = outcomes.count("FAILED"), outcomes.count("not run")
    print(f"{outcomes.count('passed')} passed, {failed} failed, {missing} not run, {outcomes.count('skipped')} skipped; {state}; {path}")
    return code or (1 if failed or missing else 0)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    sys.exit(main())
