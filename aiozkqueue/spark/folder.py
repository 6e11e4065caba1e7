"""A folder that Spark writes to, on any of its file systems. Each published file appears there once.

Rows are first written below the folder, in a path that begins with an underscore, which readers ignore. Publishing
renames the files to names that identify their source. It can be interrupted at any point and repeated.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import InvalidOptionError

from .files import files_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

_DATA: Final = ".parquet"
_PART: Final = re.compile(r"part-([0-9]+)-.*c([0-9]+)[.]")


class Folder:
    """A folder that Spark writes to."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._files = files_of(spark, path)
        self.path: str = self._files.path
        """The path of the folder, with the scheme."""

    @property
    def local(self) -> Path | None:
        """The path of the folder on this machine; None if it is on another file system."""
        return Path("/" + self.path.removeprefix("file:").lstrip("/")) if self.path.startswith("file:") else None

    def at(self, place: str) -> str:
        """Return the path of a file in the folder."""
        return f"{self.path}/{place}"

    def names(self, place: str = "") -> list[str]:
        """List a path below the folder, or the folder itself; empty if it does not exist."""
        return self._files.names(place)

    def data(self, place: str = "") -> list[str]:
        """List the relative paths of the Parquet files below a path, in order."""
        return sorted(path for path in self._files.below(place) if path.endswith(_DATA))

    def remove(self, place: str) -> None:
        """Remove a file or a folder recursively, if it exists."""
        self._files.remove(place)

    def note(self, place: str, text: str) -> None:
        """Write a small file completely or not at all."""
        self._files.write(f"{place}.new", text.encode())
        self._files.rename(f"{place}.new", place)

    def noted(self, place: str) -> str | None:
        """Read a small file; None if it does not exist."""
        return self._files.read(place).decode() if self._files.exists(place) else None

    def publish(self, place: str, prefix: str) -> None:
        """Publish the files of a job. A name consists of the prefix, the number of the task and the number of its file.

        If a job writes the same rows again, divided in the same way, its files therefore have the same names.
        """
        files = self.data(place)
        for name in files:
            folder, slash, file = name.rpartition("/")
            self._files.rename(f"{place}/{name}", f"{folder}{slash}{prefix}-{_numbers(file)}{_DATA}")
        if self.local is not None:
            _fsync_all(sorted({(self.local / name).parent for name in files}))

    def keep(self, place: str) -> None:
        """Sync the files to disk, if the folder is on this machine."""
        if self.local is not None:
            _fsync_all([self.local / place, *(self.local / place).rglob("*")])

    def require(self, own: str) -> None:
        """Refuse a folder that another queue or run uses. Raises: InvalidOptionError."""
        names = self.names()
        if names and own not in names:
            msg = f"{self.path} contains other files ({min(names)}): use a new folder, or the folder of earlier runs"
            raise InvalidOptionError(msg)


def _numbers(file: str) -> str:
    """Return the number of the task and of its file, in a name made by Spark."""
    found = _PART.match(file)
    assert found is not None, file  # noqa: S101 - a job has written it
    return f"{found[1]}-{found[2]}"


def _fsync_all(paths: Iterable[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def named(files: Iterable[str], prefix: str) -> list[str]:
    """Return the files that were published with a prefix."""
    return [file for file in files if file.rpartition("/")[2].startswith(f"{prefix}-")]
