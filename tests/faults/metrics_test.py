#!/usr/bin/env python3
"""What a job reports of itself: metrics.jsonl with its events, the record under runs/, the log's lines.

usage: metrics_test.py HYPERION [unittest options]
"""

import re

from checkpoints import CheckpointTest
from jobs import main


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


if __name__ == "__main__":
    main()
