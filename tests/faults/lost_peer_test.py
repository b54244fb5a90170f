"""Ranks on simulated GPUs (docs/simulated_gpu.md) and on CPUs that lose one of them, or seem to. Started without launch.py, which would
end the survivors itself.

    python3 tests/faults/lost_peer_test.py build/hyperion

Standard library only.
"""

import json
import os
import signal
import subprocess
import time

from jobs import ALL, BINARY, PATIENCE, TOML, JobTest, assert_lost, main, patient_launcher

KILLED_AT = {  # what the killed rank was doing: point of the fault
    "start": "point=init.model",
    "forward": "point=step.fwd;nth=4",
    "optimizer": "point=step.opt;nth=3",
    "save": "point=ckpt.mid_data",
}
LONG = "--training.steps=100000"


class RecordedRanks(JobTest):
    def records(self):
        return {int(path.stem[5:]): json.loads(path.read_text()) for path in (self.folder / "failures").glob("rank_*.json")}

    def wait_for_records(self, ranks):
        end = time.monotonic() + PATIENCE
        while not ranks <= set(self.records()):
            self.assertLess(time.monotonic(), end, self.records())
            time.sleep(0.02)

    def forget_records(self):
        for path in (self.folder / "failures").glob("*"):
            path.unlink()

    def hosts(self, ranks_of_each):
        """Each rank's variables: the numbers that a launcher on each host would give it."""
        places = [(index, count) for count in ranks_of_each for index in range(count)]
        return {rank: {"LOCAL_RANK": index, "LOCAL_WORLD_SIZE": count} for rank, (index, count) in enumerate(places)}


class CpuRanks(RecordedRanks):
    def start_on(self, connections, *options, ranks, fault):
        """Ranks that exchange through memory, or over sockets as if each had a host of its own."""
        hosts = [1] * ranks if connections == "sockets" else [ranks]
        return self.start(LONG, "--allow-faults", *options, ranks=ranks, env_of=self.hosts(hosts),
                          env={"FAULT": fault, "GLOO_SOCKET_IFNAME": "lo", "HYPERION_FAILURE_DIR": self.folder / "failures"})

    def test_ranks_that_end_in_turns_name_the_lost_one_alone(self):
        for connections in ("memory", "sockets"):
            with self.subTest(connections=connections):
                self.forget_records()
                go_on = self.folder / f"go on {connections}"
                job = self.start_on(connections, "--comm.train_timeout_seconds=15", "--comm.peer_response_timeout_seconds=15",
                                    ranks=4,  # ranks 1 and 2 may wait for rank 0 first, and are to hear of rank 3 before they name it
                                    fault=f"rank=3;point=step.bwd;nth=4;action=kill,rank=0;point=step.bwd;nth=4;action=wait:{go_on}")
                for rank in (1, 2):  # before rank 0 has come to the operation that fails
                    job.ranks[rank][0].wait(timeout=PATIENCE)
                go_on.touch()
                self.assertEqual(job.codes(), [71, 71, 71, -signal.SIGKILL], job.text() + job.text(1))
                records = self.records()
                self.assertEqual(set(records), {0, 1, 2})
                assert_lost(self, records.values(), 3)
                for rank in range(3):
                    self.assertRegex(job.text(rank), r"failed in phase 'step 4 [^']*': rank 3 is lost: see its log first\n")

    def test_a_rank_that_stands_still_for_less_than_the_response_timeout_is_not_called_lost(self):
        for connections in ("memory", "sockets"):
            with self.subTest(connections=connections):
                self.forget_records()
                job = self.start_on(connections, "--comm.train_timeout_seconds=15", "--comm.peer_response_timeout_seconds=20", ranks=3,
                                    fault="rank=1;point=step.bwd;nth=4;action=stop")
                job.wait_for_stop(1)
                self.wait_for_records({0, 2})  # written when their operation has failed, before the others are asked
                job.ranks[1][0].send_signal(signal.SIGCONT)
                self.assertEqual(job.codes(), [71] * 3, job.text() + job.text(1))
                for rank, record in self.records().items():
                    self.assertEqual(record["lost"], [], job.text(rank))
                    self.assertNotIn("see its log first", record["message"])

    def test_a_rank_that_stands_still_for_longer_than_the_response_timeout_is_named(self):
        for connections in ("memory", "sockets"):
            with self.subTest(connections=connections):
                self.forget_records()
                job = self.start_on(connections, "--comm.train_timeout_seconds=15", "--comm.peer_response_timeout_seconds=10", ranks=3,
                                    fault="rank=1;point=step.bwd;nth=4;action=stop")
                job.wait_for_stop(1)
                for rank in (0, 2):
                    job.ranks[rank][0].wait(timeout=PATIENCE)
                records = self.records()
                self.assertEqual(set(records), {0, 2})
                assert_lost(self, records.values(), 1)
                for record in records.values():
                    self.assertIn("; no word from rank 1: see its log first", record["message"])
                job.ranks[1][0].send_signal(signal.SIGCONT)
                self.assertEqual(job.codes(), [71] * 3, job.text() + job.text(1))


class GpuRanks(RecordedRanks):
    toml = TOML + "[comm]\ntrain_timeout_seconds = 3600\n"  # nothing here waits for it

    def setUp(self):
        super().setUp()
        self.took = []  # seconds, of each check_survivors()

    def gpus(self, schedule="1", **more):
        return {"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so",
                "HYPERION_SIMULATED_SCHEDULE": schedule, "HYPERION_FAILURE_DIR": self.folder / "failures", **more}

    def seconds_to_end(self, job, lost):
        """Of the survivors, from the end of the rank that is lost."""
        job.ranks[lost][0].wait(timeout=PATIENCE)
        begin = time.monotonic()
        for process, _ in job.ranks:
            process.wait(timeout=PATIENCE)
        return time.monotonic() - begin

    def check_survivors(self, job, lost):
        """Ended without a timeout, with a record each of whom they lost and what they were doing."""
        self.took.append(self.seconds_to_end(job, lost))
        survivors = set(range(len(job.ranks))) - {lost}
        said = "\n".join(job.text(rank) for rank in survivors)
        codes = [process.returncode for process, _ in job.ranks]
        self.assertEqual(codes, [-signal.SIGKILL if rank == lost else 71 for rank in range(len(job.ranks))], said)
        records = self.records()
        self.assertEqual(set(records), survivors)
        for record in records.values():
            self.assertEqual(record["code"], 71, records)
            self.assertNotEqual(record["phase"], "")
            self.assertRegex(record["message"], rf"rank (\d+ )*{lost}\b")
        assert_lost(self, records.values(), lost)
        return records, said


class LostPeer(GpuRanks):
    def test_survivors_of_a_killed_rank_end_within_ten_seconds_and_record_whom_they_lost(self):
        for schedule in ("eager", "late", "1") if ALL else ("late", "1"):
            for what, point in KILLED_AT.items() if schedule != "1" else [("forward", KILLED_AT["forward"])]:
                for killed in (1, 0) if what == "forward" else (1,):  # 0 holds the store
                    with self.subTest(schedule=schedule, killed=killed, what=what):
                        self.forget_records()
                        job = self.start(LONG, "--allow-faults", "--checkpoint.enable", "--checkpoint.interval=2", ranks=3,
                                         env=self.gpus(schedule, FAULT=f"rank={killed};{point};action=kill"))
                        self.check_survivors(job, killed)
        self.assertLess(min(self.took), 10)  # all of them, where the host is idle

    def test_a_rank_that_is_killed_in_a_validation_is_lost_in_it(self):
        job = self.start(LONG, "--validation.enable", "--validation.dataset=jsonl", f"--validation.dataset_path={self.folder}/data.jsonl",
                         "--validation.freq=2", "--validation.steps=100000", ranks=3, env=self.gpus())
        job.wait_for("INFO - validation ")  # how far it has come, after 10 s of a validation without end
        job.ranks[1][0].kill()
        records, _ = self.check_survivors(job, 1)
        for record in records.values():
            self.assertIn("validation", record["phase"])

    def test_a_rank_that_hangs_is_named_by_those_that_time_out(self):
        job = self.start(LONG, "--comm.train_timeout_seconds=15", "--comm.peer_response_timeout_seconds=10", ranks=3, env=self.gpus())
        job.wait_for("step:  3")
        job.ranks[1][0].send_signal(signal.SIGSTOP)
        for rank in (0, 2):
            job.ranks[rank][0].wait(timeout=PATIENCE)
            self.assertEqual(job.ranks[rank][0].returncode, 71, job.text(rank))
        records = self.records()
        self.assertEqual(set(records), {0, 2})
        for record in records.values():
            self.assertEqual(record["code"], 71, job.text() + job.text(2))
            self.assertRegex(record["phase"], r"step \d")
        assert_lost(self, records.values(), 1)

    def test_the_launcher_names_the_killed_rank_once(self):
        kept = {name: value for name, value in os.environ.items() if name not in ("LOG_RANK", "RANK", "WORLD_SIZE")}
        program = self.folder / "program"  # the launcher itself is not to load the library
        library = BINARY.parent / "libsimulated_gpu.so"
        program.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {BINARY} "$@"\n')
        program.chmod(0o755)
        done = subprocess.run([*patient_launcher(), program, "train", self.folder / "job.toml", LONG, "--allow-faults", "--comm.speed_check_seconds=0"],
                              env={**kept, "NPROC": "3", "HYPERION_DEVICE": "cuda", "OMP_NUM_THREADS": "1",
                                   "HYPERION_LOG_DIR": f"{self.folder}/logs", "FAULT": "rank=1;point=step.bwd;nth=4;action=kill"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, timeout=PATIENCE)
        self.assertEqual(done.returncode, 137, done.stdout)
        self.assertEqual(done.stdout.count("[launch] rank 1 failed with signal 9 (SIGKILL)"), 1, done.stdout)
        self.assertRegex(done.stdout, r"\[launch\] 2 other ranks lost it: .*phase 'step \d")

    def test_nccl_that_reports_a_lost_peer_ends_the_job_with_what_it_says(self):
        # Without a flight recorder there is no dump to wait for: NCCL is the first to speak.
        job = self.start(LONG, "--allow-faults", "--comm.trace_buf_size=0", ranks=3,
                         env=self.gpus("late", FAULT="rank=1;point=step.bwd;nth=4;action=kill", HYPERION_SIMULATED_NCCL="remote_error"))
        records, said = self.check_survivors(job, 1)
        self.assertIn("remote process exited or there was a network error", said)

    def test_peers_of_a_rank_that_fails_alone_end_with_71_and_it_with_its_own_code(self):
        for schedule in ("eager", "late"):
            with self.subTest(schedule=schedule):
                self.forget_records()
                job = self.start(LONG, "--allow-faults", ranks=2,
                                 env=self.gpus(schedule, FAULT="rank=1;point=step.fwd;nth=4;action=throw"))
                self.seconds_to_end(job, 1)
                self.assertEqual([process.returncode for process, _ in job.ranks], [71, 70], job.text() + job.text(1))
                self.assertEqual(self.records()[0]["lost"], [1])

    def test_a_peer_that_ends_in_order_ends_nobody(self):
        # Rank 1 has taken leave and is gone; rank 0 has seconds of work left.
        go_on = self.folder / "go on"
        job = self.start("--allow-faults", ranks=2, env=self.gpus("late", FAULT=f"rank=0;point=shutdown;action=wait:{go_on}"))
        job.ranks[1][0].wait(timeout=PATIENCE)
        time.sleep(5)  # a rank that is lost ends its peers after two
        go_on.touch()
        self.assertEqual(job.codes(), [0, 0], job.text() + job.text(1))
        self.assertEqual(self.records(), {})

    def test_a_healthy_job_is_never_ended_by_its_watch(self):
        for start in range(6 if ALL else 3):  # each ends its ranks in another order
            job = self.start("--training.steps=1", ranks=3, env=self.gpus(("eager", "late", str(start))[start % 3]))
            self.assertEqual(job.codes(), [0] * 3, job.text() + job.text(1))
        self.assertEqual(self.records(), {})

    def test_data_that_become_unreadable_are_65_on_the_rank_that_reads_them_and_71_on_the_others(self):
        # Steps of many tokens: the reader comes to the end of the documents it had read within a few of them.
        job = self.start(LONG, "--training.seq_len=256", ranks=3, env=self.gpus("late"))
        job.wait_for("step:  2")
        os.truncate(self.folder / "data.jsonl", 2000)
        codes = job.codes()
        self.assertIn(65, codes, job.text() + job.text(1))
        self.assertLessEqual(set(codes), {65, 71}, job.text() + job.text(1))

    def test_what_all_ranks_agree_upon_keeps_its_code_on_all_of_them(self):
        job = self.start("--optimizer.lr=1e38", "--metrics.log_freq=100", ranks=2, env=self.gpus("late"))
        self.assertEqual(job.codes(), [93, 93], job.text() + job.text(1))
        for stop, code in ((signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)):
            for told in ((1,), (0, 1)) if ALL or stop == signal.SIGTERM else ((1,),):
                with self.subTest(signal=stop, told=told):
                    job = self.start(LONG, "--checkpoint.enable", "--checkpoint.interval=1000",
                                     f"--job.dump_folder={self.folder}/{stop}{len(told)}", ranks=2, env=self.gpus())
                    job.wait_for("step:  2")
                    for rank in told:
                        os.kill(job.ranks[rank][0].pid, stop)
                    self.assertEqual(job.codes(), [code, code], job.text() + job.text(1))


class TwoHosts(GpuRanks):
    """Hosts are told apart by the ranks' own numbers: 0 1 and 2 3. Ranks 0 and 2 tell the other host."""

    def two_hosts(self, *options, env):
        return self.start(*options, ranks=4, env=env, env_of=self.hosts([2, 2]))

    def test_ranks_of_another_host_notice_a_killed_rank_within_ten_seconds(self):
        for killed, schedule in ((1, "eager"), (3, "late"), (2, "eager"), (0, "late")):
            with self.subTest(killed=killed, schedule=schedule):
                self.forget_records()
                job = self.two_hosts(LONG, "--allow-faults", env=self.gpus(schedule, FAULT=f"rank={killed};point=step.bwd;nth=4;action=kill"))
                self.check_survivors(job, killed)
        self.assertLess(min(self.took), 10)  # all of them, where the host is idle

    def test_a_host_of_one_rank_is_noticed_by_the_other_while_all_wait_for_a_gpu(self):
        for killed in (0, 1):
            with self.subTest(killed=killed):
                self.forget_records()
                job = self.start(LONG, "--allow-faults", ranks=2, env_of=self.hosts([1, 1]),
                                 env=self.gpus("late", FAULT=f"rank={killed};point=step.bwd;nth=4;action=kill"))
                self.check_survivors(job, killed)

    def test_a_rank_of_another_host_that_fails_alone_keeps_its_code_and_is_named(self):
        job = self.two_hosts(LONG, "--allow-faults", env=self.gpus("late", FAULT="rank=3;point=step.fwd;nth=4;action=throw"))
        self.assertEqual(job.codes(), [71, 71, 71, 70], job.text() + job.text(3))
        for rank in range(3):
            self.assertEqual(self.records()[rank]["lost"], [3])

    def test_two_hosts_that_lose_nobody_end_in_order(self):
        go_on = self.folder / "go on"
        job = self.two_hosts("--allow-faults", env=self.gpus("late", FAULT=f"rank=3;point=shutdown;action=wait:{go_on}"))
        for rank in range(3):
            job.ranks[rank][0].wait(timeout=PATIENCE)
        time.sleep(4)  # a rank that is lost ends its peers after two
        go_on.touch()
        self.assertEqual(job.codes(), [0] * 4, job.text() + job.text(3))
        self.assertNotIn("comm.train_timeout_seconds have passed", job.text() + job.text(2))
        job = self.two_hosts("--optimizer.lr=1e38", "--metrics.log_freq=100", env=self.gpus())
        self.assertEqual(job.codes(), [93] * 4, job.text() + job.text(3))
        job = self.two_hosts(LONG, "--checkpoint.enable", "--checkpoint.interval=1000", env=self.gpus())
        job.wait_for("step:  2")
        job.ranks[3][0].terminate()
        self.assertEqual(job.codes(), [75] * 4, job.text() + job.text(3))



if __name__ == "__main__":
    main()
