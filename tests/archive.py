"""A shared archive of the classes that a ZooKeeper server loads. It halves the start time of each server in a test run.

``python -m tests.archive FILE`` makes a class archive (CDS), which every embedded server uses with
``AIOZKQUEUE_JVM_OPTIONS=-XX:SharedArchiveFile=FILE``. Java ignores an archive that was made for other jars or another
version of Java.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions
from aiozkqueue.testing.runtime import class_path, java


async def _serve(options: ServerOptions) -> None:
    async with EmbeddedZooKeeper(options) as server, zq.connect(server.hosts) as session:
        await session.queue("orders").put(b"one")
        async with session.transaction() as tx:
            assert await tx.take(session.queue("orders")) is not None


def make(archive: Path) -> None:
    """Record the classes that a server loads, and make an archive of them."""
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder) / "classes"
        asyncio.run(_serve(ServerOptions(jvm_options=["-Xshare:off", f"-XX:DumpLoadedClassList={classes}"])))
        options = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}", "-XX:+UseSerialGC"]
        subprocess.run(
            [java(), "-Xshare:dump", *options, "-cp", class_path()],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
