"""A queue with groups and an ordered queue: producers that put in order, and all kinds of consumers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.history import Delivery
    from tests.simulation.recorder import Recorder

GROUPED, ORDERED = "grouped", "ordered"


@dataclass
class Wait:
    """A message released with a delay, for which its group waits."""

    delivery: Delivery
    released: float
    """The time when its holder learned of the release."""
    over: float


@dataclass
class Order:
    """The observations about the order."""

    places: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """The group, and the number in it, of each message whose put is known to be applied."""
    waits: list[Wait] = field(default_factory=list["Wait"])


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    soon = zq.Exponential(0.05, 2, 0.4, 0.1)
    policy = zq.AtLeastOnce(backoff=soon)
    await run.configure(session, GROUPED, zq.QueueConfig(policy=policy, shards=2))
    await run.configure(session, ORDERED, zq.QueueConfig(policy=policy, ordered=True))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Put to a separate group and to the ordered queue, which is one group, and await each put."""
    await put_to(run, client, session, run.random.choice([GROUPED, GROUPED, ORDERED]))


async def put_to(run: Recorder, client: str, session: zq.QueueSession, name: str) -> None:
    group = f"{client}-{run.random.random()}"
    for number in range(run.random.randint(3, 8)):
        unit = run.unit(client)
        token = run.token()
        unit.puts = {token: name}
        async with run.outcome_of(unit):
            if name == ORDERED:
                await session.queue(name).put(token.encode())
            else:
                await session.queue(name).put(token.encode(), group=group)
            run.decide(unit, Status.COMMITTED)
        if unit.status is not Status.COMMITTED:
            return  # the place of the message in the order is unknown
        run.history.part(Order).places[token] = (group, number)
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.01, 0.1]))


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Take one or several messages in a transaction, which is sometimes rolled back."""
    await take_from(run, client, session, run.random.choice([GROUPED, ORDERED]))


async def take_from(run: Recorder, client: str, session: zq.QueueSession, name: str) -> None:
    queue = session.queue(name)
    for _ in range(run.random.randint(4, 12)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            for message in await tx.take_many(queue, run.random.choice([1, 1, 3]), timeout=0.3):
                run.show(unit, client, session, message)
            await asyncio.sleep(run.random.random() * run.random.choice([0, 0.02]))
            run.release_unseen(unit)
            if run.random.random() < 0.2:
                delay, began = run.random.choice([0, 0.05, 1.0]), run.loop.time()
                await tx.rollback(delay=delay)
                released = run.loop.time()
                run.history.part(Order).waits += [
                    Wait(delivery, released, began + delay) for delivery in unit.takes[:1]
                ]
                run.decide(unit, Status.NOT_COMMITTED)
            else:
                await tx.commit()
                run.decide(unit, Status.COMMITTED)


async def consume(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Handle the messages of several groups concurrently, and sometimes fail."""
    await consume_from(run, client, session, run.random.choice([GROUPED, ORDERED]))


async def consume_from(run: Recorder, client: str, session: zq.QueueSession, name: str) -> None:
    queue = session.queue(name)

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        unit = run.unit(client)
        run.show(unit, client, session, delivery)
        try:
            await asyncio.sleep(run.random.random() * run.random.choice([0, 0.02]))
            if run.random.random() < 0.2:
                raise zq.Retry(delay=run.random.choice([None, 0, 0.05]))
        finally:
            run.release_unseen(unit)

    async with session.listener(queue, handler, concurrency=run.random.choice([1, 3])):
        await asyncio.sleep(1 + run.random.random() * 3)


join(Feature("groups", prepare, [put, put, take, consume]))
