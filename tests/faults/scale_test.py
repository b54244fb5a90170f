"""What a step of llama3 8B asks of the host and of the GPU as rank 0 of 8 to 16,384 ranks, on a simulated GPU that computes nothing
(docs/simulated_gpu.md): that it does not grow with the ranks, nor above the kernels that have been reached.

    python3 tests/faults/scale_test.py build/hyperion

prints a table. Standard library only.
"""

import json
import re
import signal

import warm_start
from jobs import BINARY, ROOT, JobTest, main

# Ranks, and the replicas that they are. Of 16,384 ranks without replicas many have no row of a weight: its products are not packed.
WORLDS = ((8, 1), (64, 1), (1024, 1), (16384, 16), (16384, 1))
SHORT, LONG = 3, 5  # steps of the two jobs whose traces are compared
KERNELS = 1_105  # of a steady step at 8 ranks, as few as have been reached
UNPACKED = 1_210  # of them the job's own where products are not packed
# Those of 8 ranks with FP8 weights gathered in FP8. Each of the 11 casts of a block looks for its own amax: the kernels of a norm and of
# SwiGLU do not pass on that of their result, which would be 3 launches fewer of a block.
FP8_KERNELS = 2_555
FP8 = ("--model.converters=float8", "--quantize.linear.float8.enable_fsdp_float8_all_gather=true",
       "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp=true")
# The fake backend's gathers, which copy 16, 8 or 1 bytes at a time: one launch or two for the slots of few ranks, one for each weight
# for those of many, where NCCL has one. Nothing else copies such elements.
FAKE_COPY = re.compile("direct_copy_kernel_cuda.*(complexIdE|EUllE|EUlhE)|UnaryOpFunctorIN3c107complexIdE")
TIMED = (10, 20, 30, 40)  # the steps in which the job stops itself, so that its processor time is taken


class Scale(JobTest):
    def setUp(self):
        super().setUp()
        documents = [" ".join(f"Word {i * 7919 + k} is one of many." for k in range(60)) for i in range(2000)]
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        warm_start.run([BINARY, "tokenize", self.folder / "text.jsonl", "--out", self.folder / "shards", "--tokenizer",
                        ROOT / "tests/assets/tokenizer"], check=True)

    def rank_0_of(self, world, steps, log_freq, *options, **env):
        ranks, replicas = world
        return self.start(*options, f"--parallelism.data_parallel_replicate_degree={replicas}", f"--training.steps={steps}",
                          f"--metrics.log_freq={log_freq}", "--activation_checkpoint.mode=none",
                          "--comm.mode=fake_backend", f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer",
                          f"--training.dataset_path={self.folder}/shards", f"--job.dump_folder={self.folder}/out",
                          config=ROOT / "configs/llama3_8b.toml",
                          env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "NGPU": ranks,
                               "HYPERION_SIMULATED_GPUS": 8, "HYPERION_SIMULATED_COMPUTE": "off", **env})

    def counts(self, world, *options):
        """Kernels of a steady step, those of them that are not the fake backend's copies, and operators."""
        found = []
        for steps in (SHORT, LONG):
            trace = self.folder / "trace"
            job = self.rank_0_of(world, steps, 100, *options, HYPERION_SIMULATED_TRACE=trace)
            self.assertEqual(job.codes(600), [0], job.text())
            lines = trace.read_text().splitlines()
            trace.unlink()
            kernels = [line for line in lines if line.startswith("kernel\t")]
            found.append((len(kernels), sum(not FAKE_COPY.search(kernel) for kernel in kernels),
                          sum(line.startswith("operator\t") for line in lines)))
        return [(many - few) / (LONG - SHORT) for few, many in zip(*found)]

    def host_seconds(self, world):
        """Processor seconds of the main thread for a steady step: of the quickest ten, because other programs cost time too."""
        faults = ",".join(f"point=step.opt;nth={step};action=stop" for step in TIMED)
        job = self.rank_0_of(world, TIMED[-1] + 1, TIMED[0], "--allow-faults", FAULT=faults)
        process = job.ranks[0][0]
        seconds = []
        for time in range(len(TIMED)):
            job.wait_for_stop(0, times=time + 1)
            with open(f"/proc/{process.pid}/task/{process.pid}/schedstat") as times:
                seconds.append(int(times.read().split()[0]) * 1e-9)
            process.send_signal(signal.SIGCONT)
        self.assertEqual(job.codes(600), [0], job.text())
        return min(after - before for before, after in zip(seconds, seconds[1:])) / TIMED[0]

    def test_an_fp8_step_has_no_more_kernels_than_have_been_reached(self):
        kernels, _, operators = self.counts(WORLDS[0], *FP8)
        print(f"\nFP8, {WORLDS[0][0]} ranks: {kernels:,.0f} kernels, {operators:,.0f} operators", flush=True)
        self.assertLessEqual(kernels, FP8_KERNELS)

    def test_kernels_and_host_time_of_a_step_do_not_grow_with_the_ranks(self):
        rows = {}
        print(f"\n{'ranks':>7} {'replicas':>9} {'kernels':>8} {'own kernels':>12} {'operators':>10} {'host seconds':>13}", flush=True)
        for world in WORLDS:
            rows[world] = every, own, operators, seconds = (*self.counts(world), self.host_seconds(world))
            print(f"{world[0]:>7,} {world[1]:>9,} {every:>8,.0f} {own:>12,.0f} {operators:>10,.0f} {seconds:>13.3f}", flush=True)
        few = rows[WORLDS[0]]
        self.assertLessEqual(few[0], KERNELS)
        for world, (_, own, operators, seconds) in rows.items():
            with self.subTest(world=world):
                self.assertLess(own, 1.02 * few[1] if world != WORLDS[-1] else UNPACKED)
                self.assertLess(operators, 2 * few[2])
                self.assertLess(seconds, 1.2 * few[3])


if __name__ == "__main__":
    main()
