"""A job that goes on with another number of ranks keeps its batch, its data and its curve; and the launcher starts one again in place.

    python3 tests/faults/elastic_test.py build/hyperion
"""

import os
import shutil
import subprocess
import sys

from checkpoints import CheckpointTest, printed_options
from jobs import BINARY, PATIENCE, ROOT, main

# Sums in fp32 differ by their order alone. The batch of a step is what the ranks make: 4 ranks of 2 sequences.
EXACT = ["--training.mixed_precision_param=float32", "--training.global_batch_size=-1", "--lr_scheduler.total_steps=8", "--checkpoint.interval=2"]
TWO_COPIES = ["--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=2"]
FIT = "--parallelism.on_mesh_mismatch=fit"


class OtherRanks(CheckpointTest):
    def killed(self, *options, step, ranks):
        """A job that is killed in the update of `step`; its newest checkpoint is of an even one before."""
        job = self.start(*EXACT, *options, "--allow-faults", ranks=ranks, env={"FAULT": f"point=step.opt;nth={step};action=kill"})
        self.assertIn(-9, job.codes(), job.text())

    def assert_undisturbed(self, expected):
        resumed = self.curve()
        self.assertEqual(set(resumed), set(expected))
        for step, (loss, norm, rate) in expected.items():
            self.assertLess(abs(resumed[step][0] - loss), 1e-6 * loss, step)
            self.assertLess(abs(resumed[step][1] - norm), 2e-6 * norm, step)
            self.assertEqual(resumed[step][2], rate)

    def position(self, folder):
        """What a checkpoint says about the data: where the run is in them."""
        return {key: value for key, value in self.contents(folder / "out" / "checkpoint" / "step-8").items()
                if key.startswith("dataloader.") and key != "dataloader.world_size"}

    def test_a_job_that_is_killed_goes_on_with_half_the_ranks_and_with_all_again(self):
        expected = self.control(*EXACT, ranks=4)
        self.killed(step=4, ranks=4)  # saved: 2
        self.assertEqual(self.manifest(2)["facts"]["global_batch_tokens"], "256")
        text = self.run_job(*EXACT, "--training.steps=5", ranks=2, code=0, says=[
            "training.global_batch_size: keeping 8 sequences (256 tokens per step) from the checkpoint of 4 data-parallel ranks: 2 here, each "
            "with 2 microbatches of 2 sequences", "gradient accumulation steps 2"]).text()
        self.assertEqual(text.count("keeping 8 sequences"), 1)
        self.run_job(*EXACT, "--training.steps=6", ranks=2, code=0, says=["keeping 8 sequences"])  # lost once more
        self.assertEqual(self.manifest(6)["facts"]["global_batch_tokens"], "256")
        self.assertNotIn("keeping", self.run_job(*EXACT, ranks=4, code=0, says=["gradient accumulation steps 1"]).text())
        self.assert_undisturbed(expected)
        self.assertEqual(self.position(self.folder), self.position(self.folder / "control"))
        self.assertEqual([line["n_tokens_seen"] for line in self.metrics()][-1], 8 * 256)

    def test_a_number_of_ranks_that_cannot_make_the_batch_is_refused_with_those_that_can(self):
        self.run_job(*EXACT, "--training.steps=2", ranks=4, code=0)
        text = self.run_job(*EXACT, ranks=3, code=2, says=[
            "training.global_batch_size: saved 8, configured 6 (training.local_batch_size: ", "times the data-parallel ranks); 3 data-parallel ranks of "
            "training.local_batch_size = 2 cannot make 8 sequences: 1, 2 or 4 ranks can"]).text()
        self.assertEqual(printed_options(text[text.rindex("hyperion: "):]), ["--checkpoint.on_config_change=override"])
        self.run_job(*EXACT[1:], "--training.global_batch_size=8", ranks=3, code=2,
                     says=["expected a multiple of 6 (local_batch_size 2 x 3 data-parallel ranks), such as 6 or 12, or -1; 1, 2 or 4 ranks can make this batch"])

    def test_a_mesh_is_fitted_to_fewer_ranks_where_the_job_asks_and_the_curve_stays(self):
        expected = self.control(*EXACT, *TWO_COPIES, ranks=4)
        self.killed(*TWO_COPIES, step=6, ranks=4)  # saved: 4
        shutil.copytree(self.folder / "out", self.folder / "killed")
        self.run_job(*EXACT, *TWO_COPIES, ranks=2, code=2, says=["must be the 2 ranks of the job; it can have 4; parallelism.on_mesh_mismatch = \"fit\""])
        sentence = ("Mesh: dp_replicate 2 x dp_shard 2 as configured -> dp_replicate 1 x dp_shard 2 for 2 ranks; pp 1, cp 1, tp 1 and ep 1 stay "
                    "(parallelism.on_mesh_mismatch = \"fit\"); 2 microbatches of 2 sequences on each data-parallel rank instead of 1, 256 tokens per step as before")
        job = self.run_job(*EXACT, *TWO_COPIES, FIT, ranks=2, code=0, says=["dp_replicate 1 x dp_shard 2 x cp 1 x tp 1 = 2 ranks"])
        self.assertEqual(job.text().count(sentence), 1, job.text())
        self.assert_undisturbed(expected)
        done = subprocess.run([BINARY, "check", self.folder / "job.toml", *EXACT, *TWO_COPIES, FIT, "--ranks=2"], capture_output=True, text=True,
                              env={**os.environ, "HYPERION_DEVICE": "cpu"}, timeout=PATIENCE, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(sentence, done.stdout + done.stderr)


class InPlace(CheckpointTest):
    def test_a_job_whose_rank_is_killed_again_and_again_is_started_again_and_ends_as_the_undisturbed_one(self):
        options = [*EXACT, "--training.steps=8"]
        expected = self.control(*options, ranks=2)
        launch = (f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import launch, restarts; "
                  "launch.SETTLE_SECONDS, restarts.FIRST_SECONDS = 60, 0.1; sys.exit(launch.main())")
        done = subprocess.run([sys.executable, "-c", launch, "--max-restarts=9", BINARY, "train", self.folder / "job.toml", *options, "--allow-faults"],
                              env={**{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOG_RANK")}, "NPROC": "2",
                                   "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "HYPERION_LOG_DIR": str(self.folder / "logs"),
                                   "FAULT": "rank=1;point=step.opt;nth=4;action=kill"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout)
        for restart, saved in ((1, 2), (2, 4), (3, 6)):
            self.assertIn(f"restart {restart} of at most 9 in 0 s: rank 1 failed with signal 9 (SIGKILL); it resumes after step {saved}; ", done.stdout)
            self.assertTrue((self.folder / "logs" / f"start-{restart}" / "rank_1.log").is_file())
        self.assertEqual(self.curve(), expected)  # the same arithmetic: to the bit


if __name__ == "__main__":
    main()
