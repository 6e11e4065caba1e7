"""Consumers and listeners."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.recorder import STATUS, HandlerError

if TYPE_CHECKING:
    from tests.simulation.history import Unit
    from tests.simulation.recorder import Recorder


async def consume(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    left = random.randint(1, 6)
    name = random.choice(run.queues)
    prefetch = random.choice([1, 1, 4])
    until_idle = random.choice([0, 0.5, 2])
    settle = random.choice(["next", "block"])
    units: list[tuple[Unit, zq.Delivery[bytes]]] = []

    async def loop() -> None:
        nonlocal left
        with suppress(HandlerError, zq.NotCommittedError, zq.OutcomeUnknownError):
            async with session.queue(name).consume(prefetch=prefetch, until_idle=until_idle) as deliveries:
                async for delivery in deliveries:
                    unit = run.unit(client)
                    units.append((unit, delivery))
                    run.show(unit, client, session, delivery)
                    try:
                        if settle == "block":
                            async with delivery:
                                try:
                                    await _handle(run, unit, delivery)
                                finally:  # before the rollback of the block releases the message to others
                                    run.release_unseen(unit)
                        else:
                            await _handle(run, unit, delivery)
                    finally:
                        run.release_unseen(unit)
                    left -= 1
                    if left <= 0:
                        break

    if await run.perhaps_cancelled(loop()):
        run.history.interrupted += 1
    for unit, delivery in units:
        run.release_unseen(unit)
        if delivery.outcome is zq.Outcome.UNKNOWN:
            await delivery._settling.work.decision(None)  # type: ignore[attr-defined]
        run.decide(unit, STATUS[delivery.outcome])


async def listen(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    units: list[tuple[Unit, zq.Delivery[bytes]]] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        unit = run.unit(client)
        units.append((unit, delivery))
        run.show(unit, client, session, delivery)
        try:
            if random.random() < 0.1:
                raise zq.Retry(delay=random.choice([None, 0, 0.1]))
            if random.random() < 0.1:
                unit.rejects.add(unit.takes[0].token)
                unit.puts.clear()
                raise zq.Reject("bad")
            await _handle(run, unit, delivery)
        finally:
            run.release_unseen(unit)

    concurrency = random.choice([1, 2, 4])
    listener = session.listener(
        session.queue(random.choice(run.queues)),
        handler,
        concurrency=concurrency,
        on_lost=random.choice(["finish", "cancel"]),
        drain_timeout=random.choice([0.1, 20]),
    )
    run.loop.call_later(random.random() * 4, random.choice([listener.stop, listener.abort]))
    await run.perhaps_cancelled(listener.run())
    run.history.interrupted += concurrency  # up to this many deliveries may have been about to begin
    for unit, delivery in units:
        run.release_unseen(unit)
        if delivery.outcome is zq.Outcome.UNKNOWN:
            await delivery._settling.work.decision(None)  # type: ignore[attr-defined]
        run.decide(unit, STATUS[delivery.outcome])


async def _handle(run: Recorder, unit: Unit, delivery: zq.Delivery[bytes]) -> None:
    random = run.random
    if random.random() < 0.4:
        token = run.token()
        unit.puts[token] = "b"
        delivery.put("b", token.encode())
    if random.random() < 0.5:
        await asyncio.sleep(random.random() * random.choice([0.001, 0.1, 1]))
    what = random.random()
    if what < 0.15:
        raise HandlerError
    if what < 0.2:
        run.release_unseen(unit)
        await delivery.rollback(delay=random.choice([None, 0, 0.1]))
    elif what < 0.25:
        unit.rejects.add(unit.takes[0].token)
        unit.puts.clear()
        run.release_unseen(unit)
        await delivery.reject("bad")
    elif what < 0.35:
        run.release_unseen(unit)
        await delivery.commit()
