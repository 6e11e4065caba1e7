"""Listeners with batch handlers, which put a message for each batch, and fail some or all messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join
from tests.simulation.recorder import STATUS, HandlerError

if TYPE_CHECKING:
    from aiozkqueue.listeners import Batch
    from tests.simulation.history import Unit
    from tests.simulation.recorder import Recorder

BATCHED, STORED = "batched", "stored"


@dataclass(slots=True)
class Call:
    """One call of a handler."""

    limit: int
    """The maximum number of messages that it may get."""
    tokens: list[str]
    work: Unit
    """The commit: the messages that the handler has not failed, and its puts."""


@dataclass
class Calls:
    """The calls of all handlers."""

    calls: list[Call] = field(default_factory=list[Call])
    rejected: list[Unit] = field(default_factory=list["Unit"])
    """One unit for each message that a handler has rejected."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    backoff = zq.Fixed(run.random.choice([0, 0, 0.1]))
    policy = run.random.choice([zq.AtLeastOnce(backoff=backoff), zq.ConsumeTimes(4, backoff=backoff)])
    await run.configure(session, BATCHED, zq.QueueConfig(policy=policy, bundle=run.random.choice([None, 3])))
    await run.configure(session, STORED, zq.QueueConfig(policy=zq.AtLeastOnce()))
    run.spared.add(STORED)


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(1, 4)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        unit = run.unit(client)
        unit.puts = {run.token(): BATCHED for _ in range(run.random.randint(1, 5))}
        async with run.outcome_of(unit):
            await session.queue(BATCHED).put_many([token.encode() for token in unit.puts])
            run.decide(unit, Status.COMMITTED)


async def listen(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    size, concurrency = random.choice([2, 3, 5]), random.choice([1, 2])
    calls: list[tuple[Call, Batch[bytes]]] = []

    async def handler(batch: Batch[bytes]) -> None:
        unit = run.unit(client)
        call = Call(size, [run.show(unit, client, session, message) for message in batch], unit)
        calls.append((call, batch))
        run.history.part(Calls).calls.append(call)
        takes = list(unit.takes)
        try:
            await _handle(run, unit, batch)
        finally:
            for delivery in takes:
                delivery.until = run.loop.time()

    listener = session.listener(
        session.queue(BATCHED),
        handler,
        batch=size,
        batch_wait=random.choice([0, 0.05, 0.5]),
        concurrency=concurrency,
        on_lost=random.choice(["finish", "cancel"]),
        drain_timeout=random.choice([0.1, 20]),
    )
    run.loop.call_later(random.random() * 4, random.choice([listener.stop, listener.abort]))
    await run.perhaps_cancelled(listener.run())
    run.history.interrupted += concurrency * size  # up to this many deliveries may have been about to begin
    for call, batch in calls:
        if batch._work.outcome is zq.Outcome.UNKNOWN:
            await batch._work.decision(None)
        run.decide(call.work, STATUS[batch._work.outcome])


async def _handle(run: Recorder, unit: Unit, batch: Batch[bytes]) -> None:
    random = run.random
    token = run.token()
    unit.puts[token] = STORED
    batch.put(STORED, token.encode())
    await asyncio.sleep(random.random() * random.choice([0.001, 0.1, 1]))
    what = random.random()
    if what < 0.1:
        raise HandlerError
    if what < 0.2:
        whole = random.choice([zq.Retry(delay=random.choice([None, 0, 0.1])), zq.Reject("bad")])
        for delivery in list(unit.takes):
            _fail(run, unit, delivery.token, rejected=isinstance(whole, zq.Reject))
        raise whole
    for message in batch if what < 0.7 else ():
        if random.random() < 0.5:
            error = random.choice([HandlerError(), zq.Retry(delay=0), zq.Reject("bad")])
            batch.fail(message, error)
            _fail(run, unit, message.value.decode(), rejected=isinstance(error, zq.Reject))


def _fail(run: Recorder, unit: Unit, token: str, *, rejected: bool) -> None:
    """Record that a message of a batch has failed, and that the puts of the batch are dropped if it is the last one."""
    (delivery,) = (take for take in unit.takes if take.token == token)
    unit.takes.remove(delivery)
    failed = run.unit(unit.client)
    failed.takes.append(delivery)
    if rejected:
        failed.rejects.add(token)
        run.history.part(Calls).rejected.append(failed)
    else:
        run.decide(failed, Status.NOT_COMMITTED, "failed")
    if not unit.takes:
        dropped = run.unit(unit.client)
        dropped.puts, unit.puts = unit.puts, {}
        run.decide(dropped, Status.NOT_COMMITTED, "all messages of its batch were failed")


join(Feature("batch handlers", prepare, [put, put, listen, listen]))
