"""HYPERION_COMM=staged: ranks that share one simulated GPU (docs/simulated_gpu.md) give one rank's digest where its sums have one order, and
elsewhere the digest of the same mesh over NCCL, with a GPU for each rank; and what is refused.

    python3 tests/faults/staged_test.py build/hyperion

Standard library only.
"""

import warm_start
from jobs import BINARY, JobTest, main

EXPERTS = ("--model.name=deepseek_v3", "--model.args.n_layers=3", "--model.args.kv_lora_rank=8", "--model.args.qk_nope_head_dim=4",
           "--model.args.qk_rope_head_dim=4", "--model.args.v_head_dim=4", "--model.args.hidden_dim=48", "--model.args.num_experts=4",
           "--model.args.top_k=2", "--model.args.moe_hidden_dim=16")
FOUR = "--training.global_batch_size=4"
ONE = ("--training.local_batch_size=1", FOUR)
PP = "--parallelism.pipeline_parallel_degree="
EP = "--parallelism.expert_parallel_degree=2"
CP = "--parallelism.context_parallel_degree=2"
RING = "--parallelism.context_parallel_rotate_method=alltoall"
TP = "--parallelism.tensor_parallel_degree=2"
PIPELINE = ("--training.local_batch_size=4", FOUR, "--parallelism.fsdp_reshard_after_forward=always")
TWO = ("--training.local_batch_size=1", "--training.global_batch_size=2")
REPLICAS = ("--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=1")
# What: ranks, their options, those of the one rank, which adds gradients up in the same order.
WITH_ONE_RANKS_BITS = {"two stages": (2, (*PIPELINE, PP + "2"), ONE), "four stages, experts": (4, (*PIPELINE, *EXPERTS, PP + "4"), (*ONE, *EXPERTS)),
                       "two replicas, experts": (2, (*TWO, *EXPERTS, *REPLICAS), (*TWO, *EXPERTS))}
WITH_NCCLS_BITS = {"experts": (2, (*ONE, *EXPERTS, EP)), "keys gathered": (2, (*ONE, CP)), "keys in a ring": (2, (*ONE, CP, RING)),
                   "experts in a pipeline": (4, (*EXPERTS, EP, PP + "2", "--training.local_batch_size=2", FOUR)),
                   "sharded, tensor parallel, offloaded": (4, (*ONE, TP, "--training.enable_cpu_offload"))}


class Staged(JobTest):
    def train(self, name, ranks, options, **env):
        """Losses, and the digest of the checkpoint at the end."""
        folder = self.folder / name
        folder.mkdir()
        self.prepare(folder)
        job = self.start("--checkpoint.enable", "--checkpoint.interval=100", "--checkpoint.no_last_save_model_only", *options, folder=folder, ranks=ranks,
                         env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "HYPERION_SIMULATED_SCHEDULE": "late", **env})
        self.assertEqual(job.codes(), [0] * ranks, job.text())
        digest = warm_start.run([BINARY, "ckpt", "digest", folder / "out/checkpoint/step-5"])
        self.assertEqual(digest.returncode, 0, digest.stderr)
        return [line["loss_metrics/global_avg_loss"] for line in self.metrics(folder)], digest.stdout.splitlines()[-1].split()[0]

    def staged(self, name, ranks, options):
        return self.train(f"{name}, staged", ranks, options, HYPERION_COMM="staged", HYPERION_SIMULATED_GPUS=1)

    def test_stages_and_replicas_on_one_gpu_have_one_ranks_digest(self):
        for name, (ranks, options, alone) in WITH_ONE_RANKS_BITS.items():
            with self.subTest(name):
                self.assertEqual(self.staged(name, ranks, options), self.train(f"{name}, one rank", 1, alone))

    def test_every_mesh_on_one_gpu_has_the_digest_of_the_same_mesh_over_nccl_and_one_ranks_losses(self):
        alone = {}
        for name, (ranks, options) in WITH_NCCLS_BITS.items():
            with self.subTest(name):
                losses, digest = self.staged(name, ranks, options)
                self.assertEqual((losses, digest), self.train(f"{name}, NCCL", ranks, options, HYPERION_SIMULATED_GPUS=ranks))
                model = EXPERTS if EP in options else ()
                if model not in alone:
                    alone[model], _ = self.train(f"{name}, one rank", 1, (*ONE, *model))
                for here, there in zip(losses, alone[model], strict=True):
                    self.assertAlmostEqual(here, there, delta=2e-3)

    def test_what_staging_cannot_do_is_refused(self):
        gpu = {"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "HYPERION_COMM": "staged"}
        self.run_job(code=2, env={"HYPERION_COMM": "staged"}, says=["HYPERION_COMM=staged", "this job runs on CPUs: unset it"])
        self.run_job(code=2, env={**gpu, "HYPERION_COMM": "stages"}, says=['HYPERION_COMM = "stages": expected "staged"'])
        self.run_job("--comm.mode=fake_backend", code=2, env={**gpu, "NGPU": 2}, says=["this is a dry run: unset it"])
        self.run_job(code=2, ranks=2, env={**gpu, "LOCAL_WORLD_SIZE": 1}, says=["this job has several hosts: unset it"])
        job = self.start(ranks=2, env=gpu, env_of={1: {"HYPERION_COMM": ""}})
        self.assertEqual(job.codes(), [2, 2], job.text())
        self.assertIn("HYPERION_COMM=staged", job.text())


if __name__ == "__main__":
    main()
