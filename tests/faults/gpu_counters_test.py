"""What a job says of slow ranks and of the GPUs' throttling and memory errors, on simulated GPUs (docs/simulated_gpu.md).

    python3 tests/faults/gpu_counters_test.py build/hyperion

Standard library only.
"""

import time

from jobs import BINARY, PATIENCE, JobTest, main

LONG = ("--training.steps=1000000", "--metrics.log_freq=10")


class GpuCounters(JobTest):
    def gpus(self, *libraries, **more):
        preloaded = " ".join(str(BINARY.parent / name) for name in ("libsimulated_gpu.so", *libraries))
        return {"HYPERION_DEVICE": "cuda", "LD_PRELOAD": preloaded, **more}

    def nvml(self, text):
        """NVML says this from now on."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.folder / "nvml")

    def wait_for_metrics(self, job, from_step=0, **wanted):
        """The first logged step with these values, of tags without their "gpu/"."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and all(process.poll() is None for process, _ in job.ranks):
            path = self.folder / "out" / "metrics.jsonl"
            for row in self.metrics() if path.exists() and path.read_text().endswith("\n") else ():
                if row["step"] >= from_step and all(row.get(f"gpu/{tag}") == value for tag, value in wanted.items()):
                    return row
            time.sleep(0.1)
        raise AssertionError(f"no step was logged with {wanted}:\n{job.text()}")

    def test_a_gpu_that_throttles_and_has_memory_errors_is_in_the_metrics_and_is_warned_of_as_it_gets_worse(self):
        self.nvml("0000:1c:00.0 ecc_corrected 7\n")  # from before the job
        job = self.start(*LONG, ranks=2, env=self.gpus("libsimulated_nvml.so", HYPERION_SIMULATED_NVML=self.folder / "nvml"))
        row = self.wait_for_metrics(job, ecc_corrected=0, ecc_uncorrected=0, remapped_rows=0)
        self.assertEqual({tag: value for tag, value in row.items() if tag.startswith("gpu/")},
                         {"gpu/ecc_corrected": 0, "gpu/ecc_uncorrected": 0, "gpu/remapped_rows": 0, "gpu/throttled_ranks/thermal": 0,
                          "gpu/throttled_ranks/power_brake": 0, "gpu/throttled_ranks/hw_slowdown": 0, "gpu/min_sm_clock(MHz)": 1400,
                          "gpu/max_temperature(C)": 60, "gpu/max_power(W)": 700})
        self.nvml("0000:1c:00.0 ecc_corrected 7\n0000:1c:00.0 reasons 0x44\n0000:1c:00.0 sm_clock 600\n0000:1c:00.0 temperature 91\n")
        row = self.wait_for_metrics(job, **{"throttled_ranks/thermal": 1, "min_sm_clock(MHz)": 600})
        self.assertEqual(row["gpu/max_temperature(C)"], 91)
        job.wait_for("GPU 0000:1c:00.0: clocks are throttled (thermal)")
        self.nvml("0000:1c:00.0 ecc_corrected 9\n0000:1c:00.0 ecc_uncorrected 1\n0000:1b:00.0 ecc_corrected 1\n")
        self.wait_for_metrics(job, ecc_corrected=3, ecc_uncorrected=1, **{"throttled_ranks/thermal": 0})
        job.wait_for("GPU 0000:1c:00.0: 1 uncorrected memory (ECC) error, 2 corrected memory (ECC) errors since")
        self.nvml("0000:1c:00.0 ecc_corrected 9\n0000:1c:00.0 ecc_uncorrected 2\n0000:1c:00.0 reasons 0x40\n0000:1b:00.0 ecc_corrected 1\n")
        self.wait_for_metrics(job, ecc_uncorrected=2, **{"throttled_ranks/thermal": 1})
        job.wait_for("GPU 0000:1c:00.0: 2 uncorrected memory (ECC) errors since")
        for process, _ in job.ranks:
            process.terminate()
        self.assertEqual(job.codes(), [143, 143], job.text())
        self.assertEqual(job.text().count("clocks are throttled"), 1)
        self.assertNotIn("clocks are throttled", job.text(1))

    def test_a_job_without_nvml_says_so_once_and_has_no_such_metrics(self):
        job = self.run_job(code=0, env=self.gpus())
        self.assertEqual(job.text().count("GPU: no clocks, throttling or ECC errors in the metrics: "), 1)  # not found, or the host's
        self.assertFalse([tag for row in self.metrics() for tag in row if tag.startswith("gpu/")])

    def test_a_call_of_nvml_that_does_not_return_holds_up_no_step_and_no_end(self):
        self.nvml("hang\n")
        job = self.run_job(code=0, env=self.gpus("libsimulated_nvml.so", HYPERION_SIMULATED_NVML=self.folder / "nvml"))
        self.assertEqual(len(self.metrics()), 5)
        self.assertFalse([tag for row in self.metrics() for tag in row if tag.startswith("gpu/")])
        self.assertNotIn("destructors ran under a call", job.text())

    def test_counters_that_nvml_no_longer_answers_for_leave_the_metrics_with_one_warning(self):
        self.nvml("")
        job = self.start(*LONG, env=self.gpus("libsimulated_nvml.so", HYPERION_SIMULATED_NVML=self.folder / "nvml"))
        self.wait_for_metrics(job, ecc_corrected=0)
        self.nvml("hang\n")
        self.wait_for_metrics(job, from_step=self.metrics()[-1]["step"], ecc_corrected=None, **{"max_temperature(C)": None})
        job.ranks[0][0].terminate()
        self.assertEqual(job.codes(), [143], job.text())
        self.assertEqual(job.text().count("WARNING - GPU: NVML has not answered for 10 s"), 1)
        self.assertNotIn("destructors ran under a call", job.text())

    def test_a_counter_whose_first_reading_fails_counts_from_the_first_that_does_not(self):
        gpu = "0000:1b:00.0"
        self.nvml(f"{gpu} ecc_corrected fails\n{gpu} temperature 61\n")
        job = self.start(*LONG, env=self.gpus("libsimulated_nvml.so", HYPERION_SIMULATED_NVML=self.folder / "nvml"))
        self.wait_for_metrics(job, ecc_corrected=None, **{"max_temperature(C)": 61})
        for temperature in (91, 90):  # the first may be of a reading that had begun before
            self.nvml(f"{gpu} ecc_corrected 7\n{gpu} temperature {temperature}\n")
            self.wait_for_metrics(job, **{"max_temperature(C)": temperature})
        self.nvml(f"{gpu} ecc_corrected 9\n")
        self.wait_for_metrics(job, ecc_corrected=2)
        job.ranks[0][0].terminate()
        self.assertEqual(job.codes(), [143], job.text())

    def test_a_rank_that_holds_up_the_others_is_found_on_any_mesh(self):
        tensor, replicas = "--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_replicate_degree=2"
        # Where streams are eager the host itself waits in what it gives them, which is no wait of a GPU's.
        for schedule, mesh in (("late", ()), ("1", (replicas,)), ("1", (tensor,))):
            with self.subTest(schedule=schedule, mesh=mesh):
                folder = self.folder / f"{schedule}{'-'.join(mesh)}"
                job = self.run_job("--allow-faults", "--training.steps=10", *mesh, f"--job.dump_folder={folder}/out", ranks=2, code=0,
                                   env=self.gpus(HYPERION_SIMULATED_SCHEDULE=schedule, FAULT="rank=1;point=step.fwd;nth=0;action=sleep:0.5"))
                rows = self.metrics(folder)[1:]  # without the step in which kernels are loaded
                # Not in every step: on a busy host another rank may be slower in one.
                self.assertGreater([row["stragglers/slowest_rank"] for row in rows].count(1), len(rows) / 2)
                self.assertRegex(job.text(), r"rank 1 on .*, GPU 0000:1c:00\.0: its own work of step \d+ took ")


if __name__ == "__main__":
    main()
