"""The C kernel. Arrays are numpy's; batches are (pointers u8, counts i8, dtypes u1, rows i8).

What numpy's kernel has too takes and gives the same.
"""

from typing import Any

from gradwatch.kernel.batch import Arrays
from gradwatch.kernel.plain import Gradients as Gradients
from gradwatch.kernel.plain import copy as copy
from gradwatch.kernel.plain import hashes as hashes
from gradwatch.kernel.plain import measure as measure
from gradwatch.kernel.plain import nonfinite as nonfinite
from gradwatch.kernel.plain import step as step

def gather(
    tensors: list[Any], types: tuple[type, type], dtypes: tuple[object, ...], batch: Arrays, /
) -> list[int]: ...
def use_exchange(capsule: object, /) -> bool: ...
def set_threads(most: int, /) -> None: ...
def instruction_sets() -> list[str]: ...
def select(name: str, /) -> None: ...
