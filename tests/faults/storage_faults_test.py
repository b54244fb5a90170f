"""Checkpoints on storage that is full, limited, read-only or slow, with the real program on real file systems.

    python3 tests/faults/storage_faults_test.py build/hyperion

Tests that mount something run in a mount namespace of their own and skip where the machine does not allow it.
"""

import os
import re
import shutil
import subprocess
import time

import mounts
from checkpoints import CheckpointTest
from jobs import main

NO_SPACE = "No space left on device"


def wait_until(is_so, what, seconds=120):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


class Mounted(CheckpointTest):
    def setUp(self):
        if mounts.refused():
            self.skipTest(mounts.refused())
        super().setUp()
        self.steps_folder.mkdir(parents=True)

    def check_found_before_step_1(self, *says, **kwargs):
        job = self.run_job(ranks=2, code=73, says=["[pre-checkpoint]", "rank ", str(self.steps_folder), *says], **kwargs)
        self.assertNotIn("step:  1", job.text())
        if self.steps_folder.is_dir():
            self.assertEqual(self.saved(), ([], []))

    def check_full_later(self, says, make_room):
        """The save after the last step fails; with more room the same command goes on to the undisturbed curve."""
        expected = self.control(ranks=2)
        self.run_job(ranks=2, code=74, says=["rank ", f"{self.steps_folder}/", says])
        self.assertEqual(self.saved(), ([3, 6], []))
        self.tool("verify", self.steps_folder)
        make_room()
        self.run_job(ranks=2, code=0, says=["Training starts at step 7"])
        self.assertEqual((self.curve(), self.saved()), (expected, ([3, 6, 8], [])))


class Full(Mounted):
    # A checkpoint of these jobs is 3.6 MB in 4 files; with its folder it takes 5 inodes.

    def tmpfs(self, options):
        mounts.mount(self, "-t", "tmpfs", "-o", options, "none", self.steps_folder)

    def remount(self, options):
        subprocess.run(["mount", "-o", f"remount,{options}", self.steps_folder], check=True)

    def test_a_disk_too_small_for_a_checkpoint_is_found_before_step_1(self):
        self.tmpfs("size=1m")
        self.check_found_before_step_1(NO_SPACE, " bytes for the whole checkpoint, free: ")
        self.assertGreater(shutil.disk_usage(self.steps_folder).free, 900_000)

    def test_a_disk_that_is_full_later_ends_the_job_and_the_same_command_resumes(self):
        self.tmpfs("size=9m")
        self.check_full_later(NO_SPACE, lambda: self.remount("size=40m"))

    def test_a_run_that_continues_after_a_failed_save_saves_again_when_there_is_space(self):
        self.tmpfs("size=20m")
        for mode in ("disabled", "async"):
            with self.subTest(mode=mode):
                update, save, next_update = (self.folder / f"{mode}-{name}" for name in ("update", "save", "next_update"))
                faults = [f"point=step.opt;nth=3;action=wait:{update}",
                          f"rank=0;point=file.open;on=-1/__0_0;action=wait:{save}",  # of the save after that of before step 1
                          f"point=step.opt;nth=4;action=wait:{next_update}"]
                job = self.start("--checkpoint.on_save_failure=continue", f"--checkpoint.async_mode={mode}", "--allow-faults",
                                 ranks=2, env={"FAULT": ",".join(faults)})
                job.wait_for(f"waits until {update}")
                filler = self.steps_folder / "filler"
                with open(filler, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self.steps_folder).free)
                update.touch()
                job.wait_for(f"waits until {save}")
                save.touch()
                wait_until(lambda: not list(self.steps_folder.glob(".incoming-*")), "the failed save to be taken away")
                self.assertEqual(self.saved(), ([0], ["filler"]))
                filler.unlink()
                next_update.touch()
                self.assertEqual(job.codes(), [0, 0], job.text())
                for text in (NO_SPACE, "training continues"):
                    self.assertIn(text, job.text())
                self.assertEqual(self.saved(), ([6, 8], []))
                for step in (6, 8):
                    shutil.rmtree(self.step(step))

    def test_too_few_inodes_for_a_checkpoint_are_found_before_step_1(self):
        self.tmpfs("nr_inodes=6")
        self.check_found_before_step_1(NO_SPACE)

    def test_inodes_that_run_out_later_end_the_job_and_the_same_command_resumes(self):
        self.tmpfs("nr_inodes=14")
        self.check_full_later(NO_SPACE, lambda: self.remount("nr_inodes=100"))

    def test_a_quota_is_named_before_step_1_and_in_a_later_save(self):
        # Of a subvolume of btrfs: its quotas hold for root too, and need no further services.
        if not shutil.which("mkfs.btrfs") or not shutil.which("btrfs"):
            self.skipTest("btrfs-progs is not installed")
        image, volume = self.folder / "image", self.folder / "volume"
        volume.mkdir()
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        subprocess.run(["mkfs.btrfs", "--quiet", image], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        mounts.mount(self, "-o", "loop", image, volume)
        subprocess.run(["btrfs", "quota", "enable", volume], check=True)
        subprocess.run(["btrfs", "subvolume", "create", volume / "limited"], check=True, stdout=subprocess.DEVNULL)
        mounts.mount(self, "--bind", volume / "limited", self.steps_folder)

        def limit(text):
            subprocess.run(["btrfs", "qgroup", "limit", text, volume / "limited"], check=True)

        limit("1M")
        self.check_found_before_step_1("Disk quota exceeded", "quota")
        limit("10M")
        self.check_full_later("Disk quota exceeded", lambda: limit("100M"))


class ReadOnly(Mounted):
    def test_a_folder_on_a_read_only_mount_is_found_before_step_1(self):
        mounts.mount(self, "--bind", self.steps_folder, self.steps_folder)
        subprocess.run(["mount", "-o", "remount,bind,ro", self.steps_folder], check=True)
        self.check_found_before_step_1("Read-only file system")

    def test_checkpoints_on_a_read_only_mount_can_be_used_by_a_job_that_only_loads(self):
        expected = self.control()
        self.run_job("--training.steps=6", "--lr_scheduler.total_steps=8", code=0)
        mounts.mount(self, "--bind", self.steps_folder, self.steps_folder)
        subprocess.run(["mount", "-o", "remount,bind,ro", self.steps_folder], check=True)
        before = self.files()
        self.run_job("--checkpoint.load_only", code=0, says=["Training starts at step 7"])
        self.assertEqual((self.curve(), self.files()), (expected, before))
        self.tool("verify", self.steps_folder)


class Limited(CheckpointTest):
    def test_a_limit_on_the_size_of_files_on_one_rank_is_found_before_step_1(self):
        job = self.run_job(ranks=2, code=73, before={1: ["prlimit", "--fsize=500000"]},
                           says=["[pre-checkpoint]", "rank 1", "__1_0.distcp", "File too large", "ulimit -f"])
        self.assertNotIn("step:  1", job.text())
        self.assertEqual(self.saved(), ([], []))

    def test_a_limit_on_the_size_of_files_that_only_the_checkpoint_exceeds_is_found_before_step_1(self):
        model = ["--model.args.dim=512", "--model.args.n_heads=8"]  # 50 MB of state on each rank
        job = self.run_job(*model, ranks=2, code=73, before={1: ["prlimit", "--fsize=20000000"]},
                           says=["[pre-checkpoint]", "rank 1", "__1_0.distcp", "File too large", "ulimit -f"])
        self.assertNotIn("step:  1", job.text())
        self.assertEqual(self.saved(), ([], []))


class Slow(CheckpointTest):
    def peak(self, job):
        """The largest resident set of rank 0 in bytes, and how many unfinished saves were seen at once at most."""
        process, unfinished = job.ranks[0][0], 0
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                process.returncode = os.waitstatus_to_exitcode(status)
                return usage.ru_maxrss * 1024, unfinished
            unfinished = max(unfinished, len(list(self.steps_folder.glob(".incoming-*"))))
            time.sleep(0.01)

    def test_a_disk_slower_than_the_interval_holds_training_back(self):
        options = ["--checkpoint.interval=1", "--training.steps=4", "--model.args.dim=256"]
        slow = {"env": {"FAULT": "point=file.write;on=__0_0;nth=0;action=sleep:0.15"}}  # nine times a save
        contents, peaks, texts = [], [], []
        for mode in ("disabled", "async", "async_with_pinned_mem"):
            self.steps_folder = self.folder / "out" / mode
            job = self.start(*options, f"--checkpoint.async_mode={mode}", f"--checkpoint.folder={mode}", "--allow-faults",
                             cold=True, **({} if mode == "disabled" else slow))
            peak, unfinished = self.peak(job)
            self.assertEqual(job.codes(), [0], job.text())
            self.assertEqual(self.saved(), ([1, 2, 3, 4], []))
            self.assertLessEqual(unfinished, 1)
            contents.append([self.contents(self.step(step)) for step in range(1, 5)])
            peaks.append(peak)
            texts.append(job.text())
        self.assertEqual(contents, [contents[0]] * 3)
        state = sum(path.stat().st_size for path in self.step(4).iterdir())
        self.assertLess(max(peaks[1:]) - peaks[0], 1.5 * state)  # the pool, and no second copy
        for text in texts[1:]:  # a save waits for the one before it, and the log says so
            waits = [float(seconds) for seconds in re.findall(r"waited ([\d.]+) s", text)]
            self.assertGreater(sum(waits), 0.3, text)

    def test_a_save_slower_than_the_timeouts_ends_no_rank(self):
        # Of the save before step 1 and of that after step 3. The limits are such that a busy host exceeds none.
        slow = ",".join(f"rank=1;point=file.write;on=__1_0;nth={nth};action=sleep:12" for nth in (1, 2))
        jobs = {
            "synchronous": ("disabled", slow),
            "asynchronous": ("async_with_pinned_mem", slow),
            # One rank writes from the live state, and its next update waits for that, while the other could go on.
            "no_memory_for_a_copy": ("async_with_pinned_mem", f"{slow},rank=1;point=ckpt.pool;nth=0;action=errno:ENOMEM"),
        }
        expected = self.control(ranks=2)
        started = {}
        for name, (mode, faults) in jobs.items():
            folder = self.folder / name
            folder.mkdir()
            self.prepare(folder)
            started[name] = self.start("--comm.init_timeout_seconds=8", "--comm.train_timeout_seconds=8", "--allow-faults",
                                       f"--checkpoint.async_mode={mode}", ranks=2, env={"FAULT": faults}, folder=folder)
        for name, job in started.items():
            with self.subTest(name):
                self.assertEqual(job.codes(), [0, 0], job.text())
                self.steps_folder = self.folder / name / "out" / "checkpoint"
                self.assertEqual((self.curve(self.folder / name), self.saved()), (expected, ([3, 6, 8], [])))


if __name__ == "__main__":
    mounts.enter()
    main()
