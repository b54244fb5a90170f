"""What a steady step launches, moves and multiplies on a simulated GPU (docs/simulated_gpu.md), by its trace.

    python3 tests/faults/simulated_step_test.py build/hyperion

Standard library only. tests/faults/plan_counts_test.py compares it with what `hyperion plan` counts.
"""

import re
import sys

from jobs import BINARY, ROOT, JobTest, main

sys.path.insert(0, str(ROOT / "tests/simulated_gpu"))
import step_trace  # noqa: E402

LAYERS, TOKENS, WORLD = 2, 2 * 32, 8
WIDTH, HIDDEN, VOCABULARY = 32, 768, 2048  # of the folder's job: jobs.TOML
PARAMETERS = 286_880  # as the program's log says
PRODUCTS = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN) + WIDTH * VOCABULARY  # parameters that are multiplied with
# Of a block of the small model without checkpointing, forward and backward: as few as have been reached.
KERNELS_OF_A_BLOCK = 33
KERNELS_OF_BIASES = 2  # of a block, more with biases of attention: the gradients of those of wq, wk and wv, and of wo's
KERNELS_OF_FLOAT8_BIASES = 8  # of products that are not packed and leave the biases to a kernel
KERNELS_OF_A_STAGE = 6  # of a pipeline, that a microbatch needs besides those of its units


class SimulatedStep(JobTest):
    def step(self, *options, mode="none", rank=0):
        """The records of a steady step of the folder's job as a rank of 8."""
        trace = self.folder / "trace"
        trace.unlink(missing_ok=True)
        self.run_job("--training.steps=3", "--metrics.log_freq=100", "--comm.mode=fake_backend", f"--activation_checkpoint.mode={mode}",
                     "--activation_checkpoint.selective_ac_option=op", *options, code=0, env=step_trace.environment(BINARY.parent, trace, WORLD, rank))
        self.trace = trace.read_text().splitlines()
        return step_trace.steady_step(trace)

    def sum(self, step, key, expression=""):
        return sum(times * getattr(record, key) for record, times in step.items() if expression in record.operator)

    def test_flops_of_products_and_attention_are_the_models(self):
        forward = 4 * 2 * 32 * 32 * WIDTH // 2  # two products over half of the pairs of tokens, of two sequences
        for options, repeated in (([], {"none": 0, "full": 1}), (["--model.converters=float8"], {"none": 0})):
            for mode, times in repeated.items():
                with self.subTest(options=options, mode=mode):
                    step = self.step(*options, mode=mode)
                    attention = self.sum(step, "flops", "attention")
                    again = times * LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)  # the last product is not needed again
                    self.assertEqual(self.sum(step, "flops") - attention, TOKENS * (6 * PRODUCTS + 2 * again))
                    self.assertEqual(attention, LAYERS * forward * (3.5 + times))
                    dtypes = {record.dtype for record in step if record.flops and "attention" not in record.operator}
                    self.assertEqual(dtypes, {"fp8", "fp8_slow"} if options else {"bf16"})

    def test_products_of_gradients_in_fp8_are_the_two_thirds_that_accumulate_slowly(self):
        step = self.step("--model.converters=float8")
        flops = {dtype: sum(times * record.flops for record, times in step.items() if record.dtype == dtype) for dtype in ("fp8", "fp8_slow")}
        self.assertEqual(flops, {"fp8": TOKENS * 2 * PRODUCTS, "fp8_slow": TOKENS * 4 * PRODUCTS})

    def test_bytes_of_an_update_and_of_collectives_are_those_of_the_shard(self):
        step = self.step()
        adam = [record for record in step if "_fused_adamw_" in record.operator]
        shard = PARAMETERS // WORLD
        # Weight and both moments read and written, the gradient read, and written too where Adam clips it.
        clips = not any(record.operator == "aten::mul_" and record.range == "gradient clipping" and record.sizes for record in step)
        self.assertAlmostEqual(sum(record.read + record.written for record in adam) / shard, 32 if clips else 28, delta=0.1)
        # bf16 weights of blocks gathered twice, of embedding and head once, and fp32 gradients scattered.
        ends = 2 * WIDTH * VOCABULARY + WIDTH
        sent = (2 * (2 * PARAMETERS - ends) + 4 * PARAMETERS) * (WORLD - 1) / WORLD
        self.assertAlmostEqual(step_trace.sent_by(step)["fsdp"] / sent, 1, delta=1e-3)
        sums = 3  # of one number: labels, gradient norm, verdict
        collectives = sum(times for record, times in step.items() if record.operator == "range" and step_trace.FAKE.match(record.range))
        self.assertEqual(collectives, 2 * LAYERS + 2 + LAYERS + 2 + sums)

    def test_a_stage_launches_few_kernels_a_microbatch_more_than_its_blocks_without_a_pipeline(self):
        def launches(*options, batch, ranks=(0,)):
            """Of one microbatch more, on the ranks together, but for gathers, which only the job without a pipeline has in each."""
            def of(many):
                return sum(times * (record.kernels + record.copies) for rank in ranks for record, times in self.step(*options, *batch(many), rank=rank).items()
                           if not re.match("fake (all_gather|reduce_scatter)", record.range))
            return (of(6) - of(4)) / 2
        alone = launches("--parallelism.fsdp_reduce_gradients=once_per_step",
                         batch=lambda many: ("--training.local_batch_size=1", f"--training.global_batch_size={WORLD * many}"))
        for schedule, stages in (("1F1B", 2), ("ZBVZeroBubble", 4)):
            with self.subTest(schedule=schedule):
                piped = launches("--parallelism.pipeline_parallel_degree=2", f"--parallelism.pipeline_parallel_schedule={schedule}", ranks=(0, WORLD - 1),
                                 batch=lambda many: (f"--training.local_batch_size={many}", f"--training.global_batch_size={WORLD // 2 * many}"))
                print(f"\n{schedule}: {(piped - alone) / stages:.1f} kernels of a stage and microbatch", flush=True)
                self.assertLessEqual((piped - alone) / stages, KERNELS_OF_A_STAGE)

    def test_every_kernel_of_a_step_is_counted_and_nearly_all_bytes_have_a_family(self):
        for mode in ("none", "selective"):
            step = self.step(mode=mode)
            optimizers = [i for i, line in enumerate(self.trace) if line == "range\toptimizer"]
            lines = sum(line.startswith("kernel\t") for line in self.trace[optimizers[-2]:optimizers[-1]])
            collectives = sum(times * record.kernels for record, times in step.items() if record.range.startswith("fake "))
            work = step_trace.work_of(step)
            self.assertEqual(self.sum(step, "kernels"), lines)
            self.assertLess(collectives, lines)
            self.assertLess(work[step_trace.OTHER].bytes, 0.02 * sum(row.bytes for row in work.values()))

    def test_a_block_launches_no_more_kernels_than_has_been_reached(self):
        work = step_trace.work_of(self.step())
        blocks = {family: row.launches / LAYERS for family, row in work.items() if family in step_trace.OF_BLOCKS}
        self.assertGreater(blocks["products"], 6)
        self.assertLessEqual(sum(blocks.values()), KERNELS_OF_A_BLOCK, blocks)

    def test_products_add_biases_and_each_gradient_of_a_product_is_one_kernel(self):
        for options, more in (((), KERNELS_OF_BIASES), (("--model.converters=float8",), KERNELS_OF_FLOAT8_BIASES)):
            plain, biased = (self.step(*options, *biases) for biases in ((), ("--model.args.qkv_bias", "--model.args.output_bias")))
            self.assertEqual(self.sum(biased, "kernels") - self.sum(plain, "kernels"), more * LAYERS, options)


if __name__ == "__main__":
    main()
