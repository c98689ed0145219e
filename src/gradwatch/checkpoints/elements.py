"""The kinds of elements a checkpoint can hold, and how to turn them into something measurable."""

from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel import Dtype


class Element(StrEnum):
    """Named as torch and numpy name them."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return SIZES[self]

    @property
    def floating(self) -> bool:
        """Whether it is a floating-point type."""
        return self in _FLOATING

    @property
    def stored(self) -> np.dtype[np.generic]:
        """The numpy dtype that has this element's bits."""
        return np.dtype(_STORED.get(self, str(self)))


_STORED = {
    Element.BFLOAT16: "uint16",
    Element.FLOAT8_E4M3FN: "uint8",
    Element.FLOAT8_E5M2: "uint8",
    Element.BOOL: "uint8",
}
SIZES = {element: element.stored.itemsize for element in Element}
_FLOATING = frozenset(element for element in Element if "float" in element)
_DIRECT = {
    Element.FLOAT64: Dtype.F64,
    Element.FLOAT32: Dtype.F32,
    Element.BFLOAT16: Dtype.BF16,
    Element.FLOAT16: Dtype.F16,
}


def measurable(bits: NDArray[np.generic], element: Element) -> tuple[NDArray[np.generic], Dtype]:
    """The same numbers in a form the kernel reads: as they are, or through a table of 256."""
    if element in _DIRECT:
        return bits, _DIRECT[element]
    if element.size == 1:
        return _table(element)[bits], Dtype.F32
    if element.size == 2:
        return bits.astype(np.float32), Dtype.F32
    return bits.astype(np.float64), Dtype.F64


def as_floats(bits: NDArray[np.generic], element: Element) -> NDArray[np.floating]:
    """The same numbers as float32 (float64 for 64-bit ones), for arithmetic in numpy."""
    if element is Element.BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if element is Element.FLOAT16:
        return bits.astype(np.float32)
    values: NDArray[np.floating] = measurable(bits, element)[0]  # type: ignore[assignment]
    return values


@cache
def _table(element: Element) -> NDArray[np.float32]:
    codes = np.arange(256, dtype=np.uint8)
    if element is Element.FLOAT8_E5M2:  # the upper half of a float16
        halves: NDArray[np.float16] = np.left_shift(codes.astype(np.uint16), 8).view(np.float16)
        return halves.astype(np.float32)
    if element is Element.FLOAT8_E4M3FN:
        return _e4m3fn(codes)
    if element is Element.INT8:
        return codes.view(np.int8).astype(np.float32)
    if element is Element.BOOL:
        return np.minimum(codes, 1).astype(np.float32)
    return codes.astype(np.float32)


def _e4m3fn(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Four exponent bits of bias 7, three of mantissa, no infinity, NaN where all seven are set."""
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> 3 & 0xF).astype(np.int32)
    mantissa = (codes & 7).astype(np.float64)
    normal = (8 + mantissa) * 2.0 ** (exponent - 10)
    value = sign * np.where(exponent == 0, mantissa * 2.0**-9, normal)
    floats: NDArray[np.float32] = np.where(codes & 0x7F == 0x7F, np.nan, value).astype(np.float32)
    return floats
