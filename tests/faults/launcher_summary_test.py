"""What a job says, once, when one of its ranks fails: scripts/launch.py with the real program. And what a job tells a batch
system, and learns from it: progress, the lead of the warning signal, variables in the dump folder, the network.

    python3 tests/faults/launcher_summary_test.py build/hyperion

Standard library only.
"""

import json
import os
import re
import socket
import subprocess

from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, assert_lost, main, patient_launcher

HOST = socket.gethostname()


class Summary(CheckpointTest):
    def launch(self, *options, ranks, code, fault=None, patience=None, **environment):
        """stdout and stderr of the launcher, together in the order of a terminal."""
        own = {"NPROC": ranks, "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": 1, "HYPERION_LOG_DIR": self.folder / "logs", **environment}
        if fault:
            own["FAULT"] = fault
            options = ("--allow-faults", *options)
        kept = {name: value for name, value in os.environ.items() if name not in ("LOG_RANK", "RANK", "WORLD_SIZE")}
        done = subprocess.run([*patient_launcher(**patience or {}), BINARY, "train", self.folder / "job.toml",
                               "--checkpoint.no_enable", "--training.global_batch_size=-1", *options], env={**kept, **{k: str(v) for k, v in own.items()}},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, timeout=PATIENCE)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def log(self, rank):
        return (self.folder / "logs" / f"rank_{rank}.log").read_text()

    def record(self, rank):
        return json.loads((self.folder / "logs" / "failures" / f"rank_{rank}.json").read_text())

    def test_a_killed_rank_is_named_once_with_group_operation_and_phase_and_no_stack_frames(self):
        for killed in (1, 0):  # 0 holds the store, so libtorch has much to say
            with self.subTest(killed=killed):
                text = self.launch("--training.steps=100", ranks=3, code=137, fault=f"rank={killed};point=step.opt;nth=3;action=kill")
                self.assertEqual(text.count(f"[launch] rank {killed} failed with signal 9 (SIGKILL)"), 1, text)
                self.assertRegex(text, r"\[launch\] 2 other ranks lost it: (\w+ of group \w+/\d )?in phase 'step [34] .*' \(rank \d, \d\)")
                self.assertNotIn("frame #", text + self.log(1) + self.log(2))
                self.assertNotIn("Exception raised from", text + self.log(1) + self.log(2))
                records = [self.record(rank) for rank in {0, 1, 2} - {killed}]
                # What ends a rank is the operation that fails, or its watch over the others where a busy host holds that up.
                for rank in {0, 1, 2} - {killed}:
                    self.assertRegex(self.log(rank), rf"hyperion: rank {rank} of 3 on {re.escape(HOST)}(: \w+ \(number \d+ of group "
                                                     rf"\w+/\d, ranks 0 1 2\) failed in phase 'step \d+ .*': | in phase 'step \d+ .*': "
                                                     rf"rank {killed} has ended, .*started last: \w+, number \d+ of group \w+/\d)")
                for record in records:
                    self.assertEqual((record["code"], record["host"]), (71, HOST))
                    self.assertRegex(record["phase"], r"step \d")
                assert_lost(self, records, killed)

    def test_a_rank_that_hangs_is_the_one_that_was_lost(self):
        # Its own sleep ends by KILL alone. The timeout is longer than a busy host holds up the ranks that are well.
        text = self.launch("--comm.train_timeout_seconds=15", "--training.steps=100", ranks=3, code=71, patience={"settle": 10, "kill": 2},
                           fault="rank=2;point=step.bwd;nth=4;action=sleep:1000")
        self.assertIn("[launch] rank 2 was lost", text)
        self.assertRegex(text, r"\[launch\] 2 other ranks lost it: \w+ of group \w+/\d in phase 'step 4 ")

    def test_the_sentence_of_a_rank_that_is_not_shown_is_in_the_summary(self):
        text = self.launch("--training.steps=100", ranks=2, code=70, fault="rank=1;point=step.data;nth=3;action=throw")
        self.assertRegex(text, rf"\[launch\] rank 1 failed with exit code 70 on {re.escape(HOST)}, in phase 'step 3 data'; it said:\n"
                               rf"  \| rank 1 of 2 on {re.escape(HOST)} in phase 'step 3 data': .*the fault armed at step.data was thrown")
        self.assertIn("hyperion: rank 1 of 2 on ", self.log(1))

    def test_an_error_that_every_rank_finds_is_shown_once(self):
        text = self.launch("--training.steps=nine", ranks=3, code=2)
        self.assertEqual(text.count("nine"), 1, text)
        self.assertIn("[launch] rank 0 failed with exit code 2", text)


class BatchSystem(CheckpointTest):
    def test_the_progress_file_has_the_step_of_the_start_and_the_newest_one_saved(self):
        progress = self.folder / "progress"
        for steps, expected in ((4, "0 4\n"), (8, "4 8\n")):
            self.run_job(f"--training.steps={steps}", "--lr_scheduler.total_steps=8", code=0, ranks=2,
                         env={"HYPERION_PROGRESS_FILE": progress})
            self.assertEqual(progress.read_text(), expected)

    def test_a_warning_signal_that_comes_too_late_is_named_once(self):
        job = self.run_job("--training.steps=15", code=0, ranks=2, env={"HYPERION_SIGNAL_LEAD": 0},
                           says=["the warning signal comes 0 s before the limit: give sbatch --signal=USR1@"])
        self.assertEqual(job.text().count("a stop before the time limit may take"), 1)
        job = self.run_job("--training.steps=15", "--checkpoint.interval=1000", "--checkpoint.folder=second", code=0,
                           env={"HYPERION_SIGNAL_LEAD": 1_000_000})
        self.assertNotIn("a stop before the time limit", job.text())
        self.run_job(code=2, env={"HYPERION_SIGNAL_LEAD": "soon"}, says=["HYPERION_SIGNAL_LEAD is 'soon'"])

    def test_the_dump_folder_takes_variables_and_the_job_number(self):
        self.run_job("--training.steps=1", "--job.dump_folder=${SCRATCH}/run-%j", code=0,
                     env={"SCRATCH": self.folder / "scratch", "SLURM_JOB_ID": 4711})
        self.assertTrue((self.folder / "scratch" / "run-4711" / "checkpoint" / "step-1").is_dir())
        self.run_job("--job.dump_folder=${NOT_SET_AT_ALL}/x", code=2,
                     says=["command line: job.dump_folder", "the environment variable NOT_SET_AT_ALL is not set"])
        self.run_job("--job.dump_folder=run-%j", code=2, says=["%j is the number of a SLURM job, and this is none"])

    def test_the_network_of_a_job_stands_in_its_log(self):
        self.run_job("--training.steps=1", ranks=2, code=0, env={"NCCL_IB_HCA": "mlx5_9"},
                     says=["Network: Gloo on lo (127.0.0.1), because all ranks are on this host",
                           "Network variables that you set: NCCL_IB_HCA=mlx5_9"])
        self.run_job(ranks=2, code=2, env={"GLOO_SOCKET_IFNAME": "ib77"},
                     says=["GLOO_SOCKET_IFNAME names 'ib77', but this host has no such network interface: it has", "lo"])
        job = self.run_job("--training.steps=1", code=0)
        self.assertNotIn("Network:", job.text())


if __name__ == "__main__":
    main()
