"""`hyperion check`: what a job would do and end with, without a device and without leaving anything behind.

    python3 tests/faults/check_test.py build/hyperion
"""

import json
import math
import os
import re
import shutil
import subprocess

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, ROOT, main


class Check(CheckpointTest):
    def check(self, *options, code=0, says=(), not_says=(), config="job.toml", env=None):
        """The output of the command, which leaves every file and folder as it was."""
        before = self.tree()
        # No device is asked for.
        environment = {**os.environ, "HYPERION_DEVICE": "cuda", **{name: str(value) for name, value in (env or {}).items()}}
        done = warm_start.run([BINARY, "check", self.folder / config, *options],
                              cwd=self.folder, env=environment)
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, text)
        self.assertEqual(self.tree(), before)
        for word in says:
            self.assertIn(word, text)
        for word in not_says:
            self.assertNotIn(word, text)
        return text

    def tree(self):
        return {path: (path.stat().st_size, path.stat().st_mtime_ns if path.is_file() else None)
                for path in self.folder.rglob("*")}

    def assert_job_ends_alike(self, *options, code, says, ranks=1):
        """The check and the job end with one code and the same sentences."""
        self.check(*options, f"--ranks={ranks}", code=code, says=says)
        self.run_job(*options, ranks=ranks, code=code, says=says)

    def test_a_fresh_start_is_described_for_any_number_of_ranks(self):
        self.check("--ranks=2", says=["2 ranks", "4 sequences of 32 per step: 128 tokens", "2,048 entries", "none to resume from",
                                      "train steps 1 to 8 from random weights"])
        self.check("--ranks=1000", "--training.global_batch_size=2000", says=["1000 ranks", "2000 sequences of 32",
                   "sharded over 1,000 ranks without replicas", "data_parallel_shard_degree = 100 with data_parallel_replicate_degree = 10",
                   "of them padding"])
        self.check(says=["1 rank"])
        self.check(says=["\nAll checks passed.\n"])
        self.check("--no-such", code=2)
        help_text = warm_start.run([BINARY, "check", "--help"]).stdout
        self.assertIn("--ranks", help_text)

    def test_who_writes_checkpoints_is_said_with_the_reason(self):
        hsdp = ("--parallelism.data_parallel_replicate_degree=2", "--training.global_batch_size=-1")
        for options, text in ((("--ranks=2",), 'all 2 ranks (checkpoint.writers = "auto": at most 512 ranks)'),
                              (("--ranks=512", *hsdp), 'all 512 ranks (checkpoint.writers = "auto": at most 512 ranks)'),
                              (("--ranks=1024", *hsdp), 'one replica, 512 of 1,024 ranks (checkpoint.writers = "auto": more than 512 ranks, '
                                                        'and 2 replicas)'),
                              (("--ranks=1024", *hsdp, "--checkpoint.writers=all"), 'all 1,024 ranks (checkpoint.writers = "all")'),
                              (("--ranks=1024", "--training.global_batch_size=-1"), "without replicas each rank has a shard of its own"),
                              (("--checkpoint.no_enable",), "nothing is saved")):
            with self.subTest(options):
                self.assertIn(text, self.rows(self.check(*options))["writers"][1])

    def test_a_preset_of_a_large_model_is_checked_in_little_memory(self):
        options = ["--model.flavor=70B", "--training.global_batch_size=-1", "--ranks=64"]
        done = subprocess.run(["bash", "-c", 'ulimit -v 8000000; exec "$@"', "_", BINARY, "check", self.folder / "job.toml",
                               *options, "--model.args.dim=8192", "--model.args.n_layers=80", "--model.args.n_heads=64"],
                              capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        parts = self.parts(self.rows(done.stdout)["memory"][1])
        self.assertAlmostEqual(parts["weights"] + parts["optimizer state"], 14.37, delta=0.02)  # 70.6e9 x (3 x 4 + 2 bytes) / 64

    def test_a_resume_is_described_with_its_step_and_another_number_of_ranks_may_read_it(self):
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", "--ema.enable", ranks=2, code=0)
        for ranks in (1, 2, 4):
            self.check("--lr_scheduler.total_steps=8", "--ema.enable", f"--ranks={ranks}", "--training.local_batch_size=1",
                       says=[f"resume from {self.step(6)}, then train steps 7 to 8", "tensors fit"])
        self.check("--training.steps=6", "--lr_scheduler.total_steps=8", "--ema.enable", says=["train nothing"])
        self.check("--checkpoint.load_step=3", "--ema.enable", says=["step-3"])

    def test_what_ends_a_job_ends_the_check_with_the_same_code_and_words(self):
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", code=0)
        for options, code, says in (
                (["--model.args.n_layers=3"], 65, ["2 layers there, 3 here"]),
                (["--training.dataset_path=/nowhere"], 2, ["training.dataset_path", "no such file or folder"]),
                (["--optimizer.lr=1e-3"], 2, ["optimizer.lr: saved 0.0008, configured 0.001"]),
                (["--training.steps=12"], 2, ["would learn nothing"]),
                (["--ema.enable"], 65, ["holds no averaged weights"]),
                (["--checkpoint.load_step=5"], 65, ["load_step = 5"]),
                (["--model.flavor=7B"], 2, ["did you mean 8B?"]),
                (["--training.global_batch_size=3"], 2, ["expected a multiple of"]),
                (["--training.dtype=bfloat16"], 2, ["bfloat16"])):
            with self.subTest(options=options):
                self.assert_job_ends_alike(*options, code=code, says=says)
        self.assert_job_ends_alike("--parallelism.data_parallel_shard_degree=3", code=2, says=["must be the 2 ranks"], ranks=2)

    def test_damaged_checkpoints_are_passed_over_as_a_job_does(self):
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", code=0)
        (self.step(6) / ".metadata").write_bytes(b"damaged")
        self.check("--lr_scheduler.total_steps=8", says=["step-6 is not resumed from", f"resume from {self.step(3)}"])

    def test_other_text_in_a_data_file_is_found(self):
        (self.folder / "data.jsonl").write_bytes(b"PAR1")
        self.check(code=65, says=["is Parquet: rename it so that its name ends in .parquet"])

    def test_a_token_shard_whose_tokens_have_changed_is_found(self):
        shard = self.folder / "corpus" / "shard"
        (self.folder / "corpus" / ".cache").mkdir(parents=True)
        warm_start.run([BINARY, "tokenize", "--out", str(shard), "--tokenizer", str(ROOT / "tests/assets/tokenizer"),
                        str(self.folder / "data.jsonl")], check=True)
        self.check("--training.dataset=jsonl", f"--training.dataset_path={shard.parent}", says=["left out: 1 name beginning with a dot"])
        tokens = bytearray((shard / "tokens.bin").read_bytes())
        tokens[100] ^= 1
        (shard / "tokens.bin").write_bytes(tokens)
        self.check("--training.dataset=jsonl", f"--training.dataset_path={shard}", code=65,
                   says=["training data    FAIL ", "tokens.bin does not have the checksum in index.json"])

    def test_a_dump_folder_that_cannot_be_written_is_73_and_nothing_stays_of_one_that_can(self):
        self.check("--job.dump_folder=a/b/c", says=["a/b/c: can be made"])
        (self.folder / "file").write_text("")
        self.check(f"--job.dump_folder={self.folder}/file/out", code=73, says=["dump folder      FAIL", "file"])
        # The other groups are looked at all the same, and all that fails is printed.
        text = self.check(f"--job.dump_folder={self.folder}/file/out", "--validation.enable", "--validation.dataset=jsonl",
                          f"--validation.dataset_path={self.folder}/file", code=65)
        self.assertEqual(sorted(row for row, (verdict, _) in self.rows(text).items() if verdict == "FAIL"),
                         ["dump folder", "validation data"], text)

    def test_an_export_of_a_model_that_hugging_face_cannot_hold_is_refused_before_anything_is_made(self):
        toml = (self.folder / "job.toml").read_text()
        self.assertIn("n_heads = 4\n", toml)
        toml = toml.replace("n_heads = 4\n", "n_heads = 3\nn_kv_heads = 3\nhead_dim = 8\n")
        toml = toml.replace("[checkpoint]\n", "[checkpoint]\nlast_save_in_hf = true\nlast_save_model_only = true\n")
        (self.folder / "job.toml").write_text(toml.replace("last_save_model_only = false\n", ""))
        lines = (self.folder / "job.toml").read_text().splitlines()
        places = [f"job.toml:{lines.index(line) + 1}:" for line in ("last_save_in_hf = true", "n_heads = 3")]
        says = [*places, "checkpoint.last_save_in_hf = true", "n_heads 3 does not divide dim 32"]
        self.assert_job_ends_alike(code=2, says=says)
        self.assertFalse((self.folder / "out").exists())
        self.assert_job_ends_alike("--model.args.n_heads=4", "--model.args.n_kv_heads=4", "--model.args.qk_norm", code=2,
                                   says=[places[0], "qk_norm is true, and transformers has no llama3 model with it"])
        # Without an export such a model trains, and both say once what will not be possible.
        without = "--checkpoint.no_last_save_in_hf"
        text = self.check(without, says=["cannot be exported to Hugging Face: n_heads 3"])
        self.assertEqual(text.count("cannot be exported"), 1)
        job = self.run_job(without, "--training.steps=1", code=0, says=["cannot be exported to Hugging Face"])
        self.assertEqual(job.text().count("cannot be exported"), 1)

    def rows(self, text):
        """row -> (verdict, text) of the table."""
        matches = re.findall(r"^([a-z0-9 ]{16}) (ok|FAIL|-) +(.*)$", text, re.M)
        return {row.strip(): (verdict, more) for row, verdict, more in matches}

    def parts(self, text):
        """part -> GiB of the row "memory", whose parts in a GPU's memory add up to its sum."""
        def gib(size, unit):
            return float(size) / {"GiB": 1, "MiB": 1024}[unit]
        total, listed = re.match(r"(\S+ \S+) per rank.*? at least: ([^;]+)", text).groups()
        parts = {name: gib(size, unit) for name, size, unit in re.findall(r"([a-z ]+) ([\d.]+) (\w+)(?:, |$)", listed)}
        self.assertAlmostEqual(sum(parts.values()), gib(*total.split()), delta=0.01 * len(parts))
        return parts

    def test_every_failure_stands_in_its_own_row_and_what_depends_on_it_in_one_row(self):
        every = ["configuration", "model", "ranks", "batch", "memory", "predicted", "tokenizer", "training data", "dump folder", "checkpoints",
                 "writers", "settings", "state", "a start would"]
        bad = self.folder / "bad.jsonl"
        bad.write_bytes(b"PAR1")
        for options, code, row, looked_at in (
                (["--training.stesp=1"], 2, "configuration", []),
                (["--parallelism.data_parallel_shard_degree=3"], 2, "configuration", ["tokenizer", "dump folder"]),
                (["--model.hf_assets_path=/nowhere"], 2, "tokenizer", ["ranks", "dump folder", "checkpoints"]),
                (["--training.dataset_path=/nowhere"], 2, "training data", ["tokenizer", "checkpoints"]),
                ([f"--training.dataset_path={bad}"], 65, "training data", ["tokenizer", "checkpoints"]),
                ([f"--job.dump_folder={bad}/out"], 73, "dump folder", ["training data", "settings", "state"]),
                (["--checkpoint.load_step=5"], 65, "checkpoints", ["training data", "dump folder"]),
                (["--lr_scheduler.total_steps=3"], 2, "settings", ["checkpoints"])):
            with self.subTest(options=options):
                text = self.check(*options, code=code)
                rows = self.rows(text)
                self.assertEqual([name for name, (verdict, _) in rows.items() if verdict == "FAIL"], [row])
                for name in looked_at:
                    self.assertEqual(rows[name][0], "ok", name)
                self.assertEqual(list(rows)[-1], "not checked")  # the last one, and the only one about the rest
                because, _, names = rows.pop("not checked")[1].partition(": ")
                self.assertEqual(because, f'because "{row}" failed')
                self.assertEqual(sorted([*rows, *names.split(", ")]), sorted(every))
                self.assertIn("a start would", names.split(", "))
                # Then the verdict, and the job's own message is the end.
                verdict, *message = text.splitlines()[len(rows) + 1:]
                self.assertEqual(verdict, f'A job would end with exit code {code}: "{row}" failed.')
                self.assertTrue(message[0].startswith("hyperion: "), message)

    def test_a_refused_family_is_one_row_one_verdict_and_one_sentence_with_the_families_there_are(self):
        text = self.check("--model.name=mixtral", code=2)
        self.assertEqual(list(self.rows(text)), ["configuration", "not checked"])
        self.assertEqual(len(text.splitlines()), 5, text)
        self.assertRegex(text.splitlines()[-1], "^  command line: --model.name = mixtral: expected .*; this family is not available; "
                         "flavours of deepseek_v3: debugmodel, .*; of qwen3: debugmodel, .*$")

    def test_memory_above_that_of_the_gpu_is_wrong_and_without_one_nothing_is_compared(self):
        big = ["--model.flavor=405B", "--model.args.dim=16384", "--model.args.n_layers=126", "--model.args.n_heads=128", "--ranks=8",
               "--training.global_batch_size=-1"]
        no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
        memory = self.rows(self.check(*big, env=no_gpu))["memory"]
        self.assertEqual(memory[0], "-")
        self.assertRegex(memory[1], r"^8\d\d\.\d\d GiB per rank .*; not compared with a GPU's memory: none is in use here, and --gpu-memory")
        text = self.check(*big, "--gpu-memory=80", env=no_gpu, code=2,
                          says=["model.args.dim = 16384: each rank needs at least 8", "but --gpu-memory is 80.0 GiB; set training.enable_cpu_offload = true (8",
                                'A job would end with exit code 2: "memory" failed.'])
        self.assertEqual(self.rows(text)["memory"][0], "FAIL")
        self.assertIn("a start would", self.rows(text)["not checked"][1])
        memory = self.rows(self.check(*big, "--gpu-memory=900", env=no_gpu))["memory"]
        self.assertEqual(memory[0], "ok")
        memory_of_big = memory
        self.assertTrue(memory[1].endswith("; --gpu-memory is 900.00 GiB; NCCL communicators, not counted: 1, up to 1.50 GiB (1 for collectives of 1.50 GiB)"), memory)
        memory = self.rows(self.check(*big, "--gpu-memory=9000", "--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_replicate_degree=2",
                                      env=no_gpu))["memory"]
        self.assertIn("; NCCL communicators, not counted: 3, up to 4.50 GiB (3 for collectives of 1.50 GiB)", memory[1])
        needed = float(re.match(r"([\d.]+) GiB", memory_of_big[1]).group(1))
        memory = self.rows(self.check(*big, f"--gpu-memory={math.ceil(needed)}", env=no_gpu))["memory"]
        self.assertEqual(memory[0], "ok")  # the communicators' memory is an estimate
        self.assertTrue(memory[1].endswith("(1 for collectives of 1.50 GiB): with them the memory may run out"), memory)
        # A job reads its data first.
        self.check(*big, "--gpu-memory=80", "--training.dataset_path=none.jsonl", env=no_gpu, code=2,
                   says=['A job would end with exit code 2: "training data" and "memory" failed.'])
        # Data that are missing change nothing about it.
        rows = self.rows(self.check(*big, "--gpu-memory=900", "--training.dataset=c4", "--training.dataset_path=None", env=no_gpu, code=2))
        self.assertEqual((rows["training data"][0], rows["ranks"][0], rows["memory"]), ("FAIL", "ok", memory_of_big))

    def test_memory_that_a_host_must_have_is_said_and_compared_where_the_ranks_run_here(self):
        big = ["--model.flavor=405B", "--model.args.dim=16384", "--model.args.n_layers=126", "--model.args.n_heads=128",
               "--training.enable_cpu_offload"]
        # What offloading leaves on the GPU is small.
        row = self.rows(self.check(*big, "--ranks=8", "--gpu-memory=80", "--training.global_batch_size=-1", env={"CUDA_VISIBLE_DEVICES": ""}))["memory"]
        self.assertEqual(row[0], "-")
        self.assertRegex(row[1], r"; in host memory 8\d\d\.\d\d GiB per rank at least: optimizer state [\d.]+ GiB, weights .*; "
                                 "a host needs that for each of its ranks .not compared; ")
        self.assertNotIn("optimizer state", self.parts(row[1]))
        library = BINARY.parent / "libsimulated_gpu.so"
        if library.exists():
            text = self.check(*big, env={"LD_PRELOAD": library}, code=2, says=["each rank needs at least 6", "TiB of memory"])
            self.assertEqual(self.rows(text)["memory"][0], "FAIL")
        self.check(*big, env={"HYPERION_DEVICE": "cpu"}, code=2, says=["each rank needs at least 6", "TiB of memory"])

    def test_a_shape_without_its_weights_is_warned_of(self):
        shutil.copytree(ROOT / "tests/assets/tokenizer", self.folder / "model")
        (self.folder / "model/config.json").write_text(json.dumps({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "vocab_size": 2048, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 512}))
        options = ("--model.flavor=from_hf", f"--model.hf_assets_path={self.folder}/model")
        self.check(*options, says=["takes the model's shape alone"])
        self.check(*options, "--comm.mode=fake_backend", says=["a dry run of rank 0"], not_says=["takes the model's shape alone"])

    def test_the_gpu_of_this_host_is_what_memory_is_compared_with(self):
        library = BINARY.parent / "libsimulated_gpu.so"
        if not library.exists():
            self.skipTest("this build has no simulated GPU")
        gpu = {"LD_PRELOAD": library, "HYPERION_SIMULATED_MEMORY": 16 << 20}
        self.check(env=gpu, says=["the memory of this host's GPU (--gpu-memory GB for another) is 16.00 MiB"])
        self.check("--model.flavor=8B", "--model.args.n_heads=8", env=gpu, code=2,
                   says=["but the memory of this host's GPU (--gpu-memory GB for another) is 16.0 MiB"])
        self.check("--gpu-memory=80", env=gpu, says=["--gpu-memory is 80.00 GiB"])
        self.check(env=gpu | {"HYPERION_DEVICE": "cpu"}, says=["not compared with a GPU's memory"])

    def test_a_pipeline_has_a_row_for_each_of_its_ranks(self):
        text = self.check("--ranks=4", "--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4", "--training.global_batch_size=8")
        self.assertIn("planned bubble", self.rows(text)["pipeline"][1])
        for rank, stage, kept in ((0, "tok_embeddings to layers.0", "2 microbatches"), (1, "layers.1 to norm,output", "1 microbatch")):
            found = self.rows(text)[f"pp rank {rank}"][1]
            self.assertRegex(found, rf"^stage {rank} \({stage}\): [\d,]+ parameters, at most {kept} kept; at least [\d.]+ MiB: .*gathered weights of stages")
        self.assertIn("of the pipeline's, the one that needs the most", self.rows(text)["memory"][1])
        self.check("--ranks=2", "--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=1", "--training.global_batch_size=1", says=["fewer than ranks: the planned bubble is"])
        text = self.check("--ranks=2", "--parallelism.pipeline_parallel_degree=2", "--parallelism.pipeline_parallel_schedule=PipelineScheduleMulti", code=2)
        self.assertEqual(text.count('pipeline_parallel_schedule = "PipelineScheduleMulti" takes its order from a file'), 1, text)
        self.assertRegex(text, 'because "pipeline" failed: (.*, )?state, a start would')

    def test_muon_has_a_row_with_its_exchange_and_its_fullest_owner(self):
        muon = ("--ranks=4", "--parallelism.tensor_parallel_degree=2", "--optimizer.name=Muon")
        text = self.check(*muon)
        self.assertRegex(self.rows(text)["muon"][1], r"^the fullest rank multiplies [\d.e-]+ TFLOP in a step, 1\.\d\d times the mean, for \d+ matrices; it sends "
                                                     r"[\d.]+ MiB per step to owners and back \([\d.]+ MiB in fsdp, [\d.]+ MiB in tp\); buffers [\d.]+ MiB$")
        self.assertIn("buffers of exchanged matrices", self.rows(text)["memory"][1])
        self.assertNotIn("muon", self.rows(self.check(*muon[:2])))
        found = json.loads(self.check(*muon, "--json"))
        self.assertEqual(found["exit_code"], 0)
        self.assertEqual([row["verdict"] for row in found["rows"] if row["name"] == "muon"], ["-"])
        numbers = found["muon"]
        self.assertGreaterEqual(numbers["flops"], numbers["mean_flops"])
        self.assertEqual(numbers["exchange_bytes"], sum(numbers[f"{group}_bytes_{way}"] for group in ("fsdp", "tp") for way in ("to_owners", "received")))
        self.assertGreater(numbers["buffer_bytes"], numbers["exchange_bytes"] / 2)
        self.assertNotIn("muon", json.loads(self.check(*muon[:2], "--json")))

    def test_a_failed_row_is_in_json_too(self):
        text = self.check("--json", "--model.flavor=none", code=2)
        found = json.JSONDecoder().raw_decode(text)[0]
        self.assertEqual(found["exit_code"], 2)
        self.assertIn("FAIL", [row["verdict"] for row in found["rows"]])

    def test_keys_without_effect_are_named_once(self):
        text = self.check("--compile.enable", "--training.gc_freq=7", "--parallelism.pipeline_parallel_schedule=GPipe",
                          "--parallelism.enable_async_tensor_parallel")
        self.assertEqual(self.rows(text)["without effect"][1], "training.gc_freq, compile.enable (keys that configure Python)")
        for key, degree in (("enable_async_tensor_parallel = true", "tensor"), ('pipeline_parallel_schedule = "GPipe"', "pipeline")):
            said = f"parallelism.{key} (command line) has no effect: parallelism.{degree}_parallel_degree is 1"
            self.assertEqual(text.count(said), 1, text)
        self.assertNotIn("without effect", self.check("--training.gc_freq=50"))

    def test_saved_values_that_are_kept_are_those_of_the_checks(self):
        self.run_job("--training.steps=3", "--lr_scheduler.total_steps=8", code=0)
        keep = ["--lr_scheduler.total_steps=8", "--checkpoint.on_config_change=keep"]
        for changed in ("--training.no_shuffle", "--training.seq_len=24", "--training.document_mask"):
            self.assertIn("resume from", self.rows(self.check(*keep, changed))["a start would"][1])
        text = self.check(*keep, "--training.seq_len=96", "--parallelism.context_parallel_degree=3", "--ranks=3", code=2)
        self.assertEqual(self.rows(text)["settings"][0], "FAIL")
        self.assertIn("saved in the checkpoint: training.seq_len = 32", text)

    def test_warnings_come_after_the_table(self):
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", code=0)
        (self.step(6) / ".metadata").write_bytes(b"damaged")
        done = warm_start.run([BINARY, "check", "job.toml", "--lr_scheduler.total_steps=8", "--lr_scheduler.warmup_steps=20",
                               "--checkpoint.on_config_change=override"], stderr=subprocess.STDOUT, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout)
        lines = done.stdout.splitlines()
        warnings = [i for i, line in enumerate(lines) if "WARNING" in line]
        self.assertEqual(len(warnings), 3, done.stdout)
        self.assertIn("(step-6 (damaged))", lines[warnings[2]])
        self.assertIn("steps 4 to 6 are trained again", lines[warnings[2]])
        self.assertGreater(min(warnings), max(i for i, line in enumerate(lines) if line.startswith("a start would")))

    def test_all_wrong_keys_are_reported_as_by_a_job(self):
        self.check("--training.stesp=1", code=2, says=["did you mean training.steps?"])
        self.check("--steps=1", code=2, says=["did you mean --training.steps?"])


if __name__ == "__main__":
    main()
