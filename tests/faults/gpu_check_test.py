"""scripts/gpu_check.py: what it runs ends at its limits with all it started, its report is whole at any moment, and it runs from an
unpacked bundle, rehearsed on a simulated GPU (docs/simulated_gpu.md).

    python3 tests/faults/gpu_check_test.py build/hyperion [whole]

Standard library only. `whole` makes a bundle and runs all parts from it. FirstHour: part 0 from the tree.
"""

import ctypes
import json
import os
import re
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

import cards  # noqa: E402
import gpu_check  # noqa: E402
import gpu_checks  # noqa: E402
import gpu_trace  # noqa: E402

# scripts/gpu_check.py with limits that a busy host does not reach, which otherwise are those of a machine that is lent for ten minutes.
# The first two arguments are its folder and the seconds of each check.
WITH_LONG_LIMITS = f"""
import dataclasses, sys
sys.path.insert(0, sys.argv.pop(1))
import gpu_check
limit, choose = float(sys.argv.pop(1)), gpu_check.choose
gpu_check.MACHINE_SECONDS = gpu_check.CARD_SECONDS = {PATIENCE}
gpu_check.choose = lambda *given: {{part: [dataclasses.replace(check, limit=limit, allotment="") for check in checks] for part, checks in choose(*given).items()}}
sys.exit(gpu_check.main())
"""
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  -L) echo "GPU 0: a simulated H100" ;;
  *query-gpu=name*) echo "a simulated H100, 580.0, 81559 MiB, 9.0" ;;
  *query-gpu=clocks.sm,power.draw*) while sleep 0.05; do echo "1410, 698.50, 61, 0x0000000000000004"; done ;;
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

    def environment(self, preload=PRELOAD, **more):
        setup = dict(line.split(" ", 1) for line in (BINARY.parent / "setup").read_text().splitlines() if " " in line)
        return {"HYPERION_TORCH": setup["torch"], **os.environ, **more, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "HYPERION_GPU_CHECK_PRELOAD": str(preload),
                "HYPERION_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}

    def bundle(self, *tests):
        """A folder that gpu_check.py takes for a bundle, with tests (name, command) alone."""
        root = self.folder / "bundle"
        root.mkdir(exist_ok=True)
        (root / "BUNDLE").write_text("made by a test\n")
        listed = [{"name": name, "command": command, "environment": [], "seconds": 60, "skip": ["^skipped: "]} for name, command in tests]
        (root / "gpu_tests.json").write_text(json.dumps(listed))
        return root

    def start(self, root, *options, limit=PATIENCE, **environment):
        output = open(self.folder / "output", "w+")
        self.addCleanup(output.close)
        process = subprocess.Popen([sys.executable, "-c", WITH_LONG_LIMITS, ROOT / "scripts", str(limit), "--root", root, "--json", self.report, *options],
                                   env=self.environment(**environment), stdout=output, stderr=subprocess.STDOUT)
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
        process = self.start(root, "--part=3", "--only=hangs", limit=40)  # in which the check must have started
        processes = [self.wait_for(file) for file in files]
        self.assertEqual(process.wait(timeout=PATIENCE), 1, self.said())
        self.assertEqual([alive(one) for one in processes], [False, False])
        first = self.read()["checks"][0]
        self.assertEqual(first["outcome"], "FAILED")
        self.assertIn("2 processes ignored TERM", first["note"])

    def test_term_ends_what_runs_and_the_report_says_so(self):
        hangs, files = self.hanging()
        process = self.start(self.bundle(("passes", ["true"]), hangs), "--part=3", "--only=s")
        processes = [self.wait_for(file) for file in files]
        process.terminate()
        self.assertEqual(process.wait(timeout=PATIENCE), 128 + signal.SIGTERM, self.said())
        self.assertEqual([alive(one) for one in processes], [False, False])
        self.assertEqual(self.read()["state"], "stopped by SIGTERM")
        self.assertEqual(self.outcomes(), {"passes": "passed"})

    def test_the_report_is_whole_when_the_script_is_killed_in_the_middle_of_a_check(self):
        hangs, files = self.hanging()
        process = self.start(self.bundle(("passes", ["true"]), hangs), "--part=3", "--only=s")
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
                process = self.start(self.bundle((name, command)), "--part=3", f"--only={name}")
                self.assertEqual(process.wait(timeout=PATIENCE), code, self.said())
                self.assertEqual(self.outcomes(), {name: outcome})
                self.assertEqual(self.read()["state"], "done")
        self.assertEqual(self.start(self.bundle(), "--part=3", "--only=no such check").wait(timeout=PATIENCE), 2)
        (self.folder / "bin" / "nvidia-smi").unlink()
        self.assertEqual(self.start(self.bundle(), "--part=3").wait(timeout=PATIENCE), 2, self.said())
        self.assertIn("nvidia-smi cannot be run", self.said())

    def test_a_check_for_which_no_time_is_left_is_not_run_and_that_is_no_success(self):
        process = self.start(self.bundle(("passes", ["true"])), "--part=3", "--only=passes", "--budget=1")
        self.assertEqual(process.wait(timeout=PATIENCE), 1, self.said())
        self.assertEqual(self.outcomes(), {"passes": "not run"})
        self.assertEqual(self.read()["checks"][0]["note"], "no time left")

    def test_after_a_failure_the_report_says_whether_a_kernel_runs_and_goes_on(self):
        process = self.start(self.bundle(("fails", ["false"]), ("passes", ["sleep", "0.5"])), "--part=3", "--only=s")
        self.assertEqual(process.wait(timeout=PATIENCE), 1, self.said())
        checks = {check["name"]: check for check in self.read()["checks"]}
        self.assertRegex(checks["fails"]["note"], r"exit code 1; a kernel still runs \(\d")
        self.assertEqual((checks["passes"]["outcome"], checks["passes"]["note"]), ("passed", "1410 MHz, 698 W, power cap 100 %"))
        self.assertEqual(checks["passes"]["figures"]["card"]["temperature_c"], {"min": 61, "median": 61, "max": 61})

    def test_when_no_kernel_runs_any_more_the_rest_is_not_run_with_that_reason(self):
        try:
            ctypes.CDLL("libcuda.so.1")
            self.skipTest("this host has a driver")
        except OSError:
            pass
        preload = self.folder / "libsimulated_gpu.so"
        preload.symlink_to(PRELOAD)
        root = self.bundle(("loses the GPU", ["sh", "-c", f"rm {preload}; exit 3"]), ("passes", ["true"]))
        process = self.start(root, "--part=3", "--only=s", preload=preload)
        self.assertEqual(process.wait(timeout=PATIENCE), 1, self.said())
        first, second = self.read()["checks"][:2]
        self.assertIn("exit code 3; no kernel runs any more: libcuda.so.1", first["note"])
        self.assertEqual(second["outcome"], "not run")
        self.assertIn("no kernel runs: libcuda.so.1", second["note"])

    def test_a_gpu_that_cannot_be_held_from_the_start_lets_nothing_run(self):
        process = self.start(self.bundle(("passes", ["true"])), "--part=3", "--only=passes", preload="/nowhere")
        try:
            ctypes.CDLL("libcuda.so.1")
            self.skipTest("this host has a driver")
        except OSError:
            pass
        self.assertEqual(process.wait(timeout=PATIENCE), 1, self.said())
        self.assertEqual(self.outcomes(), {"passes": "not run"})

    def test_the_limits_of_a_part_leave_time_for_its_start_in_ten_minutes(self):
        tests = [{"name": f"test {number}", "command": ["true"], "environment": [], "skip": []} for number in range(40)]
        place = gpu_checks.Place(ROOT, BINARY, BINARY.parent, tests, [9.0], small=False, peer="")
        for part in gpu_checks.PARTS.values():
            self.assertLessEqual(gpu_checks.START_SECONDS + gpu_checks.limits(part(place)), gpu_checks.PART_SECONDS)
        self.assertEqual(gpu_check.LIBRARIES_SECONDS + gpu_check.CARD_SECONDS + gpu_check.MACHINE_SECONDS, gpu_checks.START_SECONDS)
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

    def test_copies_inside_blocks_are_counted_without_those_of_collectives(self):
        def range_of(name, ts, dur):
            return {"ph": "X", "name": name, "cat": "user_annotation", "ts": ts, "dur": dur}
        copies = [(5, "outside"), (15, "all-gather"), (30, "direct_copy_kernel"), (60, "direct_copy_kernel")]
        trace = [range_of("ProfilerStep#4", 0, 100), range_of("forward layers.0", 10, 30), range_of("all-gather layers.1", 12, 8),
                 range_of("backward layers.0", 50, 20), range_of("backward norm,output", 45, 4)]
        for number, (ts, name) in enumerate(copies):
            trace.append({"ph": "X", "name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": ts, "dur": 1, "args": {"correlation": number}})
            kernel = name if "copy" in name else "Memcpy DtoD"
            trace.append({"ph": "X", "name": kernel, "cat": "kernel", "ts": 200 + ts, "dur": 1, "args": {"correlation": number}})
        trace.append({**range_of("all-gather layers.0", 0, 90), "cat": "gpu_user_annotation"})  # where the GPU runs it, not where it is launched
        self.assertEqual(gpu_trace.reduce({"traceEvents": trace})["copies_in_blocks"], {"direct_copy_kernel": 2})

    def test_nccl_comes_first_and_sanitizers_last_and_each_test_has_one_place(self):
        listed = subprocess.run([BINARY.parent / "gpu_tests", "--list-test-names-only"], capture_output=True, text=True).stdout.splitlines()
        self.assertIn(gpu_checks.SANITIZED, listed)
        tests = [{"name": f"gpu_tests.{name}", "command": ["true"], "environment": [], "skip": []} for name in listed]
        place = gpu_checks.Place(ROOT, BINARY, BINARY.parent, tests, [9.0], small=False, peer="")
        parts = [part(place) for part in gpu_checks.PARTS.values()]
        self.assertIn("every collective of NCCL", parts[0][0].name)
        self.assertEqual([check.kind for check in parts[-1][-2:]], ["memory", "memory"])
        self.assertEqual(sorted(check.name for part in parts for check in part if check.kind == "test"), sorted(test["name"] for test in tests))

    def test_what_collectives_take_while_nothing_else_runs_is_exposed(self):
        def kernel(name, ts, dur):
            return {"ph": "X", "name": name, "cat": "kernel", "ts": ts, "dur": dur}
        trace = [kernel("ncclDevKernel_AllGather", 0, 100), kernel("nvjet", 60, 100), kernel("ncclDevKernel_ReduceScatter", 120, 80),
                 kernel("ncclDevKernel_AllGather", 190, 30), kernel("nvjet", 230, 10), {**kernel("ProfilerStep#4", 0, 240), "cat": "user_annotation"}]
        table = gpu_trace.reduce({"traceEvents": trace})
        self.assertAlmostEqual(table["exposed_ms_per_step"], (60 + 60) / 1e3)
        self.assertIn("collectives that overlap nothing: 0.120 ms per step", gpu_trace.table(table))

    def test_what_a_change_would_save_stands_in_the_note(self):
        rows = [{"name": "a change", "now_us": 3.0, "then_us": 2.0, "saved_ms_per_step": 0.5}, {"name": "another", "accepted": False}]
        note, figures = gpu_checks.candidates("".join(json.dumps(row) + "\n" for row in rows), None)
        self.assertEqual((note, figures["rows"]), ("a change: 0.50 ms per step; another: refused", rows))

    def test_samples_of_a_card_become_clocks_and_power_and_why_it_is_slow(self):
        note, figures = gpu_check.summary("1400, 700.10, 60, 0x0000000000000004\n1980, 200.00, 50, 0x0000000000000000\n[N/A], x\n")
        self.assertEqual(note, "1690 MHz, 450 W, power cap 50 %")
        self.assertEqual(figures["clock_mhz"], {"min": 1400, "median": 1690, "max": 1980})
        self.assertEqual(gpu_check.summary("nvidia-smi: not a field\n"), ("", {}))

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
        self.assertEqual(gpu_trace.kind_of("void hyperion::kernels::merge_rows<__nv_bfloat16, float, 8>(MergePartsTask)"), "attention")


class Rehearsal(GpuCheckTest):
    def run_part(self, root, part, *options):
        command = [root / "scripts" / "gpu_check.sh", f"--part={part}", "--json", self.report, "--small", *options]
        done = subprocess.run(command, env={**self.environment(), "HYPERION_SIMULATED_GPUS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.read()["state"], "done")
        return self.outcomes()

    def test_benchmarks_pass_on_a_simulated_gpu_whose_figures_become_no_constants_of_a_card(self):
        reports, rows = [], {}
        for part, name in ((0, "experts, timed"), (2, "ceilings"), (1, "attention"), (1, "candidates"), (3, "operations")):
            process = self.start(ROOT, f"--part={part}", f"--only={name}", "--small")
            self.assertEqual(process.wait(timeout=PATIENCE), 0, self.said())
            self.assertEqual(set(self.outcomes().values()), {"passed"})
            (check,) = (check for check in self.read()["checks"] if check["name"] == name)
            rows[name] = check["figures"]["rows"]
            reports.append(self.read())
        self.assertEqual([row["name"] for row in rows["candidates"]], [
            "embedding's gradient by rows", "Adam without gradients written back, with bf16 copies", "residual sum in the product",
            "product written into its slot, async TP", "lengths by cuDNN, forward"])
        directions = [f"{dtype} {direction}" for dtype in ("bf16", "FP8") for direction in ("forward", "dgrad", "wgrad")]
        self.assertEqual([row["name"] for row in rows["experts, timed"]], [
            *(f"experts of small, {groups} rows, {what}" for groups in ("even", "skewed") for what in (*directions, "cast by columns")),
            "experts of small, order of rows", "experts of small, counts to the host"])
        self.constants_are_taken_from_a_real_card_alone(reports)

    def constants_are_taken_from_a_real_card_alone(self, reports):
        file = self.folder / "cards.json"
        before = (ROOT / "scripts/cards.json").read_text()
        file.write_text(before)

        def update(**changed):
            paths = []
            for number, report in enumerate(reports):
                report["machine"] |= {key: value for key, value in changed.items() if key != "small"}
                report["small"] = changed.get("small", report["small"])
                paths.append(self.folder / f"report{number}.json")
                paths[-1].write_text(json.dumps(report))
            return subprocess.run([sys.executable, ROOT / "scripts/cards.py", *paths, "--file", file], capture_output=True, text=True)

        for changed, said in (({}, "is a rehearsal (--small)"), ({"small": False}, "is a rehearsal (a simulated GPU)"),
                              ({"simulated": False}, "the report is of a simulated H100")):
            done = update(**changed)
            self.assertEqual((done.returncode, file.read_text()), (2, before), done.stderr)
            self.assertIn(said, done.stderr)
        # As if these were figures of a card of the file, whose rates are more than nothing.
        for row in (row for report in reports for check in report["checks"] for row in check["figures"].get("rows", [])):
            rate = (1400 if "FP8" in row["name"] else 800) * (0.9 if "on end" in row["name"] else 0.85 if "slow" in row["name"] else 1)
            row.update({key: rate for key in row if key.endswith("tflops")})
        done = update(gpus=["NVIDIA H100 80GB HBM3, 580.0, 81559 MiB, 9.0"])
        self.assertEqual(done.returncode, 0, done.stderr)
        constants = cards.read(file)["h100-700w"]["constants"]
        taken = {name for name, constant in constants.items() if constant["source"] == "measured"}
        self.assertEqual(taken, {"bf16", "fp8", "fp8_slow", "cudnn_forward", "cudnn_backward", "flash_forward", "flash_backward", "copy",
                                 "plain_share", "cast_share", "grouped"})
        ends = {name: (constants[name]["low"], constants[name]["high"]) for name in ("bf16", "fp8", "fp8_slow", "cudnn_forward", "grouped")}
        self.assertEqual(ends, {"grouped": (1, 1), "bf16": (720, 720), "fp8": (1.75, 1.75), "fp8_slow": (0.85, 0.85), "cudnn_forward": (720, 800)})
        self.assertEqual(constants["copy"]["date"], reports[0]["machine"]["date"])
        self.assertIn("NVIDIA H100 80GB HBM3", constants["copy"]["why"])
        self.assertEqual({name: constants[name] for name in set(constants) - taken},
                         {name: value for name, value in json.loads(before)["h100-700w"]["constants"].items() if name not in taken})


class FirstHour(GpuCheckTest):
    def test_part_0_passes_on_a_simulated_gpu_whose_streams_are_late_and_its_report_has_the_figures(self):
        process = self.start(ROOT, "--part=0", "--small", "--budget=3600", HYPERION_SIMULATED_SCHEDULE="late", HYPERION_SIMULATED_GPUS="1")
        code = process.wait(timeout=10 * PATIENCE)
        self.assertEqual(code, 0, self.said())
        report = self.read()
        self.assertEqual((report["state"], report["small"], report["machine"]["simulated"]), ("done", True, True))
        checks = {check["name"]: check for check in report["checks"]}
        self.assertEqual({check["part"] for check in report["checks"]}, {0})
        kinds = [check["kind"] for check in report["checks"]]
        self.assertEqual([kind for kind, before in zip(kinds, ["", *kinds]) if kind != before], ["test", "training", "benchmark", "rank 0", "training"])
        tests = [check["name"] for check in report["checks"] if check["kind"] == "test"]
        self.assertEqual(["every collective of NCCL" in tests[0], "exchanges with itself" in tests[1]], [True, True], tests)
        for name in ("llama3", "qwen3_moe", "deepseek_v3"):
            figures = checks[f"losses as on the CPU, {name}"]["figures"]
            self.assertEqual([len(figures["gpu"]), len(figures["cpu"])], [6, 6])
        self.assertEqual(len(checks["experts, timed"]["figures"]["rows"]), 16)
        for name in ("30B-A3B, traced", "16B, traced", "none, traced"):
            figures = checks[name]["figures"]
            self.assertGreater(figures["tps"], 0)
            self.assertIn("copies_in_blocks", figures["trace"])
        figures = checks["ranks on one GPU give one rank's numbers"]["figures"]
        self.assertEqual([len(losses) for losses in figures["losses"]], [gpu_checks.STAGED_STEPS] * 4)
        self.assertRegex(figures["digest"], "^[0-9a-f]{16}$")
        for name in ("8B, ring of 8, 32k local tokens, 4 blocks", "405B, of 512, 8 layers"):
            self.assertGreater(checks[name]["figures"]["tps"], 0)

    def test_what_part_0_trains_on_a_card_is_accepted_and_fits_it(self):
        place = gpu_checks.Place(ROOT, BINARY, BINARY.parent, [], [9.0], small=False, peer="")
        checks = [check for check in gpu_checks.part_0(place) if check.kind == "rank 0"]
        self.assertEqual(len(checks), 5)
        for check in checks:
            with self.subTest(check.name):
                _, _, config, *options = (word.replace("{folder}", str(self.folder)) for word in check.commands[0])
                done = subprocess.run([BINARY, "check", config, f"--ranks={check.environment['NGPU']}", "--gpu-memory=80", *options], cwd=ROOT, capture_output=True,
                                      text=True, timeout=PATIENCE, env={**os.environ, "HYPERION_DEVICE": "cpu"})
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_checks_of_part_0_for_which_no_time_is_left_are_not_run_by_name(self):
        listed = subprocess.run([sys.executable, ROOT / "scripts/gpu_check.py", "--root", ROOT, "--part=0", "--list"], capture_output=True, text=True,
                                env=self.environment(), check=True).stdout
        names = re.findall(r"^part 0 +\d+ s  (?:rank 0|training|benchmark|test) +(.*)$", listed, re.MULTILINE)
        process = self.start(ROOT, "--part=0", "--small", "--budget=1")
        self.assertEqual(process.wait(timeout=PATIENCE), 1, self.said())
        self.assertEqual(self.outcomes(), dict.fromkeys(names, "not run"))
        self.assertEqual({check["note"] for check in self.read()["checks"]}, {"no time left"})


class Whole(Rehearsal):
    test_benchmarks_pass_on_a_simulated_gpu_whose_figures_become_no_constants_of_a_card = None  # part of what follows

    def test_all_parts_run_from_an_unpacked_bundle(self):
        made = subprocess.run([ROOT / "scripts" / "package.sh", "--no-build", "--into", self.folder / "dist"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=600)
        self.assertEqual(made.returncode, 0, made.stdout)
        (archive,) = (self.folder / "dist").glob("hyperion-*.tar.gz")
        subprocess.run(["tar", "-C", self.folder, "-xf", archive], check=True)
        root = self.folder / archive.name.removesuffix(".tar.gz")
        passed = {part: sum(outcome == "passed" for outcome in self.run_part(root, part).values()) for part in gpu_checks.PARTS}
        self.assertIn("bundle", self.read()["machine"])
        self.assertGreater(passed[0], 15, passed)
        self.assertGreater(passed[1], 10, passed)
        self.assertGreater(passed[2], 2, passed)
        self.assertGreater(passed[3], 10, passed)


if __name__ == "__main__":
    whole = sys.argv[2:3] == ["whole"]
    chosen = ["Whole"] if whole else sys.argv[2:] or ["Runner", "Reading", "Rehearsal"]
    unittest.main(argv=[sys.argv[0], *chosen], verbosity=2)
