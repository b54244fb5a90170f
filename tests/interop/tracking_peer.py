"""scripts/tracking with the packages wandb and mlflow: runs of W&B against a server of its own on loopback (wandb_server.py), online, and offline sent by
`wandb sync`; a run of MLflow in a folder. Each is killed in the middle, loses rank 0 and goes back to an earlier step; every point is there once.

    python3 tests/interop/tracking_peer.py     HYPERION_TRACKING_PYTHON: a Python that has both packages

Skipped (77) where they are missing.
"""
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
python = os.environ.pop("HYPERION_TRACKING_PYTHON", None)
if python:
    os.execv(python, [python, *sys.argv])
if not all(map(importlib.util.find_spec, ("wandb", "mlflow"))):
    print("SKIPPED: no Python with wandb and mlflow (HYPERION_TRACKING_PYTHON names one; pip install wandb==0.31.0 mlflow-skinny==3.17.2)")
    sys.exit(77)
sys.path[:0] = [str(ROOT / "tests/tracking"), str(ROOT / "tests/interop")]
sys.argv.append(str(ROOT))  # the script's argument
from tracking_test import FIRST, SECOND, Side, Tracking, unittest  # noqa: E402
from wandb_server import Server  # noqa: E402

LAST, ROWS = 30, 31  # with a validation at step 10


class Peers(Tracking):
    """Without the tests of the stand-in, whose tools it uses."""

    def setUp(self):
        super().setUp()
        for name in ("PYTHONPATH", "FAKE_WANDB", "WANDB_API_KEY"):
            self.environment.pop(name, None)
        self.server = Server()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.environment.update(WANDB_BASE_URL=self.server.url, WANDB_API_KEY="a" * 40, WANDB_TEAM="team", WANDB_SILENT="true",
                                WANDB_CACHE_DIR=str(self.folder / "cache"), WANDB_CONFIG_DIR=str(self.folder / "config"))

    def sent(self):
        (run,) = self.server.runs.values()
        return run

    def troubled_job(self, seen, tracker="wandb", **options):
        """A side process is killed when `seen` says that it has sent something, then rank 0, and the job goes on from step 10 to its end.
        Returns what the last side process said."""
        self.write(0, event="start", steps=LAST, ranks=2, seed="1")
        side = Side(self, FIRST, tracker, **options)
        self.train(1, 10)
        self.write(10, **{"validation_metrics/loss": 3.0})
        self.write(10, event="checkpoint_durable", kind="full", write_seconds=0.5, commit_seconds=0.1, bytes=7, files=2)
        self.wait_for(seen)
        self.train(11, 14)
        time.sleep(0.7)  # it is reading these, or has read them
        side.kill()
        self.train(15, 17)
        side = Side(self, FIRST, tracker, **options)
        self.train(18, 20)
        side.end(None)
        self.write(10, SECOND, event="start", steps=LAST, ranks=2, seed="1", resumed_from="step-10")
        side = Side(self, SECOND, tracker, **options)
        self.train(11, LAST, SECOND)
        self.write(LAST, SECOND, event="end", reason="loss is NaN", exit_code=93)
        return side.end(93)

    def assert_run_is_complete(self):
        run = self.sent()
        rows = [run["lines"][at] for at in sorted(run["lines"])]
        self.assertEqual([row["_step"] for row in rows], list(range(ROWS)))
        self.assertEqual([row["step"] for row in rows], [*range(1, 11), *range(10, LAST + 1)])
        self.assertEqual([row["loss_metrics/global_avg_loss"] for row in rows if "loss_metrics/global_avg_loss" in row],
                         [100.0 - step for step in range(1, LAST + 1)])
        self.assertEqual([row["_timestamp"] for row in rows], [1000.0 + row["step"] for row in rows])
        self.assertEqual(run["exits"], [1, 93])
        self.assertEqual(run["alerts"], ["rank 0 was killed", "the job ended with code 93: numbers are not finite"])
        self.assertEqual(run["config"]["training"]["value"]["steps"], 30)
        self.assertEqual((run["summary"]["checkpoint/step"], run["summary"]["end/exit_code"]), (10, 93))
        self.assertEqual((run["asked"]["entity"], run["asked"]["project"], run["asked"]["groupName"]), ("team", "p", "g"))

    def test_an_online_run_has_each_point_once(self):
        self.troubled_job(lambda: self.server.runs and len(self.sent()["lines"]) >= 5, wandb_project="p", wandb_group="g")
        self.assert_run_is_complete()

    def test_offline_runs_are_one_run_when_wandb_has_sent_them(self):
        state = self.folder / "tracking/wandb.json"
        said = self.troubled_job(lambda: state.exists() and '"rows": 11' in state.read_text(), wandb_mode="offline", wandb_project="p", wandb_group="g")
        self.assertEqual(self.server.runs, {})
        command = said.split("wandb sync ")[1].split()
        done = subprocess.run([Path(sys.executable).with_name("wandb"), "sync", *command], env=self.environment, capture_output=True, text=True,
                              timeout=240, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_run_is_complete()

    def test_without_a_server_a_run_is_kept_and_sent_by_the_next_start_that_has_one(self):
        self.train(1, 5)
        side = Side(self, FIRST, env={"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "3"}, wandb_project="p")
        self.assertEqual(side.end(75).count("does not answer"), 1)
        self.train(6, LAST, SECOND)
        Side(self, SECOND, wandb_project="p").end(0)
        self.assertEqual([row["step"] for _, row in sorted(self.sent()["lines"].items())], list(range(1, LAST + 1)))

    def test_a_run_of_mlflow_has_each_point_once(self):
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        from mlflow.tracking import MlflowClient

        client = MlflowClient(str(self.folder / "mlruns"))

        def runs():
            try:
                return client.search_runs([client.get_experiment_by_name("hyperion").experiment_id])
            except Exception:  # half made
                return []
        self.assertIn("MLFLOW_ALLOW_FILE_STORE", self.troubled_job(lambda: runs() and "step" in runs()[0].data.metrics, "mlflow"))
        (run,) = runs()

        def points(name):
            return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        self.assertEqual(points("loss_metrics/global_avg_loss"), [(step, 100.0 - step) for step in range(1, LAST + 1)])
        self.assertEqual(points("validation_metrics/loss"), [(10, 3.0)])
        self.assertEqual(len(points("mfu_percent")), LAST)
        self.assertEqual(len(points("step")), ROWS)
        self.assertEqual((run.info.status, run.data.params["training.steps"], run.data.params["training.max_norm"]), ("FAILED", "30", "inf"))
        # A process was killed between two values of a row.
        client.log_metric(run.info.run_id, "loss_metrics/global_avg_loss", 100.0 - LAST - 1, int((1001 + LAST) * 1000), LAST + 1)
        self.train(LAST + 1, LAST + 2, SECOND)
        Side(self, SECOND, "mlflow").end(0)
        self.assertEqual(points("loss_metrics/global_avg_loss"), [(step, 100.0 - step) for step in range(1, LAST + 3)])
        self.assertEqual(len(points("mfu_percent")), LAST + 2)
        self.assertEqual((run.data.tags["checkpoint.step"], run.data.tags["end.exit_code"]), ("10", "93"))


if __name__ == "__main__":
    own = [name for name in vars(Peers) if name.startswith("test_")]
    suite = unittest.TestSuite(map(Peers, own))
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
