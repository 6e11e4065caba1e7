"""Transactions that take, put, reject and release messages together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.history import Status, Unit
from tests.simulation.programs import QUEUES
from tests.simulation.recorder import STATUS, HandlerError

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.simulation.recorder import Recorder


async def transact(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    for _ in range(random.randint(1, 4)):
        unit = run.unit(client)
        box: list[zq.Transaction] = []
        if await run.perhaps_cancelled(_transaction(run, client, session, unit, box)):
            run.release_unseen(unit)
            run.history.interrupted += 1
            unit.why = "cancelled"
        if box and unit.status in (Status.PENDING, Status.UNKNOWN):
            outcome = await session.outcome(box[0].id)
            run.decide(unit, STATUS[outcome])


async def _transaction(
    run: Recorder, client: str, session: zq.QueueSession, unit: Unit, box: list[zq.Transaction]
) -> None:
    random = run.random
    autocommit = random.choice([True, False])
    async with run.outcome_of(unit), session.transaction(autocommit=autocommit) as tx:
        box.append(tx)
        try:
            await _work(run, client, session, unit, tx, commits=autocommit)
        finally:
            run.release_unseen(unit)


async def _work(
    run: Recorder, client: str, session: zq.QueueSession, unit: Unit, tx: zq.Transaction, *, commits: bool
) -> None:
    random = run.random
    of_features = [name for name in run.queues if name not in QUEUES]
    for name in random.choice([("a",), ("b",), ("a", "b"), *((name, "b") for name in of_features)]):
        for message in await tx.take_many(
            session.queue(name), random.choice([1, 1, 2]), timeout=random.choice([0, 0.2, 2])
        ):
            token = run.show(unit, client, session, message)
            what = random.random()
            if what < 0.1:
                tx.reject(message, "bad")
                unit.rejects.add(token)
            elif what < 0.2 and name in QUEUES:  # in a queue where a message may be released while a later one is not
                tx.release(message, delay=random.choice([None, 0.2]))
                unit.keeps.add(token)
    for _ in range(random.choice([0, 1, 1, 2])):
        token, name = run.token(), random.choice(QUEUES)
        unit.puts[token] = name
        tx.put(name, token.encode())
    await asyncio.sleep(random.random() * random.choice([0, 0.05, 1]))
    what = random.random()
    if what < 0.1:
        raise HandlerError
    run.release_unseen(unit)
    if what < 0.2:
        await tx.rollback(delay=random.choice([None, 0, 0.2]))
        run.decide(unit, Status.NOT_COMMITTED)
        return
    if what < 0.3:
        await tx.commit(timeout=random.choice([0.001, 0.5]))
        run.decide(unit, Status.COMMITTED)
        return
    if commits:
        return
    await tx.commit()
    run.decide(unit, Status.COMMITTED)
