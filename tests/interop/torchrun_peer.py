"""torchrun starts Hyperion: `torchrun --no-python build/hyperion train FILE.toml`, as the operations page says.

    .venv-interop/bin/python tests/interop/torchrun_peer.py build/hyperion
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cases import CASES, SHARD
from ranks import ROOT

BINARY = Path(sys.argv[1]).resolve()
OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOG_RANK")


class Torchrun(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        case = CASES["llama3-fp32-fsdp2-small"]
        arguments = [case.config, *case.arguments(), "--training.steps=2", f"--training.dataset_path={SHARD}",
                     f"--model.hf_assets_path={ROOT / 'tests' / 'assets' / 'tokenizer'}", "--debug.seed=1",
                     f"--job.dump_folder={self.folder / 'out'}"]
        self.train = [str(BINARY), "train", *map(str, arguments)]

    def torchrun(self, *options, program=None):
        environment = {name: value for name, value in os.environ.items() if name not in OWN}
        libraries = [f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/lib64", os.environ.get("LD_LIBRARY_PATH", "")]
        environment |= {"LD_LIBRARY_PATH": ":".join(filter(None, libraries)), "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node=2", "--no-python",
                   *(program or self.train)]
        return subprocess.run(command, env=environment, cwd=self.folder, text=True, timeout=900, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)

    def check_trained(self, done):
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("Training completed"), 1, "rank 0 alone is shown")
        lines = (self.folder / "out" / "metrics.jsonl").read_text().splitlines()
        losses = [line["loss_metrics/global_avg_loss"] for line in map(json.loads, lines) if "event" not in line]
        self.assertEqual(len(losses), 2)
        self.assertLess(losses[1], losses[0])

    def test_standalone(self):
        self.check_trained(self.torchrun("--standalone"))

    def test_static_rendezvous(self):
        with socket.socket() as holder:  # the agent can listen on its port, and nobody else is given it
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            self.check_trained(self.torchrun("--master-addr=127.0.0.1", f"--master-port={holder.getsockname()[1]}"))

    def test_a_job_that_failed_is_started_again(self):
        """The second attempt meets in the agent's store, where the first one left its traces."""
        train = shlex.join(self.train)
        other = "--optimizer.lr=1"  # ranks that disagree end after the rendezvous
        script = f'echo attempt $TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exec {train} {other}; exec {train}'
        done = self.torchrun("--standalone", "--max-restarts=1", program=["bash", "-c", script])
        self.check_trained(done)
        self.assertIn("attempt 1", done.stdout)

    def test_the_exit_code_is_shown(self):
        done = self.torchrun("--standalone", program=[*self.train, "--optimizer.lr=1e38"])
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"exitcode\s*: 93")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
