"""A folder that Spark writes to, on any file system that it knows: what is published there appears file by file, once.

Rows are first written into a place of the folder's own, which begins with an underscore, so that no reader looks at it.
Publishing moves them, under names that tell where they come from. It can be cut off anywhere and repeated.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

_DATA: Final = ".parquet"
_PART: Final = re.compile(r"part-([0-9]+)-.*c([0-9]+)[.]")


class Folder:
    """A folder, by the file systems of Spark's JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the file systems that Spark writes to
        java: Any = spark.sparkContext._jsc  # noqa: SLF001 - so too
        self._path = jvm.org.apache.hadoop.fs.Path
        given = self._path(path)
        self._system = given.getFileSystem(java.hadoopConfiguration())
        self.path: str = str(self._system.makeQualified(given))
        """Where it is, with its scheme."""

    @property
    def local(self) -> Path | None:
        """The folder on this machine; None when it is elsewhere."""
        return Path("/" + self.path.removeprefix("file:").lstrip("/")) if self.path.startswith("file:") else None

    def at(self, place: str) -> str:
        """The path of a file in it."""
        return f"{self.path}/{place}"

    def exists(self, place: str) -> bool:
        """Whether it is there."""
        return bool(self._system.exists(self._path(self.at(place))))

    def names(self, place: str = "") -> list[str]:
        """List a path below the folder, or the folder itself; empty if it does not exist."""
        path = self._path(self.at(place) if place else self.path)
        return [one.getPath().getName() for one in self._system.listStatus(path)] if self._system.exists(path) else []

    def data(self, place: str = "") -> list[str]:
        """The Parquet files below a place, by their way from there, in order."""
        root = self._path(self.at(place) if place else self.path)
        if not self._system.exists(root):
            return []
        start = len(str(self._system.makeQualified(root))) + 1
        found = self._system.listFiles(root, True)  # noqa: FBT003 - Hadoop's: and all below
        return sorted(path[start:] for path in _paths(found) if path.endswith(_DATA))

    def remove(self, place: str) -> None:
        """Remove it with all below, if it is there."""
        self._system.delete(self._path(self.at(place)), True)  # noqa: FBT003 - Hadoop's: and all below

    def rename(self, place: str, to: str) -> bool:
        """Move it, in one step where the file system can; whether that was done now."""
        target = self._path(self.at(to))
        self._system.mkdirs(target.getParent())
        source = self._path(self.at(place))
        return bool(self._system.exists(source)) and bool(self._system.rename(source, target))

    def note(self, place: str, text: str) -> None:
        """Write a small file: all of it or nothing is there."""
        draft = self._path(self.at(f"{place}.new"))
        stream = self._system.create(draft, True)  # noqa: FBT003 - Hadoop's: over one that was left behind
        stream.write(bytearray(text.encode()))
        stream.close()
        self.rename(f"{place}.new", place)

    def noted(self, place: str) -> str | None:
        """Read a small file; None when it is not there."""
        if not self.exists(place):
            return None
        stream = self._system.open(self._path(self.at(place)))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def publish(self, place: str, prefix: str) -> None:
        """Move what a job has written to where readers look; each name is the prefix and the number of its task.

        So the same rows, written again by a job that divides them alike, come to lie under the same names.
        """
        files = self.data(place)
        for name in files:
            folder, slash, file = name.rpartition("/")
            self.rename(f"{place}/{name}", f"{folder}{slash}{prefix}-{_numbers(file)}{_DATA}")
        if self.local is not None:
            _outlive(sorted({(self.local / name).parent for name in files}))

    def keep(self, place: str) -> None:
        """Make the files durable against a power failure where the file system does not."""
        if self.local is not None:
            _outlive([self.local / place, *(self.local / place).rglob("*")])

    def require(self, own: str) -> None:
        """Refuse a folder that another queue or run uses. Raises: InvalidOptionError."""
        names = self.names()
        if names and own not in names:
            msg = f"{self.path} holds something else ({min(names)}): name a folder that is new, or one used so before"
            raise InvalidOptionError(msg)


def _numbers(file: str) -> str:
    """The numbers of the task and of the file among the task's, in a name of Spark's."""
    found = _PART.match(file)
    assert found is not None, file  # noqa: S101 - a job has written it
    return f"{found[1]}-{found[2]}"


def _outlive(paths: Iterable[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _paths(found: Any) -> Iterator[str]:  # noqa: ANN401 - Hadoop's iterator of files
    while found.hasNext():
        yield str(found.next().getPath())


def named(files: Iterable[str], prefix: str) -> list[str]:
    """Those files that were published with a prefix."""
    return [file for file in files if file.rpartition("/")[2].startswith(f"{prefix}-")]
