"""Checkpoints of the real program: before step 1, while training, and everything that a resumed run must keep.

    python3 tests/faults/checkpoint_test.py build/hyperion
"""

import json
import os
import shutil
import signal
import unittest

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, ROOT, main


class PreCheckpoint(CheckpointTest):
    def test_a_full_checkpoint_is_written_and_read_back_before_step_1(self):
        job = self.run_job("--checkpoint.interval=500", "--training.steps=2", code=0, ranks=2,
                           says=["[pre-checkpoint]", "read back"])
        text = job.text()
        self.assertLess(text.index("[pre-checkpoint]"), text.index("step:  1"))
        self.assertEqual((self.saved(), self.manifest(2)["kind"]), (([2], []), "full"))

    def test_one_key_turns_the_pre_checkpoint_off_and_the_log_says_so(self):
        self.run_job("--checkpoint.no_validate_before_training", "--training.steps=3", code=0,
                     says=["validate_before_training = false"])
        self.assertEqual(self.saved()[0], [3])

    def test_background_saves_have_their_pool_before_step_1_and_other_jobs_have_none(self):
        line = "Background saves copy the state to a pool of"
        for validates in ("validate", "no_validate"):
            job = self.run_job("--checkpoint.async_mode=async", f"--checkpoint.{validates}_before_training", code=0, ranks=2)
            self.assertEqual(job.text().count(line), 1)
            self.assertLess(job.text().index(line), job.text().index("step:  1"))
            shutil.rmtree(self.steps_folder)
        for options in (["--checkpoint.async_mode=async", "--checkpoint.interval=8"], ["--checkpoint.async_mode=disabled"]):
            job = self.run_job(*options, "--checkpoint.no_validate_before_training", code=0)
            self.assertNotIn(line, job.text())
            shutil.rmtree(self.steps_folder)

    def test_a_path_that_cannot_be_used_is_73_before_any_step(self):
        (self.folder / "out").mkdir()
        (self.folder / "out" / "checkpoint").write_text("a file")
        job = self.run_job(code=73, ranks=2, says=["[pre-checkpoint]", "rank 0", str(self.steps_folder)])
        self.assertNotIn("step:  1", job.text())

    def test_a_file_or_link_with_the_name_of_a_step_is_73_before_any_step(self):
        for make in (lambda path: path.write_text("mine"), lambda path: path.symlink_to(self.folder)):
            for step, ranks, options in ((1, 2, []), (4, 2, []), (0, 2, []),
                                         (0, 1, ["--checkpoint.create_seed_checkpoint"]),
                                         (8, 2, ["--checkpoint.no_validate_before_training"])):
                with self.subTest(step=step, options=options):
                    self.steps_folder.mkdir(parents=True, exist_ok=True)
                    make(self.step(step))
                    job = self.run_job(*options, code=73, ranks=ranks,
                                       says=["[pre-checkpoint]", f"step-{step}: is ", "move it away"])
                    self.assertNotIn("step:  1", job.text())
                    self.assertEqual(self.saved(), ([step], []))
                    self.step(step).unlink()
        self.step(9).write_text("beyond the last step")
        self.run_job(code=0, ranks=2)

    def test_a_full_disk_is_73_before_step_1_and_74_in_a_later_save(self):
        fault = {"FAULT": "rank=1;point=file.write;action=errno:ENOSPC;on=__1_0"}
        self.run_job("--allow-faults", code=73, ranks=2, env=fault,
                     says=["[pre-checkpoint]", "rank 1", "No space left", "__1_0.distcp"])
        self.assertEqual(self.saved(), ([], []))
        fault["FAULT"] += ";nth=2"
        job = self.run_job("--allow-faults", code=74, ranks=2, env=fault, says=["rank 1", "No space left"])
        self.assertNotIn("[pre-checkpoint] the checkpoint", job.text())
        self.assertEqual(self.saved()[1], [])

    def test_a_byte_that_changes_on_its_way_to_the_disk_is_found_before_step_1(self):
        self.run_job("--allow-faults", code=73, env={"FAULT": "point=file.write;action=flip;on=__0_0"},
                     says=["[pre-checkpoint]", "__0_0.distcp"])
        self.assertEqual(self.saved(), ([], []))

    def test_a_run_killed_right_after_the_pre_checkpoint_resumes_from_it(self):
        expected = self.control(ranks=2)
        job = self.start("--allow-faults", ranks=2, env={"FAULT": "point=step.data;action=kill"})
        self.assertIn(-signal.SIGKILL, job.codes())  # the other rank may have lost this one before it came there
        self.assertIn("[pre-checkpoint]", job.text())
        self.run_job(code=0, ranks=2, says=["step-0"])
        self.assertEqual(self.curve(), expected)

    def test_the_pre_checkpoint_of_a_resume_touches_nothing_that_exists(self):
        self.run_job("--training.steps=6", code=0)
        before = {path: path.stat().st_mtime_ns for path in self.steps_folder.rglob("*") if path.name != ".lock"}
        for mode in ("full", "probe"):
            self.run_job("--training.steps=7", f"--checkpoint.validate_on_resume={mode}", "--checkpoint.interval=500",
                         "--lr_scheduler.total_steps=6", "--lr_scheduler.min_lr_factor=0.1",
                         "--checkpoint.on_config_change=override", "--checkpoint.load_step=6", code=0,
                         says=["under a temporary name"])
            after = {path: path.stat().st_mtime_ns for path in before}
            self.assertEqual(after, before)

    def test_step_0_is_outside_keep_latest_k_and_goes_with_the_first_durable_save(self):
        self.run_job("--checkpoint.interval=2", "--checkpoint.keep_latest_k=2", "--training.steps=8", code=0)
        self.assertEqual(self.saved(), ([6, 8], []))


class Resume(CheckpointTest):
    def check_resume(self, *options, ranks=1):
        expected = self.control(*options, ranks=ranks)
        self.run_job("--training.steps=5", "--lr_scheduler.total_steps=8", *options, ranks=ranks, code=0)
        self.run_job("--lr_scheduler.total_steps=8", "--checkpoint.load_step=3", *options, ranks=ranks, code=0,
                     says=["Training starts at step 4"])
        self.assertEqual(self.curve(), expected)

    def test_the_loss_lines_are_those_of_the_undisturbed_run_on_one_rank(self):
        self.check_resume()

    def test_the_loss_lines_are_those_of_the_undisturbed_run_on_two_ranks(self):
        self.check_resume(ranks=2)

    def test_the_loss_lines_are_those_of_the_undisturbed_run_with_hsdp_and_one_writing_replica(self):
        self.check_resume("--parallelism.data_parallel_replicate_degree=2", "--training.local_batch_size=1",
                          "--checkpoint.writers=one_replica", ranks=4)
        self.assertEqual(sorted(path.name for path in self.step(3).iterdir() if path.suffix == ".distcp"),
                         ["__0_0.distcp", "__1_0.distcp"])

    def test_the_loss_lines_are_those_of_the_undisturbed_run_with_asynchronous_saves_and_averages(self):
        for mode in ("async", "async_with_pinned_mem"):
            with self.subTest(mode=mode):
                self.check_resume(f"--checkpoint.async_mode={mode}", "--ema.enable", ranks=2)
            self.temporary.cleanup()
            self.setUp()

    def test_the_loss_lines_are_those_of_the_undisturbed_run_with_uneven_shards(self):
        self.check_resume("--model.args.dim=36", "--model.args.n_heads=2", "--model.args.n_kv_heads=2", "--model.args.hidden_dim=50", "--training.local_batch_size=1",
                          "--training.global_batch_size=6", ranks=3)

    def test_another_mesh_resumes_with_the_same_batches(self):
        fp32 = "--training.mixed_precision_param=float32"
        expected = self.control(fp32)
        self.run_job(fp32, "--training.steps=3", "--lr_scheduler.total_steps=8", "--training.local_batch_size=1", ranks=4, code=0)
        self.run_job(fp32, "--lr_scheduler.total_steps=8", ranks=2, code=0, says=["seeded by (seed, step, rank)"])
        for step, (loss, norm, rate) in self.curve().items():
            self.assertAlmostEqual(loss, expected[step][0], delta=5e-6)
            self.assertEqual(rate, expected[step][2])

    def test_changing_steps_alone_leaves_the_learning_rate_as_it_was(self):
        expected = self.control(steps=8)
        self.run_job("--training.steps=8", code=0)
        self.run_job("--training.steps=6", "--checkpoint.load_step=3", code=0, says=["keeps its 8 steps"])
        self.assertEqual({step: self.curve()[step] for step in expected}, expected)

    def test_a_changed_setting_of_the_trajectory_is_refused_with_both_values(self):
        self.run_job("--training.steps=4", code=0)
        self.run_job("--training.steps=4", "--optimizer.lr=1e-3", "--checkpoint.load_step=3", code=2,
                     says=["optimizer.lr", "0.0008", "0.001"])

    def test_settings_are_compared_although_the_learning_rate_curve_is_left_out(self):
        self.run_job("--training.steps=4", code=0)
        left_out = ["--training.steps=6", "--checkpoint.exclude_from_loading=lr_scheduler"]
        self.run_job(*left_out, "--training.max_norm=0.5", code=2, says=["training.max_norm: saved 1.0, configured 0.5"])
        self.run_job(*left_out, "--optimizer.lr=1e-3", code=0, says=["the learning-rate curve starts again at step 5"])

    def test_transfer_loads_weights_alone_and_starts_at_step_1(self):
        self.run_job("--training.steps=6", code=0)
        job = self.run_job("--training.steps=2", "--checkpoint.resume_mode=transfer", "--checkpoint.folder=other",
                           f"--checkpoint.initial_load_path={self.step(6)}", code=0, says=["Training starts at step 1"])
        self.assertNotIn("seeded by", job.text())

    def test_a_resume_logs_every_key_that_differs_from_the_checkpoint(self):
        self.run_job("--training.steps=4", "--lr_scheduler.total_steps=8", code=0)
        self.run_job("--training.steps=4", "--lr_scheduler.total_steps=8", "--checkpoint.load_step=3", code=0,
                     says=["the configuration differs from the checkpoint's in 1 key: checkpoint.load_step: -1 -> 3"])

    def test_a_run_that_resumes_twice_has_the_loss_lines_of_the_undisturbed_run(self):
        expected = self.control()
        for last in (3, 6, 8):
            self.run_job(f"--training.steps={last}", "--lr_scheduler.total_steps=8", code=0)
        self.assertEqual(self.curve(), expected)

    def test_a_finished_run_with_a_last_save_of_weights_alone_can_be_extended(self):
        expected = self.control(steps=8)
        self.run_job("--training.steps=7", "--lr_scheduler.total_steps=8", "--checkpoint.last_save_model_only", code=0)
        self.assertEqual(self.manifest(7)["kind"], "model")
        self.run_job("--lr_scheduler.total_steps=8", code=0, says=["step-7", "weights alone", "Training starts at step 7"])
        self.assertEqual(self.curve(), expected)

    def test_a_missing_load_step_is_an_error(self):
        self.run_job("--checkpoint.load_step=9", code=65, says=["load_step = 9"])

    def test_seed_checkpoint_gives_every_mesh_the_same_start(self):
        self.run_job("--checkpoint.create_seed_checkpoint", "--debug.seed=5", code=0)
        self.assertEqual(self.manifest(0)["kind"], "seed")
        self.run_job("--training.steps=2", "--checkpoint.interval=1", ranks=2, code=0, says=["step-0"])
        self.assertEqual(self.saved()[0], [0, 1, 2])

    def test_every_component_loads_alone(self):
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", "--ema.enable", code=0)
        load = ["--checkpoint.resume_mode=continue", f"--checkpoint.initial_load_path={self.step(6)}",
                "--checkpoint.no_initial_load_model_only", "--ema.enable", "--ema.on_missing=init_from_model"]
        for parts in ("model", "optimizer", "lr_scheduler", "dataloader", "train_state", "rng", "ema", "model,ema",
                      "model,optimizer,train_state", "model,optimizer,lr_scheduler,dataloader,train_state,rng,ema"):
            with self.subTest(parts=parts):
                first = 7 if "train_state" in parts else 1
                self.run_job(*load, f"--checkpoint.components={parts}", f"--training.steps={first}",
                             "--checkpoint.no_validate_before_training", f"--checkpoint.folder={parts}", code=0,
                             says=[f"Training starts at step {first}"])

    def test_the_step_after_a_resume_is_marked(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        self.run_job("--training.steps=5", "--lr_scheduler.total_steps=8", code=0, says=["Resumed after step 3"])
        marks = [line["step"] for line in self.metrics() if "resume/step" in line]
        self.assertEqual(marks, [4])


class Averages(CheckpointTest):
    def test_averages_that_only_the_job_or_only_the_checkpoint_has_are_named(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        more = ["--training.steps=4", "--lr_scheduler.total_steps=8", "--checkpoint.load_step=3", "--ema.enable"]
        self.run_job(*more, code=65, says=["ema.on_missing"])
        self.run_job(*more, "--ema.on_missing=init_from_model", code=0, says=["start from the weights"])
        self.run_job("--training.steps=5", "--lr_scheduler.total_steps=8", "--checkpoint.load_step=4", code=0,
                     says=["which this job does not use"])

    def test_averages_that_were_loaded_are_not_overwritten(self):
        self.run_job("--training.steps=3", "--ema.enable", code=0)
        self.run_job("--ema.enable", f"--checkpoint.initial_load_path={self.step(3)}", "--checkpoint.components=model,ema",
                     "--checkpoint.resume_mode=continue", "--checkpoint.no_initial_load_model_only",
                     "--checkpoint.create_seed_checkpoint", "--checkpoint.folder=second", code=0)
        first, second = ({key: value for key, value in self.contents(path).items() if key.startswith("ema.")}
                         for path in (self.step(3), self.folder / "out" / "second" / "step-0"))
        self.assertIn("ema.norm.weight", first)
        self.assertEqual(first, second)

    def test_averages_are_saved_in_the_same_checkpoint_as_the_weights(self):
        self.run_job("--training.steps=3", "--ema.enable", "--checkpoint.async_mode=async", ranks=2, code=0)
        listing = json.loads(self.tool("ls", self.step(3), "--json"))
        self.assertIn("ema.norm.weight", json.dumps(listing))
        self.assertEqual(self.saved(), ([3], []))

    def test_averages_on_the_host_are_saved_with_the_same_contents(self):
        digests = []
        for device in ("same", "cpu"):
            self.run_job("--training.steps=4", "--ema.enable", f"--ema.device={device}", f"--checkpoint.folder={device}", code=0)
            digests.append(self.tool("digest", self.folder / "out" / device / "step-4"))
        self.assertEqual(*digests)


class Contents(CheckpointTest):
    def digest(self, folder, step):
        return self.tool("digest", self.folder / "out" / folder / f"step-{step}")

    def test_async_saves_hold_the_state_of_their_step_and_not_of_the_next(self):
        options = ["--training.steps=5", "--checkpoint.interval=2", "--ema.enable"]
        self.run_job(*options, ranks=2, code=0)
        for mode in ("async", "async_with_pinned_mem"):
            self.run_job(*options, f"--checkpoint.folder={mode}", f"--checkpoint.async_mode={mode}", "--allow-faults",
                         env={"FAULT": "point=ckpt.stage;action=sleep:0.3;nth=0"}, ranks=2, code=0)
            self.assertEqual(self.digest(mode, 2), self.digest("checkpoint", 2))
            self.assertEqual(self.digest(mode, 4), self.digest("checkpoint", 4))

    def test_all_writers_and_one_replica_save_the_same_contents_in_their_own_number_of_files(self):
        fp32 = ["--training.mixed_precision_param=float32", "--training.steps=1", "--training.local_batch_size=1"]
        hsdp = "--parallelism.data_parallel_replicate_degree=2"
        self.run_job(*fp32, hsdp, ranks=4, code=0)
        self.run_job(*fp32, hsdp, "--checkpoint.writers=one_replica", "--checkpoint.folder=few", ranks=4, code=0)
        self.assertEqual(self.digest("few", 1), self.digest("checkpoint", 1))
        names = [sorted(path.name for path in (self.folder / "out" / folder / "step-1").glob("*.distcp"))
                 for folder in ("checkpoint", "few")]
        self.assertEqual(names, [[f"__{rank}_0.distcp" for rank in range(4)], [f"__{rank}_0.distcp" for rank in range(2)]])

    def test_the_state_can_be_listed_and_compared_without_training(self):
        table = self.run_job("--dump-state-dict", code=0).text()
        self.assertIn("optimizer.state.layers.1.attention.wq.weight.exp_avg", table)
        self.assertNotIn("step:  1", table)
        self.run_job("--training.steps=1", code=0)
        self.tool("diff", self.folder / "job.toml", self.step(1))
        other = (self.folder / "job.toml").read_text().replace("n_layers = 2", "n_layers = 3")
        (self.folder / "other.toml").write_text(other)
        self.assertIn("layers.2", self.tool("diff", self.folder / "other.toml", self.step(1), code=65))

    def test_a_rename_that_does_not_fit_the_model_is_refused_with_both_names(self):
        self.run_job("--training.steps=1", code=0)
        rename = ["--checkpoint.rename=norm.weight=final.weight"]
        load = ["--training.steps=1", "--checkpoint.folder=new", f"--checkpoint.initial_load_path={self.step(1)}"]
        self.run_job(*load, *rename, code=65, says=["norm.weight", "final.weight"])
        self.run_job(*load, code=0)

    def test_a_hugging_face_export_holds_the_weights_and_starts_a_job(self):
        self.run_job("--training.steps=2", ranks=2, code=0)
        export = ["--training.steps=2", "--checkpoint.folder=hf", "--checkpoint.last_save_in_hf",
                  "--checkpoint.last_save_model_only"]
        self.run_job(*export, ranks=2, code=0, says=["for Hugging Face"])
        exported = self.folder / "out" / "hf" / "step-2"
        self.assertTrue((exported / "model.safetensors").exists() and (exported / "config.json").exists())
        self.tool("convert", exported, self.folder / "dcp", "--to=dcp")
        digest = [self.tool("digest", path, "--prefix=layers.").splitlines()[:-1]
                  for path in (self.folder / "dcp", self.step(2))]
        self.assertEqual(*digest)
        self.run_job("--training.steps=1", "--checkpoint.folder=third", "--checkpoint.initial_load_in_hf", "--model.flavor=from_hf",
                     f"--checkpoint.initial_load_path={exported}", ranks=2, code=0, says=["Training starts at step 1"])

    def test_generate_and_eval(self):
        self.run_job("--training.steps=2", "--ema.enable", code=0)
        for command in (["generate", self.step(2), "--prompt", "Document", "--max-tokens", "4"],
                        ["eval", self.step(2), "--data", self.folder / "data.jsonl", "--seq-len", "32", "--ema"]):
            done = warm_start.run([BINARY, *map(str, command)], cwd=ROOT)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue(done.stdout.strip())


class Signals(CheckpointTest):
    def test_term_to_one_rank_saves_once_and_is_75(self):
        expected = self.control(ranks=2, steps=60)
        job = self.start("--training.steps=60", "--checkpoint.interval=1000", "--allow-faults", ranks=2,
                         env={"FAULT": "rank=1;point=step.opt;action=stop;nth=4"})
        job.signal_at_stop(1, signal.SIGUSR1)
        self.assertEqual(job.codes(), [75, 75], job.text())
        self.assertRegex(job.text(1), r"USR1 received in step \d+: stopping after it\n")
        self.run_job("--training.steps=60", "--checkpoint.interval=1000", ranks=2, code=0)
        self.assertEqual(self.curve(), expected)

    def test_the_running_step_is_the_last_and_ctrl_c_saves_it(self):
        slow = ["--training.steps=8", "--checkpoint.interval=1000", "--allow-faults"]
        expected = self.control(ranks=2)
        for number, step, code in ((signal.SIGINT, 2, 130), (signal.SIGTERM, 4, 75)):
            job = self.start(*slow, ranks=2, env={"FAULT": "rank=0;point=step.opt;action=stop;nth=2"})
            job.signal_at_stop(0, number)  # in the second step of this run
            self.assertEqual(job.codes(), [code, code], job.text())
            self.assertIn(f"received in step {step}: stopping after it", job.text())
            self.assertIn(f"after step {step}; the state is saved", job.text())
            self.assertEqual(self.saved()[0][-1], step)
            self.assertNotIn(f"step:  {step + 1}", job.text())
        self.run_job(*slow, ranks=2, code=0)
        self.assertEqual(self.curve(), expected)

    def test_a_stop_right_after_a_periodic_save_does_not_save_again(self):
        job = self.start("--checkpoint.interval=2", "--allow-faults", env={"FAULT": "point=step.opt;action=stop;nth=2"})
        job.signal_at_stop(0, signal.SIGTERM)
        self.assertEqual(job.codes(), [75], job.text())
        self.assertEqual(job.text().count("Checkpoint step-2 is durable"), 1)


class Faults(CheckpointTest):
    def damaged(self, damage):
        expected = self.control()
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", code=0)
        damage(self.step(6))
        self.run_job("--lr_scheduler.total_steps=8", code=0, says=["step-6", "trying the one before it"])
        self.assertEqual(self.curve(), expected)

    def flip(self, name, where):
        def damage(step):
            data = bytearray((step / name).read_bytes())
            data[int(len(data) * where)] ^= 1
            (step / name).write_bytes(data)
        return damage

    def test_a_flipped_bit_in_a_shard_falls_back_to_the_checkpoint_before(self):
        self.damaged(self.flip("__0_0.distcp", 0.3))

    def test_the_checkpoint_before_a_damaged_one_is_compared_with_the_settings_too(self):
        curve = "--lr_scheduler.total_steps=8"
        self.run_job("--training.steps=3", curve, code=0)
        self.run_job("--training.steps=6", curve, "--training.max_norm=0.5", "--checkpoint.on_config_change=override", code=0)
        # The second read of the file is the load's; the first one reads the values by which the start is decided.
        damaged = {"ranks": 1, "env": {"FAULT": "point=file.read;on=step-6/__0_0;action=flip;nth=2"}}
        changed = [curve, "--training.max_norm=0.5", "--training.steps=7", "--allow-faults"]
        self.run_job(*changed, **damaged, code=2,
                     says=["step 3 was saved with other settings", "training.max_norm: saved 1.0, configured 0.5"])
        self.run_job(*changed, "--optimizer.lr=8e-4", "--checkpoint.on_config_change=keep", **damaged, code=65,
                     says=["step-6 is damaged", "step-3 before it was saved with other settings", "--checkpoint.load_step=3"])
        self.run_job(*changed, "--checkpoint.on_config_change=override", **damaged, code=0,
                     says=["training.max_norm: taking 0.5 from the configuration (saved: 1.0)", "Training starts at step 4"])

    def test_a_flipped_bit_in_the_index_falls_back_to_the_checkpoint_before(self):
        self.damaged(self.flip(".metadata", 0.5))

    def test_a_damaged_manifest_is_passed_over_and_a_truncated_shard_that_was_asked_for_is_refused(self):
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", code=0)
        self.flip("hyperion.json", 0.5)(self.step(6))
        self.run_job("--lr_scheduler.total_steps=8", code=0, says=["step-6 is not resumed from", "step-3"])
        os.truncate(self.step(8) / "__0_0.distcp", 1000)
        self.run_job("--training.steps=9", "--checkpoint.load_step=8", code=65, says=["__0_0.distcp", "1000"])

    def test_what_does_not_fit_is_listed_in_one_message(self):
        self.run_job("--training.steps=1", code=0)
        load = ["--training.steps=1", f"--checkpoint.initial_load_path={self.step(1)}"]
        self.run_job(*load, "--model.args.n_layers=3", "--model.args.hidden_dim=80", "--checkpoint.folder=shapes", code=65,
                     says=["the checkpoint is of another model: 2 layers there, 3 here", "80 here"])
        self.run_job(*load, "--model.args.n_layers=1", "--checkpoint.folder=extra", code=65, says=["of another model: 2 layers there, 1 here"])
        narrow = self.folder / "narrow"
        self.tool("convert", self.step(1), narrow, "--to=dcp", "--dtype=bfloat16")
        load = ["--training.steps=1", f"--checkpoint.initial_load_path={narrow}", "--checkpoint.folder=cast"]
        self.run_job(*load, code=65, says=["bfloat16", "float32", "checkpoint.allow_dtype_cast"])
        self.run_job(*load, "--checkpoint.allow_dtype_cast", code=0, says=["WARNING", "Training starts at step 1"])

    def test_an_incompatible_checkpoint_is_no_damage_and_no_older_one_is_tried_and_nothing_is_written(self):
        keep = ["--lr_scheduler.total_steps=20", "--checkpoint.interval=100"]
        self.run_job(*keep, "--ema.enable", "--training.steps=4", ranks=2, code=0)
        self.run_job(*keep, "--training.steps=12", ranks=2, code=0)
        before = self.files()
        for options, says in ((["--ema.enable"], "holds no averaged weights"),
                              (["--model.args.n_layers=3", "--model.args.hidden_dim=80"], "2 layers there, 3 here"),
                              (["--checkpoint.rename=norm.weight=output.weight"], "both become")):
            with self.subTest(says=says):
                job = self.run_job(*keep, *options, "--training.steps=8", ranks=2, code=65, says=[says])
                self.assertEqual(job.text().count("hyperion: "), 1)
                self.assertNotIn("trying the one before it", job.text())
                self.assertNotIn("step-4", job.text())
                self.assertEqual(self.files(), before)
        self.run_job(*keep, "--ema.enable", "--ema.on_missing=init_from_model", "--training.steps=13", ranks=2, code=0,
                     says=["Training starts at step 13"])

    def test_a_finished_run_says_so_and_writes_nothing(self):
        self.run_job(ranks=2, code=0)
        before = self.files()
        job = self.run_job(ranks=2, code=0, says=["Nothing is left to do: step 8 is done already"])
        self.assertEqual(self.files(), before)
        for text in ("pre-checkpoint", "is durable", "Training starts"):
            self.assertNotIn(text, job.text())

    def test_newer_checkpoints_that_stay_are_named(self):
        self.run_job(code=0)
        job = self.run_job("--checkpoint.load_step=3", "--training.steps=4", code=0,
                           says=["resumes from step-3; newer checkpoints stay", "(step-6, step-8)"])
        self.assertEqual(self.saved()[0][-4:], [3, 4, 6, 8])
        self.assertNotIn("newer checkpoints stay", self.run_job("--training.steps=9", "--lr_scheduler.total_steps=9", code=0).text())

    def test_a_damaged_newest_checkpoint_ends_the_job_where_no_older_one_may_be_taken(self):
        self.run_job(code=0)
        more = ["--training.steps=9", "--lr_scheduler.total_steps=8", "--lr_scheduler.min_lr_factor=0.1",
                "--checkpoint.on_config_change=override"]
        kept = self.folder / "kept"
        shutil.copytree(self.steps_folder, kept)
        damages = {"a flipped bit in the manifest": self.flip("hyperion.json", 0.5),
                   "an empty manifest": lambda step: os.truncate(step / "hyperion.json", 0),
                   "a cut index": lambda step: os.truncate(step / ".metadata", 1000),
                   "no index": lambda step: (step / ".metadata").unlink(),
                   "a cut shard": lambda step: os.truncate(step / "__0_0.distcp", 1000),
                   "a flipped bit in the index": self.flip(".metadata", 0.5),
                   "no shard": lambda step: (step / "__0_0.distcp").unlink()}
        for name, damage in damages.items():
            with self.subTest(name):
                shutil.rmtree(self.steps_folder)
                shutil.copytree(kept, self.steps_folder)
                damage(self.step(8))
                before = self.files()
                self.run_job(*more, "--checkpoint.on_corrupt=error", code=65, says=["step-8"])
                self.assertEqual(self.files(), before)
        # One kind is enough to see what a start that goes back says.
        self.run_job(*more, code=0, says=["resumes from step-6; newer checkpoints stay", "(step-8 (damaged))",
                                          "steps 7 to 8 are trained again"])

    def test_a_run_that_counts_from_0_again_names_the_checkpoints_that_stay(self):
        self.run_job(code=0)
        self.run_job("--training.steps=3", "--checkpoint.exclude_from_loading=train_state", code=0,
                     says=["train_state of the checkpoint at step 8 is not read",
                           "starts from step-8 and counts from step 0; newer checkpoints stay", "step-6, step-8"])

    def test_weights_that_would_be_taken_for_the_end_of_the_run_are_named(self):
        self.run_job("--checkpoint.last_save_model_only", code=0)
        self.run_job("--checkpoint.load_step=3", "--checkpoint.last_save_model_only", "--training.steps=8", code=0,
                     says=["step-6, step-8 (weights alone)", "takes weights of the last step for the end of the run"])

    def test_a_nan_in_a_checkpoint_is_refused(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        export = self.folder / "weights"
        self.tool("convert", self.step(3), export, "--to=safetensors")
        file = export / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-4:] = b"\x00\x00\xc0\x7f"
        file.write_bytes(data)
        self.run_job("--checkpoint.folder=other", "--checkpoint.initial_load_in_hf",
                     f"--checkpoint.initial_load_path={export}", code=65, says=["NaN"])

    def test_a_second_run_in_the_same_folder_is_refused(self):
        first = self.start("--training.steps=100000", "--checkpoint.interval=100000")
        first.wait_for("step:  2")
        other = self.folder / "second"
        other.mkdir()
        self.prepare(other)
        job = self.run_job(f"--job.dump_folder={self.folder}/out", folder=other, code=2, says=["another run", "process", "host"])
        self.assertNotIn("step:  1", job.text())
        first.ranks[0][0].kill()
        first.codes()

    def test_foreign_names_in_the_checkpoint_folder_are_left_alone(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        for name in ("tmp_step-9", "step-9.bak", "step-x"):
            (self.steps_folder / name).mkdir()
        (self.steps_folder / "step-7").write_text("")
        self.run_job("--training.steps=5", "--lr_scheduler.total_steps=8", code=0, says=["Training starts at step 4"])
        self.assertEqual(len(list(self.steps_folder.iterdir())), 4 + 2 + 1)

    def test_faults_are_refused_without_the_flag(self):
        self.run_job(code=2, env={"FAULT": "point=ckpt.plan;action=kill"}, says=["--allow-faults"])


if __name__ == "__main__":
    main()
