"""Weights & Biases (tracking.py): one run for a job and all its restarts."""
import os
import pathlib
import secrets
import shlex
import struct

import wandb

from tracking import number, read_config, say, write_report

STOPPED_SAVED = 75
HEADER_SIZE = 7
NO_COLUMNS = ("time", "run_id")


def mode_of(options):
    mode = options["wandb_mode"] or os.environ.get("WANDB_MODE") or "online"
    return "offline" if mode == "dryrun" else mode


def problem(options):
    """Why no run can be made, or None. Asks no server."""
    if mode_of(options) != "online":
        return None
    try:
        wandb.login(verify=False)
        return None
    except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
        return f"{str(error).splitlines()[0].rstrip('.')} (or set WANDB_API_KEY, or metrics.wandb_mode = \"offline\")"


def rows_in(path):
    """How many rows the file of a run holds up to: one more than its last _step. It is a log of LevelDB's form in blocks of 32 KiB,
    whose records are W&B's protobufs."""
    from wandb.proto import wandb_internal_pb2

    data, at, record, rows = path.read_bytes(), HEADER_SIZE, b"", 0
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + 7:at + 7 + size]
        if kind == 0 or len(piece) < size:  # the end, cut off
            break
        at += 7 + size
        record = piece if kind in (1, 2) else record + piece  # whole, first; middle, last
        if kind in (1, 4):
            parsed = wandb_internal_pb2.Record.FromString(record)
            if parsed.WhichOneof("record_type") == "history":
                rows = max(rows, parsed.history.step.num + 1)
    return rows


class Tracker:
    def __init__(self, job, state):
        self.job, self.state = job, state
        options, variable = job["options"], os.environ.get
        chosen = options["wandb_run_id"] or variable("WANDB_RUN_ID")
        if chosen or "id" not in state:
            state["id"] = chosen or secrets.token_hex(4)
        state.save()
        folder = variable("WANDB_DIR") or job["folder"]
        self.runs = pathlib.Path(folder) / "wandb"
        tags = options["wandb_tags"] or list(filter(None, (variable("WANDB_RUN_TAGS") or variable("WANDB_TAGS") or "").split(",")))
        settings = {
            "project": options["wandb_project"] or variable("WANDB_PROJECT") or "torchtitan",
            "entity": options["wandb_entity"] or variable("WANDB_TEAM") or None,
            "name": options["wandb_name"] or variable("WANDB_RUN_NAME") or None,
            "group": options["wandb_group"] or variable("WANDB_RUN_GROUP") or None,
            "notes": variable("WANDB_RUN_NOTES") or None, "job_type": variable("WANDB_RUN_JOB_TYPE") or None, "tags": tags or None,
            "id": state["id"], "dir": folder, "settings": wandb.Settings(console="off")}
        self.online = mode_of(options) != "offline"
        if self.online:
            try:
                self.run = wandb.init(mode=options["wandb_mode"] or None, resume="allow", **settings)
            except wandb.errors.CommError as error:
                self.online = False
                wandb.teardown()  # its service keeps the id
                say(f"the server does not answer ({str(error).splitlines()[0]}): offline, and the run's files are kept in {self.runs}")
        if not self.online:
            self.run = wandb.init(mode="offline", **settings)
        self.rows = self.run.starting_step if self.online else self.rows_of_files()
        self.run.config.update(read_config(job["folder"], job["run"]), allow_val_change=True)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        self.summary = {}
        say(f"run {state['id']}" + (f": {self.run.url}" if self.online and self.run.url else ""))

    def folders(self, kind):
        """The folders of the job's run, in order of start."""
        return sorted(self.runs.glob(f"{kind}-*-{self.state['id']}"), key=lambda folder: folder.name.split("run-")[1])

    def rows_of_files(self):
        files = [folder / f"run-{self.state['id']}.wandb" for kind in ("run", "offline-run") for folder in self.folders(kind)]
        files = [file for file in files if file.exists()]
        try:
            return max(map(rows_in, files)) if files else self.state.get("rows", 0)
        except Exception as error:  # a form of a later wandb
            say(f"the files of earlier starts cannot be read ({error}): a row may come twice or be missing where one was killed")
            return self.state.get("rows", 0)

    def row(self, at, row):
        values = {key: number(value) for key, value in row.items() if key not in NO_COLUMNS}
        self.run.log({**values, "_timestamp": row["time"]}, step=at, commit=True)
        self.state["rows"] = at + 1

    def event(self, row):
        name = row["event"]
        if name == "start":
            self.run.config.update({"start": {key: row[key] for key in row if key not in (*NO_COLUMNS, "event")}}, allow_val_change=True)
        elif name in ("checkpoint_staged", "checkpoint_durable"):
            values = {key: number(row[key]) if key != "kind" else row[key]
                      for key in ("kind", "stall_seconds", "write_seconds", "commit_seconds", "bytes", "files") if key in row}
            self.summary.update({f"checkpoint/{key}": value for key, value in values.items()})
            if name == "checkpoint_durable":
                self.summary["checkpoint/step"] = row["step"]
        elif name == "end":
            self.summary.update({"end/reason": row.get("reason", ""), "end/exit_code": row.get("exit_code", 0)})

    def flush(self):
        if self.summary:
            self.run.summary.update(self.summary)
            self.summary = {}
        if self.state.get("rows") != self.state.get("saved_rows"):
            self.state["saved_rows"] = self.state["rows"]
            self.state.save()

    def alert(self, title, row):
        if title:
            self.run.alert(title[:63], f"{row.get('message') or row.get('reason') or title} (step {row['step']}, {self.job['folder']})",
                           level=wandb.AlertLevel.ERROR)

    def finish(self, code):
        page = write_report(self.job) if self.job["options"]["wandb_log_report"] else None
        if page:
            artifact = wandb.Artifact(f"report-{self.state['id']}", type="report")
            artifact.add_file(str(page))
            self.run.log_artifact(artifact)
        if code == STOPPED_SAVED:
            self.run.mark_preempting()
        self.run.finish(exit_code=code)
        wandb.teardown()  # waits until its service has written all
        if not self.online:
            unsent = [folder for folder in self.folders("offline-run") if not list(folder.glob("*.wandb.synced"))
                      and sum(file.stat().st_size for file in folder.glob("*.wandb")) > HEADER_SIZE]  # else it was killed before it wrote
            say(f"offline: send the run with: wandb sync {' '.join(shlex.quote(str(folder)) for folder in unsent)}")
