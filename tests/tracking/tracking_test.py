"""scripts/tracking sends each row once, to one run, whoever is killed when: with a stand-in for wandb (fake/) and metrics.jsonl written here.

    python3 tests/tracking/tracking_test.py SOURCE_FOLDER

Standard library only.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop()).resolve()
SCRIPT = ROOT / "scripts/tracking/tracking.py"
OPTIONS = {"wandb_project": "", "wandb_entity": "", "wandb_name": "", "wandb_group": "", "wandb_tags": [], "wandb_mode": "", "wandb_run_id": "",
           "wandb_log_report": False, "mlflow_tracking_uri": "", "mlflow_experiment": "", "mlflow_log_report": False, "alert_command": "",
           "alert_after_seconds": 0}
FIRST, SECOND = "20260101-000001", "20260101-000002"
PATIENCE = 240


class Side:
    """One process of the script, as rank 0 starts it."""

    def __init__(self, test, run, tracker="wandb", env=None, **options):
        self.test = test
        folder = test.folder / "runs" / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text("[training]\nsteps = 30\nmax_norm = inf\n")
        job = {"tracker": tracker, "folder": str(test.folder), "run": run, "program": str(test.folder / "hyperion"), "options": {**OPTIONS, **options}}
        with open(test.folder / "tracking" / f"{tracker}.log", "ab") as log:
            self.process = subprocess.Popen([sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                            env={**test.environment, **(env or {})})
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def end(self, code):
        """The job has ended with the code, or rank 0 was killed (None). Returns what the process said for the job's log."""
        if code is not None:
            self.process.stdin.write(f"{code}\n")
        said, _ = self.process.communicate(timeout=PATIENCE)
        self.test.assertEqual(self.process.returncode, 0, self.test.log())
        return said

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Tracking(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "tracking").mkdir()
        mine = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "MLFLOW"))}
        self.environment = {**mine, "PYTHONPATH": str(ROOT / "tests/tracking/fake"), "FAKE_WANDB": str(self.folder / "calls"),
                            "WANDB_API_KEY": "key"}

    def log(self):
        return "".join(path.read_text() for path in (self.folder / "tracking").glob("*.log"))

    def write(self, step, run=FIRST, **values):
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "time": 1000.0 + step, "run_id": run, **values}) + "\n")

    def train(self, first, last, run=FIRST):
        for step in range(first, last + 1):
            self.write(step, run, **{"loss_metrics/global_avg_loss": 100.0 - step, "mfu(%)": "NaN"})

    def calls(self, name=None):
        path = self.folder / "calls"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in calls if name in (None, call[0])]

    def wait_for(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end, self.log())
            time.sleep(0.02)

    def assert_each_once(self, last):
        self.assertEqual([call[1] for call in self.calls("log")], list(range(len(self.calls("log")))))
        steps = [call[2]["step"] for call in self.calls("log") if "loss_metrics/global_avg_loss" in call[2]]
        self.assertEqual(steps, list(range(1, last + 1)))

    def test_a_run_follows_the_job_and_ends_with_its_code(self):
        self.write(0, event="start", steps=3, ranks=2, seed="1")
        side = Side(self, FIRST, wandb_group="g", wandb_tags=["a", "b"], env={"WANDB_TEAM": "team", "WANDB_RUN_NAME": "name"})
        self.train(1, 2)
        self.wait_for(lambda: len(self.calls("log")) == 2)  # while the job runs
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 3, "time": 10')  # cut off by a crash
        self.wait_for(lambda: True)
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write("\n")
        self.train(3, 3)
        self.write(3, **{"validation_metrics/loss": 4.0})
        self.write(3, event="checkpoint_durable", kind="full", write_seconds=0.5, commit_seconds=0.1, bytes=7, files=2)
        self.write(3, event="end", reason="stopped by a signal", exit_code=75)
        self.assertIn("http://fake/run", side.end(75))
        _, mode, asked = self.calls("init")[0]
        self.assertEqual((mode, asked["resume"], asked["project"], asked["entity"], asked["name"], asked["group"], asked["tags"]),
                         (None, "allow", "torchtitan", "team", "name", "g", ["a", "b"]))
        self.assertEqual(self.calls("define_metric"), [["define_metric", "step", {}], ["define_metric", "*", {"step_metric": "step"}]])
        self.assertIn(["config", {"training": {"steps": 30, "max_norm": float("inf")}}], self.calls("config"))
        self.assertIn(["config", {"start": {"step": 0, "steps": 3, "ranks": 2, "seed": "1"}}], self.calls("config"))
        self.assert_each_once(3)
        self.assertEqual(self.calls("log")[-1][2], {"step": 3, "validation_metrics/loss": 4.0, "_timestamp": 1003.0})
        summary = {key: value for call in self.calls("summary") for key, value in call[1].items()}
        self.assertEqual((summary["checkpoint/step"], summary["checkpoint/bytes"], summary["end/exit_code"]), (3, 7, 75))
        self.assertEqual(self.calls("mark_preempting") + self.calls("finish"), [["mark_preempting"], ["finish", 75]])
        self.assertEqual(self.calls("alert"), [])

    def test_no_point_is_lost_or_doubled_by_kills_and_a_rollback(self):
        self.train(1, 10)
        side = Side(self, FIRST, env={"FAKE_WANDB_DIES_AT": "6"})  # before it can keep how far it was
        self.assertEqual(side.process.wait(PATIENCE), 9)
        side.kill()
        side = Side(self, FIRST)
        self.wait_for(lambda: len(self.calls("log")) == 10)
        side.kill()
        self.train(11, 14)
        Side(self, FIRST).end(None)  # rank 0 was killed
        self.assertEqual([call[1] for call in self.calls("alert")], ["rank 0 was killed"])
        self.train(6, 20, SECOND)  # goes on from step 5
        self.write(20, SECOND, event="end", reason="loss is NaN", exit_code=93)
        Side(self, SECOND).end(93)
        self.assert_each_once(20)
        self.assertEqual(len({call[2]["id"] for call in self.calls("init")}), 1)
        self.assertEqual(self.calls("finish"), [["finish", 1], ["finish", 93]])
        self.assertIn("numbers are not finite", self.calls("alert")[-1][1])
        Side(self, SECOND).end(93)  # which sends no second end
        self.assertEqual(len(self.calls("alert")), 2)
        self.assert_each_once(20)

    def test_an_end_without_an_event_has_the_code_that_rank_0_sent_or_recorded(self):
        self.train(1, 2)
        Side(self, FIRST).end(70)
        record = self.folder / "failures/rank_0.json"
        record.parent.mkdir()
        for run, when, heard in ((SECOND, 60, "the job ended with code 71"), ("20260101-000003", -60, "rank 0 was killed")):
            record.write_text(json.dumps({"code": 71, "time": time.time() + when}))
            self.train(3, 3, run)
            Side(self, run, env={"HYPERION_FAILURE_DIR": str(record.parent)}).end(None)
            self.assertIn(heard, self.calls("alert")[-1][1])
        self.assertIn("the job ended with code 70", self.calls("alert")[0][1])
        self.assertEqual(self.calls("finish"), [["finish", 70], ["finish", 71], ["finish", 1]])

    def test_another_job_in_the_folder_has_a_run_of_its_own(self):
        self.train(1, 2)
        Side(self, FIRST).end(0)
        (self.folder / "metrics.jsonl").rename(self.folder / f"metrics-{FIRST}.jsonl")
        self.train(1, 2, SECOND)
        Side(self, SECOND).end(0)
        self.assertEqual(len({call[2]["id"] for call in self.calls("init")}), 2)

    def test_without_a_server_the_run_is_offline_which_is_said_once(self):
        self.train(1, 3)
        side = Side(self, FIRST, env={"FAKE_WANDB_DOWN": "1"})
        self.wait_for(lambda: len(self.calls("log")) == 3)
        run = self.calls("init")[0][2]["id"]
        for name in ("offline-run-20260101_000002-", "offline-run-20260101_000001-"):
            (self.folder / "wandb" / (name + run)).mkdir(parents=True)
            (self.folder / "wandb" / (name + run) / f"run-{run}.wandb").write_bytes(b"12345678")
        said = side.end(0)
        self.assertEqual(said.count("does not answer"), 1, said)
        self.assertRegex(said, f"wandb sync {self.folder}/wandb/offline-run-20260101_000001-{run} {self.folder}/wandb/offline-run-20260101_000002-{run}\n")

    def test_the_report_is_an_artifact_if_asked_for(self):
        (self.folder / "hyperion").write_text('#!/bin/sh\n[ "$1 $3" = "report -o" ] && printf page > "$4"\n')
        (self.folder / "hyperion").chmod(0o755)
        self.train(1, 1)
        Side(self, FIRST, wandb_log_report=True).end(0)
        self.assertEqual(self.calls("artifact"), [["artifact", [4]]])

    def test_a_process_waits_for_that_of_an_earlier_start(self):
        self.train(1, 2)
        earlier = Side(self, FIRST)
        self.wait_for(lambda: len(self.calls("log")) == 2)
        self.train(3, 4, SECOND)
        later = Side(self, SECOND)
        self.assertIn("waits for", later.process.stdout.readline())
        earlier.end(None)
        later.end(0)
        self.assert_each_once(4)

    def test_the_command_hears_of_what_goes_wrong_and_of_the_end(self):
        command = f"cat >> {self.folder}/heard; exit 3"
        self.train(1, 1)
        side = Side(self, FIRST, "alert", alert_command=command, alert_after_seconds=1)
        self.write(2, event="checkpoint_failed", message="No space left")
        heard = self.folder / "heard"
        self.wait_for(lambda: heard.exists() and "stalled" in heard.read_text())
        self.write(3, event="end", reason="completed", exit_code=0)
        self.assertIn("alert_command ended with code 3", side.end(0))
        events = [json.loads(line) for line in heard.read_text().splitlines()]
        self.assertEqual([(event["event"], event["step"], event["folder"]) for event in events],
                         [(name, step, str(self.folder)) for name, step in (("checkpoint_failed", 2), ("stalled", 2), ("end", 3))])
        self.assertEqual(events[0]["message"], "No space left")

    def check(self, trackers, **variables):
        done = subprocess.run([sys.executable, SCRIPT, "--check"], input=json.dumps({"trackers": trackers, "options": OPTIONS}) + "\n",
                              capture_output=True, text=True, timeout=PATIENCE, env={**self.environment, **variables})
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def test_what_is_missing_is_one_sentence_with_the_command(self):
        self.assertEqual(self.check(["wandb", "alert"]), (0, ""))
        code, said = self.check(["wandb"], WANDB_API_KEY="")
        self.assertEqual((code, said.count("\n")), (2, 1))
        self.assertIn("No API key configured", said)
        self.assertEqual(self.check(["wandb"], WANDB_API_KEY="", WANDB_MODE="offline"), (0, ""))
        (self.folder / "broken").mkdir()
        (self.folder / "broken/wandb.py").write_text("raise ImportError('it is broken')\n")
        code, said = self.check(["wandb"], PYTHONPATH=str(self.folder / "broken"))
        self.assertEqual((code, said.count("\n")), (2, 1))
        self.assertIn(f"it is broken): {sys.executable} -m pip install wandb", said)


if __name__ == "__main__":
    unittest.main()
