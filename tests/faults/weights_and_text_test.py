"""Where weights meet text: which model and tokenizer a checkpoint says it is of, and what is said when the tokenizer or
the data are others.

    python3 tests/faults/weights_and_text_test.py build/hyperion

Standard library only. Every way out that a message names is tried.
"""

import json
import re
import shutil
import subprocess

import warm_start
from checkpoints import CheckpointTest, printed_options
from jobs import BINARY, PATIENCE, ROOT, JobTest, main

TOKENIZER = ROOT / "tests" / "assets" / "tokenizer"


class TextTest(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.other = self.copy_tokenizer("other", {"bos_token": "<|begin_of_text|>"})  # the same file, without EOS

    def copy_tokenizer(self, name, config):
        folder = self.folder / name
        shutil.copytree(TOKENIZER, folder)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    def run_program(self, *arguments, code=0, says=()):
        done = warm_start.run([BINARY, *map(str, arguments)], stderr=subprocess.STDOUT, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout)
        for text in says:
            self.assertIn(text, done.stdout)
        return done.stdout

    def generate(self, checkpoint, *options, **expected):
        return self.run_program("generate", checkpoint, "--prompt=It was", "--max-tokens=2", *options, **expected)

    def without_record(self, step):
        """As checkpoints of before were, and as other programs' are: without hyperion.json."""
        old = self.folder / "old" / step.name
        shutil.copytree(step, old)
        (old / "hyperion.json").unlink()
        return old


class Model(TextTest):
    """The default last save is the weights alone: it says which model it is of, as every other save does."""

    default = ["--checkpoint.last_save_model_only"]

    def test_the_default_last_save_generates_and_evaluates_and_converts_with_nothing_else_named(self):
        self.run_job(*self.default, code=0)
        for step in (3, 8):
            self.generate(self.step(step), says=["It was"])
        self.assertEqual(self.manifest(8)["kind"], "model")
        self.run_program("eval", self.step(8), "--data=data.jsonl", says=["perplexity"])  # with sequences of 2048
        self.run_program("ckpt", "convert", self.step(8), "model", "--to=safetensors")
        self.generate("model", says=["It was"])

    def test_a_seed_and_converted_checkpoints_say_which_model_they_are_of(self):
        self.run_job("--checkpoint.create_seed_checkpoint", *self.default, code=0)
        self.run_program("ckpt", "convert", self.step(0), "model", "--to=safetensors", "--dtype=bfloat16")
        self.run_program("ckpt", "convert", "model", "back/step-0", "--to=dcp")
        self.run_program("ckpt", "convert", "back/step-0", "again/step-0", "--to=dcp", "--dtype=float32")
        self.run_program("ckpt", "convert", "model", "small", "--to=safetensors", "--dtype=float16")
        self.assertEqual(json.loads((self.folder / "small/config.json").read_text())["dtype"], "float16")
        for checkpoint in (self.step(0), "model", "back/step-0", "again/step-0", "small"):
            self.generate(checkpoint, says=["It was"])
            self.generate(checkpoint, f"--tokenizer={self.other}", code=2, says=["trained with another tokenizer"])

    def test_a_full_save_of_before_still_names_its_model(self):
        self.run_job("--training.steps=3", code=0)
        self.generate(self.without_record(self.step(3)), says=["could not be compared", "It was"])

    def test_eval_prints_json_alone_whatever_is_said_about_the_checkpoint(self):
        self.run_job("--training.steps=3", code=0)
        done = warm_start.run([BINARY, "eval", self.without_record(self.step(3)), "--data=data.jsonl", "--seq-len=32",
                               "--json", f"--tokenizer={self.other}"],
                              cwd=self.folder)
        self.assertGreater(json.loads(done.stdout)["tokens"], 0)
        for text in ("could not be compared", "names no EOS"):
            self.assertIn(text, done.stderr)

    def test_weights_alone_of_before_need_their_toml_file(self):
        self.run_job(*self.default, code=0)
        old = self.without_record(self.step(8))
        self.generate(old, code=2, says=["does not say which model it is of", "--config"])
        self.generate(old, "--config=job.toml", says=["could not be compared", "It was"])

    def test_an_export_stops_where_the_tokenizer_says_and_has_the_positions_of_the_model(self):
        self.run_job("--checkpoint.last_save_in_hf", "--model.args.max_seq_len=40", *self.default, code=0)
        self.run_program("ckpt", "convert", self.step(6), "model", "--to=safetensors")
        shutil.copytree(self.step(8), self.folder / "last")
        tokens = {token["content"]: token["id"] for token in
                  json.loads((TOKENIZER / "tokenizer.json").read_text())["added_tokens"]}
        for folder in ("last", "model"):
            config, generation = (json.loads((self.folder / folder / name).read_text())
                                  for name in ("config.json", "generation_config.json"))
            for values in (config, generation):
                self.assertEqual(values["bos_token_id"], tokens["<|begin_of_text|>"])
                self.assertEqual(values["eos_token_id"], tokens["<|end_of_text|>"])
            self.assertEqual(config["max_position_embeddings"], 40)
            self.generate(folder, f"--tokenizer={self.other}", code=2, says=["trained with another tokenizer"])
        self.run_program("ckpt", "convert", "last", "again/step-8", "--to=dcp")
        self.generate("again/step-8", says=["It was"])

    def test_a_longer_text_than_the_model_has_positions_is_refused(self):
        self.run_job("--model.args.max_seq_len=32", *self.default, code=0)
        self.run_program("generate", self.step(8), f"--prompt={'It was ' * 40}", code=2, says=["the model's 32 positions"])

    def test_an_export_leaves_out_a_tokenizer_that_the_weights_were_not_trained_with(self):
        own = self.copy_tokenizer("own", json.loads((TOKENIZER / "tokenizer_config.json").read_text()))
        self.run_job(f"--model.hf_assets_path={own}", *self.default, code=0)
        shutil.copy(self.other / "tokenizer_config.json", own)
        self.run_program("ckpt", "convert", self.step(8), "model", "--to=safetensors",
                         says=["is not the tokenizer that the weights were trained with"])
        self.assertFalse((self.folder / "model" / "tokenizer.json").exists())


class Imported(TextTest):
    """What the folder of a Hugging Face model says beyond what is computed with comes back with the weights."""

    config = {"eos_token_id": [1, 7, 9], "pad_token_id": 3, "initializer_range": 0.01, "use_cache": False,
              "max_position_embeddings": 4096, "unknown": {"deep": [1.5, None, "\u00fc"]}, "layer_types": ["full_attention"] * 2}
    generation = {"eos_token_id": [1, 7, 9], "do_sample": True, "temperature": 0.6, "top_p": 0.9, "transformers_version": "4"}
    differs = "eos_token_id is 1, 7, 9, as imported; the tokenizer's is "
    shorter = "max_position_embeddings is 4096, as imported; the weights were last trained with sequences of 32 tokens"

    def setUp(self):
        super().setUp()
        self.run_job("--training.steps=1", "--checkpoint.folder=first", code=0)
        self.model = self.folder / "model"
        self.run_program("ckpt", "convert", self.folder / "out" / "first" / "step-1", self.model, "--to=safetensors")
        shutil.rmtree(self.folder / "out")
        self.write("config.json", {**json.loads((self.model / "config.json").read_text()), **self.config})
        self.write("generation_config.json", self.generation)
        self.import_it = ["--checkpoint.initial_load_in_hf", f"--checkpoint.initial_load_path={self.model}"]

    def write(self, name, value):
        (self.model / name).write_text(json.dumps(value))

    def convert(self, source, destination, *options, **expected):
        return self.run_program("ckpt", "convert", source, destination, *options, **expected)

    def assert_kept(self, folder, **changed):
        config = json.loads((self.folder / folder / "config.json").read_text())
        expected = {**json.loads((self.model / "config.json").read_text()), **changed}
        self.assertEqual(config, expected)
        self.assertEqual(json.loads((self.folder / folder / "generation_config.json").read_text()), self.generation)

    def test_settings_come_back_after_a_resume_of_a_resume_on_other_meshes(self):
        more = ["--lr_scheduler.total_steps=4"]
        self.run_job(*self.import_it, *more, "--training.steps=2", ranks=2, code=0)
        self.model.rename(self.folder / "away")
        self.run_job(*more, "--training.steps=3", code=0)
        self.run_job(*more, "--training.steps=4", "--parallelism.tensor_parallel_degree=2", "--checkpoint.last_save_in_hf",
                     "--checkpoint.last_save_model_only", ranks=2, code=0, says=[self.differs, self.shorter])
        self.run_job("--checkpoint.folder=new", f"--checkpoint.initial_load_path={self.step(3)}", "--training.steps=1", code=0)
        self.convert(self.step(3), "from_full", "--to=safetensors", says=[self.differs, self.shorter])
        self.convert(self.folder / "out/new/step-1", "from_new", "--to=safetensors")
        (self.folder / "away").rename(self.model)
        for folder in (self.step(4), "from_full", "from_new"):
            self.assert_kept(folder)

    def test_settings_come_back_from_a_conversion(self):
        self.convert(self.model, "first/step-1", "--to=dcp")
        self.convert("first/step-1", "second/step-1", "--to=dcp", "--dtype=bfloat16")
        self.convert("second/step-1", "back", "--to=safetensors", "--dtype=float32", says=[self.differs])
        self.convert(self.model, "again", "--to=safetensors")
        for folder in ("back", "again"):
            self.assert_kept(folder)

    def test_settings_come_with_the_shape_alone_and_what_the_model_is_wins_over_them(self):
        self.run_job("--model.flavor=from_hf", f"--model.hf_assets_path={self.model}", "--model.args.max_seq_len=48",
                     "--model.args.n_layers=1", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only",
                     "--checkpoint.export_dtype=bfloat16", "--training.steps=1", code=0,
                     says=["max_position_embeddings is 48, the model's (model.args.max_seq_len); the weights were last trained with "
                           "sequences of 32 tokens (training.seq_len)"])
        self.assert_kept(self.step(1), num_hidden_layers=1, max_position_embeddings=48, dtype="bfloat16", torch_dtype="bfloat16",
                         layer_types=["full_attention"])

    def test_a_checkpoint_of_before_takes_them_from_the_folder_that_its_toml_file_names(self):
        self.run_job(*self.import_it, "--training.steps=2", code=0)
        toml = (self.folder / "job.toml").read_text()
        (self.folder / "hf.toml").write_text(toml.replace("[model]", '[model]\nflavor = "from_hf"').replace(
            "[checkpoint]", f'[checkpoint]\ninitial_load_path = "{self.model}"'))
        self.convert(self.without_record(self.step(2)), "back", "--to=safetensors", "--config=hf.toml")
        self.assert_kept("back")

    def test_generate_ends_by_every_imported_eos(self):
        prompt = ["--prompt=It was", "--max-tokens=4"]
        self.convert(self.model, "free/step-1", "--to=dcp")
        self.write("generation_config.json", {"eos_token_id": list(range(2048))})
        self.convert(self.model, "stops/step-1", "--to=dcp")
        for checkpoint in (self.model, "stops/step-1"):
            self.assertTrue(self.run_program("generate", checkpoint, *prompt).endswith("It was\n"))
        self.assertFalse(self.run_program("generate", "free/step-1", *prompt).endswith("It was\n"))

    def test_weights_trained_on_with_another_tokenizer_and_longer_sequences_have_its_ids_and_their_length(self):
        self.write("config.json", {**json.loads((self.model / "config.json").read_text()), "max_position_embeddings": 16})
        self.run_job(*self.import_it, f"--model.hf_assets_path={self.other}", "--checkpoint.allow_other_tokenizer", "--training.steps=1",
                     "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only", code=0,
                     says=["The imported ids of tokens and generation_config.json are left out: they are of another tokenizer",
                           "max_position_embeddings is 32, the length of the sequences in training (training.seq_len); 16 was imported"])
        config, generation = (json.loads((self.step(1) / name).read_text()) for name in ("config.json", "generation_config.json"))
        self.assertEqual((config["max_position_embeddings"], config["eos_token_id"], config["use_cache"]), (32, None, False))
        self.assertNotIn("pad_token_id", config)
        self.assertEqual(sorted(generation), ["_from_model_config", "bos_token_id"])

    def test_settings_that_are_no_settings_are_named_and_refused(self):
        wide, deep = b'{"a": "' + b"x" * (1 << 20) + b'"}', b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}"
        for text, says in ((wide, "at most 1048576"), (deep, "levels of nesting"), (b"{", "not valid JSON"), (b"", "not valid JSON"),
                           (b"[]", "expected an object"), (b'{"a": "\xff"}', "not valid JSON"),
                           (b'{"eos_token_id": "7"}', "generation_config.json.eos_token_id is \"7\", expected an id or a list of ids"),
                           (b'{"bos_token_id": [1, 2.5]}', "bos_token_id is array, expected an id or a list of ids")):
            with self.subTest(text=text[:30]):
                (self.model / "generation_config.json").write_bytes(text)
                says = ["generation_config.json", says]
                self.run_job(*self.import_it, "--training.steps=1", code=65, says=says)
                self.generate(self.model, code=65, says=says)
                for to in ("dcp", "safetensors"):
                    self.convert(self.model, "new/step-1", f"--to={to}", code=65, says=says)


class Tokenizers(TextTest):
    """The tokenizer's hash is compared wherever weights meet text; a message names both, and ways out that work."""

    def both(self, text):
        for folder in (TOKENIZER, self.other):
            self.assertRegex(text, re.escape(str(folder)) + r" \(hash [0-9a-f]{8}\)")
        self.assertNotIn("on_config_change", text)

    def test_a_resume_with_another_tokenizer_names_both_and_its_ways_out_work(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        wrong = ["--lr_scheduler.total_steps=8", f"--model.hf_assets_path={self.other}"]
        text = self.run_job(*wrong, code=2, says=["chosen by model.hf_assets_path (command line)"]).text()
        self.both(text)
        self.assertIn(f"start with --model.hf_assets_path={TOKENIZER};", text)
        self.assertEqual(printed_options(text)[1:], ["--checkpoint.allow_other_tokenizer=true",
                                                     "--checkpoint.exclude_from_loading=dataloader"])
        allow = "--checkpoint.allow_other_tokenizer"
        self.run_job(*wrong, allow, code=2, says=["start once with --checkpoint.exclude_from_loading=dataloader"])
        self.run_job(*wrong, allow, "--checkpoint.exclude_from_loading=dataloader", "--training.steps=4", code=0,
                     says=["trained with another tokenizer", "WARNING", "Training starts at step 4"])
        self.run_job(*wrong, "--training.steps=5", code=0, says=["Training starts at step 5"])  # now it is the weights'
        shutil.rmtree(self.step(5)), shutil.rmtree(self.step(4))
        self.run_job(f"--model.hf_assets_path={TOKENIZER}", code=0, says=["Training starts at step 4"])

    def test_a_tokenizer_that_changed_in_its_place_is_found(self):
        own = self.copy_tokenizer("own", json.loads((TOKENIZER / "tokenizer_config.json").read_text()))
        job = [f"--model.hf_assets_path={own}", "--lr_scheduler.total_steps=8"]
        self.run_job(*job, "--training.steps=3", code=0)
        before = (own / "tokenizer_config.json").read_text()
        shutil.copy(self.other / "tokenizer_config.json", own)
        self.run_job(*job, code=2, says=[f"({own} does not any more)"])
        self.generate(self.step(3), code=2, says=["chosen by the checkpoint", f"({own} does not any more)"])
        (own / "tokenizer_config.json").write_text(before)
        self.run_job(*job, code=0, says=["Training starts at step 4"])

    def test_transfer_and_initial_load_compare_the_tokenizer(self):
        self.run_job(code=0)
        for kind, options in (("initial", []), ("transfer", ["--checkpoint.resume_mode=transfer"])):
            with self.subTest(kind=kind):
                start = [f"--checkpoint.initial_load_path={self.step(8)}", f"--checkpoint.folder={kind}", *options]
                text = self.run_job(*start, f"--model.hf_assets_path={self.other}", code=2).text()
                self.both(text)
                self.assertNotIn("exclude_from_loading", text)  # the position in the data is not loaded
                self.run_job(*start, f"--model.hf_assets_path={self.other}", "--checkpoint.allow_other_tokenizer",
                             "--training.steps=2", code=0)
                shutil.rmtree(self.folder / "out" / kind)
                self.run_job(*start, f"--model.hf_assets_path={TOKENIZER}", "--training.steps=2", code=0)

    def test_an_initial_load_of_an_export_compares_the_tokenizer(self):
        self.run_job("--training.steps=3", code=0)
        self.run_program("ckpt", "convert", self.step(3), "model", "--to=safetensors")
        start = ["--checkpoint.initial_load_in_hf", "--training.steps=2", f"--model.hf_assets_path={self.other}",
                 f"--checkpoint.initial_load_path={self.folder}/model"]
        self.run_job(*start, "--checkpoint.folder=a", code=2, says=["trained with another tokenizer"])
        self.run_job(*start, "--checkpoint.folder=a", "--checkpoint.allow_other_tokenizer", code=0)

    def test_generate_and_eval_compare_the_tokenizer(self):
        self.run_job("--training.steps=3", code=0)
        for command in (["generate", self.step(3), "--prompt=It was", "--max-tokens=2"],
                        ["eval", self.step(3), "--data=data.jsonl", "--seq-len=32"]):
            text = self.run_program(*command, f"--tokenizer={self.other}", code=2, says=["chosen by --tokenizer"])
            self.both(text)
            self.assertIn(f"start with --tokenizer {TOKENIZER}; to use this one all the same, start with --allow-other-"
                          "tokenizer", text)
            self.run_program(*command, "--tokenizer", TOKENIZER)
            self.run_program(*command, f"--tokenizer={self.other}", "--allow-other-tokenizer", says=["allowed by"])

    def test_a_tokenizer_of_the_checkpoint_that_was_moved_is_named_with_the_option_for_its_new_place(self):
        own = self.copy_tokenizer("own", json.loads((TOKENIZER / "tokenizer_config.json").read_text()))
        self.run_job(f"--model.hf_assets_path={own}", "--training.steps=3", code=0)
        own.rename(self.folder / "moved")
        for command in (["generate", self.step(3), "--prompt=It was", "--max-tokens=2"],
                        ["eval", self.step(3), "--data=data.jsonl", "--seq-len=32"]):
            self.run_program(*command, code=65, says=[f"{self.step(3)}: its tokenizer, as the checkpoint names it, cannot be used: {own}: ",
                                                      "name the folder that it is in now with --tokenizer"])
            self.run_program(*command, "--tokenizer=moved")
        self.run_program("ckpt", "convert", self.step(3), "model", "--to=safetensors",
                         says=[f"its tokenizer, as the checkpoint names it, is not there: {own}; copy the tokenizer's files into model"])
        self.generate("model", code=65, says=["its tokenizer, as the folder of the weights names it", "--tokenizer"])
        for file in (self.folder / "moved").iterdir():
            shutil.copy(file, self.folder / "model")
        self.generate("model")

    def test_a_checkpoint_that_does_not_say_is_loaded_with_one_line(self):
        self.run_job("--training.steps=3", code=0)
        job = self.run_job(f"--checkpoint.initial_load_path={self.without_record(self.step(3))}", "--training.steps=1",
                           "--checkpoint.folder=new", f"--model.hf_assets_path={self.other}", code=0)
        self.assertEqual(job.text().count("could not be compared"), 1, job.text())

    def test_ranks_with_other_tokenizers_are_named(self):
        configs = [TOKENIZER / "tokenizer_config.json", self.other / "tokenizer_config.json"]
        shared = []
        for rank in range(2):
            (self.folder / f"node{rank}").mkdir()
            shutil.copytree(TOKENIZER, self.folder / f"node{rank}" / "tokenizer")
            shutil.copy(configs[rank], self.folder / f"node{rank}" / "tokenizer")
            shared.append(["env", f"--chdir={self.folder}/node{rank}"])
        self.run_job("--model.hf_assets_path=tokenizer", ranks=2, before=dict(enumerate(shared)), code=2,
                     says=["tokenizer"])


class Data(TextTest):
    def test_a_resume_on_other_data_names_both_and_its_ways_out_work(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        (self.folder / "other.jsonl").write_text(json.dumps({"text": "Other words. " * 40}) + "\n")
        wrong = [f"--training.dataset_path={self.folder}/other.jsonl", "--lr_scheduler.total_steps=8"]
        for policy in ("error", "keep", "override"):
            text = self.run_job(*wrong, f"--checkpoint.on_config_change={policy}", code=2).text()
            for name in ("data", "other"):
                self.assertRegex(text, re.escape(f"{self.folder}/{name}.jsonl") + r" \(fingerprint [0-9a-f]{8}\)")
            self.assertIn("chosen by training.dataset_path (command line)", text)
            self.assertIn("start once with --checkpoint.exclude_from_loading=dataloader (and without it again", text)
            self.assertNotIn("Set checkpoint.on_config_change", text)
        self.run_job(*wrong, "--checkpoint.exclude_from_loading=dataloader", "--training.steps=4", code=0,
                     says=["Training starts at step 4"])
        shutil.rmtree(self.step(4))
        self.run_job("--lr_scheduler.total_steps=8", code=0, says=["Training starts at step 4"])

    def test_the_way_out_works_for_a_job_that_started_elsewhere(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        (self.folder / "other.jsonl").write_text(json.dumps({"text": "Other words. " * 40}) + "\n")
        start = [f"--checkpoint.initial_load_path={self.step(3)}", "--checkpoint.no_initial_load_model_only",
                 "--checkpoint.folder=second", "--lr_scheduler.total_steps=8"]
        self.run_job(*start, "--checkpoint.resume_mode=continue", "--training.steps=4", code=0)
        wrong = [*start, f"--training.dataset_path={self.folder}/other.jsonl"]
        self.run_job(*wrong, "--checkpoint.resume_mode=continue", code=2,
                     says=["--checkpoint.resume_mode=recover --checkpoint.exclude_from_loading=dataloader"])
        self.run_job(*wrong, "--checkpoint.resume_mode=recover", "--checkpoint.exclude_from_loading=dataloader",
                     "--training.steps=5", code=0, says=["Training starts at step 5"])

    def test_another_text_field_is_other_data(self):
        lines = [{"text": f"Document {i} has words.", "body": f"Another text, number {i}."} for i in range(100)]
        (self.folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        self.run_job("--training.text_field=body", "--lr_scheduler.total_steps=8", code=2,
                     says=['data.jsonl, field "body" (fingerprint', "training.text_field (command line)"])


class Fields(JobTest):
    """The field of the text: chosen by a key, looked at before anything starts."""

    def write(self, name, *lines):
        path = self.folder / name
        path.write_bytes(b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines))
        return path

    def test_a_field_that_is_not_there_is_found_in_every_file_before_the_job_starts(self):
        (self.folder / "many").mkdir()
        good = {"content": "Some words to learn. " * 20, "url": "x"}
        for i in range(3):
            self.write(f"many/{i}.jsonl", good, good)
        job = [f"--training.dataset_path={self.folder}/many"]
        text = self.run_job(*job, code=65, says=['many/0.jsonl:1: has no field "text" (training.text_field)',
                                                 'its fields are: "content", "url"']).text()
        self.assertNotIn("Device:", text)
        self.run_job(*job, "--training.text_field=content", "--training.steps=2", code=0)
        self.write("many/2.jsonl", {"contents": "x"})
        self.run_job(*job, "--training.text_field=content", code=65,
                     says=["many/2.jsonl:1:", "did you mean contents?", "set training.text_field"])

    def test_validation_reads_the_same_field_unless_it_names_its_own(self):
        data = self.write("content.jsonl", *[{"content": f"Some words to learn, {i}. " * 5} for i in range(50)])
        body = self.write("body.jsonl", *[{"body": "Some words to learn. " * 10}] * 5)
        job = [f"--training.dataset_path={data}", "--training.text_field=content", "--training.steps=1",
               "--validation.enable", "--validation.dataset=jsonl", "--validation.seq_len=32"]
        self.run_job(*job, f"--validation.dataset_path={data}", code=0)
        text = self.run_job(*job, f"--validation.dataset_path={body}", code=65, says=["body.jsonl:1:"]).text()
        self.assertNotIn("Device:", text)
        self.assertIn('has no field "content" (validation.text_field, by default training.text_field)', text)
        self.assertIn("set validation.text_field to the one with the text", text)
        self.run_job(*job, f"--validation.dataset_path={body}", "--validation.text_field=body", code=0)
        self.run_job(*job, f"--validation.dataset_path={body}", "--validation.text_field=txt", code=65,
                     says=["set validation.text_field"])

    def test_eval_names_its_own_option(self):
        self.run_job("--training.steps=1", "--checkpoint.enable", code=0)
        self.write("body.jsonl", *[{"body": "Some words to learn. " * 10}] * 5)
        evaluate = [BINARY, "eval", "out/checkpoint/step-1", "--data=body.jsonl", "--seq-len=32"]
        run = lambda *options: subprocess.run([*evaluate, *options], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE)
        refused = run()
        self.assertEqual(refused.returncode, 65, refused)
        self.assertIn('body.jsonl:1: has no field "text" (--text-field)', refused.stderr)
        self.assertIn("set --text-field to the one with the text", refused.stderr)
        self.assertEqual(run("--text-field=body").returncode, 0)

    def test_a_later_line_without_the_field_is_to_be_corrected_or_removed(self):
        good = {"text": "Some words to learn. " * 5}
        data = self.write("data.jsonl", good, {"txt": "x"}, good)
        text = self.run_job(f"--training.dataset_path={data}", code=65,
                            says=["data.jsonl:2: has no field", "did you mean txt?: correct or remove the line"]).text()
        self.assertNotIn("set training.text_field", text)

    def test_tokenize_takes_the_field(self):
        data = self.write("content.jsonl", *[{"content": "Some words."}] * 5)
        tokenize = [BINARY, "tokenize", "--out=shard", data]
        run = lambda *options: subprocess.run([*tokenize, *options], cwd=self.folder, capture_output=True, text=True,
                                              timeout=PATIENCE)
        refused = run()
        self.assertEqual(refused.returncode, 65, refused)
        self.assertIn("set --text-field", refused.stderr)
        self.assertFalse((self.folder / "shard").exists())
        self.assertEqual(run("--text-field=content").returncode, 0)

    def test_bytes_that_are_not_utf8_are_read_and_said_once(self):
        data = self.write("latin.jsonl", *[b'{"text": "caf\xe9 and some more words to fill the sequence"}'] * 50)
        job = self.run_job(f"--training.dataset_path={data}", "--training.steps=2", code=0)
        self.assertGreaterEqual(job.text().count("WARNING"), 1)
        self.assertIn("holds bytes that are not UTF-8: they are read as U+FFFD", job.text())

    def test_a_tokenizer_without_bos_or_eos_is_a_warning_that_names_the_file_to_add(self):
        bare = self.folder / "bare"
        bare.mkdir()
        shutil.copy(TOKENIZER / "tokenizer.json", bare)
        job = [f"--model.hf_assets_path={bare}", "--training.steps=1"]
        text = self.run_job(*job, code=0).text()
        for name in ("BOS", "EOS"):
            self.assertRegex(text, rf"WARNING - the tokenizer at .*bare names no {name}.*add the file "
                                   rf".*bare/tokenizer_config.json with \"{name.lower()}_token\"")
        shutil.copy(TOKENIZER / "tokenizer_config.json", bare)
        self.assertNotIn("WARNING", self.run_job(*job, code=0).text())


if __name__ == "__main__":
    main()
