"""The decoder in a process of its own: when it dies, one file is unreadable and nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.store.forging import Bytes, sound

from gradwatch.store.isolation import Decoder
from gradwatch.store.parquet import Unreadable, read_columns, read_footer

pytest.importorskip("pyarrow")

SOURCE = Path(__file__).parents[2] / "src"
PID = b"__import__('os').getpid()"
WAIT = 60.0


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    decoder = Decoder()
    yield decoder
    decoder.close()


def reads(decoder: Decoder) -> bool:
    """Whether it decodes a sound file as this process does."""
    raw, entry = sound()
    footer = read_footer(Bytes(raw), entry)
    names = ["grad_norm", "grad_nan", "step"]
    here, there = (read_columns(Bytes(raw), footer, names, *how) for how in ((), (decoder,)))
    return all(
        np.array_equal(here[name], there[name], equal_nan=name == "grad_norm") for name in names
    )


def gone(pid: int) -> bool:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def test_it_decodes_in_another_process_that_stays(decoder: Decoder) -> None:
    assert decoder.processes == []
    assert reads(decoder)
    (process,) = decoder.processes
    assert decoder(eval, PID) == process != os.getpid()
    assert reads(decoder)
    assert decoder.processes == [process]
    decoder.close()
    assert gone(process)
    assert reads(decoder)


@pytest.mark.parametrize(
    "death",
    [
        b"__import__('os').abort()",
        b"__import__('ctypes').string_at(0)",
        b"__import__('os')._exit(0)",
        b"__import__('os').kill(__import__('os').getpid(), 9)",
    ],
)
def test_a_file_it_dies_of_is_unreadable_and_the_next_is_read(
    decoder: Decoder, death: bytes
) -> None:
    before = decoder(eval, PID)
    with pytest.raises(Unreadable, match="the decoder died of it"):
        decoder(eval, death)
    assert gone(before)
    assert decoder.processes == []
    with pytest.raises(Unreadable, match="died of it before"):
        decoder(eval, death)
    assert decoder.processes == []  # nothing was started for it
    assert reads(decoder)
    assert decoder(eval, PID) != before


def test_it_is_killed_while_it_decodes(decoder: Decoder) -> None:
    process = decoder(eval, PID)
    threading.Timer(0.3, os.kill, (process, signal.SIGKILL)).start()
    with pytest.raises(Unreadable, match="the decoder died of it"):
        decoder(eval, b"__import__('time').sleep(60)")
    assert reads(decoder)


def test_no_file_is_blamed_for_a_death_between_two(decoder: Decoder) -> None:
    assert reads(decoder)
    (process,) = decoder.processes
    os.kill(process, signal.SIGKILL)
    while decoder.processes:
        time.sleep(0.01)
    assert reads(decoder)


def test_it_has_little_memory_and_says_so(decoder: Decoder) -> None:
    process = decoder(eval, PID)
    with pytest.raises(Unreadable, match="MemoryError"):
        decoder(eval, b"len(bytes(3 << 30))")
    assert decoder(eval, b"len(bytes(1 << 29))") == 1 << 29
    assert decoder(eval, PID) == process


def test_it_is_ended_when_it_does_not_answer() -> None:
    decoder = Decoder(seconds=0.5)
    process = decoder(eval, PID)
    with pytest.raises(Unreadable, match=r"did not answer within 0\.5 seconds"):
        decoder(eval, b"__import__('time').sleep(60)")
    assert gone(process)
    decoder.close()


def test_what_it_raises_is_raised_here(decoder: Decoder) -> None:
    raw, entry = sound()
    footer = read_footer(Bytes(raw), entry)
    place = footer.columns["grad_norm"]

    class Forged(Bytes):
        """Sound claims, and another checksum in the page's head."""

        def read(self, length: int, offset: int) -> bytes:
            column = bytearray(super().read(length, offset))
            column[-1] ^= 1
            return bytes(column)

    without = {**footer.columns, "grad_norm": place._replace(checksum=None)}
    forged = type(footer)(footer.raw, footer.size, footer.rows, without, footer.grids)
    with pytest.raises(Unreadable, match="CRC checksum verification failed"):
        read_columns(Forged(raw), forged, ["grad_norm"], decoder)
    assert reads(decoder)


def test_threads_share_two_processes(decoder: Decoder) -> None:
    begun = threading.Barrier(8)

    def call(number: int) -> tuple[int, int]:
        if number < 8:
            begun.wait(WAIT)
        answer, process = decoder(eval, b"(%d ** 2, __import__('os').getpid())" % number)
        return answer, process

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(call, range(200)))
    assert [answer for answer, _ in answers] == [number**2 for number in range(200)]
    assert len({process for _, process in answers}) <= 2
    assert len(decoder.processes) <= 2


def test_it_lives_in_the_root_folder_and_imports_from_known_places(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "pyarrow", "numpy", "gradwatch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('slipped in')")
    monkeypatch.chdir(tmp_path)
    assert decoder(eval, b"__import__('os').getcwd()") == "/"
    path = decoder(eval, b"__import__('sys').path")
    assert path[-2] == str(SOURCE)
    assert str(tmp_path) not in path
    assert "" not in path
    assert reads(decoder)


def test_it_ends_with_a_caller_that_was_killed() -> None:
    script = (
        "from gradwatch.store.isolation import Decoder\n"
        "decoder = Decoder()\n"
        f"print(decoder(eval, {PID!r}), flush=True)\n"
        "input()\n"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert caller.stdout
    process = int(caller.stdout.readline())
    caller.kill()
    caller.communicate()
    assert gone(process)


FORKS = """
import multiprocessing, sys, threading
import numpy as np
from gradwatch.store.parquet import available, encoded, read_columns, read_footer
assert available()
sys.path[:0] = sys.argv[1:]
from tests.store.forging import Bytes

def seal(seed):
    values = np.cos(np.arange(50_000) * (1 + seed))
    steps = np.arange(50_000)
    columns = {"step": steps, "grad_norm": values, "text": [str(seed)] * len(steps)}
    raw, entry = encoded("rows/grad/1.parquet", columns, steps=steps)
    footer = read_footer(Bytes(raw), entry)
    back = read_columns(Bytes(raw), footer, ["grad_norm", "text"])
    assert np.array_equal(back["grad_norm"], values) and list(back["text"]) == columns["text"]
    return float((values @ values) ** 0.5)

def go_on():
    while not done.is_set():
        seal(0)
        sealed.append(1)

done, sealed = threading.Event(), []
thread = threading.Thread(target=go_on, daemon=True)
thread.start()
fork = multiprocessing.get_context("fork")
for number in range(20):
    ours, theirs = fork.Pipe()
    child = fork.Process(target=lambda: theirs.send(seal(number)))
    child.start()
    assert ours.poll(60), "a forked worker hangs"
    assert ours.recv() == seal(number)
    child.join(60)
    assert child.exitcode == 0, child.exitcode
done.set()
thread.join(60)
print(len(sealed), "sealed beside 20 forks")
"""


def test_a_forked_worker_may_use_pyarrow_while_its_parent_seals() -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, root],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 5
