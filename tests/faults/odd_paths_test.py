"""Paths that do not lead to a file: links to themselves, folders without permission, pipes and devices where the job would write.

    python3 tests/faults/odd_paths_test.py build/hyperion

Standard library only. Each ends with one sentence that names the path, and a documented code.
"""

import os
import shutil
import subprocess

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, ROOT, main

TOKENIZER = ROOT / "tests" / "assets" / "tokenizer"
# Runs a command as a user that permissions hold for, also where the tests run as root.
WITHOUT_PRIVILEGE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []


class PathTest(CheckpointTest):
    def run_program(self, *arguments, code, says=(), before=(), seconds=PATIENCE):
        done = warm_start.run([*before, BINARY, *map(str, arguments)], stderr=subprocess.STDOUT, timeout=seconds, cwd=self.folder,
                              env={**os.environ, "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1"})
        output = done.stdout
        self.assertEqual(done.returncode, code, output[-3000:])
        for words in says:
            self.assertIn(words, output)
        return output

    def in_place_of(self, path, make):
        """`make(path)` where `path` is, until the context ends."""
        test = self

        class Replaced:
            def __enter__(self):
                self.kept = path.with_name("kept-aside")
                self.there = path.is_symlink() or path.exists()
                if self.there:
                    path.rename(self.kept)
                make(path)

            def __exit__(self, *error):
                path.unlink()
                if self.there:
                    self.kept.rename(path)

        return Replaced()


class LinksToThemselves(PathTest):
    def setUp(self):
        super().setUp()
        self.run_job(code=0)
        self.model = self.folder / "model"
        self.tool("convert", self.step(8), self.model, "--to=safetensors")
        self.run_program("tokenize", "--out=shard", "data.jsonl", f"--tokenizer={TOKENIZER}", code=0)
        shutil.copytree(TOKENIZER, self.folder / "tokenizer")
        shutil.copytree(self.step(6), self.folder / "start")

    def check(self, path, *commands):
        """`commands`: (exit code, words of the command)."""
        with self.in_place_of(self.folder / path, lambda path: path.symlink_to(path)):
            for code, *command in commands:
                with self.subTest(path=path, command=command):
                    output = self.run_program(*command, code=code)
                    self.assertNotIn("filesystem error", output)
                    self.assertIn(os.path.basename(path), output)
                    self.assertRegex(output, r"ELOOP|is a symbolic link")
        shutil.rmtree(self.folder / "new", ignore_errors=True)

    def job(self, command, *options):
        return [command, "job.toml", f"--job.dump_folder={self.folder}/new", "--training.steps=1", *options]

    def test_in_the_place_of_the_configuration(self):
        self.check("job.toml", (2, "train", "job.toml"), (2, "check", "job.toml"), (2, "config", "job.toml"),
                   (2, "ckpt", "diff", "job.toml", self.step(8)), (2, "generate", self.step(8), "--prompt=It", "--config=job.toml"),
                   (2, "ckpt", "convert", self.step(8), "other", "--to=safetensors", "--config=job.toml"))

    def test_in_the_place_of_data(self):
        validation = ("--validation.enable", "--validation.dataset=jsonl", "--validation.dataset_path=shard", "--validation.seq_len=32")
        evaluate = ("eval", self.step(8), "--seq-len=32")
        self.check("data.jsonl", (2, *self.job("train")), (2, *self.job("check")), (65, *evaluate, "--data=data.jsonl"),
                   (65, "tokenize", "--out=new", "data.jsonl"))
        self.check("shard", (2, *self.job("train", *validation)), (2, *self.job("check", *validation)), (65, *evaluate, "--data=shard"))
        for name in ("tokens.bin", "documents.bin"):
            self.check(f"shard/{name}", (65, *self.job("train", "--training.dataset_path=shard")), (65, *evaluate, "--data=shard"))
        (self.folder / "many").mkdir()
        shutil.copy(self.folder / "data.jsonl", self.folder / "many" / "a.jsonl")
        self.check("many/b.jsonl", (65, *self.job("train", "--training.dataset_path=many")), (65, "tokenize", "--out=new", "many"))

    def test_in_the_place_of_a_tokenizer(self):
        use = "--model.hf_assets_path=tokenizer"
        self.check("tokenizer", (2, *self.job("train", use)), (2, *self.job("check", use)),
                   (65, "tokenize", "--out=new", "--tokenizer=tokenizer", "data.jsonl"),
                   (65, "generate", self.step(8), "--prompt=It", "--tokenizer=tokenizer"))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            self.check(f"tokenizer/{name}", (65, *self.job("train", use)), (65, *self.job("check", use)),
                       (65, "generate", self.step(8), "--prompt=It", "--tokenizer=tokenizer"),
                       (65, "eval", self.step(8), "--data=data.jsonl", "--tokenizer=tokenizer"))

    def test_in_the_place_of_a_checkpoint_or_a_file_of_it(self):
        start = f"--checkpoint.initial_load_path={self.folder}/start"
        self.check("start", (65, *self.job("train", start)), (65, *self.job("check", start)),
                   *[(2, "ckpt", *tool) for tool in (["ls", "start"], ["verify", "start"], ["digest", "start"], ["diff", "start", self.step(8)],
                                                     ["convert", "start", "other", "--to=safetensors"], ["prune", "start", "--keep=1"])],
                   (2, "generate", "start", "--prompt=It"), (2, "eval", "start", "--data=data.jsonl"))
        for name in (".metadata", "hyperion.json", "__0_0.distcp"):
            tools = [(65, "ckpt", *tool) for tool in (["verify", "start"], ["digest", "start"], ["diff", "start", self.step(8)],
                                                      ["convert", "start", "other", "--to=safetensors"])]
            self.check(f"start/{name}", (65, *self.job("train", start)), (65, "generate", "start", "--prompt=It"),
                       (65, "eval", "start", "--data=data.jsonl"), *tools, (65, "ckpt", "ls", "start"))
        self.check("start/hyperion.json", (65, *self.job("check", start)))

    def test_in_the_place_of_a_file_of_a_hugging_face_model(self):
        start = [f"--checkpoint.initial_load_path={self.model}", "--checkpoint.initial_load_in_hf"]
        again = ("ckpt", "convert", "model", "other", "--to=safetensors")
        generate = ("generate", "model", "--prompt=It")
        self.check("model/config.json", (2, *self.job("train", *start)), (2, *self.job("check", "--model.flavor=from_hf", *start)),
                   (2, *generate), (2, "eval", "model", "--data=data.jsonl"), (65, *again))
        self.check("model/model.safetensors", (65, *self.job("train", *start)), (65, *generate), (65, "ckpt", "ls", "model"),
                   (65, "ckpt", "verify", "model"), (65, "ckpt", "digest", "model"), (65, *again))
        self.check("model/generation_config.json", (65, *self.job("train", *start)), (65, *generate), (65, *again))
        self.check("model/tokenizer_config.json", (65, *generate), (65, *again))

    def test_in_the_place_of_what_a_report_reads_and_of_what_is_written(self):
        self.check("out/metrics.jsonl", (65, "report", "out", "--output=page.html"))
        with self.in_place_of(self.folder / "destination", lambda path: path.symlink_to(path)):
            self.run_program("ckpt", "convert", self.step(8), "destination", "--to=safetensors", code=2, says=["destination: exists"])
            self.run_program("tokenize", "--out=destination", "data.jsonl", code=2, says=["destination: exists"])

    def test_the_jobs_own_checkpoint_says_what_its_index_is(self):
        for kind, make in (("a symbolic link", lambda path: path.symlink_to(path)), ("a named pipe", os.mkfifo)):
            with self.subTest(kind=kind), self.in_place_of(self.step(6) / ".metadata", make):
                says = [f".metadata: is {kind}, not a regular file"]
                self.run_program("ckpt", "ls", self.steps_folder, code=0, says=says)
                self.run_program("train", "job.toml", "--checkpoint.load_step=6", code=65, says=says)


class NamesOfPresets(PathTest):
    def test_a_folder_with_the_name_of_a_preset_does_not_take_its_place_and_a_link_to_nothing_does(self):
        there = self.folder / "debug_model"
        there.mkdir()
        self.run_program("config", "debug_model", code=0, says=["configs/debug_model.toml"])
        there.rename(self.folder / "no_preset")
        self.run_program("config", "no_preset", code=2, says=["no_preset", "is a folder"])
        there.symlink_to("nothing")
        self.run_program("config", "debug_model", code=2, says=["debug_model"])


class Urls(PathTest):
    """Buckets are no folders: nothing is read from or written into a folder that is called "s3:"."""

    def test_a_url_in_the_place_of_a_path_is_refused_with_the_remedy_and_nothing_is_made(self):
        url = "s3://bucket/run"
        job = (self.folder / "job.toml").read_text()
        (self.folder / "bucket.toml").write_text(job + f'\n[profiling]\nsave_traces_folder = "{url}"\n')
        before = sorted(self.folder.iterdir())
        keys = ("checkpoint.folder", "checkpoint.initial_load_path", "job.dump_folder", "training.dataset_path", "model.hf_assets_path",
                "metrics.save_tb_folder")
        for command in ("train", "check", "config"):
            for key in keys:
                with self.subTest(command=command, key=key):
                    self.run_program(command, "job.toml", f"--{key}={url}", code=2, says=[f"--{key} = {url}: is a URL", "mountpoint-s3"])
            self.run_program(command, "bucket.toml", code=2, says=["bucket.toml:", "profiling.save_traces_folder", "is a URL"])
        for tool in (("ls", url), ("verify", url), ("convert", "out", url, "--to=dcp"), ("prune", url, "--keep=1")):
            self.run_program("ckpt", *tool, code=2, says=["is a URL", "mountpoint-s3"])
        self.assertEqual(sorted(self.folder.iterdir()), before)


class LostIndex(PathTest):
    def test_a_dcp_folder_without_its_index_is_told_so(self):
        self.run_job(code=0)
        shutil.copytree(self.step(8), self.folder / "start")
        start = f"--checkpoint.initial_load_path={self.folder}/start"
        (self.folder / "start" / ".metadata").unlink()
        for says, manifest in (("start/.metadata: is missing or cannot be read", True), ("start/.metadata: is missing: __0_0.distcp", False)):
            if not manifest:
                (self.folder / "start" / "hyperion.json").unlink()
            for command in (("ckpt", "ls", "start"), ("ckpt", "digest", "start"), ("ckpt", "convert", "start", "other", "--to=dcp"),
                            ("generate", "start", "--prompt=It"), ("train", "job.toml", "--job.dump_folder=other", start),
                            ("check", "job.toml", "--job.dump_folder=other", start)):
                with self.subTest(command=command[:2], manifest=manifest):
                    output = self.run_program(*command, code=65, says=[says])
                    self.assertNotIn("safetensors", output)
            self.run_program("ckpt", "verify", "start", code=65, says=["start/.metadata"])


class Permission(PathTest):
    """Checkpoints that the user may not read are named; no older one takes their place without a word."""

    def setUp(self):
        super().setUp()
        if WITHOUT_PRIVILEGE and subprocess.run([*WITHOUT_PRIVILEGE, "true"], capture_output=True).returncode != 0:
            self.skipTest("tests run as root here, and setpriv cannot give up the privilege to read everything")
        self.run_job(code=0)

    def without_permission(self, path):
        mode = path.stat().st_mode
        path.chmod(0)
        self.addCleanup(path.chmod, mode)

    def resume(self, *options, code, says):
        self.run_job("--training.steps=9", "--lr_scheduler.total_steps=9", *options, code=code, says=says, before={0: WITHOUT_PRIVILEGE})

    def test_a_resume_does_not_pass_over_a_newest_checkpoint_that_it_may_not_read(self):
        for name in ("", ".metadata", "hyperion.json", "__0_0.distcp"):
            path = self.step(8) / name
            mode = path.stat().st_mode
            path.chmod(0)
            with self.subTest(name=name):
                self.resume(code=65, says=[f"{path}".rstrip("/"), "Permission denied (EACCES)", "give the job's user the permission to read it"])
                self.run_program("check", "job.toml", "--training.steps=9", code=65, before=WITHOUT_PRIVILEGE, says=["Permission denied"])
            path.chmod(mode)

    def test_ls_names_a_checkpoint_without_permission(self):
        self.without_permission(self.step(6))
        output = self.run_program("ckpt", "ls", self.steps_folder, code=0, before=WITHOUT_PRIVILEGE,
                                  says=["unreadable", f"{self.step(6)}/.metadata: cannot be read: Permission denied (EACCES)"])
        self.assertNotIn("is no checkpoint", output)
        self.run_program("ckpt", "verify", self.steps_folder, code=65, before=WITHOUT_PRIVILEGE, says=["Permission denied"])
        self.run_program("ckpt", "prune", self.steps_folder, "--keep=1", "--dry-run", code=0, before=WITHOUT_PRIVILEGE, says=["cannot be read: never removed"])

    def test_an_older_one_without_permission_does_not_hinder(self):
        self.without_permission(self.step(3))
        self.resume(code=0, says=["step-8", "Training completed"])

    def test_a_path_through_a_folder_without_permission_is_one_sentence(self):
        closed = self.folder / "closed"
        shutil.copytree(self.step(8), closed / "step-8")
        shutil.copytree(TOKENIZER, closed / "tokenizer")
        shutil.copy(self.folder / "data.jsonl", closed)
        shutil.copy(self.folder / "job.toml", closed)
        self.without_permission(closed)
        step = closed / "step-8"
        job = ["job.toml", f"--job.dump_folder={self.folder}/new", "--training.steps=1"]
        for code, *command in ((2, "train", closed / "job.toml"), (2, "check", closed / "job.toml"), (2, "config", closed / "job.toml"),
                               *[(2, name, *job, f"--training.dataset_path={closed}/data.jsonl") for name in ("train", "check")],
                               *[(2, name, *job, f"--model.hf_assets_path={closed}/tokenizer") for name in ("train", "check")],
                               *[(65, name, *job, f"--checkpoint.initial_load_path={step}") for name in ("train", "check")],
                               (65, "eval", self.step(8), f"--data={closed}/data.jsonl"), (2, "eval", step, "--data=data.jsonl"),
                               (2, "generate", step, "--prompt=It"), (65, "generate", self.step(8), "--prompt=It", f"--tokenizer={closed}/tokenizer"),
                               *[(2, "ckpt", tool, step) for tool in ("ls", "verify", "digest")], (2, "ckpt", "diff", self.step(8), step),
                               (2, "ckpt", "convert", step, "other", "--to=safetensors"), (2, "ckpt", "prune", closed / "steps", "--keep=1"),
                               (2, "report", closed, "--output=page.html"), (65, "tokenize", "--out=shard", closed / "data.jsonl")):
            with self.subTest(command=command):
                output = self.run_program(*command, code=code, before=WITHOUT_PRIVILEGE, says=["EACCES"])
                self.assertNotIn("filesystem error", output)


    def test_a_folder_without_permission_in_a_data_set_is_named(self):
        closed = self.folder / "many" / "closed"
        closed.mkdir(parents=True)
        shutil.copy(self.folder / "data.jsonl", closed.parent)
        self.without_permission(closed)
        self.run_program("tokenize", "--out=shard", "many", code=65, before=WITHOUT_PRIVILEGE, says=["many/closed: cannot be listed: Permission denied"])


class Outputs(PathTest):
    """What a job writes is looked at before its first step."""

    def refuse(self, path, *options, says):
        kinds = [("a named pipe", os.mkfifo), ("a symbolic link", lambda path: path.symlink_to("/dev/null"))]
        try:
            os.mknod(self.folder / "probe", 0o600 | 0o020000, os.makedev(1, 3))
            kinds.append(("a device", lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))))
        except PermissionError:
            pass
        for kind, make in kinds:
            with self.subTest(path=path.name, kind=kind):
                path.parent.mkdir(parents=True, exist_ok=True)
                make(path)
                job = self.run_job(*options, code=73, says=[str(path), *([kind] if says is None else says)])
                self.assertNotIn("step:  1", job.text())
                path.unlink()
        (self.folder / "probe").unlink(missing_ok=True)

    def test_a_pipe_device_or_link_in_the_place_of_an_output_is_refused_before_the_first_step(self):
        out = self.folder / "out"
        self.refuse(out / "runs", says=["the record of the run cannot be written"])
        self.refuse(out / "metrics.jsonl", says=None)
        self.refuse(out / "tb", "--metrics.enable_tensorboard", says=None)
        self.refuse(out / "profile_traces", "--profiling.enable_profiling", "--profiling.profile_freq=10", says=None)

    def test_a_pipe_in_the_place_of_a_trace_is_replaced(self):
        trace = self.folder / "out" / "profile_traces" / "iteration_5" / "rank0_trace.json"
        trace.parent.mkdir(parents=True)
        os.mkfifo(trace)
        self.run_job("--profiling.enable_profiling", "--profiling.profile_freq=5", "--profiling.profiler_warmup=1",
                     "--profiling.profiler_active=1", code=0, says=["Finished dumping profiler traces"])
        self.assertTrue(trace.is_file())
        self.assertEqual([path.name for path in trace.parent.iterdir()], [trace.name])


if __name__ == "__main__":
    main()
