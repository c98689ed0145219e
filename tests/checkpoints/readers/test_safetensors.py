"""safetensors: every type is read right, and every lie is refused with a sentence."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.checkpoints.files import bfloat16, floats, safetensors_bytes, write_safetensors

from gradwatch.checkpoints import scan
from gradwatch.checkpoints.readers import open_index
from gradwatch.errors import Exit, GradwatchError


def test_reads_what_the_library_writes(tmp_path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a.weight": rng.standard_normal((5, 7)).astype(np.float32),
        "b.weight": rng.standard_normal((3, 2, 2)).astype(np.float16),
        "c": np.arange(6, dtype=np.int64),
        "flag": np.array([True, False, True]),
        "empty": np.zeros((0, 4), np.float32),
        "number": np.array(2.5, np.float64),
    }
    save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "np"})
    run = scan(tmp_path / "m.safetensors")
    assert set(run.names) == set(arrays)
    for name, array in arrays.items():
        assert run.column("weight_count", name)[0] == array.size
        if array.size:
            exact = array.astype(np.float64)
            assert run.column("weight_mean", name)[0] == pytest.approx(exact.mean(), rel=1e-6)
            assert run.column("weight_max", name)[0] == exact.max()


def test_names_are_in_natural_order(tmp_path) -> None:
    names = {f"layers__{i}__weight": np.ones((2, 2)) for i in (10, 2, 1)}
    run = scan(floats(tmp_path / "m.safetensors", **names))
    assert run.names == ("layers.1.weight", "layers.2.weight", "layers.10.weight")


def test_shards_with_an_index_are_one_checkpoint(tmp_path) -> None:
    floats(tmp_path / "model-1.safetensors", a=np.ones((2, 3)))
    write_safetensors(tmp_path / "model-2.safetensors", {"b": ("bfloat16", bfloat16(np.ones(5)))})
    table = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    (tmp_path / "config.json").write_text("{}")
    run = scan(tmp_path)
    assert run.names == ("a", "b")
    assert run.column("weight_mean", "b")[0] == 1.0
    assert run.info["files"] == 2


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"a": "../x.safetensors"}, "not a plain file name"),
        ({"a": "/etc/passwd"}, "not a plain file name"),
        ({"a": "gone.safetensors"}, "no file"),
        ({"a": "s.safetensors", "z": "s.safetensors"}, "no shard holds"),
        ({"z": "s.safetensors"}, "does not know"),
        ({"a": "model.safetensors.index.json"}, "no usable weight_map"),
        ({"a": 3}, "no usable weight_map"),
        ({}, "no usable weight_map"),
    ],
)
def test_a_lying_index_is_refused(tmp_path, table, word) -> None:
    floats(tmp_path / "s.safetensors", a=np.ones(3))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    with pytest.raises(GradwatchError, match=word):
        open_index(tmp_path)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "header of 2^63": b"\0\0\0\0\0\0\0\x80{" + b" " * 20,
    "cut in the header": safetensors_bytes({"a": entry()}, b"12345678")[:30],
    "cut in the data": safetensors_bytes({"a": entry()}, b"1234567"),
    "bytes behind": safetensors_bytes({"a": entry()}, b"123456789"),
    "overlap": safetensors_bytes({"a": entry(), "b": entry(offsets=(4, 12))}, b"x" * 12),
    "hole": safetensors_bytes({"a": entry(), "b": entry(offsets=(12, 20))}, b"x" * 20),
    "past the end": safetensors_bytes({"a": entry(offsets=(0, 1 << 40))}, b"x" * 8),
    "negative": safetensors_bytes({"a": entry(offsets=(-8, 0))}, b""),
    "backwards": safetensors_bytes({"a": entry(offsets=(8, 0))}, b"x" * 8),
    "wrong size": safetensors_bytes({"a": entry(shape=(3,))}, b"x" * 8),
    "huge dimension": safetensors_bytes({"a": entry(shape=(0, 1 << 40), offsets=(0, 0))}),
    "overflowing shape": safetensors_bytes({"a": entry(shape=(1 << 32, 1 << 32))}, b"x" * 8),
    "5000 dimensions": safetensors_bytes({"a": entry(shape=(1,) * 5000, offsets=(0, 4))}, b"x" * 4),
    "negative shape": safetensors_bytes({"a": entry(shape=(-2, -1))}, b"x" * 8),
    "float shape": safetensors_bytes({"a": {**entry(), "shape": [2.0]}}, b"x" * 8),
    "true as a size": safetensors_bytes({"a": {**entry(), "shape": [True, 2]}}, b"x" * 8),
    "text as offsets": safetensors_bytes({"a": {**entry(), "data_offsets": "08"}}, b"x" * 8),
    "no shape": safetensors_bytes({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, b"x" * 8),
    "entry is a list": safetensors_bytes({"a": [1]}, b""),
    "header is a list": safetensors_bytes(b"[1, 2, 3, 4]", b""),
    "key twice": safetensors_bytes(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"
    ),
    "NaN": safetensors_bytes(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', b"1234"),
    "not UTF-8": safetensors_bytes(
        b'{"\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"
    ),
    "deep": safetensors_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "many brackets": safetensors_bytes(b'{"a":[' + b"[]," * 1_100_000 + b"[]]}"),
    "long number": safetensors_bytes(b'{"a":' + b"9" * 100_000 + b"}"),
    "long name": safetensors_bytes({"x" * 5000: entry()}, b"x" * 8),
    "empty name": safetensors_bytes({"": entry()}, b"x" * 8),
    "empty file": b"",
    "nine bytes": b"\x01\0\0\0\0\0\0\0{",
    "text": b"this is not a checkpoint at all, is it?",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_a_sentence(tmp_path, name) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(GradwatchError) as caught:
        scan(path)
    assert caught.value.exit_code == Exit.UNREADABLE
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 500 + len(str(path))


def test_an_unknown_type_is_listed_not_guessed(tmp_path) -> None:
    header = {"a": entry(), "x": {"dtype": "F4", "shape": [4], "data_offsets": [8, 10]}}
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(header, b"\0" * 10))
    index = open_index(path)
    assert [tensor.name for tensor in index.tensors] == ["a"]
    assert "F4" in index.left_out["x"]


def test_elements_that_are_not_aligned_are_read(tmp_path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}  '
    data = np.array([1, 2, 6], np.float32).tobytes()
    for pad in range(4):
        path = tmp_path / f"{pad}.safetensors"
        path.write_bytes(safetensors_bytes(header + b" " * pad, data))
        assert scan(path).column("weight_mean", "a")[0] == 3.0
