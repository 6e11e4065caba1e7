"""Groups whose lock a session keeps from one message to the next: it must end for pauses, and for other consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    import aiozkqueue as zq


def test_a_consumer_that_joins_gets_its_share_of_the_groups_that_another_one_holds() -> None:
    """Each group has waiting messages until the end, so its lock would stay in place."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        jobs, shares, done = sessions[0].queue("jobs"), [0, 0], asyncio.Event()
        for number in range(320):
            await jobs.put(b"", group="abcdefgh"[number % 8])

        def listener(number: int) -> zq.Listener[bytes]:
            async def handle(_: zq.Delivery[bytes]) -> None:
                await asyncio.sleep(0.1)
                shares[number] += 1
                if sum(shares) == 320:
                    done.set()

            return sessions[number].listener(sessions[number].queue("jobs"), handle, concurrency=8)

        async with listener(0):
            await asyncio.sleep(0.5)
            async with listener(1):
                await done.wait()
        assert min(shares) > 80, shares

    play(program, 2)
