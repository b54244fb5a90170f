"""NaN and infinite numbers: no checkpoint is written with one, the finite ones before it stay, and what reads one says so.

    python3 tests/faults/not_finite_test.py build/hyperion

Standard library only. What a step's loss or norm being non-finite means is in exit_codes_test.py.
"""

import json
import re
import signal

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, main

# The first update with such a rate makes weights infinite; the loss of its step is that of the weights before it.
EXPLODES = "--optimizer.lr=3e38"


class Saves(CheckpointTest):
    def test_finite_checkpoints_stay_when_the_weights_become_infinite(self):
        for mode in ("disabled", "async", "async_with_pinned_mem"):
            with self.subTest(mode=mode):
                keep = ["--checkpoint.interval=1", "--checkpoint.keep_latest_k=2", "--lr_scheduler.total_steps=8",
                        f"--checkpoint.async_mode={mode}"]
                self.run_job(*keep, "--ema.enable", "--training.steps=2", ranks=2, code=0)
                before = self.files()
                job = self.run_job(*keep, "--ema.enable", EXPLODES, "--checkpoint.on_config_change=override",
                                   "--checkpoint.on_save_failure=continue", ranks=2, code=93)
                for rank in range(2):
                    for text in ("the state after step 3 holds NaN or infinite numbers and is not saved: rank 0: ",
                                 "tok_embeddings.weight (", " more tensors", "and 1 more rank)", "which stays, is step-2"):
                        self.assertIn(text, job.text(rank))
                self.assertEqual(self.saved(), ([1, 2], []))
                self.assertEqual({path: info for path, info in self.files().items() if path.is_file()},
                                 {path: info for path, info in before.items() if path.is_file()})
                self.run_job(*keep, "--ema.enable", ranks=2, code=0, says=["Training starts at step 3"])
                self.assertEqual(self.saved(), ([7, 8], []))
            self.temporary.cleanup()
            self.setUp()

    def test_the_checkpoint_before_step_1_stays_when_the_first_periodic_save_is_refused(self):
        self.run_job(EXPLODES, "--checkpoint.interval=1", code=93, says=["which stays, is step-0"])
        self.assertEqual(self.saved(), ([0], []))
        self.tool("verify", self.steps_folder)

    def test_a_last_save_that_its_type_makes_infinite_is_refused_in_both_formats(self):
        last = ["--optimizer.lr=1e6", "--training.steps=1", "--checkpoint.last_save_model_only",
                "--checkpoint.export_dtype=float16"]
        for more in ([], ["--checkpoint.last_save_in_hf"]):
            job = self.run_job(*last, *more, ranks=2, code=93, says=["step 1 as float16 holds", "which stays, is step-0"])
            self.assertIn('export_dtype = "float32"', job.text(1))
            self.assertEqual(self.saved(), ([0], []))
        self.run_job(*last, "--checkpoint.export_dtype=float32", ranks=2, code=0)

    def test_a_stop_whose_state_is_infinite_is_93_and_not_75(self):
        job = self.start(EXPLODES, "--checkpoint.interval=1000", "--training.steps=1000", "--allow-faults", ranks=2,
                         env={"FAULT": "rank=1;point=step.data;nth=2;action=stop"})
        job.signal_at_stop(1, signal.SIGTERM)
        self.assertEqual(job.codes(), [93, 93], job.text())
        self.assertIn("the state after step 1 holds", job.text(1))
        self.assertEqual(self.saved(), ([0], []))

    def test_settings_that_divide_0_by_0_are_refused(self):
        self.run_job("--optimizer.eps=0", code=2, says=["optimizer.eps", "above 0"])
        self.assertFalse((self.folder / "out").exists())


class Skips(CheckpointTest):
    """training.on_non_finite = "skip" and training.skip_above_norm."""

    def test_a_mesh_and_a_resume_leave_out_the_same_steps(self):
        rules = ["--training.skip_above_norm=0.5", "--training.skip_window=8", "--training.max_skipped_steps=8",
                 "--training.steps=14", "--lr_scheduler.total_steps=14", "--training.global_batch_size=4",
                 "--training.mixed_precision_param=float32", "--metrics.log_freq=1", "--checkpoint.interval=7"]
        whole = self.run_job(*rules, "--job.dump_folder=whole", code=0).text()  # the next job has the same file
        skipped = re.findall(r"step (\d+) is left out: its gradient norm [\d.]+ is [\d.]+ standard deviations", whole)
        self.assertTrue(skipped)
        self.assertLess(len(skipped), 9)
        rows = [json.loads(line) for line in (self.folder / "whole/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([str(row["step"]) for row in rows if row.get("event") == "step_skipped"], skipped)
        self.assertEqual([row["skipped_steps"] for row in rows if "skipped_steps" in row][-1], len(skipped))
        two = self.run_job(*rules, "--job.dump_folder=two", ranks=2, code=0)
        self.assertEqual(re.findall(r"step (\d+) is left out", two.text()), skipped)
        for ours, theirs in zip(self.losses(two.text()), self.losses(whole), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=2e-5)
        self.run_job(*rules, "--training.steps=7", "--job.dump_folder=half", code=0)
        resumed = self.run_job(*rules, "--job.dump_folder=half", code=0, says=["Training starts at step 8"])
        self.assertEqual(self.losses(resumed.text()), self.losses(whole)[7:])

    def test_steps_that_are_not_finite_are_left_out_until_there_are_too_many(self):
        job = self.run_job("--optimizer.lr=1e38", "--training.on_non_finite=skip", "--training.max_skipped_steps=2",
                           "--training.steps=20", "--checkpoint.no_enable", ranks=2, code=93)
        for rank in range(2):
            for text in ("is left out: the loss or the gradient norm is not finite", "data.jsonl:",
                         "2 of the last 128 steps were left out; more than 2 end the job",
                         "3 of the last 128 steps were left out, and training.max_skipped_steps is 2"):
                self.assertIn(text, job.text(rank))

    @staticmethod
    def losses(text):
        return [float(loss) for loss in re.findall(r"step: +\d+  loss: +([\d.]+)", text)]


class Reads(CheckpointTest):
    """A model of safetensors, the format without checksums, one number of which is not finite."""

    def setUp(self):
        super().setUp()
        self.run_job("--training.steps=1", "--checkpoint.folder=hf", "--checkpoint.last_save_in_hf",
                     "--checkpoint.last_save_model_only", code=0)
        self.model = self.folder / "out" / "hf" / "step-1"
        file = self.model / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-4:] = b"\x00\x00\xc0\x7f"
        file.write_bytes(data)

    def run_program(self, *arguments, code, says):
        done = warm_start.run([BINARY, *map(str, arguments)], cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for text in says:
            self.assertIn(text, done.stdout + done.stderr)
        return done.stdout

    def test_every_program_that_reads_it_says_65_and_the_name(self):
        holds = ["holds NaN or infinite numbers, in ", "weight (1 number)"]
        self.run_program("eval", self.model, "--data=data.jsonl", "--seq-len=32", code=65, says=holds)
        text = self.run_program("generate", self.model, "--prompt=It was", code=65, says=holds)
        self.assertEqual(text, "")
        self.run_program("ckpt", "verify", self.model, code=65, says=["holds 1 number that is NaN", "NOT FINITE: 1 tensor"])
        for options in (["--to=dcp"], ["--to=dcp", "--dtype=bfloat16"], ["--to=safetensors"]):
            self.run_program("ckpt", "convert", self.model, "new", *options, code=65, says=[*holds, "new is not written"])
            self.assertEqual([path.name for path in self.folder.iterdir() if "new" in path.name or "convert" in path.name],
                             [])

    def test_a_job_that_was_told_to_read_it_does_not_save_it(self):
        load = ["--checkpoint.initial_load_in_hf", f"--checkpoint.initial_load_path={self.model}"]
        self.run_job(*load, code=65, says=["holds NaN or infinite numbers", "weight (1 number)"])
        self.run_job(*load, "--checkpoint.no_verify_finite", code=93,
                     says=["the state after step 0", "no checkpoint that training could resume from"])
        self.run_job(*load, "--checkpoint.no_verify_finite", "--checkpoint.create_seed_checkpoint", code=93,
                     says=["the state after step 0"])
        self.assertEqual(self.saved(), ([], []))


if __name__ == "__main__":
    main()
