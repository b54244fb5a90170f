"""The table of bits: pipelines of 2 and 4 ranks with FSDP and tensor parallelism against the same mesh without a pipeline, which runs the same
microbatches one after the other: bits of the losses of 20 steps, of weights and optimizer after them, and norms but for the order in which stages are added up.

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
        lines = self.metrics_of(
            "--model.args.n_layers=6", "--model.args.hidden_dim=64", "--training.seq_len=16", f"--training.steps={STEPS}",
            "--training.local_batch_size=1", f"--training.global_batch_size={MICROBATCHES * shards}",
            f"--parallelism.pipeline_parallel_degree={pipeline}", f"--parallelism.pipeline_parallel_schedule={schedule}",
            f"--parallelism.tensor_parallel_degree={tensor}", "--parallelism.fsdp_reshard_after_forward=always", "--checkpoint.interval=1000",
            "--checkpoint.no_last_save_model_only", f"--checkpoint.folder={name}", *PRECISIONS[precision], ranks=pipeline * shards * tensor)
        steps = [line for line in lines if "grad_norm" in line]
        self.assertEqual(len(steps), STEPS)
        losses = [(line["loss_metrics/global_avg_loss"], line["loss_metrics/global_max_loss"]) for line in steps]
        return losses, [line["grad_norm"] for line in steps], self.tool("digest", self.folder / "out" / name / f"step-{STEPS}").splitlines()[-1].split()[0]

    def test_a_pipeline_has_the_losses_and_weights_of_one_stage_after_20_steps(self):
        alone = {}
        for pipeline, shards, tensor, schedule, precision in CASES:
            key = shards, tensor, precision
            if key not in alone:
                alone[key] = self.train(1, shards, tensor, "1F1B", precision)
            with self.subTest(pipeline=pipeline, shards=shards, tensor=tensor, schedule=schedule, precision=precision):
                losses, norms, digest = self.train(pipeline, shards, tensor, schedule, precision)
                words = ["equal" if one == other else "DIFFER" for one, other in zip((losses, norms, digest), alone[key])]
                print(f"\nPP {pipeline} x FSDP {shards} x TP {tensor}, {schedule}, {precision}: losses {words[0]}, norms {words[1]}, "
                      f"weights {words[2]} after {STEPS} steps; the last loss {losses[-1][0]:.6f}", flush=True)
                self.assertEqual(losses, alone[key][0])
                for norm, other in zip(norms, alone[key][1], strict=True):
                    self.assertAlmostEqual(norm / other, 1, delta=1e-12)
                self.assertEqual(digest, alone[key][2])


if __name__ == "__main__":
    main()
