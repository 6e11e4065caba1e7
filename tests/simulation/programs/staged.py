"""Pending batches: several writers put the parts of each batch, and complete it, abandon it, or are killed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.batches.staging import BatchWriter, FencedError, OvertakenError, fenced_puts
from aiozkqueue.queue.candidates.batches import batch_lock_of
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import (
    ConnectionLossError,
    Create,
    MultiError,
    NodeExistsError,
    SessionExpiredError,
    SetData,
)
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join
from tests.simulation.programs.streamed import tokens_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.batches.staging import Fence
    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

STAGED = "staged"


@dataclass
class Batches:
    """The batches of a history."""

    opened: dict[str, float] = field(default_factory=dict[str, float])
    """By token of a batch, the time before which no consumer may see it; infinity: never."""


async def prepare_queue(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, STAGED, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2))))


async def write(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    staging = BatchWriter(core_of(session).handle(STAGED), f"writer of {client} {run.token()}")
    for number in range(random.randint(1, 3)):
        unit = run.unit(client)
        unit.puts = {run.token(): STAGED for _ in range(random.randint(1, 6))}
        batches = run.history.part(Batches)
        batches.opened.update(dict.fromkeys(unit.puts, float("inf")))
        try:
            await write_batch(run, session, staging, number, tuple(unit.puts))
        except (zq.QueueError, MultiError) as error:
            run.decide(unit, Status.UNKNOWN, repr(error))
            return
        if random.random() < 0.3:
            late = (await staging.begin(number, "run"), run.token())
            unit.puts[late[1]] = STAGED
            batches.opened[late[1]] = float("inf")
            await staging.abort(number)
            assert late[0] is not None
            try:
                await put(run, session, staging, late[0], late[1])  # by an earlier task
            except FencedError:
                run.decide(unit, Status.NOT_COMMITTED, "given up")
            return
        batches.opened.update(dict.fromkeys(unit.puts, run.loop.time()))
        await staging.complete(number)
        run.decide(unit, Status.COMMITTED)


async def write_batch(
    run: Recorder, session: zq.QueueSession, staging: BatchWriter, number: int, tokens: tuple[str, ...]
) -> None:
    fence = await staging.begin(number, "run")
    assert fence is not None
    for token in tokens:
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        try:
            await put(run, session, staging, fence, token)
        except OvertakenError as error:
            raise AssertionError(token) from error


async def put(run: Recorder, session: zq.QueueSession, staging: BatchWriter, fence: Fence, *tokens: str) -> None:
    """Put one part exactly once; a znode records the progress."""
    runtime, path = core_of(session), f"{staging.path}/{tokens[0]}"
    while await runtime.zookeeper.exists(path) is None:
        try:
            await runtime.zookeeper.multi([Create(path)])
        except (ConnectionLossError, SessionExpiredError):
            await runtime.zookeeper.wait_connected()
        except MultiError as error:
            if not isinstance(error.error, NodeExistsError):  # a lost request arrived late
                raise
    choices: list[dict[str, float]] = [{}, {}, {"priority": -5}, {"delay": 0.2}]
    options = run.random.choice(choices)
    puts = [fence.staged(prepare(runtime, STAGED, token.encode(), options)) for token in tokens]
    await make_ready(puts)
    await runtime.settle(fenced_puts(runtime.ids.next(), puts, fence, SetData(path, b"done", version=0)))


async def take_visible(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Take visible messages repeatedly, without waiting."""
    for _ in range(run.random.randint(2, 10)):
        await asyncio.sleep(run.random.random() * 0.3)
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            for message in await tx.take_many(session.queue(STAGED), 10):
                run.show(unit, client, session, message)
            run.release_unseen(unit)
        if unit.status is Status.PENDING:
            run.decide(unit, Status.COMMITTED)


def finish(run: Recorder, nodes: Mapping[str, Znode]) -> None:
    """Ignore the locks of incomplete batches, which stay and hide the messages."""
    base = f"/zms/{STAGED}"
    final = run.history.final
    locks = {path.rpartition("lock-")[2] for path in nodes if path.startswith(f"{base}/locks/lock-b")}
    hidden = {
        token for path, node in nodes.items() if batch_lock_of(path) in locks for token in tokens_in(path, node.data)
    }
    final.items[STAGED] = [token for token in final.items[STAGED] if token not in hidden]
    final.leftovers[:] = [path for path in final.leftovers if not path.startswith(f"{base}/locks/lock-b")]


join(Feature("staged", prepare_queue, [write, write, take_visible], finish))
