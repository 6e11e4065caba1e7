"""Producers of one message, or of several at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.history import Status, Unit
from tests.simulation.programs import QUEUES

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.simulation.recorder import Recorder


async def produce(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    for _ in range(random.randint(1, 5)):
        await asyncio.sleep(random.random() * random.choice([0, 0.01, 0.5]))
        unit = run.unit(client)
        name = random.choice(QUEUES)
        tokens = [run.token() for _ in range(random.choice([1, 1, 3]))]
        unit.puts = dict.fromkeys(tokens, name)
        queue = session.queue(name)

        async def put(queue: zq.Queue[bytes] = queue, tokens: list[str] = tokens, unit: Unit = unit) -> None:
            async with run.outcome_of(unit):
                if len(tokens) == 1:
                    await queue.put(tokens[0].encode())
                else:
                    await queue.put_many([token.encode() for token in tokens])
                run.decide(unit, Status.COMMITTED)

        if await run.perhaps_cancelled(put()) and unit.status is Status.PENDING:
            run.decide(unit, Status.UNKNOWN, "cancelled")
