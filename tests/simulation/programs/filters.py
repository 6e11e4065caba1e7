"""Messages with tags, and consumers with filters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

TAGGED = "tagged"
CLASSES = zq.OrderedEnum("class", ("low", "standard", "high"))


@dataclass
class Choices:
    """The class that each message requires, and the deliveries to consumers with a class."""

    classes: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    delivered: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """The token, and the class of the consumer, which takes messages that require this class or a lower one."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, TAGGED, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, choices = run.random, run.history.part(Choices)
    for _ in range(random.randint(2, 6)):
        await asyncio.sleep(random.random() * random.choice([0, 0.01, 0.5]))
        unit, token, chosen = run.unit(client), run.token(), random.choice([None, *CLASSES.values])
        unit.puts, choices.classes[token] = {token: TAGGED}, chosen
        async with run.outcome_of(unit):
            await session.queue(TAGGED).put(token.encode(), tags={"class": chosen} if chosen else None)
            run.decide(unit, Status.COMMITTED)


async def request_policy(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, choices = run.random, run.history.part(Choices)
    own = random.choice(CLASSES.values)
    for _ in range(random.randint(2, 6)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            queue, patience = session.queue(TAGGED), random.choice([0, 0.2, 2])
            message = await tx.take(queue, timeout=patience, filters=CLASSES.at_least(own))
            if message is not None:
                choices.delivered.append((run.show(unit, client, session, message), own))
            run.release_unseen(unit)
            await tx.commit(timeout=60)
            run.decide(unit, Status.COMMITTED)


join(Feature("filters", prepare, [put, request_policy, request_policy]))
