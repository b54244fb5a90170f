"""`hyperion plan` against the trace of a simulated GPU (docs/simulated_gpu.md): launches, bytes and FLOPs of a step by family, and bytes sent by group.

    python3 tests/faults/plan_counts_test.py build/hyperion [all]

Standard library only. What is judged are the counts of trainer/plan/step_work.h; the constants of a card are not in them.
"""

import json
import os
import subprocess
import sys

from jobs import ALL, BINARY, ROOT, JobTest, main

sys.path.insert(0, str(ROOT / "tests/simulated_gpu"))
import step_trace  # noqa: E402

SMALL = "--model.args.n_layers=4"  # of the model's own widths
FP8 = ("--model.converters=quantize.linear.float8",)
GATHERED_FP8 = (*FP8, "--quantize.linear.float8.enable_fsdp_float8_all_gather=true",
                "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp=true")
OP = "--activation_checkpoint.selective_ac_option=op"
EIGHT, MOE, LATENT = "configs/llama3_8b.toml", "configs/qwen3_30b_a3b.toml", "configs/deepseek_v3_16b.toml"
SMALL_MOE = "configs/qwen3_moe_debug.toml"
PIPELINE = ("--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4", "--parallelism.pipeline_parallel_schedule=1F1B")
LOCAL = "--parallelism.expert_parallel_degree=1"  # each rank has all experts
ONCE = "--parallelism.expert_parallel_once_per_node=true"
# Tokens go where the GPU's counts of them say, so these GPUs compute, and the model is small.
ONCE_PER_NODE = ("--parallelism.expert_parallel_degree=16", ONCE, "--debug.moe_force_load_balance=true", "--training.local_batch_size=1", *(
    f"--{key}" for key in ("training.seq_len=1024", "model.args.n_layers=2", "model.args.dim=256", "model.args.n_heads=4", "model.args.n_kv_heads=2",
                           "model.args.head_dim=32", "model.args.num_experts=16", "model.args.top_k=9", "model.args.moe_hidden_dim=16",
                           "model.args.vocab_size=2176")))
JOBS = [  # file, ranks, mode of checkpointing, options; then what is allowed of all bytes, and of a family's
    (EIGHT, 8, "none", ()),
    (EIGHT, 8, "selective", (OP,)),
    (EIGHT, 8, "elementwise", ()),
    (EIGHT, 8, "none", GATHERED_FP8),
    (EIGHT, 16, "full", ("--parallelism.tensor_parallel_degree=2",)),
    (EIGHT, 16, "full", ("--parallelism.tensor_parallel_degree=4", "--parallelism.enable_async_tensor_parallel=true")),
    (EIGHT, 8, "none", ("--parallelism.context_parallel_degree=4",)),
    (EIGHT, 8, "full", ("--parallelism.context_parallel_degree=4", "--parallelism.context_parallel_rotate_method=alltoall")),
    (EIGHT, 8, "full", PIPELINE),
    (MOE, 16, "none", ("--parallelism.expert_parallel_degree=4",)),
    (LATENT, 16, "full", ("--parallelism.expert_parallel_degree=4",)),
    (MOE, 16, "selective", (LOCAL, OP)),
    (SMALL_MOE, 16, "full", ONCE_PER_NODE),
]
MORE = [
    (MOE, 16, "none", (LOCAL,)),
    (MOE, 16, "elementwise", (LOCAL,)),
    (MOE, 16, "full", (LOCAL, "--parallelism.tensor_parallel_degree=2")),
    (MOE, 16, "none", ("--parallelism.expert_parallel_degree=4", "--parallelism.tensor_parallel_degree=2", "--parallelism.expert_tensor_parallel_degree=2")),
    (SMALL_MOE, 16, "none", ONCE_PER_NODE),
    (EIGHT, 8, "full", FP8),
    (EIGHT, 8, "selective", ("--parallelism.tensor_parallel_degree=2", OP)),
    (EIGHT, 8, "selective", ("--parallelism.tensor_parallel_degree=2", "--training.local_batch_size=2", OP)),
    (EIGHT, 16, "full", ("--parallelism.tensor_parallel_degree=4", *GATHERED_FP8)),
    (EIGHT, 16, "full", ("--parallelism.tensor_parallel_degree=4", "--parallelism.enable_async_tensor_parallel=true", *GATHERED_FP8)),
    (EIGHT, 16, "none", ("--parallelism.data_parallel_replicate_degree=2", "--training.global_batch_size=32")),
    (EIGHT, 8, "none", (*PIPELINE, "--parallelism.pipeline_parallel_schedule=Interleaved1F1B")),
    (MOE, 16, "selective", ("--parallelism.expert_parallel_degree=4", "--parallelism.tensor_parallel_degree=2", OP)),
    (MOE, 16, "full", ("--parallelism.expert_parallel_degree=4", "--parallelism.context_parallel_degree=2")),
    (LATENT, 16, "none", ("--parallelism.expert_parallel_degree=8",)),
    (MOE, 16, "full", ("--parallelism.expert_parallel_degree=4", "--parallelism.expert_parallel_slices=2")),
    (LATENT, 16, "selective", ("--parallelism.expert_parallel_degree=4", "--model.args.q_lora_rank=1536", OP)),
]
LAUNCHES_OF = {"products", "products of experts", "attention", "norms", "SwiGLU", "residual adds"}  # others have launches that take no time
ALL_BYTES, OF_FAMILY, OF_LAUNCHES, SMALL_FAMILY, SENT, FLOPS, FEW = 0.02, 0.05, 0.1, 0.02, 0.01, 0.001, 1e-4
PADDED = 0.02  # of products of experts whose groups of rows are padded


class PlanCounts(JobTest):
    def plan(self, file, ranks, options):
        done = subprocess.run([BINARY, "plan", file, f"--gpus={ranks}", "--configured", "--json", *options], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["plans"][0]

    def step(self, file, ranks, rank, options):
        trace = self.folder / "trace"
        trace.unlink(missing_ok=True)
        env = os.environ | step_trace.environment(BINARY.parent, trace, ranks, rank)
        if ONCE in options:
            env |= {"HYPERION_SIMULATED_COMPUTE": "on", "HYPERION_SIMULATED_SCHEDULE": "eager", "LOCAL_WORLD_SIZE": "8"}
        done = subprocess.run([BINARY, "train", file, "--comm.mode=fake_backend", "--training.steps=3", "--comm.speed_check_seconds=0",
                               "--training.dataset=c4_test", f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer", f"--job.dump_folder={self.folder}/out",
                               *options], capture_output=True, text=True, cwd=ROOT, env=env)
        self.assertEqual(done.returncode, 0, done.stdout[-1000:] + done.stderr[-1000:])
        return step_trace.steady_step(trace)

    def test_the_plan_counts_what_a_step_launches_moves_multiplies_and_sends(self):
        for file, ranks, mode, more in JOBS + (MORE if ALL else []):
            options = (SMALL, f"--activation_checkpoint.mode={mode}", *more)
            with self.subTest(file=file, options=options):
                plan = self.plan(file, ranks, options)
                degrees = plan["parallelism"]
                # The last rank of a sequence, all of whose queries see keys of other ranks.
                rank = plan["slowest_stage"] * ranks // degrees["pipeline_parallel_degree"] + (
                    degrees["context_parallel_degree"] - 1) * degrees["tensor_parallel_degree"]
                step = self.step(file, ranks, rank, options)
                counted, sent = step_trace.work_of(step), step_trace.sent_by(step)
                flops_of = {family: PADDED if LOCAL in options and family == step_trace.GROUPED else FLOPS for family in counted}
                for key, allowed in (("bytes", ALL_BYTES), ("flops", max(flops_of.values()))):
                    planned, found = (sum(work) for work in ((row[key] for row in plan["work"].values()), (getattr(row, key) for row in counted.values())))
                    self.assertAlmostEqual(planned / found, 1, delta=allowed, msg=key)
                all_bytes = sum(row.bytes for row in counted.values())
                for family, row in counted.items():
                    if row.bytes > SMALL_FAMILY * all_bytes:
                        self.assertAlmostEqual(plan["work"].get(family, {}).get("bytes", 0) / row.bytes, 1, delta=OF_FAMILY, msg=family)
                        if family in LAUNCHES_OF and file != SMALL_MOE:  # its sums over few rows take one launch
                            self.assertAlmostEqual(plan["work"][family]["launches"] / row.launches, 1, delta=OF_LAUNCHES, msg=f"launches, {family}")
                    if row.flops:
                        self.assertAlmostEqual(plan["work"][family]["flops"] / row.flops, 1, delta=flops_of[family], msg=family)
                for group in sent.keys() - {"world", "pp", "pp_down"}:  # a verdict's number; the schedule's simulation has the transfers
                    if sent[group] > FEW * sum(sent.values()):  # counts of tokens
                        self.assertAlmostEqual(plan["sent_bytes"].get(group, 0) / sent[group], 1, delta=SENT, msg=group)


if __name__ == "__main__":
    main()
