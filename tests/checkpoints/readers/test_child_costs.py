"""The costliest attacks, through the program: exit 3, and less than a GiB."""

import subprocess
import sys

import pytest
from tests.checkpoints.files import safetensors_bytes, text, torch_zip, zip_bytes

MEASURED = """
import resource, subprocess, sys
command = [sys.executable, "-m", "gradwatch", "weights", sys.argv[1]]
done = subprocess.run(command, capture_output=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
sys.stderr.write(done.stderr.decode("utf-8", "replace")[-2000:])
"""

COSTLY = {
    "a header of 15 MB of keys": lambda: safetensors_bytes(
        b"{" + b",".join(b'"%d":{}' % i for i in range(900_000)) + b"}"
    ),
    "a header of 15 MB of words": lambda: safetensors_bytes(
        b'{"a":["' + b'","'.join(b"%d" % i for i in range(1_500_000)) + b'"]}'
    ),
    "a directory of 60,000 members": lambda: zip_bytes(
        [(f"archive/data/{i}", b"") for i in range(60_000)]
    ),
    "four million instructions": lambda: torch_zip(b"\x80\x02" + b"]" * 4_100_000 + b"."),
    "strings kept in a memo": lambda: torch_zip(
        b"\x80\x02" + b"".join(text("x" * 200) + b"\x94" for _ in range(250_000)) + b"."
    ),
    "memory asked for by repetition": lambda: torch_zip(
        b"\x80\x02" + (b"(" + b"N" * 1000 + b"l") * 3900 + b"."
    ),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_files_are_refused_in_little_memory(tmp_path, name) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(COSTLY[name]())
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    code, megabytes = map(int, done.stdout.split())
    assert code == 3, done.stderr
    assert done.stderr.startswith("gradwatch: "), done.stderr
    assert megabytes < 1024
