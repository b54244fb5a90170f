"""A ramp of the global batch: each step's batch, one stream of data, resumes in the middle on any ranks, and what is refused.

    python3 tests/faults/batch_ramp_test.py build/hyperion
"""

import json
import shutil

from checkpoints import CheckpointTest
from jobs import main

RAMP = ["--training.mixed_precision_param=float32", "--training.local_batch_size=1", "--training.global_batch_size=-1",
        "--training.global_batch_ramp=0,2;3,4;5,8", "--checkpoint.interval=4", "--lr_scheduler.total_steps=8", "--metrics.log_freq=1"]
BATCHES = [2, 2, 2, 4, 4, 8, 8, 8]  # 38 sequences


class BatchRamp(CheckpointTest):
    def position(self, step):
        return {key: value for key, value in self.contents(self.step(step)).items()
                if key.startswith("dataloader.") and key != "dataloader.world_size"}

    def tensors(self, step):
        return {key: value for key, value in self.contents(self.step(step)).items() if key.startswith(("optimizer.state.", "layers."))}

    def test_a_ramp_changes_the_batch_and_goes_on_in_the_middle_of_it(self):
        text = self.run_job(*RAMP, code=0, says=[
            "training.global_batch_ramp: 2 sequences from step 1, 4 from step 4, 8 from step 6; gradient accumulation follows; the learning rate counts steps",
            "The global batch changes from 2 to 4 sequences in step 4: 128 tokens, 4 microbatches on each data-parallel rank",
            "The global batch changes from 4 to 8 sequences in step 6: 256 tokens, 8 microbatches on each data-parallel rank"]).text()
        self.assertEqual(text.count("The global batch changes"), 2)
        rows = [row for row in self.metrics() if "grad_norm" in row]
        self.assertEqual([row["global_batch_size"] for row in rows], BATCHES)
        self.assertEqual([row["n_tokens_seen"] for row in rows], [32 * sum(BATCHES[:step]) for step in range(1, 9)])
        events = [json.loads(line) for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([(row["step"], row["sequences"]) for row in events if row.get("event") == "batch_changed"], [(3, 4), (5, 8)])
        expected, position = self.curve(), self.position(8)
        state = self.tensors(8)

        # From step 4, in the middle of a stage: by the same bits on one rank, else by the same losses.
        pipeline = ["--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=2", "--parallelism.pipeline_parallel_microbatch_size=1"]
        for ranks, layout in ((2, pipeline), (2, []), (1, [])):
            shutil.rmtree(self.step(8))
            (self.folder / "out" / "metrics.jsonl").unlink()
            job = self.run_job(*RAMP, *layout, ranks=ranks, code=0, says=["Training starts at step 5"])
            self.assertNotIn("from 2 to 4 sequences", job.text())
            resumed = self.curve()
            self.assertEqual(sorted(resumed), [5, 6, 7, 8])
            for step, (loss, norm, rate) in resumed.items():
                self.assertLess(abs(loss - expected[step][0]), 2e-6 * loss)
                self.assertLess(abs(norm - expected[step][1]), 1e-5 * norm)
                self.assertEqual(rate, expected[step][2])
            self.assertEqual(self.position(8), position)
        self.assertEqual(resumed, {step: expected[step] for step in resumed})
        self.assertEqual(self.tensors(8), state)

    def test_the_samples_are_those_of_one_stream(self):
        """19 steps of 2 sequences end where the ramp of 38 does."""
        self.run_job(*RAMP, "--checkpoint.interval=100", code=0)
        position = self.position(8)
        self.run_job("--training.mixed_precision_param=float32", "--training.local_batch_size=2", "--training.global_batch_size=2", "--training.steps=19",
                     "--checkpoint.folder=plain", "--checkpoint.interval=100", code=0)
        self.steps_folder = self.folder / "out" / "plain"
        self.assertEqual(self.position(19), position)

    def test_a_ramp_in_tokens_has_the_stages_of_one_in_steps(self):
        tokens = ["--training.global_batch_ramp=0,2;180,4;390,8", "--training.global_batch_ramp_unit=tokens"]  # after 192 and 448 tokens
        self.run_job(*RAMP, *tokens, "--training.steps=4", code=0, says=["4 from step 4, 8 from step 6"])
        self.run_job(*RAMP, *tokens, code=0)
        self.assertEqual([row["global_batch_size"] for row in self.metrics() if "grad_norm" in row], BATCHES)

    def test_what_cannot_be_is_one_sentence(self):
        def refused(ramp, *says, ranks=1, more=()):
            self.run_job(*RAMP, f"--training.global_batch_ramp={ramp}", *more, ranks=ranks, code=2, says=["training.global_batch_ramp", *says])
        refused("0,2;3,3", "stage [3, 3]: expected a multiple of 2 (local_batch_size 1 x 2 data-parallel ranks), such as 2 or 4; 1 or 3 ranks can make this batch", ranks=2)
        refused("5,2", "the first stage begins at 5: expected 0")
        refused("0,2;5,4;5,8", "stage [5, 8] after [5, 4]: each begins later than the one before it")
        refused("0,2;5,4;3,8", "stage [3, 8] after [5, 4]")
        refused("0,2;-5,4", "stage [-5, 4] after [0, 2]")
        refused("0,2;5,-4", "stage [5, -4]: expected a batch of 1 to 1,000,000,000 sequences")
        refused("0,2;5", "a list of pairs of whole numbers")
        refused("0,2;5,4", "training.global_batch_size = 4 sets the batch of all steps: remove one of both", more=["--training.global_batch_size=4"])
        refused("", "there is no training.global_batch_ramp whose stages it counts", more=["--training.global_batch_ramp_unit=tokens"])

    def test_another_ramp_is_a_difference(self):
        self.run_job(*RAMP, "--training.steps=4", code=0)
        other = "--training.global_batch_ramp=0,2;3,8"
        self.run_job(*RAMP, other, code=2, says=["training.global_batch_ramp: saved [[0, 2], [3, 4], [5, 8]], configured [[0, 2], [3, 8]]"])
        self.run_job(*RAMP, "--training.global_batch_ramp=", "--training.global_batch_size=8", code=2,
                     says=["training.global_batch_ramp: saved [[0, 2], [3, 4], [5, 8]], configured []"])
        self.run_job(*RAMP, "--training.global_batch_ramp=", "--training.global_batch_size=8", "--checkpoint.on_config_change=keep", "--training.steps=6",
                     code=0, says=["training.global_batch_ramp: keeping [[0, 2], [3, 4], [5, 8]]", "from 4 to 8 sequences in step 6"])
        self.run_job(*RAMP, other, "--checkpoint.on_config_change=override", code=0, says=["training.global_batch_ramp: taking [[0, 2], [3, 8]]"])


if __name__ == "__main__":
    main()
