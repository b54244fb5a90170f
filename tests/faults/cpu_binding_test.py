"""Ranks on GPUs run on the CPUs of their card's NUMA node: the real program on simulated GPUs (docs/simulated_gpu.md), on a host with two
nodes of a CPU each, as sysfs says.

    python3 tests/faults/cpu_binding_test.py build/hyperion

Standard library only. Needs two CPUs and a machine that lets tests mount folders (tests/faults/mounts.py).
"""

import os
import re
from pathlib import Path

import mounts
from jobs import BINARY, JobTest, main

SYSFS = (Path("/sys/devices/system/node"), Path("/sys/bus/pci/devices"))
NODE_OF_GPU = {"0000:1b:00.0": 0, "0000:1c:00.0": 1, "0000:1d:00.0": -1}


class CpuBinding(JobTest):
    def setUp(self):
        super().setUp()
        self.cpus = sorted(os.sched_getaffinity(0))[:2]
        if mounts.refused() or len(self.cpus) < 2 or not all(folder.exists() for folder in SYSFS):
            self.skipTest(mounts.refused() or "needs two CPUs and sysfs")
        nodes, devices = self.folder / "nodes", self.folder / "devices"
        for node, cpu in enumerate(self.cpus):
            self.write(nodes / f"node{node}" / "cpulist", cpu)
        self.write(nodes / "online", "0-1")
        for address, node in NODE_OF_GPU.items():
            self.write(devices / address / "numa_node", node)
        for fake, real in zip((nodes, devices), SYSFS):
            mounts.mount(self, "--bind", fake, real)

    def write(self, path, value):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def run_until_step_2(self, ranks, before=None, **env):
        """The job, and of each rank the CPUs that its threads may run on, as /proc says."""
        job = self.start("--allow-faults", "--checkpoint.enable", "--checkpoint.async_mode=async", "--checkpoint.interval=1", ranks=ranks,
                         before=before, env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so",
                                             "FAULT": "point=step.fwd;nth=2;action=stop", **env})
        found = []
        for rank in range(ranks):
            job.wait_for_stop(rank)
            threads = Path(f"/proc/{job.ranks[rank][0].pid}/task").glob("*/status")
            found.append({re.search(r"^Cpus_allowed_list:\s*(\S+)", thread.read_text(), re.M)[1] for thread in threads})
        job.kill()
        return job, found

    def test_all_threads_of_a_rank_run_on_the_cpus_of_its_cards_node(self):
        first, second = map(str, self.cpus)
        job, found = self.run_until_step_2(3)
        self.assertEqual(found[:2], [{first}, {second}])
        self.assertEqual(len(found[2]), 1)
        self.assertTrue({first, second}.isdisjoint(found[2]), found)  # a list of both
        self.assertIn(f"NUMA node 1 of the GPU at 0000:1c:00.0 has CPUs {second}: this rank runs on {second}", job.text(1))
        self.assertIn("CPUs: not bound to those of the GPU, because /sys/bus/pci/devices/0000:1d:00.0/numa_node says -1", job.text(2))

    def test_a_binding_of_the_launcher_is_kept_and_one_far_from_the_card_is_warned_of(self):
        first, second = map(str, self.cpus)
        job, found = self.run_until_step_2(2, before={rank: ["taskset", "--cpu-list", first] for rank in range(2)})
        self.assertEqual(found, [{first}, {first}])
        self.assertIn(f"has CPUs {first}: this rank runs on {first}", job.text(0))
        self.assertRegex(job.text(1), rf"WARNING - NUMA node 1 of the GPU at 0000:1c:00.0 has CPUs {second}, and this rank may run on {first} alone")

    def test_a_rank_whose_threads_openmp_binds_is_left_alone(self):
        first, second = map(str, self.cpus)
        job, found = self.run_until_step_2(2, OMP_PROC_BIND="true", OMP_PLACES=f"{{{first}}},{{{second}}}")
        for rank in range(2):
            self.assertIn("CPUs: not bound to those of the GPU, because OMP_PROC_BIND is set", job.text(rank))
            self.assertNotIn("NUMA node", job.text(rank))
        self.assertIn(first, found[1])  # where OpenMP keeps the main thread, although the card is near the other CPU

    def test_an_empty_variable_is_as_good_as_none(self):
        job, _ = self.run_until_step_2(1, HYPERION_NUMA="", OMP_PROC_BIND="")
        self.assertIn("this rank runs on", job.text())

    def test_binding_can_be_turned_off(self):
        job, found = self.run_until_step_2(1, HYPERION_NUMA="off")
        self.assertNotIn(found[0], [{str(cpu)} for cpu in self.cpus])
        self.assertNotIn("NUMA", job.text())
        self.run_job(code=2, env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "HYPERION_NUMA": "yes"},
                     says=["HYPERION_NUMA is 'yes', expected auto or off"])


if __name__ == "__main__":
    mounts.enter()
    main()
