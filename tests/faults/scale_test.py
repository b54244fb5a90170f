"""What a step of llama3 8B asks of the host and of the GPU as rank 0 of 8 to 16,384 ranks, on a simulated GPU that computes nothing
(docs/simulated_gpu.md): that it does not grow with the ranks, nor above the kernels that have been reached.

    python3 tests/faults/scale_test.py build/hyperion

prints a table. Standard library only.
"""

import collections
import json
import subprocess
import time

from jobs import BINARY, ROOT, JobTest, main

WORLDS = (8, 64, 1024, 16384)
SHORT, LONG = 3, 5  # steps of the two jobs whose traces are compared
KERNELS = 1_110  # of a steady step at 8 ranks, as few as have been reached
FP8_KERNELS = 2_470  # the same with FP8 weights gathered in FP8
FP8 = ("--model.converters=float8", "--quantize.linear.float8.enable_fsdp_float8_all_gather=true",
       "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp=true")
LOGGED = (10, 20, 30, 40)  # the steps between which processor time is taken


class Scale(JobTest):
    def setUp(self):
        super().setUp()
        documents = [" ".join(f"Word {i * 7919 + k} is one of many." for k in range(60)) for i in range(2000)]
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        subprocess.run([BINARY, "tokenize", self.folder / "text.jsonl", "--out", self.folder / "shards", "--tokenizer",
                        ROOT / "tests/assets/tokenizer"], check=True, capture_output=True)

    def rank_0_of(self, world, steps, log_freq, *options, **env):
        return self.start(*options, f"--training.steps={steps}", f"--metrics.log_freq={log_freq}", "--activation_checkpoint.mode=none",
                          "--comm.mode=fake_backend", f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer",
                          f"--training.dataset_path={self.folder}/shards", f"--job.dump_folder={self.folder}/out",
                          config=ROOT / "configs/llama3_8b.toml",
                          env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "NGPU": world,
                               "HYPERION_SIMULATED_GPUS": 8, "HYPERION_SIMULATED_COMPUTE": "off", **env})

    def counts(self, world, *options):
        """Kernels and operators of a steady step."""
        found = []
        for steps in (SHORT, LONG):
            trace = self.folder / "trace"
            job = self.rank_0_of(world, steps, 100, *options, HYPERION_SIMULATED_TRACE=trace)
            self.assertEqual(job.codes(300), [0], job.text())
            with trace.open() as lines:
                found.append(collections.Counter(line.split("\t", 1)[0] for line in lines))
            trace.unlink()
        few, many = found
        return [(many[kind] - few[kind]) / (LONG - SHORT) for kind in ("kernel", "operator")]

    def host_seconds(self, world):
        """Processor seconds of the main thread for a steady step: of the quickest ten, because other programs cost time too."""
        job = self.rank_0_of(world, LOGGED[-1] + 1, LOGGED[0])
        process = job.ranks[0][0]
        seconds = []
        for step in LOGGED:
            while f"step: {step} " not in job.text():
                self.assertIsNone(process.poll(), job.text())
                time.sleep(0.005)
            with open(f"/proc/{process.pid}/task/{process.pid}/schedstat") as times:
                seconds.append(int(times.read().split()[0]) * 1e-9)
        self.assertEqual(job.codes(300), [0], job.text())
        return min(after - before for before, after in zip(seconds, seconds[1:])) / LOGGED[0]

    def test_an_fp8_step_has_no_more_kernels_than_have_been_reached(self):
        kernels, operators = self.counts(WORLDS[0], *FP8)
        print(f"\nFP8, {WORLDS[0]} ranks: {kernels:,.0f} kernels, {operators:,.0f} operators", flush=True)
        self.assertLessEqual(kernels, FP8_KERNELS)

    def test_kernels_and_host_time_of_a_step_do_not_grow_with_the_ranks(self):
        rows = {}
        print(f"\n{'ranks':>7} {'kernels':>8} {'operators':>10} {'host seconds':>13}", flush=True)
        for world in WORLDS:
            rows[world] = kernels, operators, seconds = (*self.counts(world), self.host_seconds(world))
            print(f"{world:>7,} {kernels:>8,.0f} {operators:>10,.0f} {seconds:>13.3f}", flush=True)
        kernels, operators, seconds = rows[WORLDS[0]]
        self.assertLessEqual(kernels, KERNELS)
        for world, row in rows.items():
            with self.subTest(world=world):
                self.assertLess(row[0], 1.02 * kernels)
                self.assertLess(row[1], 1.02 * operators)
                self.assertLess(row[2], 1.2 * seconds)


if __name__ == "__main__":
    main()
