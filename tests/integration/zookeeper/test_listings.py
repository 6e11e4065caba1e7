"""A listing of 100,000 names from a real server: read incrementally, and again after a lost connection."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing import EmbeddedZooKeeper, FaultProxy, ServerOptions
from aiozkqueue.testing.proxy import Direction
from aiozkqueue.zookeeper import Create, NoNodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import ZooKeeperClient
    from tests.integration.zookeeper.conftest import Opener

pytestmark = pytest.mark.timeout(180)

NAMES = [f"item-i{number:016x}-{number:010d}" for number in range(100_000)]
SIZE = sum(len(name) + 4 for name in NAMES)


class Counting:
    """Counts names without keeping them."""

    def __init__(self) -> None:
        self.names = self.pieces = 0

    def take(self, names: list[str]) -> None:
        self.names += len(names)
        self.pieces += 1


class LoopTurns:
    """Counts the names that arrive in each turn of the loop."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self._same_turn = False

    def take(self, names: list[str]) -> None:
        if not self._same_turn:
            self.names.append(0)
            self._same_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        self.names[-1] += len(names)

    def _end_turn(self) -> None:
        self._same_turn = False


class Keeping:
    """Keeps all names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def take(self, names: list[str]) -> None:
        self.names += names


async def fill(zk: ZooKeeperClient) -> None:
    await zk.ensure("/items")
    for start in range(0, len(NAMES), 4000):
        creates = [Create(f"/items/{name}") for name in NAMES[start : start + 4000]]
        await asyncio.gather(*(zk.multi(creates[at : at + 1000]) for at in range(0, len(creates), 1000)))


def made(collectors: list[Keeping]) -> Callable[[], Keeping]:
    def make() -> Keeping:
        collectors.append(Keeping())
        return collectors[-1]

    return make


async def test_a_deep_listing_is_read_incrementally_and_again_after_a_loss(opened: Opener) -> None:
    # A separate server, because 100,000 deletions would take as long as the test.
    server = EmbeddedZooKeeper(ServerOptions(fsync=False))
    async with server, FaultProxy(server.hosts) as proxy:
        zk = await opened(server.hosts)
        await fill(zk)
        assert sorted(await zk.children("/items")) == NAMES

        tracemalloc.start()
        try:
            counted = await zk.children_into("/items", Counting)
            assert tracemalloc.get_traced_memory()[1] < SIZE  # the list of names takes three times that
        finally:
            tracemalloc.stop()
        assert counted.names == len(NAMES)
        assert counted.pieces > 5

        turns = await zk.children_into("/items", LoopTurns)
        assert sum(turns.names) == len(NAMES)
        assert max(turns.names) < 3000  # a read of the transport can contain three times that

        through_proxy = await opened(proxy.hosts)
        collectors: list[Keeping] = []
        proxy.cut_after(SIZE // 2, Direction.TO_CLIENT)
        kept = await through_proxy.children_into("/items", made(collectors))
        assert proxy.accepted == 2
        assert kept is collectors[-1]
        assert sorted(kept.names) == NAMES
        assert len(collectors) == 2
        assert 0 < len(collectors[0].names) < len(NAMES)

        with pytest.raises(NoNodeError, match="/nothing"):
            await zk.children_into("/nothing", Counting)
        await zk.close()
        await through_proxy.close()
