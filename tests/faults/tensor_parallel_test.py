"""Jobs of the real program whose ranks divide the layers: the losses of one rank, the same data, gradients and validations, and what
becomes of the others when one of them is killed.

    python3 tests/faults/tensor_parallel_test.py build/hyperion

Standard library only.
"""

import itertools
import os
import re
import subprocess
import sys

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, ROOT, JobTest, main

TP = "--parallelism.tensor_parallel_degree="
FP32 = "--training.mixed_precision_param=float32"
# Nothing divides by the ranks: 25 columns of the hidden width, 2051 entries of the vocabulary.
ODD = ("--model.args.hidden_dim=25", "--model.args.vocab_size=2051", "--model.args.n_kv_heads=2", FP32)
LONG = "--training.steps=100000"


class TensorParallel(JobTest):
    def train(self, *options, **kwargs):
        return self.metrics_of(*ODD, *options, **kwargs)

    def assert_same(self, lines, expected):
        self.assert_near_metrics(lines, expected, loss=5e-6)

    def test_every_mesh_prints_the_losses_norms_and_tokens_of_one_rank(self):
        for more in ([], ["--training.document_mask", "--ema.enable", "--model.name=qwen3", "--activation_checkpoint.mode=full"]):
            one = self.train("--training.local_batch_size=4", *more)
            for ranks, batch, options in ((2, 4, ["2"]), (4, 2, ["2"]), (4, 2, ["2", "--parallelism.data_parallel_replicate_degree=2"]),
                                          (2, 1, ["2", "--training.global_batch_size=4", "--parallelism.disable_loss_parallel"])):
                with self.subTest(ranks=ranks, options=options, more=more):
                    self.assert_same(self.train(TP + options[0], *options[1:], f"--training.local_batch_size={batch}", *more, ranks=ranks), one)

    def test_the_launcher_trains_two_tensor_parallel_ranks(self):
        kept = {name: value for name, value in os.environ.items() if name not in ("LOG_RANK", "RANK", "WORLD_SIZE")}
        done = subprocess.run([ROOT / "scripts/train.sh", self.folder / "job.toml", TP + "2", *ODD], text=True, timeout=PATIENCE, cwd=self.folder,
                              env={**kept, "NPROC": "2", "HYPERION_BINARY": str(BINARY), "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("x tp 2 = 2 ranks", done.stdout)
        self.assertIn("Tensor parallelism: groups of 2 ranks divide each layer", done.stdout)
        two = self.metrics()
        self.assert_same(two, self.train())

    def test_validations_count_every_sequence_once(self):
        options = ["--validation.enable", "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl",
                   "--validation.seq_len=32", "--validation.local_batch_size=2", "--validation.sequences=7", "--training.steps=2",
                   "--training.global_batch_size=4"]
        one = self.train(*options)
        self.assertTrue(any("validation_metrics/loss" in line for line in one))
        self.assert_same(self.train(*options, TP + "2", ranks=2), one)
        self.assert_same(self.train(*options, TP + "2", ranks=4), one)

    def test_the_gradients_of_four_ranks_join_to_those_of_one(self):
        options = ["--training.steps=1", "--training.global_batch_size=4"]
        folders = [self.folder / "one", self.folder / "four"]
        self.train(*options, env={"HYPERION_DUMP_GRADIENTS": folders[0]})
        self.train(*options, TP + "2", ranks=4, env={"HYPERION_DUMP_GRADIENTS": folders[1]})
        compared = subprocess.run([sys.executable, ROOT / "scripts/join_gradients.py", folders[1], "--compare", folders[0]], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
        self.assertEqual(compared.returncode, 0, compared.stdout)

    def test_overlap_on_a_cpu_and_keys_without_tensor_parallelism_are_said(self):
        job = self.run_job(TP + "2", "--parallelism.enable_async_tensor_parallel", "--compile.enable", "--training.steps=1", ranks=2, code=0,
                           says=["parallelism.enable_async_tensor_parallel: on a CPU the plain form runs",
                                 "compile.enable has no effect on it"])
        self.assertNotIn("WARNING", job.text())
        self.run_job("--parallelism.disable_loss_parallel", "--training.steps=1", code=0,
                     says=["WARNING - parallelism.disable_loss_parallel = true (command line) has no effect: "
                           "parallelism.tensor_parallel_degree is 1"])

    def test_check_counts_the_parts_of_a_rank(self):
        def check(*options):
            done = warm_start.run([BINARY, "check", self.folder / "job.toml", "--ranks=8", *options], cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout
        self.assertRegex(check(TP + "4"), r"ranks +ok +pp 1 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 4 = 8 ranks")
        memory = [float(re.search(r"optimizer state ([\d.]+) MiB", check(TP + degree, "--parallelism.data_parallel_shard_degree=1",
                  f"--parallelism.data_parallel_replicate_degree={8 // int(degree)}"))[1]) for degree in ("1", "4")]
        self.assertTrue(0.25 <= memory[1] / memory[0] < 0.3, memory)

    def test_one_rank_generates_from_a_configuration_with_tensor_parallelism_and_says_so(self):
        self.train("--checkpoint.enable", "--checkpoint.no_last_save_model_only", "--training.steps=1")
        text = (self.folder / "job.toml").read_text() + "[parallelism]\ntensor_parallel_degree = 2\n"
        text = text.replace("n_heads = 4", "n_heads = 4\nhidden_dim = 25\nvocab_size = 2051\nn_kv_heads = 2")
        (self.folder / "two.toml").write_text(text)
        done = warm_start.run([BINARY, "generate", self.folder / "out/checkpoint/step-1", "--prompt=It", "--config=two.toml",
                               "--max-tokens=2"], cwd=self.folder,
                              env={**os.environ, "HYPERION_DEVICE": "cpu"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("parallelism.tensor_parallel_degree = 2 of two.toml has no effect here: this command runs on one rank", done.stderr)


class TensorParallelCheckpoints(CheckpointTest):
    LAYOUTS = {"1": (1, []), "F2": (2, []), "T2": (2, [TP + "2"]), "F2 x T2": (4, [TP + "2"]),
               "R2 x T2": (4, [TP + "2", "--parallelism.data_parallel_replicate_degree=2"])}

    def train(self, layout, *options):
        ranks, own = self.LAYOUTS[layout]
        return self.run_job(*ODD, "--ema.enable", *own, *options, ranks=ranks, code=0)

    def test_every_division_reads_what_any_other_wrote(self):
        for source, target in (("1", "F2 x T2"), ("F2 x T2", "T2"), ("F2 x T2", "1"), ("T2", "F2 x T2"), ("R2 x T2", "F2"), ("F2", "R2 x T2")):
            with self.subTest(written_by=source, read_by=target):
                self.check_read(source, target)

    def test_a_run_that_goes_on_in_another_division_has_the_losses_of_an_undisturbed_one(self):
        self.check_resumed_curve(("T2", 3), ("F2 x T2", 6), ("1", 7), ("R2 x T2", 8))


class LostTensorParallelRank(JobTest):
    KILLED_IN = {  # point of the fault, what its peer then waits for, and in which phase
        "forward": ("step.fwd", r"\w+", "step 3 forward tok_embeddings"),
        "backward": ("step.bwd", r"\w+", r"step 3 backward layers\.1"),
        "sum": ("step.sum", "all_reduce", "step 3 sum of replicated gradients"),
        "norm": ("step.opt", "all_reduce", "step 3 gradient norm"),
    }

    def test_ranks_that_lose_one_end_with_71_and_name_group_operation_and_phase(self):
        for (what, (point, operation, phase)), ranks in itertools.product(self.KILLED_IN.items(), (2, 4)):
            with self.subTest(what=what, ranks=ranks):
                job = self.start(LONG, TP + "2", "--allow-faults", ranks=ranks, env={"FAULT": f"rank=1;point={point};nth=3;action=kill"})
                self.assertEqual(job.codes(), [71, -9] + [71] * (ranks - 2), job.text())
                self.assert_lost_in(job.text(0), operation, "tp/0", phase)


if __name__ == "__main__":
    main()
