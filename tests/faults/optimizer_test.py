"""Parameter groups and Muon in whole jobs: what they log and store, and resumes on another mesh.

    python3 tests/faults/optimizer_test.py build/hyperion

Standard library only.
"""

import shutil

from checkpoints import CHECKPOINT_TOML, CheckpointTest
from jobs import main

MESHES = {"1": (1, []), "fsdp2": (2, []), "tp2": (2, ["--parallelism.tensor_parallel_degree=2"]),
          "pp2": (2, ["--parallelism.pipeline_parallel_degree=2", "--parallelism.pipeline_parallel_microbatch_size=1"])}


class Optimizers(CheckpointTest):
    toml = CHECKPOINT_TOML + """
[optimizer]
name = "Muon"
lr = 0.01
decay_norms_and_biases = false

[optimizer.muon]
ns_dtype = "float32"

[[optimizer.groups]]
name = "tables"
match = ["tok_embeddings.weight", "output.weight"]
lr_scale = 0.5
weight_decay = 0.0
"""

    def train(self, mesh, *options, code=0, says=()):
        ranks, more = MESHES[mesh]
        return self.run_job("--training.mixed_precision_param=float32", "--lr_scheduler.total_steps=8", *more, *options,
                            ranks=ranks, code=code, says=list(says))

    def test_a_run_of_muon_goes_on_on_any_mesh(self):
        self.check_resumed_curve(("1", 2), ("fsdp2", 4), ("tp2", 6), ("pp2", 8))

    def test_groups_are_logged_stored_and_compared(self):
        self.train("fsdp2", says=["Optimizer: group tables: 2 parameters", "learning rate x 0.5, weight decay 0, betas",
                                  "Optimizer: group default: "])
        rows = [row for row in self.metrics() if "lr/tables" in row]
        self.assertTrue(rows)
        for row in rows:
            self.assertEqual(row["lr/tables"], 0.5 * row["lr"])
        listed = self.contents(self.step(8))
        self.assertIn("optimizer.state.layers.0.attention.wq.weight.momentum_buffer", listed)
        self.assertIn("optimizer.state.tok_embeddings.weight.exp_avg", listed)
        self.assertNotIn("optimizer.state.layers.0.attention.wq.weight.exp_avg", listed)
        text = self.train("1", "--training.steps=9", "--optimizer.muon.momentum=0.9", code=2).text()
        self.assertIn("optimizer.muon.momentum: saved 0.95, configured 0.9", text)

    def test_states_in_bf16_are_saved_and_go_on_by_the_same_bits(self):
        rounded = "--optimizer.state_dtype=bfloat16"
        self.train("1", rounded, says=["optimizer states bfloat16 (rounded stochastically)"])
        whole = self.contents(self.step(8))
        self.assertRegex(self.tool("ls", self.step(8)), r"(?m)^optimizer .*bfloat16")
        shutil.rmtree(self.step(8))
        self.train("1", rounded, says=["Training starts at step 7"])
        again = self.contents(self.step(8))
        self.assertEqual({key: again[key] for key in again if key.startswith(("optimizer.state.", "layers."))},
                         {key: whole[key] for key in whole if key.startswith(("optimizer.state.", "layers."))})
        self.train("fsdp2", "--training.steps=9", "--lr_scheduler.total_steps=9", code=2, says=["optimizer.state_dtype: saved bfloat16, configured float32"])
        self.train("fsdp2", "--training.steps=9", "--lr_scheduler.total_steps=9", "--checkpoint.on_config_change=override", "--checkpoint.allow_dtype_cast",
                   says=["optimizer.state_dtype: taking float32 from the configuration (saved: bfloat16)"])
        self.assertNotRegex(self.tool("ls", self.step(9)), r"(?m)^optimizer .*bfloat16")

    def test_what_cannot_be_is_refused(self):
        self.train("1", "--training.enable_cpu_offload", code=2, says=["Muon", "training.enable_cpu_offload"])
        toml = self.folder / "job.toml"
        toml.write_text(toml.read_text().replace("output.weight", "outptu.weight"))
        self.train("1", code=2, says=["outptu.weight", "did you mean output.weight?"])


if __name__ == "__main__":
    main()
