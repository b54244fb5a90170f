"""The table of bits: pipelines of 2 and 4 ranks with FSDP and tensor parallelism against the same mesh without a pipeline, which runs the same microbatches
one after the other: losses and norms of 20 steps, and weights and optimizer after them.

    python3 tests/faults/pipeline_bits_test.py build/hyperion

prints a line for each mesh, schedule and precision. Standard library only.
"""

from checkpoints import CheckpointTest
from jobs import main

PRECISIONS = {
    "fp32": ("--training.mixed_precision_param=float32",),
    "bf16": (),
    "FP8 tensorwise": ("--model.converters=quantize.linear.float8", "--quantize.linear.float8.emulate", "--quantize.linear.float8.filter_fqns=output"),
    "MXFP8 rceil": ("--model.converters=quantize.linear.mx", "--quantize.linear.mx.recipe_name=mxfp8_cublas_rceil", "--quantize.linear.mx.emulate",
                    "--quantize.linear.mx.filter_fqns=output"),
}
CASES = (  # ranks of the pipeline, shards, tensor parallel ranks, schedule, precision
    (2, 1, 1, "1F1B", "MXFP8 rceil"), (2, 2, 1, "ZBVZeroBubble", "MXFP8 rceil"), (2, 1, 2, "Interleaved1F1B", "FP8 tensorwise"),
    (4, 2, 1, "1F1B", "bf16"), (4, 2, 1, "Interleaved1F1B", "fp32"), (4, 2, 1, "ZBVZeroBubble", "FP8 tensorwise"),
    (4, 1, 2, "1F1B", "fp32"), (4, 1, 2, "InterleavedZeroBubble", "bf16"), (4, 1, 2, "DualPipeV", "bf16"), (4, 2, 1, "GPipe", "fp32"))
MICROBATCHES, STEPS = 8, 20


class TableOfBits(CheckpointTest):
    def train(self, pipeline, shards, tensor, schedule, precision):
        """Losses, norms, and the digest of the last checkpoint."""
        name = f"{pipeline}.{shards}.{tensor}.{schedule}.{precision}"
        (self.folder / "out" / "metrics.jsonl").unlink(missing_ok=True)
        local = MICROBATCHES if pipeline > 1 else 1
        self.run_job("--model.args.n_layers=6", "--model.args.dim=64", f"--training.steps={STEPS}", f"--training.local_batch_size={local}",
                     f"--training.global_batch_size={MICROBATCHES * shards}", f"--parallelism.pipeline_parallel_degree={pipeline}",
                     f"--parallelism.pipeline_parallel_schedule={schedule}", f"--parallelism.tensor_parallel_degree={tensor}",
                     "--parallelism.fsdp_reshard_after_forward=always", "--checkpoint.interval=1000", "--checkpoint.no_last_save_model_only",
                     f"--checkpoint.folder={name}", *PRECISIONS[precision], ranks=pipeline * shards * tensor, code=0)
        curve = [(line["loss_metrics/global_avg_loss"], line["loss_metrics/global_max_loss"], line["grad_norm"]) for line in self.metrics() if "grad_norm" in line]
        self.assertEqual(len(curve), STEPS)
        return curve, self.tool("digest", self.folder / "out" / name / f"step-{STEPS}").splitlines()[-1].split()[0]

    def test_a_pipeline_has_the_losses_and_weights_of_one_stage_after_20_steps(self):
        alone = {}
        for pipeline, shards, tensor, schedule, precision in CASES:
            key = shards, tensor, precision
            if key not in alone:
                alone[key] = self.train(1, shards, tensor, "1F1B", precision)
            with self.subTest(pipeline=pipeline, shards=shards, tensor=tensor, schedule=schedule, precision=precision):
                curve, digest = self.train(pipeline, shards, tensor, schedule, precision)
                print(f"\nPP {pipeline} x FSDP {shards} x TP {tensor}, {schedule}, {precision}: losses and norms {'equal' if curve == alone[key][0] else 'DIFFER'}, "
                      f"weights {'equal' if digest == alone[key][1] else 'DIFFER'} after {STEPS} steps, loss {curve[-1][0]:.6f}", flush=True)
                self.assertEqual(curve, alone[key][0])
                self.assertEqual(digest, alone[key][1])


if __name__ == "__main__":
    main()
