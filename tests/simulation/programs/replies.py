"""Calls that wait for the replies of handlers. Some handlers fail or reject the message after they have replied."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.errors import GivenUpError, NoReplyError
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join
from tests.simulation.recorder import STATUS, HandlerError

if TYPE_CHECKING:
    from tests.simulation.history import Unit
    from tests.simulation.recorder import Recorder

ASKED = "asked"


@dataclass
class Calls:
    """The calls, and the replies of handlers."""

    got: dict[str, str] = field(default_factory=dict[str, str])
    """By token of the message, the reply that its caller got."""
    missed: dict[str, float] = field(default_factory=dict[str, float])
    """By token, the end of a call without a reply."""
    given_up: dict[str, str] = field(default_factory=dict[str, str])
    """By token, the reason of a call that ended because its message was given up."""
    rejected: dict[str, Unit] = field(default_factory=dict[str, "Unit"])
    """By token, the delivery that rejects the message."""
    given: dict[str, Unit] = field(default_factory=dict[str, "Unit"])
    """By reply, the commit that it belongs to."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    policy = zq.AtLeastOnce(backoff=zq.Fixed(run.random.choice([0, 0.1])))
    await run.configure(session, ASKED, zq.QueueConfig(policy=policy))


async def call(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, calls = run.random, run.history.part(Calls)

    async def call_once() -> None:
        await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: ASKED}
        async with run.outcome_of(unit):
            try:
                reply = await session.queue(ASKED).call(token.encode(), timeout=random.choice([0.5, 80]))
                calls.got[token] = reply.decode()
            except NoReplyError:
                calls.missed[token] = run.loop.time()
            except GivenUpError as error:
                calls.given_up[token] = error.reason
            run.decide(unit, Status.COMMITTED)

    async with asyncio.TaskGroup() as group:
        for _ in range(random.randint(1, 5)):
            group.create_task(call_once())


async def answer(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, calls = run.random, run.history.part(Calls)
    units: list[tuple[Unit, zq.Delivery[bytes]]] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        unit = run.unit(client)
        units.append((unit, delivery))
        token = run.show(unit, client, session, delivery)
        reply = f"{token} {len(calls.given)}"
        try:
            delivery.reply(reply.encode())
            end = random.random()
            if end > 0.1:
                calls.given[reply] = unit
            await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
            if end <= 0.1:
                unit.rejects.add(token)
                calls.rejected[token] = unit
                raise zq.Reject("bad")
            if end < 0.3:
                raise HandlerError
        finally:
            run.release_unseen(unit)

    listener = session.listener(session.queue(ASKED), handler, concurrency=4)
    run.loop.call_later(1 + random.random() * 4, random.choice([listener.stop, listener.abort]))
    await run.perhaps_cancelled(listener.run())
    run.history.interrupted += 4  # up to this many deliveries may have been about to begin
    for unit, delivery in units:
        run.release_unseen(unit)
        if delivery.outcome is zq.Outcome.UNKNOWN:
            await delivery._settling.work.decision(None)  # type: ignore[attr-defined]
        run.decide(unit, STATUS[delivery.outcome])


async def work(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Call and answer at the same time."""
    async with asyncio.TaskGroup() as group:
        group.create_task(call(run, client, session))
        group.create_task(answer(run, client, session))


join(Feature("replies", prepare, [call, work, work]))
