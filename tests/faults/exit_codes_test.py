"""Every way a job can end that needs no checkpoint, on the real program: exit code, message, nothing left behind.

    python3 tests/faults/exit_codes_test.py build/hyperion

Standard library only. Each case runs a small model on data made here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BINARY = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parents[2]
TOML = """
[model]
hf_assets_path = "{root}/tests/assets/tokenizer"
[model.args]
dim = 32
n_layers = 2
n_heads = 4
[training]
dataset = "jsonl"
dataset_path = "{folder}/data.jsonl"
local_batch_size = 2
seq_len = 32
steps = 5
[metrics]
log_freq = 1
[job]
dump_folder = "{folder}/out"
[lr_scheduler]
warmup_steps = 0
[debug]
seed = 1
"""


class Job:
    """One or more ranks of the program, with what they printed."""

    def __init__(self, folder, *options, ranks=1, env=None, per_rank=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.ranks = []
        for rank in range(ranks):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "HYPERION_DEVICE": "cpu",
                   "LOG_RANK": ",".join(map(str, range(ranks))), **(env or {})}
            command = [BINARY, "train", folder / "job.toml", *options, *(per_rank[rank] if per_rank else [])]
            output = open(folder / f"rank{rank}.log", "w+")
            self.ranks.append((subprocess.Popen(command, env={**os.environ, **{k: str(v) for k, v in own.items()}},
                                                stdout=output, stderr=subprocess.STDOUT, cwd=folder), output))

    def text(self, rank=0):
        output = self.ranks[rank][1]
        output.seek(0)
        return output.read()

    def wait_for(self, text, rank=0, seconds=60):
        end = time.monotonic() + seconds
        while text not in self.text(rank):
            if time.monotonic() > end or self.ranks[rank][0].poll() is not None:
                raise AssertionError(f"rank {rank} never printed {text!r}:\n{self.text(rank)}")
            time.sleep(0.02)

    def codes(self, seconds=60):
        try:
            return [process.wait(timeout=seconds) for process, _ in self.ranks]
        finally:
            for process, _ in self.ranks:
                if process.poll() is None:
                    process.kill()
                    process.wait()


class ExitCodes(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        (self.folder / "job.toml").write_text(TOML.format(root=ROOT, folder=self.folder))
        documents = [f"Document {i} has a few words, and some of them are its own: {i * 7919}." for i in range(200)]
        (self.folder / "data.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
        self.addCleanup(self.temporary.cleanup)

    def start(self, *options, **kwargs):
        job = Job(self.folder, *options, **kwargs)
        self.addCleanup(lambda: [output.close() for _, output in job.ranks])
        return job

    def run_job(self, *options, code, says=(), **kwargs):
        job = self.start(*options, **kwargs)
        codes = job.codes()
        self.assertEqual(codes, [code] * len(codes), job.text())
        for text in says:
            self.assertIn(text, job.text())
        return job

    def metrics(self):
        return [json.loads(line) for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]

    def test_done_is_0(self):
        self.run_job(code=0, says=["step:  5", "Training completed"])
        self.assertEqual(len(self.metrics()), 5)

    def test_typo_is_2_and_names_place_and_suggestion(self):
        text = (self.folder / "job.toml").read_text().replace("seq_len", "seq_length")
        (self.folder / "job.toml").write_text(text)
        self.run_job(code=2, says=["job.toml:12", "seq_length", "seq_len"])

    def test_unavailable_feature_is_2_by_name(self):
        self.run_job("--checkpoint.enable", code=2, says=["checkpoint.enable"])

    def test_mesh_that_does_not_fit_is_2(self):
        self.run_job("--parallelism.data_parallel_shard_degree=3", code=2, says=["data_parallel_shard_degree"])

    def test_vocabulary_larger_than_the_model_is_2_before_any_step(self):
        job = self.run_job("--model.args.vocab_size=100", code=2, says=["vocab_size", "2048"])
        self.assertNotIn("Training starts", job.text())

    def test_missing_data_is_2(self):
        self.run_job("--training.dataset_path=/no/such/data.jsonl", code=2, says=["/no/such/data.jsonl"])

    def test_damaged_data_is_65_and_names_the_line(self):
        with open(self.folder / "data.jsonl", "a") as data:
            data.write("{ this is no JSON\n")
        self.run_job("--training.steps=200", "--training.shuffle=false", code=65, says=["data.jsonl:201"])

    def test_damaged_tokenizer_is_65(self):
        (self.folder / "tokenizer.json").write_text("{}")
        self.run_job(f"--model.hf_assets_path={self.folder}", code=65, says=["tokenizer.json"])

    def test_non_finite_is_93_and_names_step_and_documents(self):
        job = self.run_job("--optimizer.lr=1e38", code=93, says=["not finite", "data.jsonl:"])
        self.assertRegex(job.text(), r"step [23]:")

    def test_non_finite_is_93_on_every_rank(self):
        self.run_job("--optimizer.lr=1e38", code=93, ranks=2, says=["not finite"])

    def test_ranks_that_disagree_are_2_and_list_the_key(self):
        self.run_job(code=2, ranks=2, per_rank=[["--optimizer.lr=1e-3"], ["--optimizer.lr=2e-3"]], says=["lr"])

    def test_interrupt_ends_after_the_step_with_130(self):
        job = self.start("--training.steps=100000", ranks=2)
        job.wait_for("step:  3")
        job.ranks[0][0].send_signal(signal.SIGINT)  # one rank is enough: they agree
        self.assertEqual(job.codes(), [130, 130], job.text())
        self.assertIn("stopped by a signal", job.text())

    def test_term_ends_after_the_step_with_143(self):
        job = self.start("--training.steps=100000")
        job.wait_for("step:  2")
        job.ranks[0][0].terminate()
        self.assertEqual(job.codes(), [143], job.text())

    def test_killed_peer_is_71_and_names_rank_and_phase(self):
        job = self.start("--training.steps=100000", ranks=2)
        job.wait_for("step:  2")
        job.ranks[1][0].kill()
        self.assertEqual(job.codes()[0], 71, job.text())
        self.assertRegex(job.text(), r"rank 0.*step \d+")

    def test_every_layout_option_trains(self):
        for options, ranks in ((["--activation_checkpoint.mode=full", "--training.global_batch_size=8"], 2),
                               (["--parallelism.data_parallel_replicate_degree=2"], 4),
                               (["--parallelism.data_parallel_replicate_degree=2",
                                 "--parallelism.data_parallel_shard_degree=1"], 2),
                               (["--activation_checkpoint.selective_ac_option=op", "--training.document_mask",
                                 "--optimizer.implementation=foreach", "--training.enable_cpu_offload"], 1),
                               (["--parallelism.fsdp_reshard_after_forward=never", "--optimizer.name=Adam",
                                 "--validation.enable", "--validation.dataset=jsonl", "--validation.steps=2",
                                 f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.seq_len=32"], 2)):
            with self.subTest(options=options, ranks=ranks):
                self.run_job(*options, code=0, ranks=ranks, says=["Training completed"])

    def test_dry_run_plays_any_world_size(self):
        self.run_job("--comm.mode=fake_backend", "--training.steps=1", code=0, env={"NGPU": 64}, says=["step:  1"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
