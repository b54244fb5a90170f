"""Memory, threads, a standard output and time to start that a program does not get: exit code and the one sentence.

    python3 tests/faults/resources_test.py build/hyperion

Standard library only; prlimit, setpriv and unshare are util-linux.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

import warm_start
from jobs import BINARY, PATIENCE, ROOT, JobTest, main

CHECKPOINTS = ("--checkpoint.enable", "--checkpoint.interval=2")
ASYNC = (*CHECKPOINTS, "--checkpoint.async_mode=async")


class Limits(JobTest):
    def assert_one_sentence(self, text):
        lines = [line for line in text.splitlines() if line.startswith("hyperion: ")]
        self.assertEqual(len(lines), 1, text)
        for frame in ("Exception raised from", "frame #", "internal error"):
            self.assertNotIn(frame, text)
        return lines[0]

    def too_little_memory(self):
        """For 0.9 GB that a start knows of: the limit is more than that, but less than with what a small training takes."""
        job = self.start("--training.steps=100000", cold=True)
        job.wait_for("step:  2")
        peak = re.search(r"VmPeak:\s*(\d+) kB", Path(f"/proc/{job.ranks[0][0].pid}/status").read_text())
        job.end()
        return ["prlimit", f"--as={max(1024 * int(peak[1]) + (600 << 20), 1_050_000_000)}"]

    def test_memory_that_runs_out_in_a_job_is_72_and_names_rank_phase_and_size(self):
        job = self.run_job("--model.args.vocab_size=700000", code=72, before={0: self.too_little_memory()})
        sentence = self.assert_one_sentence(job.text())
        self.assertRegex(sentence, r"rank 0: memory ran out: \d+ bytes were asked for at once \(phase '[a-z ]+'\); lower ")
        self.assertIn('set activation_checkpoint.mode = "full" ("selective" now)', sentence)
        self.assertNotIn("step:  1", job.text())

    def test_memory_that_runs_out_in_one_rank_ends_that_rank_with_72(self):
        job = self.start("--model.args.vocab_size=1300000", ranks=2, before={1: self.too_little_memory()})
        codes = job.codes()
        self.assertEqual(codes[1], 72, job.text(1))
        self.assertEqual(codes[0], 71, job.text(0))
        self.assertRegex(self.assert_one_sentence(job.text(1)), r"rank 1 of 2 on \S+: memory ran out")

    def test_no_limit_of_the_address_space_ends_in_an_internal_error_or_an_abort(self):
        """From less than libtorch takes to initialise itself to enough for the whole job."""
        job = self.start("--training.steps=100000", *ASYNC, cold=True)
        job.wait_for("step:  2")
        peak = 1024 * int(re.search(r"VmPeak:\s*(\d+) kB", Path(f"/proc/{job.ranks[0][0].pid}/status").read_text())[1])
        job.end()
        codes, said = [], ""
        for part in range(70, 104, 2):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            job = self.start(*ASYNC, before={0: ["prlimit", f"--as={peak * part // 100}"]})
            codes += job.codes()
            # 127 is the loader's, 139 jemalloc's, which gets no arena for a thread; -11 is how Python says it.
            self.assertIn(codes[-1], (0, 72, 73, 74, 127, -signal.SIGSEGV), f"{part} % of {peak}: {job.text()}")
            if codes[-1] in (72, 73, 74):
                said += self.assert_one_sentence(job.text()) + "\n"
        self.assertIn(72, codes)
        self.assertIn("memory ran out while the program was being loaded", said)

    @unittest.skipUnless(os.geteuid() == 0, "a limit of processes does not bind where other users cannot be played")
    def test_threads_that_cannot_be_started_are_72(self):
        user = 61000 + os.getpid() % 3000  # nobody else's, so that only its own processes count
        self.folder.chmod(0o777)
        save = ("--checkpoint.enable", "--checkpoint.interval=1", "--checkpoint.async_mode=async")
        for name, ranks, threads, limit, options in (("loader", 1, 1, 1, ()), ("store", 2, 1, 2, ()), ("openmp", 1, 4, 2, ()),
                                                     ("background save", 1, 1, 2, save)):
            with self.subTest(name=name):
                # A rank 1 that is late finds nobody, and waits so long.
                options = (*options, "--comm.init_timeout_seconds=20")
                alone = ["setpriv", f"--reuid={user}", "--clear-groups", "prlimit", f"--nproc={limit}"]
                job = self.start(*options, ranks=ranks, env={"OMP_NUM_THREADS": threads}, before={0: alone})
                self.assertEqual(job.codes()[0], 72, job.text())
                self.assertRegex(self.assert_one_sentence(job.text()), r"rank 0( of 2 on \S+)?: .*thread.*OMP_NUM_THREADS")
                shutil.rmtree(self.folder / "out", ignore_errors=True)

    def test_too_many_open_files_are_72_and_name_the_limit(self):
        for limit in (14, 22):  # in the rendezvous, and where it is over
            with self.subTest(limit=limit):
                job = self.start("--comm.init_timeout_seconds=3", ranks=2, before={0: ["prlimit", f"--nofile={limit}"]})
                self.assertEqual(job.codes(), [72, 71], job.text())
                self.assertIn(f"(EMFILE): this process may have {limit}; raise the limit (ulimit -n)", self.assert_one_sentence(job.text()))

    def test_a_model_or_a_sequence_that_cannot_fit_is_2_before_anything_is_allocated(self):
        for option, says in (("--model.args.hidden_dim=1000000000", ["model.args.hidden_dim = 1000000000", "TiB of memory"]),
                             ("--model.args.n_layers=1000000000", ["model.args.n_layers = 1000000000", "at most 10000"]),
                             ("--model.args.vocab_size=900000000000", ["model.args.vocab_size"]),
                             ("--training.local_batch_size=1000000000", ["training.seq_len", "TiB of memory"]),
                             ("--training.global_batch_size=1000000000", ["tokens of a step"])):
            with self.subTest(option=option):
                job = self.run_job(option, code=2, says=says, before={0: ["prlimit", "--as=6000000000"]})
                self.assert_one_sentence(job.text())
                self.assertFalse((self.folder / "out").exists())

    def test_a_sequence_longer_than_the_positions_of_a_named_flavour_is_2(self):
        self.run_job("--training.seq_len=999999999", code=2, says=["training.seq_len = 999999999", "131072 positions of llama3"])
        self.run_job("--model.name=qwen3", "--training.seq_len=8192", "--model.args.n_kv_heads=4", code=2,
                     says=["4096 positions of qwen3 debugmodel", "model.args.max_seq_len = 8192"])
        self.run_job("--model.args.max_seq_len=64", "--validation.enable", "--validation.seq_len=128", code=2,
                     says=["validation.seq_len = 128: expected at most model.args.max_seq_len = 64"])

    def test_config_shows_what_does_not_fit_here(self):
        for option in ("--model.args.hidden_dim=1000000000", "--model.args.vocab_size=1000000000"):
            done = warm_start.run([BINARY, "config", "job.toml", option], cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_weights_that_cannot_fit_are_refused_by_commands_before_they_are_allocated(self):
        self.run_job(*CHECKPOINTS, code=0)
        (self.folder / "large.toml").write_text((self.folder / "job.toml").read_text().replace("n_layers = 2", "n_layers = 2\nhidden_dim = 1000000000"))
        step = self.folder / "out" / "checkpoint" / "step-5"
        other = "the checkpoint is of another model: hidden_dim 768 there, 1000000000 here"
        for command, code, says in ((["ckpt", "diff", "large.toml", step], 65, "1000000000"),
                                    (["generate", step, "--config=large.toml", "--prompt=a"], 65, other),
                                    (["eval", step, "--config=large.toml", "--data=data.jsonl"], 65, other),
                                    (["eval", step, "--config=job.toml", "--seq-len=1000000", "--data=data.jsonl"], 2, "--seq-len 1000000: expected")):
            with self.subTest(command=command):
                done = subprocess.run(["prlimit", "--as=6000000000", BINARY, *command], cwd=self.folder, capture_output=True, text=True)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(says, done.stdout + done.stderr)

    def test_steps_use_the_memory_of_the_steps_before(self):
        """Tensors of many sizes in turns: what a step frees must serve the next one, or its pages are all new."""
        job = self.run_job("--model.args.dim=512", "--model.args.n_layers=12", "--model.args.n_heads=8", "--model.args.vocab_size=8192",
                           "--training.seq_len=256", "--training.local_batch_size=1", "--training.steps=14",
                           "--activation_checkpoint.mode=none", "--training.mixed_precision_param=bfloat16",
                           code=0)
        resident = [line["memory/max_active(GiB)"] for line in self.metrics()]
        self.assertEqual(len(resident), 14, job.text())
        self.assertLess(resident[13] - resident[5], 0.02, f"GiB after each step: {resident}")


class StandardOutput(JobTest):
    def commands(self):
        step = self.folder / "out" / "checkpoint" / "step-5"
        return (["--help"], ["train", "--help"], ["--version"], ["config", "job.toml"], ["ckpt", "ls", step.parent],
                ["ckpt", "verify", step], ["ckpt", "digest", step], ["ckpt", "ls", step, "--json"], ["ckpt", "diff", step, step],
                ["generate", step, "--prompt=Document", "--max-tokens=3"], ["eval", step, "--data=data.jsonl", "--seq-len=32"],
                ["train", "job.toml", "--dump-state-dict", "--checkpoint.enable"])

    def run_into(self, stdout, command):
        return subprocess.run([BINARY, *command], cwd=self.folder, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
                              env={**os.environ, "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1"})

    def test_a_full_standard_output_is_74_and_said(self):
        self.run_job("--checkpoint.enable", "--checkpoint.interval=5", "--checkpoint.no_last_save_model_only", code=0)
        for command in self.commands():
            with self.subTest(command=command), open("/dev/full", "w") as full:
                done = self.run_into(full, command)
                self.assertEqual(done.returncode, 74, done.stderr)
                self.assertRegex(done.stderr, "^hyperion: standard output cannot be written")
                self.assertNotIn("frame #", done.stderr)

    def test_a_full_standard_output_does_not_end_a_training(self):
        with open("/dev/full", "w") as full:
            done = self.run_into(full, ["train", "job.toml"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_closed_standard_output_gets_nobody_elses_lines(self):
        self.run_job("--checkpoint.enable", "--checkpoint.no_last_save_model_only", code=0)
        for name, action in (("open", ""), ("closed", ">&- <&- 2>&-")):
            subprocess.run(["bash", "-c", f'"$@" {action}', "-", BINARY, "ckpt", "convert", "out/checkpoint/step-5", name, "--to=safetensors"],
                           cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        for file in (self.folder / "open").iterdir():
            if file.suffix != ".json":
                self.assertEqual(file.read_bytes(), (self.folder / "closed" / file.name).read_bytes(), file.name)

    def test_a_reader_that_goes_away_ends_a_tool_by_the_pipe_signal(self):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            self.assertEqual(self.run_into(pipe, ["train", "--help"]).returncode, -signal.SIGPIPE)


class Threads(unittest.TestCase):
    def spin_count(self, **more):
        """What the program was started with at last; its output waits in a pipe that is too small for it."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        process = subprocess.Popen([BINARY, "config", "--reference"], env={**env, **more}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
            self.assertTrue(os.read(process.stdout.fileno(), 1))
            found = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
            return [variable for variable in found if variable.startswith("GOMP_SPINCOUNT=")]
        finally:
            process.kill()
            process.communicate()

    def test_threads_spin_for_a_short_time_unless_the_user_says_how_long(self):
        self.assertEqual(self.spin_count(), ["GOMP_SPINCOUNT=10000"])
        self.assertEqual(self.spin_count(GOMP_SPINCOUNT="7"), ["GOMP_SPINCOUNT=7"])
        self.assertEqual(self.spin_count(OMP_WAIT_POLICY="active"), [])
        self.assertEqual(self.spin_count(OMP_NUM_THREADS="1"), [])


class StopsWhileStarting(JobTest):
    def stop(self, job, number, code):
        job.ranks[0][0].send_signal(number)
        self.assertEqual(job.ranks[0][0].wait(timeout=PATIENCE), code, job.text())
        self.assertIn("received while the job was starting: it ends, and no step was made", job.text())

    def wait_at(self, point, *options):
        """A job that stays at `point` before its first step."""
        job = self.start("--allow-faults", *options, env={"FAULT": f"point={point};action=wait:{self.folder}/never"})
        job.wait_for(f"The fault armed at {point} waits")
        return job

    def test_term_in_the_rendezvous_ends_with_143(self):
        job = self.start(env={"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2})  # whose rank 1 never comes
        job.wait_for("Starting job")
        job.wait_until_idle(0)
        self.stop(job, signal.SIGTERM, 143)

    def meeting(self, late, env=None, **more):
        """A job of three ranks of which rank 0 waits in the rendezvous, and then those that are `late`."""
        meet = self.folder / "meet"
        fault = ",".join(f"rank={rank};point=init.before_pg;action=wait:{meet}" for rank in late)
        job = self.start("--allow-faults", "--comm.init_timeout_seconds=3600", ranks=3, env={**(env or {}), "FAULT": fault},
                         cold=True, **more)  # else a rank with TERM may end by its peers' answer first
        job.wait_for("Starting job")
        job.wait_until_idle(0)
        for rank in late:
            job.wait_for("waits until", rank)
        meet.touch()
        for rank in (*late, 0):  # rank 0 last: it has answered them
            job.wait_until_idle(rank)
        return job

    def ends_before_all_have_met(self, job, code, says):
        """Rank 1 ends with `code`, and the ranks that wait for it and for one that never comes end at once with 71."""
        codes = job.codes()
        self.assertEqual(codes, [71, code] + [71] * (len(codes) - 2), "\n".join(map(job.text, range(len(codes)))))
        for rank in (0, *range(2, len(codes))):
            self.assertIn(f"rank 1 ended before all ranks had met: {says}", job.text(rank))

    def test_term_to_a_rank_that_waits_for_others_ends_them_too(self):
        job = self.meeting(late=(1, 2), env={"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 4})  # whose rank 3 never comes
        job.ranks[1][0].send_signal(signal.SIGTERM)
        self.ends_before_all_have_met(job, 143, "TERM came")

    def test_a_rank_that_fails_before_the_rendezvous_ends_those_that_wait_for_it(self):
        go_on = self.folder / "go on"
        late = {1: ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.1; done; exec "$@"', go_on]}
        job = self.meeting(late=(2,), before=late, per_rank=[[], ["--training.dataset_path=/nowhere"], []])
        go_on.touch()
        self.ends_before_all_have_met(job, 2, "The configuration cannot be run: 1 problem")

    def test_usr1_ends_with_143_and_ctrl_c_with_130(self):
        for number, code in ((signal.SIGUSR1, 143), (signal.SIGINT, 130)):
            job = self.wait_at("init.model")
            self.stop(job, number, code)

    def test_term_in_the_pre_checkpoint_ends_with_143_and_the_next_start_cleans_up(self):
        job = self.wait_at("ckpt.after_data", *CHECKPOINTS)
        folder = self.folder / "out" / "checkpoint"
        self.assertTrue(any(entry.is_dir() for entry in folder.iterdir()))
        self.stop(job, signal.SIGTERM, 143)
        self.assertFalse([entry.name for entry in folder.iterdir() if entry.name.startswith("step-")])
        job = self.run_job(*CHECKPOINTS, code=0, says=["Removed 1 unfinished checkpoint of", "Training completed"])
        self.assertEqual({entry.name for entry in folder.iterdir() if entry.is_dir()} - {"step-0", "step-2", "step-4", "step-5"}, set())

    def test_term_in_the_load_of_a_checkpoint_ends_with_143_and_harms_nothing(self):
        self.run_job(*CHECKPOINTS, code=0)
        more = (*CHECKPOINTS, "--checkpoint.load_step=4")
        job = self.wait_at("load.mid_data", *more)
        self.stop(job, signal.SIGTERM, 143)
        self.run_job(*more, code=0, says=["Training starts at step 5"])

    @unittest.skipUnless(os.geteuid() == 0 and subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode == 0,
                         "a process namespace needs root")
    def test_term_ends_a_starting_job_that_is_the_first_process_of_a_container(self):
        job = self.start("--allow-faults", env={"FAULT": f"point=init.model;action=wait:{self.folder}/never"},
                         before={0: ["unshare", "--pid", "--fork"]})
        job.wait_for("The fault armed at init.model waits")
        unshare = job.ranks[0][0].pid
        trainer = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text())
        os.kill(trainer, signal.SIGTERM)
        self.assertEqual(job.codes(), [143], job.text())


if __name__ == "__main__":
    main()
