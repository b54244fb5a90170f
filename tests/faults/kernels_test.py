"""HYPERION_KERNELS: fused kernels and plain ones on simulated GPUs (docs/simulated_gpu.md): the same losses, the same bits however late
streams are, fewer launches, and one line that says which run.

    python3 tests/faults/kernels_test.py build/hyperion

Standard library only.
"""

import collections

from jobs import BINARY, JobTest, main

PLAIN = {"HYPERION_KERNELS": "plain"}
FP32 = "--training.mixed_precision_param=float32"
FUSED_LINE = "Kernels: libtorch's fused RMSNorm; our fused residual sum with RMSNorm, RoPE, SwiGLU and cross-entropy"
PLAIN_LINE = "Kernels of norms, RoPE, SwiGLU and cross-entropy: plain, "
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
        self.assertEqual(job.codes(120), [0] * ranks, job.text())
        return [line["loss_metrics/global_avg_loss"] for line in self.metrics(folder) if "loss_metrics/global_avg_loss" in line]

    def test_fused_kernels_train_to_the_losses_of_plain_ones_and_to_the_same_bits_on_every_schedule(self):
        for what, (ranks, options) in JOBS.items():
            plain = self.losses(f"{what}, plain", ranks, options, self.gpu(**PLAIN))
            self.assertEqual(len(plain), 5)
            fused = {}
            for schedule in ("eager", "late", "1"):
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

    def test_a_fused_step_launches_fewer_kernels_and_calls_each_fused_operator_once_where_it_is_needed(self):
        calls, kernels = {}, {}
        for name, env in (("fused", {}), ("plain", PLAIN)):
            counts = []
            for steps in (2, 4):
                trace = self.folder / f"{name}-{steps}"
                self.run_job(f"--training.steps={steps}", "--activation_checkpoint.mode=none", code=0,
                             env=self.gpu("eager", HYPERION_SIMULATED_TRACE=trace, **env))
                counts.append(collections.Counter(trace.read_text().splitlines()))
            calls[name] = {line.split("\t")[1]: (times - counts[0][line]) // 2 for line, times in counts[1].items()
                           if line.startswith("operator") and times > counts[0][line]}
            kernels[name] = sum(times for line, times in (counts[1] - counts[0]).items() if line.startswith("kernel")) // 2
        self.assertLess(kernels["fused"], 0.75 * kernels["plain"], kernels)
        blocks = 2
        for operator, times in (("hyperion::swiglu", blocks), ("hyperion::swiglu_backward", blocks), ("hyperion::cross_entropy_", 1)):
            self.assertEqual(calls["fused"].get(operator), times, calls["fused"])
        for operator in ("aten::silu", "aten::silu_backward", "aten::_log_softmax", "aten::rsqrt"):
            self.assertNotIn(operator, calls["fused"])
            self.assertIn(operator, calls["plain"])
        self.assertFalse([operator for operator in calls["plain"] if operator.startswith("hyperion::")], calls["plain"])


if __name__ == "__main__":
    main()
