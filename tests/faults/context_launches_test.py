"""What context parallelism launches on a GPU, by dry runs of one rank on a simulated one (docs/simulated_gpu.md): as many kernels for every
degree, and exchanges that are started before the attention that hides them.

    python3 tests/faults/context_launches_test.py build/hyperion [all]

Standard library only.
"""

import re
import sys

from jobs import ALL, BINARY, ROOT, JobTest, main

sys.path.insert(0, str(ROOT / "tests/simulated_gpu"))
import step_trace  # noqa: E402

RANKS, LAYERS = 16, 2
RING = "--parallelism.context_parallel_rotate_method=alltoall"
# Kernels, copies and collectives of a block, forward and backward: as few as have been reached.
MORE_OF_A_BLOCK = 19  # than without context parallelism, keys gathered
MORE_OF_TWO_CALLS = 8  # of cuDNN for a part with keys before it: the first part of the first rank has none
MORE_OF_A_RING = 19  # of two ranks, than without context parallelism
MORE_OF_A_STEP = 10  # of a ring: two hops, three attentions and what they are merged and added by


class ContextLaunches(JobTest):
    def step(self, degree, *options):
        """The trace's records of a steady step, in their order."""
        trace = self.folder / "trace"
        trace.unlink(missing_ok=True)
        self.run_job("--training.steps=3", "--metrics.log_freq=100", "--comm.mode=fake_backend", "--activation_checkpoint.mode=none",
                     "--training.seq_len=2048", "--training.local_batch_size=1", f"--parallelism.context_parallel_degree={degree}", *options, code=0,
                     env=step_trace.environment(BINARY.parent, trace, RANKS))
        return step_trace.read_trace(trace)[-1]

    def launches(self, degree, *options):
        """Of a block of the first rank, which sees the most chunks. A collective and a kernel of attention count once, however many kernels
        they are: a fake collective is a few copies, and Flash may divide short work."""
        launches = 0
        for record in self.step(degree, *options):
            if step_trace.is_attention(record):
                launches += 3 if "backward" in record.operator else 1
            elif step_trace.FAKE.match(record.range):
                launches += record.operator == "range"
            else:
                launches += record.kernels + record.copies
        return launches / LAYERS

    def test_a_block_launches_as_many_kernels_for_every_degree(self):
        for options in ((), *((("--training.document_mask",), ("--parallelism.context_parallel_load_balancer=None",)) if ALL else ())):
            with self.subTest(options):
                alone = self.launches(1, *options)
                more = {degree: self.launches(degree, *options) - alone for degree in (2, 8, 16)}
                print(f"\n{' '.join(options) or 'two parts'}: {alone} of a block, more: {more}", flush=True)
                self.assertEqual(len(set(more.values())), 1, more)
                self.assertLessEqual(more[2], MORE_OF_A_BLOCK + (len(options) or MORE_OF_TWO_CALLS))

    def test_a_ring_launches_more_for_every_rank_and_those_of_its_step_alone(self):
        one, two, four, sixteen = (self.launches(degree, *(RING,) * (degree > 1)) for degree in (1, 2, 4, 16))
        print(f"\nring: {two} of a block for two ranks, {(sixteen - four) / 12} more for each that is added", flush=True)
        self.assertLessEqual(two - one, MORE_OF_A_RING)
        self.assertEqual((four - two) / 2, (sixteen - four) / 12)
        self.assertLessEqual((sixteen - four) / 12, MORE_OF_A_STEP)

    def order(self, *options):
        """What the first rank's attention of each block does in a step, forwards then backwards: collectives when they are started, and
        kernels. Copies and merges that follow one another are one "copy"."""
        found = []
        for record in self.step(4, *options):
            exchange = step_trace.FAKE.match(record.range)
            if exchange and record.operator == "range" and " in cp/" in record.range:
                found.append(record.range.split()[1])
            elif step_trace.is_attention(record):
                found.append("backward" if "backward" in record.operator else "forward")
            elif not exchange and re.search("aten::(copy_|add_)$|_keys_$|_parts_$", record.operator) and found and found[-1] != "copy":
                found.append("copy")
        return found

    def test_exchanges_are_started_before_the_attention_that_hides_them(self):
        # The second parts travel under the attention of the first ones, behind which they are first looked at; in backward the gradients of the
        # second ones under that of the first. A second part is two calls of cuDNN.
        forward = ["all_gather", "all_gather", "copy", "forward", "copy", "forward", "forward", "copy"]
        backward = ["all_gather", "all_gather", "copy", "backward", "backward", "copy", "reduce_scatter", "backward", "copy", "reduce_scatter", "copy"]
        self.assertEqual(self.order(), LAYERS * forward + LAYERS * backward)
        # Each hop of the keys under the attention to those that are here, and of gradients under the backward of the next step.
        forward = [*2 * ["transfers", "forward", "copy"], "transfers", "forward", "copy", "forward", "copy"]
        backward = ["transfers", "backward", "copy", "transfers", "copy", "backward", "copy", "transfers",
                    "transfers", "backward", "copy", "transfers", "backward", "copy", "transfers", "copy"]
        self.assertEqual(self.order(RING), LAYERS * forward + LAYERS * backward)


if __name__ == "__main__":
    main()
