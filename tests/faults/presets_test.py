"""torchtitan's presets of llama3 70B and 405B, unchanged but for data and tokenizer, as rank 0 of 64 and of 128 simulated GPUs that compute
nothing (docs/simulated_gpu.md): they run, and fit into 80 GiB.

    python3 tests/faults/presets_test.py build/hyperion

prints the memory that libtorch's allocator reserves at most. Standard library only.
"""

import json
import re
import subprocess

from jobs import BINARY, ROOT, JobTest, main

PRESETS = ROOT / "tests/unit/trainer/config/presets"
RANKS = {"llama3_70b": 64, "llama3_405b": 128}


class Presets(JobTest):
    def setUp(self):
        super().setUp()
        documents = [" ".join(f"Word {i * 7919 + k} is one of many." for k in range(60)) for i in range(400)]
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        subprocess.run([BINARY, "tokenize", self.folder / "text.jsonl", "--out", self.folder / "shards", "--tokenizer",
                        ROOT / "tests/assets/tokenizer"], check=True, capture_output=True)

    def dry_run(self, config, ranks):
        job = self.start("--training.steps=3", "--metrics.log_freq=1", "--comm.mode=fake_backend",
                         f"--model.hf_assets_path={ROOT}/tests/assets/tokenizer", f"--training.dataset_path={self.folder}/shards",
                         f"--job.dump_folder={self.folder}/out", config=config,
                         env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "NGPU": ranks,
                              "HYPERION_SIMULATED_GPUS": 8, "HYPERION_SIMULATED_COMPUTE": "off"})
        self.assertEqual(job.codes(500), [0], job.text())
        self.assertIn(f"x dp_shard {ranks // 8} x cp 1 x tp 8 = {ranks} ranks", job.text())
        memory = [float(text) for text in re.findall(r"step:\s+\d+ .*memory:\s+([\d.]+)GiB", job.text())]
        self.assertEqual(len(memory), 3, job.text())
        print(f"\n{config.name} as rank 0 of {ranks}: {max(memory):.2f} GiB", flush=True)
        self.assertLess(max(memory), 80)
        return job.text()

    def test_presets_of_torchtitan_with_tensor_parallelism_run(self):
        for name, ranks in RANKS.items():
            with self.subTest(preset=name):
                text = self.dry_run(PRESETS / f"{name}.toml", ranks)
                if name == "llama3_405b":
                    self.assertIn("parallelism.enable_async_tensor_parallel: what blocks exchange travels in pieces under their products", text)
                    self.assertIn("compile.enable has no effect on it", text)

    def test_presets_of_ours_with_tensor_parallelism_run(self):
        for name, ranks in RANKS.items():
            with self.subTest(preset=name):
                self.dry_run(ROOT / "configs" / f"{name}.toml", ranks)


if __name__ == "__main__":
    main()
