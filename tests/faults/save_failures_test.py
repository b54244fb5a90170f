"""What a failed save, a late signal and ranks that disagree about checkpoints mean for a job, on the real program.

    python3 tests/faults/save_failures_test.py build/hyperion

Standard library only.
"""

import signal

from checkpoints import CheckpointTest
from jobs import main


class SaveFailures(CheckpointTest):
    def failing(self, save):
        """The environment that lets the `save`-th checkpoint of rank 0 fail, the one before step 1 included."""
        return {"FAULT": f"point=file.write;action=errno:EIO;on=__0_0;nth={save}"}

    def test_continue_loses_the_save_that_failed_and_no_other(self):
        for mode in ("disabled", "async", "async_with_pinned_mem"):
            with self.subTest(mode=mode):
                job = self.run_job("--allow-faults", "--checkpoint.on_save_failure=continue", "--checkpoint.interval=2",
                                   f"--checkpoint.async_mode={mode}", ranks=2, code=0, env=self.failing(2),
                                   says=["training continues", "Input/output error"])
                self.assertEqual(self.saved(), ([4, 6, 8], []))
                staged = job.text().count("is staged")
                self.assertEqual(staged, 0 if mode == "disabled" else 3, job.text())
            self.temporary.cleanup()
            self.setUp()

    def test_a_failed_save_in_the_background_ends_every_rank_with_74(self):
        job = self.run_job("--allow-faults", "--checkpoint.async_mode=async", ranks=2, code=74, env=self.failing(2))
        for rank in range(2):
            self.assertIn("Input/output error", job.text(rank))

    def test_continue_does_not_hide_that_the_last_save_failed(self):
        self.run_job("--allow-faults", "--checkpoint.on_save_failure=continue", code=74, env=self.failing(4))

    def test_a_stop_whose_save_fails_is_74_and_not_75(self):
        job = self.start("--allow-faults", "--checkpoint.on_save_failure=continue", "--checkpoint.interval=1000",
                         "--training.steps=100000", ranks=2, env=self.failing(2))
        job.wait_for("step:  3")
        job.ranks[1][0].send_signal(signal.SIGTERM)
        self.assertEqual(job.codes(), [74, 74], job.text())

    def test_a_signal_in_the_last_step_finds_the_job_done(self):
        job = self.start("--allow-faults", "--training.steps=3", env={"FAULT": "point=step.opt;nth=3;action=stop"})
        job.signal_at_stop(0, signal.SIGTERM)
        self.assertEqual(job.codes(), [0], job.text())
        self.assertEqual(self.saved()[0], [3])


class Disagreement(CheckpointTest):
    def test_one_rank_without_checkpoints(self):
        self.run_job(ranks=2, per_rank=[[], ["--checkpoint.no_enable"]], code=2, says=["checkpoint.enable: true on rank 0, false on rank 1"])

    def test_on_a_resume_too(self):
        self.run_job("--training.steps=3", ranks=2, code=0)
        self.run_job(ranks=2, per_rank=[["--optimizer.lr=1e-3"], ["--optimizer.lr=2e-3"]], code=2, says=["optimizer.lr: 0.001 on rank 0, 0.002 on rank 1"])


class Names(CheckpointTest):
    def test_a_rename_that_is_no_pattern_is_2_before_anything_runs(self):
        job = self.run_job("--checkpoint.rename=(=x", code=2, says=["checkpoint.rename", "regular expression"])
        self.assertFalse((self.folder / "out").exists(), job.text())

    def test_rename_reaches_hugging_face_names(self):
        self.run_job("--training.steps=1", "--checkpoint.folder=hf", "--checkpoint.last_save_in_hf",
                     "--checkpoint.last_save_model_only", code=0)
        exported = self.folder / "out" / "hf" / "step-1"
        weights = (exported / "model.safetensors").read_bytes()
        (exported / "model.safetensors").write_bytes(weights.replace(b'"model.norm.weight"', b'"model.Norm.weight"'))
        load = ["--training.steps=1", "--checkpoint.initial_load_in_hf", f"--checkpoint.initial_load_path={exported}"]
        self.run_job(*load, code=65, says=["model.Norm.weight", "norm.weight"])
        self.run_job(*load, "--checkpoint.rename=model.Norm.weight=model.norm.weight", code=0)

    def test_the_debug_log_shows_every_name(self):
        text = self.run_job("--training.steps=1", code=0, env={"HYPERION_LOG_LEVEL": "debug"}).text()
        self.assertIn("DEBUG", text)
        self.assertIn("layers.1.feed_forward.w2.weight", text)
        self.run_job(code=2, env={"HYPERION_LOG_LEVEL": "loud"}, says=["expected debug, info, warning or error"])


if __name__ == "__main__":
    main()
