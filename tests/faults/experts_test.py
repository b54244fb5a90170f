"""Models with experts on the real program: bf16 with documents, averages and validation, and what generates and evaluates them.

    python3 tests/faults/experts_test.py build/hyperion

Standard library only.
"""

import shutil
import subprocess

from checkpoints import CHECKPOINT_TOML, CheckpointTest
from jobs import ALL, BINARY, PATIENCE, main

ARGS = {
    "deepseek_v3": """
hidden_dim = 48
n_dense_layers = 1
num_experts = 4
moe_hidden_dim = 16
num_shared_experts = 1
top_k = 2
score_func = "sigmoid"
kv_lora_rank = 16
q_lora_rank = 12
qk_nope_head_dim = 8
qk_rope_head_dim = 4
v_head_dim = 8
rope_original_length = 16
""",
    "qwen3": """
hidden_dim = 48
n_kv_heads = 2
head_dim = 8
num_experts = 4
moe_hidden_dim = 16
top_k = 2
""",
    "llama4": """
hidden_dim = 48
num_experts = 4
moe_hidden_dim = 16
moe_every = 1
top_k = 1
""",
}
FLAVORS = {"deepseek_v3": "debugmodel", "qwen3": "debugmodel_moe", "llama4": "debugmodel"}


class Experts(CheckpointTest):
    def prepare(self, folder):
        super().prepare(folder)
        self.job_file = folder / "job.toml"
        self.plain = self.job_file.read_text()

    def use(self, family):
        model = f'[model]\nname = "{family}"\nflavor = "{FLAVORS[family]}"\n'
        self.job_file.write_text(self.plain.replace("[model]\n", model).replace("n_heads = 4\n", "n_heads = 4" + ARGS[family]))

    def program(self, *arguments, code=0):
        done = subprocess.run([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=PATIENCE, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def test_forced_balance_is_compared_on_a_resume_by_a_start_and_by_a_check(self):
        self.use("qwen3")
        forced, curve = "--debug.moe_force_load_balance", "--lr_scheduler.total_steps=8"
        self.run_job("--training.steps=1", curve, forced, code=0)
        self.program("check", "job.toml", curve, forced)
        self.assertIn("debug.moe_force_load_balance: saved true, configured false", self.program("check", "job.toml", curve, code=2))
        self.run_job("--training.steps=2", curve, code=2, says=["debug.moe_force_load_balance: saved true, configured false"])

    def test_each_family_trains_in_bf16_inside_documents_and_generates_by_weights_and_averages(self):
        for family in ARGS if ALL else ["deepseek_v3"]:
            with self.subTest(family=family):
                self.use(family)
                options = ("--training.document_mask", "--training.mixed_precision_param=bfloat16", "--optimizer.lr=1e-2", "--ema.enable")
                self.run_job(f"--checkpoint.folder={family}", *options, "--ema.validate_with_ema", "--validation.enable",
                             "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.freq=1",
                             "--validation.steps=1", code=0)
                rows = [line for line in self.metrics() if "grad_norm" in line][-8:]
                self.assertLess(rows[-1]["loss_metrics/global_avg_loss"], rows[0]["loss_metrics/global_avg_loss"])
                for row in rows:
                    self.assertGreaterEqual(row["experts/busiest_over_mean"], 1)
                    self.assertLessEqual(row["experts/idlest_over_mean"], 1)
                    self.assertEqual(row["experts/worst_layer"] if family == "deepseek_v3" else 1, 1)  # its block 0 has none
                step = self.folder / "out" / family / "step-8"
                names = self.contents(step)
                self.run_job("--checkpoint.folder=without", *options, code=0)  # validation: its tokens are no expert's load
                self.assertEqual(names, self.contents(self.folder / "out/without/step-8"))
                shutil.rmtree(self.folder / "out/without")
                self.assertIn("layers.1.moe.expert_bias", names)
                self.assertIn("ema.layers.1.moe.experts.w1", names)
                self.assertNotIn("ema.layers.1.moe.expert_bias", names)
                prompt = ["--prompt=It was", "--max-tokens=3"]
                self.assertIn("It was", self.program("generate", step, *prompt))
                self.assertIn("It was", self.program("generate", step, "--ema", *prompt))
                for more in ([], ["--ema"]):
                    self.assertIn("perplexity", self.program("eval", step, "--data=data.jsonl", "--seq-len=32", *more))


if __name__ == "__main__":
    main()
