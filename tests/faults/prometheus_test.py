#!/usr/bin/env python3
"""A job that Prometheus watches: its answers, a real Prometheus that reads them, clients that mean harm.

usage: prometheus_test.py HYPERION [unittest options]
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from checkpoints import CheckpointTest
from jobs import PATIENCE, ROOT, main

HELD = []
GOOD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
QUERIES = re.findall(r'"expr": ("(?:[^"\\]|\\.)*")', (ROOT / "docs" / "grafana.json").read_text())


def free_port():
    """A port that the system gives to no other program while this test runs, and at which a job can listen."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    HELD.append(holder)
    return holder.getsockname()[1]


def installed(program):
    return unittest.skipUnless(shutil.which(program), f"no {program}: apt-get install prometheus")


class Prometheus(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.port, self.go_on = free_port(), self.folder / "go_on"

    def start_watched(self, *options, point="shutdown", **kwargs):
        """A job that waits at `point` until self.go_on is there."""
        return self.start(f"--metrics.prometheus_port={self.port}", "--allow-faults", *options,
                          env={"FAULT": f"point={point};action=wait:{self.go_on}"}, **kwargs)

    def connect(self):
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        self.addCleanup(client.close)
        return client

    def scrape(self):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE).read().decode()

    def samples(self):
        """Name with labels -> value."""
        return {name: float(value) for name, value in re.findall(r"^(hyperion_\S+) (\S+)$", self.scrape(), re.M)}

    def goes_on_to_end(self, job):
        self.go_on.touch()
        codes = job.codes()
        self.assertEqual(codes, [0] * len(codes), job.text())

    def test_the_figures_are_those_of_the_log_and_promtool_accepts_them(self):
        job = self.start_watched("--validation.enable", "--validation.freq=2", f"--validation.dataset_path={self.folder}/data.jsonl",
                                 "--validation.steps=1", "--training.steps=4", ranks=2)
        job.wait_for("waits until")
        text, seen = self.scrape(), self.samples()
        logged = [line for line in self.metrics() if "grad_norm" in line][-1]
        for name, tag, scale in (("loss", "loss_metrics/global_avg_loss", 1), ("grad_norm", "grad_norm", 1), ("learning_rate", "lr", 1),
                                 ("memory_active_bytes", "memory/max_active(GiB)", 2**30), ("mfu_ratio", "mfu(%)", 0.01)):
            self.assertEqual(seen[f"hyperion_{name}"], logged[tag] * scale, name)
        tokens = logged["n_tokens_seen"]
        durable = [event for event in self.events("checkpoint_durable") if event["kind"] != "pre-checkpoint"]
        for name, value in (("step", 4), ("steps_total", 4), ("tokens_total", tokens), ("tokens_seen", tokens), ("logged_step", 4), ("ranks", 2),
                            ("starts", 1), ("validation_step", 4), ("checkpoints_total{result=\"durable\"}", len(durable)),
                            ("checkpoint_durable_step", 4), ("checkpoint_size_bytes", durable[-1]["bytes"])):
            self.assertEqual(seen[f"hyperion_{name}"], value, name)
        self.assertLess(abs(seen["hyperion_checkpoint_durable_timestamp_seconds"] - durable[-1]["time"]), 60)
        self.assertIn(f"run_id=\"{logged['run_id']}\"", text)
        if shutil.which("promtool"):
            judge = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((judge.returncode, judge.stdout + judge.stderr), (0, ""))
        self.goes_on_to_end(job)

    def test_between_logged_steps_the_step_and_its_time_go_on_and_a_resume_counts_from_zero(self):
        job = self.start_watched("--training.steps=4", "--lr_scheduler.total_steps=8", "--metrics.log_freq=100")
        job.wait_for("waits until")
        seen = self.samples()
        self.assertEqual((seen["hyperion_step"], seen["hyperion_logged_step"]), (4, 1))
        self.assertGreater(seen["hyperion_last_step_timestamp_seconds"], seen["hyperion_logged_timestamp_seconds"])
        self.goes_on_to_end(job)
        self.go_on.unlink()
        job = self.start_watched("--training.steps=6", "--lr_scheduler.total_steps=8")
        job.wait_for("waits until")
        seen = self.samples()
        self.assertEqual((seen["hyperion_step"], seen["hyperion_steps_total"], seen["hyperion_starts"]), (6, 2, 2))
        self.assertEqual(seen["hyperion_tokens_seen"], 3 * seen["hyperion_tokens_total"])
        self.goes_on_to_end(job)

    def test_a_port_in_use_ends_all_ranks_before_step_1_in_one_sentence(self):
        with socket.create_server(("127.0.0.1", self.port)):
            job = self.run_job(f"--metrics.prometheus_port={self.port}", ranks=2, code=2)
        sentence = f"rank 0 cannot listen on metrics.prometheus_port {self.port} of 127.0.0.1: the port is in use; choose another one, or 0 for none"
        for rank in (0, 1):
            self.assertIn(sentence, job.text(rank))
        self.assertNotIn("step:", job.text())
        self.assertFalse((self.folder / "out" / "runs").exists())

    def test_clients_that_mean_harm_hold_16_connections_and_neither_the_job_nor_prometheus_up(self):
        job = self.start_watched("--training.steps=30", point="step.data")
        job.wait_for("waits until")
        process = job.ranks[0][0].pid
        before = len(os.listdir(f"/proc/{process}/fd"))
        silent = [self.connect() for _ in range(500)]
        half = [self.connect() for _ in range(5)]
        for client in half:
            client.sendall(GOOD[:20])
        for _ in range(5):
            client = self.connect()
            try:
                client.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (1 << 20))
                self.assertIn(client.recv(100)[:12], (b"HTTP/1.1 431", b""))
            except ConnectionError:
                pass  # refused before all of it was sent
        deaf = self.connect()  # asks, and never reads
        deaf.sendall(GOOD)
        self.assertEqual(self.samples()["hyperion_step"], 0)
        self.assertLessEqual(len(os.listdir(f"/proc/{process}/fd")), before + 16)
        thread, = [task for task in Path(f"/proc/{process}/task").iterdir() if (task / "comm").read_text() == "prometheus\n"]
        nice = int((thread / "stat").read_text().rpartition(")")[2].split()[16])
        self.assertEqual(nice, 19)
        self.goes_on_to_end(job)  # while most of them still hold on
        self.assertEqual([line["step"] for line in self.metrics()], list(range(1, 31)))
        for client in silent:
            client.settimeout(PATIENCE)
            try:
                self.assertEqual(client.recv(100), b"")
            except ConnectionError:
                pass

    @installed("prometheus")
    @installed("promtool")
    def test_a_real_prometheus_reads_it_and_knows_the_queries_of_the_dashboard_and_the_alerts(self):
        job = self.start_watched("--training.steps=3", ranks=1)
        job.wait_for("waits until")
        port = free_port()
        page = (ROOT / "docs" / "prometheus.md").read_text()
        config, rules = [re.sub("^    ", "", block, flags=re.M) for block in re.findall(r"\n((?:    .*\n)+)", page) if "job_name" in block or "alert:" in block]
        (self.folder / "rules.yml").write_text(rules)
        (self.folder / "prometheus.yml").write_text(
            "rule_files: [rules.yml]\n" + config.replace("127.0.0.1:9400", f"127.0.0.1:{self.port}").replace("10s", "100ms"))
        checked = subprocess.run(["promtool", "check", "config", self.folder / "prometheus.yml"], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        with open(self.folder / "prometheus.log", "w") as log:
            server = subprocess.Popen(["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/tsdb",
                                       f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)

        def asked(query):
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            answer = json.load(urllib.request.urlopen(url, timeout=PATIENCE))
            self.assertEqual(answer["status"], "success")
            return answer["data"]["result"]

        end = time.monotonic() + PATIENCE
        while True:
            try:
                if asked("hyperion_step"):
                    break
            except OSError:
                pass
            self.assertLess(time.monotonic(), end, (self.folder / "prometheus.log").read_text())
            time.sleep(0.1)
        loss = self.metrics()[-1]["loss_metrics/global_avg_loss"]
        self.assertEqual([float(series["value"][1]) for series in asked("hyperion_loss")], [loss])
        self.assertEqual(asked('hyperion_state{state="training"}')[0]["value"][1], "1")
        found = 0
        for query in QUERIES:
            query = json.loads(query).replace("$instance", ".*").replace("$__rate_interval", "1m")
            found += bool(asked(query))
        self.assertGreater(len(QUERIES), 30)
        self.assertGreater(found, 15)  # the others are of sources, experts, pipelines and GPUs
        self.goes_on_to_end(job)


if __name__ == "__main__":
    main()
