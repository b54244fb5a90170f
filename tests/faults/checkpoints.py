"""What the checkpoint tests share: a job that saves, its loss lines, its folder, and the program's own tools."""

import json
import re
import shlex

import warm_start
from jobs import BINARY, TOML, JobTest

CHECKPOINT_TOML = TOML.replace("steps = 5", "steps = 8\nglobal_batch_size = 4") + """
[checkpoint]
enable = true
interval = 3
last_save_model_only = false
"""


def printed_options(text):
    """The options that a message names, as a shell passes them on."""
    found = re.findall(r"'--[a-z_.]+=[^']*'|--[a-z_.]+=\S+", text)
    return [shlex.split(option)[0].rstrip(".,;:)") for option in found]


class CheckpointTest(JobTest):
    toml = CHECKPOINT_TOML

    def setUp(self):
        super().setUp()
        self.steps_folder = self.folder / "out" / "checkpoint"

    def curve(self, folder=None):
        """step -> (loss, gradient norm, learning rate); of a step that was done twice, the later line."""
        return {line["step"]: (line["loss_metrics/global_avg_loss"], line["grad_norm"], line["lr"])
                for line in self.metrics(folder) if "grad_norm" in line}

    def saved(self):
        """Steps with a folder, and everything else in there that is not the lock; nothing where there is no folder, which
        a run that saved nothing takes away again."""
        names = sorted(path.name for path in self.steps_folder.glob("*") if path.name != ".lock")
        steps = sorted(int(name[5:]) for name in names if name.startswith("step-"))
        return steps, [name for name in names if not name.startswith("step-")]

    def step(self, number):
        return self.steps_folder / f"step-{number}"

    def manifest(self, number):
        return json.loads((self.step(number) / "hyperion.json").read_text())

    def files(self):
        """All that is in the folder but its lock: path -> (size, time of the last change)."""
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in self.steps_folder.rglob("*")
                if path.name != ".lock"}

    def check_resumed_curve(self, *stages):
        """A run of 8 steps whose stages, (layout, last step) each, go on one from another has the losses of an undisturbed one. The test
        has `train(layout, *options)`."""
        self.train("1", "--checkpoint.no_enable")
        undisturbed = self.curve()
        (self.folder / "out" / "metrics.jsonl").unlink()
        for layout, steps in stages:
            self.train(layout, f"--training.steps={steps}", "--lr_scheduler.total_steps=8")
        resumed = self.curve()
        self.assertEqual(set(resumed), set(undisturbed))
        for step, (loss, norm, rate) in undisturbed.items():
            self.assertLess(abs(resumed[step][0] - loss), 5e-6 * loss, step)
            self.assertLess(abs(resumed[step][1] - norm), 2e-5 * norm, step)
            self.assertEqual(resumed[step][2], rate)

    def check_read(self, source, target):
        """What a job of the layout `source` wrote one of `target` reads, and writes in turn; its contents. The test has `train(layout, *options)`."""
        path = self.folder / "out" / source / "step-1"
        if not path.exists():
            self.train(source, "--training.steps=1", "--lr_scheduler.total_steps=2", f"--checkpoint.folder={source}")
        # A last save of weights alone leaves the pre-checkpoint, which holds what was read.
        self.train(target, "--training.steps=2", f"--checkpoint.folder={source} to {target}", "--checkpoint.resume_mode=continue",
                   "--checkpoint.no_initial_load_model_only", f"--checkpoint.initial_load_path={path}", "--checkpoint.last_save_model_only")
        read = self.contents(self.folder / "out" / f"{source} to {target}" / "step-1")
        self.assertEqual(read, self.contents(path))
        return read

    def contents(self, path):
        """key -> hash of every tensor and value, whatever the mesh that wrote them."""
        return {entry["key"]: entry["hash"] for entry in json.loads(self.tool("digest", path, "--json"))["entries"]}

    def tool(self, *arguments, code=0):
        """stdout of `hyperion ckpt ...`."""
        done = warm_start.run([BINARY, "ckpt", *map(str, arguments)])
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def control(self, *options, ranks=1, steps=8):
        """The curve of the undisturbed run, made in a folder of its own."""
        folder = self.folder / "control"
        folder.mkdir()
        self.prepare(folder)
        self.run_job(f"--training.steps={steps}", *options, folder=folder, ranks=ranks, code=0)
        return self.curve(folder)
