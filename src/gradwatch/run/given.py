"""What people hand in, made into arrays, numbers and series, or refused in one sentence.

Nothing is imported for it: a torch tensor is asked for its numbers by its own methods.
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
TEXT = (str, bytes, bytearray)
NUMBERS = "fiub"
"""numpy's kinds of real numbers; truth values count as 0 and 1."""


# -- options ---------------------------------------------------------------------------------------


def choice(words: type[Word], value: Any, option: str) -> Word:
    """The member that a user's word stands for."""
    try:
        return words(value)
    except ValueError:
        known = ", ".join(repr(str(word)) for word in words)
        raise refused(f"one of {known} for {option}", value) from None


def number(
    value: Any, option: str, *, above: float | None = None, least: float | None = None
) -> float:
    """A finite number, above or at least a bound."""
    wanted = "a finite number"
    wanted += "" if above is None else f" above {above:g}"
    wanted += "" if least is None else f" of at least {least:g}"
    found = _single(value)
    right = isinstance(found, int | float) and math.isfinite(found)
    if not right or (above is not None and found <= above) or (least is not None and found < least):
        raise refused(f"{wanted} for {option}", value)
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


def refused(wanted: str, got: object, advice: str = "") -> GradwatchError:
    """The error for something that was not what was wanted."""
    shown = repr(got)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return GradwatchError(f"Expected {wanted}, got {shown}.{advice and ' '}{advice}", Exit.USAGE)


# -- arrays ----------------------------------------------------------------------------------------


def as_array(value: Any, entry: str) -> NDArray[Any]:
    """Numbers as a numpy array, without a copy where the memory can be shared.

    Takes numpy arrays, nested lists and torch tensors of any type on any device. Complex numbers
    stay complex. `entry` is what the error calls it.
    """
    try:
        array = _of_tensor(value, entry) if hasattr(value, "detach") else _of_numbers(value, entry)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as why:
        # numpy on ragged lists, torch on what has no numbers to give (a meta tensor, say).
        reason = str(why).partition("\n")[0].partition(". ")[0]
        raise GradwatchError(
            f"Expected an array of numbers in {entry!r}, got a {type(value).__name__} that cannot "
            f"be read as one ({reason}).",
            Exit.USAGE,
        ) from None
    if array.dtype.kind == "V" and "float" in array.dtype.name:
        array = array.astype(np.float32)  # bfloat16 and its like, as other packages add to numpy
    if array.dtype.kind not in NUMBERS + "c":
        what = "text" if array.dtype.kind in "SU" else f"an array of {array.dtype}"
        what = "None" if value is None else what
        raise GradwatchError(f"Expected numbers in {entry!r}, got {what}.", Exit.USAGE)
    return array


def _of_numbers(value: Any, entry: str) -> NDArray[Any]:
    if isinstance(value, list | tuple) and any(hasattr(item, "detach") for item in value):
        return np.stack([as_array(item, entry) for item in value])
    return np.asarray(value)


def _of_tensor(tensor: Any, entry: str) -> NDArray[Any]:
    """The numbers of a torch tensor; 16- and 8-bit types that numpy lacks become float32."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if str(tensor.layout) != "torch.strided":
        if tensor.numel() > DENSE_LIMIT:
            raise GradwatchError(
                f"Expected {entry!r} to be dense, got a sparse tensor of {tensor.numel():,} "
                "elements, too many to fill in. Hand in its values.",
                Exit.USAGE,
            )
        tensor = tensor.to_dense()
    tensor = tensor.cpu()
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind.startswith(("bfloat16", "float8")):
        tensor = tensor.float()
    elif kind == "complex32":
        tensor = tensor.cfloat()
    array: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy()
    return array


def as_real(array: NDArray[Any]) -> NDArray[Any]:
    """Flat and real: the parts of a complex number are two elements, as the kernel counts them."""
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array)
        array = array.view(array.real.dtype)
    return array.reshape(-1)


# -- by name ---------------------------------------------------------------------------------------


def by_name(data: Any, wanted: str) -> dict[str, Any]:
    """What was handed in by name; a list is named by position."""
    if isinstance(data, Mapping):
        named = {str(name): item for name, item in data.items()}
        if len(named) < len(data):
            raise GradwatchError(
                "Expected names that differ, got some that are the same as text.", Exit.USAGE
            )
        return named
    if isinstance(data, list | tuple):
        return {str(position): item for position, item in enumerate(data)}
    raise GradwatchError(
        f"Expected {wanted}, got {'text' if isinstance(data, TEXT) else kind_of(data)}.",
        Exit.USAGE,
    )


def kind_of(value: object) -> str:
    """What a value is, for a sentence: "a dict", "an array of shape (3,)"."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"an array of shape {tuple(shape)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


# -- series of a run -------------------------------------------------------------------------------

SERIES = "a Run, norms by name ({name: [norm, …]}) or arrays by name ({name: [array, …]})"


def series_by_name(data: Any) -> tuple[dict[str, Listed], bool]:
    """What each name has for each step, and whether that is arrays: else it is norms."""
    if isinstance(data, str):
        raise refused(SERIES, data, "Open a recorded folder with gradwatch.open_run.")
    if isinstance(data, list | tuple) and any(np.isscalar(item) for item in data):
        raise refused(SERIES, data, "Give a bare list of numbers a name.")
    listed = {name: each_step(item, name) for name, item in by_name(data, SERIES).items()}
    if not listed:
        raise GradwatchError(f"Expected {SERIES}, got nothing.", Exit.USAGE)
    arrays: list[str] = []
    norms: list[str] = []
    for name, items in listed.items():
        if not len(items):
            raise GradwatchError(
                f"Expected a norm or an array for each step in {name!r}, got none.", Exit.USAGE
            )
        first = next((item for item in items if item is not None), None)
        if first is not None:
            (arrays if _has_parts(first) else norms).append(name)
    if norms and arrays:
        raise GradwatchError(
            f"Expected norms for every name or arrays for every name, got norms in {norms[0]!r} "
            f"and arrays in {arrays[0]!r}.",
            Exit.USAGE,
        )
    return listed, bool(arrays)


def _has_parts(item: object) -> bool:
    """Whether it is an array or a list, and not one number."""
    shape = getattr(item, "shape", None)
    return isinstance(item, list | tuple) if shape is None else len(shape) > 0


def each_step(item: Any, name: str) -> Listed:
    """What one name has for each step; an array is cut along its first axis."""
    if hasattr(item, "detach"):
        item = as_array(item, name)
    wrong = isinstance(item, (*TEXT, Mapping, set)) or getattr(item, "shape", None) == ()
    if wrong or not isinstance(item, Iterable):
        raise refused(f"a norm or an array for each step in {name!r}", item)
    return item if isinstance(item, list | tuple | np.ndarray) else list(item)


def source_from_norms(norms: Any, steps: Any, scalars: Any) -> MemorySource:
    """Lay gradient norms out on the union of all steps, with a state for every cell."""
    listed = {name: _norms(item, name) for name, item in by_name(norms, "norms by name").items()}
    own = dict(steps) if isinstance(steps, Mapping) else dict.fromkeys(listed, steps)
    if unknown := own.keys() - listed.keys():
        raise refused("steps of names that have norms", min(map(str, unknown)))
    # Layers that share their steps are looked at once, however many they are.
    keys = {name: (id(own.get(name)), len(given)) for name, (given, _) in listed.items()}
    known: dict[tuple[int, int], NDArray[np.int64]] = {}
    for name, key in keys.items():
        if key not in known:
            known[key] = as_steps(own.get(name), key[1], name)
    grid = np.unique(np.concatenate([*known.values(), np.empty(0, np.int64)]))
    # Where a layer has every step, a slice: it is written several times as fast as by index.
    rows = {
        key: np.searchsorted(grid, numbers) if len(numbers) < len(grid) else slice(None)
        for key, numbers in known.items()
    }
    norm = np.full((len(grid), len(listed)), np.nan)
    states = np.full(norm.shape, State.NOT_SAMPLED, np.uint8)
    # NaN and Inf are measurements (the gradient was not finite), not gaps: they are counted apart.
    values: dict[Stat, NDArray[Any]] = {
        Stat.GRAD_NAN: np.zeros(norm.shape, bool),
        Stat.GRAD_INF: np.zeros(norm.shape, bool),
        Stat.GRAD_NORM: norm,
    }
    for column, (name, (given, state)) in enumerate(listed.items()):
        at = rows[keys[name]]
        states[at, column] = state
        if not np.isfinite(given).all():
            values[Stat.GRAD_NAN][at, column] = np.isnan(given) & (state == State.MEASURED)
            values[Stat.GRAD_INF][at, column] = np.isinf(given)
            given = np.where(np.isinf(given), np.nan, given)
        norm[at, column] = given
    return MemorySource(
        grid,
        tuple(Subject(Kind.PARAMETER, name, name) for name in listed),
        values,
        dict.fromkeys(values, states),
        scalars=as_scalars(scalars, len(grid)),
    )


def _norms(item: Any, name: str) -> tuple[NDArray[Any], Any]:
    """Norms, and the state of all or of each: no gradient where one is None (the norm is NaN)."""
    listed = each_step(item, name)
    state: Any = State.MEASURED
    if not isinstance(listed, np.ndarray) or listed.dtype == object:
        none = [norm is None for norm in listed]
        if any(none):
            state = np.where(none, np.uint8(State.NO_GRADIENT), np.uint8(State.MEASURED))
            listed = [math.nan if norm is None else norm for norm in listed]
    given = as_array(listed, name) if len(listed) else np.empty(0)
    if given.ndim != 1 or given.dtype.kind == "c":
        what = "complex numbers" if given.dtype.kind == "c" else kind_of(given)
        raise GradwatchError(f"Expected a norm for each step in {name!r}, got {what}.", Exit.USAGE)
    if given.size and (least := np.fmin.reduce(given)) < 0:
        raise GradwatchError(
            f"Expected norms of at least 0 in {name!r}, got {least:g}.", Exit.USAGE
        )
    return given, state


def as_steps(steps: Any, length: int, entry: str) -> NDArray[np.int64]:
    """Step numbers, whole and increasing, one for each of `length` values; None: from 0."""
    if steps is None:
        return np.arange(length)
    wanted = f"{length} increasing whole numbers as the steps of {entry!r}"
    if isinstance(steps, (*TEXT, Mapping)) or not isinstance(steps, Iterable):
        raise refused(wanted, steps)
    listed = each_step(steps, "steps")
    given = as_array(listed, "steps") if len(listed) else np.empty(0, np.int64)
    with np.errstate(invalid="ignore"):
        whole = given.astype(np.int64) if given.dtype.kind in "fiu" else np.empty(0, np.int64)
    # A number that is not whole, not finite or too large does not come back from 64 bits.
    if whole.shape != (length,) or (whole != given).any() or (np.diff(whole) <= 0).any():
        raise refused(wanted, given.tolist())
    return whole


def as_scalars(scalars: Any, length: int) -> dict[str, NDArray[np.float64]]:
    """Logged numbers by name, one for each step; None: nothing was logged there."""
    table = {}
    if scalars is not None and not isinstance(scalars, Mapping):
        raise refused("numbers by name as scalars ({'loss': [number, …]})", scalars)
    for name, item in by_name(scalars or {}, "scalars by name").items():
        listed = [np.nan if number is None else number for number in each_step(item, name)]
        given = as_array(listed, name) if listed else np.empty(0)
        if given.shape != (length,) or given.dtype.kind == "c":
            raise GradwatchError(
                f"Expected {length} numbers in {name!r}, one for each step, got "
                f"{kind_of(given)} of {given.dtype}.",
                Exit.USAGE,
            )
        table[name] = given.astype(np.float64)
    return table
