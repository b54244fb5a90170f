"""The initial-weights formula of Hyperion in numpy: the second, independent statement of models/init.cpp.

A weight depends on (job seed, parameter name, element index) alone:
    key     = XXH3_64(utf8 name, seed = job seed)
    block b = Philox4x32-10(key, counter = b) -> two uniforms in (0, 1) of 53 bits: elements 2b and 2b+1 (row-major)
    value   = mean + std * quantile(lo + u * (hi - lo)), clamped to the cut, rounded to float32
where (lo, hi) = (0, 1) for a normal and (Phi(a/std), Phi(b/std)) for one cut at [a, b]. The quantile of the standard
normal is AS 241 (M. Wichura, "The Percentage Points of the Normal Distribution", Applied Statistics 37(3), 1988).
The distributions are those of torchtitan 0.2.2's init_weights for llama3, qwen3, deepseek_v3, llama4 and gpt_oss (depth_init = true).

`python reference_weights.py` runs the self-check; `... NAME ROWSxCOLUMNS SEED` prints the first values of a parameter.
"""

import math
import re
import sys
from dataclasses import dataclass

import numpy as np
import xxhash


@dataclass(frozen=True)
class Normal:
    """Mean 0 and this standard deviation, cut at the absolute values -cut and +cut (None: not cut)."""

    std: float
    cut: float | None = None


def distribution(name: str, shape: tuple[int, ...], tied: bool = False, alike: bool = False) -> Normal | None:
    """How torchtitan 0.2.2 initialises a parameter; None means ones (every norm).

    With a tied head (`tied`), tok_embeddings.weight *is* output.weight, and the output's initialisation wins,
    because init_weights writes it last. The one tensor keeps the name tok_embeddings.weight for its key. `alike`: gpt_oss, which draws
    everything in a block but norms alike.
    """
    layer = re.match(r"layers\.(\d+)\.", name)
    kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if kind == "norm" or kind.endswith("_norm"):  # kv_norm too
        return None
    if kind == "output" or (kind == "tok_embeddings" and tied):
        std = shape[1] ** -0.5
        return Normal(std, 3 * std)
    if kind == "tok_embeddings":
        return Normal(1.0)
    if layer and alike:
        return Normal(0.02 / math.sqrt(2 * (int(layer[1]) + 1)), 2.0)
    if layer and kind in ("wq", "wk", "wv", "w1", "wq_a", "wq_b", "wkv_a", "wkv_b"):
        return Normal(0.02, 2.0)
    if layer and kind in ("wo", "w2", "w3", "gate"):  # of experts too, whose stacks are named without ".weight"
        return Normal(0.02 / math.sqrt(2 * (int(layer[1]) + 1)), 2.0)
    raise ValueError(f"{name}: no rule for this parameter")


def philox4x32(key: int, counter_low: np.ndarray) -> list[np.ndarray]:
    """Philox4x32-10 for many counters at once: four arrays of 32-bit words (held in uint64)."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter_low = counter_low.astype(np.uint64)
    zero = np.zeros_like(counter_low)
    c = [counter_low & mask, counter_low >> shift, zero, zero]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(k0), p1 & mask, (p0 >> shift) ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def uniform_open(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """(n + 0.5) / 2^53 for the top 53 bits n of two words."""
    bits = ((high << np.uint64(32)) | low) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) * (1.0 / 9007199254740992.0)


# AS 241, PPND16: numerator and denominator, highest power first, of the centre, the middle and the far tail.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)
_MIDDLE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)


def normal_quantile(p: np.ndarray) -> np.ndarray:
    """Inverse of the standard normal distribution function; infinite at 0 and 1."""

    def ratio(coefficients, r):
        return np.polyval(coefficients[0], r) / np.polyval(coefficients[1], r)

    q = p - 0.5
    x = np.empty_like(p)
    centre = np.abs(q) <= 0.425
    x[centre] = q[centre] * ratio(_CENTRE, 0.180625 - q[centre] ** 2)
    outer, q = p[~centre], q[~centre]
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.sqrt(-np.log(np.where(q < 0, outer, 1.0 - outer)))
        tail = np.where(r <= 5.0, ratio(_MIDDLE, r - 1.6), ratio(_FAR, r - 5.0))
    x[~centre] = np.copysign(np.where(np.isinf(r), np.inf, tail), q)
    return x


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def parameter(name: str, shape: tuple[int, ...], seed: int, tied: bool = False, alike: bool = False) -> np.ndarray:
    """The whole (global, unsharded) parameter as float32."""
    how = distribution(name, shape, tied, alike)
    if how is None:
        return np.ones(shape, np.float32)
    count = math.prod(shape)
    words = philox4x32(xxhash.xxh3_64_intdigest(name.encode(), seed=seed), np.arange((count + 1) // 2))
    u = np.stack([uniform_open(words[0], words[1]), uniform_open(words[2], words[3])], axis=1).reshape(-1)[:count]
    if how.cut is None:
        value = normal_quantile(u) * how.std
    else:
        low, high = _phi(-how.cut / how.std), _phi(how.cut / how.std)
        value = np.clip(normal_quantile(low + u * (high - low)) * how.std, -how.cut, how.cut)
    return value.astype(np.float32).reshape(shape)


def self_check() -> None:
    """Known answers of Random123 for Philox, Python's own AS 241 for the quantile, moments for the whole."""
    from statistics import NormalDist

    words = [int(w[0]) for w in philox4x32(0, np.zeros(1))]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], [hex(w) for w in words]
    p = np.array([1e-300, 1e-12, 1e-5, 0.01, 0.074, 0.08, 0.3, 0.5, 0.6, 0.926, 0.99, 1 - 1e-12])
    expected = np.array([NormalDist().inv_cdf(x) for x in p])
    assert np.allclose(normal_quantile(p), expected, rtol=1e-15, atol=0), normal_quantile(p) - expected
    embedding = parameter("tok_embeddings.weight", (2048, 256), seed=1)
    assert abs(embedding.mean()) < 5e-3 and abs(embedding.std() - 1) < 5e-3
    head = parameter("output.weight", (2048, 256), seed=1)
    assert abs(head).max() <= 3 / 16 and abs(head.std() * 16 - 0.98658) < 5e-3  # std of a normal cut at 3 sigma
    assert abs(parameter("layers.1.attention.wo.weight", (256, 256), seed=1).std() / 0.01 - 1) < 2e-2
    odd = parameter("layers.0.feed_forward.w1.weight", (3, 5), seed=7)
    assert np.array_equal(odd.ravel(), parameter("layers.0.feed_forward.w1.weight", (16,), seed=7)[:15])
    print("reference_weights: all checks passed")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        dims = tuple(int(d) for d in sys.argv[2].split("x"))
        print(*(f"{v:.9g}" for v in parameter(sys.argv[1], dims, int(sys.argv[3])).ravel()[:16]), sep="\n")
    else:
        self_check()
