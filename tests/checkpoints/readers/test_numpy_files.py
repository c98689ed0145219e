"""`.npy` and `.npz`, stored and compressed; object arrays are refused."""

import numpy as np
import pytest
from tests.checkpoints.files import zip_bytes

from gradwatch.checkpoints import scan
from gradwatch.checkpoints.readers import open_index
from gradwatch.errors import GradwatchError


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_right(tmp_path, save) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((40, 30)).astype(np.float32),
        "f": np.asfortranarray(rng.standard_normal((5, 4))),
        "i": np.arange(10, dtype=np.int32),
        "h": rng.standard_normal(8).astype(np.float16),
        "b": np.array([True, False]),
        "zero": np.zeros((0, 3)),
    }
    save(tmp_path / "m.npz", **arrays)
    run = scan(tmp_path / "m.npz")
    assert set(run.names) == set(arrays)
    for name, array in arrays.items():
        if array.size:
            exact = array.astype(np.float64)
            mean = run.column("weight_mean", name)[0]
            assert mean == pytest.approx(exact.mean(), rel=1e-6, abs=1e-9)
            assert run.column("weight_max", name)[0] == exact.max()


def test_one_array_is_named_after_its_file(tmp_path) -> None:
    np.save(tmp_path / "weights.npy", np.ones((2, 3)))
    assert scan(tmp_path / "weights.npy").names == ("weights",)


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


HOSTILE = {
    "objects": npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"\x80\x04N."),
    "structure": npy(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n"),
    "call": npy(b"{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }\n"),
    "huge": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }\n"),
    "wrong size": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", b"1234"),
    "header too long": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{}",
    "unknown version": b"\x93NUMPY\x09\x00\x10\x00" + b"{" * 16,
    "big-endian": npy(b"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }\n", b"1234"),
    "short": b"\x93NUMPY",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays_end_in_a_sentence(tmp_path, name) -> None:
    (tmp_path / "a.npy").write_bytes(HOSTILE[name])
    with pytest.raises(GradwatchError):
        scan(tmp_path / "a.npy")
    (tmp_path / "a.npz").write_bytes(zip_bytes([("x.npy", HOSTILE[name])]))
    with pytest.raises(GradwatchError):
        scan(tmp_path / "a.npz")


def test_a_bomb_is_refused_by_its_size(tmp_path) -> None:
    header = npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (3221225472,), }\n")
    small = zip_bytes(
        [("x.npy", header + bytes(1 << 20))], method=8, sizes={"x.npy": len(header) + (3 << 30)}
    )
    (tmp_path / "a.npz").write_bytes(small)
    with pytest.raises(GradwatchError, match="grow"):
        open_index(tmp_path / "a.npz")


def test_compressed_bytes_that_do_not_fit_their_size_or_checksum_are_refused(tmp_path) -> None:
    header = npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000,), }\n")
    for lie in ({"sizes": {"x.npy": len(header) + 999}}, {"crcs": {"x.npy": 7}}):
        raw = zip_bytes([("x.npy", header + bytes(1000))], method=8, **lie)
        (tmp_path / "a.npz").write_bytes(raw)
        with pytest.raises(GradwatchError):
            scan(tmp_path / "a.npz")


def test_a_wrong_checksum_of_a_stored_member_is_refused(tmp_path) -> None:
    np.savez(tmp_path / "m.npz", w=np.ones((64, 64)))
    raw = bytearray((tmp_path / "m.npz").read_bytes())
    raw[2000] ^= 1
    (tmp_path / "m.npz").write_bytes(bytes(raw))
    with pytest.raises(GradwatchError, match="checksum"):
        scan(tmp_path / "m.npz")
