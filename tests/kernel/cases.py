"""Tensors that are hard to measure, in every type the kernel reads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from gradwatch.kernel import Batch, Dtype

SIZES = (1, 2, 3, 31, 64, 1000, 4096, 4097, 3 * 4096 + 17)
Maker = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A tensor's memory, its type, and its elements as float64."""

    name: str
    dtype: Dtype
    raw: np.ndarray
    values: np.ndarray

    @property
    def rows(self) -> int:
        return self.raw.shape[0] if self.raw.ndim >= 2 else 0


def encode(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """float64 as the memory of a type; bfloat16 is cut off a float32."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype is Dtype.BF16:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype({Dtype.F32: np.float32, Dtype.F64: np.float64}.get(dtype, np.float16))


def decode(raw: np.ndarray, dtype: Dtype) -> np.ndarray:
    if dtype is Dtype.BF16:
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64)


def case(name: str, values: np.ndarray, dtype: Dtype) -> Case:
    raw = np.ascontiguousarray(encode(np.asarray(values, np.float64), dtype))
    return Case(f"{name} {dtype.name} {raw.shape}", dtype, raw, decode(raw, dtype))


def batch(cases: list[Case]) -> Batch:
    return Batch.of(
        [c.raw.ctypes.data if c.raw.size else 0 for c in cases],
        [c.raw.size for c in cases],
        [c.dtype for c in cases],
        [c.rows for c in cases],
    )


def sprinkled(odd: list[float], share: float) -> Maker:
    """Gaussian, with some elements replaced."""

    def make(rng: np.random.Generator, n: int) -> np.ndarray:
        x = rng.standard_normal(n)
        return np.where(rng.random(n) < share, rng.choice(odd, n), x)

    return make


def outlier(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.standard_normal(n) * 1e-4
    x[n // 2] = 3e4
    return x


def rising(rng: np.random.Generator, n: int) -> np.ndarray:
    """Every part larger than all before it: guesses and windows must follow."""
    return rng.standard_normal(n) * 2.0 ** (np.arange(n) * 40 / n - 30)


CONTENTS: dict[str, Maker] = {
    "gaussian": lambda rng, n: rng.standard_normal(n) * 1e-3,
    "offset": lambda rng, n: 1 + 1e-3 * rng.standard_normal(n),
    "far offset": lambda rng, n: 1e6 + rng.standard_normal(n),
    "negative offset": lambda rng, n: -300 + rng.standard_normal(n),
    "lognormal": lambda rng, n: 100 + 1e-3 * rng.lognormal(0, 2, n),
    "heavy tails": lambda rng, n: rng.standard_t(2, n),
    "two values": lambda rng, n: np.where(rng.random(n) < 0.5, 0.1, -0.7),
    "constant": lambda rng, n: np.full(n, 0.1),
    "zeros": lambda rng, n: np.zeros(n) * np.where(rng.random(n) < 0.5, 1, -1),
    "mostly zeros": sprinkled([0.0, -0.0], 0.95),
    "some zeros": sprinkled([0.0], 0.1),
    "a nan": sprinkled([np.nan], 0.001),
    "non-finite": sprinkled([np.nan, np.inf, -np.inf], 0.2),
    "mostly nan": sprinkled([np.nan], 0.98),
    "all nan": lambda rng, n: np.full(n, np.nan),
    "all inf": lambda rng, n: np.full(n, -np.inf),
    "outlier": outlier,
    "rising": rising,
    "falling": lambda rng, n: rising(rng, n)[::-1],
    "all octaves": lambda rng, n: rng.standard_normal(n) * 2.0 ** rng.integers(-60, 60, n),
    "1e-30": lambda rng, n: rng.standard_normal(n) * 1e-30,
    "1e30": lambda rng, n: rng.standard_normal(n) * 1e30,
    "offset 1e30": lambda rng, n: 1e30 * (1 + 1e-3 * rng.standard_normal(n)),
    "narrow": lambda rng, n: 2.0**-99 * (1 + rng.integers(0, 3, n) * 2.0**-23),
    "narrow and small": lambda rng, n: 2.0**-120 * (1 + rng.integers(0, 3, n) * 2.0**-23),
    "narrow and large": lambda rng, n: 2.0**100 * (1 + rng.integers(0, 3, n) * 2.0**-23),
    "largest": lambda rng, n: rng.uniform(-3.4e38, 3.4e38, n),
    "subnormal": lambda rng, n: rng.standard_normal(n) * 2.0**-140,
    "half's range": lambda rng, n: rng.standard_normal(n) * 2.0 ** rng.integers(-24, 14, n),
}
DOUBLES_ONLY: dict[str, Maker] = {
    "1e-200": lambda rng, n: rng.standard_normal(n) * 1e-200,
    "1e200": lambda rng, n: 1e200 * (3 + rng.standard_normal(n)),
    "largest double": lambda rng, n: 1.7e308 * rng.uniform(-1, 1, n),
    "subnormal double": lambda rng, n: rng.standard_normal(n) * 2.0**-1060,
}
TOO_LARGE_FOR_HALF = ("far offset", "1e30", "offset 1e30", "largest", "all octaves", "rising")


def all_cases() -> Iterator[Case]:
    rng = np.random.default_rng(7)
    for dtype in Dtype:
        contents = CONTENTS | (DOUBLES_ONLY if dtype is Dtype.F64 else {})
        for name, make in contents.items():
            # In float16 these are all Inf; once is enough.
            sizes = SIZES[:3] if dtype is Dtype.F16 and name in TOO_LARGE_FOR_HALF else SIZES
            for n in sizes:
                yield case(name, make(rng, n), dtype)
        yield case("empty", np.zeros(0), dtype)
        yield case("empty rows", np.zeros((3, 0)), dtype)


@cache
def cases() -> list[Case]:
    return list(all_cases())
