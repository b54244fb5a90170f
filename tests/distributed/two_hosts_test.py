#!/usr/bin/env python3
"""Two hosts on one machine: network namespaces with a cable (veth pair) between them, and scripts/launch.py in each.

    python3 tests/distributed/two_hosts_test.py build/hyperion

Exits 77 with the reason where namespaces cannot be made (no root, no iproute2, a container that forbids it).
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BINARY = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parents[2]
LIMIT = 200  # seconds; far above what any of these takes
ADDRESSES = ("10.213.77.1", "10.213.77.2")
TOML = """
[model]
hf_assets_path = "{root}/tests/assets/tokenizer"
[model.args]
dim = 64
n_layers = 2
n_heads = 4
[training]
dataset = "jsonl"
dataset_path = "{folder}/data.jsonl"
local_batch_size = 4
seq_len = 64
steps = 8
[metrics]
log_freq = 1
[job]
dump_folder = "out"
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 0
[debug]
seed = 1
"""


def ip(*arguments):
    done = subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Both namespaces and the cable; use as a context."""

    def __init__(self):
        self.names = [f"hyperion-{os.getpid()}-{i}" for i in range(2)]

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("-n", self.names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.names[1])
            for name, address in zip(self.names, ADDRESSES):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
                ip("-n", name, "link", "set", "lo", "up")
                ip("netns", "exec", name, "true")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:  # the cable goes with them
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)

    def bytes_sent(self, host):
        link, = json.loads(ip("-n", self.names[host], "-json", "-statistics", "link", "show", "cable"))
        return link["stats64"]["tx"]["bytes"]

    def cut_cable(self):
        ip("-n", self.names[0], "link", "set", "cable", "down")

    def mend_cable(self):
        ip("-n", self.names[0], "link", "set", "cable", "up")

    def slow_cable(self, rate):
        """Both ends send at `rate`, such as "10mbit". Returns why that cannot be had, or an empty text."""
        for name in self.names:
            done = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "1s"],
                                  capture_output=True, text=True)
            if done.returncode:
                return f"tc: {done.stderr.strip()}"
        return ""


class TwoHosts(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "job.toml").write_text(TOML.format(root=ROOT, folder=self.folder))
        documents = [f"Document {i} has a few words, and some of them are its own: {i * 7919}." for i in range(200)]
        (self.folder / "data.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
        self.hosts = Hosts().__enter__()
        self.addCleanup(self.hosts.__exit__)
        self.launchers, self.logs = [], []

    def start(self, *options, ranks_a_host=1, before=(), env=None):
        """launch.py on both hosts, each in a folder of its own, for hosts need share no disk; `before`: words before it."""
        own = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "LOG_RANK", "GLOO_SOCKET_IFNAME")
        for host, name in enumerate(self.hosts.names):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir()
            environment = {key: value for key, value in os.environ.items() if key not in own}
            environment |= {"NPROC": str(ranks_a_host), "NNODES": "2", "NODE_RANK": str(host), "MASTER_ADDR": ADDRESSES[0],
                            "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "LOG_RANK": f"{host * ranks_a_host}", **(env or {})}
            log = open(self.folder / name / "log", "a+")  # appending: text() moves the place, which ranks share
            self.addCleanup(log.close)
            command = ["ip", "netns", "exec", name, *before, sys.executable, ROOT / "scripts" / "launch.py", BINARY, "train",
                       self.folder / "job.toml", *options]
            process = subprocess.Popen(command, env=environment, cwd=self.folder / name, stdout=log, stderr=subprocess.STDOUT)
            self.addCleanup(self.end, process)
            self.launchers[host:] = [process]  # of an earlier job
            self.logs[host:] = [log]

    def end(self, process):
        if process.poll() is None:  # its ranks go with it
            process.terminate()
            try:
                process.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def text(self, host):
        self.logs[host].seek(0)
        return f"--- host {host} ---\n{self.logs[host].read()}"

    def codes(self):
        codes = [process.wait(timeout=LIMIT) for process in self.launchers]
        return codes, self.text(0) + self.text(1)

    def check_trained(self, steps=8):
        codes, text = self.codes()
        self.assertEqual(codes, [0, 0], text)
        lines = (self.folder / self.hosts.names[0] / "out" / "metrics.jsonl").read_text().splitlines()
        losses = [line["loss_metrics/global_avg_loss"] for line in map(json.loads, lines) if "event" not in line]
        self.assertEqual(len(losses), steps)
        self.assertLess(losses[-1], 0.9 * losses[0])
        return losses

    def test_fsdp_over_two_hosts(self):
        self.start()
        self.check_trained()
        for host in range(2):  # 0.36 million parameters: each step sends half of them in bf16 and of the gradients in fp32
            self.assertGreater(self.hosts.bytes_sent(host), 8 * 360_000 / 2 * (2 + 4))

    def test_hsdp_with_two_ranks_a_host(self):
        self.start("--parallelism.data_parallel_replicate_degree=2", ranks_a_host=2)
        self.check_trained()

    def wait_for(self, text, host=0):
        end = time.monotonic() + LIMIT
        while text not in self.text(host):
            self.assertLess(time.monotonic(), end, self.text(0) + self.text(1))
            self.assertEqual([process.poll() for process in self.launchers], [None, None], self.text(0) + self.text(1))
            time.sleep(0.05)

    def connections(self):
        """TCP connections of each rank, by rank."""
        counts = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                variables = dict(entry.split("=", 1) for entry in (process / "environ").read_text().split("\0") if "=" in entry)
                if Path(os.readlink(process / "exe")) != BINARY or variables.get("HYPERION_TEST_FOLDER") != str(self.folder):
                    continue
                established = {fields[9] for name in ("tcp", "tcp6") for line in (process / "net" / name).read_text().splitlines()
                               if (fields := line.split())[3] == "01"}
                open_files = []
                for file in (process / "fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):  # it has just been closed
                        open_files.append(os.readlink(file))
                counts[int(variables["RANK"])] = sum(file[8:-1] in established for file in open_files if file.startswith("socket:["))
            except OSError:  # it has just ended
                pass
        return counts

    @unittest.skipUnless((BINARY.parent / "libsimulated_gpu.so").exists(), "built without CUDA")
    def test_gpu_ranks_of_a_host_exchange_through_its_leader(self):
        self.start("--training.steps=1000000", "--checkpoint.enable", f"--job.dump_folder={self.folder}/out",
                   "--comm.speed_check_seconds=0", ranks_a_host=3,
                   env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so",
                        "HYPERION_SIMULATED_GPUS": "3", "HYPERION_TEST_FOLDER": self.folder})
        self.wait_for("step:  3")
        self.assertIn("Network: host groups are trees of 2 levels: the 3 ranks of a node, then groups of at most 64", self.text(0))
        # Between the leaders one of host/0, one of checkpoint/0 and one that tells of lost ranks; those to the store end at rank 0, which has
        # one itself.
        expected = {0: 1 + 6 + 3, 1: 1, 2: 1, 3: 1 + 3, 4: 1, 5: 1}
        end = time.monotonic() + LIMIT  # rank 0 accepts the last one when its watch looks the next time
        while (connections := self.connections()) != expected and time.monotonic() < end:
            time.sleep(0.1)
        self.assertEqual(connections, expected)
        self.launchers[0].terminate()  # one host gets the signal, all ranks stop after the same step
        codes, text = self.codes()
        self.assertEqual(codes, [75, 75], text)

    def test_a_name_server_that_does_not_answer_is_not_asked(self):
        (self.folder / "resolv.conf").write_text(f"nameserver {ADDRESSES[1]}\n")
        silent = ("import socket, sys\n"
                  "server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                  f"server.bind(('{ADDRESSES[1]}', 53))\n"
                  "print('ready', flush=True)\n"
                  "while True:\n"
                  "    print(server.recv(1000), flush=True)\n")
        asked = open(self.folder / "asked", "w+")
        self.addCleanup(asked.close)
        server = subprocess.Popen(["ip", "netns", "exec", self.hosts.names[1], sys.executable, "-c", silent], stdout=asked)
        self.addCleanup(self.end, server)
        while "ready" not in (self.folder / "asked").read_text():
            self.assertIsNone(server.poll())
            time.sleep(0.05)
        # `ip netns exec` has given the command mounts of its own
        self.start("--training.steps=2", before=["sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', self.folder / "resolv.conf"])
        codes, text = self.codes()
        self.assertEqual(codes, [0, 0], text)
        self.assertEqual((self.folder / "asked").read_text(), "ready\n")

    def test_the_rendezvous_listens_on_the_address_of_the_master_alone(self):
        self.start("--training.steps=1000000")
        end = time.monotonic() + LIMIT
        while "step:  1" not in self.text(0):
            self.assertLess(time.monotonic(), end, self.text(0) + self.text(1))
            time.sleep(0.05)
        listening = subprocess.run(["ip", "netns", "exec", self.hosts.names[0], "cat", "/proc/net/tcp", "/proc/net/tcp6"],
                                   capture_output=True, text=True, check=True).stdout
        addresses = {fields[1].split(":")[0] for line in listening.splitlines()
                     if len(fields := line.split()) > 3 and fields[3] == "0A" and fields[1].endswith(f":{29500:04X}")}
        self.assertEqual(addresses, {bytes(map(int, reversed(ADDRESSES[0].split(".")))).hex().upper()})

    def test_a_cut_cable_ends_both_hosts_with_71(self):
        self.start("--training.steps=1000000", "--comm.train_timeout_seconds=20")
        self.wait_for("step:  3")
        self.hosts.cut_cable()
        codes, text = self.codes()
        self.assertEqual(codes, [71, 71], text)
        for host in range(2):
            self.assertRegex(self.text(host), rf"rank {host} of 2 on .* in phase 'step \d+")

    def test_a_slow_cable_and_one_that_is_cut_for_a_moment_change_no_loss(self):
        self.start()
        expected = self.check_trained()
        self.start("--allow-faults", env={"FAULT": "rank=0;point=step.bwd;nth=4;action=sleep:2"})
        self.wait_for("sleeps")  # and rank 1 waits for what rank 0 is to send
        self.hosts.cut_cable()
        time.sleep(4)
        self.hosts.mend_cable()
        self.assertEqual(self.check_trained(), expected)
        if reason := self.hosts.slow_cable("20mbit"):
            self.skipTest(reason)
        self.start()
        self.assertEqual(self.check_trained(), expected)


def skip_unless_possible():
    reason = None
    if os.geteuid() != 0:
        reason = "network namespaces need root"
    elif shutil.which("ip") is None:
        reason = "the program ip is not installed (apt-get install iproute2)"
    else:
        try:
            with Hosts():
                pass
        except RuntimeError as error:
            reason = f"no network namespaces here: {error}"
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)


if __name__ == "__main__":
    skip_unless_possible()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
