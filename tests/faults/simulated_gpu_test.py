"""The real program on simulated GPUs (docs/simulated_gpu.md): it trains as on a CPU, no matter how late each stream is, and asks a
steady step for nothing that costs.

    python3 tests/faults/simulated_gpu_test.py build/hyperion [all]

all: the jobs, schedules and errors as well that show a second time what the others show. Standard library only.
"""

import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import warm_start
from jobs import ALL, BINARY, PATIENCE, ROOT, main
from simulated_jobs import EP, EXPERTS, FP8, FP8_EXPERTS, ONCE, SimulatedJobTest

SCHEDULES = ("eager", "late", "1") if ALL else ("late", "1")
ASYNC = "--checkpoint.async_mode=async"
TP = "--parallelism.tensor_parallel_degree=2"
PP = "--parallelism.pipeline_parallel_degree=2"
HSDP = ("--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=2")
VALIDATION = ("--validation.enable", "--validation.dataset=jsonl", "--validation.dataset_path=data.jsonl", "--validation.seq_len=32",
              "--validation.sequences=7", "--validation.freq=5")
IN_PIECES = "--parallelism.enable_async_tensor_parallel"  # on the CPU the plain form runs
CP = "--parallelism.context_parallel_degree=2"
JOBS = {  # what: (ranks, options)
    "one GPU": (1, [ASYNC]),
    "pinned, averaged": (1, ["--checkpoint.async_mode=async_with_pinned_mem", "--ema.enable"]),
    "averaged on the host": (1, ["--ema.enable", "--ema.device=cpu"]),
    "replicated": (2, ["--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=1"]),
    "recomputed, offloaded": (2, ["--activation_checkpoint.mode=full", "--training.enable_cpu_offload", ASYNC]),
    "offloaded, states in bf16": (2, ["--training.enable_cpu_offload", "--optimizer.state_dtype=bfloat16", "--training.global_batch_size=8", ASYNC]),
    "document masks, so ranks have different numbers of labels": (2, ["--training.document_mask", "--activation_checkpoint.mode=none"]),
    "accumulated, never resharded": (2, ["--training.global_batch_size=8", "--parallelism.fsdp_reshard_after_forward=never"]),
    "reduced once per step": (2, [ONCE, "--training.global_batch_size=12", "--activation_checkpoint.mode=none"]),
    "reduced once per step, HSDP, offloaded": (4, [ONCE, *HSDP, "--training.global_batch_size=24", "--training.enable_cpu_offload"]),
    "reduced once per step, FSDP and tensor parallel, FP8": (4, [ONCE, TP, FP8, "--training.global_batch_size=12"]),
    "norms, RoPE and SwiGLU recomputed": (2, ["--activation_checkpoint.mode=elementwise", "--training.global_batch_size=8"]),
    "HSDP": (4, [*HSDP, "--training.global_batch_size=16", ASYNC, "--checkpoint.writers=one_replica", *VALIDATION]),
    "tensor parallel, offloaded": (2, [TP, "--activation_checkpoint.mode=none", "--training.enable_cpu_offload"]),
    "FSDP and tensor parallel, recomputed": (4, [TP, "--training.global_batch_size=8", "--activation_checkpoint.mode=selective",
                                                 "--activation_checkpoint.selective_ac_option=op", ASYNC]),
    "pipeline, FSDP": (4, [PP, "--training.global_batch_size=8", "--training.local_batch_size=4", ASYNC]),
    "pipeline of two stages a rank, FP8, gathered and reduced by each microbatch": (2, [
        PP, FP8, "--training.local_batch_size=4", "--parallelism.pipeline_parallel_schedule=Interleaved1F1B", "--activation_checkpoint.mode=none",
        "--parallelism.fsdp_reshard_after_forward=always", *VALIDATION, "--validation.local_batch_size=2"]),
    "pipeline in a V of divided backwards": (2, [PP, "--training.local_batch_size=4", "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble",
                                                 "--activation_checkpoint.mode=none"]),
    "pipeline of four stages, tied table, offloaded": (4, [
        PP.replace("2", "4"), "--training.local_batch_size=4", "--model.name=qwen3", "--model.flavor=debugmodel", "--model.args.n_kv_heads=2",
        "--training.enable_cpu_offload", "--metrics.log_layer_activations"]),
    "tensor parallel, in pieces": (4, [IN_PIECES, "--parallelism.tensor_parallel_degree=4"]),
    "FSDP and tensor parallel, in pieces, FP8": (4, [IN_PIECES, FP8, TP, "--activation_checkpoint.selective_ac_option=op"]),
    "experts, recomputed": (2, [*EXPERTS, "--activation_checkpoint.mode=full", "--training.global_batch_size=8", ASYNC]),
    "experts in one product, tensor parallel, recomputed": (2, [*EXPERTS, TP, "--activation_checkpoint.mode=full", "--training.global_batch_size=8"]),
    "expert and tensor parallel": (2, [*EXPERTS, EP, TP, "--activation_checkpoint.mode=none", "--training.global_batch_size=8", ASYNC]),
    "expert parallel, FSDP": (4, [*EXPERTS, EP, "--activation_checkpoint.mode=full", "--training.global_batch_size=8"]),
    "expert parallel in a pipeline": (4, [*EXPERTS, EP, PP, "--training.local_batch_size=4", "--activation_checkpoint.mode=none"]),
    "experts in FP8, expert parallel": (2, [*EXPERTS, EP, *FP8_EXPERTS, "--activation_checkpoint.mode=none"]),
    "context parallel, documents": (2, [CP, "--training.document_mask", "--activation_checkpoint.mode=full"]),
    "context parallel in a ring": (2, [CP, "--parallelism.context_parallel_rotate_method=alltoall", "--training.global_batch_size=8"]),
    "MXFP8, emulated": (2, ["--model.converters=quantize.linear.mx", "--quantize.linear.mx.emulate"]),
    "FP8 by rows, tensor parallel": (2, [FP8, "--quantize.linear.float8.recipe_name=rowwise", TP]),
    "FP8 gathered, FSDP and tensor parallel": (4, [FP8, TP, "--quantize.linear.float8.enable_fsdp_float8_all_gather", "--training.global_batch_size=8",
                         "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"]),
}
# Each mechanism of these is in another job too, mostly with a second one.
REPEATED_JOBS = {"reduced once per step", "tensor parallel, offloaded", "tensor parallel, in pieces", "experts, recomputed",
                 "expert parallel in a pipeline"}


class SimulatedGpu(SimulatedJobTest):
    def train(self, name, ranks, options, env):
        """Losses of the steps and validations, and the digest of the checkpoint at the end."""
        folder = self.folder / name
        folder.mkdir()
        self.prepare(folder)
        job = self.start("--checkpoint.enable", "--checkpoint.interval=2", *options, folder=folder, ranks=ranks, env=env)
        codes = job.codes()
        self.assertEqual(codes, [0] * ranks, job.text())
        for rank in range(ranks):
            self.assertNotIn("checkpoints are written while training waits", job.text(rank))
        digest = warm_start.run([BINARY, "ckpt", "digest", folder / "out/checkpoint/step-5"])
        self.assertEqual(digest.returncode, 0, digest.stderr)
        losses = [line[key] for line in self.metrics(folder) for key in ("loss_metrics/global_avg_loss", "validation_metrics/loss") if key in line]
        self.assertEqual(len(losses), 7 if "--validation.enable" in options else 5)
        return losses, digest.stdout.splitlines()[-1]

    def test_trains_as_on_a_cpu_and_to_the_same_bits_however_late_streams_are(self):
        for what, (ranks, options) in JOBS.items():
            if what in REPEATED_JOBS and not ALL:
                continue
            emulated = ["--quantize.linear.float8.emulate"] if FP8 in options else []
            if FP8_EXPERTS[0] in options:
                emulated = ["--quantize.grouped_mm.float8.emulate"]
            losses, _ = self.train(f"{what}, CPU", ranks, options + emulated, {})
            found = {}
            for schedule in SCHEDULES:
                with self.subTest(what, schedule=schedule):
                    on_gpu, found[schedule] = self.train(f"{what}, {schedule}", ranks, options, self.gpu(schedule))
                    for here, there in zip(on_gpu, losses):
                        self.assertAlmostEqual(here, there, delta=2e-3)
            self.assertEqual(len(set(found.values())), 1, found)

    def test_a_loss_that_is_no_number_is_seen_however_late_it_comes(self):
        for ranks in (1, 2):
            for schedule in ("eager", "late"):
                with self.subTest(ranks=ranks, schedule=schedule):
                    self.run_job("--optimizer.lr=1e38", "--metrics.log_freq=100", code=93, ranks=ranks, env=self.gpu(schedule),
                                 says=["step 2", "not finite", "data.jsonl:"])

    def test_tuned_products_of_libtorch_are_refused_on_any_number_of_gpus_and_not_on_a_cpu(self):
        for ranks in (1, 2):
            self.run_job(code=2, ranks=ranks, env=self.gpu(PYTORCH_TUNABLEOP_ENABLED="1"),
                         says=["PYTORCH_TUNABLEOP_ENABLED=1", "fp32 sums of bf16 factors", "unset it"])
        self.run_job("--training.steps=1", code=0, env={"HYPERION_DEVICE": "cpu", "PYTORCH_TUNABLEOP_ENABLED": "1"})

    def test_text_that_one_thread_cannot_tokenise_for_the_gpu_is_said_at_the_start_and_shards_are_not(self):
        (self.folder / "data.jsonl").rename(self.folder / "text.jsonl")
        text, shards = (f"--training.dataset_path={self.folder / name}" for name in ("text.jsonl", "shards"))
        made = warm_start.run([BINARY, "tokenize", self.folder / "text.jsonl", "--out", self.folder / "shards", "--tokenizer",
                               ROOT / "tests/assets/tokenizer"])
        self.assertEqual(made.returncode, 0, made.stderr)
        warning = "text is tokenised by one thread on each rank, for all 1 rank"
        self.run_job(text, code=0, says=[warning, "hyperion tokenize"], env=self.gpu())
        self.assertNotIn(warning, self.run_job(shards, code=0, env=self.gpu()).text())

    def test_a_rank_that_fails_beside_a_collective_nobody_joins_ends_with_its_own_sentence(self):
        job = self.start("--allow-faults", ranks=2, env=self.gpu("late", FAULT="rank=1;point=step.fwd;nth=3;action=stop,"
                                                                              "rank=0;point=step.bwd;nth=3;action=throw"))
        job.ranks[0][0].wait(timeout=PATIENCE)
        self.assertEqual(job.ranks[0][0].returncode, 70, job.text())
        self.assertIn("the fault armed at step.bwd was thrown", job.text().splitlines()[-1])

    def test_a_gpu_that_fails_ends_its_rank_with_76_and_the_number_and_the_others_with_71(self):
        driver = self.folder / "libcuda.so.1"  # by whose name an abort is the driver's
        shutil.copy(BINARY.parent / "libsimulated_gpu.so", driver)
        for number in ("46", "214", "220", "226", "700", "714", "719", "802", "999", "abort") if ALL else ("46", "700", "999", "abort"):
            with self.subTest(number):
                failed = self.run_job(code=76, env=self.gpu(HYPERION_SIMULATED_FAULT=f"{number}@0:300", LD_PRELOAD=driver),
                                      says=["libcuda.so.1 ended the process" if number == "abort" else f"CUDA error {number}: ", "Xid"])
                self.assertEqual("a bug of Hyperion" in failed.text(), number == "700", failed.text())
        for number in ("214", "abort") if ALL else ("214",):
            with self.subTest(number, ranks=2):
                job = self.start("--checkpoint.enable", "--checkpoint.interval=1", ASYNC, ranks=2,
                                 env=self.gpu(HYPERION_SIMULATED_FAULT=f"{number}@1:300", LD_PRELOAD=driver))
                self.assertEqual(job.codes(), [71, 76], job.text() + job.text(1))
        self.assertIn("expected ERROR@RANK:KERNELS", self.run_job(code=2, env=self.gpu(HYPERION_SIMULATED_FAULT="214")).text())

    def test_an_abort_from_outside_ends_a_rank_at_once_and_is_no_fault_of_its_gpu(self):
        job = self.start("--allow-faults", env=self.gpu(FAULT="rank=0;point=step.fwd;action=stop;nth=2"))
        job.signal_at_stop(0, signal.SIGABRT)
        self.assertEqual(job.codes(), [-signal.SIGABRT], job.text())
        self.assertNotIn("the GPU failed", job.text())

    def test_cards_and_groups_are_measured_at_the_start(self):
        job = self.start("--comm.speed_check_seconds=0.1", "--training.steps=1", *HSDP, ranks=4,
                         env=self.gpu(HYPERION_SIMULATED_COMPUTE="off"))
        job.codes()  # nothing is computed, so what the job ends with means nothing
        for rank in range(4):
            self.assertRegex(job.text(rank), r"GPU: \d+ TFLOP/s in bfloat16 products, \d+ GB/s in copies; fsdp/\d: gathers at [\d.]+ GB/s, "
                                             r"sums at [\d.]+; dp_replicate/\d: gathers at")

    def test_what_neighbouring_stages_exchange_is_measured_at_the_start(self):
        job = self.start("--comm.speed_check_seconds=0.1", "--training.steps=1", PP.replace("2", "4"), "--training.local_batch_size=4", ranks=4,
                         env=self.gpu(HYPERION_SIMULATED_COMPUTE="off"))
        job.codes()
        for rank in range(4):
            self.assertRegex(job.text(rank), r"GB/s in copies; pp/0: transfers between stages at [\d.]+ GB/s\n")

    @unittest.skipUnless(os.geteuid() == 0 and subprocess.run(["unshare", "--uts", "true"]).returncode == 0, "host names need root")
    def test_groups_over_hosts_are_told_apart_however_the_ranks_are_numbered(self):
        for numbering, on_host in (((0, 0, 1, 1), {"fsdp": 2, "dp_replicate": 1}), ((0, 1, 0, 1), {"fsdp": 1, "dp_replicate": 2})):
            places = [(node, numbering[:rank].count(node)) for rank, node in enumerate(numbering)]
            before = {rank: ["unshare", "--uts", "env", f"GROUP_RANK={node}", f"LOCAL_RANK={local}", "LOCAL_WORLD_SIZE=2", "sh", "-c",
                             f'hostname n{node} && exec "$@"', "sh"] for rank, (node, local) in enumerate(places)}
            job = self.start("--comm.speed_check_seconds=0.1", "--training.steps=1", *HSDP, ranks=4, before=before,
                             env=self.gpu(HYPERION_SIMULATED_COMPUTE="off", GLOO_SOCKET_IFNAME="lo"))
            job.codes()
            for rank in range(4):
                for group, ranks in on_host.items():
                    line = re.search(rf"; {group}/\d: gathers at [\d.]+ GB/s, sums at [\d.]+([^;\n]*)", job.text(rank))
                    self.assertEqual(line.group(1).strip(), "" if ranks == 2 else "(1 of 2 ranks on this host)", job.text(rank))
            for rank, node in re.findall(r"the GPU of rank (\d) on n(\d)", job.text()):
                self.assertEqual(int(node), numbering[int(rank)])

    def test_a_resume_that_is_refused_ends_every_rank_with_its_code(self):
        self.run_job("--checkpoint.enable", "--training.steps=2", code=0, ranks=2, env=self.gpu())
        job = self.run_job("--checkpoint.enable", "--training.max_norm=0.5", code=2, ranks=2, env=self.gpu())
        self.assertIn("training.max_norm", job.text())

    def test_ranks_are_connected_before_anything_is_computed_and_make_contexts_on_their_own_gpus_alone(self):
        trace = self.folder / "trace"
        # The ranks have no communicator of them all: of its shards each has one, and with replicas one of these.
        # Between stages each direction has one, and a tied table has one where there are stages between its two.
        for communicators, what in ((4 * 1, [ASYNC, "--checkpoint.enable", "--ema.enable", "--ema.device=cpu"]), (4 * 2, HSDP),
                                    (4 * 2 + 2, JOBS["pipeline of four stages, tied table, offloaded"][1])):
            self.run_job(*what, "--training.steps=3", code=0, ranks=4,
                         env=self.gpu("1", HYPERION_SIMULATED_TRACE=trace))
            lines = trace.read_text().splitlines()
            trace.unlink()
            kinds = [line.split("\t")[0] for line in lines]
            connected = len(lines) - 1 - lines[::-1].index("nccl\tinit")
            self.assertLess(connected, kinds.index("kernel"))
            self.assertEqual(lines.count("nccl\tinit"), communicators)
            contexts = [line.split()[1:] for line in lines if line.startswith("context")]
            self.assertEqual(sorted(device for device, _ in contexts), ["0", "1", "2", "3"], contexts)
            self.assertEqual(len({process for _, process in contexts}), 4, contexts)
            self.assertEqual({line for line in lines if line.startswith("hardware queues")}, {"hardware queues\t32"})

    def test_a_communicator_has_the_thread_blocks_that_its_traffic_needs(self):
        trace = self.folder / "trace"
        stages, exchanges, collectives = ": max CTAs 4, NVLS CTAs 1", ": max CTAs 16", ":"
        for ranks, options, expected in (
                (4, JOBS["pipeline of four stages, tied table, offloaded"][1], {"pp": stages, "pp_down": stages, "tied": stages}),
                (4, [*EXPERTS, EP, CP], {"fsdp": collectives, "efsdp": collectives, "ep": exchanges, "cp": exchanges}),
                (2, [TP], {"tp": collectives}),
                (2, [TP, IN_PIECES], {"tp": exchanges}),
                (2, [PP, "--training.local_batch_size=4", "--comm.pipeline_max_ctas=8"], {"pp": stages.replace("4", "8"), "pp_down": stages.replace("4", "8")})):
            with self.subTest(options):
                self.run_job(*options, "--training.steps=1", code=0, ranks=ranks, env=self.gpu("1", HYPERION_SIMULATED_TRACE=trace))
                found = {tuple(re.fullmatch(r"communicator\t(\w+)/\d+(:.*)", line).groups())
                         for line in trace.read_text().splitlines() if line.startswith("communicator\t")}
                trace.unlink()
                self.assertEqual(found, set(expected.items()))

    def test_multicast_memory_that_the_fabric_lacks_is_no_lack_of_memory(self):
        job = self.start(ranks=2, env=self.gpu(HYPERION_SIMULATED_NCCL="no_multicast"))
        self.assertIn(71, job.codes(), job.text())
        text = job.text(0) + job.text(1)
        self.assertIn("NCCL got no multicast memory of the NVLink switches (NVLS) for group fsdp/0, which is not the GPU's memory: "
                      "set NCCL_NVLS_ENABLE=0 on all ranks", text)
        self.assertNotIn("ran out", text)

    def test_the_users_number_of_hardware_queues_stays(self):
        trace = self.folder / "trace"
        self.run_job("--training.steps=1", code=0, ranks=2, env=self.gpu(CUDA_DEVICE_MAX_CONNECTIONS="1", HYPERION_SIMULATED_TRACE=trace),
                     says=["CUDA_DEVICE_MAX_CONNECTIONS=1 makes streams run one after the other"])
        self.assertEqual(set(re.findall(r"^hardware queues\t.*$", trace.read_text(), re.M)), {"hardware queues\t1"})

    def test_a_throttled_card_is_named_with_its_clocks_at_the_start(self):
        nvml = self.folder / "nvml"
        nvml.write_text("0000:1b:00.0 reasons 0x40\n0000:1b:00.0 sm_clock 990\n")
        job = self.start("--comm.speed_check_seconds=2", "--training.steps=1",
                         env=self.gpu(HYPERION_SIMULATED_COMPUTE="off", HYPERION_SIMULATED_NVML=nvml,
                                      LD_PRELOAD=f"{BINARY.parent / 'libsimulated_gpu.so'}:{BINARY.parent / 'libsimulated_nvml.so'}"))
        job.codes()
        self.assertRegex(job.text(), r"GPU: \d+ TFLOP/s in bfloat16 products, throttled \(thermal\) with SM at 990 MHz, 700 W, 60 C, \d+ GB/s in copies")

    def test_a_stop_signal_to_one_rank_ends_all_after_the_same_step_with_their_state_saved(self):
        options = ["--allow-faults", "--checkpoint.enable", "--checkpoint.interval=1000", "--metrics.log_freq=1000", "--training.steps=1000"]
        for number, code in ((signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)):
            with self.subTest(number):
                job = self.start(*options, f"--job.dump_folder={self.folder / number.name}", ranks=2,
                                 env=self.gpu(FAULT="rank=1;point=step.fwd;action=stop;nth=3"))
                job.signal_at_stop(1, number)  # in step 3, whose verdict tells all ranks of it in the next one
                self.assertEqual(job.codes(), [code, code], job.text())
                self.assertIn("received in step 3: stopping after step 4 at the latest", job.text(1))
                for rank in range(2):
                    self.assertIn("Stopping after step 4, as a signal asked", job.text(rank))
                    self.assertIn("after step 4; the state is saved", job.text(rank))
                saved = self.folder / number.name / "checkpoint" / "step-4"
                self.assertTrue((saved / ".metadata").exists(), job.text())

    def test_a_save_that_fails_in_the_background_is_dealt_with_by_all_ranks_after_the_same_step(self):
        options = ["--allow-faults", "--checkpoint.enable", "--checkpoint.interval=4", "--metrics.log_freq=100", "--training.steps=9", ASYNC]
        env = self.gpu(FAULT="point=file.write;action=errno:EIO;on=__0_0;nth=2", HYPERION_FAILURE_DIR=self.folder / "failures")
        job = self.run_job(*options, ranks=2, code=74, env=env)
        for rank in range(2):
            self.assertIn("Input/output error", job.text(rank))
        ends = {json.loads(record.read_text())["phase"].split()[1] for record in (self.folder / "failures").glob("rank_*.json")}
        self.assertEqual(len(ends), 1, ends)
        job = self.run_job(*options, "--checkpoint.on_save_failure=continue", f"--job.dump_folder={self.folder / 'continued'}", ranks=2,
                           code=0, env=env)
        for rank in range(2):
            self.assertEqual(job.text(rank).count("A checkpoint could not be saved, training continues"), 1, job.text(rank))
        self.assertTrue((self.folder / "continued/checkpoint/step-8/.metadata").exists())

    def test_the_pool_of_background_saves_is_pinned_before_step_1_and_the_first_save_pins_nothing(self):
        trace = self.folder / "trace"
        for options in ([ASYNC], ["--checkpoint.async_mode=async_with_pinned_mem", "--checkpoint.no_validate_before_training"]):
            with self.subTest(options):
                job = self.run_job("--checkpoint.enable", "--checkpoint.interval=2", "--training.steps=3", *options, f"--job.dump_folder={self.folder / str(len(options))}", code=0,
                                   env=self.gpu("eager", HYPERION_SIMULATED_TRACE=trace),
                                   says=["Background saves copy the state to a pool of ", "iB in pinned host memory"])
                lines = trace.read_text().splitlines()
                trace.unlink()
                first_step, save, last = (lines.index(f"range\t{name}") for name in ("data", "checkpoint staging", "checkpoint save"))
                pinned = [i for i, line in enumerate(lines) if line.startswith("host alloc")]
                self.assertTrue(any(i < first_step for i in pinned), lines)
                self.assertFalse([i for i in pinned if save < i < last], lines)
                self.assertIn("Checkpoint step-2 is staged", job.text())

    def test_a_host_without_pinned_memory_for_the_pool_saves_while_training_waits_and_says_so_once(self):
        job = self.run_job("--checkpoint.enable", "--checkpoint.interval=1", ASYNC, "--allow-faults", ranks=2, code=0,
                           env=self.gpu(FAULT="rank=1;point=ckpt.pool;nth=0;action=errno:ENOMEM"))
        self.assertEqual(job.text().count("checkpoint.async_mode = \"async\": rank 1 has no pinned host memory for a copy of the state ("), 1,
                         job.text())
        self.assertIn("so checkpoints are written while training waits: give the job more host memory, or set "
                      "checkpoint.async_mode = \"disabled\"", job.text())
        self.assertNotIn("is staged", job.text())

    def test_a_step_without_a_token_to_predict_ends_as_on_a_cpu(self):
        (self.folder / "data.jsonl").write_text("{\"text\": \"a\"}\n" * 50)  # three tokens each, the third of which has no label
        options = ["--training.document_mask", "--training.seq_len=1", "--training.local_batch_size=1"]
        for env, frequency in (({}, 1), (self.gpu("late"), 1), (self.gpu("eager"), 100)):
            job = self.run_job(*options, f"--metrics.log_freq={frequency}", code=65, env=env,
                               says=["training: none of the step's tokens has a label to learn from"])
            self.assertNotRegex(job.text(), r"step:  4|\bnan\b")

    def test_a_gpu_without_room_for_nccl_is_out_of_memory_and_what_holds_it_is_said(self):
        job = self.start("--parallelism.data_parallel_replicate_degree=2", ranks=4, env=self.gpu(HYPERION_SIMULATED_MEMORY=400 << 20))
        codes = job.codes()
        self.assertIn(72, codes, job.text())
        for rank, code in enumerate(codes):
            if code != 72:  # its peers ended before it had asked for the memory
                self.assertEqual(code, 71, job.text(rank))
                continue
            self.assertIn(f"the memory of GPU {rank} ran out while NCCL connected group dp_replicate/{rank % 2}: of 0.39 GiB are 0.14 GiB free",
                          job.text(rank))
            self.assertIn("0.00 GiB reserved for this rank's tensors, 0.25 GiB used by contexts, NCCL and other processes", job.text(rank))

    def test_a_communicator_takes_as_much_memory_as_the_key_says(self):
        gib = 1 << 30
        for each, memory, code in ((gib // 4, gib, 0), (3 * gib // 2, 4 * gib, 0), (3 * gib // 2, gib, 72)):
            job = self.start("--training.steps=2", ranks=2, env=self.gpu(HYPERION_SIMULATED_MEMORY=memory, HYPERION_SIMULATED_NCCL_MEMORY=each))
            self.assertIn(code, job.codes(), (each, memory, job.text()))
            if code:
                self.assertIn("ran out while NCCL connected group fsdp/0: of 1.00 GiB are 1.00 GiB free", job.text(0) + job.text(1))

    def test_a_units_gathers_are_one_launch_and_none_grow_with_the_ranks(self):
        step = self.steady_step("--activation_checkpoint.mode=none", ranks=2)
        blocks = 2  # beside them the embedding and the head, gathered once
        self.assertEqual(step["nccl\tgroup of all gather"] + step.get("nccl\tall gather", 0), 2 * blocks + 2)
        # Gradients of matrices as they are, those of norms packed; of the embedding one alone.
        self.assertEqual(step["nccl\tgroup of reduce scatter"], blocks + 1)
        self.assertEqual(step["nccl\treduce scatter"], 1)
        kernels, operators = {}, {}
        for ranks in (1024, 4096, 16384):
            dry_run = self.steady_step("--comm.mode=fake_backend", "--activation_checkpoint.mode=none",
                                       env={"NGPU": str(ranks), "HYPERION_SIMULATED_GPUS": "8", "HYPERION_SIMULATED_COMPUTE": "off"})
            kernels[ranks] = sum(times for line, times in dry_run.items() if line.startswith("kernel"))
            operators[ranks] = sum(times for line, times in dry_run.items() if line.startswith("operator"))
        self.assertLess(max(kernels.values()), 1.02 * kernels[1024], kernels)
        self.assertLess(max(operators.values()), 1.02 * operators[1024], operators)
        few = self.steady_step("--comm.mode=fake_backend", "--activation_checkpoint.mode=none", env={"NGPU": "8", "HYPERION_SIMULATED_GPUS": "8", "HYPERION_SIMULATED_COMPUTE": "off"})
        copies = sum(times for line, times in few.items() if line.startswith("kernel") and "Copy" in line and "Foreach" in line)
        self.assertLessEqual(copies, 2 * (2 * blocks + 2) + 1, few)  # of the fake backend's gathers, and of the optimizer

    def test_gradients_of_several_microbatches_are_reduced_once_by_no_more_kernels(self):
        blocks, microbatches = 2, 4
        # FP8 products with one scale for each tensor leave fp32, to which they cannot add: 7 sums a block and the head's do.
        rowwise = [FP8, "--quantize.linear.float8.recipe_name=rowwise"]
        for more, sums_apart in (([], 0), *([(rowwise, 0)] if ALL else []), ([FP8], 7 * blocks + 1)):
            options = ["--activation_checkpoint.mode=none", "--training.local_batch_size=1", f"--training.global_batch_size={2 * microbatches}", *more]
            often, once = (self.steady_step(*options, *key, ranks=2) for key in ([], [ONCE]))
            def count(step, prefix):
                return sum(times for line, times in step.items() if line.startswith(prefix))
            sums = {kind: [count(step, f"nccl\t{kind}reduce scatter") for step in (often, once)] for kind in ("", "group of ")}
            self.assertEqual(sum(map(sum, sums.values())), (microbatches + 1) * (blocks + 2), sums)
            self.assertEqual(sum(of_step[1] for of_step in sums.values()), blocks + 2, sums)
            kernels = [count(step, "kernel") for step in (often, once)]
            self.assertLessEqual(kernels[1], kernels[0] + (microbatches - 1) * sums_apart)
            products = "kernel\tcublasGemmEx"  # those of later microbatches add to the sum themselves
            self.assertEqual(often.get(products), once.get(products))
            for kind in ("malloc", "free", "host alloc"):
                self.assertEqual(count(once, kind), 0, once)

    def test_layers_that_read_one_input_are_one_product_and_where_they_are_not_a_line_says_why(self):
        products = "kernel\tcublasGemmEx"
        none = "--activation_checkpoint.mode=none"
        blocks = 2
        packed, padded = (self.steady_step(none, "--comm.mode=fake_backend", env={"NGPU": str(ranks), "HYPERION_SIMULATED_GPUS": "8", "HYPERION_SIMULATED_COMPUTE": "off"})[products]
                          for ranks in (8, 7))
        self.assertEqual(packed, blocks * 3 * 4 + 3)  # queries with keys and values, their result, gate with up, down; the head
        self.assertEqual(padded, blocks * 3 * 7 + 3)
        says = "Layers that read one input are multiplied one by one (attention.wq, wk and wv: "
        for options, env, why in (([none], {"NGPU": "7"}, "32 rows of layers.0.attention.wq do not divide by 7 shards; feed_forward.w1 and w3: "),
                                  ([FP8], {"NGPU": "8"}, "FP8 scales each weight alone")):
            self.run_job("--comm.mode=fake_backend", "--training.steps=1", *options, code=0, says=[says + why],
                         env=self.gpu("eager", HYPERION_SIMULATED_GPUS="8", HYPERION_SIMULATED_COMPUTE="off", **env))
        log = self.run_job("--training.steps=1", code=0, env=self.gpu()).text()
        self.assertNotIn("multiplied one by one", log)

    def test_fp8_casts_make_their_scales_and_an_input_is_cast_once(self):
        block = 4 + 7 + 7  # inputs, of which three layers share one and two another; gradients of results; weights
        head = 1 + 1 + 1
        none = "--activation_checkpoint.mode=none"
        for options, casts in (((), 2 * block + head), (("--quantize.linear.float8.recipe_name=rowwise",), 2 * block + head),
                               (("--quantize.linear.float8.enable_fsdp_float8_all_gather",), 2 * (block - 7) + head - 1)):
            step = self.steady_step(FP8, none, *options)
            of_operator = {line.removeprefix("operator\thyperion::"): times for line, times in step.items()}
            gathers = 15 if "all_gather" in str(options) else 0
            self.assertEqual(of_operator["float8_cast_by_amax"], casts, options)
            self.assertEqual(of_operator.get("float8_cast_into_", 0), gathers)
            self.assertEqual(of_operator.get("float8_cast", 0), gathers)  # the other layout, for backward
            self.assertEqual(of_operator.get("float8_scales", 0), 3 if gathers else 0)  # of the weights of a unit each

    def test_a_weight_whose_part_the_gpu_cannot_cast_is_not_gathered_in_emulated_fp8(self):
        self.train("parts", 2, [FP8, "--quantize.linear.float8.emulate", TP, "--quantize.linear.float8.enable_fsdp_float8_all_gather"], self.gpu())

    def test_fp8_steps_look_for_one_largest_element_a_cast_and_neither_copy_gradients_nor_add_them_up_apart(self):
        gathered = "--quantize.linear.float8.enable_fsdp_float8_all_gather"
        none, blocks, gradient_norms = "--activation_checkpoint.mode=none", 2, 4
        plain = self.steady_step(none)
        for options, weights in (([], 7 * blocks + 1), ([gathered, "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"], 0)):
            step = self.steady_step(FP8, none, *options)
            operands = (4 + 7) * blocks + 2  # inputs, of which some layers share one, and gradients; the head's
            self.assertEqual(step["operator\taten::linalg_vector_norm"], operands + weights + gradient_norms)
            self.assertEqual(step["operator\taten::add_"], plain["operator\taten::add_"])
            self.assertEqual(step["operator\taten::copy_"], plain["operator\taten::copy_"])
            self.assertEqual(step["operator\taten::reciprocal"], plain["operator\taten::reciprocal"])
            self.assertEqual(step["operator\taten::_foreach_copy_"] - plain["operator\taten::_foreach_copy_"], 1 if options else 0)
            self.assertNotIn("operator\taten::clone", step)
            self.assertEqual(step.get("operator\taten::zero_"), plain.get("operator\taten::zero_"))

    def test_nvrtc_compiles_beside_a_simulated_gpu(self):
        library = shutil.which("nvcc")
        library = Path(library).resolve().parent.parent / "lib64/libnvrtc.so.13" if library else Path("libnvrtc.so.13")
        if not library.exists():
            self.skipTest("no CUDA toolkit with NVRTC on the PATH")
        script = f"""
import ctypes
nvrtc, program = ctypes.CDLL({str(library)!r}), ctypes.c_void_p()
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), b"__global__ void k() {{}}", b"k.cu", 0, None, None) == 0
assert nvrtc.nvrtcCompileProgram(program, 0, None) == 0
"""
        done = subprocess.run([sys.executable, "-c", script], env=dict(os.environ, LD_PRELOAD=str(self.gpu()["LD_PRELOAD"])), capture_output=True,
                              text=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_fp8_products_by_rows_make_no_scales_of_their_own(self):
        fills = "operator\taten::fill_"
        step = self.steady_step(FP8, "--quantize.linear.float8.recipe_name=rowwise")
        self.assertGreater(step["operator\thyperion::float8_rescale_"], 20)
        self.assertEqual(step[fills], self.steady_step()[fills])

    def test_a_steady_step_allocates_nothing_and_waits_once_for_the_step_before(self):
        for options, ranks in (([], 1), ([], 2), ([FP8], 1), ([FP8, "--quantize.linear.float8.enable_fsdp_float8_all_gather"], 2),
                               (["--training.document_mask"], 1)):
            with self.subTest(options=options, ranks=ranks):
                step = self.steady_step(*options, ranks=ranks)
                kinds = collections.Counter()
                for line, times in step.items():
                    kinds[line.split("\t")[0]] += times
                self.assertGreater(kinds["kernel"], 100)
                for kind in ("malloc", "free", "host alloc"):
                    self.assertEqual(kinds[kind], 0, step)
                waits = {line: times for line, times in step.items() if line.startswith(("synchronize", "copy\tto pageable"))}
                self.assertEqual(waits, {"synchronize\tevent": 1.0})


if __name__ == "__main__":
    main()
