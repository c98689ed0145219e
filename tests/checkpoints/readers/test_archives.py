"""Zip archives and folders of an enemy."""

import os
import struct

import numpy as np
import pytest
from tests.checkpoints.files import floats, tensor_pickle, torch_zip, zip_bytes

from gradwatch.checkpoints import scan
from gradwatch.checkpoints.readers import open_index
from gradwatch.errors import Exit, GradwatchError

GOOD = tensor_pickle((4,), (1,))
STORAGES = {"0": np.arange(4, dtype=np.float32).tobytes()}
MEMBERS = [("archive/data.pkl", GOOD), ("archive/data/0", STORAGES["0"])]


def patched(raw: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(raw)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


WHOLE = torch_zip(GOOD, STORAGES)
END = len(WHOLE) - 22
CENTRAL = WHOLE.index(b"PK\1\2")
LIES = {
    "cut": WHOLE[:-5],
    "data behind": WHOLE + b"x",
    "comment announced": patched(WHOLE, END + 20, "<H", 7),
    "comment": patched(WHOLE, END + 20, "<H", 3) + b"abc",
    "data in front": b"x" * 10 + WHOLE,
    "name twice": zip_bytes([*MEMBERS, MEMBERS[1]]),
    "two data.pkl": zip_bytes([*MEMBERS, ("other/data.pkl", GOOD)]),
    "no data.pkl": zip_bytes([("archive/data/0", b"1234")]),
    "other local name": torch_zip(GOOD, STORAGES, local_names={"archive/data/0": "archive/data/9"}),
    "wrong checksum": torch_zip(GOOD, STORAGES, crcs={"archive/data/0": 1234}),
    "deflated": torch_zip(GOOD, STORAGES, method=8),
    "method 99": patched(WHOLE, CENTRAL + 10, "<H", 99),
    "encrypted": patched(WHOLE, CENTRAL + 8, "<H", 1),
    "size lies": torch_zip(GOOD, STORAGES, sizes={"archive/data/0": 1 << 30}),
    "many members": patched(patched(WHOLE, END + 8, "<H", 60000), END + 10, "<H", 60000),
    "other disk": patched(WHOLE, END + 4, "<H", 1),
    "directory elsewhere": patched(WHOLE, END + 16, "<I", 3),
    "directory too long": patched(WHOLE, END + 12, "<I", 0xFFFFFF),
    "offset past the end": patched(WHOLE, CENTRAL + 42, "<I", 0xFFFFFF),
    "members over each other": patched(WHOLE, WHOLE.index(b"PK\1\2", CENTRAL + 1) + 42, "<I", 0),
    "big-endian": zip_bytes([*MEMBERS, ("archive/byteorder", b"big")]),
    "only an end": b"PK\5\6" + b"\0" * 18,
    "program": zip_bytes([*MEMBERS, ("archive/code/x.py", b"x"), ("archive/constants.pkl", b")")]),
    "arrays and more": zip_bytes([("a.npy", b"x"), ("b.txt", b"y")]),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_lying_archives_end_in_a_sentence(tmp_path, name) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(LIES[name])
    with pytest.raises(GradwatchError) as caught:
        scan(path)
    assert caught.value.exit_code == Exit.UNREADABLE
    assert str(caught.value).endswith(".")


def test_the_archive_the_lies_are_made_of_is_good(tmp_path) -> None:
    (tmp_path / "model.pt").write_bytes(WHOLE)
    assert scan(tmp_path / "model.pt").column("weight_mean", "weight")[0] == 1.5


def test_every_flipped_byte_of_a_storage_is_noticed(tmp_path) -> None:
    begin = WHOLE.index(STORAGES["0"])
    from gradwatch.checkpoints import ScanOptions
    from gradwatch.checkpoints.measure import measure_tensors

    for at in range(begin, begin + len(STORAGES["0"])):
        path = tmp_path / f"{at}.pt"
        path.write_bytes(patched(WHOLE, at, "<B", WHOLE[at] ^ 0x10))
        from gradwatch.checkpoints.readers.torch_files import read_zip

        with pytest.raises(GradwatchError, match="checksum"):
            measure_tensors(read_zip(path), ScanOptions(), full=True, hashed=False)


def test_odd_files_are_refused_without_waiting(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "device.pt").symlink_to("/dev/zero")
    (tmp_path / "loop.pt").symlink_to(tmp_path / "loop.pt")
    for name in ("pipe.safetensors", "device.pt", "loop.pt", "absent.pt", "folder.safetensors"):
        with pytest.raises(GradwatchError):
            open_index(tmp_path / name)
    with pytest.raises(GradwatchError):
        open_index("nul\0name")


def test_a_sparse_file_is_refused(tmp_path) -> None:
    path = tmp_path / "m.safetensors"
    header = b'{"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}}'
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + (1 << 40))
    with pytest.raises(GradwatchError, match="hardly any"):
        open_index(path)


def test_links_out_of_a_folder_are_not_followed(tmp_path) -> None:
    (tmp_path / "inside").mkdir()
    floats(tmp_path / "secret.safetensors", a=np.ones(3))
    (tmp_path / "inside/model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    with pytest.raises(GradwatchError, match="link to outside"):
        open_index(tmp_path / "inside")


def test_the_links_of_a_hub_cache_are_followed(tmp_path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots/abc").mkdir(parents=True)
    floats(tmp_path / "blobs/123", a=np.ones(3))
    link = tmp_path / "snapshots/abc/model.safetensors"
    link.symlink_to("../../blobs/123")
    assert [tensor.name for tensor in open_index(tmp_path / "snapshots/abc").tensors] == ["a"]


def test_a_link_given_by_the_user_is_followed(tmp_path) -> None:
    floats(tmp_path / "a.safetensors", a=np.ones(3))
    (tmp_path / "latest").symlink_to(tmp_path / "a.safetensors")
    assert [tensor.name for tensor in open_index(tmp_path / "latest").tensors] == ["a"]


def test_folders_without_a_clear_checkpoint_are_refused(tmp_path) -> None:
    with pytest.raises(GradwatchError, match="holds no checkpoint"):
        open_index(tmp_path)
    for name in ("a", "b"):
        floats(tmp_path / f"{name}.safetensors", a=np.ones(3))
    with pytest.raises(GradwatchError, match="name one of them"):
        open_index(tmp_path)


def test_distributed_metadata_that_lie_are_refused(tmp_path) -> None:
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings(action="ignore"):
        dcp.save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "c", no_dist=True)
    data = tmp_path / "c/__0_0.distcp"
    raw = data.read_bytes()
    data.write_bytes(raw[:-7])
    with pytest.raises(GradwatchError):
        open_index(tmp_path / "c")
    data.unlink()
    with pytest.raises(GradwatchError, match="no file"):
        open_index(tmp_path / "c")
    meta = (tmp_path / "c/.metadata").read_bytes()
    (tmp_path / "c/.metadata").write_bytes(meta.replace(b"__0_0.distcp", b"../_0.distcp"))
    with pytest.raises(GradwatchError, match="plain file name"):
        open_index(tmp_path / "c")
    for cut in range(0, len(meta), 37):
        (tmp_path / "c/.metadata").write_bytes(meta[:cut])
        from gradwatch.checkpoints.readers.distributed import read

        with pytest.raises(GradwatchError):
            read(tmp_path / "c")
