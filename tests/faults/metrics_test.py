#!/usr/bin/env python3
"""What a job reports of itself: metrics.jsonl with its events, the record under runs/, the log's lines.

usage: metrics_test.py HYPERION [unittest options]
"""

import json
import os
import pty
import re
import socket
import subprocess
import sys

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, ROOT, JobTest, main

PREFIX = r"\[hyperion\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - root - "


class Metrics(CheckpointTest):
    def runs(self):
        return sorted(path.name for path in (self.folder / "out" / "runs").iterdir())

    def record(self, run):
        return self.folder / "out" / "runs" / run / "config.toml"

    def test_a_restart_has_a_run_id_of_its_own_that_all_ranks_share(self):
        self.run_job("--training.steps=4", "--metrics.save_for_all_ranks", ranks=2, code=0)
        self.run_job("--training.steps=8", "--lr_scheduler.total_steps=4", "--optimizer.lr=1e-3", "--checkpoint.on_config_change=override",
                     "--lr_scheduler.min_lr_factor=0.1", "--metrics.save_for_all_ranks", ranks=2, code=0)
        first, second = self.runs()
        for folder in (self.folder / "out", self.folder / "out" / "rank_1"):
            lines = self.lines(folder / "metrics.jsonl")
            self.assertEqual([line["step"] for line in lines if line["run_id"] == first and "grad_norm" in line], [1, 2, 3, 4])
            self.assertEqual([line["step"] for line in lines if line["run_id"] == second and "grad_norm" in line], [5, 6, 7, 8])
            start, restart = [line for line in lines if line.get("event") == "start"]
            self.assertEqual((start["step"], start["steps"], start["ranks"]), (0, 4, 2))
            self.assertNotIn("resumed_from", start)
            self.assertEqual((restart["step"], restart["steps"]), (4, 8))
            self.assertRegex(restart["resumed_from"], "step-4$")
            self.assertEqual([line["time"] for line in lines], sorted(line["time"] for line in lines))

    def test_a_job_beside_another_in_its_folder_is_refused_and_one_after_it_begins_a_file_of_its_own(self):
        first = self.start("--checkpoint.no_enable", "--allow-faults", env={"FAULT": "point=step.opt;action=stop;nth=2"})
        first.wait_for_stop(0)
        run, = self.runs()
        self.run_job("--checkpoint.no_enable", code=2, says=[f"run {run} is training", "job.dump_folder"])
        self.assertEqual(self.runs(), [run])
        first.kill()
        self.run_job("--checkpoint.no_enable", "--training.steps=2", code=0, says=[f"metrics-{run}.jsonl"])
        self.assertEqual({line["run_id"] for line in self.metrics_file()}, {self.runs()[-1]})
        self.assertEqual({line["run_id"] for line in self.lines(self.folder / "out" / f"metrics-{run}.jsonl")}, {run})

    def test_the_seed_that_was_chosen_is_recorded_and_a_resume_logs_the_one_it_uses(self):
        toml = self.folder / "job.toml"
        toml.write_text(toml.read_text().replace("seed = 1", ""))
        job = self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        seed = re.search(r"Seed: (\d+) \(chosen by rank 0\)", job.text()).group(1)
        job = self.run_job(code=0, says=[f"Seed: {seed} (saved in the checkpoint)"])
        first, second = self.runs()
        for run in (first, second):
            self.assertRegex(self.record(run).read_text(), rf"(?m)^seed = {seed} ")
        self.assertEqual([event["seed"] for event in self.events("start")], [seed, seed])
        curve = self.curve()
        again = self.start(f"--job.dump_folder={self.folder}/again/out", "--training.steps=8", "--checkpoint.no_enable",
                           config=self.record(first))
        self.assertEqual(again.codes(), [0], again.text())
        self.assertEqual(self.curve(self.folder / "again"), curve)

    def test_the_settings_that_a_resume_keeps_are_recorded_as_the_run_follows_them(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        self.run_job("--training.max_norm=2", "--checkpoint.on_config_change=keep", code=0)
        recorded = self.record(self.runs()[-1]).read_text()
        self.assertRegex(recorded, r"(?m)^max_norm = 1\.0 +# saved in the checkpoint$")
        self.assertRegex(recorded, r"(?m)^# total_steps is not set ")

    def test_the_length_of_the_curve_that_a_resume_keeps_is_recorded_and_gives_the_same_curve_afresh(self):
        floor = "--lr_scheduler.min_lr_factor=0.1"
        self.run_job(floor, "--training.steps=4", code=0)
        self.run_job(floor, "--training.steps=8", code=0)
        curve, record = self.curve(), self.record(self.runs()[-1])
        self.assertRegex(record.read_text(), r"(?m)^total_steps = 4 +# saved in the checkpoint$")
        again = self.start(f"--job.dump_folder={self.folder}/again/out", "--checkpoint.no_enable", config=record)
        self.assertEqual(again.codes(), [0], again.text())
        self.assertEqual(self.curve(self.folder / "again"), curve)

    def test_saves_validations_and_the_end_are_in_metrics_jsonl(self):
        validation = ["--validation.enable", "--validation.dataset=jsonl", "--validation.steps=1", "--validation.freq=4",
                      f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.seq_len=32"]
        for mode in ("disabled", "async", "async_with_pinned_mem"):
            with self.subTest(mode=mode):
                folder = self.folder / mode
                self.run_job(*validation, f"--checkpoint.async_mode={mode}", f"--job.dump_folder={folder}/out", code=0)
                durable = {event["step"]: event for event in self.events("checkpoint_durable", folder)}
                self.assertEqual(sorted(durable), [0, 3, 6, 8])
                self.assertEqual([durable[step]["kind"] for step in (0, 3)], ["pre-checkpoint", "full"])
                for event in durable.values():
                    self.assertGreater(event["write_seconds"], 0)
                    self.assertGreater(event["bytes"], 50_000)
                staged = {event["step"]: event["stall_seconds"] for event in self.events("checkpoint_staged", folder)}
                self.assertEqual(sorted(staged), [3, 6, 8])
                self.assertEqual([line["step"] for line in self.metrics(folder) if "validation_metrics/loss" in line], [1, 4, 8])
                end, = self.events("end", folder)
                self.assertEqual((end["step"], end["reason"], end["exit_code"]), (8, "completed", 0))

    def test_activations_of_each_layer_are_in_logged_steps_and_change_no_bit(self):
        asked = ("--metrics.log_freq=2", "--training.global_batch_size=8", "--activation_checkpoint.mode=full", "--validation.enable",
                 "--validation.dataset=jsonl", "--validation.steps=1", "--validation.freq=1", "--validation.seq_len=32",
                 f"--validation.dataset_path={self.folder}/data.jsonl", "--checkpoint.no_enable")
        rows = {}
        for name, ranks, options in (("without", 1, ()), ("one", 1, ("--metrics.log_layer_activations",)), ("fsdp", 2, ("--metrics.log_layer_activations",)),
                                     ("tp", 2, ("--metrics.log_layer_activations", "--parallelism.tensor_parallel_degree=2"))):
            folder = self.folder / name
            self.run_job(*asked, *options, f"--job.dump_folder={folder}/out", ranks=ranks, code=0)
            rows[name] = {row["step"]: row for row in self.metrics(folder) if "grad_norm" in row}
        self.assertEqual(list(rows["one"]), [1, 2, 4, 6, 8])
        tags = ["activations/max", "activations/rms/layers.0", "activations/rms/layers.1"]
        for step, row in rows["one"].items():
            plain = rows["without"][step]
            self.assertEqual((row["loss_metrics/global_avg_loss"], row["grad_norm"]), (plain["loss_metrics/global_avg_loss"], plain["grad_norm"]))
            self.assertEqual([tag for tag in row if tag.startswith("activations")], tags)
            self.assertFalse([tag for tag in plain if tag.startswith("activations")])
        for name in ("fsdp", "tp"):
            for tag in tags:  # of the first step: the weights are the same
                self.assertAlmostEqual(rows[name][1][tag] / rows["one"][1][tag], 1, delta=0.01)  # bf16

    def test_a_rank_that_works_longer_than_the_others_is_in_the_metrics_and_is_warned_of(self):
        slow = ("--allow-faults", "--checkpoint.no_enable", "--training.steps=10", "--metrics.log_freq=1", "--metrics.save_for_all_ranks")
        for transport, env in (("memory", {}), ("sockets", {"LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0, "GLOO_SOCKET_IFNAME": "lo"})):
            with self.subTest(transport):
                folder = self.folder / transport
                job = self.run_job(*slow, f"--job.dump_folder={folder}/out", ranks=2, code=0,
                                   env={"FAULT": "rank=1;point=step.fwd;nth=0;action=sleep:0.5", **env})
                rows = [row for row in self.metrics(folder) if "grad_norm" in row]
                self.assertEqual(len(rows), 10)
                # Not in every step: on a busy host the other rank may be slower in one.
                self.assertGreater([row["stragglers/slowest_rank"] for row in rows].count(1), len(rows) / 2)
                for row in rows:
                    self.assertGreaterEqual(row["stragglers/own_time_max(s)"], 0.5)
                    self.assertAlmostEqual(row["stragglers/slowest_over_median"],
                                           row["stragglers/own_time_max(s)"] / row["stragglers/own_time_median(s)"])
                self.assertEqual([{key: value for key, value in row.items() if key.startswith("stragglers")}
                                  for row in self.lines(folder / "out" / "rank_1" / "metrics.jsonl") if "grad_norm" in row],
                                 [{key: value for key, value in row.items() if key.startswith("stragglers")} for row in rows])
                self.assertRegex(job.text(), rf"WARNING - rank 1 on {re.escape(socket.gethostname())}: its own work of step \d+ took ")
                self.assertEqual(job.text().count("its own work of step"), 1)

    def test_the_end_of_a_job_that_fails_says_why(self):
        self.run_job("--optimizer.lr=1e38", code=93)
        end, = self.events("end")
        self.assertEqual(end["exit_code"], 93)
        self.assertIn("not finite", end["reason"])

    def test_a_record_that_cannot_be_written_ends_every_rank_with_73(self):
        (self.folder / "out").mkdir()
        (self.folder / "out" / "runs").write_text("a file in the folder's place")
        job = self.run_job("--checkpoint.no_enable", ranks=2, code=73)
        for rank in range(2):
            self.assertIn("the record of the run cannot be written, so no step was made", job.text(rank))

    def test_the_step_line_has_torchtitans_fields_and_then_ours(self):
        job = self.run_job("--training.steps=2", "--lr_scheduler.warmup_steps=2", "--optimizer.lr=1e-3", code=0)
        fields = [re.search(r"INFO - (step: .*)", line).group(1) for line in job.text().splitlines() if "INFO - step: " in line]
        for number, line in enumerate(fields, start=1):
            names = re.findall(r"([a-z_]+): ", line)
            self.assertEqual(names, ["step", "loss", "grad_norm", "memory", "tps", "tflops", "mfu",
                                     "steps", "lr", "step_time", "data_loading", "eta"])
            self.assertIn(f"  steps: 2  lr: {1e-3 * number / 2:.2e}  step_time: ", line)
        self.assertTrue(fields[1].endswith("  eta: 0:00:00"), fields[1])


class Traces(JobTest):
    """Chrome traces of the profiler."""

    def ranges(self, *options, rank=0):
        """name -> [(begin, end), ...] of the ranges that the program names, over steps 3 and 4."""
        job = self.run_job("--training.steps=4", "--profiling.enable_profiling", "--profiling.profile_freq=4", "--profiling.profiler_active=2",
                           "--profiling.profiler_warmup=1", *options, ranks=2, code=0)
        self.assertNotIn("ERROR", job.text())  # of Kineto's, which looks for GPUs
        trace = json.loads((self.folder / "out/profile_traces/iteration_4" / f"rank{rank}_trace.json").read_text())
        found = {}
        for event in trace["traceEvents"]:
            if event.get("name", "").startswith("hyperion::attention"):  # as benchmarks/step_profile.py reads it: causal
                self.assertEqual(event["args"]["Concrete Inputs"][-1], "True")
            if event.get("cat") == "user_annotation" and event["ph"] == "X":
                found.setdefault(event["name"], []).append((event["ts"], event["ts"] + event["dur"]))
        return found

    def assert_inside(self, inner, outer):
        for begin, end in inner:
            self.assertTrue(any(first <= begin and end <= last for first, last in outer), (begin, end, outer))

    def test_a_trace_names_units_directions_collectives_and_phases(self):
        found = self.ranges("--optimizer.implementation=foreach", "--activation_checkpoint.mode=full", "--checkpoint.enable", "--checkpoint.interval=2",
                            "--checkpoint.async_mode=async_with_pinned_mem", "--checkpoint.no_last_save_model_only",
                            "--validation.enable", "--validation.dataset=jsonl", "--validation.steps=1", "--validation.freq=3",
                            f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.seq_len=32", rank=1)
        twice = ["data", "forward and backward norm,output", "backward tok_embeddings", "gradient norm",
                 "gradient clipping", "optimizer", "metrics", "checkpoint staging wait",
                 "reduce-scatter tok_embeddings", "reduce-scatter norm,output", "reduce-scatter wait norm,output"]
        for layer in range(2):
            twice += [f"backward layers.{layer}", f"recompute layers.{layer}", f"reduce-scatter layers.{layer}",
                      f"reduce-scatter wait layers.{layer}"]
            self.assert_inside(found[f"recompute layers.{layer}"], found[f"backward layers.{layer}"])
        for name in twice:
            self.assertEqual(len(found.get(name, [])), 2, (name, sorted(found)))
        for name in ("checkpoint staging", "validation"):  # after step 2, after step 3
            self.assertEqual(len(found[name]), 1, name)
        for name in ("all-gather tok_embeddings", "forward tok_embeddings", "forward layers.1"):  # two steps and the validation
            self.assertEqual(len(found[name]), 3, name)
        self.assertIn("all-gather wait layers.1", found)

    def test_a_resumed_job_records_the_first_step_when_the_cycle_says_so(self):
        saved = ("--checkpoint.enable", "--checkpoint.interval=3", "--checkpoint.no_last_save_model_only")
        self.run_job(*saved, "--training.steps=3", code=0)
        self.run_job(*saved, "--training.steps=4", "--lr_scheduler.total_steps=3", "--lr_scheduler.min_lr_factor=0.1",
                     "--checkpoint.on_config_change=override", "--profiling.enable_profiling", "--profiling.profile_freq=2",
                     "--profiling.profiler_active=1", "--profiling.profiler_warmup=0", code=0)
        trace = json.loads((self.folder / "out/profile_traces/iteration_4/rank0_trace.json").read_text())
        self.assertIn("ProfilerStep#4", {event.get("name") for event in trace["traceEvents"]})

    def test_a_trace_names_the_sum_over_replicas(self):
        found = self.ranges("--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=1")
        for name in ("all-reduce layers.0", "all-reduce wait layers.0", "all-reduce norm,output"):
            self.assertEqual(len(found.get(name, [])), 2, (name, sorted(found)))
        self.assertFalse([name for name in found if name.startswith(("recompute layers.0", "reduce-scatter"))])


class Terminal(JobTest):
    """What a terminal is sent."""

    def on_a_terminal(self, command, logs_elsewhere=False, **environment):
        """What `command` prints on a terminal of its own: both streams, or stdout alone."""
        ours, theirs = pty.openpty()
        environment = {**os.environ, "HYPERION_DEVICE": "cpu", "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **environment}
        stderr = subprocess.DEVNULL if logs_elsewhere else theirs
        process = subprocess.Popen(command, stdout=theirs, stderr=stderr, stdin=subprocess.DEVNULL, cwd=self.folder, env=environment)
        os.close(theirs)
        text = b""
        try:
            while data := os.read(ours, 65536):
                text += data
        except OSError:  # how a terminal says that its other side is closed
            pass
        os.close(ours)
        self.assertEqual(process.wait(timeout=PATIENCE), 0, text.decode())
        return text.decode()

    def train(self, *options, **environment):
        return self.on_a_terminal([sys.executable, ROOT / "scripts" / "launch.py", BINARY, "train", self.folder / "job.toml",
                                   "--training.steps=2", "--lr_scheduler.warmup_steps=9", *options], NPROC="1", **environment)

    def test_warnings_and_step_lines_are_coloured_through_the_launcher(self):
        text = self.train()
        self.assertIn("\x1b[31mstep:  1  \x1b[32mloss:", text)
        self.assertRegex(text, PREFIX + r"\x1b\[33mWARNING - lr_scheduler.warmup_steps = 9.*\x1b\[39m")

    def test_a_dumb_terminal_and_no_color_and_the_key_turn_escape_sequences_off(self):
        for options, environment in (((), {"TERM": "dumb"}), ((), {"NO_COLOR": "1"}), (("--metrics.disable_color_printing",), {})):
            with self.subTest(options=options, environment=environment):
                text = self.train(*options, **environment)
                self.assertIn("step:  2  loss:", text)
                self.assertIn("WARNING - lr_scheduler.warmup_steps", text)
                self.assertNotIn("\x1b", text)

    def test_generated_text_and_its_prompt_do_not_steer_a_terminal_but_reach_a_pipe_as_they_are(self):
        self.run_job("--checkpoint.enable", "--checkpoint.no_last_save_model_only", code=0)
        prompt = "It was\x1b]0;title\x07 a\ttab\nand a line\x1b[31m"
        generate = [BINARY, "generate", self.folder / "out/checkpoint/step-5", f"--prompt={prompt}", "--max-tokens=40", "--temperature=9"]
        text = self.on_a_terminal(generate, logs_elsewhere=True)  # where a slow load shows its progress
        self.assertIn("It was\\x1b]0;title\\x07 a\ttab\r\nand a line\\x1b[31m", text)
        self.assertNotRegex(text, r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
        done = subprocess.run(generate, capture_output=True, timeout=PATIENCE, env={**os.environ, "HYPERION_DEVICE": "cpu"})
        self.assertTrue(done.stdout.startswith(prompt.encode()), done.stdout)

    def test_every_command_logs_in_one_format_and_keeps_stdout_for_results(self):
        tokenize = warm_start.run([BINARY, "tokenize", "--tokenizer", ROOT / "tests/assets/tokenizer", "--out", self.folder / "shard",
                                   self.folder / "data.jsonl"])
        self.assertEqual((tokenize.returncode, tokenize.stdout), (0, ""))
        self.assertRegex(tokenize.stderr, f"(?m)^{PREFIX}INFO - Tokenised 1 files")
        tokenizer = self.folder / "tokenizer"  # one that names no BOS, which is logged
        tokenizer.mkdir()
        (tokenizer / "tokenizer.json").write_bytes((ROOT / "tests/assets/tokenizer/tokenizer.json").read_bytes())
        self.run_job("--checkpoint.enable", "--checkpoint.no_last_save_model_only", code=0)
        done = warm_start.run([BINARY, "eval", self.folder / "out/checkpoint/step-5", "--data", self.folder / "data.jsonl", "--seq-len=32",
                               f"--tokenizer={tokenizer}", "--allow-other-tokenizer", "--max-batches=1", "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["loss"], 0)
        for line in done.stderr.splitlines():
            self.assertRegex(line, "^" + PREFIX)
        self.assertIn("names no BOS", done.stderr)


if __name__ == "__main__":
    main()
