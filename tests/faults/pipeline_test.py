"""Jobs of the real program whose ranks have a few layers each: the bits of one rank that runs the same microbatches, one digest for every
mesh, what becomes of the others when a rank is killed, and what is refused.

    python3 tests/faults/pipeline_test.py build/hyperion

Standard library only.
"""

import re
import shutil
import signal

from checkpoints import CheckpointTest
from jobs import PATIENCE, ROOT, JobTest, main

PP = "--parallelism.pipeline_parallel_degree="
SCHEDULE = "--parallelism.pipeline_parallel_schedule="
ALWAYS = "--parallelism.fsdp_reshard_after_forward=always"
ONE = ("--training.local_batch_size=1", "--training.global_batch_size=4")  # four microbatches, one after the other
TIED = ("--model.name=qwen3", "--model.flavor=debugmodel", "--model.args.n_kv_heads=2")
EXPERTS = ("--model.name=deepseek_v3", "--model.args.n_layers=3", "--model.args.kv_lora_rank=8", "--model.args.qk_nope_head_dim=4",
           "--model.args.qk_rope_head_dim=4", "--model.args.v_head_dim=4", "--model.args.hidden_dim=48", "--model.args.num_experts=4",
           "--model.args.top_k=2", "--model.args.moe_hidden_dim=16")  # the first of its three blocks has none
FOUR = ("--training.local_batch_size=4", "--training.global_batch_size=4", ALWAYS)


class Pipeline(JobTest):
    def steps(self, *options, ranks=1):
        lines = self.metrics_of(*options, ranks=ranks)
        names = ("loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "n_tokens_seen")
        steps = [{name: line[name] for name in names if name in line} for line in lines]
        # A validation batch of one rank is one sum, of a pipeline one for each microbatch.
        return steps, [round(line["validation_metrics/loss"], 6) for line in lines if "validation_metrics/loss" in line]

    def test_every_schedule_prints_the_losses_and_norms_of_one_rank(self):
        validation = ["--validation.enable", "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl",
                      "--validation.seq_len=32", "--validation.local_batch_size=2", "--validation.sequences=6", "--validation.freq=2"]
        csv = self.folder / "order.csv"
        csv.write_text("0F0,0F1,,,0B0,0F2,0F3,0B1,,0B2,,0B3\n,1F0,1B0,1F1,1B1,,1F2,1B2,1F3,1B3,,\n")
        halves = self.folder / "halves.csv"
        halves.write_text("0F0,0F1,0I0,0F2,0I1,0W0,0F3,0W1,0B2,0I3,0W3\n1F0,1B0,1F1,1I1,1F2,1W1,1I2,1F3,1I3,1W2,1W3\n")
        for more in ([], ["--training.document_mask", "--ema.enable", "--activation_checkpoint.mode=full", *validation]):
            one = self.steps(*ONE, *more)
            for ranks, options in ((2, [PP + "2"]), (4, [PP + "4", SCHEDULE + "GPipe"]), (2, [PP + "2", SCHEDULE + "Interleaved1F1B"]),
                                   (2, [PP + "2", SCHEDULE + "InterleavedZeroBubble"]), (2, [PP + "2", SCHEDULE + "ZBVZeroBubble"]),
                                   (2, [PP + "2", SCHEDULE + "DualPipeV"]),
                                   (2, [PP + "2", f"--parallelism.pipeline_parallel_schedule_csv={csv}"]),
                                   (2, [PP + "2", f"--parallelism.pipeline_parallel_schedule_csv={halves}"]),
                                   (2, [PP + "2", "--parallelism.pipeline_parallel_microbatch_size=1", "--training.global_batch_size=4",
                                        "--training.local_batch_size=2"])):
                with self.subTest(ranks=ranks, options=options, more=more):
                    self.assertEqual(self.steps(*FOUR, *options, *more, ranks=ranks), one)

    def test_weights_gathered_and_gradients_reduced_once_a_step_give_the_same_losses_to_1e_6(self):
        options = ("--training.local_batch_size=4", "--training.global_batch_size=8", PP + "2")
        once, _ = self.steps(*options, ranks=4)
        every, _ = self.steps(*options, ALWAYS, ranks=4)
        self.assert_near(once, every)

    def assert_near(self, steps, expected):
        steps, expected = ([line for line in lines if "grad_norm" in line] for lines in (steps, expected))
        self.assertEqual(len(steps), 5)
        for a, b in zip(steps, expected, strict=True):
            self.assertLess(abs(a["loss_metrics/global_avg_loss"] - b["loss_metrics/global_avg_loss"]), 1e-6 * b["loss_metrics/global_avg_loss"])
            self.assertLess(abs(a["grad_norm"] - b["grad_norm"]), 1e-5 * b["grad_norm"])

    def test_a_tied_table_on_two_ranks_has_the_losses_of_one_rank_to_1e_6(self):
        more = (*TIED, "--training.mixed_precision_param=float32", "--ema.enable", "--ema.validate_with_ema", "--validation.enable",
                "--validation.dataset=jsonl",
                f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.seq_len=32", "--validation.local_batch_size=2",
                "--validation.sequences=4", "--validation.freq=2")
        one, validated = self.steps(*ONE, *more)
        for ranks, options in ((2, (*FOUR, PP + "2")), (4, (*FOUR, PP + "4")), (4, (*FOUR, PP + "2", "--parallelism.tensor_parallel_degree=2")),
                               (4, ("--training.local_batch_size=2", "--training.global_batch_size=4", PP + "2")),
                               (2, (*FOUR, PP + "2", SCHEDULE + "InterleavedZeroBubble")),
                               (2, (*FOUR, PP + "2", SCHEDULE + "ZBVZeroBubble")),  # both ends on one rank
                               (4, ("--training.local_batch_size=2", "--training.global_batch_size=4", PP + "2", SCHEDULE + "ZBVZeroBubble",
                                    "--parallelism.data_parallel_replicate_degree=2"))):
            with self.subTest(options=options):
                steps, averages = self.steps(*options, *more, ranks=ranks)
                self.assert_near(steps, one)
                self.assertEqual(len(averages), len(validated))
                for a, b in zip(averages, validated, strict=True):
                    self.assertLess(abs(a - b), 2e-6 * b)

    def test_layers_of_all_stages_report_what_one_rank_reports(self):
        def activations(*options, ranks=1):
            self.steps("--metrics.log_layer_activations", *options, ranks=ranks)
            return [{name: value for name, value in line.items() if name.startswith("activations/")} for line in self.metrics()]
        one = activations(*ONE)
        self.assertEqual(sorted(one[0]), ["activations/max", "activations/rms/layers.0", "activations/rms/layers.1"])
        self.assertEqual(activations(*FOUR, PP + "2", ranks=2), one)
        self.assertEqual(activations(*FOUR, PP + "4", ranks=4), one)

    def test_ranks_that_lose_one_end_with_71_and_name_the_action(self):
        short = ("--comm.train_timeout_seconds=8", "--comm.peer_response_timeout_seconds=8")
        sharded = ("--training.local_batch_size=4", "--training.global_batch_size=8", ALWAYS, PP + "2")
        cells = {}
        for i, (point, action, rank, phase) in enumerate((
                ("step.fwd", "kill", 3, r"\(stage \d, microbatch \d\)"), ("step.bwd", "kill", 1, r"\(stage \d, microbatch \d\)"),
                ("step.send", "kill", 0, r"\(stage \d, microbatch \d\)"), ("step.receive", "kill", 2, r"\(stage \d, microbatch \d\)"),
                ("step.opt", "kill", 1, "gradient norm"), ("step.tied", "kill", 0, "sum of the tied table's gradients|gradient norm"),
                ("step.fwd", "stop", 1, r"\(stage \d, microbatch \d\)"), ("step.bwd", "stop", 3, r"\(stage \d, microbatch \d\)"),
                ("step.send", "stop", 2, r"\(stage \d, microbatch \d\)"), ("step.receive", "stop", 0, r"\(stage \d, microbatch \d\)"),
                ("step.tied", "stop", 3, "sum of the tied table's gradients|gradient norm"))):
            folder = self.folder / str(i)
            folder.mkdir()
            self.prepare(folder)
            # In the second step or later: until the first one has ended, comm.init_timeout_seconds is the limit.
            nth = 3 if point in ("step.opt", "step.tied") else 10
            cells[point, action, rank, phase] = self.start(
                "--training.steps=100000", *sharded, *TIED, *short, "--allow-faults", ranks=4, folder=folder,
                env={"FAULT": f"rank={rank};point={point};nth={nth};action={action}"})
        for (point, action, rank, phase), job in cells.items():
            with self.subTest(point=point, action=action):
                for survivor in {0, 1, 2, 3} - {rank}:
                    self.assertEqual(job.ranks[survivor][0].wait(timeout=PATIENCE), 71, job.text(survivor))
                    self.assertRegex(job.text(survivor), rf"in phase 'step \d+ .*(?:{phase})")
                    self.assertIn(f"rank {rank}", job.text(survivor).splitlines()[-1])
                job.kill()

    def test_a_rank_that_ends_between_the_halves_of_a_backward_ends_the_other_with_71(self):
        job = self.start("--training.steps=100000", *FOUR, PP + "2", SCHEDULE + "ZBVZeroBubble", "--allow-faults", ranks=2,
                         env={"FAULT": "rank=1;point=step.wgrad;nth=3;action=kill"})
        self.assertEqual(job.codes(), [71, -9], job.text())
        self.assertIn("pp/0", job.text())
        self.assertRegex(job.text(), r"in phase 'step \d+ .*stage \d, microbatch")

    def test_a_rank_that_is_killed_in_a_backward_through_experts_is_named_with_layer_and_stage(self):
        job = self.start("--training.steps=100000", *FOUR, *EXPERTS, PP + "2", "--parallelism.tensor_parallel_degree=2", "--allow-faults", ranks=4,
                         env={"FAULT": "rank=3;point=step.bwd;nth=6;action=kill"})
        self.assertEqual(job.codes(), [71, 71, 71, -9], job.text())
        # Its tensor parallel peer waits for the exchange of a block's experts, attention or head.
        self.assertRegex(job.text(2), r"tp/\d.* in phase 'step \d+ \w+ (layers\.\d|norm,output) \(stage 1, microbatch \d\)'")
        for rank in range(3):
            self.assertIn("rank 3", job.text(rank).splitlines()[-1])

    def test_logged_steps_have_the_measured_bubble_and_the_planned_one(self):
        self.run_job(*FOUR, PP + "2", "--metrics.log_freq=1", ranks=2, code=0)
        for line in (line for line in self.metrics() if "grad_norm" in line):
            self.assertTrue(0 < line["pipeline/bubble"] < 1, line)
            self.assertTrue(0.1 < line["pipeline/planned_bubble"] < 0.3, line)  # 1/5, and transfers
            self.assertIn(line["pipeline/slowest_rank"], (0, 1))
            self.assertTrue(1 <= line["pipeline/slowest_over_mean"] <= 2, line)

    def test_fewer_microbatches_than_ranks_and_a_key_without_use_are_warned_of(self):
        self.run_job("--training.local_batch_size=1", "--training.global_batch_size=1", PP + "2", "--training.steps=1", "--parallelism.no_pipeline_parallel_expert_parallel_overlap",
                     ranks=2, code=0, says=["a step has 1 microbatch, fewer than ranks: the planned bubble is 5",
                                            "what DualPipeV pairs runs one after the other in any case"])

    def test_the_preset_of_four_stages_trains_and_so_does_torchtitans_debug_preset_with_its_keys(self):
        steps = []
        for config, keys in ((ROOT / "configs/debug_model_pp2.toml", ()),
                             (ROOT / "tests/unit/trainer/config/presets/llama3_debug.toml", (PP + "2", SCHEDULE + "Interleaved1F1B"))):
            job = self.run_job("--training.steps=2", "--training.seq_len=64", "--debug.seed=1", f"--job.dump_folder={self.folder}/out", *keys, config=config, ranks=2, code=0,
                               says=["4 stages (tok_embeddings to layers.0 on pp rank 0; ", "Interleaved1F1B, 8 microbatches per step: planned bubble 6."])
            steps.append(re.findall(r"step: +\d+ +loss: +[\d.]+ +grad_norm: +[\d.]+", job.text()))
        self.assertEqual(len(steps[0]), 2)
        self.assertEqual(steps[0], steps[1])

    def test_a_dry_run_plays_any_rank(self):
        dry = ("--comm.mode=fake_backend", "--training.local_batch_size=4", PP + "2", "--training.steps=2", "--metrics.log_freq=1")
        for rank, code, said in ((0, 0, ["a dry run of rank 0 of 4 ranks", "step:  2"]), (3, 0, ["a dry run of rank 3 of 4 ranks", "step:  2"]),
                                 (4, 2, ['RANK = "4": comm.mode = "fake_backend" plays one of 4 ranks, 0 to 3'])):
            with self.subTest(rank=rank):
                job = self.start(*dry, env={"NGPU": 4, "RANK": rank, "WORLD_SIZE": ""})
                self.assertEqual(job.codes(), [code], job.text())
                for text in said:
                    self.assertIn(text, job.text())

    def test_a_loss_that_is_no_number_ends_all_stages_with_93_and_the_last_one_names_the_documents(self):
        job = self.run_job(*FOUR, PP + "2", "--optimizer.lr=1e38", ranks=2, code=93, says=["the ranks of the last pipeline stage have the losses"])
        self.assertRegex(job.text(1), r"step 2: the loss or the gradient norm is not finite .*; loss \S+ on .*data\.jsonl:")
        documents = re.findall(r"; loss \S+ on ([^;]*data\.jsonl:\S*\d)", job.text(1))
        self.assertEqual(len(set(documents)), 4, documents)  # those of each microbatch

    def test_microbatches_that_divide_into_rounds_in_a_step_alone_train(self):
        self.run_job("--training.local_batch_size=5", "--training.global_batch_size=10", PP + "2", SCHEDULE + "Interleaved1F1B", "--training.steps=1",
                     ranks=2, code=0, says=["10 microbatches per step"])

    def test_a_schedule_of_pairs_says_that_they_run_one_after_the_other(self):
        log = self.run_job(*FOUR, PP + "2", SCHEDULE + "DualPipeV", "--training.steps=2", ranks=2, code=0).text()
        self.assertEqual(log.count("the forward and the backward of a pair run one after the other"), 1, log)

    def test_keys_that_another_one_overrules_are_warned_of(self):
        self.run_job("--training.local_batch_size=4", PP + "2", "--training.steps=1", "--parallelism.fsdp_reduce_gradients=every_microbatch", ranks=2,
                     code=0, says=["parallelism.fsdp_reduce_gradients (command line) has no effect: a pipeline reduces once per step"])

    def test_what_cannot_run_is_refused_with_key_and_remedy(self):
        for options, said in (
                ([SCHEDULE + "DualPipeV", "--training.local_batch_size=3", "--training.global_batch_size=3"],
                 "needs at least 4 microbatches in a step, twice the 2 of pipeline_parallel_degree, and has 3: raise training.local_batch_size"),
                ([SCHEDULE + "InterleavedZeroBubble", "--training.local_batch_size=5", "--training.global_batch_size=5"],
                 "5 microbatches do not divide into 2 rounds"),
                (["--parallelism.pipeline_parallel_microbatch_size=3"], "training.local_batch_size = 4 is no multiple of"),
                (["--model.args.n_layers=1", SCHEDULE + "Interleaved1F1B"], "more than the 3 that there is to divide"),
                (["--parallelism.pipeline_parallel_schedule_csv=no.csv"], 'pipeline_parallel_schedule_csv = "no.csv": there is no such file'),
                ([SCHEDULE + "zigzag"], 'expected "GPipe"')):
            with self.subTest(options=options):
                self.run_job(*FOUR, PP + "2", *options, ranks=2, code=2, says=[said])


class PipelineCheckpoints(CheckpointTest):
    def digest(self, path):
        return self.tool("digest", path).splitlines()[-1].split()[0]

    def test_every_mesh_writes_one_digest_and_resumes_any_other(self):
        meshes = {"1": (1, ONE), "P2": (2, (*FOUR, PP + "2")), "P4": (4, (*FOUR, PP + "4")), "T2": (2, (*ONE, "--parallelism.tensor_parallel_degree=2")),
                  "F2 x P2": (4, ("--training.local_batch_size=2", "--training.global_batch_size=4", ALWAYS, PP + "2"))}
        common = ("--lr_scheduler.total_steps=4", "--ema.enable", "--checkpoint.no_last_save_model_only")
        digests = {}
        for mesh in ("1", "P2", "P4"):
            ranks, options = meshes[mesh]
            self.run_job(*options, *common, "--training.steps=4", f"--checkpoint.folder={mesh}", ranks=ranks, code=0)
            digests[mesh] = self.digest(self.folder / "out" / mesh / "step-4")
        self.assertEqual(len(set(digests.values())), 1, digests)
        for first, second in (("1", "P2"), ("P4", "1"), ("P2", "P4")):
            folder = f"--checkpoint.folder={first} then {second}"
            for mesh, steps in ((first, 2), (second, 4)):
                ranks, options = meshes[mesh]
                self.run_job(*options, *common, f"--training.steps={steps}", folder, ranks=ranks, code=0)
            self.assertEqual(self.digest(self.folder / "out" / f"{first} then {second}" / "step-4"), digests["1"], folder)
        for first, second in (("F2 x P2", "T2"), ("T2", "F2 x P2")):
            folder = f"--checkpoint.folder={first} then {second}"
            for mesh, steps in ((first, 2), (second, 3)):
                ranks, options = meshes[mesh]
                self.run_job(*options, *common, f"--training.steps={steps}", folder, ranks=ranks, code=0)

    def test_a_model_with_experts_has_one_digest_on_every_mesh_and_resumes_with_its_biases(self):
        common = (*EXPERTS, "--lr_scheduler.total_steps=4", "--checkpoint.no_last_save_model_only")
        meshes = {"1": (1, ONE), "P2": (2, (*FOUR, PP + "2", SCHEDULE + "ZBVZeroBubble")), "P4": (4, (*FOUR, PP + "4")),
                  "T2 x P2": (4, (*FOUR, PP + "2", "--parallelism.tensor_parallel_degree=2"))}

        def run(mesh, folder, steps):
            ranks, options = meshes[mesh]
            self.run_job(*options, *common, f"--training.steps={steps}", f"--checkpoint.folder={folder}", ranks=ranks, code=0)
            return self.digest(self.folder / "out" / folder / f"step-{steps}")

        one = run("1", "1", 4)
        self.assertIn("layers.2.moe.expert_bias", self.tool("digest", self.folder / "out/1/step-4"))
        self.assertEqual(run("P4", "P4", 4), one)
        for first, second in (("1", "P2"), ("P2", "1")):
            run(first, f"{first} then {second}", 2)
            self.assertEqual(run(second, f"{first} then {second}", 4), one)
        for first, second in (("1", "T2 x P2"), ("T2 x P2", "1")):  # whose sums are rounded otherwise
            run(first, f"{first} then {second}", 2)
            run(second, f"{first} then {second}", 3)

    def test_a_tied_table_is_saved_once_whatever_the_number_of_stages(self):
        meshes = {"1": (1, ONE), "P2": (2, (*FOUR, PP + "2")), "P4": (4, (*FOUR, PP + "4"))}
        common = (*TIED, "--lr_scheduler.total_steps=4", "--ema.enable")

        def run(mesh, folder, steps, *more):
            ranks, options = meshes[mesh]
            self.run_job(*options, *common, *(more or ("--checkpoint.no_last_save_model_only",)), f"--training.steps={steps}",
                         f"--checkpoint.folder={folder}", ranks=ranks, code=0)
            return self.folder / "out" / folder / f"step-{steps}"

        exports = []  # of the initial weights
        for mesh in meshes:
            step = run(mesh, "export " + mesh, 1, "--optimizer.lr=0", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only")
            exports.append((step / "model.safetensors").read_bytes())
        self.assertEqual(exports[1:], exports[:1] * 2)
        self.assertNotIn(b"lm_head.weight", exports[0][:10000])
        digests = {("P2", "P2"): self.digest(run("P2", "P2", 4))}
        for first in meshes:
            run(first, first + " first", 2)
            for second in set(meshes) - {first}:
                folder = f"{first} then {second}"
                shutil.copytree(self.folder / "out" / (first + " first"), self.folder / "out" / folder)
                digests[first, second] = self.digest(run(second, folder, 4))
        # One rank adds the gradients of both ends up in another order.
        for one, other in ((("P2", "P4"), ("P2", "P2")), (("P4", "P2"), ("P2", "P2")), (("1", "P2"), ("1", "P4")), (("P2", "1"), ("P4", "1"))):
            self.assertEqual(digests[one], digests[other], (one, other))

    def test_a_signal_to_any_stage_saves_once(self):
        for rank, number, code in ((0, signal.SIGTERM, 75), (1, signal.SIGUSR1, 75), (1, signal.SIGINT, 130)):
            with self.subTest(rank=rank, number=number):
                folder = f"--checkpoint.folder={rank} {int(number)}"
                job = self.start(*FOUR, PP + "2", folder, "--training.steps=60", "--checkpoint.interval=1000", "--allow-faults", ranks=2,
                                 env={"FAULT": f"rank={rank};point=step.fwd;action=stop;nth=6"})
                job.signal_at_stop(rank, number)
                self.assertEqual(job.codes(), [code, code], job.text())
                self.assertEqual(job.text().count("Checkpoint step-2 is durable"), 1)
                self.assertIn("after step 2; the state is saved", job.text())


if __name__ == "__main__":
    main()
