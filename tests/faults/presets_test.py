"""torchtitan's presets of llama3 8B, 70B and 405B, llama4 and deepseek_v3, unchanged but for data and tokenizer, and ours, as a rank of as many simulated GPUs as
they name, which compute nothing (docs/simulated_gpu.md): they run, and fit into a card of 80 GB with NCCL's communicators, whose memory is not known
well: from 256 MiB to 1.5 GiB each.

    python3 tests/faults/presets_test.py build/hyperion

prints the memory that libtorch's allocator reserves at most. Standard library only.
"""

import json
import os
import re

import warm_start
from jobs import BINARY, ROOT, JobTest, main

PRESETS = ROOT / "tests/unit/trainer/config/presets"
RANKS = {"llama3_70b": 64, "llama3_405b": 128}  # tensor parallel over 8
PIPELINES = {  # preset: ranks, stages' ranks, options; each as a rank of the first and of the last stage
    "tests/unit/trainer/config/presets/llama3_405b.toml": (512, 8, ("--parallelism.pipeline_parallel_degree=8", "--training.local_batch_size=16")),
    "configs/llama3_405b_512gpus.toml": (512, 8, ()),
    "configs/llama3_405b_16384gpus.toml": (16384, 16, ()),
}
EXPERTS = {"llama4_17bx16e": (64, 1), "llama4_17bx128e": (512, 4)}  # ranks, pipeline stages; tensor parallel over 8
EXPERT_PARALLEL = {  # preset: ranks, expert parallel ones
    "tests/unit/trainer/config/presets/deepseek_v3_16b.toml": (8, 8), "configs/qwen3_30b_a3b.toml": (8, 8),
    "configs/gpt_oss_20b.toml": (8, 8), "configs/gpt_oss_120b.toml": (64, 8),
}
CONTEXT_PARALLEL = [  # preset, ranks, ranks that share a sequence, options
    ("configs/llama3_8b_128k.toml", 8, 8, ()),
    ("configs/llama3_8b_128k.toml", 16, 8, ()),
    ("configs/llama3_8b_128k.toml", 16, 16, ("--parallelism.context_parallel_degree=16",)),
    ("tests/unit/trainer/config/presets/llama3_8b.toml", 8, 8, ("--parallelism.context_parallel_degree=8", "--training.seq_len=131072")),
]
OTHERS = {"llama3_8b": 64, "qwen3_0.6b": 1, "qwen3_1.7b": 1, "qwen3_32b": 16}
GIB = 1 << 30
CARD = 79.1 - 0.5  # GiB of a card of 80 GB that libtorch and NCCL share: what it reports without a context
COMMUNICATOR = {"256 MiB": 0.25, "1.5 GiB": 1.5}  # parallel/comm/communicator_memory.h


class Presets(JobTest):
    def setUp(self):
        super().setUp()
        documents = [" ".join(f"Word {i * 7919 + k} is one of many." for k in range(60)) for i in range(400)]
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        warm_start.run([BINARY, "tokenize", self.folder / "text.jsonl", "--out", self.folder / "shards", "--tokenizer",
                        ROOT / "tests/assets/tokenizer"], check=True)

    def dry_run(self, config, ranks, tensor=8, pipeline=1, rank=0, options=(), experts=1, context=1):
        """The log, of a GPU that has what the larger communicators leave."""
        shards = ranks // tensor // pipeline
        communicators = (shards > 1) + (tensor > 1) + 2 * (pipeline > 1) + (experts > 1) + (1 < experts < shards) + (context > 1)
        left = CARD - communicators * COMMUNICATOR["1.5 GiB"]
        job = self.start("--training.steps=3", "--metrics.log_freq=1", "--comm.mode=fake_backend",
                         f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer", f"--training.dataset_path={self.folder}/shards",
                         f"--job.dump_folder={self.folder}/out", *options, config=config,
                         env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "NGPU": ranks, "RANK": rank, "WORLD_SIZE": "",
                              "HYPERION_SIMULATED_GPUS": 8, "HYPERION_SIMULATED_COMPUTE": "off",
                              "HYPERION_SIMULATED_MEMORY": int(left * GIB)})
        self.assertEqual(job.codes(500), [0], job.text())
        self.assertIn(f"pp {pipeline} x dp_replicate 1 x dp_shard {shards // context} x cp {context} x tp {tensor} = {ranks} rank", job.text())
        memory = [float(text) for text in re.findall(r"step:\s+\d+ .*memory:\s+([\d.]+)GiB", job.text())]
        self.assertEqual(len(memory), 3, job.text())
        needed = {name: max(memory) + communicators * size for name, size in COMMUNICATOR.items()}
        print(f"\n{config.name} as rank {rank} of {ranks}: {max(memory):.2f} GiB; with {communicators} communicators of "
              + ", of ".join(f"{name} {total:.1f}" for name, total in needed.items()) + f" of {CARD:.1f}", flush=True)
        self.assertLess(needed["1.5 GiB"], CARD)
        self.reserved = max(memory)
        return job.text()

    def least_memory(self, config, ranks, pipeline_rank, options=()):
        """GiB that `hyperion check` says a rank of the pipeline needs at least."""
        done = warm_start.run([BINARY, "check", config, "--ranks", str(ranks), "--gpu-memory=80", f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer",
                               f"--training.dataset_path={self.folder}/shards", f"--job.dump_folder={self.folder}/out", *options],
                              env=os.environ | {"HYPERION_DEVICE": "cuda"})
        found = re.search(rf"^ *pp rank {pipeline_rank} .*; at least ([\d.]+) GiB", done.stdout, re.MULTILINE)
        self.assertIsNotNone(found, done.stdout + done.stderr)
        return float(found[1])

    def test_presets_of_torchtitan_with_tensor_parallelism_run(self):
        for name, ranks in RANKS.items():
            with self.subTest(preset=name):
                text = self.dry_run(PRESETS / f"{name}.toml", ranks)
                if name == "llama3_405b":
                    self.assertIn("parallelism.enable_async_tensor_parallel: what blocks exchange travels in pieces under their products", text)
                    self.assertIn("compile.enable has no effect on it", text)

    def test_presets_of_torchtitan_with_experts_run(self):
        for name, (ranks, pipeline) in EXPERTS.items():
            with self.subTest(preset=name):
                self.dry_run(PRESETS / f"{name}.toml", ranks, pipeline=pipeline)

    def test_presets_whose_ranks_divide_experts_run(self):
        for name, (ranks, experts) in EXPERT_PARALLEL.items():
            with self.subTest(preset=name):
                text = self.dry_run(ROOT / name, ranks, tensor=1, experts=experts)
                self.assertIn(f"experts: efsdp {ranks // experts} x ep {experts} x etp 1", text)

    def test_the_largest_preset_with_experts_fits_where_a_pipeline_and_expert_parallelism_divide_it(self):
        ranks = 4096  # four shard the experts of each rank of an expert parallel group
        text = self.dry_run(PRESETS / "deepseek_v3_671b.toml", ranks, tensor=1, pipeline=16, experts=64, options=(
            "--parallelism.pipeline_parallel_degree=16", "--parallelism.expert_parallel_degree=64", "--training.local_batch_size=64",
            "--parallelism.pipeline_parallel_microbatch_size=1", "--activation_checkpoint.mode=full"))
        self.assertIn("experts: efsdp 4 x ep 64 x etp 1", text)

    def test_presets_whose_ranks_share_sequences_run(self):
        for name, ranks, context, options in CONTEXT_PARALLEL:
            with self.subTest(preset=name, ranks=ranks, context=context):
                text = self.dry_run(ROOT / name, ranks, tensor=1, context=context, options=options)
                self.assertIn("sequence length 131072", text)

    def test_presets_of_ours_with_tensor_parallelism_run(self):
        for name, ranks in RANKS.items():
            with self.subTest(preset=name):
                self.dry_run(ROOT / "configs" / f"{name}.toml", ranks)

    def test_presets_with_a_pipeline_run_as_ranks_of_their_first_and_last_stages(self):
        for name, (ranks, pipeline, options) in PIPELINES.items():
            for rank in (0, ranks - ranks // pipeline):
                with self.subTest(preset=name, rank=rank):
                    text = self.dry_run(ROOT / name, ranks, pipeline=pipeline, rank=rank, options=options)
                    self.assertIn(f"a dry run of rank {rank} of {ranks:,} ranks", text)
                    least = self.least_memory(ROOT / name, ranks, rank * pipeline // ranks, options)
                    print(f"at least {least:.2f} GiB by `hyperion check`", flush=True)
                    self.assertLessEqual(least, self.reserved)
                    self.assertGreater(least, 0.6 * self.reserved)

    def test_presets_of_ours_without_tensor_parallelism_fit_with_the_larger_communicators(self):
        for name, ranks in OTHERS.items():
            with self.subTest(preset=name):
                self.dry_run(ROOT / "configs" / f"{name}.toml", ranks, tensor=1)


if __name__ == "__main__":
    main()
