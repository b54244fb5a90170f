"""FP8 on the real program: what the log says is on, what is refused, and that checkpoints do not know of it.

    python3 tests/faults/float8_test.py build/hyperion

Standard library only.
"""

import warm_start
from checkpoints import CHECKPOINT_TOML, CheckpointTest
from jobs import BINARY, main

ON = "--model.converters=quantize.linear.float8"
TABLE = "--quantize.linear.float8."
EMULATED = [ON, TABLE + "emulate"]


class Float8(CheckpointTest):
    # 16 divides every extent but the vocabulary of the tokenizer.
    toml = CHECKPOINT_TOML.replace("n_heads = 4", "n_heads = 2\nhidden_dim = 48") + """
[activation_checkpoint]
mode = "none"
"""


class Log(Float8):
    def test_it_says_what_is_on_and_what_is_left_alone(self):
        job = self.run_job(ON, TABLE + "filter_fqns=output", code=0,
                           says=["float8: 14 of 15 linear layers converted, recipe tensorwise, products by _scaled_mm on CPU",
                                 'float8: left alone: output: "output" is in filter_fqns', "nothing is all-gathered; weights are cast once per step, from their bfloat16 copies",
                                 "float8: the first step ran 84 FP8 products"])
        (warning,) = [line for line in job.text().splitlines() if "WARNING" in line]
        self.assertIn("quantize.linear.float8.emulate = true gives the same results", warning)

    def test_gathers_are_named_in_bytes(self):
        self.run_job(*EMULATED, TABLE + "enable_fsdp_float8_all_gather", TABLE + "filter_fqns=output,attention.wk", ranks=2,
                     code=0, says=["12 of 15", "emulated in fp32", "MiB in float8_e4m3fn (in bfloat16 they would be"])

    def test_the_head_is_a_linear_layer_too(self):
        self.run_job(*EMULATED, code=0, says=["float8: 15 of 15 linear layers converted", "ran 90 FP8 products"])

    def test_every_checkpointing_mode_repeats_the_products_that_it_promises(self):
        for mode, products in (("none", 84), ("elementwise", 84), ("full", 108), ("selective", 96)):
            with self.subTest(mode=mode):
                self.run_job(*EMULATED, TABLE + "filter_fqns=output", f"--activation_checkpoint.mode={mode}",
                             "--activation_checkpoint.selective_ac_option=op", "--training.steps=1",
                             f"--checkpoint.folder={mode}", code=0, says=[f"ran {products} FP8 products"])

    def test_parts_of_ranks_that_16_does_not_divide_are_emulated_or_left_alone_with_a_warning(self):
        losses = []
        divided = ["--parallelism.tensor_parallel_degree=2"]  # hidden_dim = 48 into 24 and 24
        for ranks, more in ((1, []), (2, divided)):
            self.run_job(*EMULATED, TABLE + "filter_fqns=output", *more, "--training.steps=3", f"--checkpoint.folder={ranks}", ranks=ranks,
                         code=0, says=["float8: 14 of 15 linear layers converted", "ran 84 FP8 products"])
            losses.append([line["loss_metrics/global_avg_loss"] for line in self.metrics() if "loss_metrics/global_avg_loss" in line][-3:])
            self.assertEqual(len(losses[-1]), 3)
        for one, two in zip(*losses, strict=True):
            self.assertAlmostEqual(one, two, delta=5e-3)  # the ranks' sums are rounded to bf16 in another order
        self.run_job(ON, TABLE + "filter_fqns=output", *divided, "--training.steps=1", "--checkpoint.folder=native", ranks=2, code=0,
                     says=["float8: 8 of 15 linear layers converted", "WARNING", "left alone, though converted on one rank", "multiples of 32 work"])

    def test_an_alias_and_a_filter_that_matches_nothing(self):
        self.run_job("--model.converters=float8", TABLE + "filter_fqns=outputs", "--training.steps=1", code=0,
                     says=["WARNING", '"outputs" is part of no linear layer\'s name; did you mean output?'])


MX = ["--model.converters=quantize.linear.mx", "--quantize.linear.mx.recipe_name=mxfp8_emulated"]


class Mx(Float8):
    # 32 divides every extent on two tensor parallel ranks too.
    toml = Float8.toml.replace("dim = 32\n", "dim = 64\n").replace("hidden_dim = 48", "hidden_dim = 128")

    def test_it_trains_with_blocks_of_32_and_its_checkpoint_does_not_know(self):
        job = self.run_job(*MX, code=0, says=["mxfp8: 14 of 15 linear layers converted, recipe mxfp8_emulated, products emulated in the compute dtype",
                                              'mxfp8: left alone: output: "output" is in filter_fqns', "ran 84 FP8 products"])
        self.assertNotIn("WARNING", job.text())
        emulated = ["--model.converters=quantize.linear.mx", "--quantize.linear.mx.emulate"]
        losses = {}
        for name, options in (("down", []), ("up", ["--quantize.linear.mx.recipe_name=mxfp8_cublas_rceil"]), ("plain", None)):
            self.run_job(*([*emulated, *options] if options is not None else []), "--training.steps=4", "--lr_scheduler.total_steps=8",
                         f"--checkpoint.folder={name}", "--checkpoint.interval=2", code=0)
            losses[name] = [line["loss_metrics/global_avg_loss"] for line in self.metrics() if "loss_metrics/global_avg_loss" in line][-4:]
        self.assertEqual(len({tuple(each) for each in losses.values()}), 3, losses)
        for one in losses["down"], losses["up"]:
            for here, there in zip(one, losses["plain"]):
                self.assertAlmostEqual(here, there, delta=0.02)
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", "--checkpoint.folder=up", code=0, says=["step 4"])  # without the converter

    def test_two_ranks_of_tensor_parallelism_have_the_losses_of_one(self):
        losses = []
        for ranks, more in ((1, []), (2, ["--parallelism.tensor_parallel_degree=2"])):
            self.run_job(*MX, *more, "--training.steps=3", f"--checkpoint.folder={ranks}", ranks=ranks, code=0,
                         says=["mxfp8: 14 of 15"])
            losses.append([line["loss_metrics/global_avg_loss"] for line in self.metrics() if "loss_metrics/global_avg_loss" in line][-3:])
            self.assertEqual(len(losses[-1]), 3)
        for one, two in zip(*losses, strict=True):
            self.assertAlmostEqual(one, two, delta=5e-3)  # the ranks' sums are rounded to bf16 in another order

    def test_each_refusal_is_one_sentence(self):
        for options, says in (
                (["--model.converters=quantize.linear.mx"], ["mxfp8_cublas", "a CPU has no MXFP8 tensor cores", "quantize.linear.mx.emulate = true"]),
                ([*MX, "--quantize.linear.mx.recipe_name=mxfp4"], ["recipe_name", "mxfp8_cublas_rceil"]),
                (["--model.converters=quantize.linear.mx,quantize.linear.float8"], ["expected FP8 (quantize.linear.float8, "])):
            with self.subTest(options=options):
                self.run_job(*options, code=2, says=says)

    def test_a_layer_that_32_does_not_divide_is_left_alone(self):
        self.run_job(*MX, "--model.args.hidden_dim=48", "--training.steps=1", code=0,
                     says=["mxfp8: 8 of 15", "48 x 64: an extent is no multiple of 32"])


class Experts(Float8):
    toml = Mx.toml
    MODEL = ["--model.name=qwen3", "--model.flavor=debugmodel_moe", "--model.args.n_kv_heads=2", "--model.args.moe_hidden_dim=64"]

    def options(self, kind, *more, also=""):
        table = f"--quantize.grouped_mm.{kind}."
        return [*self.MODEL, f"--model.converters={also}quantize.grouped_mm.{kind}", table + "fqns=experts", table + "emulate", *more]

    def test_they_train_with_their_linear_layers_and_the_log_says_which_products_are_in_float8(self):
        job = self.run_job(*self.options("float8", TABLE + "emulate", TABLE + "filter_fqns=output", also="quantize.linear.float8,"),
                           "--training.steps=2", code=0,
                           says=["float8: 8 of 9 linear layers converted", "float8: experts of 2 of 2 layers converted, e4m3 with one scale for each row, "
                                 "in segments of 16 rows; products of w1, w2 and w3 in forward and for both gradients emulated in fp32",
                                 "ran 76 FP8 products"])  # 2 microbatches, 2 layers: 12 of attention and 7 of experts, whose w1 and w3 are one stack
        self.assertNotIn("WARNING", job.text())
        check = warm_start.run([BINARY, "check", self.folder / "job.toml", *self.options("float8", "--checkpoint.folder=other")])
        self.assertIn("experts of 2 of 2 layers converted", check.stdout)

    def test_every_mode_of_both_kinds_has_the_same_bits(self):
        for kind, unit in (("float8", 16), ("mx", 32)):
            curves = set()
            for mode in ("none", "full") if kind == "mx" else ("none", "full", "selective", "elementwise"):
                name = f"{kind}-{mode}"
                self.run_job(*self.options(kind), f"--activation_checkpoint.mode={mode}", "--training.steps=3", f"--checkpoint.folder={name}",
                             code=0, says=[f"in segments of {unit} rows"])
                curves.add(tuple(line["loss_metrics/global_avg_loss"] for line in self.metrics() if "loss_metrics/global_avg_loss" in line)[-3:])
            self.assertEqual(len(curves), 1, curves)

    def test_a_pipeline_has_them_too(self):
        losses = []
        for ranks, more in ((1, []), (2, ["--parallelism.pipeline_parallel_degree=2"])):
            self.run_job(*self.options("float8"), *more, "--training.steps=3", f"--checkpoint.folder=pp-{ranks}", ranks=ranks, code=0)
            losses.append([line["loss_metrics/global_avg_loss"] for line in self.metrics() if "loss_metrics/global_avg_loss" in line][-3:])
        for one, two in zip(*losses, strict=True):
            self.assertAlmostEqual(one, two, delta=1e-3)

    def test_what_cannot_be_converted_is_refused(self):
        for options, says in (
                (self.options("float8")[:-1], ["quantize.grouped_mm.float8: experts cannot be multiplied in FP8 on a CPU",
                                               "set quantize.grouped_mm.float8.emulate = true"]),
                (self.options("mx", "--quantize.grouped_mm.mx.fqns=expert.s"), ["quantize.grouped_mm.mx.fqns", '"expert.s" is part of no experts\' name']),
                (self.options("mx", "--model.args.moe_hidden_dim=48"), ["experts of widths 64 and 48: expected multiples of 32"]),
                (self.options("float8", also="quantize.linear.mx,"), ["expected FP8", "alone, as torchtitan does"])):
            with self.subTest(options=options):
                self.assertNotIn("Training starts", self.run_job(*options, code=2, says=says).text())


class Refusals(Float8):
    def test_each_in_one_sentence(self):
        for options, says in (
                ([TABLE + "recipe_name=blockwise"], ["recipe_name", "rowwise_with_gw_hp"]),
                ([TABLE + "recipe_name=rowwise"], ["a CPU multiplies FP8 only with one scale per tensor", "emulate = true"]),
                ([TABLE + "emulate", TABLE + "recipe_name=rowwise", TABLE + "enable_fsdp_float8_all_gather"],
                 ["enable_fsdp_float8_all_gather", "tensorwise"]),
                ([TABLE + "precompute_float8_dynamic_scale_for_fsdp"], ["enable_fsdp_float8_all_gather = true"]),
                ([TABLE + "emulate", TABLE + "recipe_name=rowwise_with_gw_hp", TABLE + "filter_fqns=auto_filter_small_kn"],
                 ["auto_filter_small_kn", "rowwise_with_gw_hp"])):
            with self.subTest(options=options):
                job = self.run_job(ON, *options, code=2, says=says)
                self.assertNotIn("Training starts", job.text())


class Checkpoints(Float8):
    def digest(self, step):
        return self.tool("digest", self.step(step), "--prefix=layers.").splitlines()[:-1]

    def test_names_and_bytes_are_those_of_a_plain_run(self):
        self.run_job("--training.steps=1", "--checkpoint.keep_latest_k=0", "--checkpoint.create_seed_checkpoint", code=0)
        plain = self.folder / "plain"
        (self.steps_folder / "step-0").rename(plain)
        self.run_job("--training.steps=1", "--checkpoint.keep_latest_k=0", "--checkpoint.create_seed_checkpoint", *EMULATED, code=0)
        self.assertIn("equal: 84 tensors and", self.tool("diff", plain, self.step(0)))  # and code 0

    def test_plain_to_float8_and_back_keeps_every_bit(self):
        self.run_job("--training.steps=2", code=0)
        reference = self.digest(2)
        for turn, options in enumerate((EMULATED + [TABLE + "enable_fsdp_float8_all_gather"], [])):
            # A run that resumes from step 2 and ends there saves what it has loaded.
            self.run_job("--training.steps=2", f"--checkpoint.folder=turn{turn}", "--checkpoint.initial_load_model_only",
                         f"--checkpoint.initial_load_path={self.step(2)}", "--checkpoint.create_seed_checkpoint", *options, code=0)
            self.steps_folder = self.folder / "out" / f"turn{turn}"
            self.assertEqual(self.digest(0), reference)
            (self.steps_folder / "step-0").rename(self.steps_folder / "step-2")

    def test_a_resumed_run_is_the_undisturbed_one(self):
        for name, options, ranks in (("gather", [TABLE + "enable_fsdp_float8_all_gather",
                                                 TABLE + "precompute_float8_dynamic_scale_for_fsdp"], 2),
                                     ("rowwise", [TABLE + "recipe_name=rowwise", "--ema.enable"], 1)):
            with self.subTest(name=name):
                options = [*EMULATED, *options, f"--checkpoint.folder={name}"]
                expected = self.control(*options, ranks=ranks)
                self.run_job("--training.steps=4", "--lr_scheduler.total_steps=8", *options, ranks=ranks, code=0)
                self.run_job("--lr_scheduler.total_steps=8", *options, ranks=ranks, code=0)
                self.assertEqual(self.curve(), expected)
            self.temporary.cleanup()
            self.setUp()

    def test_averages_are_validated_in_float8(self):
        options = ["--ema.enable", "--ema.validate_with_ema", "--validation.enable", "--validation.dataset=jsonl",
                   f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.freq=2", "--validation.steps=1"]
        gather = [*EMULATED, TABLE + "enable_fsdp_float8_all_gather"]
        with_averages = self.control(*gather, *options, ranks=2)
        self.run_job(*gather, "--ema.enable", "--training.steps=8", ranks=2, code=0)
        self.assertEqual(self.curve(), with_averages)  # swapping them in and out leaves no trace


if __name__ == "__main__":
    main()
