"""kill -9 at every other moment of a job than inside a save: at its start, while it loads, in a step, beside a save in the
background; and threads that end badly. kill_matrix_test.py kills inside saves.

    python3 tests/faults/kill_test.py build/hyperion [ROUNDS=12]

ROUNDS: of the job that is killed again and again.
"""

import itertools
import random
import sys
import time

from checkpoints import CheckpointTest
from jobs import PATIENCE, main

ROUNDS = int(sys.argv.pop(2)) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 12
CURVE = ["--lr_scheduler.total_steps=8"]
ASYNC = ["--checkpoint.async_mode=async_with_pinned_mem", "--ema.enable"]


class Kill(CheckpointTest):
    def check_killed(self, job, rank):
        """`rank` was killed; the other one ended by itself and says why."""
        codes = job.codes()
        other = 1 - rank
        self.assertEqual(codes[rank], -9, job.text(rank))
        self.assertIn(codes[other], (71, 74), job.text(other))
        self.assertIn("rank", job.text(other).splitlines()[-1])

    def check_whole(self):
        """Whatever is named step-N verifies."""
        if any(self.steps_folder.glob("step-*")):
            self.tool("verify", self.steps_folder)

    def kill_at(self, point, rank, *options, more=""):
        job = self.start(*options, "--allow-faults", ranks=2, env={"FAULT": f"rank={rank};point={point};action=kill{more}"})
        self.check_killed(job, rank)
        return job

    def stop_at(self, point, rank):
        """`rank` stands still there: the other one waits for it as long as comm.init_timeout_seconds says."""
        job = self.start("--comm.init_timeout_seconds=3", "--allow-faults", ranks=2,
                         env={"FAULT": f"rank={rank};point={point};action=stop"})
        job.wait_for_stop(rank)
        self.assertEqual(job.ranks[1 - rank][0].wait(timeout=PATIENCE), 71, job.text(1 - rank))
        self.assertIn(f"rank {rank}", job.text(1 - rank).splitlines()[-1])
        job.end()

    def test_a_rank_killed_while_loading_changes_nothing_in_the_folder(self):
        expected = self.control(ranks=2)
        self.run_job("--training.steps=4", *CURVE, ranks=2, code=0)
        before = self.files()
        for point, rank in itertools.product(("load.meta", "load.mid_data", "load.done"), (0, 1)):
            with self.subTest(point=point, rank=rank):
                self.kill_at(point, rank)
                self.assertEqual(self.files(), before)
        with self.subTest("a rank that stands still"):
            self.stop_at("load.done", 1)
            self.assertEqual(self.files(), before)
        self.run_job(ranks=2, code=0, says=["Training starts at step 5"])
        self.assertEqual(self.curve(), expected)

    def test_a_rank_that_never_joins_is_named(self):
        job = self.start("--comm.init_timeout_seconds=3", "--allow-faults", ranks=2,
                         env={"FAULT": "rank=1;point=init.before_pg;action=kill"})
        codes = job.codes()
        self.assertEqual(codes, [71, -9], job.text())
        self.assertIn("1 of 2 ranks joined within 3 s, missing: rank 1", job.text())
        self.assertFalse(self.steps_folder.exists())

    def test_a_rank_killed_before_the_first_step_ends_the_others_and_saves_nothing(self):
        for point, rank in itertools.product(("init.before_pg", "init.after_pg", "init.model"), (0, 1)):
            with self.subTest(point=point, rank=rank):
                # Before the ranks meet, the other one waits so long; those that have met know of each other.
                job = self.kill_at(point, rank, *["--comm.init_timeout_seconds=3"] * (point == "init.before_pg"))
                self.assertNotIn("Training starts", job.text(1 - rank))
                self.assertFalse(list(self.steps_folder.glob("step-*")))
        with self.subTest("a rank 0 that stands still, with the store of the rendezvous"):
            self.stop_at("init.after_pg", 0)
        self.run_job("--training.steps=1", ranks=2, code=0)

    def test_a_rank_killed_in_a_step_ends_the_others_and_the_same_command_resumes(self):
        expected = self.control(ranks=2)
        for nth, (point, rank) in enumerate(itertools.product(("step.data", "step.fwd", "step.bwd", "step.opt"), (0, 1))):
            with self.subTest(point=point, rank=rank):
                # The fifth step: the save of the third lies behind it.
                self.kill_at(point, rank, *CURVE, f"--checkpoint.folder={nth}", more=";nth=5")
                self.run_job(*CURVE, f"--checkpoint.folder={nth}", ranks=2, code=0, says=["Training starts at step 4"])
                self.assertEqual(self.curve(), expected)

    def test_a_rank_killed_while_an_earlier_step_is_being_written_leaves_no_partial_checkpoint(self):
        expected = self.control(*ASYNC, ranks=2)
        contents = self.contents(self.folder / "control" / "out" / "checkpoint" / "step-8")
        for rank in (0, 1):
            with self.subTest(rank=rank):
                folder = f"--checkpoint.folder=rank{rank}"
                self.steps_folder = self.folder / "out" / f"rank{rank}"
                # Its own write of step-3 is still under way when it dies in step 5.
                fault = f"rank={rank};point=file.write;on=__{rank}_0;nth=2;action=sleep:60,"
                job = self.start(*ASYNC, folder, "--allow-faults", ranks=2,
                                 env={"FAULT": f"{fault}rank={rank};point=step.opt;nth=5;action=kill"})
                self.check_killed(job, rank)
                self.check_whole()
                self.assertEqual(self.saved()[0], [0])
                self.run_job(*ASYNC, folder, ranks=2, code=0, says=["step-0"])
                self.assertEqual(self.curve(), expected)
                self.assertEqual(self.saved(), ([3, 6, 8], []))
                self.assertEqual(self.contents(self.step(8)), contents)

    def test_the_end_of_a_writer_thread_is_noticed_at_once(self):
        for point, rank, policy in (("ckpt.stage", 0, "continue"), ("ckpt.stage", 1, "stop"),
                                    ("ckpt.before_data", 1, "continue"), ("ckpt.mid_data", 0, "stop"),
                                    ("ckpt.mid_data", 1, "continue"), ("ckpt.before_commit", 0, "continue")):
            with self.subTest(point=point, rank=rank, policy=policy):
                self.steps_folder = self.folder / "out" / f"{point}{rank}"
                goes_on = policy == "continue" and point != "ckpt.stage"  # that is no failure of storage
                # The save of step 3, or that of step 1 with none after it: nothing but its end can end the job.
                long = [] if goes_on else ["--training.steps=1000000", "--checkpoint.interval=1000000",
                                           "--checkpoint.enable_first_step_checkpoint"]
                job = self.start(*ASYNC, f"--checkpoint.folder={self.steps_folder.name}", "--allow-faults", *long,
                                 "--checkpoint.no_validate_before_training", f"--checkpoint.on_save_failure={policy}",
                                 ranks=2, env={"FAULT": f"rank={rank};point={point};action=throw"})
                codes = job.codes()
                self.assertIn(f"the fault armed at {point} was thrown", job.text(rank))
                self.check_whole()
                if goes_on:
                    self.assertEqual(codes, [0, 0], job.text())
                    self.assertIn(f"training continues (checkpoint.on_save_failure): rank {rank}", job.text())
                    self.assertEqual(self.saved(), ([6, 8], []))
                else:
                    self.assertTrue(set(codes) <= {70, 71, 74}, codes)
                    self.assertEqual(self.saved()[0], [])

    def test_a_job_killed_again_and_again_at_any_moment_ends_as_the_undisturbed_one(self):
        seed = random.randrange(1 << 32)
        choose = random.Random(seed)
        options = [*ASYNC, "--training.steps=40", "--checkpoint.keep_latest_k=2"]
        slowly = {"env": {"FAULT": "point=step.opt;nth=0;action=sleep:0.03"}, "ranks": 2}
        expected = self.control(*options, ranks=2, steps=40)
        contents = self.contents(self.folder / "control" / "out" / "checkpoint" / "step-40")
        for number in range(ROUNDS):
            with self.subTest(seed=seed, round=number):
                job = self.start(*options, "--allow-faults", "--comm.init_timeout_seconds=5", **slowly)
                time.sleep(choose.uniform(0, 2))
                ranks = choose.choice([[0], [1], [0, 1]])
                for rank in ranks:
                    job.ranks[rank][0].kill()
                codes = job.codes()
                for rank in {0, 1} - set(ranks):
                    self.assertIn(codes[rank], (0, 71, 74), job.text(rank))
                self.check_whole()
        self.run_job(*options, ranks=2, code=0)
        self.assertEqual(self.curve(), expected, f"seed {seed}")
        self.assertEqual(self.contents(self.step(40)), contents, f"seed {seed}")
        self.assertEqual(self.saved(), ([39, 40], []))


if __name__ == "__main__":
    main()
