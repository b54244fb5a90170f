"""Our Muon against torch.optim.Muon: 20 updates of several matrices by the same gradients.

    python3 tests/interop/muon_peer.py build/muon_tool

torch computes the iteration in bf16, where one rounding more or less turns an update by 1e-3 to 2e-3 (both are 1.5e-2
from the iteration in fp64). With its cast to bf16
left out, the same code is a judge of the iteration in fp32.
"""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import torch

torch.set_num_threads(1)
failed = []


def matrix(path, shape):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).view(shape)


def compare(tool, scale, nesterov, dtype, tolerance):
    in_fp32 = mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone)
    with tempfile.TemporaryDirectory() as folder, in_fp32 if dtype == "float32" else contextlib.nullcontext():
        subprocess.run([tool, folder, scale, str(nesterov).lower(), dtype], check=True)
        for first in sorted(pathlib.Path(folder).glob("*.first")):
            shape = tuple(int(extent) for extent in first.stem.split(".")[-1].split("x"))
            weight = torch.nn.Parameter(matrix(first, shape))
            theirs = torch.optim.Muon([weight], lr=1e-2, weight_decay=0.1, momentum=0.95, nesterov=nesterov,
                                      adjust_lr_fn=scale)
            for gradient in matrix(first.with_suffix(".gradients"), (20, *shape)):
                weight.grad = gradient
                theirs.step()
            ours = matrix(first.with_suffix(".last"), shape)
            distance = ((ours - weight.detach()).norm() / weight.detach().norm()).item()
            print(f"{dtype}, {scale}, nesterov {nesterov}, {first.stem}: {distance:.1e} apart after 20 updates")
            if not distance < tolerance:
                failed.append(first.stem)


for one in ("original", "match_rms_adamw"):
    for with_nesterov in (True, False):
        compare(sys.argv[1], one, with_nesterov, "float32", 1e-6)
        compare(sys.argv[1], one, with_nesterov, "bfloat16", 2e-3)
if failed:
    sys.exit("that is too far")
