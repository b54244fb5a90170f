"""The commands that look at checkpoints, on what a real job wrote: what they refuse, and the sentence they say.

    python3 tests/faults/tools_test.py build/hyperion

Standard library only. The tools' own cases are in tests/unit/checkpoint/tools/.
"""

import json
import shutil
import subprocess

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, ROOT, main


class Tools(CheckpointTest):
    """Steps 3, 6 and 8 in out/checkpoint."""

    def prepare(self, folder):
        super().prepare(folder)
        self.start(folder=folder).codes()

    def run_program(self, *arguments, code=0, says=(), cwd=None):
        """What `hyperion ...` prints, on stdout and stderr, started in the test's folder."""
        done = warm_start.run([BINARY, *map(str, arguments)], stderr=subprocess.STDOUT, cwd=cwd or self.folder)
        self.assertEqual(done.returncode, code, done.stdout)
        for text in says:
            self.assertIn(text, done.stdout)
        return done.stdout

    def without_a_model(self):
        """A DCP folder that does not say which model it is of, as torchtitan writes them."""
        self.tool("convert", self.step(8), self.folder / "hf", "--to=safetensors")
        self.tool("convert", self.folder / "hf", self.folder / "titan" / "step-8", "--to=dcp")
        (self.folder / "titan" / "step-8" / "hyperion.json").unlink()
        return self.folder / "titan" / "step-8"

    def test_convert_takes_the_model_from_a_toml_file(self):
        titan = self.without_a_model()
        self.run_program("ckpt", "convert", titan, "again", "--to=safetensors", code=2, says=["--config"])
        self.run_program("ckpt", "convert", titan, "again", "--to=safetensors", "--config=job.toml")
        self.assertEqual(self.contents(self.folder / "again"), self.contents(self.folder / "hf"))
        self.run_program("ckpt", "convert", titan, "third", "--to=dcp", "--config=job.toml", code=2,
                         says=["--config job.toml: has no use here"])

    def test_what_is_no_checkpoint_is_named_and_so_is_one_near_it(self):
        for command in (("generate", "--prompt=x"), ("eval", "--data=data.jsonl"), ("ckpt", "digest"),
                        ("ckpt", "convert", "--to=safetensors", "new")):
            with self.subTest(command=command):
                where = 2 if command[0] == "ckpt" else 1
                look = lambda path: (*command[:where], path, *command[where:])
                self.run_program(*look("nosuch"), code=2, says=["nosuch: does not exist"])
                self.run_program(*look("out/checkpoint"), code=2,
                                 says=["out/checkpoint: is a folder of checkpoints: give one, such as out/checkpoint/step-8"])
                self.run_program(*look("out"), code=2, says=["did you mean out/checkpoint/step-8?"])

    def test_tokenize_finds_the_default_tokenizer_beside_the_program(self):
        self.run_program("tokenize", "--out=shard", "data.jsonl", says=["200 documents"])

    def test_diff_takes_the_toml_file_on_either_side(self):
        for sides in (("job.toml", self.step(8)), (self.step(8), "job.toml")):
            self.run_program("ckpt", "diff", *sides, says=["equal names, shapes and types: 21 tensors"])

    def test_data_that_is_missing_is_named_by_the_argument(self):
        self.run_program("eval", self.step(8), "--data=nosuch", code=65, says=["--data nosuch: no such file"])
        self.run_program("tokenize", "--out=shard", "nosuch", code=65, says=["INPUT nosuch: no such file"])

    def test_an_export_is_a_model_that_opens_by_its_name(self):
        self.run_program("ckpt", "convert", self.step(8), "model", "--to=safetensors")
        tokenizer = ROOT / "tests" / "assets" / "tokenizer"
        for name in ("tokenizer.json", "tokenizer_config.json"):
            self.assertEqual((self.folder / "model" / name).read_bytes(), (tokenizer / name).read_bytes())
        self.run_program("generate", "model", "--prompt=It was", "--max-tokens=2", says=["It was"])

    def test_an_export_says_where_no_tokenizer_is(self):
        toml = (self.folder / "job.toml").read_text()
        (self.folder / "job.toml").write_text(toml.replace(f"{ROOT}/tests/assets/tokenizer", "gone"))
        self.run_program("ckpt", "convert", self.step(8), "model", "--to=safetensors", "--config=job.toml",
                         says=["its tokenizer, as model.hf_assets_path of job.toml names it, is not there: gone; copy the tokenizer's files into model"])

    def test_a_head_of_its_own_is_never_left_out_of_a_tied_model(self):
        self.run_program("ckpt", "convert", self.step(8), "model", "--to=safetensors")
        config = json.loads((self.folder / "model" / "config.json").read_text())
        (self.folder / "model" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
        head = ["model does not fit its model: unexpected: lm_head.weight holds other numbers than model.embed_tokens.weight",
                "to keep both, set tie_word_embeddings to false in model/config.json"]
        self.run_program("eval", "model", "--data=data.jsonl", "--seq-len=32", code=65, says=head)
        self.run_program("ckpt", "convert", "model", "dcp", "--to=dcp", code=65, says=head)
        hugging_face = ["--checkpoint.folder=tied", "--model.flavor=from_hf", "--checkpoint.initial_load_in_hf",
                        f"--checkpoint.initial_load_path={self.folder}/model"]
        self.run_job(*hugging_face, code=65, says=["does not fit this job: unexpected: lm_head.weight", "tie_word_embeddings to false"])
        # The same of our own format.
        tied = ["--checkpoint.folder=tied", "--model.args.tied", f"--checkpoint.initial_load_path={self.step(3)}"]
        self.run_job(*tied, code=2, says=["model.args.tied: saved false, configured true"])
        self.run_job(*tied, "--checkpoint.on_config_change=override", code=65,
                     says=["unexpected: output.weight holds other numbers than tok_embeddings.weight", "--model.args.tied=false"])
        toml = (self.folder / "job.toml").read_text()
        (self.folder / "tied.toml").write_text(toml.replace("[model.args]", "[model.args]\ntied = true"))
        self.run_program("ckpt", "diff", "tied.toml", self.step(8), code=65, says=["only in B (1)", "output.weight"])
        self.run_program("ckpt", "convert", self.step(8), "again", "--to=safetensors", "--config=tied.toml", code=65,
                         says=["unexpected: output.weight holds other numbers", "model.args.tied = false (--config)"])

    def test_a_checkpoint_that_has_lost_its_manifest_is_not_called_intact(self):
        (self.step(8) / "hyperion.json").unlink()
        text = self.run_program("ckpt", "verify", self.step(8), says=["no damage seen: ", "no manifest (hyperion.json)"])
        self.assertNotIn("intact", text)
        self.run_job("--training.steps=9", "--lr_scheduler.total_steps=9", code=0,
                     says=["step-8 has no hyperion.json, which step-6 beside it has"])

    def test_a_configuration_that_contradicts_the_checkpoint_is_named(self):
        toml = (self.folder / "job.toml").read_text()
        (self.folder / "other.toml").write_text(toml.replace("[model.args]", "[model.args]\nrope_theta = 1e4"))
        evaluate = ["eval", self.step(8), "--data=data.jsonl", "--seq-len=32"]
        self.run_program(*evaluate, "--config=other.toml",
                         says=["the checkpoint says that model.rope_theta is 500000, other.toml that it is 10000, which is used"])
        self.assertNotIn("which is used", self.run_program(*evaluate, "--config=job.toml"))

    def test_a_model_without_its_head_is_named_by_the_key_that_ties_it(self):
        self.run_program("ckpt", "convert", self.step(8), "model", "--to=safetensors")
        file = self.folder / "model" / "model.safetensors"
        file.write_bytes(file.read_bytes().replace(b"lm_head.weight", b"xx_head.weight"))
        text = self.run_program("eval", "model", "--data=data.jsonl", "--seq-len=32", code=65,
                                says=["does not fit its model", "tie_word_embeddings", "1 unexpected"])
        for words in ("this job", "[checkpoint"):
            self.assertNotIn(words, text)

    def test_the_last_save_for_hugging_face_has_its_tokenizer(self):
        self.run_job("--checkpoint.folder=hf", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only",
                     code=0)
        self.run_program("generate", "out/hf/step-8", "--prompt=It was", "--max-tokens=2", says=["It was"])


if __name__ == "__main__":
    main()
