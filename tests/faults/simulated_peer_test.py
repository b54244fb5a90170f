"""benchmarks/simulated_peer.py: torchtitan's step on a simulated GPU, by its own operators, compared with `hyperion plan`'s prediction of ours.

    python3 tests/faults/simulated_peer_test.py build/hyperion
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from jobs import BINARY, ROOT, main


@unittest.skipUnless((ROOT / ".venv-interop/bin/python").exists(), "there is no interop environment: scripts/setup.sh --interop")
class SimulatedPeer(unittest.TestCase):
    def test_torchtitan_multiplies_the_same_and_its_compiled_kernels_are_counted_with_their_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, ROOT / "benchmarks/simulated_peer.py", ROOT / "configs/debug_model.toml", "--mode", "none",
                                   "--build", BINARY.parent, "--keep", folder, "--json"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            compiled_trace = Path(folder, "torchtitan-compiled.none.8").read_text()
        eager, compiled = json.loads(done.stdout).values()
        plan = subprocess.run([BINARY, "plan", ROOT / "configs/debug_model.toml", "--gpus=8", "--configured", "--json", "--activation_checkpoint.mode=none"],
                              capture_output=True, text=True)
        ours = sum(row["flops"] for row in json.loads(plan.stdout)["plans"][0]["work"].values())
        self.assertAlmostEqual(ours / eager["flops"], 1, delta=0.001)
        self.assertEqual(eager["flops"], compiled["flops"])
        self.assertLess(compiled["kernels"], eager["kernels"])
        self.assertLess(compiled["bytes"], eager["bytes"])
        self.assertRegex(compiled_trace, "(?m)^kernel\ttriton_")
        self.assertRegex(compiled_trace, "(?m)^cost\ttriton_[^\t]*\tkernels=1\tread=[1-9]\\d*\twritten=[1-9]")
        for row in (eager, compiled):
            low, middle, high = row["tokens_per_second_per_gpu"]
            self.assertTrue(0 < low < middle < high, row)
            self.assertGreater(row["ratio"][1], row["ratio"][0])


if __name__ == "__main__":
    main()
