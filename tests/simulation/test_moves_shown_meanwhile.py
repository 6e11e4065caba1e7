"""A move that ends while it is read is shown as running with a session that works on it, or as ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.simulation.between import Between
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    import aiozkqueue as zq

pytestmark = pytest.mark.timeout(120)

#: More requests than reading one move takes.
REQUESTS = 10


def test_a_move_that_ends_meanwhile_is_not_shown_as_left_by_its_session() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, mover = sessions
        number = 0
        for number in range(1, REQUESTS):
            await mover.queue("source").put(b"x")
            tx = await mover.transaction(autocommit=False).__aenter__()
            assert await tx.take(mover.queue("source"), timeout=10)
            reference = await mover.admin.moves.start("source", "target")
            await asyncio.sleep(1)

            async def end(tx: zq.Transaction = tx, reference: str = reference) -> None:
                await tx.rollback(delay=0)
                while (await mover.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - the state is in ZooKeeper
                    await asyncio.sleep(0.1)
                await asyncio.sleep(1)

            between = Between(reader, number, end)
            status = await reader.admin.moves.status(reference)
            if not between.reached:
                break
            assert not status.unattended, number
            await mover.queue("target").purge()
        assert number > 2

    play(program, 2)
