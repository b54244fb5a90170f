"""The goldens of MXFP8 (tests/goldens/float8/mx.safetensors): what torchao 0.18.0's MX linears compute in emulation.

    .venv-interop/bin/python tests/interop/mx_goldens.py            makes them again
    .venv-interop/bin/python tests/interop/mx_goldens.py --check    compares the committed ones with torchao; exits 1

MODE-DTYPE/x [M, N], whose blocks hold hard numbers, and its casts: rows and columns (of the transposed matrix, [N, M]), with the bits of
their scales and what they stand for in DTYPE. MODE-product-DTYPE/x, w and dy of one linear, out, dx and dw: every number is a small
integer times one power of two, so that a product's partial sums are exact and its result does not depend on their order, but many are
rounded by the cast. MODE is floor or rceil.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torchao.prototype.moe_training.mxfp8_linear import mx_mm
from torchao.prototype.mx_formats.config import MXFP8Dim0CastKernelChoice, MXFP8Dim1CastKernelChoice, ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

FILE = Path(__file__).resolve().parent.parent / "goldens" / "float8" / "mx.safetensors"
MODES = {"floor": ScaleCalculationMode.FLOOR, "rceil": ScaleCalculationMode.RCEIL}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def hard_numbers(dtype):
    """[64, 96]: blocks of one scale each and of many, zeros, tiny and huge numbers, infinities, NaN, ties of the cast."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(64, 96, generator=generator)
    x *= torch.exp2(torch.randint(-20, 20, (64, 3), generator=generator)).repeat_interleave(32, 1)
    x[0] = 0
    x[1, :32], x[1, 32:64], x[1, 64:] = 1e-38, 1e-40, 3e38
    x[2, 5], x[2, 40], x[3, 70] = float("inf"), float("nan"), -float("inf")
    x[4] = torch.arange(96) * 0.25
    x[5] = 448 * torch.exp2(torch.arange(96) // 32 - 1.0)  # the largest number of a block is e4m3's, or its double
    x[6] = torch.arange(96) - 48.0
    x[7] = -torch.exp2(torch.arange(96) // 3 - 16.0)
    return x.to(dtype)


def small_integers(rows, columns, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-31, 32, (rows, columns), generator=generator).to(dtype)


def make():
    goldens = {}
    for mode_name, mode in MODES.items():
        for dtype_name, dtype in DTYPES.items():
            x = hard_numbers(dtype)
            name = f"{mode_name}-{dtype_name}/"
            goldens[name + "x"] = x
            for side, matrix in (("rows", x), ("columns", x.t().contiguous())):
                cast = MXTensor.to_mx(matrix, torch.float8_e4m3fn, 32, mode, KernelPreference.EMULATED)
                goldens[f"{name}{side}"] = cast.qdata.view(torch.uint8).clone()
                goldens[f"{name}{side}-scale"] = cast.scale.view(torch.uint8).clone()
                goldens[f"{name}{side}-numbers"] = cast.dequantize(dtype).clone()
            name = f"{mode_name}-product-{dtype_name}/"
            x, w, dy = (small_integers(*size, seed, dtype) for seed, size in enumerate(((32, 64), (96, 64), (32, 96))))
            goldens |= {name + "x": x.clone(), name + "w": w.clone(), name + "dy": dy.clone()}
            x.requires_grad_()
            w.requires_grad_()
            element = torch.float8_e4m3fn
            out = mx_mm.apply(x, w, element, element, element, 32, KernelPreference.EMULATED, MXFP8Dim0CastKernelChoice.TORCH,
                              MXFP8Dim1CastKernelChoice.TORCH, mode, False)
            out.backward(dy)
            goldens |= {name + "out": out.detach(), name + "dx": x.grad, name + "dw": w.grad}
            exact = (x.detach().double() @ w.detach().double().t()).to(dtype)
            assert not torch.equal(out.detach(), exact), "the cast rounds nothing"
    return {key: value.contiguous() for key, value in goldens.items()}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    made = make()
    if not parser.parse_args().check:
        save_file(made, FILE)
        return 0
    committed = load_file(FILE)
    wrong = sorted(key for key in made.keys() | committed.keys()
                   if key not in made or key not in committed or not same(made[key], committed[key]))
    print(f"{len(made)} goldens of MXFP8, {len(wrong)} differ: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
