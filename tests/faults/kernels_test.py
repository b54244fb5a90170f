"""HYPERION_KERNELS: fused kernels and plain ones on simulated GPUs (docs/simulated_gpu.md): the same losses, the same bits however late
streams are, fewer launches, and one line that says which run.

    python3 tests/faults/kernels_test.py build/hyperion

Standard library only.
"""

import collections

from jobs import ALL, BINARY, JobTest, main

PLAIN = {"HYPERION_KERNELS": "plain"}
FP32 = "--training.mixed_precision_param=float32"
FUSED_LINE = "Kernels: libtorch's fused RMSNorm; our fused residual sum with RMSNorm, RoPE, gated activation, " \
    "latent attention's heads, chunks of keys, parts of attention, router, rows of experts, cross-entropy; plain sum of squares"
PLAIN_LINE = "Kernels of RMSNorm, residual sum with RMSNorm, RoPE, gated activation, latent attention's heads, chunks of keys, parts of attention, router, " \
    "rows of experts, cross-entropy, sum of squares: plain, "
JOBS = {  # what: (ranks, options)
    "one GPU": (1, []),
    "fp32, one GPU": (1, [FP32]),
    "halves of heads turned, norms of queries and keys": (1, ["--model.name=qwen3", "--model.args.head_dim=8", "--model.args.n_kv_heads=2"]),
    "FSDP and tensor parallel": (4, ["--parallelism.tensor_parallel_degree=2", "--training.global_batch_size=8"]),
    "tensor parallel, whole logits": (2, ["--parallelism.tensor_parallel_degree=2", "--parallelism.disable_loss_parallel"]),
    "documents, run again, in several chunks of rows": (2, ["--training.document_mask", "--activation_checkpoint.mode=full",
                                                            "--training.loss_chunk_bytes=65536"]),
}


class Kernels(JobTest):
    def gpu(self, schedule="1", **more):
        return {"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so",
                "HYPERION_SIMULATED_SCHEDULE": schedule, **more}

    def losses(self, name, ranks, options, env):
        folder = self.folder / name
        folder.mkdir()
        self.prepare(folder)
        job = self.start(*options, folder=folder, ranks=ranks, env=env)
        self.assertEqual(job.codes(), [0] * ranks, job.text())
        return [line["loss_metrics/global_avg_loss"] for line in self.metrics(folder) if "loss_metrics/global_avg_loss" in line]

    def test_fused_kernels_train_to_the_losses_of_plain_ones_and_to_the_same_bits_on_every_schedule(self):
        for what, (ranks, options) in JOBS.items():
            plain = self.losses(f"{what}, plain", ranks, options, self.gpu(**PLAIN))
            self.assertEqual(len(plain), 5)
            fused = {}
            for schedule in ("eager", "late", "1") if ALL else ("late", "1"):
                with self.subTest(what, schedule=schedule):
                    fused[schedule] = self.losses(f"{what}, {schedule}", ranks, options, self.gpu(schedule))
                    for here, there in zip(fused[schedule], plain):
                        self.assertAlmostEqual(here, there, delta=2e-3)
            self.assertEqual(len(set(map(tuple, fused.values()))), 1, fused)

    def test_plain_kernels_run_on_a_cpu_to_the_losses_of_fused_ones(self):
        fused, plain = (self.losses(name, 1, [], env) for name, env in (("fused", {}), ("plain", PLAIN)))
        for here, there in zip(fused, plain):
            self.assertAlmostEqual(here, there, delta=2e-3)

    def test_one_line_says_which_kernels_run_and_why_not_the_fused_ones(self):
        for options, env, line in (([], self.gpu(), FUSED_LINE), ([FP32], self.gpu(), FUSED_LINE),
                                   ([], self.gpu(**PLAIN), PLAIN_LINE + "as HYPERION_KERNELS asks"),
                                   ([], PLAIN, PLAIN_LINE + "as HYPERION_KERNELS asks"), ([], {}, "")):
            with self.subTest(options=options, env=env):
                text = self.run_job("--training.steps=1", *options, code=0, env=env).text()
                self.assertEqual(text.count("Kernels"), 1 if line else 0, text)
                self.assertIn(line, text)
                self.assertNotIn("No fused", text)
        self.run_job(code=2, env={"HYPERION_KERNELS": "fast"}, says=["HYPERION_KERNELS=fast: expected auto", "plain"])

    def steady_step(self, *options, **env):
        """What a steady step on one GPU asks of it: line of the trace -> times."""
        counts = []
        for steps in (2, 4):
            trace = self.folder / "trace"
            self.run_job(f"--training.steps={steps}", "--activation_checkpoint.mode=none", *options, code=0,
                         env=self.gpu("eager", HYPERION_SIMULATED_TRACE=trace, **env))
            counts.append(collections.Counter(trace.read_text().splitlines()))
            trace.unlink()
        return {line: times // 2 for line, times in (counts[1] - counts[0]).items()}

    def test_a_fused_step_launches_fewer_kernels_and_calls_each_fused_operator_once_where_it_is_needed(self):
        fused, plain = self.steady_step(), self.steady_step(**PLAIN)
        kernels = [sum(times for line, times in step.items() if line.startswith("kernel")) for step in (fused, plain)]
        self.assertLess(kernels[0], 0.75 * kernels[1])
        blocks = 2
        for operator, times in (("rope_heads", blocks), ("rope_heads_backward", blocks), ("add_rms_norm", blocks),
                                ("add_rms_norm_backward", 2 * blocks), ("gated_activation", blocks),
                                ("gated_activation_backward", blocks), ("cross_entropy_", 1)):
            self.assertEqual(fused.get(f"operator\thyperion::{operator}"), times, fused)
        for operator in ("silu", "silu_backward", "_log_softmax", "rsqrt"):
            self.assertNotIn(f"operator\taten::{operator}", fused)
            self.assertIn(f"operator\taten::{operator}", plain)
        self.assertFalse([line for line in plain if line.startswith("operator\thyperion::")], plain)

    def test_the_heads_rows_run_in_multiples_of_256_where_more_fit(self):
        tokens, bytes_of_row = 2 * 512, 2 * 2048
        for fit, chunks in ((400, tokens // 256), (100, 11), (2000, 1)):
            step = self.steady_step("--training.seq_len=512", f"--training.loss_chunk_bytes={fit * bytes_of_row}")
            self.assertEqual(step["operator\thyperion::cross_entropy_"], chunks, fit)


if __name__ == "__main__":
    main()
