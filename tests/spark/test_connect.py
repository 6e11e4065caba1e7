"""The format, `unload` and the audit work on Spark Connect, whose clients have no JVM."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.spark.files import ArrowFiles
from tests.spark.connected import ROWS
from tests.spark.local import PROJECT, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_each_part_works_without_a_jvm_in_the_client(
    zookeeper: str, queue_root: str, tmp_path: Path, spark_java: str
) -> None:
    for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module, reason="pip install 'pyspark[connect]'")

    async def keep_history() -> None:
        async with zq.connect(zookeeper, root=queue_root) as session:
            await session.queue("second").configure(zq.QueueConfig(history=zq.History()))

    asyncio.run(keep_history())
    command = [sys.executable, "-m", "tests.spark.connected", zookeeper, queue_root, str(tmp_path)]
    done = subprocess.run(
        command,
        env=os.environ | environment(spark_java),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        f"{ROWS} copied",
        f"{ROWS} unloaded",
        "0 unloaded",
        f"{ROWS} in files",
        f"{ROWS} loaded",
        f"{ROWS} records",
        "0 records",
        f"{ROWS} ended",
    ]


def test_files_of_a_folder_are_listed_moved_and_removed(tmp_path: Path) -> None:
    files = ArrowFiles(str(tmp_path / "new"))
    assert files.path == f"file:{tmp_path}/new"
    assert (files.exists(""), files.names(""), files.below("")) == (False, [], [])
    files.remove("nothing")
    assert not files.rename("nothing", "else")
    files.write("a/b/one.parquet", b"1")
    files.write("two", b"2")
    files.write("two", b"22")
    assert files.rename("a/b/one.parquet", "c/one.parquet")
    assert sorted(files.names("")) == ["a", "c", "two"]
    assert sorted(files.below("")) == ["c/one.parquet", "two"]
    assert files.below("c") == ["one.parquet"]
    assert files.read("two") == b"22"
    files.remove("c")
    files.remove("two")
    assert files.below("") == []
    for same in (f"file:{tmp_path}/new", f"file://{tmp_path}/new", f"{tmp_path}/new/"):
        assert ArrowFiles(same).exists("a")
    with pytest.raises(InvalidOptionError, match="PyArrow cannot reach this file system"):
        ArrowFiles("nosuch://host/folder")
