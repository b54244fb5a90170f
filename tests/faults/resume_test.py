"""What a start takes from checkpoints, on the real program: modes, curves, meshes of up to eight ranks, seeds.

    python3 tests/faults/resume_test.py build/hyperion

Tests are named after the acceptance checks (C4, C8) and the fault cell (F-C9) that they show.
"""

import re
import shutil
import subprocess

from checkpoints import CheckpointTest
from jobs import BINARY, main

KILLED_BEFORE_AN_UPDATE = {"FAULT": "point=step.opt;action=kill"}


class Curve(CheckpointTest):
    def test_c4_past_its_end_the_rate_stays_at_the_floor_and_the_loss_does_not_jump(self):
        floor = ["--lr_scheduler.min_lr_factor=0.1", "--lr_scheduler.decay_ratio=0.5"]
        expected = self.control(*floor)
        self.run_job(*floor, code=0)
        for last in (16, 20):
            job = self.run_job(*floor, f"--training.steps={last}", code=0, says=["keeps its 8 steps"])
            self.assertEqual(job.text().count("the learning-rate curve ends at step 8"), 1, job.text())
        curve = self.curve()
        self.assertEqual({step: curve[step] for step in expected}, expected)
        rates = [curve[step][2] for step in sorted(curve)]
        self.assertEqual(rates[8:], [8e-4 * 0.1] * 12)
        self.assertEqual(rates[4:], sorted(rates[4:], reverse=True))  # once it falls it never rises
        self.assertLess(max(curve[step][0] for step in range(9, 21)), curve[5][0])

    def refused(self, *options):
        """What a job that would train at a rate of 0 prints, and its two remedies as options, as they are printed."""
        text = self.run_job(*options, code=2, says=["would learn nothing"]).text()
        keys = re.findall(r'([a-z_]+\.[a-z_]+) = ("?)([\w.]+)\2', text[text.index("learn nothing: set"):])
        (curve,), floor = [[f"--{key}={value}" for key, _, value in keys if (key == "lr_scheduler.total_steps") == first]
                           for first in (True, False)]
        return text, [curve], floor

    def test_a_finished_run_is_not_made_longer_at_a_rate_of_0_and_both_remedies_work_as_printed(self):
        for last_save in ("--checkpoint.last_save_model_only", "--checkpoint.no_last_save_model_only"):
            with self.subTest(last_save=last_save):
                self.run_job(last_save, code=0)  # 8 steps: full checkpoints at 3 and 6, and the last one
                finished = self.folder / "finished"
                shutil.copytree(self.folder / "out", finished)
                before = self.files()
                text, *remedies = self.refused(last_save, "--training.steps=12")
                self.assertIn("steps 9 to training.steps = 12", text)
                self.assertEqual(self.files(), before)  # nothing was made and nothing removed
                for remedy in remedies:
                    with self.subTest(remedy=remedy):
                        self.run_job(last_save, "--training.steps=12", *remedy, code=0, says=["step: 12"])
                        rates = [self.curve()[step][2] for step in range(9, 13)]
                        self.assertGreater(min(rates), 0)
                        shutil.rmtree(self.folder / "out")
                        shutil.copytree(finished, self.folder / "out")
                shutil.rmtree(self.folder / "out")
                shutil.rmtree(finished)

    def test_a_first_start_with_a_curve_that_is_too_short_is_refused_and_both_remedies_work_as_printed(self):
        short = ["--training.steps=4", "--lr_scheduler.total_steps=2"]
        text, *remedies = self.refused(*short)
        self.assertIn("steps 3 to training.steps = 4", text)
        for remedy in remedies:
            self.run_job(*short, *remedy, f"--checkpoint.folder={len(remedy)}{remedy[0][-1]}", code=0, says=["step:  4"])
            self.assertGreater(self.curve()[4][2], 0)


class Continue(CheckpointTest):
    """C8: resume_mode = "continue" reads the parts it is told to; what it does not read is as in a new run."""

    def start_from(self, step, folder, *options):
        return [f"--checkpoint.folder={folder}", "--checkpoint.resume_mode=continue", "--ema.enable",
                f"--checkpoint.initial_load_path={step}", "--checkpoint.no_initial_load_model_only", *options]

    def loaded(self, folder, *options):
        """What a job holds right before its first update: that is in its pre-checkpoint."""
        self.run_job(*options, f"--checkpoint.folder={folder}", "--allow-faults", "--ema.enable", code=-9,
                     env=KILLED_BEFORE_AN_UPDATE)
        (step,) = (self.folder / "out" / folder).glob("step-*")
        return int(step.name[5:]), self.contents(step)

    def test_c8_each_part_can_be_left_out(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", "--ema.enable", code=0)
        source = self.contents(self.step(3))
        _, fresh = self.loaded("fresh")
        parts = {key.split(".")[0] for key in source} & {"optimizer", "ema", "lr_scheduler", "dataloader", "train_state"}
        self.assertEqual(len(parts), 5)
        for left_out in (["lr_scheduler"], ["dataloader"], ["train_state"], ["ema"], ["optimizer", "lr_scheduler"],
                         ["optimizer", "lr_scheduler", "dataloader", "train_state", "ema", "rng"]):
            with self.subTest(left_out=left_out):
                names = ",".join(left_out)
                step, held = self.loaded(names, *self.start_from(self.step(3), names),
                                         f"--checkpoint.exclude_from_loading={names}")
                self.assertEqual(step, 0 if "train_state" in left_out else 3)
                self.assertEqual(held.keys(), source.keys())
                for key, value in held.items():
                    part = key.split(".")[0]
                    if part == "lr_scheduler" or key.endswith(".lr"):
                        continue  # they follow from step and settings: see the next test
                    expected = source if part not in left_out else fresh
                    if part == "ema" and "ema" in left_out:  # an average starts at the weights of its model
                        expected, key = source, key.removeprefix("ema.")
                    self.assertEqual(value, expected[key], key)

    def test_c8_a_new_curve_starts_at_the_loaded_step(self):
        new = ["--optimizer.lr=4e-4", "--lr_scheduler.warmup_steps=2"]
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", "--ema.enable", code=0)
        rates = [rate for _, _, rate in self.control(*new, steps=5).values()]
        for where in (self.start_from(self.step(3), "new"), ["--checkpoint.resume_mode=continue", "--ema.enable"]):
            self.run_job(*where, *new, "--checkpoint.exclude_from_loading=optimizer,lr_scheduler", "--training.steps=8",
                         code=0, says=["Training starts at step 4", "starts anew at step 4 and has 5 steps"])
            curve = self.curve()
            self.assertEqual([curve[step][2] for step in range(4, 9)], rates)

    def test_c8_names_that_mean_nothing_are_refused(self):
        self.run_job("--training.steps=1", code=0)
        for names, says in (("weights", ["exclude_from_loading", "weights", "dataloader"]),
                            ("optimizer", ["exclude_from_loading", "lr_scheduler"])):
            self.run_job(*self.start_from(self.step(1), "new"), f"--checkpoint.exclude_from_loading={names}", code=2,
                         says=says)


class Meshes(CheckpointTest):
    def replicas(self, count):
        return f"--parallelism.data_parallel_replicate_degree={count}"

    # 20 rows on 8 ranks: 3 for each of the first 6, then 2, then none; 2048 rows of vocabulary on 3 ranks: uneven.
    model = ["--model.args.dim=20", "--model.args.n_heads=2", "--model.args.hidden_dim=50", "--training.steps=1",
             "--training.local_batch_size=1", "--training.global_batch_size=24", "--ema.enable"]

    def test_f_c9_every_mesh_reads_what_any_other_wrote(self):
        layouts = {"1": (1, []), "2": (2, []), "3": (3, []), "4": (4, []), "8": (8, []), "2x2": (4, [self.replicas(2)]),
                   "4x2": (8, [self.replicas(4)]), "2x4": (8, [self.replicas(2)])}
        pairs = [("8", name) for name in ("1", "2", "3", "4", "2x2", "4x2")]
        pairs += [("3", "8"), ("2x2", "2x4"), ("2x2", "1")]
        sources = {}
        for source, target in pairs:
            with self.subTest(written_by=source, read_by=target):
                path = self.folder / "out" / source / "step-1"
                if source not in sources:
                    ranks, options = layouts[source]
                    self.run_job(*self.model, *options, f"--checkpoint.folder={source}", ranks=ranks, code=0)
                    sources[source] = self.contents(path)
                ranks, options = layouts[target]
                # Nothing is left to train: the pre-checkpoint holds what was read.
                self.run_job(*self.model, *options, f"--checkpoint.folder={source}-{target}", ranks=ranks,
                             *["--checkpoint.resume_mode=continue", "--checkpoint.no_initial_load_model_only"],
                             *[f"--checkpoint.initial_load_path={path}"], code=0)
                self.assertEqual(self.contents(self.folder / "out" / f"{source}-{target}" / "step-1"), sources[source])


class OtherModels(CheckpointTest):
    def test_a_checkpoint_of_a_model_of_another_depth_is_refused_in_one_line_that_says_both(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        weights = ["--checkpoint.folder=new", f"--checkpoint.initial_load_path={self.step(3)}"]
        for options, says in ((["--model.args.n_layers=3"], "2 layers there, 3 here"),
                              (["--model.args.dim=64"], "dim 32 there, 64 here"),
                              (["--model.args.vocab_size=4096"], "a vocabulary of 2048 there, 4096 here"),
                              (["--model.args.n_heads=4", "--model.args.head_dim=16"],
                               "n_heads x head_dim = 32 there, 64 here; n_kv_heads x head_dim = 32 there, 64 here"),
                              (["--model.args.n_layers=1", "--model.args.hidden_dim=64"], "2 layers there, 1 here; hidden_dim")):
            for start in ([], weights):
                with self.subTest(options=options, start=start):
                    text = self.run_job(*options, *start, code=65, says=["of another model: " + says]).text()
                    self.assertLess(text.index(says), text.index("layers.0") if "layers.0" in text else len(text))

    def test_the_same_is_said_of_safetensors_without_a_configuration_and_by_eval(self):
        self.run_job("--training.steps=1", code=0)
        exported = self.folder / "exported"
        config = ["--config", self.folder / "job.toml"]
        self.tool("convert", self.step(1), exported, "--to", "safetensors", *config)
        (exported / "config.json").unlink()
        self.run_job("--checkpoint.folder=new", "--checkpoint.initial_load_in_hf", "--model.args.n_layers=3",
                     f"--checkpoint.initial_load_path={exported}", code=65, says=["2 layers there, 3 here"])
        other = self.folder / "other.toml"
        other.write_text((self.folder / "job.toml").read_text().replace("n_layers = 2", "n_layers = 3"))
        done = subprocess.run([BINARY, "eval", exported, "--config", other, "--data", self.folder / "data.jsonl"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("another model: 2 layers there, 3 here", done.stderr)

    def test_weights_in_the_other_format_are_named_with_the_key_to_set(self):
        self.run_job("--training.steps=1", code=0)
        exported = self.folder / "exported"
        self.tool("convert", self.step(1), exported, "--to", "safetensors", "--config", self.folder / "job.toml")
        new, path, hf = "--checkpoint.folder=new", "--checkpoint.initial_load_path=", "--checkpoint.initial_load_in_hf"
        dcp = self.step(1)
        self.run_job(new, hf, f"{path}{dcp}", code=65,
                     says=["a checkpoint in DCP format", "set checkpoint.initial_load_in_hf = false"])
        self.run_job(new, f"{path}{exported}", code=65,
                     says=["holds safetensors (Hugging Face's format)", "set checkpoint.initial_load_in_hf = true"])
        self.run_job(new, f"{path}{self.steps_folder}", code=65, says=["holds no .metadata", "step-1 is in it"])
        empty = self.folder / "empty"
        empty.mkdir()
        self.run_job(new, hf, f"{path}{empty}", code=65, says=["holds no safetensors"])
        self.run_job(new, f"{path}{dcp}", "--training.steps=1", code=0)  # the remedies
        shutil.rmtree(self.folder / "out" / "new")
        self.run_job(new, hf, f"{path}{exported}", "--training.steps=1", code=0)


class Seeds(CheckpointTest):
    def test_a_seed_holds_the_initial_weights_also_beside_checkpoints(self):
        seed = "--checkpoint.create_seed_checkpoint"
        self.run_job(seed, "--checkpoint.folder=fresh", code=0)
        self.run_job("--training.steps=4", "--optimizer.lr=1e-3", code=0)
        before = self.files()
        for _ in range(2):  # the second takes the first one's place
            self.run_job(seed, code=0)
            self.assertEqual((self.saved(), self.manifest(0)["kind"]), (([0, 3, 4], []), "seed"))
            self.assertEqual({path: info for path, info in self.files().items() if path in before and path.is_file()},
                             {path: info for path, info in before.items() if path.is_file()})
            self.assertEqual(self.contents(self.step(0)), self.contents(self.folder / "out" / "fresh" / "step-0"))


if __name__ == "__main__":
    main()
