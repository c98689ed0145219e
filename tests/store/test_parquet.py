"""Sealed files: what is written is read, by us and by others, and nothing that was changed."""

import io
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.store.forging import Bytes, columns, sound, struct

from gradwatch.store.manifest import SealedFile, as_stretches, numbers_of
from gradwatch.store.parquet import (
    Column,
    Grid,
    Lists,
    RandomAccess,
    Unreadable,
    Words,
    encoded,
    read_columns,
    read_footer,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(11)
ODD_REALS = [0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, 1.7976931348623157e308, -2.5]
ODD_SINGLES = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3.4028235e38, -2.5], np.float32)
ODD_TEXTS = ["", "a", "NaN", "größer 🜁", "tab\tline\nzero\0end", "'\"\\", "x" * 70_000, "a"]
BIG = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 7, 8, 9], np.uint64)
EIGHT: dict[str, Column] = {
    "step": np.array([-5, 0, 3, 3, 2**40, 1, 1, -(2**62)]),
    "subject": np.array([0, 1, 2**31, 2**32 - 1, 4, 5, 6, 7], np.uint32),
    "state": np.array([0, 1, 255, 128, 4, 5, 6, 7], np.uint8),
    "grad_norm_count": np.array([0, 1, 2**15, 2**16 - 1, 4, 5, 6, 7], np.uint16),
    "rank": np.array([-1, 1, -(2**31), 2**31 - 1, 4, 5, 6, 7], np.int32),
    "grad_norm": np.array(ODD_REALS),
    "grad_skewness": ODD_SINGLES,
    "grad_nan": BIG,
    "grad_sketch": RNG.normal(size=(8, 32)).astype(np.float32),
    "negative": Lists(
        np.array([0, 0, 3, 3, 4, 9, 9, 10, 10]), np.arange(10).astype(np.uint64) + BIG[3]
    ),
    "details": ODD_TEXTS,
}


def sealed(given: Mapping[str, Column | Words], **more: Any) -> tuple[bytes, SealedFile]:
    steps = given.get("step", np.zeros(0, np.int64))
    raw, entry = encoded("rows/grad/00001.parquet", given, steps=np.asarray(steps), **more)
    return bytes(raw), entry


def read_back(raw: bytes, entry: SealedFile | None) -> dict[str, Column]:
    footer = read_footer(Bytes(raw), entry)
    return read_columns(Bytes(raw), footer, sorted(footer.names))


def as_lists(column: Column) -> list[Any]:
    """Rows as plain values, NaN as a word, so that == tells whether two columns are the same."""
    if isinstance(column, list | Words):
        return list(column)
    if isinstance(column, Lists):
        bounds = zip(column.offsets[:-1], column.offsets[1:], strict=True)
        return [as_lists(column.values[begin:end]) for begin, end in bounds]
    if column.ndim == 2:
        return [as_lists(row) for row in column]
    return [repr(value) for value in column.tolist()]


def part(given: Mapping[str, Column], rows: slice) -> dict[str, Column]:
    """The same columns with fewer rows."""
    out: dict[str, Column] = {}
    for name, column in given.items():
        if isinstance(column, Lists):
            offsets = column.offsets[rows.start : rows.stop + 1]
            column = Lists(offsets - offsets[0], column.values[offsets[0] : offsets[-1]])
            out[name] = column
        else:
            out[name] = column[rows]
    return out


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("rows", [slice(0, 8), slice(1, 2), slice(3, 4), slice(0, 0), slice(2, 7)])
def test_every_kind_of_column_is_read_as_it_was_written(rows: slice, compression: str) -> None:
    given = part(EIGHT, rows)
    raw, entry = sealed(given, compression=compression)
    back = read_back(raw, entry)
    assert entry.rows == rows.stop - rows.start
    for name, column in given.items():
        assert as_lists(back[name]) == as_lists(column), name
        if isinstance(column, np.ndarray) and column.ndim == 1:
            assert np.asarray(back[name]).dtype == column.dtype, name


def test_a_lost_manifest_does_not_change_what_is_read() -> None:
    raw, entry = sealed(EIGHT)
    with_entry, without = read_back(raw, entry), read_back(raw, None)
    assert {n: as_lists(c) for n, c in with_entry.items()} == {
        n: as_lists(c) for n, c in without.items()
    }


@pytest.mark.parametrize("size", [1, 7, 50_001])
def test_long_columns_of_many_pages(size: int) -> None:
    offsets = np.append(0, np.cumsum(RNG.integers(0, 5, size)))
    given: dict[str, Column] = {
        "step": np.cumsum(RNG.integers(0, 9, size)),
        "subject": RNG.integers(0, 2**32, size).astype(np.uint32),
        "grad_norm": RNG.normal(size=size),
        "grad_hash": RNG.integers(0, 2**64, size, dtype=np.uint64),
        "positive": Lists(offsets, RNG.integers(0, 2**64, offsets[-1], dtype=np.uint64)),
        "details": [f"text {n * n} " * 3 for n in range(size)],
    }
    back = read_back(*sealed(given))
    for name, column in given.items():
        assert as_lists(back[name]) == as_lists(column), name


@pytest.mark.parametrize(
    "constant",
    [
        np.int64(-3),
        np.uint8(5),
        np.uint16(65535),
        np.uint64(2**64 - 1),
        np.uint32(0),
        np.float64(2.5),
    ],
)
def test_a_constant_column_is_read_from_the_footer_if_it_is_whole(constant: np.generic) -> None:
    raw, entry = sealed({"a_column": np.full(1000, constant)})
    footer = read_footer(Bytes(raw), entry)
    without_pages = Bytes(bytes(len(raw) - entry.footer) + raw[-entry.footer :])
    if constant.dtype.kind == "f":
        with pytest.raises(Unreadable):
            read_columns(without_pages, footer, ["a_column"])
        return
    column = read_columns(without_pages, footer, ["a_column"])["a_column"]
    assert np.asarray(column).dtype == constant.dtype
    assert np.array_equal(column, np.full(1000, constant))


def test_a_constant_with_null_in_between_is_none() -> None:
    values, valid = np.full(10, 4, np.uint64), np.arange(10) != 3
    raw, entry = sealed({"grad_nan": values}, valid={"grad_nan": valid})
    assert read_back(raw, entry)["grad_nan"].tolist() == [4, 4, 4, 0, 4, 4, 4, 4, 4, 4]


def test_null_is_nan_zero_or_an_empty_list() -> None:
    valid = np.array([True, False] * 4)
    given = {n: EIGHT[n] for n in ("grad_norm", "grad_skewness", "grad_nan", "grad_sketch")}
    raw, entry = sealed(given, valid=dict.fromkeys(given, valid))
    back = read_back(raw, entry)
    table = pq.read_table(io.BytesIO(raw))
    for name, column in given.items():
        assert table[name].is_valid().to_pylist() == valid.tolist()
        rows, own = as_lists(column), as_lists(back[name])
        assert own[::2] == rows[::2]
        nothing = {"grad_nan": "0", "grad_sketch": []}.get(name, "nan")
        assert own[1::2] == [nothing] * 4


def test_nulls_are_masked_where_that_is_asked_for() -> None:
    valid = np.array([True, False] * 4)
    given = {n: EIGHT[n] for n in ("step", "grad_norm", "grad_nan")}
    raw, entry = sealed(given, valid=dict.fromkeys(("grad_norm", "grad_nan"), valid))
    footer = read_footer(Bytes(raw), entry)
    back = read_columns(Bytes(raw), footer, list(given), masked=True)
    assert not np.ma.isMaskedArray(back["step"])
    for name in ("grad_norm", "grad_nan"):
        assert (np.ma.getmaskarray(back[name]) == ~valid).all()
        assert as_lists(np.ma.getdata(back[name])[valid]) == as_lists(given[name])[::2]


def test_an_event_has_the_name_of_its_subject_and_a_row_the_number() -> None:
    raw, entry = sealed({"text": ["a", "b"], "subject": ["fc", ""]})
    assert as_lists(read_back(raw, entry)["subject"]) == ["fc", ""]
    for given in ({"subject": ["fc"]}, {"text": ["a"], "subject": np.ones(1, np.uint32)}):
        with pytest.raises(Unreadable, match="subject has values of another type"):
            read_back(*sealed(given))


def test_texts_may_be_given_as_words_with_their_codes() -> None:
    raw, entry = sealed({"name": Words(np.array([1, 0, 1, 1], np.uint32), ["loss", "größe"])})
    assert as_lists(read_back(raw, entry)["name"]) == ["größe", "loss", "größe", "größe"]
    assert pq.read_schema(io.BytesIO(raw)).field("name").type == pa.string()


def test_a_column_asked_for_is_all_that_is_read() -> None:
    raw, entry = sealed({**EIGHT, "grad_mean": RNG.normal(size=8)})
    asked: list[tuple[int, int]] = []

    class Watched(Bytes):
        def read(self, length: int, offset: int) -> bytes:
            asked.append((length, offset))
            return super().read(length, offset)

    footer = read_footer(Watched(raw), entry)
    read_columns(Watched(raw), footer, ["grad_mean"])
    place = footer.columns["grad_mean"]
    assert asked == [(entry.footer, len(raw) - entry.footer), (place.size, place.offset)]
    with pytest.raises(KeyError):
        read_columns(Bytes(raw), footer, ["grad_std"])


# -- grids -----------------------------------------------------------------------------------------

GRIDS = [
    Grid(np.array([0, 2, 4, 9]), np.array([3, 7], np.uint32)),
    Grid(np.array([10]), np.array([2**32 - 1, 0, 5], np.uint32)),
    Grid(np.array([11, 12, 20, 22, 24]), np.array([1], np.uint32), np.array([2, 3])),
]


def test_grids_are_read_as_they_were_written() -> None:
    given = {"step": np.arange(13)}
    raw, entry = sealed(given, grids=GRIDS)
    footer = read_footer(Bytes(raw), entry)
    assert [grid.shape for grid in footer.grids] == [(4, 2), (1, 3), (2, 1)]
    for own, grid in zip(footer.grids, GRIDS, strict=True):
        assert own.steps.tolist() == grid.steps.tolist()
        assert own.ids.tolist() == grid.ids.tolist()
        assert own.ids.dtype == np.uint32
        assert (own.sizes is None) == (grid.sizes is None)
        assert own.sizes is None or own.sizes.tolist() == [2, 3]


def test_the_entry_names_the_distinct_steps_in_order() -> None:
    steps = np.array([9, 9, 4, 4, 5, 9, 6])
    assert numbers_of(sealed({"step": steps})[1].steps).tolist() == [4, 5, 6, 9]
    assert sealed({"step": steps[:0]})[1].steps == as_stretches(steps[:0]) == ()


# -- other programs --------------------------------------------------------------------------------


def test_other_programs_read_the_same_numbers(tmp_path: Any) -> None:
    pandas, polars, duckdb = map(pytest.importorskip, ("pandas", "polars", "duckdb"))
    path = tmp_path / "00001.parquet"
    raw, entry = sealed(EIGHT, valid={"grad_norm": np.arange(8) != 6})
    path.write_bytes(raw)
    own = read_back(raw, entry)
    found = duckdb.sql(f"select * from '{path}'")
    frames = {
        "pandas": pandas.read_parquet(path).to_dict("list"),
        "polars": polars.read_parquet(path).to_dict(as_series=False),
        "duckdb": dict(
            zip(found.columns, map(list, zip(*found.fetchall(), strict=True)), strict=True)
        ),
    }
    for program, frame in frames.items():
        assert list(frame) == list(EIGHT), program
        for name, column in own.items():
            theirs = [_plain(value) for value in frame[name]]
            assert theirs == as_lists(column), (program, name)


def _plain(value: Any) -> Any:
    if value is None:
        return "nan"
    if isinstance(value, str):
        return value
    if isinstance(value, list | np.ndarray):
        return [_plain(item) for item in value]
    return repr(value.item() if hasattr(value, "item") else value)


def test_sealing_and_reading_import_nothing_more_than_pyarrow() -> None:
    """An import in the writer's thread would be half done in a process forked meanwhile; and what
    pyarrow would import on its own, if it is there, is pandas: 50 MB and half a second."""
    script = (
        "import sys\n"
        "sys.path[:0] = sys.argv[1:]\n"
        "import numpy as np\n"
        "from tests.store import forging\n"
        "from gradwatch.store.parquet import available, read_columns, read_footer\n"
        "assert available()\n"
        "before = set(sys.modules)\n"
        "raw, entry = forging.sound()\n"
        "footer = read_footer(forging.Bytes(raw), entry)\n"
        "read_columns(forging.Bytes(raw), footer, sorted(footer.names))\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *sys.path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# -- damage ----------------------------------------------------------------------------------------


def test_page_checksums_are_written_and_hold() -> None:
    raw, entry = sound()
    tree, _ = struct(raw, len(raw) - entry.footer)
    for column in columns(tree):
        head, body = struct(raw, column[9][1])
        changed = bytearray(raw)
        changed[body + head[3][1] // 2] ^= 16
        file = pq.ParquetFile(io.BytesIO(changed), page_checksum_verification=True)
        with pytest.raises(OSError, match="CRC"):
            file.read(columns=[column[3][1][1][0].decode()])


TRUTH = {name: as_lists(column) for name, column in read_back(*sound()).items()}


def seen(file: RandomAccess, entry: SealedFile | None, at: int) -> dict[str, Any]:
    """What a reader gets, of the column that has the byte at `at`: its values, or nothing."""
    try:
        footer = read_footer(file, entry)
    except Unreadable:
        return {}
    found: dict[str, Any] = {}
    for name, place in footer.columns.items():
        if not place.offset <= at < place.offset + place.size:
            continue
        try:
            found[name] = as_lists(read_columns(file, footer, [name])[name])
        except Unreadable:
            continue
    return found


def test_no_flipped_byte_becomes_another_value() -> None:
    raw, entry = sound()
    kept = set()
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1 << at % 8
        found = seen(Bytes(changed), entry, at)
        assert all(TRUTH[name] == column for name, column in found.items()), at
        kept |= found.keys()
    assert kept == {"state"}  # its one value stands in the footer, its pages are not looked at


def test_no_flipped_bit_of_a_page_becomes_another_value_without_a_manifest() -> None:
    raw, entry = sound()
    for place in read_footer(Bytes(raw), entry).columns.values():
        at = place.offset
        while at < place.offset + place.size:
            head, body = struct(raw, at)
            end = body + head[3][1]
            # Of a page, only the body has a checksum of its own.
            for bit in [*range(8 * at, 8 * body), *range(8 * body, 8 * end, 9)]:
                changed = bytearray(raw)
                changed[bit // 8] ^= 1 << bit % 8
                found = seen(Bytes(changed), None, at)
                assert all(TRUTH[name] == column for name, column in found.items()), bit
            at = end


def test_a_file_cut_at_any_byte_is_refused() -> None:
    raw, entry = sound()
    for length in range(len(raw)):
        for given in (entry, None):
            with pytest.raises(Unreadable):
                read_footer(Bytes(raw[:length]), given)


def test_a_file_that_cannot_be_read_is_refused() -> None:
    raw, entry = sound()

    class Gone(Bytes):
        def read(self, length: int, offset: int) -> bytes:
            return b""

    with pytest.raises(Unreadable, match="footer"):
        read_footer(Gone(raw), entry)
    with pytest.raises(Unreadable):
        read_footer(Gone(raw), None)
    with pytest.raises(Unreadable, match="grad_norm is damaged"):
        read_columns(Gone(raw), read_footer(Bytes(raw), entry), ["grad_norm"])


def test_another_file_in_its_place_is_refused() -> None:
    raw, entry = sound()
    given = {"grad_norm": np.arange(5.0)}
    other, its_entry = sealed(given)
    with pytest.raises(Unreadable, match=f"{len(other)} bytes instead of {len(raw)}"):
        read_footer(Bytes(other), entry)
    longer, _ = sealed({"grad_norm": np.arange(5.0)[::-1].copy()})
    if len(longer) == len(other):
        with pytest.raises(Unreadable, match="damaged"):
            read_columns(Bytes(longer), read_footer(Bytes(longer), its_entry), ["grad_norm"])
