"""MLflow (tracking.py): one run for a job and all its restarts."""
import os
import re
import secrets
from pathlib import Path

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without it mlflow 3 refuses a file store

from mlflow.entities import Metric, Param, RunTag  # noqa: E402
from mlflow.tracking import MlflowClient  # noqa: E402

from tracking import number, read_config, say, write_report  # noqa: E402

LARGEST_TEXT = 500  # of a parameter, in every server
PARAMETERS_OF_BATCH = 100


def problem(options):
    return None


def metric_name(tag):
    """throughput(tps) is throughput_tps, mfu(%) is mfu_percent: MLflow takes no brackets and percent signs."""
    return re.sub(r"[^\w/.: -]", "_", re.sub(r"\((.*?)\)", r"_\1", tag.replace("%", "percent")))


def flat(table, prefix=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield re.sub(r"[^\w/.: -]", "_", prefix + key), str(value)[:LARGEST_TEXT]


class Tracker:
    def __init__(self, job, state):
        self.job, self.state, options = job, state, job["options"]
        uri = options["mlflow_tracking_uri"] or os.environ.get("MLFLOW_TRACKING_URI") or str(Path(job["folder"]).resolve() / "mlruns")
        if "://" not in uri or uri.startswith("file:"):
            say(f"a file store, {uri}, with MLFLOW_ALLOW_FILE_STORE=true")
        self.client = MlflowClient(tracking_uri=uri)
        name = options["mlflow_experiment"] or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "hyperion"
        if "id" not in state or state.get("uri") != uri:
            experiment = self.client.get_experiment_by_name(name)
            experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(name)
            # The run of a process that was killed before it could keep the id has this tag.
            state.setdefault("key", secrets.token_hex(8))
            state.save()
            made = self.client.search_runs([experiment_id], f"tags.hyperion_job = '{state['key']}'", max_results=1)
            run = made[0] if made else self.client.create_run(experiment_id, tags={"hyperion_job": state["key"]})
            state.update(id=run.info.run_id, uri=uri)
            state.save()
        self.id = state["id"]
        self.client.update_run(self.id, status="RUNNING")
        self.rows = len(self.history("step"))
        self.held = {}  # of the row that a killed process has left unfinished
        known = self.client.get_run(self.id).data.params
        config = dict(flat(read_config(job["folder"], job["run"])))
        new = [Param(key, value) for key, value in config.items() if key not in known]
        for first in range(0, len(new), PARAMETERS_OF_BATCH):
            self.client.log_batch(self.id, params=new[first:first + PARAMETERS_OF_BATCH])
        # A parameter is written once: a later start's other value is a tag.
        changed = [RunTag(f"changed.{key}", value) for key, value in config.items() if known.get(key, value) != value]
        for first in range(0, len(changed), PARAMETERS_OF_BATCH):
            self.client.log_batch(self.id, tags=changed[first:first + PARAMETERS_OF_BATCH])
        say(f"run {self.id} of experiment {name}")

    def history(self, name):
        return self.client.get_metric_history(self.id, name)

    def row(self, at, row):
        time = int(row["time"] * 1000)
        values = {metric_name(key): number(value) for key, value in row.items() if key not in ("step", "time", "run_id")}
        if at == self.rows:  # the metric `step` is written last, so a row without it may be there in part
            values = {name: value for name, value in values.items() if (row["step"], time) not in {(m.step, m.timestamp) for m in self.history(name)}}
        self.client.log_batch(self.id, metrics=[Metric(name, value, time, row["step"]) for name, value in values.items()])
        self.client.log_metric(self.id, "step", row["step"], time, row["step"])

    def event(self, row):
        if row["event"] == "checkpoint_durable":
            self.held.update({"checkpoint.step": row["step"], "checkpoint.kind": row["kind"]})
        elif row["event"] == "end":
            self.held.update({"end.reason": row.get("reason", ""), "end.exit_code": row.get("exit_code", 0)})

    def flush(self):
        if self.held:
            self.client.log_batch(self.id, tags=[RunTag(key, str(value)[:LARGEST_TEXT]) for key, value in self.held.items()])
            self.held = {}

    def alert(self, title, row):
        if title:
            self.client.set_tag(self.id, "alert", f"{title} (step {row['step']})")

    def finish(self, code):
        page = write_report(self.job) if self.job["options"]["mlflow_log_report"] else None
        if page:
            self.client.log_artifact(self.id, str(page))
        self.client.set_terminated(self.id, "FINISHED" if code == 0 else "KILLED" if code in (75, 130, 143) else "FAILED")
