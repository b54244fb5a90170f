"""The goldens of FP8 (tests/goldens/float8): what torchao 0.18.0 computes with emulate=True, for every recipe.

    .venv-interop/bin/python tests/interop/float8_goldens.py            makes them again
    .venv-interop/bin/python tests/interop/float8_goldens.py --check    compares the committed ones with torchao; exits 1

RECIPE.safetensors holds for each case the inputs CASE/x, CASE/w [N, K] and CASE/dy of one linear and torchao's CASE/out,
CASE/dx and CASE/dw; casts.safetensors the scale of many amax (scales/...) and the cast of hard values, row i with scale[i]
(quantise-{e4m3,e5m2}/...). index.json describes the cases, with the SQNR (dB) of each result against the plain linear of the same dtype where all is finite, and that of
every recipe on larger, ordinary matrices.

A result must not depend on the order in which a matrix product is summed, for that differs between CPUs: results in bf16
are kept away from rounding ties (elements of x and dy are changed until none is near), and cases in fp32 are such that
every partial sum is exact. To compare: equal as numbers, and NaN where NaN is expected (the sign of a NaN is the CPU's).
The definitions of FP8 are stated here a second time (`Recipe`), and with deliberate errors: each error must show in a case.
"""

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import xxhash
from reference_weights import normal_quantile, philox4x32, uniform_open
from safetensors.torch import load_file, save_file
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_training_tensor import hp_tensor_and_scale_to_float8
from torchao.float8.float8_utils import amax_to_scale

FOLDER = Path(__file__).resolve().parent.parent / "goldens" / "float8"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP8 = {"e4m3": E4M3, "e5m2": E5M2}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
RESULTS = ("out", "dx", "dw")


# ---- the second statement of the definitions


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the operands of the three products are cast. An axis is the one that a scale spans; None: one scale for all."""

    out: tuple = (None, None)  # axes of x [M, K] and w [N, K] for out = x w^T
    dx: tuple = (None, None)  # of dy [M, N] and w for dx = dy w
    dw: tuple | None = (None, None)  # of dy and x for dw = dy^T x; None: not cast
    gradient: torch.dtype = E5M2
    power_of_two: bool = False
    eps: float = 1e-12
    product_dtype: torch.dtype = torch.float32
    exact_floor: bool = False  # a deliberate error: torchao's log2 in fp32 can round up

    def cast(self, t: torch.Tensor, axis: int | None, fp8: torch.dtype) -> torch.Tensor:
        """Quantised and dequantised, fp32."""
        amax = t.abs().max() if axis is None else t.abs().amax(axis, keepdim=True)
        limit = torch.finfo(fp8).max
        scale = (limit / amax.double().clamp(min=self.eps)).float()
        if self.power_of_two:
            scale = torch.exp2(torch.frexp(scale)[1].float() - 1) if self.exact_floor else scale.log2().floor().exp2()
        product = (t.to(self.product_dtype) * scale.to(self.product_dtype)).float()
        return product.clamp(-limit, limit).to(fp8).float() / scale

    def products(self, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> dict[str, tuple]:
        """The operands (fp32) whose matrix products are the results."""
        x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        out = self.cast(x, self.out[0], E4M3), self.cast(w, self.out[1], E4M3).t()
        dx = self.cast(dy, self.dx[0], self.gradient), self.cast(w, self.dx[1], E4M3)
        if self.dw is None:
            dw = dy.t().float(), x.float()
        else:
            dw = self.cast(dy, self.dw[0], self.gradient).t(), self.cast(x, self.dw[1], E4M3)
        return {"out": out, "dx": dx, "dw": dw}


# Along a row is axis 1: one scale for each row.
RECIPES = {
    "tensorwise": Recipe(),
    "rowwise": Recipe((1, 1), (1, 0), (0, 0), E4M3, power_of_two=True),
    "rowwise_with_gw_hp": Recipe((1, 1), (1, None), None, E4M3, power_of_two=True),
}


def mutants(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe with one error each."""
    other = {"gradient": E5M2 if recipe.gradient is E4M3 else E4M3, "power_of_two": not recipe.power_of_two, "eps": 1e-30,
             "product_dtype": torch.bfloat16, "dw": None if recipe.dw else (0, 0)}
    if recipe.power_of_two:
        other["exact_floor"] = True
    found = {field: dataclasses.replace(recipe, **{field: value}) for field, value in other.items()}
    for field in RESULTS:
        for operand, axis in enumerate(getattr(recipe, field) or ()):
            for wrong in {None, 0, 1} - {axis}:
                axes = list(getattr(recipe, field))
                axes[operand] = wrong
                found[f"{field}[{operand}] along {wrong}"] = dataclasses.replace(recipe, **{field: tuple(axes)})
    return found


# ---- what is near a tie


def unsafe(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where the result of a b in `dtype` could depend on the order of the sums. Infinities and NaN are safe."""
    terms = a.double()[:, :, None] * b.double()[None, :, :]
    exact, finite = terms.sum(1), terms.isfinite().all(1)
    if a.shape[1] == 1:
        return torch.zeros_like(finite)
    terms = terms.nan_to_num(0.0, 0.0, 0.0)
    # Every partial sum is exact if all terms are multiples of 2^-24 of the sum of their absolute values.
    unit = torch.exp2(torch.ceil(torch.log2(terms.abs().sum(1).clamp(min=1e-300))) - 24)
    inexact = finite & (torch.fmod(terms, unit[:, None, :]) != 0).any(1)
    if dtype == torch.float32:
        return inexact
    error = 2 * 2.0**-24 * math.sqrt(a.shape[1]) * terms.square().sum(1).sqrt()
    return inexact & ((exact - error).to(dtype) != (exact + error).to(dtype))


def settle(recipe: Recipe, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, random: np.random.Generator) -> None:
    """Changes single elements of x and dy, none of them a maximum, until no result is unsafe."""
    x, dy = x.view(-1, x.shape[-1]), dy.view(-1, dy.shape[-1])

    def change(t: torch.Tensor, row: int | slice, column: int | slice) -> None:
        """Any element of that row or column."""
        size = t.float().abs()
        free = (size > 0) & (size < 0.9 * torch.minimum(size.amax(0), size.amax(1, keepdim=True)))
        line = torch.zeros_like(free)
        line[row, column] = True
        places = torch.nonzero(free & line)
        if len(places):
            t[tuple(places[int(random.integers(len(places)))])] *= random.uniform(0.5, 1.0)

    for _ in range(300):
        products = recipe.products(x, w, dy)
        found = {name: torch.nonzero(unsafe(*products[name], x.dtype)).tolist() for name in RESULTS}
        if not any(found.values()):
            return
        for row, _ in found["out"]:
            change(x, row, slice(None))
        for row, _ in found["dx"]:
            change(dy, row, slice(None))
        for row, column in found["dw"]:
            change(*((dy, slice(None), row) if random.integers(2) else (x, slice(None), column)))
    raise RuntimeError(f"{sum(map(len, found.values()))} results stay near a tie")


# ---- contents


class Numbers:
    """Reproducible draws: Philox by a name."""

    def __init__(self, name: str):
        self.key, self.block = xxhash.xxh3_64_intdigest(name.encode()), 0

    def uniform(self, *shape: int) -> torch.Tensor:
        count = math.prod(shape)
        words = philox4x32(self.key, np.arange(self.block, self.block + count))
        self.block += count
        return torch.from_numpy(uniform_open(words[0], words[1]).reshape(shape))

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(normal_quantile(self.uniform(*shape).numpy()))

    def sign(self, *shape: int) -> torch.Tensor:
        return torch.where(self.uniform(*shape) < 0.5, -1.0, 1.0).double()


def normal(n: Numbers, m: int, k: int, width: int) -> tuple:
    return n.normal(m, k), 0.05 * n.normal(width, k), 1e-3 * n.normal(m, width)


def spread(n: Numbers, m: int, k: int, width: int) -> tuple:
    """Rows and columns that differ by powers of two: a scale over the wrong axis loses the small ones."""
    def widened(t):
        rows, columns = (torch.exp2((n.uniform(size) * 25 - 12).floor()) for size in t.shape)
        return t * rows[:, None] * columns

    return tuple(widened(t) for t in normal(n, m, k, width))


def powers(n: Numbers, m: int, k: int, width: int) -> tuple:
    """The largest element of a row is 1.75 * 2^i (a scale that is a power of two) or a bf16 neighbour of it."""
    def capped(t):
        t = t / t.abs().amax(1, keepdim=True) * 1.5
        for row, values in enumerate(t):
            values[(5 * row) % t.shape[1]] = 1.75 + (row % 3 - 1) * 2.0**-7
            values *= 2.0 ** (row % 7 - 3)
        return t

    return tuple(capped(t) for t in normal(n, m, k, width))


def outliers(n: Numbers, m: int, k: int, width: int) -> tuple:
    tensors = normal(n, m, k, width)
    for t in tensors:
        for row, column in ((0, 1), (2, 3), (t.shape[0] - 1, 0)):
            t[row % t.shape[0], column] *= 1e4
    return tensors


def zero_lines(n: Numbers, m: int, k: int, width: int) -> tuple:
    tensors = normal(n, m, k, width)
    for t in tensors:
        t[1 % t.shape[0]], t[:, 2] = 0.0, -0.0
    return tensors


def at_eps(n: Numbers, m: int, k: int, width: int) -> tuple:
    """Rows with an amax around 1e-12, the floor of every amax, down to where all is rounded to zero."""
    def shrunk(t):
        factors = torch.tensor([0.25, 1e-3, 0.5, 1.0 - 2.0**-8, 1e-5, 1.0, 1.0 + 2.0**-7, 1.5], dtype=torch.float64)
        return t / t.abs().amax(1, keepdim=True) * 1e-12 * factors[torch.arange(t.shape[0]) % 8, None]

    return tuple(shrunk(t) for t in normal(n, m, k, width))


def below_eps(n: Numbers, m: int, k: int, width: int) -> tuple:
    """Like at_eps, for one scale a tensor: the amax of each is below 1e-12."""
    return tuple(0.3e-12 * t / t.abs().amax() for t in normal(n, m, k, width))


def scaled(factor: float):
    return lambda *args: tuple(factor * t / t.abs().amax() for t in normal(*args))


def with_value(tensor: int, value: float, everywhere: bool = False):
    def made(n: Numbers, m: int, k: int, width: int) -> tuple:
        tensors = normal(n, m, k, width)
        tensors[tensor][... if everywhere else (1, 5)] = value
        return tensors

    return made


def exact(n: Numbers, m: int, k: int, width: int) -> tuple:
    """For fp32: few binades and bits, and scales that are powers of two under every recipe, so that every sum is exact."""
    def made(*shape):
        t = n.sign(*shape) * (0.5 + 1.125 * n.uniform(*shape)).mul(512).round() / 512
        t[0, 0], t[2], t[:, 3] = 1.75, 0.0, 0.0
        return t

    return made(m, k), made(width, k) / 16, made(m, width) / 512


def log2_up(n: Numbers, m: int, k: int, width: int) -> tuple:
    """For fp32: amax a few ulp above 448 * 2^-40, where floor(log2(scale)) in fp32 rounds up; beside it, tiny elements."""
    x = n.sign(m, k) * (n.uniform(m, k) * 16).floor() * 2.0**-10
    for row in range(m):
        x[row, (3 * row) % k] = 448 * (1 + (1 + row % 5) * 2.0**-23)
    return x * 2.0**-40, n.sign(width, k), n.sign(m, width)


CONTENTS = {
    "normal": normal, "spread": spread, "powers": powers, "outliers": outliers, "zero-lines": zero_lines, "at-eps": at_eps,
    "below-eps": below_eps, "tiny": scaled(1e-30), "subnormal": scaled(5e-39), "huge": scaled(1e18),
    "zero-x": with_value(0, 0.0, True), "zero-w": with_value(1, 0.0, True), "zero-dy": with_value(2, 0.0, True),
    "inf-x": with_value(0, math.inf), "inf-w": with_value(1, -math.inf), "inf-dy": with_value(2, math.inf),
    "nan-x": with_value(0, math.nan), "nan-dy": with_value(2, math.nan), "exact": exact, "log2-up": log2_up,
}


# ---- cases


@dataclasses.dataclass(frozen=True)
class Case:
    recipe: str
    content: str
    lead: tuple  # all dimensions of x but the last
    k: int
    n: int
    dtype: str = "bf16"

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.content}-{'x'.join(map(str, (*self.lead, self.k, self.n)))}-{self.dtype}"

    def inputs(self) -> tuple:
        random = np.random.Generator(np.random.Philox(7))
        rows = math.prod(self.lead)
        x, w, dy = (t.to(DTYPES[self.dtype]) for t in CONTENTS[self.content](Numbers(self.name), rows, self.k, self.n))
        settle(RECIPES[self.recipe], x, w, dy, random)
        return x.reshape(*self.lead, self.k), w, dy.reshape(*self.lead, self.n)


def all_cases() -> list[Case]:
    cases = []
    for recipe in RECIPES:
        shapes = [((32,), 64, 48), ((17,), 32, 16), ((1,), 16, 32), ((2, 3, 5), 48, 32), ((5,), 20, 12)]
        cases += [Case(recipe, "normal", *shape) for shape in shapes]
        cases += [Case(recipe, "spread", (24,), 64, 32), Case(recipe, "spread", (17,), 7, 3)]
        cases += [Case(recipe, "outliers", (19,), 48, 32)]
        special = [name for name in CONTENTS if name not in ("normal", "spread", "outliers", "exact", "log2-up")]
        cases += [Case(recipe, name, (9,), 32, 16) for name in special]
        cases += [Case(recipe, "exact", (13,), 32, 48, "fp32"), Case(recipe, "zero-lines", (3, 4), 16, 16, "bf16")]
    return cases + [Case(recipe, "log2-up", (8,), 16, 16, "fp32") for recipe in RECIPES if recipe != "tensorwise"]


def torchao_linear(recipe: str, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device="meta")
    linear.weight = torch.nn.Parameter(w.clone())
    return run_linear(Float8Linear.from_float(linear, config), x, dy)


def run_linear(linear: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    x = x.clone().requires_grad_()
    out = linear(x)
    out.backward(dy)
    return {"out": out.detach(), "dx": x.grad, "dw": linear.weight.grad.contiguous()}


def sqnr(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, results: dict) -> dict[str, float]:
    """dB of torchao's results against the plain linear; nothing where there is an infinity, a NaN, or no difference."""
    plain = torch.nn.Linear(1, 1, bias=False)
    plain.weight = torch.nn.Parameter(w.clone())
    decibel = {}
    for name, reference in run_linear(plain, x, dy).items():
        signal, noise = reference.double().square().sum(), (reference.double() - results[name].double()).square().sum()
        if signal.isfinite() and noise.isfinite() and signal > 0 and noise > 0:
            decibel[name] = round(10 * math.log10(signal / noise), 3)
    return decibel


def typical_sqnr() -> dict[str, dict[str, float]]:
    """For every recipe, on normal numbers in bf16 with 256 rows, inputs and outputs: the middle of a band to expect."""
    x, w, dy = (t.to(torch.bfloat16) for t in normal(Numbers("typical"), 256, 256, 256))
    return {recipe: sqnr(x, w, dy, torchao_linear(recipe, x, w, dy)) for recipe in RECIPES}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in dtype, shape and value; NaN equals NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)


def stated(recipe: Recipe, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """The results by the second statement: exact sums, rounded once."""
    results = {name: (a.double() @ b.double()).float().to(x.dtype) for name, (a, b) in recipe.products(x, w, dy).items()}
    return {**results, "out": results["out"].reshape(*x.shape[:-1], -1), "dx": results["dx"].reshape(x.shape)}


# ---- the scale and the cast alone


def scale_goldens() -> dict[str, torch.Tensor]:
    around = lambda v: [float(np.nextafter(np.float32(v), np.float32(s * math.inf))) for s in (-1, 1)] + [v]
    values = [0.0, 1e-45, 1e-38, 3e-39, 1e-30, 1e-13, 3.4e38, math.inf, math.nan, 1.0, 448.0, 57344.0, *around(1e-12)]
    for exponent in range(-36, 60, 3):  # scales at and just below powers of two
        values += around(1.75 * 2.0**exponent)
        values += [1.75 * 2.0**exponent * (1 + ulp * 2.0**-23) for ulp in (2, 4, 8, 16, 24, 32)]
    amax = torch.cat([torch.tensor(values, dtype=torch.float32), (1e-3 * Numbers("amax").normal(64).abs()).float()])
    goldens = {"amax": amax}
    for name, fp8 in FP8.items():
        goldens[name] = amax_to_scale(amax, fp8)
        goldens[f"{name}_power_of_two"] = amax_to_scale(amax, fp8, round_scales_to_power_of_2=True)
    return goldens


def quantise_goldens(fp8: torch.dtype) -> dict[str, torch.Tensor]:
    """Every FP8 value, every tie between two, the neighbours of both, and what lies outside; of both signs."""
    finite = torch.arange(128, dtype=torch.uint8).view(fp8).double()
    finite = finite[finite.isfinite()]
    limit, step = finite[-1].item(), (finite[-1] - finite[-2]).item()
    outside = torch.tensor([limit + step / 2, limit + step / 2 + 1, limit + step])
    targets = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, outside])
    rows = {"x": [], "bits": [], "dequantised": []}
    scales = torch.tensor([1.0, 0.125, 448 / 3, 1.37e-5, 57344e12, 0.0])
    for scale in scales:
        x = (targets / (scale.double() or 1.0)).float()
        up, down = torch.nextafter(x, torch.tensor(math.inf)), torch.nextafter(x, torch.tensor(-math.inf))
        x = torch.cat([x, up, down, torch.tensor([1e-45, 1e-38, 3.4e38, math.inf, math.nan])])
        x = torch.cat([x, -x])
        cast = hp_tensor_and_scale_to_float8(x, scale, fp8)
        for key, row in (("x", x), ("bits", cast._data.view(torch.uint8)), ("dequantised", cast._data.float() / scale)):
            rows[key].append(row)
    return {"scale": scales, **{key: torch.stack(value) for key, value in rows.items()}}


def primitives() -> dict[str, dict[str, torch.Tensor]]:
    return {"scales": scale_goldens(), **{f"quantise-{name}": quantise_goldens(fp8) for name, fp8 in FP8.items()}}


# ---- programs


def write(name: str, groups: dict[str, dict[str, torch.Tensor]]) -> None:
    """NAME.safetensors with the tensors GROUP/KEY."""
    save_file({f"{group}/{key}": tensor.contiguous() for group, tensors in groups.items() for key, tensor in tensors.items()},
              FOLDER / f"{name}.safetensors")


def read(name: str) -> dict[str, dict[str, torch.Tensor]]:
    """group -> key -> tensor."""
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for path, tensor in load_file(FOLDER / f"{name}.safetensors").items():
        group, key = path.split("/")
        groups.setdefault(group, {})[key] = tensor
    return groups


def make() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.safetensors"):
        old.unlink()
    index, goldens = [], {recipe: {} for recipe in RECIPES}
    alive = {(recipe, mutant) for recipe in RECIPES for mutant in mutants(RECIPES[recipe])}
    for case in all_cases():
        x, w, dy = case.inputs()
        results = torchao_linear(case.recipe, x, w, dy)
        second = stated(RECIPES[case.recipe], x, w, dy)
        differ = [name for name in RESULTS if not same(results[name], second[name])]
        if differ:
            raise RuntimeError(f"{case.name}: {', '.join(differ)} of torchao and of the second statement differ")
        for name, mutant in mutants(RECIPES[case.recipe]).items():
            if any(not same(results[r], t) for r, t in stated(mutant, x, w, dy).items()):
                alive.discard((case.recipe, name))
        goldens[case.recipe][case.name] = {"x": x, "w": w, "dy": dy, **results}
        index.append({"name": case.name, "recipe": case.recipe, "content": case.content, "dtype": case.dtype, "x": list(x.shape),
                      "w": list(w.shape), "dy": list(dy.shape), "sqnr_db": sqnr(x, w, dy, results)})
    for recipe, cases in goldens.items():
        write(recipe, cases)
    write("casts", primitives())
    head = {"made_by": "torchao 0.18.0, emulate=True, torch 2.11.0 on CPU", "typical_sqnr_db": typical_sqnr(), "cases": index}
    (FOLDER / "index.json").write_text(json.dumps(head, indent=1) + "\n")
    size = sum(f.stat().st_size for f in FOLDER.iterdir())
    print(f"{len(index)} cases, {size} bytes; errors in the definitions that no case shows: {sorted(alive) or 'none'}")
    if alive:
        sys.exit(1)


def check() -> int:
    """Number of committed cases that torchao contradicts."""
    wrong = []
    index = json.loads((FOLDER / "index.json").read_text())
    goldens, casts = {recipe: read(recipe) for recipe in RECIPES}, read("casts")
    if any(set(cases) != {entry["name"] for entry in index["cases"] if entry["recipe"] == recipe} for recipe, cases in goldens.items()):
        wrong.append("the cases of index.json are not those of the files")
    for recipe, decibel in typical_sqnr().items():
        if not all(abs(value - index["typical_sqnr_db"][recipe][name]) < 0.01 for name, value in decibel.items()):
            wrong.append(f"typical SQNR of {recipe}: {decibel}")
    for entry in index["cases"]:
        tensors = goldens[entry["recipe"]][entry["name"]]
        inputs = [tensors[name] for name in ("x", "w", "dy")]
        results = torchao_linear(entry["recipe"], *inputs)
        differ = [name for name in RESULTS if not same(results[name], tensors[name])]
        close = all(abs(value - entry["sqnr_db"].get(name, math.inf)) < 0.01 for name, value in sqnr(*inputs, results).items())
        if differ or not close:
            wrong.append(f"{entry['name']}: {', '.join(differ) or 'SQNR'}")
    for name, tensors in primitives().items():
        committed = casts[name]
        if set(committed) != set(tensors) or not all(same(t, committed[key]) for key, t in tensors.items() if key != "bits"):
            wrong.append(name)
    print("\n".join(wrong) or "all goldens are what torchao computes")
    return len(wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    torch.set_num_threads(1)
    if parser.parse_args().check:
        sys.exit(1 if check() else 0)
    make()
