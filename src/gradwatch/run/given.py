"""Turn what people hand in into arrays, numbers and series, or refuse it in one sentence.

torch is not imported: a tensor is asked for its numbers by its own methods.
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.run.source import MemorySource
from gradwatch.run.subject import Subject
from gradwatch.stats import Kind, Stat, State

Word = TypeVar("Word", bound=StrEnum)
Listed = list[Any] | tuple[Any, ...] | NDArray[Any]

DENSE_LIMIT = 1 << 26
"""Sparse tensors of at most this many elements are made dense to be read."""
SERIES = "a Run, norms by name ({name: [norm, …]}) or arrays by name ({name: [array, …]})"


def refused(wanted: str, got: object, advice: str = "") -> GradwatchError:
    """The error for a value that is not what was wanted: what was expected, what came, what to do.

    Arrays are described by type and shape. Everything else is shown as Python prints it.
    """
    if isinstance(shape := getattr(got, "shape", None), tuple) and shape:
        kind = str(getattr(got, "dtype", type(got).__name__)).removeprefix("torch.")
        shown = f"an array of {kind} with shape {tuple(shape)}"
    else:
        shown = " ".join(repr(got).split())
        shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return GradwatchError(f"Expected {wanted}, got {shown}.{advice and ' '}{advice}", Exit.USAGE)


# -- options ---------------------------------------------------------------------------------------


def choice(words: type[Word], value: Any, option: str) -> Word:
    """The member that a user's word stands for."""
    try:
        return words(value)
    except ValueError:
        known = ", ".join(repr(str(word)) for word in words)
        raise refused(f"one of {known} for {option}", value) from None


def number(value: Any, option: str, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """A finite number, above or at least a bound."""
    found = _single(value)
    right = isinstance(found, int | float) and math.isfinite(found)
    if not right or found <= above or found < least:
        bound = f" above {above:g}" if above > -math.inf else ""
        bound += f" of at least {least:g}" if least > -math.inf else ""
        raise refused(f"a finite number{bound} for {option}", value)
    return float(found)


def whole_number(value: Any, option: str, *, least: int) -> int:
    """A whole number of at least so many."""
    found = _single(value)
    if not isinstance(found, int) or found < least:
        raise refused(f"a whole number of at least {least} for {option}", value)
    return found


def _single(value: Any) -> Any:
    """A number of numpy or torch as Python's; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


# -- arrays ----------------------------------------------------------------------------------------


def as_array(value: Any, entry: str) -> NDArray[Any]:
    """Numbers as a numpy array, without a copy where the memory can be shared.

    Takes numpy arrays, nested lists and torch tensors of any type on any device. Complex numbers
    stay complex. `entry` is what the error calls it.
    """
    wanted = f"numbers in {entry!r}"
    try:
        if hasattr(value, "detach"):
            array = _of_tensor(value)
        elif isinstance(value, list | tuple) and any(hasattr(item, "detach") for item in value):
            array = np.stack([as_array(item, entry) for item in value])
        else:
            array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as why:
        # numpy on ragged lists, torch on what has no numbers to give (a meta tensor, say).
        reason = str(why).partition("\n")[0].partition(". ")[0]
        raise refused(wanted, value, f"They could not be read: {reason}.") from None
    if array.dtype.kind == "V" and "float" in array.dtype.name:
        array = array.astype(np.float32)  # bfloat16 and its like, as other packages add to numpy
    if array.dtype.kind not in "fiubc":  # truth values count as 0 and 1
        raise refused(wanted, value)
    return array


def _of_tensor(tensor: Any) -> NDArray[Any]:
    """The numbers of a torch tensor; types that numpy lacks become float32 or complex64."""
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if str(tensor.layout) != "torch.strided":
        if tensor.numel() > DENSE_LIMIT:
            raise ValueError("a sparse tensor this large cannot be filled in, hand in its values")
        tensor = tensor.to_dense()
    if not hasattr(np, str(tensor.dtype).removeprefix("torch.")):
        tensor = tensor.cfloat() if tensor.is_complex() else tensor.float()
    return np.asarray(tensor.resolve_conj().resolve_neg().numpy())


def as_real(array: NDArray[Any]) -> NDArray[Any]:
    """Flat and real: the parts of a complex number are two elements, as the kernel counts them."""
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array).view(array.real.dtype)
    return array.reshape(-1)


# -- series ----------------------------------------------------------------------------------------


def by_name(data: Any, wanted: str) -> dict[str, Any]:
    """What was handed in by name; a list is named by position."""
    if isinstance(data, list | tuple):
        data = dict(enumerate(data))
    if not isinstance(data, Mapping):
        raise refused(wanted, data)
    named = {str(name): item for name, item in data.items()}
    if len(named) < len(data):
        raise refused("names that differ as text", list(data))
    return named


def each_step(item: Any, name: str) -> Listed:
    """What one name has for each step; an array is cut along its first axis."""
    if hasattr(item, "detach"):
        item = as_array(item, name)
    wrong = isinstance(item, str | bytes | bytearray | Mapping | set)
    if wrong or getattr(item, "shape", None) == () or not isinstance(item, Iterable):
        raise refused(f"a number or an array for each step in {name!r}", item)
    return item if isinstance(item, list | tuple | np.ndarray) else list(item)


def series_by_name(data: Any) -> tuple[dict[str, Listed], bool]:
    """What each name has for each step, and whether that is arrays: else it is norms."""
    if isinstance(data, str):
        raise refused(SERIES, data, "Open a recorded folder with gradwatch.open_run.")
    if isinstance(data, list | tuple) and any(np.isscalar(item) for item in data):
        raise refused(SERIES, data, "Give a bare list of numbers a name.")
    listed = {name: each_step(item, name) for name, item in by_name(data, SERIES).items()}
    if not listed:
        raise refused(SERIES, data)
    found: dict[bool, str] = {}
    for name, items in listed.items():
        if not len(items):
            raise refused(f"a number or an array for each step in {name!r}", list(items))
        first = next((item for item in items if item is not None), None)
        if first is not None:
            found[isinstance(first, list | tuple) or getattr(first, "shape", ()) != ()] = name
    if len(found) == 2:
        wanted = f"an array for each step in {found[False]!r}, as in {found[True]!r}"
        raise refused(wanted, listed[found[False]])
    return listed, True in found


def source_from_norms(norms: Any, steps: Any, scalars: Any) -> MemorySource:
    """Lay gradient norms out on the union of all steps, with a state for every cell."""
    listed = {name: _norms(item, name) for name, item in by_name(norms, "norms by name").items()}
    own = dict(steps) if isinstance(steps, Mapping) else dict.fromkeys(listed, steps)
    if unknown := own.keys() - listed.keys():
        raise refused("steps of names that have norms", min(map(str, unknown)))
    # Layers that share their steps are looked at once, however many they are.
    keys = {name: (id(own.get(name)), len(given)) for name, (given, _) in listed.items()}
    sharing = {key: name for name, key in keys.items()}
    known = {key: as_steps(own.get(name), key[1], name) for key, name in sharing.items()}
    grid = np.unique(np.concatenate([*known.values(), np.empty(0, np.int64)]))
    norm = np.full((len(grid), len(listed)), np.nan)
    states = np.full(norm.shape, State.NOT_SAMPLED, np.uint8)
    for column, (name, (given, state)) in enumerate(listed.items()):
        numbers = known[keys[name]]
        # Where a layer has every step, a slice: it is written several times as fast as by index.
        at = np.searchsorted(grid, numbers) if len(numbers) < len(grid) else slice(None)
        norm[at, column], states[at, column] = given, state
    # NaN and Inf are measurements (the gradient was not finite), not gaps: they are counted apart.
    nan, inf = np.isnan(norm) & (states == State.MEASURED), np.isinf(norm)
    norm[inf] = np.nan
    values = {Stat.GRAD_NAN: nan, Stat.GRAD_INF: inf, Stat.GRAD_NORM: norm}
    subjects = tuple(Subject(Kind.PARAMETER, name, name) for name in listed)
    logged = as_scalars(scalars, len(grid))
    return MemorySource(grid, subjects, values, dict.fromkeys(values, states), scalars=logged)


def _norms(item: Any, name: str) -> tuple[NDArray[Any], Any]:
    """Norms, and the state of all or of each: no gradient where one is None (the norm is NaN)."""
    listed = each_step(item, name)
    given = _numbers(listed, name)
    if given.size and (least := np.fmin.reduce(given)) < 0:
        raise refused(f"norms of at least 0 in {name!r}", float(least))
    numeric = isinstance(listed, np.ndarray) and listed.dtype != object
    none = False if numeric else [norm is None for norm in listed]
    return given, np.where(none, State.NO_GRADIENT, State.MEASURED)


def as_steps(steps: Any, length: int, entry: str) -> NDArray[np.int64]:
    """Step numbers, whole and increasing, one for each of `length` values; None: from 0."""
    if steps is None:
        return np.arange(length)
    given = _numbers(steps, "steps", length)
    with np.errstate(invalid="ignore"):
        whole = given.astype(np.int64)
    # A number that is not whole, not finite or too large does not come back from 64 bits.
    if given.dtype == bool or (whole != given).any() or (np.diff(whole) <= 0).any():
        raise refused(f"{length} increasing whole numbers as steps of {entry!r}", given.tolist())
    return whole


def as_scalars(scalars: Any, length: int) -> dict[str, NDArray[np.float64]]:
    """Logged numbers by name, one for each step; None: nothing was logged there."""
    if not isinstance(scalars, Mapping | None):
        raise refused("numbers by name as scalars ({'loss': [number, …]})", scalars)
    named = by_name(scalars or {}, "scalars by name")
    return {name: _numbers(item, name, length).astype(np.float64) for name, item in named.items()}


def _numbers(item: Any, name: str, length: int | None = None) -> NDArray[Any]:
    """A real number for each step, of which there are `length` if that is known; NaN for None."""
    listed = each_step(item, name)
    if not isinstance(listed, np.ndarray) or listed.dtype == object:
        listed = [math.nan if number is None else number for number in listed]
    given = as_array(listed, name) if len(listed) else np.empty(0)
    if given.ndim != 1 or given.dtype.kind == "c" or length not in (None, len(given)):
        steps = "each step" if length is None else f"each of {length} steps"
        raise refused(f"a number for {steps} in {name!r}", given)
    return given
