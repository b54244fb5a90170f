"""scripts/gpu_check.py: what it runs ends at its limits with all it started, its report is whole at any moment, and it runs from an
unpacked bundle, rehearsed on a simulated GPU (docs/simulated_gpu.md).

    python3 tests/faults/gpu_check_test.py build/hyperion [whole]

Standard library only. `whole` makes a bundle and runs both parts from it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BINARY = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds; what is waited for so long takes one or a few on an idle host
PRELOAD = BINARY.parent / "libsimulated_gpu.so"
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_check  # noqa: E402
import gpu_checks  # noqa: E402
import gpu_trace  # noqa: E402

NVIDIA_SMI = """#!/bin/sh
case "$*" in
  -L) echo "GPU 0: a simulated H100" ;;
  *query-gpu=name*) echo "a simulated H100, 580.0, 81559 MiB, 9.0" ;;
  *query-gpu=clocks*) echo "1980 MHz, 2619 MHz, 1980 MHz, 700.00 W, 30" ;;
esac
"""
# A test that ignores TERM and starts, in a session of its own, a process that ignores it too.
HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child, sys.argv[1]], start_new_session=True)
open(sys.argv[2], "w").write(str(os.getpid()))
time.sleep(600)
"""


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "bin").mkdir()
        self.nvidia_smi(NVIDIA_SMI)
        self.report = self.folder / "report.json"

    def nvidia_smi(self, text):
        (self.folder / "bin" / "nvidia-smi").write_text(text)
        (self.folder / "bin" / "nvidia-smi").chmod(0o755)

    def environment(self):
        setup = dict(line.split(" ", 1) for line in (BINARY.parent / "setup").read_text().splitlines() if " " in line)
        return {"HYPERION_TORCH": setup["torch"], **os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "HYPERION_GPU_CHECK_PRELOAD": str(PRELOAD),
                "HYPERION_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}

    def bundle(self, *tests):
        """A folder that gpu_check.py takes for a bundle, with tests (name, command) alone."""
        root = self.folder / "bundle"
        root.mkdir(exist_ok=True)
        (root / "BUNDLE").write_text("made by a test\n")
        listed = [{"name": name, "command": command, "environment": [], "seconds": 60, "skip": ["^skipped: "]} for name, command in tests]
        (root / "gpu_tests.json").write_text(json.dumps(listed))
        return root

    def start(self, root, *options):
        output = open(self.folder / "output", "w+")
        self.addCleanup(output.close)
        process = subprocess.Popen([sys.executable, ROOT / "scripts" / "gpu_check.py", "--root", root, "--json", self.report, *options],
                                   env=self.environment(), stdout=output, stderr=subprocess.STDOUT)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def said(self):
        return (self.folder / "output").read_text()

    def read(self):
        return json.loads(self.report.read_text())

    def wait_for(self, path):
        end = time.monotonic() + PATIENCE
        while not path.exists() or not path.read_text():
            self.assertLess(time.monotonic(), end, self.said())
            time.sleep(0.02)
        return int(path.read_text())

    def hanging(self):
        files = [self.folder / "child", self.folder / "parent"]
        return ("hangs", [sys.executable, "-c", HANGS, *map(str, files)]), files

    def outcomes(self):
        return {check["name"]: check["outcome"] for check in self.read()["checks"]}


class Runner(GpuCheckTest):
    def test_a_check_that_ignores_term_leaves_no_process_and_the_next_one_runs(self):
        hangs, files = self.hanging()
        root = self.bundle(hangs, ("has hangs in its name and passes", ["true"]))
        process = self.start(root, "--part=2", "--only=hangs", "--budget=20")  # the seconds that the check gets, in which it must have started
        processes = [self.wait_for(file) for file in files]
        self.assertEqual(process.wait(timeout=PATIENCE), 1, self.said())
        self.assertEqual([alive(one) for one in processes], [False, False])
        first = self.read()["checks"][0]
        self.assertEqual(first["outcome"], "FAILED")
        self.assertIn("2 processes ignored TERM", first["note"])

    def test_term_ends_what_runs_and_the_report_says_so(self):
        hangs, files = self.hanging()
        process = self.start(self.bundle(("passes", ["true"]), hangs), "--part=2", "--only=s")
        processes = [self.wait_for(file) for file in files]
        process.terminate()
        self.assertEqual(process.wait(timeout=PATIENCE), 128 + signal.SIGTERM, self.said())
        self.assertEqual([alive(one) for one in processes], [False, False])
        self.assertEqual(self.read()["state"], "stopped by SIGTERM")
        self.assertEqual(self.outcomes(), {"passes": "passed"})

    def test_the_report_is_whole_when_the_script_is_killed_in_the_middle_of_a_check(self):
        hangs, files = self.hanging()
        process = self.start(self.bundle(("passes", ["true"]), hangs), "--part=2", "--only=s")
        processes = [self.wait_for(file) for file in files]
        process.kill()
        process.wait()
        for one in processes:
            os.kill(one, signal.SIGKILL)
        self.assertEqual(self.read()["state"], "running")
        self.assertEqual(self.outcomes(), {"passes": "passed"})
        self.assertIn("torch", self.read()["machine"])

    def test_exit_codes_say_passed_failed_or_cannot_run(self):
        cases = [("passes", ["true"], 0, "passed"), ("fails", ["false"], 1, "FAILED"), ("skips", ["echo", "skipped: no FP8"], 0, "skipped"),
                 ("is missing", ["/nowhere/program"], 1, "FAILED")]
        for name, command, code, outcome in cases:
            with self.subTest(name):
                process = self.start(self.bundle((name, command)), "--part=2", f"--only={name}")
                self.assertEqual(process.wait(timeout=PATIENCE), code, self.said())
                self.assertEqual(self.outcomes(), {name: outcome})
                self.assertEqual(self.read()["state"], "done")
        self.assertEqual(self.start(self.bundle(), "--part=2", "--only=no such check").wait(timeout=PATIENCE), 2)
        (self.folder / "bin" / "nvidia-smi").unlink()
        self.assertEqual(self.start(self.bundle(), "--part=2").wait(timeout=PATIENCE), 2, self.said())
        self.assertIn("nvidia-smi cannot be run", self.said())

    def test_the_limits_of_a_part_leave_time_for_its_start_in_ten_minutes(self):
        tests = [{"name": f"test {number}", "command": ["true"], "environment": [], "skip": []} for number in range(40)]
        place = gpu_checks.Place(ROOT, BINARY, BINARY.parent, tests, [9.0], small=False, peer="")
        for part in gpu_checks.PARTS.values():
            self.assertLessEqual(gpu_check.MACHINE_SECONDS + gpu_checks.limits(part(place)), gpu_checks.PART_SECONDS)
        self.assertLess(gpu_checks.PART_SECONDS, gpu_check.BUDGET_SECONDS)


class Reading(unittest.TestCase):
    LINE = "step: {}  loss:  8.{}000  grad_norm:  0.1267  memory: 38.30GiB(48.1%)  tps: {}  tflops: 400.00  mfu: 40.00%\n"

    def lines(self, *speeds):
        return "".join("\033[31m" + self.LINE.format(step, 9 - step, speed) for step, speed in enumerate(speeds, start=1))

    def test_speed_is_the_median_of_the_steps_from_the_fourth_on(self):
        note, figures = gpu_checks.speed(self.lines("1", "2", "3", "7,000", "7,200", "7,100"), None)
        self.assertEqual((figures["tps"], figures["reserved_gib"]), (7100, 38.3), note)
        self.assertAlmostEqual(figures["mfu_causal"], 35.55, places=2)
        with self.assertRaisesRegex(ValueError, "no step line of step 4"):
            gpu_checks.speed(self.lines("1", "2", "3"), None)

    def test_losses_that_are_apart_or_do_not_fall_are_a_failure(self):
        same = self.lines("1", "1", "1")
        gpu_checks.same_losses(same + same, None)
        for other in (same.replace("8.7", "8.6"), same + same[: len(same) // 3], ""):
            with self.assertRaises(ValueError):
                gpu_checks.same_losses(same + other, None)
        with self.assertRaisesRegex(ValueError, "did not fall"):
            gpu_checks.falling_loss(self.lines("1") + self.lines("1"), None)

    def test_a_figure_that_says_what_is_wrong_fails_its_benchmark(self):
        self.assertEqual(gpu_checks.json_lines('{"name": "a", "ms": 1.0}\n', None)[1]["rows"], [{"name": "a", "ms": 1.0}])
        with self.assertRaisesRegex(ValueError, "b: not finite"):
            gpu_checks.json_lines('{"name": "a"}\n{"name": "b", "wrong": "not finite"}\n', None)
        with self.assertRaises(ValueError):
            gpu_checks.json_lines("nothing\n", None)

    def test_a_trace_becomes_time_by_kind_with_launches_and_gaps(self):
        def event(name, ts, dur, cat="kernel"):
            return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur}
        trace = {"traceEvents": [
            event("ProfilerStep#4", 0, 900, "user_annotation"), event("ProfilerStep#5", 1000, 900, "user_annotation"),
            event("aten::mm", 0, 900, "cpu_op"), event("nvjet_hsh_128x256", 0, 400), event("nvjet_hsh_128x256", 1000, 400),
            event("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 300, 300), event("Memcpy DtoD", 1400, 100, "gpu_memcpy"),
            event("strange", 1600, 400)]}
        table = gpu_trace.reduce(trace)
        self.assertEqual((table["steps"], table["launches_per_step"], table["ms_per_step"]), (2, 2.5, 1.0))
        self.assertAlmostEqual(table["busy"], (600 + 500 + 400) / 2000)
        self.assertEqual({kind: row["ms_per_step"] for kind, row in table["kinds"].items()},
                         {"matrix products": 0.4, "attention": 0.15, "copies": 0.05, "other": 0.2})
        self.assertEqual(table["gaps"][0]["ms"], 0.4)
        self.assertIn("| matrix products | 0.400 | 1 |", gpu_trace.table(table))
        self.assertEqual(gpu_trace.reduce({"traceEvents": []})["launches_per_step"], 0)
        kinds = {gpu_trace.kind_of(f"void hyperion::kernels::{name}<__nv_bfloat16, 8>(Task)") for name in
                 ("add_rms_norm_row", "add_rms_norm_backward_rows", "sum_weight_gradient", "rope_token", "gated_activation_chunk",
                  "gated_activation_backward_chunk")}
        self.assertEqual(kinds, {"fused norms, RoPE and gated activations"})
        self.assertEqual({gpu_trace.kind_of(name) for name in ("cross_entropy_row", "vocab_statistics_row", "vocab_gradient_row")},
                         {"softmax and cross-entropy"})


class Rehearsal(GpuCheckTest):
    def run_part(self, root, part, *options):
        command = [root / "scripts" / "gpu_check.sh", f"--part={part}", "--json", self.report, "--small", *options]
        done = subprocess.run(command, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.read()["state"], "done")
        return self.outcomes()

    def test_the_benchmarks_of_part_1_pass_on_a_simulated_gpu(self):
        for name in ("ceilings", "attention"):
            process = self.start(ROOT, "--part=1", f"--only={name}", "--small")
            self.assertEqual(process.wait(timeout=PATIENCE), 0, self.said())
            self.assertEqual(self.outcomes(), {name: "passed"})
            self.assertTrue(self.read()["checks"][0]["figures"]["rows"])


class Whole(Rehearsal):
    test_the_benchmarks_of_part_1_pass_on_a_simulated_gpu = None  # part of what follows

    def test_both_parts_run_from_an_unpacked_bundle(self):
        made = subprocess.run([ROOT / "scripts" / "package.sh", "--no-build", "--into", self.folder / "dist"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=600)
        self.assertEqual(made.returncode, 0, made.stdout)
        (archive,) = (self.folder / "dist").glob("hyperion-*.tar.gz")
        subprocess.run(["tar", "-C", self.folder, "-xf", archive], check=True)
        root = self.folder / archive.name.removesuffix(".tar.gz")
        first = self.run_part(root, 1)
        self.assertEqual(len(first), 9 + ("torchtitan" in first))
        self.assertNotIn("FAILED", first.values())
        self.assertIn("bundle", self.read()["machine"])
        second = self.run_part(root, 2)
        self.assertGreater(sum(outcome == "passed" for outcome in second.values()), 15, second)


if __name__ == "__main__":
    whole = sys.argv[2:3] == ["whole"]
    chosen = ["Whole"] if whole else sys.argv[2:] or ["Runner", "Reading", "Rehearsal"]
    unittest.main(argv=[sys.argv[0], *chosen], verbosity=2)
