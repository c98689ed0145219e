"""Where runs lie: a folder of this machine or one at a URL, both read through `pyarrow.fs`.

What `pyarrow.fs` does not know, fsspec opens if it is installed. Credentials are the business of
those libraries: what a URL holds of them is in no text or message of ours.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from gradwatch.errors import GradwatchError
from gradwatch.text import plain

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters at least: C:// is a drive


def is_url(given: object) -> bool:
    """Whether this text names something elsewhere, not a path of this machine."""
    return isinstance(given, str) and _URL.match(given) is not None


@dataclass(frozen=True, order=True)
class Place:
    """A folder that may hold a run: `Place.of("runs/x")`, `Place.of("s3://bucket/runs/x")`."""

    text: str
    """The path, or the URL without user, password and query."""
    inside: str = field(repr=False, compare=False)
    """The path as the file system has it."""
    system: Any = field(repr=False, compare=False)
    """The file system that has it."""
    remote: bool = field(default=False, repr=False, compare=False)
    """Whether each look at it is a request to a server."""

    @staticmethod
    def of(given: "str | os.PathLike[str]") -> "Place":
        """From what a user hands in."""
        if isinstance(given, Place):
            return given
        text = os.fspath(given)
        match = _URL.match(text)
        if match and match[1].lower() not in ("file", "local"):
            return _remote(text)
        path = str(Path(unquote(urlsplit(text).path) if match else text))
        return Place(path, path, fs.LocalFileSystem())

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.text.rpartition("/")[2] if self.remote else Path(self.text).name

    def __truediv__(self, name: str) -> "Place":
        text = f"{self.text}/{name}" if self.remote else str(Path(self.text, name))
        inside = f"{self.inside}/{name}" if self.remote else text
        return Place(text, inside, self.system, self.remote)

    def __str__(self) -> str:
        return self.text

    __fspath__ = __str__

    def resolve(self) -> "Place":
        """The same place by its whole path."""
        return self if self.remote else Place.of(Path(self.text).resolve())

    def exists(self) -> bool:
        """Whether there is such a folder."""
        with contextlib.suppress(OSError, ValueError), self.translated():
            return bool(self.system.get_file_info(self.inside).type.name == "Directory")
        return False

    def folders(self) -> list[str]:
        """The names of the folders in it; none where it cannot be read."""
        return [item.base_name for item in self._infos() if item.type.name == "Directory"]

    def files(self) -> dict[str, int]:
        """Bytes of every file in it and in its folders, by path such as `rows/grad/…`."""
        begin = len(self.inside.rstrip("/")) + 1
        found = [item for item in self._infos(recursive=True) if item.type.name == "File"]
        return {item.path[begin:]: item.size or 0 for item in found}

    def mark(self) -> str:
        """Changes whenever a run does: its files grow or get other names."""
        listed = repr(sorted(self.files().items())).encode()
        return hashlib.blake2b(listed, digest_size=8).hexdigest()

    def _infos(self, recursive: bool = False) -> list[Any]:
        unreadable = (FileNotFoundError, PermissionError) if self.remote else (OSError,)
        with self.translated(), contextlib.suppress(*unreadable):
            found = self.system.get_file_info(fs.FileSelector(self.inside, True, recursive))
            return [item for item in found if _has_text(item)]
        return []

    def open(self, file: str) -> Any:
        """A file in it as pyarrow's; FileNotFoundError where there is none."""
        with self.translated():
            return self.system.open_input_file(f"{self.inside}/{file}")

    def read(self, file: str) -> bytes | None:
        """All of a file in it; None where there is none that can be read."""
        with contextlib.suppress(OSError), self.open(file) as opened, self.translated():
            return bytes(opened.read())
        return None

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """What the libraries say of a server becomes a sentence, without what may be secret."""
        try:
            yield
        except Exception as error:  # each of fsspec's file systems has exceptions of its own
            if not self.remote or isinstance(error, FileNotFoundError | GradwatchError):
                raise
            raise _failure(self.text, error) from None


def _has_text(item: Any) -> bool:
    """Whether its name is UTF-8; pyarrow can name no other, and none of ours is another."""
    with contextlib.suppress(UnicodeDecodeError):
        return bool(item.path)
    return False


def _remote(url: str) -> Place:
    """The place at this URL; nothing but the region of a bucket is asked for yet."""
    scheme, _, rest = url.partition("://")
    # A password that was pasted in as it is may have / and ? in it: up to the last @ is hidden.
    secret = "@" in rest and {"@", ":"} & set(re.split("[/?]", rest)[0])
    rest = (rest.rpartition("@")[2] if secret else rest).partition("?")[0]
    shown = plain(f"{scheme}://{rest}".rstrip("/"))
    try:
        try:
            system, inside = fs.FileSystem.from_uri(url)
        except (ValueError, NotImplementedError) as error:
            if isinstance(error, ValueError) and "Unrecognized filesystem" not in str(error):
                raise
            from fsspec.core import url_to_fs

            # without its listings, which would not see a run grow
            found, inside = url_to_fs(url, use_listings_cache=False)
            system = fs.PyFileSystem(fs.FSSpecHandler(found))
    except Exception as error:
        raise _failure(shown, error) from None
    return Place(shown, inside.rstrip("/"), system, True)


def _failure(place: str, error: Exception) -> GradwatchError:
    """Not in the library's words, which may repeat a key: only by the name of the error."""
    code = re.search(r"AWS Error (\w+)", str(error))
    what = code[1] if code else type(error).__name__
    text = f"Expected to reach {place!r}, but got {what}. Check the address, the network and the "
    return GradwatchError(text + "credentials; `pip install fsspec` adds kinds of URLs.")
