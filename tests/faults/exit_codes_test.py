"""Every way a job can end that needs no checkpoint, on the real program: exit code, message, nothing left behind.

    python3 tests/faults/exit_codes_test.py build/hyperion

Standard library only. Each case runs a small model on data made in jobs.py.
"""

import json
import os
import signal
import subprocess

import warm_start
from jobs import BINARY, PATIENCE, JobTest, main


class ExitCodes(JobTest):
    def test_done_is_0(self):
        self.run_job(code=0, says=["step:  5", "Training completed"])
        self.assertEqual(len(self.metrics()), 5)

    def test_typo_is_2_and_names_place_and_suggestion(self):
        text = (self.folder / "job.toml").read_text().replace("seq_len", "seq_length")
        (self.folder / "job.toml").write_text(text)
        self.run_job(code=2, says=["job.toml:12", "seq_length", "seq_len"])

    def test_unavailable_feature_is_2_by_name(self):
        self.run_job("--parallelism.context_parallel_degree=2", "--parallelism.context_parallel_load_balancer=ptrr", ranks=2, code=2,
                     says=["context_parallel_load_balancer"])

    def test_mesh_that_does_not_fit_is_2(self):
        self.run_job("--parallelism.data_parallel_shard_degree=3", code=2, says=["data_parallel_shard_degree"])
        self.run_job("--parallelism.tensor_parallel_degree=2", code=2, says=["tensor 2 must be the 1 rank of the job"])

    def test_a_tensor_parallel_degree_that_leaves_a_rank_without_a_part_is_2_with_the_key(self):
        self.run_job("--parallelism.tensor_parallel_degree=4", "--model.args.n_heads=4", "--model.args.n_kv_heads=4",
                     "--model.args.hidden_dim=9", ranks=4, code=2,
                     says=["parallelism.tensor_parallel_degree = 4", "the hidden width's columns, which are 9", "lower the degree"])

    def test_vocabulary_larger_than_the_model_is_2_before_any_step(self):
        job = self.run_job("--model.args.vocab_size=100", code=2, says=["vocab_size", "2048"])
        self.assertNotIn("Training starts", job.text())

    def test_a_batch_shell_of_slurm_without_srun_is_2_and_names_srun(self):
        self.run_job("--comm.init_timeout_seconds=3600", code=2, says=["batch shell of SLURM job 5", "start the program with srun"],
                     env={"RANK": "", "WORLD_SIZE": "", "SLURM_JOB_ID": 5, "SLURM_NTASKS": 2, "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_NODEID": 0,
                          "SLURM_TASKS_PER_NODE": 2, "SLURM_JOB_NODELIST": "n0"})

    def test_missing_data_is_2(self):
        self.run_job("--training.dataset_path=/no/such/data.jsonl", code=2, says=["/no/such/data.jsonl"])

    def test_damaged_data_is_65_and_names_the_line(self):
        with open(self.folder / "data.jsonl", "a") as data:
            data.write("{ this is no JSON\n")
        self.run_job("--training.steps=200", "--training.shuffle=false", code=65, says=["data.jsonl:201"])

    def test_damaged_tokenizer_is_65(self):
        (self.folder / "tokenizer.json").write_text("{}")
        self.run_job(f"--model.hf_assets_path={self.folder}", code=65, says=["tokenizer.json"])

    def test_a_dump_folder_that_cannot_be_written_is_73_with_and_without_checkpoints(self):
        (self.folder / "file").write_text("no folder")
        for option in ("--checkpoint.no_enable", "--checkpoint.enable"):
            job = self.run_job(f"--job.dump_folder={self.folder}/file/out", option, code=73, says=[f"{self.folder}/file/out"])
            self.assertNotIn("step:  1", job.text())

    def test_a_disk_that_is_full_before_step_1_is_73(self):
        self.run_job(code=73, before={0: ["prlimit", "--fsize=1000"]})  # what it says is cut off as well

    def test_non_finite_is_93_and_names_step_and_documents(self):
        job = self.run_job("--optimizer.lr=1e38", code=93, says=["not finite", "data.jsonl:"])
        self.assertRegex(job.text(), r"step [23]:")

    def test_non_finite_is_93_on_every_rank(self):
        self.run_job("--optimizer.lr=1e38", code=93, ranks=2, says=["not finite"])

    def test_ranks_that_disagree_are_2_and_list_the_key(self):
        self.run_job(code=2, ranks=2, per_rank=[["--optimizer.lr=1e-3"], ["--optimizer.lr=2e-3"]], says=["lr"])

    def test_ranks_of_another_mesh_or_world_size_are_2_at_once_with_the_values(self):
        for name, options, says in (
                ("mesh", {"per_rank": [[], ["--parallelism.data_parallel_replicate_degree=2"]]},
                 ["parallelism.data_parallel_replicate_degree: 1 on rank 0, 2 on rank 1", "dp_replicate 2"]),
                ("world size", {"before": {1: ["env", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4"]}}, ["WORLD_SIZE: 2 on rank 0, 4 on rank 1"]),
                ("one RANK twice", {"before": {1: ["env", "RANK=2", "WORLD_SIZE=4"], 2: ["env", "RANK=2", "WORLD_SIZE=4"]}, "ranks": 3,
                                    "env": {"FAULT": f"rank=2;point=init.before_pg;action=wait:{self.folder}/both"}},
                 ["processes of the rank: 1 on rank 0, 2 on rank 2"])):
            with self.subTest(name=name):
                job = self.start("--allow-faults", "--comm.init_timeout_seconds=3600", **{"ranks": 2, **options})
                if "env" in options:  # rank 0 waits for one of them, and only a moment for the other
                    for process in (1, 2):
                        job.wait_for("waits until", process)
                    (self.folder / "both").touch()
                codes = job.codes()  # at once, and not after the timeout
                self.assertEqual(codes, [2] * len(codes), job.text())
                for text in says:
                    self.assertIn(text, job.text())

    def test_interrupt_ends_after_the_step_with_130(self):
        job = self.start("--training.steps=100000", ranks=2)
        job.wait_for("step:  3")
        job.ranks[0][0].send_signal(signal.SIGINT)  # one rank is enough: they agree
        self.assertEqual(job.codes(), [130, 130], job.text())
        self.assertIn("stopped by a signal", job.text())
        self.assertRegex(job.text(), r"\[hyperion\] Ctrl-C received in step \d+: stopping after it \(a second one")
        self.assertNotIn("received", job.text(1))

    def test_a_warning_that_comes_while_the_program_is_loaded_ends_it_with_143(self):
        process = subprocess.Popen([BINARY, "train", self.folder / "job.toml"], env={**os.environ, "HYPERION_DEVICE": "cpu"}, text=True, stdout=subprocess.PIPE,
                                   preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}))  # as launch.py does
        self.addCleanup(process.kill)
        process.send_signal(signal.SIGUSR1)
        self.assertIn("USR1 received while the job was starting: it ends", process.communicate(timeout=PATIENCE)[0])
        self.assertEqual(process.returncode, 143)

    def test_term_ends_after_the_step_with_143(self):
        job = self.start("--training.steps=100000")
        job.wait_for("step:  2")
        job.ranks[0][0].terminate()
        self.assertEqual(job.codes(), [143], job.text())

    def test_a_reader_that_goes_away_and_closed_streams_do_not_end_a_training(self):
        for name, command in (("reader", '"$@" | head -2'), ("closed", '"$@" >&- 2>&- <&-')):
            with self.subTest(name=name):
                script = f"set -o pipefail; {command}; echo $? > {self.folder}/code"
                subprocess.run(["bash", "-c", script, "-", BINARY, "train", self.folder / "job.toml", f"--job.dump_folder={name}",
                                "--checkpoint.enable", "--checkpoint.interval=2"], cwd=self.folder, timeout=PATIENCE,
                               stdout=subprocess.DEVNULL, env={**os.environ, "HYPERION_DEVICE": "cpu"})
                self.assertEqual((self.folder / "code").read_text().strip(), "0")
                warm_start.run([BINARY, "ckpt", "verify", self.folder / name / "checkpoint" / "step-5"], check=True)

    def test_what_is_running_stands_in_the_log(self):
        (self.folder / "data" / ".cache").mkdir(parents=True)
        (self.folder / "data" / ".cache" / "a.jsonl").write_text("no JSON")
        (self.folder / "data.jsonl").rename(self.folder / "data" / "data.jsonl")
        job = self.run_job("--training.global_batch_size=8", "--lr_scheduler.warmup_steps=9", "--training.steps=2", "--training.max_norm=inf",
                           "--model.args.vocab_size=5000", f"--training.dataset_path={self.folder}/data", ranks=2, code=0, says=[
            "left out 1 file or folder whose name begins with a dot", "has 2048 entries, fewer than half of the model's vocabulary of 5000",
            "Device: CPU, 1 thread per rank; mesh", "dp_shard 2", "local batch size 2, global batch size 8, gradient accumulation steps 2",
            "256 tokens per step", "compute copies of the weights bfloat16, gradients reduced in float32", "mfu is a share of", "Weights: initialised at random (seed 1)",
            "WARNING - lr_scheduler.warmup_steps = 9 is more than the 2 steps"])
        self.assertNotIn("start over", job.text())

    def test_a_data_set_that_starts_over_says_so(self):
        self.run_job("--training.steps=100", "--metrics.log_freq=100", code=0, says=["The training data start over in step", "epoch 2"])

    def test_weights_that_nothing_would_load_are_2(self):
        self.run_job("--checkpoint.initial_load_path=/weights", code=2, says=["checkpoint.initial_load_path", "checkpoint.enable = true"])

    def test_killed_peer_is_71_and_names_rank_and_phase(self):
        job = self.start("--training.steps=100000", ranks=2)
        job.wait_for("step:  2")
        job.ranks[1][0].kill()
        self.assertEqual(job.codes()[0], 71, job.text())
        self.assertRegex(job.text(), r"rank 0.*step \d+")

    def test_every_layout_option_trains(self):
        for options, ranks in ((["--activation_checkpoint.mode=full", "--training.global_batch_size=8"], 2),
                               (["--parallelism.data_parallel_replicate_degree=2"], 4),
                               (["--parallelism.data_parallel_replicate_degree=2",
                                 "--parallelism.data_parallel_shard_degree=1"], 2),
                               (["--activation_checkpoint.selective_ac_option=op", "--training.document_mask",
                                 "--optimizer.implementation=foreach", "--training.enable_cpu_offload"], 1),
                               (["--parallelism.fsdp_reshard_after_forward=never", "--optimizer.name=Adam",
                                 "--validation.enable", "--validation.dataset=jsonl", "--validation.steps=2",
                                 f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.seq_len=32"], 2)):
            with self.subTest(options=options, ranks=ranks):
                self.run_job(*options, code=0, ranks=ranks, says=["Training completed"])

    def test_dry_run_plays_any_world_size(self):
        self.run_job("--comm.mode=fake_backend", "--training.steps=1", code=0, env={"NGPU": 64}, says=["step:  1"])


if __name__ == "__main__":
    main()
