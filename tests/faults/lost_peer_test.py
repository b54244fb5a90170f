"""Ranks on simulated GPUs (docs/simulated_gpu.md) that lose one of them, or seem to. Started without launch.py, which would end the
survivors itself.

    python3 tests/faults/lost_peer_test.py build/hyperion

Standard library only.
"""

import json
import os
import signal
import time

from jobs import BINARY, JobTest, main

KILLED_AT = {  # what the killed rank was doing: point of the fault
    "start": "point=init.model",
    "forward": "point=step.fwd;nth=4",
    "optimizer": "point=step.opt;nth=3",
    "save": "point=ckpt.mid_data",
}
LONG = "--training.steps=100000"


class LostPeer(JobTest):
    def gpus(self, schedule="1", **more):
        return {"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so",
                "HYPERION_SIMULATED_SCHEDULE": schedule, "HYPERION_FAILURE_DIR": self.folder / "failures", **more}

    def records(self):
        return {int(path.stem[5:]): json.loads(path.read_text()) for path in (self.folder / "failures").glob("rank_*.json")}

    def forget_records(self):
        for path in (self.folder / "failures").glob("*"):
            path.unlink()

    def seconds_to_end(self, job, lost):
        """Of the survivors, from the end of the rank that is lost."""
        job.ranks[lost][0].wait(timeout=60)
        begin = time.monotonic()
        for process, _ in job.ranks:
            process.wait(timeout=60)
        return time.monotonic() - begin

    def test_survivors_of_a_killed_rank_end_within_ten_seconds_and_record_whom_they_lost(self):
        for schedule in ("eager", "late"):
            for what, point in KILLED_AT.items():
                for killed in (1, 0) if what == "forward" else (1,):  # 0 holds the store
                    with self.subTest(schedule=schedule, killed=killed, what=what):
                        self.forget_records()
                        job = self.start(LONG, "--allow-faults", "--checkpoint.enable", "--checkpoint.interval=2", ranks=3,
                                         env=self.gpus(schedule, FAULT=f"rank={killed};{point};action=kill"))
                        seconds = self.seconds_to_end(job, killed)
                        survivors = {0, 1, 2} - {killed}
                        said = "\n".join(job.text(rank) for rank in survivors)
                        codes = [process.returncode for process, _ in job.ranks]
                        self.assertEqual(codes, [-signal.SIGKILL if rank == killed else 71 for rank in range(3)], said)
                        self.assertLess(seconds, 10, said)
                        records = self.records()
                        self.assertEqual(set(records), survivors)
                        for record in records.values():
                            self.assertEqual((record["code"], record["lost"]), (71, [killed]), records)
                            self.assertNotEqual(record["phase"], "")
                            self.assertRegex(record["message"], f"rank {killed} ")

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
        job = self.start("--allow-faults", ranks=2, env=self.gpus("late", FAULT="rank=0;point=shutdown;action=sleep:5"))
        self.assertEqual(job.codes(), [0, 0], job.text() + job.text(1))
        self.assertEqual(self.records(), {})

    def test_what_all_ranks_agree_upon_keeps_its_code_on_all_of_them(self):
        job = self.start("--optimizer.lr=1e38", "--metrics.log_freq=100", ranks=2, env=self.gpus("late"))
        self.assertEqual(job.codes(), [93, 93], job.text() + job.text(1))
        for stop, code in ((signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)):
            for told in ((1,), (0, 1)):
                with self.subTest(signal=stop, told=told):
                    job = self.start(LONG, "--checkpoint.enable", "--checkpoint.interval=1000",
                                     f"--job.dump_folder={self.folder}/{stop}{len(told)}", ranks=2, env=self.gpus())
                    job.wait_for("step:  2")
                    for rank in told:
                        os.kill(job.ranks[rank][0].pid, stop)
                    self.assertEqual(job.codes(), [code, code], job.text() + job.text(1))


if __name__ == "__main__":
    main()
