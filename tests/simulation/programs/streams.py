"""Drivers of one stream, several at once: each goes on from the same checkpoint, and takes the ledger over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.layout import LockRecord, decode, item_id
from aiozkqueue.queue.claims.pages import is_of_ledger, read_page
from aiozkqueue.queue.ledger import Ledger
from aiozkqueue.zookeeper import ConnectionLossError, NoNodeError, SessionExpiredError
from tests.simulation.history import Handed, Status, Unit
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

STREAMED = "streamed"


@dataclass
class Checkpoint:
    """What outlives every driver: the two logs, and a sink that knows batches by their numbers."""

    offsets: list[int] = field(default_factory=list[int])
    asked: dict[int, float] = field(default_factory=dict[int, float])
    """When a driver first asked for the batch that follows on one: nothing of it was held before."""
    commits: int = 0
    sink: dict[int, Unit] = field(default_factory=dict[int, Unit])
    differed: list[str] = field(default_factory=list[str])
    """Batches that were not the same when they were tried again."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, STREAMED, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2))))


async def produce(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(2, 8)):
        await asyncio.sleep(run.random.random() * 0.3)
        unit = run.unit(client)
        unit.puts = {run.token(): STREAMED for _ in range(run.random.randint(1, 4))}
        async with run.told(unit):
            await session.queue(STREAMED).put_many([token.encode() for token in unit.puts])
            run.decide(unit, Status.COMMITTED)


async def drive(run: Recorder, client: str, session: zq.QueueSession) -> None:
    checkpoint = run.history.part(Checkpoint)
    ledger = new_driver(session)
    for _ in range(run.random.randint(4, 12)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.1, 0.5]))
        try:
            await step(run, client, session, ledger, checkpoint)
        except zq.ClaimLostError:
            ledger = new_driver(session)
        except (ConnectionLossError, SessionExpiredError):
            await session.engine.zookeeper.wait_connected()


def new_driver(session: zq.QueueSession) -> Ledger:
    return Ledger(session.engine, session.engine.store(STREAMED), "spark")


async def step(run: Recorder, client: str, session: zq.QueueSession, ledger: Ledger, checkpoint: Checkpoint) -> None:
    """One batch, as far as it comes, as Spark does it."""
    length = len(checkpoint.offsets)
    if checkpoint.commits == length:
        start = checkpoint.offsets[-1] if length else -1
        await ledger.acknowledge(start)
        for number, unit in checkpoint.sink.items():
            if number <= start and unit.status is Status.PENDING and not forced_open(run, checkpoint, number):
                run.decide(unit, Status.COMMITTED)
        checkpoint.asked.setdefault(start, run.loop.time())
        latest = await ledger.next_batch(start, run.random.choice([None, 2, 5]))
        if latest == start or len(checkpoint.offsets) != length:
            return  # another driver has written the log: Spark ends this one
        checkpoint.offsets.append(latest)
    index = len(checkpoint.offsets) - 1
    number = checkpoint.offsets[index]
    tokens = await read_batch(session, ledger, number)
    if tokens is None:
        return  # Spark's task fails
    if checkpoint.commits > index:
        return
    zookeeper, now = session.engine.zookeeper, run.loop.time()
    if (known := checkpoint.sink.get(number)) is None:
        known = checkpoint.sink[number] = run.unit(client)
        known.takes += [Handed(one, STREAMED, client, zookeeper.session_id, now, now) for one in tokens]
    elif [one.token for one in known.takes] != tokens:
        checkpoint.differed.append(f"batch {number} was {[one.token for one in known.takes]}, and then {tokens}")
    checkpoint.commits = index + 1


def forced_open(run: Recorder, checkpoint: Checkpoint, number: int) -> bool:
    """Whether what a batch held may have been forced open, and gone to others: the sink has it all the same."""
    index = checkpoint.offsets.index(number)
    asked = checkpoint.asked[checkpoint.offsets[index - 1] if index else -1]
    return any(opened.queue == STREAMED and opened.ended >= asked for opened in run.history.opened)


async def read_batch(session: zq.QueueSession, ledger: Ledger, number: int) -> list[str] | None:
    """Read what a batch holds; None when some of it is not there."""
    zookeeper, paths = session.engine.zookeeper, session.engine.store(STREAMED).paths
    tokens: list[str] = []
    for page in await ledger.pages(number):
        try:
            entries = await read_page(zookeeper.read, page.path)
        except NoNodeError:
            return None
        for node in await zookeeper.read_many([paths.at(one.place) for one in entries]):
            if node is None:
                return None
            tokens.append(decode(node.data)[1].decode())
    return tokens


def finish(run: Recorder, nodes: Mapping[str, Znode]) -> None:
    """What the last batch holds stays: a driver would come back for it, and no lock outlives its holder."""
    base, final = f"/zms/{STREAMED}", run.history.final
    held = {
        path.rpartition("lock-")[2]
        for path, node in nodes.items()
        if path.startswith(f"{base}/locks/lock-") and is_of_ledger(LockRecord.decode(node.data))
    }
    kept = {
        decode(node.data)[1].decode()
        for path, node in nodes.items()
        if path.startswith((f"{base}/items/", f"{base}/lanes/"))
        and path.rpartition("/")[2].startswith("item-")
        and item_id(path.rpartition("/")[2]) in held
    }
    final.items[STREAMED], final.kept[STREAMED] = (
        [token for token in final.items[STREAMED] if (token in kept) is whether] for whether in (False, True)
    )
    attempts = tuple(f"{base}/meta/meta-{one} " for one in held)  # at what somebody else took before
    final.leftovers[:] = [
        one for one in final.leftovers if '"ledger:' not in one.replace("\\", "") and not one.startswith(attempts)
    ]


join(Feature("streams", prepare, [produce, drive, drive], finish))
