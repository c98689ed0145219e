"""A run at a URL (`s3://`, `gs://`, …), opened by `pyarrow.fs`, or by fsspec if that knows it.

Credentials are the business of those libraries. What a URL may hold of them (user, password, query)
is in no text, representation or message of ours.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, unquote

from gradwatch.errors import GradwatchError
from gradwatch.store.parquet import RandomAccess
from gradwatch.store.places import Place
from gradwatch.text import plain

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 10.0
"""Without a byte coming."""
TRIES = 3
_JOURNAL_LIMIT = 256 << 20
"""Bytes of a journal that are held; no writer makes one of a tenth of it."""
_REASONS = (
    (r"no_?such_?bucket", "there is no such bucket; check its name"),
    (
        r"denied|forbidden|unauthori[sz]ed|credential|access_?key|signature|token|\b40[13]\b",
        "access was refused; check the credentials in the environment",
    ),
    (
        r"network|resolv|connect|timed? ?out|unavailable|unreachable",
        "the server cannot be reached; check the network and the endpoint",
    ),
)


@dataclass(frozen=True, eq=False)
class Storage:
    """What a URL led to: a file system of pyarrow's, perhaps around one of fsspec's."""

    system: Any = field(repr=False)
    fsspec: Any = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @contextlib.contextmanager
    def speaking_of(self, place: str) -> Iterator[None]:
        """Whatever the libraries raise becomes a sentence without secrets."""
        try:
            yield
        except Exception as error:  # each of fsspec's file systems has exceptions of its own
            raise _failure(place, error, self.secrets) from None


@dataclass(frozen=True)
class RemotePlace(Place):
    """A folder at a URL; `path` is that URL without user, password and query."""

    inside: str = field(repr=False)
    """The path as the file system has it."""
    storage: Storage = field(repr=False)

    @property
    def remote(self) -> bool:
        """Each look at it is a request to a server."""
        return True

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def __truediv__(self, name: str) -> "RemotePlace":
        return RemotePlace(f"{self.path}/{name}", f"{self.inside}/{name}", self.storage)

    def resolve(self) -> "RemotePlace":
        """A URL is whole."""
        return self

    def exists(self) -> bool:
        """Whether there is such a folder."""
        with self.storage.speaking_of(self.path):
            kind = self.storage.system.get_file_info(self.inside).type.name
        return bool(kind == "Directory")

    def problem(self) -> str:
        """Why the folder cannot be listed; "" where it can."""
        return "" if self.exists() else "there is none"

    def folders(self) -> list[str]:
        """The names of the folders in it."""
        return [item.base_name for item in self._infos(False) if item.type.name == "Directory"]

    def _listing(self) -> Iterator[tuple[str, int, int | None, int]]:
        for item in self._infos(True):
            if item.type.name == "File":
                path = item.path.strip("/").removeprefix(self.inside.strip("/") + "/")
                yield path, item.size or 0, item.mtime_ns, item.size or 0

    def _infos(self, recursive: bool) -> list[Any]:
        select = import_module("pyarrow.fs").FileSelector
        with self.storage.speaking_of(self.path):
            if self.storage.fsspec:
                self.storage.fsspec.invalidate_cache()  # it would not see a run grow
            try:
                return list(
                    self.storage.system.get_file_info(select(self.inside, False, recursive))
                )
            except FileNotFoundError:
                return []

    def open(self, file: str) -> RandomAccess | None:
        """A file in it; None where there is none."""
        kind = RemoteJournal if file.endswith(".gwj") else RemoteFile
        with self.storage.speaking_of(self.path):
            try:
                return kind(self, file)
            except FileNotFoundError:
                return None

    def put(self, file: str, data: bytes) -> None:
        """Write a file as a whole, over an older one."""
        path = f"{self.inside}/{file}"
        with self.storage.speaking_of(self.path):
            if self.storage.fsspec:
                self.storage.fsspec.makedirs(path.rpartition("/")[0], exist_ok=True)
                self.storage.fsspec.pipe_file(path, data)
                return
            with self.storage.system.open_output_stream(path) as stream:
                stream.write(data)

    def remove(self, file: str) -> None:
        """Remove a file that `files` has named."""
        with self.storage.speaking_of(self.path), contextlib.suppress(FileNotFoundError):
            self.storage.system.delete_file(f"{self.inside}/{file}")


class RemoteFile:
    """A file at a URL, as it was when opened; each read fetches a range."""

    def __init__(self, place: RemotePlace, file: str) -> None:
        self._storage, self._path = place.storage, f"{place.inside}/{file}"
        self._shown = f"{place.path}/{file}"
        self._file: Any = None
        self.size = 0
        self._look()

    def _look(self) -> None:
        if self._storage.fsspec:
            facts = self._storage.fsspec.info(self._path)
            if facts["type"] != "file":
                raise FileNotFoundError
            self.size = int(facts["size"])
        else:
            self._file = self._storage.system.open_input_file(self._path)
            self.size = int(self._file.size())

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file, none where it has gone."""
        length = min(length, self.size - offset)
        return self._range(length, offset) if offset >= 0 and length > 0 else b""

    def _range(self, length: int, offset: int) -> bytes:
        with self._storage.speaking_of(self._shown):
            try:
                if self._file is not None:
                    return bytes(self._file.read_at(length, offset))
                # not through a file of fsspec's, which would read ahead by megabytes
                return bytes(self._storage.fsspec.cat_file(self._path, offset, offset + length))
            except Exception:
                # S3 has other words for it when a file goes or is replaced while it is open.
                now = self._storage.system.get_file_info(self._path)
                if now.type.name == "File" and now.size == self.size:
                    raise
                return b""


class RemoteJournal(RemoteFile):
    """A journal, which may be copied anew while it grows: fetched whole, then what was added."""

    _held: bytes | None = None

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; whoever reads to the end gets what has come since."""
        held = self._held
        if held is None or offset + length > len(held):
            with self._storage.speaking_of(self._shown), contextlib.suppress(FileNotFoundError):
                if held is not None:
                    self._look()
            held = held or b""
            more = min(self.size, _JOURNAL_LIMIT) - len(held)
            self._held = held = held + (self._range(more, len(held)) if more > 0 else b"")
        return held[offset : offset + length]


def place_of(url: str) -> RemotePlace:
    """The place at this URL; nothing but the region of a bucket is asked for yet."""
    shown, secrets = _public(url)
    try:
        fs = import_module("pyarrow.fs")
    except ImportError:
        raise GradwatchError(
            f"Expected pyarrow to read {shown!r}, found none: `pip install pyarrow`."
        ) from None
    fsspec = None
    try:
        try:
            system, inside = fs.FileSystem.from_uri(_hasty(url))
        except (ValueError, NotImplementedError) as error:
            if isinstance(error, ValueError) and "Unrecognized filesystem" not in str(error):
                raise
            fsspec, inside = _fsspec(url)
            system = fs.PyFileSystem(fs.FSSpecHandler(fsspec))
        if system.type_name == "s3":
            _, (options,) = system.__reduce__()  # what the URL said; it cannot say time limits
            options |= {
                "connect_timeout": CONNECT_SECONDS,
                "request_timeout": REQUEST_SECONDS,
                "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
            }
            system = fs.S3FileSystem(**options)
    except Exception as error:
        raise _failure(shown, error, secrets) from None
    return RemotePlace(shown, inside.rstrip("/"), Storage(system, fsspec, secrets))


def _hasty(url: str) -> str:
    """Google's library tries for a quarter of an hour unless told otherwise."""
    if not url.startswith(("gs://", "gcs://")) or "retry_limit_seconds" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}retry_limit_seconds={REQUEST_SECONDS:.0f}"


def _fsspec(url: str) -> tuple[Any, str]:
    try:
        system, inside = import_module("fsspec.core").url_to_fs(url)
    except (ImportError, ValueError) as error:
        known = isinstance(error, ImportError) and not (error.name or "").startswith("fsspec")
        remedy = str(error).rstrip(".") if known else "`pip install fsspec` adds more of them"
        raise GradwatchError(
            f"Expected a path or a URL such as s3://bucket/runs/x, got {url.partition('://')[0]}://"
            f"…, which neither pyarrow nor fsspec opens here. {remedy}."
        ) from None
    return system, inside


def _public(url: str) -> tuple[str, tuple[str, ...]]:
    """The URL as it may be shown, and what must not be."""
    scheme, _, rest = url.partition("://")
    first = re.split("[/?]", rest)[0]
    # A password that was pasted in as it is may have slashes in it: up to the last @ is hidden.
    user, _, rest = rest.rpartition("@") if ":" in first else ("", "", rest)
    if not user and "@" in first:
        user, _, rest = rest.partition("@")
    rest, _, query = rest.partition("?")
    given = [*user.split(":"), *(value for _, value in parse_qsl(query))]
    secrets = {text for word in given for text in (word, unquote(word)) if len(text) > 3}
    return plain(f"{scheme}://{rest}".rstrip("/")), tuple(sorted(secrets, key=len, reverse=True))


def _failure(place: str, error: Exception, secrets: tuple[str, ...]) -> GradwatchError:
    if isinstance(error, GradwatchError):
        return error
    text = " ".join(str(error).split())
    for pattern, words in _REASONS:
        if re.search(pattern, f"{type(error).__name__} {text}", re.IGNORECASE):
            return GradwatchError(f"Expected to reach {place!r}, but {words}.")
    for secret in secrets:
        text = text.replace(secret, "…")
    text = re.sub(r"(\w://)\S*@|\?\S*", r"\1", text)[:200].rstrip(".")
    return GradwatchError(f"Expected to reach {place!r}, but got: {plain(text)}.")
