"""A queue whose znodes are deleted by hand while a session opens it is created again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.zookeeper import Delete, NoNodeError, below
from tests.simulation.between import Between
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiozkqueue as zq
    from aiozkqueue.zookeeper import ZooKeeper

QUEUES: dict[str, Callable[[zq.QueueSession], zq.Queue[bytes]]] = {
    "own": lambda session: session.queue("jobs"),
    "Curator's": lambda session: session.curator_queue("/app/jobs", lock_path="/app/locks"),
    "kazoo's": lambda session: session.kazoo_queue("/app/jobs"),
}


async def delete_all(zookeeper: ZooKeeper, path: str) -> None:
    for name in await below(zookeeper, path):
        await delete_all(zookeeper, f"{path}/{name}")
    await zookeeper.multi([Delete(path)])


@pytest.mark.parametrize("number", range(1, 15))
@pytest.mark.parametrize("queue", QUEUES)
def test_a_put_creates_what_was_deleted_while_its_queue_was_opened(queue: str, number: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        queue_of = QUEUES[queue]
        await queue_of(operator).put(b"1")
        zookeeper = core_of(operator).zookeeper

        async def delete() -> None:
            await delete_all(zookeeper, state_of(queue_of(operator)).paths.base)

        between = Between(session, number, delete)
        await queue_of(session).put(b"2")
        if not between.reached:
            return
        try:
            await zookeeper.read(state_of(queue_of(operator)).paths.base)
        except NoNodeError:
            return  # it was deleted after the put
        async with session.transaction() as tx:
            assert await tx.take(queue_of(session), timeout=5) is not None

    play(program, 2)
