"""The models that benchmarks/vs_torchtitan.py compares are the same ones; exits 1 outside the tolerance.

    .venv-interop/bin/python tests/interop/registered_flavor.py [--binary build/hyperion]

Hyperion makes the 100M model by [model.args], torchtitan as a flavour that is registered for the run. Same tokens, same
initial weights, two steps in fp32 on one rank: losses and gradient norms are compared.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from against_torchtitan import TOLERANCE
from cases import WEIGHTS_SEEDS, largest_errors
from make_goldens import make_tokens, write_shard
from ranks import ROOT, run_hyperion, run_torchtitan

sys.path.insert(0, str(ROOT / "benchmarks"))

from vs_torchtitan import CONFIGS, MODELS  # noqa: E402

NAME, SEED, STEPS, SEQ_LEN = "100M", WEIGHTS_SEEDS["llama3"], 2, 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "hyperion")
    binary = parser.parse_args().binary
    model = MODELS[NAME]
    config = str(CONFIGS / f"{model.config}.toml")
    batch = [f"--training.steps={STEPS}", f"--training.seq_len={SEQ_LEN}", "--training.local_batch_size=1",
             "--training.mixed_precision_param=float32"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_shard(folder / "tokens", make_tokens(STEPS * SEQ_LEN + 1, 1, model.vocabulary), model.vocabulary)
        run_hyperion(binary, [config, *batch, *model.ours(), f"--training.dataset_path={folder / 'tokens'}", f"--debug.seed={SEED}",
                              f"--job.dump_folder={folder / 'ours'}"], 1)
        (file,) = (folder / "ours").rglob("metrics.jsonl")
        lines = [line for line in map(json.loads, file.read_text().splitlines()) if "event" not in line]
        ours = {"losses": [line["loss_metrics/global_avg_loss"] for line in lines], "grad_norms": [line["grad_norm"] for line in lines]}

        options, flavor = model.theirs(NAME)
        env = {"PEER_TOKENS": folder / "tokens" / "tokens.bin", "PEER_WEIGHTS_SEED": SEED, "PEER_METRICS": folder / "peer.json", **flavor}
        run_torchtitan(Path(sys.executable), ["--job.config_file", config, *batch, *options], 1, env=env)
        theirs = json.loads((folder / "peer.json").read_text())
    errors = largest_errors(ours, theirs)
    for key, (error, step) in errors.items():
        print(f"{NAME}: {key} differ by {error:.1e} at step {step}, allowed are {TOLERANCE['fp32'][key]:.0e}")
    return 0 if all(error <= TOLERANCE["fp32"][key] for key, (error, _) in errors.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
