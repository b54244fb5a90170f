"""The goldens of FP8 and MXFP8 experts (tests/goldens/float8/grouped.safetensors): what torchao 0.18.0's grouped products compute.

    .venv-interop/bin/python tests/interop/grouped_goldens.py            makes them again
    .venv-interop/bin/python tests/interop/grouped_goldens.py --check    compares the committed ones with torchao; exits 1

CONTENT/x [rows, in], w [experts, out, in], dy [rows, out] and ends (int32, of segments of 32 rows; zeros fill them up), and of them
RECIPE-CONTENT/out, dx and dw. torchao's own autograd functions say which products are made of which casts: those of mx run in its emulation; those of rowwise
call Triton kernels and a product of GPUs, for which its reference functions of PyTorch (moe_training/utils.py) and the product of what they
return stand in here. Numbers of `integers` are small integers times powers of two, so that partial sums are exact and no result depends on
their order, but many are rounded by the cast; those of `spread` differ by powers of two along rows and columns, so that a scale over
the wrong axis or the wrong segment loses the small ones.

layout-N/scale (bits of E8M0), ends and `rows`, `blocks` and `stack`: the scales of MXFP8 as libtorch's grouped product reads them.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated
from torchao.prototype.moe_training import fp8_grouped_mm, utils
from torchao.prototype.moe_training.kernels.mxfp8 import quant
from torchao.prototype.moe_training.mxfp8_grouped_mm import _to_mxfp8_then_scaled_grouped_mm
from torchao.quantization.quantize_.common import KernelPreference

FILE = Path(__file__).resolve().parent.parent / "goldens" / "float8" / "grouped.safetensors"
SEGMENT = 32
COUNTS = [37, 0, 64, 5]  # rows of each expert, without those that fill up its segments
OUT, IN = 64, 96
E4M3 = torch.float8_e4m3fn


def cast_along(x, dim, dtype, power_of_two):
    scale = tensor_to_scale(x, dtype, scaling_granularity=ScalingGranularity.AXISWISE, axiswise_dim=dim, round_scales_to_power_of_2=power_of_two)
    return to_fp8_saturated(x.to(torch.float32) * scale, dtype), scale


def cast_both_by_group(a, b, ends, output_dtype, round_scales_to_power_of_2):
    results = []
    for x in (a, b):
        column_major = x.t().contiguous().t()
        results += utils.torch_to_float8_per_group_colwise(column_major, ends, output_dtype, round_scales_to_power_of_2)
    return tuple(results)


def product(a, b, inverse_a, inverse_b, offs, out_dtype, use_fast_accum):
    """torch._scaled_grouped_mm: sums in fp32 of exact terms, rounded once."""
    assert use_fast_accum and a.dtype == b.dtype == E4M3
    ends = offs.tolist()
    pieces, first = [], 0
    for group, end in enumerate(ends):
        if b.dim() == 3:
            left = a[first:end].float() * inverse_a[first:end, None]
            right = b[group].float() * inverse_b[group][None]
        else:
            left = a[:, first:end].float() * inverse_a.view(len(ends), -1)[group][:, None]
            right = b[first:end].float() * inverse_b.view(len(ends), -1)[group][None]
        pieces.append((left.double() @ right.double()).float().to(out_dtype))
        first = end
    return torch.cat(pieces) if b.dim() == 3 else torch.stack(pieces)


def rowwise(x, w, ends):
    module = fp8_grouped_mm
    module.triton_fp8_rowwise_2d_scale_and_cast = lambda t, output_dtype, round_scales_to_power_of_2: cast_along(t, -1, output_dtype, round_scales_to_power_of_2)
    module.triton_fp8_colwise_3d_scale_and_cast = lambda t, output_dtype, round_scales_to_power_of_2: cast_along(t, -2, output_dtype, round_scales_to_power_of_2)
    module.triton_fp8_rowwise_3d_transpose_rhs = lambda t, output_dtype, round_scales_to_power_of_2: utils.torch_to_3d_rowwise_float8_transpose_rhs(t, output_dtype, round_scales_to_power_of_2)
    module.triton_fp8_per_group_colwise_scales_dual = cast_both_by_group
    torch._scaled_grouped_mm = product
    return module._to_fp8_rowwise_then_scaled_grouped_mm(x, w.transpose(-2, -1), ends, pad_token_groups_for_grouped_mm=False)


def mx(x, w, ends):
    return _to_mxfp8_then_scaled_grouped_mm(x, w.transpose(-2, -1), offs=ends, kernel_preference=KernelPreference.EMULATED)


def segments():
    sizes = [max(1, -(-count // SEGMENT)) * SEGMENT for count in COUNTS]
    ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
    real = torch.cat([torch.arange(size) < count for size, count in zip(sizes, COUNTS)])
    return ends, real[:, None]


def integers(generator, *shape):
    return torch.randint(-31, 32, shape, generator=generator).float() / 16


def spread(generator, *shape):
    x = torch.randint(-31, 32, shape, generator=generator).float()
    for dim in (-1, -2):
        sizes = [1] * x.dim()
        sizes[dim] = shape[dim]
        x *= torch.exp2(torch.randint(-4, 5, sizes, generator=generator))
    return x


def layouts(goldens):
    generator = torch.Generator().manual_seed(3)
    for number, sizes in enumerate(([32, 160, 32], [128, 64, 32])):
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
        scale = torch.randint(1, 255, (int(ends[-1]), 6), generator=generator).to(torch.uint8)
        by_columns = torch.randint(1, 255, (150, int(ends[-1]) // 32), generator=generator).to(torch.uint8)
        stack = torch.randint(1, 255, (2, 150, 6), generator=generator).to(torch.uint8)
        # of rows that fill tiles of 4 columns: torch_to_blocked_2d_M_groups takes no others
        wide = torch.nn.functional.pad(scale, (0, 2))
        goldens |= {f"layout-{number}/{name}": value.clone() for name, value in {
            "ends": ends, "row-scale": scale, "rows": quant.torch_to_blocked_2d_M_groups(wide, ends)[0],
            "column-scale": by_columns, "blocks": quant.torch_to_blocked_2d_K_groups(by_columns, ends // 32)[0],
            "stack-scale": stack, "stack": quant.torch_to_blocked_per_group_3d(stack)}.items()}


def make():
    goldens = {}
    ends, real = segments()
    rows, experts = int(ends[-1]), len(COUNTS)
    for content in (integers, spread):
        generator = torch.Generator().manual_seed(11)
        x, w, dy = (content(generator, *shape).to(torch.bfloat16) for shape in ((rows, IN), (experts, OUT, IN), (rows, OUT)))
        x, dy = x * real, dy * real
        goldens |= {f"{content.__name__}/{key}": value for key, value in (("x", x), ("w", w), ("dy", dy), ("ends", ends.clone()))}
        exact = torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)
        for recipe in (rowwise, mx):
            inputs = x.clone().requires_grad_(), w.clone().requires_grad_()
            out = recipe(*inputs, ends)
            out.backward(dy)
            name = f"{recipe.__name__}-{content.__name__}/"
            goldens |= {name + "out": out.detach(), name + "dx": inputs[0].grad, name + "dw": inputs[1].grad}
            assert not torch.equal(out.detach(), exact), "the cast rounds nothing"
            assert not inputs[1].grad[COUNTS.index(0)].any(), "an expert without rows has a gradient"
    layouts(goldens)
    return {key: value.contiguous() for key, value in goldens.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    made = make()
    if not check:
        save_file(made, FILE)
        return 0
    committed = load_file(FILE)
    wrong = sorted(key for key in made.keys() | committed.keys()
                   if key not in made or key not in committed or not torch.equal(made[key], committed[key]))
    print("\n".join(wrong) or "all goldens are what torchao computes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
