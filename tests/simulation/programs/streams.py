"""Concurrent drivers of one stream: each continues from a checkpoint, and takes over the ledger.

Operators release the ledger, and start the query with a new checkpoint. Its folder is empty, or it has batch numbers of
another checkpoint, which the sink then skips.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import CheckpointError, NotFoundError, UnreadBatchError
from aiozkqueue.layout import LockRecord, candidate_id, name_at
from aiozkqueue.operations.ledger_pages import is_of_ledger, read_page
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import ConnectionLossError, NoNodeError, SessionExpiredError
from tests.simulation.history import Delivery, Status, Unit
from tests.simulation.programs import Feature, join
from tests.simulation.programs.streamed import GROUP, STREAMED, Batches, observe, tokens_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.batches.ledger import HandedOut
    from aiozkqueue.operations.ledger_pages import Entry
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

#: The items of a page: few, so that an acknowledgement takes several requests.
PAGE = 2


class SmallPages(Ledger):
    """A ledger whose batches have many pages."""

    def __init__(self, handle: QueueHandle[Runtime], group: str) -> None:
        super().__init__(handle, group)
        take = self._maker._take_candidates

        def take_few(most: int) -> list[Entry]:
            return take(min(most, PAGE))

        self._maker._take_candidates = take_few  # type: ignore[method-assign]  # of this ledger alone


@dataclass
class Written:
    """The messages that a sink has stored under a batch number."""

    unit: Unit
    stream: str
    number: int


@dataclass
class Checkpoint:
    """Spark's two logs, and the folder of a sink that identifies batches by their numbers."""

    folder: dict[int, Written] = field(default_factory=dict[int, Written])
    offsets: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """By batch of Spark, the number in the ledger and the stream."""
    commits: int = 0
    pruned: set[int] = field(default_factory=set[int])
    """The batches of Spark whose query reads only the first half of the rows."""


@dataclass
class Streams:
    """The state that outlives every driver."""

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    pruned: bool = False
    """Whether a query has read only a part of its rows."""
    shared: bool = False
    """Whether two checkpoints have the same folder.

    Then no query reads only a part of a batch. A sink skips a batch whose number it has, so rows that the earlier query
    did not write would be lost, and the ledger could not detect it.
    """
    sunk: list[Written] = field(default_factory=list[Written])
    """The contents of all folders."""
    ended: set[int] = field(default_factory=set[int])
    """The batches whose acknowledgement has returned."""
    tried: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """The messages of each batch when it was first read."""
    differed: list[str] = field(default_factory=list[str])
    """Violations: batches with other messages at a retry."""


@dataclass
class Driver:
    """A query from its start to its failure."""

    ledger: Ledger
    checkpoint: Checkpoint
    lenient: bool
    """Whether the query continues if data may have been lost (``failOnDataLoss=false``)."""
    handed: tuple[int, str] | None = None


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, STREAMED, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2))))


async def produce(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(2, 8)):
        await asyncio.sleep(run.random.random() * 0.3)
        unit = run.unit(client)
        unit.puts = {run.token(): STREAMED for _ in range(run.random.randint(1, 4))}
        async with run.outcome_of(unit):
            await session.queue(STREAMED).put_many([token.encode() for token in unit.puts])
            run.decide(unit, Status.COMMITTED)


async def drive(run: Recorder, client: str, session: zq.QueueSession) -> None:
    driver = start(run, session)
    for _ in range(run.random.randint(4, 12)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.1, 0.5]))
        try:
            await step(run, client, session, driver)
        except CheckpointError:  # the error tells the user to start with a new checkpoint and an empty folder
            run.history.part(Streams).checkpoint = Checkpoint()
            driver = start(run, session)
        except zq.ClaimLostError:
            driver = start(run, session)
        except (ConnectionLossError, SessionExpiredError):
            await core_of(session).zookeeper.wait_connected()


def start(run: Recorder, session: zq.QueueSession) -> Driver:
    ledger = SmallPages(core_of(session).handle(STREAMED), GROUP)
    return Driver(ledger, run.history.part(Streams).checkpoint, lenient=run.random.random() < 0.5)


async def step(run: Recorder, client: str, session: zq.QueueSession, driver: Driver) -> None:
    """Process one batch as Spark does, up to the first failure."""
    checkpoint, length = driver.checkpoint, len(driver.checkpoint.offsets)
    if checkpoint.commits == length:
        after, stream = await acknowledged(run, driver)
        observe(run)
        batches = run.history.part(Batches)
        begun = frozenset(batches.begun)
        number = await driver.ledger.next_batch(after, run.random.choice([None, 2, 5, 9]))
        if number == after or len(checkpoint.offsets) != length:
            return  # another driver has written the log, so Spark ends this one
        if number in begun:
            batches.note_returned(number, "the next batch")
        if run.random.random() < 0.1 and not run.history.part(Streams).shared:
            checkpoint.pruned.add(length)
            run.history.part(Streams).pruned = True
        checkpoint.offsets.append((number, stream))
    index = len(checkpoint.offsets) - 1
    number, stream = checkpoint.offsets[index]
    known = checkpoint.folder.get(index)
    if known is None or ((known.number, known.stream) == (number, stream) and run.random.random() < 0.5):
        began = run.loop.time()
        tokens = await read_batch(run, session, driver, number, stream, pruned=index in checkpoint.pruned)
        if tokens is None:
            return  # Spark's task fails
        if checkpoint.commits > index:
            return
        if index not in checkpoint.folder:
            sink(run, checkpoint, Written(run.unit(client), stream, number))
            session_id = core_of(session).zookeeper.session_id
            takes = [Delivery(token, STREAMED, client, session_id, began, began) for token in tokens]
            checkpoint.folder[index].unit.takes += takes
    if run.random.random() < 0.9:  # otherwise the driver is killed before Spark's commit
        checkpoint.commits = max(checkpoint.commits, index + 1)


def sink(run: Recorder, checkpoint: Checkpoint, written: Written) -> None:
    checkpoint.folder[len(checkpoint.offsets) - 1] = written
    run.history.part(Streams).sunk.append(written)


async def acknowledged(run: Recorder, driver: Driver) -> tuple[int, str]:
    """Acknowledge the batches that Spark has committed; return the last batch and its stream."""
    ledger, streams = driver.ledger, run.history.part(Streams)
    state = await ledger.state()
    if not driver.checkpoint.offsets:
        await ledger.require_ours()
        return -1, run.token()
    number, stream = driver.checkpoint.offsets[-1]
    refused = CheckpointError() if number < state.done else None  # the batch is an old one
    if refused is None:
        run.history.part(Batches).asked.append((number, stream))
        try:
            await ledger.acknowledge(number, stream)
        except UnreadBatchError as error:
            refused = error
    if refused is not None:
        if not driver.lenient:
            raise refused
        return -1, run.token()
    for written in streams.sunk:
        if (
            written.number <= min(number, ledger._epoch.record.done)
            and written.stream == stream
            and written.number not in streams.ended
        ):
            streams.ended.add(written.number)
            batches = run.history.part(Batches)
            if written.number not in batches.given_back and not batches.forced_open(run.history, written.number):
                run.decide(written.unit, Status.COMMITTED)
    return number, stream


async def read_batch(
    run: Recorder, session: zq.QueueSession, driver: Driver, number: int, stream: str, *, pruned: bool
) -> list[str] | None:
    """Read a batch as the tasks of a query do; return None if one of them fails."""
    observe(run)
    batches, ledger = run.history.part(Batches), driver.ledger
    begun = number in batches.begun
    try:
        handed = await ledger.hand_out(number, stream, again=driver.handed == (number, stream))
    except zq.ClaimLostError:
        if not driver.lenient:
            raise
        await ledger.require_ours()
        return []
    if begun:
        batches.note_returned(number, "a batch to read")
    driver.handed = number, stream
    if run.random.random() < 0.5:
        await ledger.prepare(number, run.random.choice([None, 2, 5, 9]))
    tokens = await read_pages(session, handed)
    if tokens is None:
        return None
    if run.random.random() < 0.1:  # the query is stopped
        await ledger.release_unsealed()
        return None
    streams = run.history.part(Streams)
    if (before := streams.tried.setdefault(number, tokens)) != tokens:
        streams.differed.append(f"batch {number} had the messages {before}, and at a retry {tokens}")
    return await note_shares(run, session, handed, tokens[: len(tokens) // 2] if pruned else tokens)


async def read_pages(session: zq.QueueSession, handed: HandedOut) -> list[str] | None:
    """Read the messages of a batch; return None if some of them are missing."""
    zookeeper, paths = core_of(session).zookeeper, core_of(session).queue_state(STREAMED).paths
    tokens: list[str] = []
    for page in handed.pages:
        try:
            entries = await read_page(zookeeper.read, page.path)
        except NoNodeError:
            return None
        nodes = await zookeeper.read_many([paths.at(entry.place) for entry in entries])
        for place, node in zip(entries, nodes, strict=True):
            if node is None:
                return None
            tokens += tokens_in(place.place, node.data)
    return tokens


async def note_shares(
    run: Recorder, session: zq.QueueSession, handed: HandedOut, tokens: list[str]
) -> list[str] | None:
    """Mark the messages as read, in one or two shares; return the messages, or None if a task fails."""
    middle = run.random.randint(0, len(tokens))
    for begin, stop in ((0, middle), (middle, len(tokens))):
        if begin == stop:
            continue
        run.history.part(Batches).read.setdefault(handed.reading.mark.stream, set()).update(tokens[begin:stop])
        try:
            await handed.reading.of(begin, stop).note(core_of(session).zookeeper)
        except NoNodeError:
            return None
    return tokens


async def operate(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Release the ledger, or start the query with a new checkpoint."""
    del client
    for _ in range(run.random.randint(1, 3)):
        await asyncio.sleep(run.random.random() * 1.5)
        what = run.random.choice(["release", "empty folder", "known folder"])
        streams = run.history.part(Streams)
        if what == "release":
            await release(run, session)
        elif what == "empty folder" or streams.pruned:
            streams.checkpoint = Checkpoint()
        else:
            streams.checkpoint, streams.shared = Checkpoint(streams.checkpoint.folder), True


async def release(run: Recorder, session: zq.QueueSession) -> None:
    batches = run.history.part(Batches)
    observe(run)
    batches.releasing += 1
    with suppress(NotFoundError):
        while True:
            try:
                await session.queue(STREAMED).admin.release_ledger(GROUP)
            except zq.ClaimLostError:
                continue  # a driver has taken over the ledger meanwhile
            break
    observe(run)
    batches.releasing -= 1


async def relax(run: Recorder, session: zq.QueueSession) -> None:
    """Sometimes release the ledger, so that the last consumer gets its messages."""
    if run.random.random() < 0.5:
        await release(run, session)


def finish(run: Recorder, nodes: Mapping[str, Znode]) -> None:
    """Ignore the locks of the last batch, which stay for the next driver."""
    observe(run)
    base, final = f"/zms/{STREAMED}", run.history.final
    held = {
        path.rpartition("lock-")[2]
        for path, node in nodes.items()
        if path.startswith(f"{base}/locks/lock-") and is_of_ledger(LockRecord.decode(node.data))
    }
    kept = {
        token
        for path, node in nodes.items()
        if path.startswith((f"{base}/items/", f"{base}/lanes/"))
        and name_at(path).startswith(("item-", "bundle-"))
        and candidate_id(name_at(path)) in held
        for token in tokens_in(path, node.data)
    }
    final.items[STREAMED], final.kept[STREAMED] = (
        [token for token in final.items[STREAMED] if (token in kept) is whether] for whether in (False, True)
    )
    attempts = tuple(f"{base}/meta/meta-{message_id} " for message_id in held)  # of earlier deliveries to other clients
    records = tuple(f"{base}/meta/bundle-{message_id} " for message_id in held)
    final.leftovers[:] = [
        path
        for path in final.leftovers
        if '"ledger:' not in path.replace("\\", "") and not path.startswith((*attempts, *records))
    ]


join(Feature("streams", prepare, [produce, drive, drive, drive, operate], finish, relax))
