"""What a validation reads on real ranks: the same sequences on every mesh, or batches per rank.

    python3 tests/faults/validation_test.py build/hyperion
"""

import json

import warm_start
from jobs import BINARY, JobTest, main

JOB = ["--training.steps=1", "--training.local_batch_size=1", "--training.global_batch_size=12", "--validation.enable",
       "--training.mixed_precision_param=float32", "--validation.dataset=jsonl", "--validation.seq_len=32",
       "--validation.local_batch_size=2"]


class Validation(JobTest):
    def loss(self, *options, ranks=1, says=()):
        path = self.folder / "out" / "metrics.jsonl"
        path.unlink(missing_ok=True)
        self.run_job(*JOB, f"--validation.dataset_path={self.folder}/data.jsonl", *options, ranks=ranks, code=0, says=says)
        (loss,) = [line["validation_metrics/loss"] for line in map(json.loads, path.read_text().splitlines())
                   if "validation_metrics/loss" in line]
        return loss

    def assert_close(self, a, b):
        self.assertAlmostEqual(a, b, delta=2e-6 * abs(b))

    def test_sequences_give_one_loss_on_every_number_of_ranks_also_where_they_do_not_divide(self):
        # 7 sequences in batches of 2: a last batch of 1 of 2, 3 of 4, 1 of 6, and 7 of 8.
        one = self.loss("--validation.sequences=7")
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                self.assert_close(self.loss("--validation.sequences=7", ranks=ranks), one)
        replicas = "--parallelism.data_parallel_replicate_degree=2"
        self.assert_close(self.loss("--validation.sequences=7", replicas, ranks=4), one)
        self.assert_close(self.loss("--validation.sequences=7", "--validation.local_batch_size=3"), one)
        self.assertGreater(abs(self.loss("--validation.sequences=8") - one), 1e-4)  # the eighth counts

    def test_sequences_are_the_first_ones_of_the_data(self):
        loss = self.loss("--validation.sequences=7", "--checkpoint.enable", "--checkpoint.no_last_save_model_only", ranks=2)
        done = warm_start.run([BINARY, "eval", self.folder / "out" / "checkpoint" / "step-1", "--data", self.folder / "data.jsonl",
                               "--seq-len=32", "--batch-size=1", "--max-batches=7", "--json"], cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        evaluation = json.loads(done.stdout)
        self.assertEqual(evaluation["sequences"], 7)
        self.assert_close(loss, evaluation["loss"])

    def test_more_sequences_than_there_are_count_each_once_and_this_is_said(self):
        whole = self.loss()
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                job = self.loss("--validation.sequences=100000", ranks=ranks,
                                says=["WARNING - validation.sequences = 100000, but the validation data hold"])
                self.assert_close(job, whole)

    def test_steps_are_batches_per_rank_and_not_beside_sequences(self):
        two = self.loss("--validation.steps=2")
        self.assert_close(self.loss("--validation.sequences=4"), two)  # 2 batches of 2
        self.assert_close(self.loss("--validation.steps=2", ranks=2), self.loss("--validation.sequences=8"))
        self.assertGreater(abs(self.loss("--validation.steps=2", ranks=2) - two), 1e-4)
        self.run_job(*JOB, "--validation.steps=2", "--validation.sequences=4",
                     f"--validation.dataset_path={self.folder}/data.jsonl", code=2,
                     says=["command line: validation.sequences = 4: counts the sequences of all ranks"])


if __name__ == "__main__":
    main()
