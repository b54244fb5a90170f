"""Jobs of the real program whose ranks divide the experts: the losses of one rank, one digest over meshes, resuming on another one, and
what becomes of the others when one of them is killed.

    python3 tests/faults/expert_parallel_test.py build/hyperion

Standard library only.
"""

import subprocess

from checkpoints import CheckpointTest
from jobs import ALL, BINARY, PATIENCE, JobTest, main

EP = "--parallelism.expert_parallel_degree="
EACH = "--parallelism.expert_tensor_parallel_degree="
TP = "--parallelism.tensor_parallel_degree="
PP = "--parallelism.pipeline_parallel_degree="
REPLICAS = "--parallelism.data_parallel_replicate_degree="
MOE = ("--model.name=deepseek_v3", "--model.args.n_layers=2", "--model.args.n_dense_layers=1", "--model.args.num_experts=4",
       "--model.args.top_k=2", "--model.args.moe_hidden_dim=12", "--model.args.hidden_dim=25", "--model.args.kv_lora_rank=8",
       "--model.args.qk_nope_head_dim=4", "--model.args.qk_rope_head_dim=4", "--model.args.v_head_dim=6",
       "--training.mixed_precision_param=float32")
LONG = "--training.steps=100000"


class ExpertParallelCheckpoints(CheckpointTest):
    # Local batch, ranks and degrees: each step has the same four sequences.
    LAYOUTS = {"1": (4, 1, []), "E2": (2, 2, [EP + "2"]), "F2": (2, 2, []), "E2 x F2": (1, 4, [EP + "2"]), "E4": (1, 4, [EP + "4"]),
               "R2 x E2": (1, 4, [EP + "2", REPLICAS + "2"]), "E2 x P2": (2, 4, [EP + "2", PP + "2"]),
               "E2 x T2": (4, 2, [EP + "2", TP + "2"]), "E2 x T2, each divided": (2, 4, [EP + "2", TP + "2", EACH + "2"])}

    def train(self, layout, *options):
        batch, ranks, degrees = self.LAYOUTS[layout]
        return self.run_job(*MOE, "--ema.enable", f"--training.local_batch_size={batch}", *degrees, *options, ranks=ranks, code=0)

    def test_every_division_reads_what_any_other_wrote(self):
        divided = "E2 x T2, each divided"
        more = (("E2 x F2", "F2"), ("E2", "1"), ("R2 x E2", "E2"), ("1", "E4"), (divided, "E2 x F2"), ("E2 x T2", "E4")) if ALL else ()
        for source, target in (("E4", "E2 x F2"), ("E2 x F2", "E2 x P2"), ("E2 x P2", divided), (divided, "1"), ("1", "E2 x T2"), *more):
            with self.subTest(written_by=source, read_by=target):
                self.assertIn("layers.1.moe.expert_bias", self.check_read(source, target))

    def test_a_run_that_goes_on_in_another_division_has_the_losses_of_an_undisturbed_one(self):
        more = (("E2 x F2", 6), ("E2 x T2, each divided", 7)) if ALL else ()
        self.check_resumed_curve(("E2 x T2", 2), ("1", 4), ("E2 x P2", 5), *more, ("R2 x E2", 8))

    def test_exports_to_hugging_face_are_equal_byte_for_byte(self):
        exports = {}
        for layout in ("1", "E2 x T2, each divided", *(("E2 x T2", "E2 x P2", "E2 x F2") if ALL else ())):
            self.train(layout, "--training.steps=1", "--optimizer.lr=0.0", "--model.args.num_shared_experts=1", "--model.args.score_func=sigmoid",
                       "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only", f"--checkpoint.folder={layout}")
            exports[layout] = (self.folder / "out" / layout / "step-1" / "model.safetensors").read_bytes()
        self.assertEqual(len(set(exports.values())), 1, list(exports))


class ExpertParallel(JobTest):
    def test_a_check_and_a_dry_run_know_the_mesh(self):
        done = subprocess.run([BINARY, "check", self.folder / "job.toml", "--ranks", "4", *MOE, EP + "2"], capture_output=True, text=True,
                              timeout=PATIENCE, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("dp_shard 4 x cp 1 x tp 1 = 4 ranks; experts: efsdp 2 x ep 2 x etp 1", done.stdout)
        job = self.run_job(*MOE, EP + "2", "--comm.mode=fake_backend", "--training.steps=2", env={"NGPU": "4"}, code=0)
        self.assertIn("experts: efsdp 2 x ep 2", job.text())

    def test_a_dense_model_says_once_that_there_are_no_experts(self):
        job = self.run_job(EP + "2", "--training.steps=1", ranks=1, code=0)
        self.assertEqual(job.text().count("parallelism.expert_parallel_degree = 2"), 1, job.text())
        self.assertIn("has no effect: the model has no experts", job.text())

    def test_a_flavour_whose_documents_torchtitan_masks_says_so_where_they_are_not(self):
        says = "torchtitan masks documents in this flavour: training.document_mask = true is the same here"
        small = [*MOE, "--model.flavor=16B", "--training.steps=1"]
        self.run_job(*small, code=0, says=[says])
        self.assertNotIn(says, self.run_job(*small, "--training.document_mask", code=0).text())

    def test_the_rows_of_the_busiest_rank_are_reported(self):
        self.run_job(*MOE, EP + "2", "--training.steps=1", "--metrics.log_freq=1", ranks=2, code=0)
        step = next(line for line in self.metrics() if "grad_norm" in line)
        tokens = step["n_tokens_seen"]  # of which each goes to two experts
        # Any division of these rows lies in here: tests/distributed/expert_parallel_test.cpp judges the number.
        self.assertTrue(tokens <= step["experts/most_rows_of_a_rank"] <= 2 * tokens, step)

    KILLED_IN = {  # point of the fault, which call of it, what the others then wait for, in which groups and which phase
        # In each step rows come back once in forward and once in backward.
        "forward, of parts of the sequences": ("step.rows", 5, "all_to_all", "ep/0", r"step 3 forward layers\.1"),
        "backward": ("step.rows", 6, "all_to_all", "ep/0", r"step 3 backward layers\.1"),
        "counts": ("step.counts", 3, "all_reduce", "fsdp/0", "step 3 sum of expert counts"),
    }

    def test_ranks_that_lose_one_end_with_71_and_name_group_operation_and_phase(self):
        for what, (point, nth, operation, group, phase) in self.KILLED_IN.items():
            with self.subTest(what=what):
                tensor = [TP + "2"] if "sequences" in what else []
                job = self.start(*MOE, LONG, EP + "2", *tensor, "--activation_checkpoint.mode=none", "--allow-faults", ranks=2,
                                 env={"FAULT": f"rank=1;point={point};nth={nth};action=kill"})
                self.assertEqual(job.codes(), [71, -9], job.text())
                self.assert_lost_in(job.text(0), operation, group, phase)


if __name__ == "__main__":
    main()
