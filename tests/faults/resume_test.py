"""What a start takes from checkpoints, on the real program: modes, curves, meshes of up to eight ranks, seeds.

    python3 tests/faults/resume_test.py build/hyperion
"""

import json
import re
import shlex
import shutil
import signal

import warm_start
from checkpoints import CheckpointTest, printed_options
from jobs import ALL, BINARY, PATIENCE, main

KILLED_BEFORE_AN_UPDATE = {"FAULT": "point=step.opt;action=kill"}


class Curve(CheckpointTest):
    def test_past_its_end_the_rate_stays_at_the_floor_and_the_loss_does_not_jump(self):
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
        curve, *floor = printed_options(text[text.index("learn nothing: start"):])
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


class Remedies(CheckpointTest):
    """Every way out that a refused resume prints is an option of the command line that works as it is printed."""

    def setUp(self):
        super().setUp()
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        self.saved_folder = self.folder / "saved"
        shutil.copytree(self.folder / "out", self.saved_folder)

    def each_works(self, *options, code=2, ranks=1, together=False, remedies):
        """Runs the options with each remedy that the refusal prints (or with all of them) on the state of step 3."""
        text = self.run_job(*options, ranks=ranks, code=code).text()
        found = printed_options(text[text.rindex("hyperion: "):])
        self.assertEqual(found, remedies, text)
        for remedy in [found] if together else [[option] for option in found]:
            with self.subTest(remedy=remedy):
                self.run_job(*options, *remedy, ranks=ranks, code=0)
            shutil.rmtree(self.folder / "out")
            shutil.copytree(self.saved_folder, self.folder / "out")
        return text

    keep, override = "--checkpoint.on_config_change=keep", "--checkpoint.on_config_change=override"

    def test_changed_settings(self):
        text = self.each_works("--optimizer.lr=1e-3", "--training.max_norm=2", remedies=[self.keep, self.override])
        self.assertNotIn("exclude_from_loading", text)
        self.each_works("--model.args.rope_theta=1000", remedies=[self.override])  # a model does not change back
        text = self.each_works("--model.args.activation=gelu_tanh", remedies=[self.override])
        self.assertIn("model.args.activation: saved silu, configured gelu_tanh (command line)", text)

    def test_what_keep_would_run_into_is_not_offered(self):
        more = ["--training.steps=12", "--lr_scheduler.min_lr_factor=0.1"]
        self.each_works(*more, remedies=[self.override])
        self.run_job(*more, self.keep, code=2, says=["would learn nothing"])

    def test_what_is_in_the_way_of_both_is_named(self):
        text = self.run_job("--training.steps=12", "--optimizer.lr=1e-3", code=2).text()
        override, curve, floor = printed_options(text)
        for way in (curve, floor):
            self.run_job("--training.steps=12", "--optimizer.lr=1e-3", override, way, code=0)
            shutil.rmtree(self.folder / "out")
            shutil.copytree(self.saved_folder, self.folder / "out")

    def test_a_model_setting_that_cannot_be_brought_back_is_named_by_its_key(self):
        text = self.run_job("--model.args.rope_theta=1000", self.keep, code=2).text()
        self.assertIn("model.args.rope_theta: saved 500000", text)
        self.assertIn("(command line)", text)
        self.assertEqual(printed_options(text)[-1], self.override)

    def test_what_keep_keeps_is_what_the_run_trains_with(self):
        length = ["--training.steps=5", "--lr_scheduler.total_steps=8"]
        expected = self.control(*length, steps=5)
        for changed in ("--training.seq_len=24", "--training.no_shuffle", "--training.document_mask", "--training.global_batch_size=2"):
            with self.subTest(changed=changed):
                text = self.run_job(*length, changed, self.keep, code=0, says=["keeping"]).text()
                self.assertEqual(self.curve(), expected, text)
                self.run_job(*length, code=0, says=["Nothing is left to do"])  # its checkpoint says what it was trained with
            shutil.rmtree(self.folder / "out")
            shutil.copytree(self.saved_folder, self.folder / "out")
        self.run_job(*length, "--parallelism.pipeline_parallel_degree=2", "--training.global_batch_size=2", self.keep, ranks=2, code=0)
        self.assertTrue(all(abs(self.curve()[step][0] - loss) < 5e-6 * loss for step, (loss, *_) in expected.items()), self.curve())

    def test_kept_values_with_which_the_job_cannot_run_are_not_offered(self):
        options = ["--training.seq_len=96", "--parallelism.context_parallel_degree=3"]  # which does not divide the saved 32 tokens
        self.each_works(*options, ranks=3, remedies=[self.override])
        self.run_job(*options, self.keep, ranks=3, code=2, says=["saved in the checkpoint: training.seq_len = 32"])

    def test_another_order_of_the_data(self):
        begin = "--checkpoint.exclude_from_loading=dataloader"
        self.each_works("--training.no_shuffle", remedies=[self.keep, begin])
        self.run_job("--training.no_shuffle", self.override, code=2, says=["training.shuffle: saved true, configured false", begin])
        text = self.run_job("--training.no_shuffle", "--training.max_norm=2", code=2).text()
        self.assertEqual(printed_options(text[text.rindex("hyperion: "):]), [self.keep, begin, self.override])
        self.run_job("--training.no_shuffle", "--training.max_norm=2", begin, self.override, code=0)

    def test_averages_that_are_not_there(self):
        self.each_works("--ema.enable", code=65, remedies=["--ema.on_missing=init_from_model"])

    def test_weights_in_the_other_format(self):
        exported = self.folder / "exported weights"
        self.tool("convert", self.step(3), exported, "--to", "safetensors", "--config", self.folder / "job.toml")
        new, path, hf = "--checkpoint.folder=new", "--checkpoint.initial_load_path=", "--checkpoint.initial_load_in_hf"
        self.each_works(new, f"{path}{exported}", code=65, together=True, remedies=[f"{path}{exported}", f"{hf}=true"])
        self.each_works(new, hf, f"{path}{self.step(3)}", code=65, together=True,
                        remedies=[f"{path}{self.step(3)}", f"{hf}=false"])


class LeftOut(CheckpointTest):
    def test_every_start_that_leaves_a_part_out_warns_and_says_from_where_the_data_start(self):
        leave = ["--checkpoint.exclude_from_loading=dataloader", "--lr_scheduler.total_steps=8"]
        says = ["WARNING - checkpoint.exclude_from_loading (command line): dataloader of the checkpoint at step",
                "the data start from their beginning (epoch 1 in the order of seed 1)", "this happens at every start"]
        warning = "is not read"
        self.assertNotIn(warning, self.run_job("--training.steps=3", *leave, code=0).text())  # nothing to leave out
        for step in (4, 5):
            self.run_job(f"--training.steps={step}", *leave, code=0, says=says)
        self.assertNotIn(warning, self.run_job("--training.steps=6", leave[1], code=0).text())


class Finished(CheckpointTest):
    """A run whose last save holds the weights alone (the default) has ended like any other."""

    last = ["--checkpoint.last_save_model_only"]

    def test_a_finished_run_that_is_started_again_says_so_and_trains_nothing(self):
        for last in (self.last, [*self.last, "--checkpoint.last_save_in_hf"]):
            with self.subTest(last=last):
                self.run_job(*last, code=0)
                before, lines = self.files(), self.metrics()
                for ranks in (1, 2):
                    text = self.run_job(*last, ranks=ranks, code=0).text()
                    self.assertIn("Nothing is left to do", text)
                    self.assertIn("step-8 holds the weights after step 8, and training.steps = 8", text)
                    self.assertIn("would resume from step-6", text)
                    self.assertNotIn("Training starts", text)
                    self.assertNotIn("WARNING", text)
                self.run_job(*last, "--training.steps=7", code=0, says=["Nothing is left to do"])
                self.assertEqual((self.files(), self.metrics()), (before, lines))
                self.assertEqual(self.events("start")[-1]["step"], 8)  # so that a report keeps the curve
            shutil.rmtree(self.folder / "out")

    def test_it_is_finished_too_when_no_full_checkpoint_is_left(self):
        self.run_job(*self.last, code=0)
        for step in (3, 6):
            shutil.rmtree(self.step(step))
        self.run_job(*self.last, code=0, says=["Nothing is left to do"])

    def test_a_finished_run_names_the_command_that_makes_the_last_save_it_is_asked_for(self):
        self.run_job(*self.last, "--checkpoint.last_save_in_hf", "--checkpoint.folder=direct", code=0)
        direct = self.folder / "out" / "direct" / "step-8" / "model.safetensors"
        for last in (self.last, []):  # weights alone, a full checkpoint
            with self.subTest(last=last):
                self.run_job(*last, code=0)
                for wanted in ("last_save_in_hf", "last_save_model_only"):
                    made = self.folder / "out" / ("step-8-hf" if wanted == "last_save_in_hf" else "step-8-model")
                    for ranks in (2, 1):
                        text = self.run_job(f"--checkpoint.{wanted}", *self.last, ranks=ranks, code=0, says=["Nothing is left to do"]).text()
                        self.assertNotIn("Training starts", text)
                    if last and wanted == "last_save_model_only":
                        self.assertNotIn("ckpt convert", text)  # it is there
                        continue
                    (command,) = re.findall(rf"that checkpoint.{wanted} asks for, run: hyperion (.*)", text)
                    warm_start.run([BINARY, *shlex.split(command)], check=True, cwd=self.folder)
                    if wanted == "last_save_in_hf":
                        self.assertEqual((made / "model.safetensors").read_bytes(), direct.read_bytes())
                    else:
                        self.assertEqual(json.loads((made / "hyperion.json").read_text())["kind"], "model")
                    shutil.rmtree(made)
                shutil.rmtree(self.steps_folder)

    def test_a_run_that_starts_from_another_one_s_last_step_says_that_nothing_is_left(self):
        self.run_job("--training.steps=6", code=0)
        start = ["--training.steps=6", "--checkpoint.folder=new", f"--checkpoint.initial_load_path={self.step(6)}/",
                 "--checkpoint.no_initial_load_model_only", "--checkpoint.resume_mode=continue"]
        for ranks in (1, 2):
            text = self.run_job(*start, ranks=ranks, code=0, says=["Nothing is left to do: step 6 is done already"]).text()
            self.assertNotIn("Training starts", text)
            self.assertFalse(list((self.folder / "out" / "new").glob("step-*")))
        self.run_job(*start, "--checkpoint.last_save_model_only", "--checkpoint.last_save_in_hf", code=0,
                     says=[f"run: hyperion ckpt convert {self.step(6)}/ {self.folder}/out/step-6-hf --to=safetensors --dtype=float32"])
        self.run_job(*start, "--training.steps=7", "--lr_scheduler.total_steps=7", code=0, says=["Training starts at step 7"])

    def test_a_longer_run_says_from_where_it_goes_on_and_what_it_trains_again(self):
        self.run_job(*self.last, "--lr_scheduler.total_steps=12", code=0)
        text = self.run_job(*self.last, "--training.steps=12", code=0, says=["Training starts at step 7"]).text()
        self.assertIn("resumes from step-6, the newest full checkpoint: steps 7 to 8 are trained again, because step-8 "
                      "holds the weights alone", text)
        text = self.run_job(*self.last, "--training.steps=13", "--lr_scheduler.total_steps=13", code=0).text()
        self.assertIn("resumes from step-9, the newest full checkpoint: steps 10 to 12 are trained again", text)

    def test_weights_alone_that_another_program_saved_last_are_passed_over_too(self):
        self.run_job(*self.last, code=0)
        (self.step(8) / "hyperion.json").unlink()
        self.run_job(*self.last, code=0, says=["Nothing is left to do"])
        self.run_job(*self.last, "--training.steps=9", "--lr_scheduler.total_steps=9", code=0,
                     says=["steps 7 to 8 are trained again", "Training starts at step 7"])


class FirstLosses(CheckpointTest):
    def test_the_losses_before_and_after_a_resume_are_named_with_their_steps(self):
        curve = ["--metrics.log_freq=5", "--lr_scheduler.total_steps=20"]
        self.run_job(*curve, "--training.steps=7", code=0)
        text = self.run_job(*curve, "--training.steps=11", code=0).text()
        losses = {line["step"]: line["loss_metrics/global_avg_loss"] for line in self.metrics()}
        self.assertIn(f"Resumed after step 7: the loss of step 5, the last one logged before, was {losses[5]:.5f}; that of "
                      f"step 10, the first one logged now, is {losses[10]:.5f}", text)


class RefusedStarts(CheckpointTest):
    def test_a_first_start_that_is_refused_leaves_nothing_that_it_made(self):
        for options, code in ((["--lr_scheduler.total_steps=2"], 2), (["--checkpoint.initial_load_path=/none"], 65),
                              (["--checkpoint.load_step=3"], 65)):
            with self.subTest(options=options):
                self.run_job(*options, code=code)
                self.assertFalse((self.folder / "out").exists())
                self.steps_folder.mkdir(parents=True)
                self.run_job(*options, code=code)
                self.assertEqual(list((self.folder / "out").rglob("*")), [self.steps_folder])
                shutil.rmtree(self.folder / "out")


class DryRun(CheckpointTest):
    """comm.mode = "fake_backend": rank 0 of NGPU ranks, whose numbers mean nothing."""

    fake = ["--comm.mode=fake_backend", "--training.global_batch_size=-1"]

    def test_a_job_that_saves_can_be_tried_dry_and_nothing_is_written_or_loaded(self):
        validation = ["--validation.enable", "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl",
                      "--validation.steps=2", "--validation.freq=1", "--validation.seq_len=32"]
        job = self.run_job(*self.fake, "--training.steps=2", "--metrics.enable_tensorboard", *validation, env={"NGPU": 64},
                           code=0, says=["WARNING", "a dry run of rank 0 of 64 ranks", "checkpoint.enable = true has no effect",
                                         "step:  2", "validate step:  2"])
        self.assertEqual(job.text().count("fake_backend"), 1)
        self.assertFalse((self.folder / "out").exists())
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        before, lines = self.files(), self.metrics_file()
        self.run_job(*self.fake, f"--checkpoint.initial_load_path={self.step(3)}", env={"NGPU": 8}, code=0,
                     says=["Training starts at step 1", "Training completed"])
        self.assertEqual((self.files(), self.metrics_file()), (before, lines))

    def test_term_ends_it_inside_a_step(self):
        job = self.start(*self.fake, "--allow-faults", env={"NGPU": 8, "FAULT": f"point=step.opt;action=wait:{self.folder}/never"})
        job.wait_for("Training starts at step 1")
        job.ranks[0][0].send_signal(signal.SIGTERM)
        self.assertEqual(job.ranks[0][0].wait(timeout=PATIENCE), 143, job.text())
        self.assertIn("TERM received in step 1 of a dry run: it ends at once", job.text())

    def test_it_shows_no_mfu(self):
        job = self.run_job(*self.fake, "--training.steps=2", "--metrics.log_freq=1", env={"NGPU": 8}, code=0,
                           says=["mfu is 0: a dry run exchanges nothing"])
        self.assertEqual(job.text().count("mfu: 0.00%"), 2)

    def test_a_model_that_no_cpu_can_train_is_warned_of_before_it_is_made(self):
        job = self.start(*self.fake, "--training.seq_len=131072", "--training.local_batch_size=2", "--training.global_batch_size=512", "--allow-faults",
                         env={"NGPU": 8, "FAULT": f"point=init.model;action=wait:{self.folder}/never"})
        job.wait_for("a simulated GPU with HYPERION_SIMULATED_COMPUTE=off computes nothing")
        job.ranks[0][0].send_signal(signal.SIGTERM)
        self.assertEqual(job.ranks[0][0].wait(timeout=PATIENCE), 143, job.text())

    def test_a_seed_checkpoint_is_refused_and_the_state_of_a_rank_can_be_listed(self):
        self.run_job(*self.fake, "--checkpoint.create_seed_checkpoint", code=2, says=["comm.mode", "create_seed_checkpoint"])
        self.run_job(*self.fake, "--dump-state-dict", env={"NGPU": 8}, code=0, says=["8 shards x 1 replicas"])


class Continue(CheckpointTest):
    """resume_mode = "continue" reads the parts it is told to; what it does not read is as in a new run."""

    def start_from(self, step, folder, *options):
        return [f"--checkpoint.folder={folder}", "--checkpoint.resume_mode=continue", "--ema.enable",
                f"--checkpoint.initial_load_path={step}", "--checkpoint.no_initial_load_model_only", *options]

    def loaded(self, folder, *options):
        """What a job holds right before its first update: that is in its pre-checkpoint."""
        self.run_job(*options, f"--checkpoint.folder={folder}", "--allow-faults", "--ema.enable", code=-9,
                     env=KILLED_BEFORE_AN_UPDATE)
        (step,) = (self.folder / "out" / folder).glob("step-*")
        return int(step.name[5:]), self.contents(step)

    def test_each_part_can_be_left_out(self):
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

    def test_a_new_curve_starts_at_the_loaded_step(self):
        new = ["--optimizer.lr=4e-4", "--lr_scheduler.warmup_steps=2"]
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", "--ema.enable", code=0)
        rates = [rate for _, _, rate in self.control(*new, steps=5).values()]
        for where in (self.start_from(self.step(3), "new"), ["--checkpoint.resume_mode=continue", "--ema.enable"]):
            self.run_job(*where, *new, "--checkpoint.exclude_from_loading=optimizer,lr_scheduler", "--training.steps=8",
                         code=0, says=["Training starts at step 4", "starts again at step 4 and has 5 steps"])
            curve = self.curve()
            self.assertEqual([curve[step][2] for step in range(4, 9)], rates)

    def test_names_that_are_no_part_of_the_state_are_refused(self):
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
             "--lr_scheduler.total_steps=2", "--training.local_batch_size=1", "--training.global_batch_size=24", "--ema.enable"]

    def test_every_mesh_reads_what_any_other_wrote(self):
        layouts = {"1": (1, []), "2": (2, []), "3": (3, []), "4": (4, []), "8": (8, []), "2x2": (4, [self.replicas(2)]),
                   "4x2": (8, [self.replicas(4)]), "2x4": (8, [self.replicas(2)])}
        pairs = [("8", name) for name in (("1", "2", "3", "4", "2x2", "4x2") if ALL else ("1", "3", "4x2"))]
        pairs += [("3", "8"), ("2x2", "2x4"), ("2x2", "1")]
        tensor = "--parallelism.tensor_parallel_degree=2"
        layouts |= {"t2": (2, [tensor]), "2xt2": (4, [tensor]), "2x1xt2": (4, [tensor, self.replicas(2)])}
        pairs += [("t2", "2xt2"), ("2x1xt2", "t2"), ("3", "2xt2"), *([("2xt2", "1")] if ALL else [("t2", "1")])]
        sources = {}
        for source, target in pairs:
            with self.subTest(written_by=source, read_by=target):
                path = self.folder / "out" / source / "step-1"
                if source not in sources:
                    ranks, options = layouts[source]
                    self.run_job(*self.model, *options, f"--checkpoint.folder={source}", ranks=ranks, code=0)
                    sources[source] = self.contents(path)
                ranks, options = layouts[target]
                # A last save of weights alone leaves the pre-checkpoint, which holds what was read.
                self.run_job(*self.model, *options, f"--checkpoint.folder={source}-{target}", ranks=ranks,
                             *["--training.steps=2", "--checkpoint.last_save_model_only"],
                             *["--checkpoint.resume_mode=continue", "--checkpoint.no_initial_load_model_only"],
                             *[f"--checkpoint.initial_load_path={path}"], code=0)
                self.assertEqual(self.contents(self.folder / "out" / f"{source}-{target}" / "step-1"), sources[source])

    def test_weights_of_hugging_face_come_back_byte_for_byte_from_every_mesh(self):
        export = ["--training.steps=1", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only", "--checkpoint.export_dtype=float32"]
        self.run_job(*export, "--checkpoint.folder=hf", code=0)
        exported = self.folder / "out" / "hf" / "step-1"
        # A step so small that no weight changes.
        start = [*export, "--checkpoint.initial_load_in_hf", f"--checkpoint.initial_load_path={exported}", "--optimizer.lr=1e-30"]
        tensor = "--parallelism.tensor_parallel_degree=2"
        for name, ranks, options in (("t2", 2, [tensor]), ("2xt2", 4, [tensor]), ("2x1xt2", 4, [tensor, self.replicas(2)])):
            with self.subTest(mesh=name):
                self.run_job(*start, *options, f"--checkpoint.folder={name}", ranks=ranks, code=0)
                self.assertEqual((self.folder / "out" / name / "step-1" / "model.safetensors").read_bytes(),
                                 (exported / "model.safetensors").read_bytes())


class Folders(CheckpointTest):
    def test_a_folder_that_rank_0_alone_sees_is_no_checkpoint_to_resume_from_and_none_to_go_back_from(self):
        self.run_job("--job.dump_folder=out", ranks=2, code=0)
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        for replaced in (False, True):  # nothing is there, or another file
            if replaced:
                shutil.copytree(self.folder / "out", elsewhere / "out")
                with open(elsewhere / "out" / "checkpoint" / "step-8" / ".metadata", "ab") as file:
                    file.write(b".")
            self.run_job("--job.dump_folder=out", "--training.steps=10", "--lr_scheduler.total_steps=8",
                         "--lr_scheduler.min_lr_factor=0.1", ranks=2, before={1: ["env", "-C", elsewhere]}, code=65,
                         says=["rank 1: out/checkpoint/step-8/.metadata", "but rank 0 reads",
                               "must be on a file system that all nodes share"])
        self.assertEqual(self.saved()[0], [3, 6, 8])


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
                    self.assertIn("hyperion: the checkpoint is of another model: " + says, text)
                    self.assertNotIn("layers.0", text)  # the tensors add nothing to that
                    self.assertNotIn("checkpoint.rename", text)
                    remedy = printed_options(text[text.index("to use it, start with"):])
                    self.run_job(*options, *start, *remedy, "--training.steps=4", "--lr_scheduler.total_steps=8", code=0)
                    shutil.rmtree(self.folder / "out" / "new", ignore_errors=True)
                    shutil.rmtree(self.step(4), ignore_errors=True)

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
        done = warm_start.run([BINARY, "eval", exported, "--config", other, "--data", self.folder / "data.jsonl"])
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("another model: 2 layers there, 3 here", done.stderr)

    def test_weights_in_the_other_format_are_named_with_the_key_to_set(self):
        self.run_job("--training.steps=1", code=0)
        exported = self.folder / "exported"
        self.tool("convert", self.step(1), exported, "--to", "safetensors", "--config", self.folder / "job.toml")
        new, path, hf = "--checkpoint.folder=new", "--checkpoint.initial_load_path=", "--checkpoint.initial_load_in_hf"
        dcp = self.step(1)
        self.run_job(new, hf, f"{path}{dcp}", code=65,
                     says=["a checkpoint in DCP format", "--checkpoint.initial_load_in_hf=false"])
        self.run_job(new, f"{path}{exported}", code=65,
                     says=["holds safetensors (Hugging Face's format)", "--checkpoint.initial_load_in_hf=true"])
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
