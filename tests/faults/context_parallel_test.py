"""Jobs of the real program whose ranks share each sequence: the losses, tokens and validations of one rank, one digest over meshes,
resuming on another one, and what becomes of the others when one of them is killed.

    python3 tests/faults/context_parallel_test.py build/hyperion

Standard library only.
"""

import os
import re

import warm_start
from checkpoints import CheckpointTest
from jobs import ALL, BINARY, ROOT, JobTest, main

CP = "--parallelism.context_parallel_degree="
TP = "--parallelism.tensor_parallel_degree="
FP32 = "--training.mixed_precision_param=float32"
RING = "--parallelism.context_parallel_rotate_method=alltoall"
NO_BALANCER = "--parallelism.context_parallel_load_balancer=None"
LONG = "--training.steps=100000"


class ContextParallel(JobTest):
    def train(self, *options, **kwargs):
        return self.metrics_of(FP32, *options, **kwargs)

    def assert_same(self, lines, expected):
        self.assert_near_metrics(lines, expected, loss=1e-6)

    def test_every_mesh_prints_the_losses_norms_tokens_and_validations_of_one_rank(self):
        validation = ["--validation.enable", "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl",
                      "--validation.seq_len=16", "--validation.local_batch_size=2", "--validation.sequences=7", "--validation.freq=2"]
        some = [(2, 4, [CP + "2"]), (4, 1, [CP + "2", "--training.global_batch_size=4"]), (2, 4, [CP + "2", RING])]
        if ALL:
            some += [(4, 4, [CP + "4"]), (4, 4, [CP + "2", TP + "2"]), (4, 2, [CP + "2", "--parallelism.data_parallel_replicate_degree=2"]),
                     (2, 4, [CP + "2", NO_BALANCER]), (4, 4, [CP + "4", RING]), (4, 4, [CP + "4", RING, NO_BALANCER]),
                     (4, 4, [CP + "2", "--parallelism.pipeline_parallel_degree=2"])]
        for more in ([], ["--training.document_mask", "--ema.enable", "--model.name=qwen3", "--model.args.n_kv_heads=2",
                         "--activation_checkpoint.mode=full"]):
            one = self.train("--training.local_batch_size=4", *validation, *more)
            for ranks, batch, options in some:
                with self.subTest(ranks=ranks, options=options, more=more):
                    lines = self.train(*options, f"--training.local_batch_size={batch}", *validation, *more, ranks=ranks)
                    self.assert_same(lines, one)
                    for line in (line for line in lines if "grad_norm" in line):  # the ranks' shares of the speed add up to all tokens
                        tokens = line["throughput(tps)"] * line["time_metrics/end_to_end(s)"] * ranks
                        self.assertAlmostEqual(tokens, line["n_tokens_seen"] / line["step"], delta=1e-3 * tokens)

    def test_a_validation_counts_its_sequences_once(self):
        held = []
        for ranks, options in ((1, ()), (2, (CP + "2",))):
            job = self.run_job(*options, "--training.steps=1", "--validation.enable", "--validation.dataset=jsonl", "--validation.seq_len=64",
                               f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.sequences=100000", ranks=ranks, code=0)
            held += re.findall(r"but the validation data hold (\d+):", job.text())
        self.assertEqual(len(held), 2)
        self.assertEqual(held[0], held[1])

    def test_the_log_and_a_dry_run_say_how_sequences_are_shared(self):
        job = self.run_job(CP + "2", "--training.steps=1", ranks=2, code=0, says=["x cp 2 x tp 1 = 2 ranks"])
        self.assertIn("Context parallelism: groups of 2 ranks share each sequence, two chunks each (headtail)", job.text())
        self.assertNotIn("WARNING", job.text())
        self.run_job(CP + "2", RING, "--training.steps=1", ranks=2, code=0,
                     says=["two chunks each (headtail), and pass keys and values on from rank to rank"])
        self.run_job(CP + "2", RING, "--training.document_mask", "--training.steps=1", ranks=2, code=0,
                     says=['"alltoall": with training.document_mask keys and values are gathered'])
        self.run_job(CP + "4", TP + "2", NO_BALANCER, "--comm.mode=fake_backend", "--training.steps=2", env={"NGPU": "8"},
                     code=0, says=["one chunk each"])
        self.run_job(RING, "--training.steps=1", code=0,
                     says=["parallelism.context_parallel_rotate_method = \"alltoall\" (command line) has no effect: "
                           "parallelism.context_parallel_degree is 1"])

    def test_check_counts_the_tokens_of_a_rank(self):
        def check(*options):
            done = warm_start.run([BINARY, "check", self.folder / "job.toml", "--ranks=8", "--training.seq_len=2048",
                                   "--model.args.n_layers=64", *options], cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout
        self.assertRegex(check(CP + "4"), r"ranks +ok +pp 1 x dp_replicate 1 x dp_shard 2 x cp 4 x tp 1 = 8 ranks")
        # Two sequences of 2,048 tokens, keys of 4 heads of 8 in bf16; fp32 sums of their gradients.
        kib = 2 * 2 * 2048 * 4 * 8 * 2 * 3 / 4 / 1024
        self.assertIn(f"each sequence on 4 ranks (4 of 8 neighbours), two chunks each (headtail); keys and values are gathered (allgather): in a block of a "
                      f"microbatch each rank sends {kib / 2 / 1024:.2f} MiB forward and {kib * 3 / 2 / 1024:.2f} MiB backward, {64 * 2 * kib / 1024:.2f} MiB "
                      "per step\n", check(CP + "4", TP + "2"))
        self.assertIn("one part each (no balancer); keys and values go round (alltoall)", check(CP + "2", RING, NO_BALANCER))
        self.assertNotIn("each sequence on", check())
        activations = [float(re.search(r"activations of a microbatch ([\d.]+) MiB", check(CP + degree))[1]) for degree in ("2", "8")]
        self.assertTrue(activations[1] < 0.5 * activations[0], activations)

    def test_torchtitans_debug_preset_trains_with_its_own_keys(self):
        preset = ROOT / "tests/unit/trainer/config/presets/llama3_debug.toml"  # unchanged but for the length
        self.run_job(CP + "2", "--training.steps=2", "--training.seq_len=64", f"--job.dump_folder={self.folder}/out", config=preset, ranks=2, code=0,
                     says=["dp_shard 1 x cp 2 x tp 1 = 2 ranks", "sequence length 64", "Training completed"])

    def test_one_rank_generates_from_a_configuration_with_context_parallelism_and_says_so(self):
        self.train("--checkpoint.enable", "--checkpoint.no_last_save_model_only", "--training.steps=1")
        (self.folder / "two.toml").write_text((self.folder / "job.toml").read_text() + "[parallelism]\ncontext_parallel_degree = 2\n")
        done = warm_start.run([BINARY, "generate", self.folder / "out/checkpoint/step-1", "--prompt=It", "--config=two.toml",
                               "--max-tokens=2"], cwd=self.folder, env={**os.environ, "HYPERION_DEVICE": "cpu"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("parallelism.context_parallel_degree = 2 of two.toml has no effect here: this command runs on one rank", done.stderr)

    KILLED_IN = {  # which call of the fault's point, what the others then wait for, and in which phase
        # Per block and step one in forward and three in backward: the gathers, and the sums of second and of first parts.
        "forward": (2 * 8 + 2, "all_gather", r"step 3 forward layers\.1"),
        "backward": (2 * 8 + 3, "all_gather", r"step 3 backward layers\.1"),
        "sum": (2 * 8 + 4, "reduce_scatter", r"step 3 backward layers\.1"),
    }
    KILLED_IN_RING = {  # per block and step a hop of keys in forward, one in backward, and one of gradients
        "forward": (2 * 6 + 2, "send to rank 1 and recv from rank 1", r"step 3 forward layers\.1"),
        "backward": (2 * 6 + 3, "send to rank 1 and recv from rank 1", r"step 3 backward layers\.1"),
        "gradients": (2 * 6 + 4, "send to rank 1 and recv from rank 1", r"step 3 backward layers\.1"),
    }

    def test_ranks_that_lose_one_end_with_71_and_name_group_operation_and_phase(self):
        cases = [([], *case) for case in self.KILLED_IN.items()] + [([RING], *case) for case in self.KILLED_IN_RING.items()]
        for options, what, (nth, operation, phase) in cases:
            with self.subTest(options=options, what=what):
                job = self.start(LONG, CP + "2", *options, "--activation_checkpoint.mode=none", "--allow-faults", ranks=2,
                                 env={"FAULT": f"rank=1;point=step.keys;nth={nth};action=kill"})
                self.assertEqual(job.codes(), [71, -9], job.text())
                self.assert_lost_in(job.text(0), operation, "cp/0", phase)


class ContextParallelCheckpoints(CheckpointTest):
    LAYOUTS = {"1": (1, 4, []), "C2": (2, 4, [CP + "2"]), "C4": (4, 4, [CP + "4"]), "F2 x C2": (4, 2, [CP + "2"]), "F2": (2, 2, []),
               "C2 x T2": (4, 4, [CP + "2", TP + "2"])}

    def train(self, layout, *options):
        ranks, batch, degrees = self.LAYOUTS[layout]
        return self.run_job(FP32, "--ema.enable", f"--training.local_batch_size={batch}", *degrees, *options, ranks=ranks, code=0)

    def test_every_division_reads_what_any_other_wrote(self):
        more = (("C4", "1"), ("C2 x T2", "F2"), ("F2", "F2 x C2")) if ALL else ()
        for source, target in (("1", "C2"), ("C2", "C4"), *more):
            with self.subTest(written_by=source, read_by=target):
                self.check_read(source, target)

    def test_a_run_that_goes_on_in_another_division_has_the_losses_of_an_undisturbed_one(self):
        self.check_resumed_curve(("C2", 3), ("1", 5), ("C4", 8))


if __name__ == "__main__":
    main()
