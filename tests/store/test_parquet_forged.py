"""Forged sealed files whose checksums hold: a sentence, bounded memory and time, no wrong value."""

import io
import json
import pickle
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.forging import (
    BINARY,
    LIST,
    STRUCT,
    Bytes,
    Forgery,
    Tree,
    columns,
    facts,
    fitting,
    reforged,
    repaged,
    sound,
    struct,
    with_footer,
    written,
)

from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import (
    Column,
    Lists,
    Unreadable,
    Words,
    encoded,
    read_columns,
    read_footer,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
MORE_MEMORY = 3 * GIB // 2
SECONDS = 5  # of the processor
RAW, ENTRY = sound()
NORM, COUNT, SKETCH, TEXT = 3, 5, 6, 9
"""Positions of columns in the sound file."""


# -- footers that claim ----------------------------------------------------------------------------


def field(column: int, number: int, value: int) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        columns(tree)[column][number] = [6, value]

    return change


def no_grids(tree: Tree) -> None:
    facts(tree, {"grids": []})


def rows_are(rows: int, *, group: bool = True) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree[3][1] = rows
        if group:
            tree[4][1][1][0][3][1] = rows

    return change


def type_is(number: int) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree[2][1][1][NORM + 1][1] = [5, number]
        columns(tree)[NORM][1] = [5, number]

    return change


def groups(count: int) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree[4][1][1] = [written(group) for group in tree[4][1][1]] * count

    return change


def same_name(tree: Tree) -> None:
    tree[2][1][1][NORM + 1][4][1] = b"grad_skewness"
    columns(tree)[NORM][3][1][1] = [b"grad_skewness"]


def many_columns(tree: Tree) -> None:
    root, *elements = tree[2][1][1]
    root[5][1] = 100_000
    tree[2][1][1] = [root, *[written(elements[NORM])] * 100_000]
    (group,) = tree[4][1][1]
    group[1][1][1] = [written(group[1][1][1][NORM])] * 100_000


def nested(depth: int) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        root, *elements = tree[2][1][1]
        root[5][1] = 1
        inner = {3: [5, 1], 4: [BINARY, b"a"], 5: [5, 1]}
        tree[2][1][1] = [root, *[written(inner)] * depth, elements[NORM]]
        (group,) = tree[4][1][1]
        group[1][1][1] = [group[1][1][1][NORM]]
        columns(tree)[0][3][1][1] = [b"a"] * depth + [b"grad_norm"]

    return change


def claims_a_list(number: int) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree[number] = [LIST, [STRUCT, 2**31 - 1]]

    return change


def arrow_schema(tree: Tree) -> None:
    tree[5][1][1].append({1: [BINARY, b"ARROW:schema"], 2: [BINARY, b"////"]})


def elsewhere(tree: Tree) -> None:
    (group,) = tree[4][1][1]
    group[1][1][1][NORM][1] = [BINARY, b"/etc/passwd"]


FOOTERS: dict[str, Callable[[Tree], Any]] = {
    "2^40 rows": rows_are(2**40),
    "2^22 rows": rows_are(2**22),
    "2^22 rows, no grids": lambda tree: (no_grids(tree), rows_are(2**22)(tree)),
    "rows below zero": rows_are(-1),
    "rows of the group": rows_are(13, group=False),
    "2^40 values": field(NORM, 5, 2**40),
    "2^40 values in lists": field(SKETCH, 5, 2**40),
    "2^24 values in lists": field(SKETCH, 5, 2**24),
    "unpacked to 2^40": field(NORM, 6, 2**40),
    "unpacked to 2^20": field(NORM, 6, 2**20),
    "texts unpacked to 2^40": field(TEXT, 6, 2**40),
    "unpacked below zero": field(NORM, 6, -5),
    "packed in 2^40": field(NORM, 7, 2**40),
    "packed below zero": field(NORM, 7, -1),
    "packed in all there is": field(NORM, 7, len(RAW)),
    "offset outside": field(NORM, 9, 2**40),
    "offset below zero": field(NORM, 9, -8),
    "offset in the footer": field(NORM, 9, len(RAW) - 100),
    "offset of the column before": field(NORM, 9, 60),
    "dictionary outside": field(TEXT, 11, 2**40),
    "dictionary at the start": field(TEXT, 11, 4),
    "two row groups": groups(2),
    "10^4 row groups": groups(10_000),
    "no row group": groups(0),
    "two columns of one name": same_name,
    **{f"type {number} for numbers": type_is(number) for number in (0, 1, 2, 3, 4, 6, 7, 99)},
    "10^5 columns": many_columns,
    "nested 100 deep": nested(100),
    "nested 4,000 deep": nested(4_000),
    "nested 10^5 deep": nested(100_000),
    "a list of 2^31 columns": claims_a_list(2),
    "a list of 2^31 groups": claims_a_list(4),
    "a list of 2^31 facts": claims_a_list(5),
    "a schema of Arrow's": arrow_schema,
    "a column in another file": elsewhere,
    "no facts": lambda tree: tree.pop(5),
}


def with_numbers(change: Callable[[Tree], None]) -> Callable[[Tree], None]:
    """Change what the footer says of a column of whole numbers."""

    def on_tree(tree: Tree) -> None:
        change(columns(tree)[COUNT])

    return on_tree


EITHER: dict[str, Callable[[Tree], None]] = {
    # Over such footers pyarrow ends the process when it is asked about the column.
    "extremes without a length": with_numbers(lambda c: c[12][1].update({5: [BINARY, b""]})),
    "extremes of another length": with_numbers(
        lambda c: c[12][1].update({5: [BINARY, b"abc"], 6: [BINARY, b"abc"]})
    ),
    "levels counted otherwise": with_numbers(
        lambda c: c.update({16: [STRUCT, {2: [LIST, [6, [1] * 9]], 3: [LIST, [6, [1] * 9]]}]})
    ),
    "no extremes": with_numbers(lambda c: c.pop(12) and None),
    "other encodings": with_numbers(lambda c: c.update({2: [LIST, [5, [99]]]})),
}
"""Footers with mistakes that do not concern the values: refused, or read as they are."""
GRIDS: dict[str, Any] = {
    "2^40 rows": [[[[0, 1, 2**40]], [[0, 1, 1]]]],
    "2^27 rows": [[[[0, 1, 2**27]], [[0, 1, 1]]]],
    "2^26 steps of nobody": [[[[0, 1, 2**26]], []], [[[0, 2, 6]], [[3, 4, 2]]]],
    "many of nobody": [[[[0, 1, 2**23]], []]] * 50,
    "rows below zero": [[[[0, 1, -12]], [[0, 1, -1]]]],
    "other rows": [[[[0, 1, 5]], [[0, 1, 2]]]],
    "fractions": [[[[0, 1, 6.5]], [[0, 1, 2]]]],
    "truth": [[[[0, 1, True]], [[0, 1, 12]]]],
    "texts": [["abc", "abc"]],
    "beyond 64 bits": [[[[2**62 - 1, 2**62 - 1, 6]], [[0, 1, 2]]]],
    "subjects below zero": [[[[0, 1, 6]], [[-1, 1, 2]]]],
    "subjects beyond 32 bits": [[[[0, 1, 6]], [[2**32, 1, 2]]]],
    "four parts": [[[[0, 1, 6]], [[0, 1, 2]], [[1, 0, 6]], []]],
    "one part": [[[[0, 1, 12]]]],
    "empty buckets": [[[[0, 1, 6]], [[0, 1, 2]], [[0, 0, 6]]]],
    "buckets below zero": [[[[0, 1, 6]], [[0, 1, 2]], [[-1, 0, 5], [11, 0, 1]]]],
    "buckets beyond 64 bits": [[[[0, 1, 6]], [[0, 1, 2]], [[2**61, 0, 6]]]],
    "nothing": None,
    "a number": 7,
}
FACTS = {
    "no JSON": b"\xff\xfe",
    "deep JSON": b'{"grids": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "a list": b"[]",
    "a long number": b'{"grids": [[[[0, 1, ' + b"9" * 100_000 + b"]], []]]}",
    "no grids": b"{}",
    "a million stretches": b'{"grids": [[[' + b"[0,0,1]," * 1_000_000 + b"[0,0,1]],[]]]}",
}


# -- pages that claim ------------------------------------------------------------------------------


def page(name: str, *path: int, value: int) -> Callable[[], Forgery]:
    def change(head: Tree, body: bytes) -> None:
        *above, last = path
        for step in above:
            head = head[step][1]
        head[last] = [5, value]

    return lambda: repaged(RAW, ENTRY, name, change)


def bomb(name: str, size: int) -> Callable[[], Forgery]:
    """A page that is a few kilobytes of zstd and unpacks to `size` zeros."""

    def change(head: Tree, body: bytes) -> bytes:
        part = pa.compress(bytes(16 << 20), "zstd", asbytes=True)
        packed = part * (size >> 24)
        head[2][1], head[3][1] = size, len(packed)
        head[4] = [5, int(np.int32(np.uint32(zlib.crc32(packed))))]
        return packed

    def forged() -> Forgery:
        raw, entry = repaged(RAW, ENTRY, name, change)
        zstd = lambda tree: [column.update({4: [5, 6]}) for column in columns(tree)]  # noqa: E731
        return reforged(raw, entry, zstd)

    return forged


def many_pages() -> Forgery:
    """Pages of nothing in front of a column's own."""
    head, _ = struct(RAW, columns(struct(RAW, len(RAW) - ENTRY.footer)[0])[SKETCH][9][1])
    empty: Tree = {number: list(part) for number, part in head.items()}
    empty[2], empty[3], empty[4] = [5, 0], [5, 0], [5, 0]
    empty[5] = [STRUCT, {**head[5][1], 1: [5, 0]}]
    count, first = 200_000, written(empty)

    def change(own: Tree, body: bytes) -> bytes:
        saved = written(own) + body
        own.clear()
        own.update(empty)
        return first * (count - 1) + saved

    raw, entry = repaged(RAW, ENTRY, "grad_sketch", change)
    unpacked = count * len(first) + columns(struct(RAW, len(RAW) - ENTRY.footer)[0])[SKETCH][6][1]
    return reforged(raw, entry, field(SKETCH, 6, unpacked))


PAGES: dict[str, Callable[[], Forgery]] = {
    "a page of 2^31": page("grad_norm", 2, value=2**31 - 1),
    "a page below zero": page("grad_norm", 2, value=-(2**31)),
    "a page beyond 32 bits": page("grad_norm", 2, value=2**33 + 96),
    "a page packed in 2^31": page("grad_norm", 3, value=2**31 - 1),
    "a page packed below zero": page("grad_norm", 3, value=-1),
    "a page of 2^31 values": page("grad_norm", 5, 1, value=2**31 - 1),
    "a page of values below zero": page("grad_norm", 5, 1, value=-1),
    "a page of 2^31 lists": page("grad_sketch", 5, 1, value=2**31 - 1),
    "a dictionary of 2^31": page("name", 7, 1, value=2**31 - 1),
    "a dictionary unpacked to 2^31": page("name", 2, value=2**31 - 1),
    "another checksum": page("grad_norm", 4, value=1),
    "no checksum": lambda: repaged(RAW, ENTRY, "grad_norm", lambda head, _: head.pop(4) and None),
    "another kind of page": page("grad_norm", 1, value=1),
    "an unknown kind of page": page("grad_norm", 1, value=77),
    "another encoding": page("grad_norm", 5, 2, value=7),
    "levels of another encoding": page("grad_norm", 5, 3, value=4),
    "no head": lambda: repaged(RAW, ENTRY, "grad_norm", lambda head, _: head.pop(5) and None),
    "a bomb of numbers": bomb("grad_norm", 1 << 30),
    "a bomb of texts": bomb("name", 1 << 30),
    "a bomb of lists": bomb("grad_sketch", 1 << 30),
    "a bomb below the limit": bomb("name", 112 << 20),
    "200,000 pages": many_pages,
}


# -- whole files -----------------------------------------------------------------------------------


def foreign(**given: Any) -> Forgery:
    """A file of pyarrow's with these columns, that says it is ours."""
    options = {name: given.pop(name) for name in list(given) if name.startswith("_")}
    table = pa.table(given)
    file = io.BytesIO()
    settings: dict[str, Any] = {"write_page_checksum": True, "store_schema": False}
    settings["compression"] = "lz4"
    settings |= {name[1:]: value for name, value in options.items()}
    rows = settings.pop("row_group_size", None)
    with pq.ParquetWriter(file, table.schema, **settings) as writer:
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata({b"gradwatch": b'{"grids": []}'})
    raw = file.getvalue()
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    return fitting(raw, replace(ENTRY, rows=table.num_rows, footer=footer))


def ours(**given: Column | Words) -> Forgery:
    raw, entry = encoded("rows/grad/1.parquet", given, steps=np.arange(1))
    return bytes(raw), entry


def one_long_text() -> Forgery:
    """A megabyte of text that stands in four million rows."""
    return ours(text=Words(np.zeros(1 << 22, np.int32), ["x" * (1 << 20)]))


STEPS = [1, 2, 3]
FILES: dict[str, Callable[[], Forgery]] = {
    "texts for numbers": lambda: ours(grad_norm=["a", "b"]),
    "numbers for texts": lambda: ours(text=np.arange(3)),
    "whole numbers for reals": lambda: ours(grad_norm=np.arange(3)),
    "reals for whole numbers": lambda: foreign(step=np.arange(3.0)),
    "reals for counts": lambda: ours(grad_nan=np.arange(3.0)),
    "lists for numbers": lambda: ours(grad_norm=np.ones((3, 2))),
    "numbers for lists": lambda: ours(negative=np.arange(3, dtype=np.uint64)),
    "texts in lists": lambda: foreign(negative=[["a"], ["b"]]),
    "lists with holes": lambda: foreign(negative=pa.array([[1, None]], pa.list_(pa.uint64()))),
    "lists of lists": lambda: foreign(negative=pa.array([[[1]]])),
    "truth values": lambda: foreign(grad_norm=[True, False]),
    "bytes": lambda: foreign(grad_norm=[b"\xff"]),
    "bytes for texts": lambda: foreign(text=[b"\xff"]),
    "a struct": lambda: foreign(grad_norm=[{"a": 1.0, "b": 2.0}]),
    "a map": lambda: foreign(grad_norm=pa.array([[(1, 2.0)]], pa.map_(pa.int64(), pa.float64()))),
    "moments": lambda: foreign(grad_norm=pa.array([1], pa.timestamp("ns"))),
    "decimals": lambda: foreign(step=pa.array([1], pa.decimal128(20, 2))),
    "half floats": lambda: foreign(grad_norm=np.ones(2, np.float16)),
    "nothing but null": lambda: foreign(grad_norm=pa.nulls(3)),
    "texts on texts": lambda: foreign(
        text=["a" * 1000, "a" * 1000],
        _use_dictionary=False,
        _column_encoding={"text": "DELTA_BYTE_ARRAY"},
    ),
    "pages of version 2": lambda: foreign(step=STEPS, _data_page_version="2.0"),
    "gzip": lambda: foreign(grad_norm=[1.0, 2.0], _compression="gzip"),
    "brotli": lambda: foreign(grad_norm=[1.0, 2.0], _compression="brotli"),
    "no page checksums": lambda: foreign(grad_norm=[1.0, 2.0], _write_page_checksum=False),
    "several groups": lambda: foreign(step=STEPS, _row_group_size=1),
    "a megabyte in four million rows": one_long_text,
    "a footer of 2^31": lambda: with_footer(
        RAW[: -ENTRY.footer], RAW[-ENTRY.footer : -8], ENTRY, 2**31
    ),
    "a footer of 2^32 - 1": lambda: with_footer(
        RAW[: -ENTRY.footer], RAW[-ENTRY.footer : -8], ENTRY, 2**32 - 1
    ),
    "an empty footer": lambda: with_footer(RAW, b"", ENTRY),
    "a footer of zeros": lambda: with_footer(RAW, bytes(1000), ENTRY),
    "a footer of ones": lambda: with_footer(RAW, b"\xff" * 1000, ENTRY),
    "a footer of structs": lambda: with_footer(RAW, b"\x1c" * 1_000_000, ENTRY),
    "encrypted": lambda: fitting(RAW[:-1] + b"E", ENTRY),
}


def forgeries() -> Iterator[tuple[str, Callable[[], Forgery]]]:
    for name, change in FOOTERS.items():
        yield f"footer: {name}", lambda change=change: reforged(RAW, ENTRY, change)
    for name, change in EITHER.items():
        yield f"either: {name}", lambda change=change: reforged(RAW, ENTRY, change)
    for name, grids in GRIDS.items():
        value = json.dumps({"grids": grids}).encode()
        yield f"grids: {name}", lambda value=value: reforged(RAW, ENTRY, lambda t: facts(t, value))
    for name, fact in FACTS.items():
        yield f"facts: {name}", lambda fact=fact: reforged(RAW, ENTRY, lambda t: facts(t, fact))
    for name, build in PAGES.items():
        yield f"page: {name}", build
    for name, build in FILES.items():
        yield f"file: {name}", build


FORGERIES = dict(forgeries())


# -- the trial -------------------------------------------------------------------------------------


def all_columns(raw: bytes, entry: SealedFile | None) -> dict[str, Column | str]:
    """Every column, or the sentence why it cannot be had; the footer's under ""."""
    file = Bytes(raw)
    try:
        footer = read_footer(file, entry)
    except Unreadable as error:
        return {"": str(error)}
    found: dict[str, Column | str] = {}
    for name in sorted(footer.names):
        try:
            found[name] = read_columns(file, footer, [name])[name]
        except Unreadable as error:
            found[name] = str(error)
    return found


TRUTH = all_columns(RAW, ENTRY)


def same(column: Any, other: Any) -> bool:
    if isinstance(other, Lists):
        return len(column) == 2 and all(map(np.array_equal, column, other))
    if isinstance(other, Words):
        return isinstance(column, Words) and list(column) == list(other)
    return column.dtype == other.dtype and np.array_equal(column, other, equal_nan=True)


def memory(name: str) -> int:
    """Bytes that this process has (`VmSize`), or had at most (`VmHWM`)."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1024


def confined(folder: Path) -> None:
    """In a process of its own: read every forgery with little memory, and say what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + MORE_MEMORY,) * 2)
    for path in sorted(folder.iterdir()):
        name, raw, entry = pickle.loads(path.read_bytes())
        print(json.dumps({"begun": name}), flush=True)
        before = time.process_time()
        columns_by_trust = [all_columns(raw, given) for given in (entry, None)]
        seconds = time.process_time() - before
        refusals = [
            [text for text in found.values() if isinstance(text, str)] for found in columns_by_trust
        ]
        wrong = [
            column
            for found in columns_by_trust
            for column, values in found.items()
            if not isinstance(values, str) and not same(values, TRUTH.get(column))
        ]
        outcome = {"seconds": seconds, "said": refusals, "wrong": wrong, "peak": memory("VmHWM")}
        print(json.dumps(outcome), flush=True)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("forged")
    for number, (name, build) in enumerate(FORGERIES.items()):
        raw, entry = build()
        (folder / f"{number:03}").write_bytes(pickle.dumps((name, bytes(raw), entry)))
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from tests.store.test_parquet_forged import confined\n"
        "confined(Path(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), *sys.path],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    told = {begun["begun"]: rest for begun, rest in zip(lines[::2], lines[1::2], strict=False)}
    if done.returncode or len(told) < len(FORGERIES):
        told["died"] = {"at": lines[-1], "code": done.returncode, "errors": done.stderr[-2000:]}
    return told


def test_the_reader_survives_all_of_them_in_little_memory(outcomes) -> None:
    assert "died" not in outcomes, outcomes["died"]
    peaks = [outcome["peak"] for outcome in outcomes.values()]
    assert max(peaks) - peaks[0] < 700 << 20


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_refused_with_a_sentence(name: str, outcomes) -> None:
    outcome = outcomes[name]
    assert outcome["seconds"] < SECONDS
    assert not outcome["wrong"]
    for said in outcome["said"]:  # with its entry in the manifest, and with the manifest lost
        assert said or name.startswith("either")
        for sentence in said:
            assert len(sentence) < 300
            assert sentence.isprintable()


def test_the_file_they_are_forged_from_is_sound() -> None:
    assert not [text for text in TRUTH.values() if isinstance(text, str)]
    assert len(TRUTH) == 10
    again, entry = reforged(RAW, ENTRY, lambda tree: None)
    assert (again, entry) == (RAW, ENTRY)
