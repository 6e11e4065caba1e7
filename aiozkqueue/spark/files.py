"""The files of a folder, through the JVM of a classic session, or with PyArrow if this process has no JVM.

A client of Spark Connect has no JVM. It must reach the same file system as the server. Each ``place`` is a path
relative to the folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.spark.failures import SPARK_ERRORS, unknown_scheme

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: Hadoop's schemes of S3, which PyArrow does not support.
_S3: Final = re.compile(r"^s3[an]://")
_CONNECT: Final = "pyspark.sql.connect."


class Files(Protocol):
    """A folder of a file system. Renames are atomic if the file system supports atomic renames."""

    @property
    def path(self) -> str:
        """The folder's path, with the scheme."""
        ...

    def exists(self, place: str) -> bool:
        """Whether a file or a folder exists."""
        ...

    def names(self, place: str) -> list[str]:
        """List a folder; empty if it does not exist."""
        ...

    def below(self, place: str) -> list[str]:
        """List all files below a folder, relative to it; empty if it does not exist."""
        ...

    def remove(self, place: str) -> None:
        """Remove a file or a folder recursively, if it exists."""
        ...

    def rename(self, place: str, to: str) -> bool:
        """Rename a file or a folder; return whether this call renamed it."""
        ...

    def write(self, place: str, data: bytes) -> None:
        """Write a file, and replace an existing one."""
        ...

    def read(self, place: str) -> bytes:
        """Read a small file."""
        ...


def files_of(spark: SparkSession, path: str) -> Files:
    """Return the files of a folder. Raises: InvalidOptionError: its file system cannot be reached."""
    if type(spark).__module__.startswith(_CONNECT):
        return ArrowFiles(path)
    return HadoopFiles(spark, path)


class HadoopFiles:
    """A folder on any file system of Spark's JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the file systems that Spark writes to
        java: Any = spark.sparkContext._jsc  # noqa: SLF001 - the same reason
        self._path = jvm.org.apache.hadoop.fs.Path
        hadoop_path = self._path(path)
        try:
            self._system = hadoop_path.getFileSystem(java.hadoopConfiguration())
        except SPARK_ERRORS as error:
            if (unknown := unknown_scheme(error)) is None:
                raise
            msg = f"{path}: Spark has no file system for the scheme {unknown!r}; add its package to Spark"
            raise InvalidOptionError(msg) from error
        self.path: str = str(self._system.makeQualified(hadoop_path))

    def exists(self, place: str) -> bool:
        """See `Files`."""
        return bool(self._system.exists(self._at(place)))

    def names(self, place: str) -> list[str]:
        """See `Files`."""
        path = self._at(place)
        return [file.getPath().getName() for file in self._system.listStatus(path)] if self._system.exists(path) else []

    def below(self, place: str) -> list[str]:
        """See `Files`."""
        root = self._at(place)
        if not self._system.exists(root):
            return []
        start = len(str(self._system.makeQualified(root))) + 1
        found = self._system.listFiles(root, True)  # noqa: FBT003 - Hadoop's parameter: recursive
        return [path[start:] for path in _paths(found)]

    def remove(self, place: str) -> None:
        """See `Files`."""
        self._system.delete(self._at(place), True)  # noqa: FBT003 - Hadoop's parameter: recursive

    def rename(self, place: str, to: str) -> bool:
        """See `Files`."""
        target, source = self._at(to), self._at(place)
        self._system.mkdirs(target.getParent())
        return bool(self._system.exists(source)) and bool(self._system.rename(source, target))

    def write(self, place: str, data: bytes) -> None:
        """See `Files`."""
        stream = self._system.create(self._at(place), True)  # noqa: FBT003 - Hadoop's parameter: overwrite
        stream.write(bytearray(data))
        stream.close()

    def read(self, place: str) -> bytes:
        """See `Files`."""
        stream = self._system.open(self._at(place))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def _at(self, place: str) -> Any:  # noqa: ANN401 - a Java object
        return self._path(f"{self.path}/{place}" if place else self.path)


class ArrowFiles:
    """A folder on a file system of PyArrow: local, S3, Google Cloud, Azure or HDFS."""

    def __init__(self, path: str) -> None:
        from pyarrow import ArrowException, fs  # noqa: PLC0415 - takes half a second; classic sessions do not need it

        self._fs = fs
        uri = path if "://" in path or path.startswith("file:") else Path(path).absolute().as_uri()
        try:
            self._system, root = fs.FileSystem.from_uri(_S3.sub("s3://", re.sub("^file:/+", "file:///", uri)))
        except (ArrowException, ValueError, OSError) as error:
            msg = f"{path}: PyArrow cannot reach this file system, which Spark Connect needs: {error}"
            raise InvalidOptionError(msg) from error
        self._root = root.rstrip("/")
        local = isinstance(self._system, fs.LocalFileSystem)
        self.path: str = f"file:{self._root}" if local else path.rstrip("/")

    def exists(self, place: str) -> bool:
        """See `Files`."""
        return bool(self._system.get_file_info(self._at(place)).type != self._fs.FileType.NotFound)

    def names(self, place: str) -> list[str]:
        """See `Files`."""
        return [info.base_name for info in self._found(place, recursive=False)]

    def below(self, place: str) -> list[str]:
        """See `Files`."""
        start = len(self._at(place)) + 1
        return [info.path[start:] for info in self._found(place, recursive=True) if info.is_file]

    def remove(self, place: str) -> None:
        """See `Files`."""
        info = self._system.get_file_info(self._at(place))
        if info.type == self._fs.FileType.Directory:
            self._system.delete_dir(info.path)
        elif info.is_file:
            self._system.delete_file(info.path)

    def rename(self, place: str, to: str) -> bool:
        """See `Files`."""
        if not self.exists(place):
            return False
        target = self._at(to)
        self._system.create_dir(target.rpartition("/")[0], recursive=True)
        self._system.move(self._at(place), target)
        return True

    def write(self, place: str, data: bytes) -> None:
        """See `Files`."""
        path = self._at(place)
        self._system.create_dir(path.rpartition("/")[0], recursive=True)
        with self._system.open_output_stream(path) as stream:
            stream.write(data)

    def read(self, place: str) -> bytes:
        """See `Files`."""
        with self._system.open_input_stream(self._at(place)) as stream:
            return bytes(stream.read())

    def _at(self, place: str) -> str:
        return f"{self._root}/{place}" if place else self._root

    def _found(self, place: str, *, recursive: bool) -> list[Any]:
        selector = self._fs.FileSelector(self._at(place), allow_not_found=True, recursive=recursive)
        return list(self._system.get_file_info(selector))


def _paths(found: Any) -> Iterator[str]:  # noqa: ANN401 - Hadoop's iterator of files
    while found.hasNext():
        yield str(found.next().getPath())
