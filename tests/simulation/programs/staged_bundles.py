"""Pending batches in bundles, with concurrent attempts of a task, other puts of the session, and operators."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.batches.staging import BatchWriter, FencedError, OvertakenError
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import MultiError
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join
from tests.simulation.programs.staged import STAGED, Batches, finish, put, take_visible

if TYPE_CHECKING:
    from aiozkqueue.batches.staging import Fence
    from tests.simulation.recorder import Recorder


async def prepare_queue(run: Recorder, session: zq.QueueSession) -> None:
    config = zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2)), bundle=run.random.choice([2, 3, 4]))
    await run.configure(session, STAGED, config)


async def write(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, opened = run.random, run.history.part(Batches).opened
    staging = BatchWriter(core_of(session).handle(STAGED), f"writer of {client} {run.token()}")
    for number in range(random.randint(1, 3)):
        unit = run.unit(client)
        parts = [[run.token() for _ in range(random.randint(2, 9))] for _ in range(random.randint(1, 3))]
        unit.puts = {token: STAGED for part in parts for token in part}
        opened.update(dict.fromkeys(unit.puts, float("inf")))
        try:
            fence = await staging.begin(number, "run")
            assert fence is not None
            for part in parts:
                await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
                await asyncio.gather(put_once(run, session, staging, fence, part), put_beside(run, client, session))
        except (zq.QueueError, MultiError) as error:
            run.decide(unit, Status.UNKNOWN, repr(error))
            return
        if random.random() < 0.3:
            await staging.abort(number)
            with suppress(FencedError):
                await put(run, session, staging, fence, *(run.token() for _ in range(3)))  # by an earlier task
                raise AssertionError(fence)
            run.decide(unit, Status.NOT_COMMITTED, "given up")
            return
        opened.update(dict.fromkeys(unit.puts, run.loop.time()))
        await staging.complete(number)
        run.decide(unit, Status.COMMITTED)


async def put_once(
    run: Recorder, session: zq.QueueSession, staging: BatchWriter, fence: Fence, part: list[str]
) -> None:
    """Put a part by one attempt or by two concurrent ones, of which the second is refused."""
    attempts = [put(run, session, staging, fence, *part) for _ in range(run.random.choice([1, 1, 2]))]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    refused = [outcome for outcome in outcomes if outcome is not None]
    for error in refused:
        if not isinstance(error, OvertakenError):
            raise error
    assert len(refused) == len(attempts) - 1


async def put_beside(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Put plain messages, which may share a multi with a part."""
    unit = run.unit(client)
    unit.puts = {run.token(): STAGED for _ in range(run.random.randint(1, 5))}
    async with run.outcome_of(unit):
        await session.queue(STAGED).put_many([token.encode() for token in unit.puts])
        run.decide(unit, Status.COMMITTED)


async def operate(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Read figures and messages, and turn bundles off and on."""
    del client
    random, queue = run.random, session.queue(STAGED)
    for _ in range(random.randint(1, 4)):
        await asyncio.sleep(random.random() * random.choice([0.05, 0.5]))
        await queue.peek(3)
        with suppress(zq.NotCommittedError):
            await queue.stats()
        if random.random() < 0.5:
            await queue.admin.unbundle()
            await queue.configure(zq.QueueConfig(bundle=3))


join(Feature("staged_bundles", prepare_queue, [write, write, take_visible, operate], finish, apart=True))
