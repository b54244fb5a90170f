#!/usr/bin/env python3
"""A job with trackers: what rank 0 does with its side processes (scripts/tracking). The package wandb is tests/tracking/fake/wandb.py.

usage: tracking_test.py HYPERION [unittest options]
"""

import fcntl
import json
import sys
import time

from checkpoints import CheckpointTest
from jobs import PATIENCE, ROOT, main

WANDB = ("--metrics.enable_wandb", f"--metrics.tracking_python={sys.executable}")


class Tracking(CheckpointTest):
    def calls(self, name):
        calls = [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
        return [call[1:] for call in calls if call[0] == name]

    def environment(self, **more):
        return {"PYTHONPATH": ROOT / "tests/tracking/fake", "FAKE_WANDB": self.folder / "calls", "WANDB_API_KEY": "key", "WANDB_MODE": "online", **more}

    def test_a_run_survives_the_end_of_its_process_and_a_restart_of_the_job(self):
        heard = self.folder / "heard"
        options = (*WANDB, f"--metrics.alert_command=cat >> {heard}", "--lr_scheduler.total_steps=8")
        first = self.run_job("--training.steps=4", *options, ranks=2, env=self.environment(FAKE_WANDB_DIES_AT="1"), code=0)
        self.assertIn("wandb: run ", first.text())
        self.run_job("--training.steps=8", *options, ranks=2, env=self.environment(), code=0)
        self.wait_for_side_processes()
        self.assertEqual([(at, row["step"]) for at, row in self.calls("log")], [(step - 1, step) for step in range(1, 9)])
        self.assertEqual(len({asked["id"] for _, asked in self.calls("init")}), 1)
        self.assertEqual(self.calls("finish"), [[0], [0]])
        (config,) = [table for (table,) in self.calls("config") if table.get("training", {}).get("steps") == 8]
        self.assertEqual(config["model"]["args"]["dim"], 32)
        for own_session, files in self.calls("process"):
            self.assertTrue(own_session)
            self.assertEqual([file for file in files if not file.startswith((str(self.folder), "pipe:"))], [])
        ends = [json.loads(line) for line in heard.read_text().splitlines()]
        self.assertEqual([(end["event"], end["exit_code"], end["step"]) for end in ends], [("end", 0, 4), ("end", 0, 8)])

    def wait_for_side_processes(self):
        """Waits until the processes that the jobs have left behind have sent everything: each holds a lock."""
        for path in (self.folder / "out" / "tracking").glob("*.lock"):
            with open(path) as file:
                end = time.monotonic() + PATIENCE
                while True:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        self.assertLess(time.monotonic(), end)
                        time.sleep(0.05)

    def test_a_missing_package_is_one_sentence_before_step_1_on_every_rank(self):
        (self.folder / "broken").mkdir()
        (self.folder / "broken/wandb.py").write_text("raise ImportError('No module named x')\n")
        job = self.run_job(*WANDB, ranks=2, env=self.environment(PYTHONPATH=self.folder / "broken"), code=2,
                           says=["metrics.enable_wandb = true", "-m pip install wandb"])
        self.assertNotIn("step:", job.text())
        self.run_job(WANDB[0], "--metrics.tracking_python=/no/python", code=2, says=["metrics.tracking_python: /no/python cannot be run"])


if __name__ == "__main__":
    main()
