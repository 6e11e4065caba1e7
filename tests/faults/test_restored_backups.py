"""A backup of an ensemble is restored while programs keep running."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from tests.faults.test_replaced_servers import Replaceable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from aiozkqueue.testing.node import EmbeddedNode

OLDER = "the servers have older data"


class Elected:
    """An ensemble of a single server. Each start is an election, which makes its zxids newer than all earlier ones."""

    def __init__(self, node: EmbeddedNode, backup: Path) -> None:
        self.hosts = node.hosts
        self._node = node
        self._data = node.folder / "data" / "version-2"
        self._backup = backup

    def back_up(self) -> None:
        """Copy the data of the running server, which receives no writes at the moment."""
        shutil.copytree(self._data, self._backup)

    def restore(self) -> None:
        """Replace the data by the copy, and start the server again."""
        self._node.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data)
        self._node.start(60)


@asynccontextmanager
async def elected(folder: Path) -> AsyncIterator[Elected]:
    servers = Replaceable(folder)
    await asyncio.to_thread(servers.launch, 1, (1,))
    node = servers.nodes[1]
    try:
        await asyncio.to_thread(node.wait_serving, 60)
        yield Elected(node, folder / "backup")
    finally:
        await asyncio.to_thread(node.stop)


async def test_a_message_in_hand_at_the_time_of_a_restored_backup_is_redelivered_while_its_consumer_runs(
    tmp_path: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with elected(tmp_path) as server, zq.connect(server.hosts, root=root, session_timeout=20) as session:
        core, jobs, done = core_of(session), session.queue("jobs"), session.queue("done")
        await jobs.put_many([b"1", b"2"])
        async with session.transaction() as tx:
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            await asyncio.to_thread(server.back_up)
            tx.put(done, message.body)
        await done.put(b"after the backup")

        await asyncio.to_thread(server.restore)
        caplog.set_level(logging.WARNING, logger="aiozkqueue")
        await done.put(b"after the restore", timeout=60)
        async with zq.connect(server.hosts, root=root, session_timeout=20) as other, other.transaction() as tx:
            taken = [await tx.take(other.queue("jobs"), timeout=60) for _ in range(2)]
        assert [each and each.body for each in taken] == [b"1", b"2"]
        assert core.zookeeper.generation == 2, "one new session, although several commit slots are older"
        await asyncio.gather(*(done.put(b"%d" % number) for number in range(300)))
        assert core.zookeeper.generation == 2
        assert await done.size() == 301
    assert [record.getMessage() for record in caplog.records if OLDER in record.getMessage()] != []
