"""model.attention: cuDNN's attention is tried before the model is made, on simulated GPUs (docs/simulated_gpu.md) whose cuDNN works,
refuses, or is wrong.

    python3 tests/faults/attention_test.py build/hyperion [all]

Standard library only.
"""

import collections
import pathlib
import re

from jobs import ALL, BINARY, JobTest, main

FORWARD = {kernel: f"operator\taten::_scaled_dot_product_{kernel}_attention" for kernel in ("cudnn", "flash", "efficient")} | {
    f"{kernel}_documents": f"operator\taten::_{kernel}_attention_forward" for kernel in ("flash", "efficient")}
SHORT = ("--training.steps=2", "--training.seq_len=64")  # cuDNN serves multiples of 64
STEPS_FORWARD = 2 * 2 * 2  # steps, blocks, and each block again before its backward


class Attention(JobTest):
    def run_on_gpus(self, *options, cudnn="", ranks=1, code=0, says=(), before=None):
        """The job, and how often each kernel of attention was called."""
        trace = self.folder / "trace"
        trace.unlink(missing_ok=True)
        job = self.run_job(*SHORT, "--activation_checkpoint.mode=full", *options, ranks=ranks, code=code, says=says, before=before,
                           env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so",
                                "HYPERION_SIMULATED_TRACE": trace, "HYPERION_SIMULATED_CUDNN": cudnn})
        counts = collections.Counter(trace.read_text().splitlines())
        return job, {kernel: counts[line] for kernel, line in FORWARD.items()}

    def test_cudnn_is_tried_before_the_model_is_made_and_what_the_job_asks_for_is_done(self):
        warning = "cuDNN's attention failed its trial on 4 x 2 heads of 8, 2 sequences of 64 tokens: on rank 0: "
        reasons = {"refuse": "No valid execution plans built", "wrong": "its output differs from flash attention's by"}
        heads = "--model.args.n_kv_heads=2"
        for choice in ("auto", "cudnn", "flash"):
            for cudnn in ("", "refuse", "wrong") if ALL or choice != "flash" else ("refuse",):
                with self.subTest(choice=choice, cudnn=cudnn):
                    option = f"--model.attention={choice}"
                    if choice == "cudnn" and cudnn:
                        job, _ = self.run_on_gpus(option, heads, cudnn=cudnn, code=2, says=[
                            'model.attention = "cudnn": cuDNN\'s attention failed its trial on 4 x 2 heads of 8, 2 sequences of 64 tokens', reasons[cudnn]])
                        self.assertNotIn("Training starts", job.text())
                        continue
                    job, calls = self.run_on_gpus(option, heads, cudnn=cudnn)
                    if choice == "flash" or cudnn:
                        self.assertEqual(calls["flash"], STEPS_FORWARD + (cudnn == "wrong" and choice == "auto"), calls)
                        self.assertIn("Attention: flash, for 4 x 2 heads of 8, 2 sequences of 64 tokens", job.text())
                    else:
                        self.assertEqual(calls["cudnn"], STEPS_FORWARD + 1, calls)
                        self.assertIn("Attention: cuDNN, tried on 4 x 2 heads of 8, 2 sequences of 64 tokens", job.text())
                    if choice == "auto" and cudnn:
                        self.assertIn(warning + reasons[cudnn], job.text())
                        self.assertEqual(calls["cudnn"], 1, calls)
                    else:
                        self.assertNotIn("failed its trial", job.text())
                    if choice == "flash":
                        self.assertEqual(calls["cudnn"], 0, calls)

    def test_a_cudnn_that_fails_on_one_rank_is_used_on_none(self):
        one = {1: ["env", "HYPERION_SIMULATED_CUDNN=refuse"]}
        job, calls = self.run_on_gpus("--model.attention=auto", ranks=2, before=one)
        self.assertEqual((calls["cudnn"], calls["flash"]), (2, 1 + 2 * STEPS_FORWARD), calls)
        self.assertIn("2 sequences of 64 tokens: it failed on rank 1, see its log. Every rank uses flash attention", job.text())
        self.assertIn("on rank 1: No valid execution plans built", job.text(1))
        job, _ = self.run_on_gpus("--model.attention=cudnn", ranks=2, before=one, code=2)
        self.assertIn("it failed on rank 1, see its log", job.text())
        self.assertIn("on rank 1: No valid execution plans built", job.text(1))

    def test_a_cudnn_without_a_plan_for_the_backward_of_the_jobs_batch_on_autograds_thread_is_not_used(self):
        job, calls = self.run_on_gpus("--model.attention=auto", cudnn="refuse_backward", says=[
            "cuDNN's attention failed its trial on 4 x 4 heads of 8, 2 sequences of 64 tokens: on rank 0: No valid execution plans built"])
        self.assertEqual((calls["cudnn"], calls["flash"]), (1, STEPS_FORWARD), calls)
        self.run_on_gpus("--model.attention=cudnn", cudnn="refuse_backward", code=2, says=["No valid execution plans built"])
        _, calls = self.run_on_gpus("--training.local_batch_size=1", cudnn="refuse_backward", says=["Attention: cuDNN, tried on"])
        self.assertEqual(calls["flash"], 1, calls)

    def test_the_memory_of_the_trial_is_given_back(self):
        frees = {}
        for choice in ("auto", "flash"):
            self.run_on_gpus(f"--model.attention={choice}", cudnn="refuse_backward")
            frees[choice] = (self.folder / "trace").read_text().splitlines().count("free\t")
        self.assertGreater(frees["auto"], frees["flash"])  # a steady step frees nothing

    def test_the_length_and_the_batch_of_the_validation_are_tried_too(self):
        validation = ("--validation.enable", "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl",
                      "--validation.steps=1", "--validation.freq=100", "--validation.seq_len=128")
        _, calls = self.run_on_gpus(*validation)
        same = (*validation, "--validation.seq_len=64", "--validation.local_batch_size=2")
        with_one = self.run_on_gpus(*same)[1]
        self.assertEqual(calls["cudnn"], with_one["cudnn"] + 1)
        self.run_on_gpus(*same, "--training.local_batch_size=1", cudnn="refuse_backward",
                         says=["1 sequence of 64 tokens: on rank 0: No valid execution plans built. (2 sequences of 64 tokens)"])

    def test_where_cudnn_does_not_serve_auto_takes_another_kernel_and_cudnn_is_refused(self):
        for option, kernel in (("--training.document_mask", "flash_documents"), ("--training.mixed_precision_param=float32", "efficient"),
                               ("--training.seq_len=32", "flash"), ("--debug.deterministic", "flash"), ("--model.args.head_dim=136", "flash")):
            with self.subTest(option):
                _, calls = self.run_on_gpus(option)
                self.assertEqual({name for name, times in calls.items() if times}, {kernel})
                self.run_on_gpus(option, "--model.attention=cudnn", code=2,
                                 says=['model.attention = "cudnn": cuDNN serves bfloat16 without training.document_mask'])
        _, calls = self.run_on_gpus("--training.document_mask", "--training.mixed_precision_param=float32")
        self.assertEqual({name for name, times in calls.items() if times}, {"efficient_documents"})

    def losses(self):
        """Of the job that has run, whose metrics are deleted."""
        losses = [line["loss_metrics/global_avg_loss"] for line in self.metrics()]
        (self.folder / "out/metrics.jsonl").unlink()
        return losses

    def test_cudnn_serves_all_blocks_of_a_ring_or_none_and_is_tried_on_them(self):
        gathered = ("--training.seq_len=256", "--parallelism.context_parallel_degree=2")
        ring = (*gathered, "--parallelism.context_parallel_rotate_method=alltoall")
        described = "4 x 4 heads of 8, 2 sequences of 128 tokens in a ring"
        ranks, tried = 2, 3  # the own block, one of earlier keys and one of later ones
        in_steps = 2 * 2 * 2 * ranks  # steps, blocks of the model, which keep what the ring gives, and those of a rank's attention
        self.run_job(*SHORT, *ring, ranks=ranks, code=0)
        on_cpu = self.losses()
        for cudnn, calls_of_cudnn in (("", ranks * tried + in_steps), ("wrong", ranks), *([("refuse", ranks)] if ALL else [])):
            with self.subTest(cudnn=cudnn):
                job, calls = self.run_on_gpus(*ring, cudnn=cudnn, ranks=ranks)
                for here, there in zip(self.losses(), on_cpu, strict=True):
                    self.assertAlmostEqual(here, there, delta=2e-3)
                in_trial = {"": ranks * tried, "wrong": ranks, "refuse": 0}[cudnn]  # a trial ends with its first failure
                self.assertEqual((calls["cudnn"], calls["flash"]), (calls_of_cudnn, in_trial + (in_steps if cudnn else 0)), calls)
                self.assertIn(f"Attention: flash, for {described}" if cudnn else f"Attention: cuDNN, tried on {described}", job.text())
        # Halves of a part that 64 does not divide; of training, then of validation alone. Gathered parts of which that is true.
        validation = ("--validation.enable", "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl",
                      "--validation.steps=1", "--validation.freq=100", "--validation.seq_len=128")
        for options in ((*ring, *validation), *(((*ring, "--training.seq_len=128"), (*ring, "--training.document_mask"), (*gathered, "--training.seq_len=128")) if ALL else ())):
            with self.subTest(options):
                job, calls = self.run_on_gpus(*options, ranks=ranks)
                self.assertEqual(calls["cudnn"], 0, calls)
                said = "validation.seq_len = 128: cuDNN's attention serves all blocks of a ring or none" in job.text()
                self.assertEqual(said, validation[0] in options)
                self.run_on_gpus(*options, "--model.attention=cudnn", ranks=ranks, code=2,
                                 says=["among the multiples of 256"])
        if not ALL:
            return
        _, calls = self.run_on_gpus(*ring, "--training.seq_len=128", "--parallelism.context_parallel_load_balancer=None", ranks=ranks)
        self.assertEqual(calls["flash"], ranks * 2, calls)  # in the trial; there are no halves

    def test_gathered_keys_are_two_calls_of_cudnn_for_each_part_or_one_of_flash(self):
        gathered = ("--training.seq_len=256", "--parallelism.context_parallel_degree=2")
        described = "4 x 4 heads of 8, 2 sequences of 256 tokens"
        ranks, kept = 2, 2 * 2  # steps, blocks, which keep what attention gives
        calls_of_cudnn = 3 + 4  # of both ranks: their own keys and those before, of which the first part of the sequence has none
        self.run_job(*SHORT, *gathered, ranks=ranks, code=0)
        on_cpu = self.losses()
        for cudnn, calls_wanted in (("", (ranks * 2 + kept * calls_of_cudnn, ranks)), ("wrong", (ranks * 2, ranks + kept * 2 * ranks))):
            with self.subTest(cudnn=cudnn):
                job, calls = self.run_on_gpus(*gathered, cudnn=cudnn, ranks=ranks)
                for here, there in zip(self.losses(), on_cpu, strict=True):
                    self.assertAlmostEqual(here, there, delta=2e-3)
                self.assertEqual((calls["cudnn"], calls["flash"]), calls_wanted, calls)
                self.assertIn(f"Attention: flash, for {described}" if cudnn else f"Attention: cuDNN, tried on {described}", job.text())

    def test_windows_and_sinks_go_to_flash_and_layers_without_a_window_keep_cudnn(self):
        model = ("--model.args.sliding_window_size=9", "--model.args.full_attention_every=2", "--model.args.sinks=true",
                 "--model.args.n_kv_heads=2", "--training.mixed_precision_param=bfloat16")
        half = STEPS_FORWARD // 2
        for options, kernels in (((), {"flash_documents": half, "cudnn": half + 1, "flash": 1}),
                                 (("--training.document_mask",), {"flash_documents": STEPS_FORWARD})):
            with self.subTest(options):
                job, calls = self.run_on_gpus(*model, *options, says=["Attention: a window of 9 keys in 1 of 2 layers"])
                self.assertEqual({name: times for name, times in calls.items() if times}, kernels)
                found = self.losses()
                self.run_job(*SHORT, *model, *options, code=0)
                for ours, of_cpu in zip(found, self.losses(), strict=True):
                    self.assertAlmostEqual(ours, of_cpu, delta=5e-3)
        wide = (*model[:-1], "--training.mixed_precision_param=float32")
        _, calls = self.run_on_gpus(*wide)
        self.assertEqual({name for name, times in calls.items() if times}, {"efficient", "efficient_documents"})
        self.run_on_gpus(*wide, "--training.document_mask", code=2, says=["attention with sinks and documents has a GPU kernel for bfloat16"])

    def test_latent_heads_of_192_go_to_cudnn_with_values_of_128_and_padded_to_flash(self):
        latent = ("--model.name=deepseek_v3", "--model.args.n_layers=2", "--model.args.n_dense_layers=2", "--model.args.kv_lora_rank=8",
                  "--model.args.qk_nope_head_dim=128", "--model.args.qk_rope_head_dim=64", "--model.args.v_head_dim=128")
        context = ("--training.seq_len=256", "--parallelism.context_parallel_degree=2")
        ring = (*context, "--parallelism.context_parallel_rotate_method=alltoall")
        described = "4 x 4 heads of 192 with values of 128"
        # ranks; forward calls of cuDNN in the trials and in the steps, and of flash in its place
        for options, ranks, in_trial, in_steps, flash in (((), 1, 1, STEPS_FORWARD, STEPS_FORWARD), (context, 2, 2 * 2, 4 * 7, 4 * 2 * 2),
                                                          (ring, 2, 2 * 3, 4 * 2 * 2, 4 * 2 * 2)):
            self.run_job(*SHORT, *latent, *options, ranks=ranks, code=0)
            on_cpu = self.losses()
            for choice in ("auto", "flash"):
                with self.subTest(options=options, choice=choice):
                    job, calls = self.run_on_gpus(*latent, *options, f"--model.attention={choice}", ranks=ranks)
                    for here, there in zip(self.losses(), on_cpu, strict=True):
                        self.assertAlmostEqual(here, there, delta=2e-3)
                    if choice == "auto":
                        self.assertEqual(calls["cudnn"], in_trial + in_steps, calls)
                        self.assertIn(f"Attention: cuDNN, tried on {described}", job.text())
                    else:
                        self.assertEqual((calls["cudnn"], calls["flash"]), (0, flash), calls)
        self.run_on_gpus(*latent, cudnn="refuse", says=[f"cuDNN's attention failed its trial on {described}, 2 sequences of 64 tokens",
                                                        f"Attention: flash, for {described}"])

    def test_a_cpu_takes_every_value_but_cudnn(self):
        for options, kernel in ((("--model.attention=auto",), "our kernel for CPUs"),
                                (("--model.attention=flash",), "libtorch's flash attention for CPUs"),
                                (("--model.attention=flash", "--training.document_mask"), "our kernel for CPUs")):
            with self.subTest(options):
                text = self.run_job("--training.steps=1", *options, code=0).text()
                self.assertIn(f"Attention: {kernel}", text)
                self.assertEqual("libtorch's keeps no documents apart" in text, len(options) == 2, text)
                self.run_job("--training.steps=1", *options, code=2, env={"HYPERION_CPU_INSTRUCTIONS": "sse9"},
                             says=["HYPERION_CPU_INSTRUCTIONS is 'sse9'"])
        self.run_job("--model.attention=cudnn", code=2, says=['model.attention = "cudnn": this job runs on a CPU, which has no cuDNN'])
        self.run_job("--model.attention=sdpa", code=2, says=["model.attention", "auto", "cudnn", "flash"])

    def test_a_cpu_uses_the_instructions_that_it_is_told_to_and_refuses_others(self):
        flags = set(re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)[1].split())
        needs = {"none": set(), "avx2": {"avx2", "fma", "bmi2"}, "avx512": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
                 "avx512_bf16": {"avx512_bf16"}}
        losses = {}
        for name, needed in needs.items():
            env = {"HYPERION_CPU_INSTRUCTIONS": name}
            with self.subTest(name):
                if needed - flags:
                    self.run_job("--training.steps=1", code=2, env=env,
                                 says=[f"HYPERION_CPU_INSTRUCTIONS is '{name}', which this processor does not have"])
                    continue
                job = self.run_job("--training.steps=3", "--training.document_mask", code=0, env=env,
                                   says=[f'Attention: our kernel for CPUs, with instructions "{name}"'])
                losses[name] = [float(loss) for loss in re.findall(r"loss: *([0-9.]+)", job.text())]
                self.assertEqual(len(losses[name]), 3)
        for found in losses.values():
            for ours, wanted in zip(found, losses["none"]):
                self.assertAlmostEqual(ours, wanted, delta=0.02)
        self.run_job("--training.steps=1", code=2, env={"HYPERION_CPU_INSTRUCTIONS": "sse9"},
                     says=["HYPERION_CPU_INSTRUCTIONS is 'sse9', expected one of avx512_bf16, avx512, avx2, none"])

    def test_a_head_size_that_no_kernel_for_cpus_takes_uses_plain_operations_and_one_line_says_so(self):
        text = self.run_job("--training.steps=2", "--model.args.head_dim=264", code=0).text()
        self.assertEqual(text.count("Attention: "), 1, text)
        self.assertIn("Attention: plain operations, which are slow and hold all scores; the kernels for CPUs take float32 and bfloat16 "
                      "and heads of up to 256, this is BFloat16 and 264", text)


if __name__ == "__main__":
    main()
