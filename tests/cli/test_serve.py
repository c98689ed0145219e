"""The command at a terminal and without one: what it prints, and when it prints a new link."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.visiting import WAIT, opened, visitor
from tests.views.samples import network
from tests.views.stored import stored

LINK = re.compile(r"http://([0-9a-f]{16}\.localhost:\d+)/\?token=([\w-]{43})")
SERVE = [sys.executable, "-m", "gradwatch", "serve", ".", "--port", "0"]
OWN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, line: int, process: "subprocess.Popen[bytes]") -> None:
        self.line = line
        self.process = process
        self.said = ""

    def links(self, count: int) -> list[str]:
        """Read until so many links were printed."""
        end = time.monotonic() + WAIT
        while len(found := list(LINK.finditer(self.said))) < count:
            assert time.monotonic() < end, self.said
            self.said += os.read(self.line, 4096).decode()
        return [link[0] for link in found]

    def rest(self) -> str:
        """All that was said, once the program has ended."""
        self.process.wait(WAIT)
        with contextlib.suppress(OSError):  # the other side is closed
            while more := os.read(self.line, 4096):
                self.said += more.decode()
        return self.said

    def press(self, keys: bytes) -> None:
        os.write(self.line, keys)


@contextlib.contextmanager
def at_a_terminal(words: list[str], where: Path) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", OWN_TERMINAL, *words]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=where) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)


def test_enter_prints_a_new_link_and_visits_do_not(tmp_path: Path) -> None:
    with at_a_terminal(SERVE, tmp_path) as terminal:
        (first,) = terminal.links(1)
        assert "Enter prints a new one" in terminal.said
        terminal.press(b"\n")
        assert terminal.links(2) == [first, first]  # nobody has opened it yet
        with opened(first) as client:
            host = client.headers["host"]
            with visitor(host) as stranger:
                assert {stranger.get("/").status_code for _ in range(10)} == {401}
            terminal.press(b"\n")
            second = terminal.links(3)[2]
            assert second != first
            with opened(second) as other:
                assert other.cookies != client.cookies
                assert other.get("/").status_code == client.get("/").status_code == 200
        terminal.press(b"\x03")
        said = terminal.rest()
    assert terminal.process.returncode >= 0
    assert len(LINK.findall(said)) == 3
    assert "error" not in said.lower()


@pytest.mark.security
def test_in_the_background_the_terminal_is_left_alone(tmp_path: Path) -> None:
    """A background program that reads the terminal is stopped; this one serves on."""
    reading = "while read line; do echo got; done; kill $!; wait"
    words = ["sh", "-c", f"set -m; {' '.join(SERVE)} & {reading}"]
    with at_a_terminal(words, tmp_path) as terminal:
        with opened(terminal.links(1)[0]) as client:
            terminal.press(b"\n" * 3)
            time.sleep(3)
            assert client.get("/", timeout=5).status_code == 200
        terminal.press(b"\x04")  # ends the reading, and with it the server
        said = terminal.rest()
    assert said.count("got") == 3
    assert len(LINK.findall(said)) == 1


def test_nothing_but_the_link_holds_a_secret(tmp_path: Path) -> None:
    stored(network(2, 5), tmp_path / "one", "one")
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        SERVE, stdin=none, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path
    ) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            match = LINK.fullmatch(link)
            assert match is not None
            host, token = match.groups()
            with opened(link) as client, visitor(host) as stranger:
                (session,) = client.cookies.values()
                runs = client.get("/api/runs").json()["runs"]
                assert [run["name"] for run in runs] == ["one"]
                answers = [client.get(path) for path in ("/", "/page.js", "/nothing", "/api/runs")]
                answers += [stranger.get(link.partition("/?")[2]), stranger.get("/")]
                assert [answer.status_code for answer in answers[-2:]] == [401, 401]
                texts = [f"{answer.headers}{answer.text}" for answer in answers]
            about = Path(f"/proc/{process.pid}")
            texts += [(about / name).read_text() for name in ("cmdline", "environ", "comm")]
        finally:
            process.terminate()
        texts += process.communicate(timeout=WAIT)
    assert "restart for a new one" in texts[-1]
    for text in texts:
        for secret in (token, session, host.partition(".")[0]):
            assert secret not in text


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", "every port"), ("localhost", "")])
def test_what_is_less_safe_is_said(
    tmp_path: Path, host: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from gradwatch.cli.serve import command

    monkeypatch.setattr("gradwatch.server.serving.serve", lambda *_: None)
    result = CliRunner().invoke(command, [str(tmp_path), "--host", host])
    assert result.exit_code == 0
    first, *rest = result.stderr.splitlines()
    assert (said in first and len(rest) == 1) if said else not rest
    remote = CliRunner().invoke(command, [str(tmp_path), "--host", "192.0.2.1", "--allow-remote"])
    assert "nothing is encrypted" in remote.stderr
