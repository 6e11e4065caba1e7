"""Keys under every kind of fault: unique keys, collapsing keys, and messages that are cancelled by their ids.

Collapsed and cancelled messages end without a delivery. Therefore only these programs take from their queues, and
record their observations in `KeyLog`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.layout import ItemName, decode
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

ONCE, LATEST, CALLED_OFF = "once", "latest", "called-off"
KEYS = "xyz"
NEVER = float("inf")


@dataclass(eq=False)
class Action:
    """An action of a client, and its result."""

    began: float
    status: Status = Status.PENDING
    decided: float = NEVER


@dataclass(eq=False)
class KeyedPut(Action):
    """One put."""

    queue: str = ""
    key: str = ""
    number: int = 0
    """Its number among the puts with its key, which are made one after another."""
    refused: bool = False
    """Whether it was refused because another message had the key."""


@dataclass(eq=False)
class KeyedTake(Action):
    """One delivery, from the moment when the handler gets the message."""

    token: str = ""


@dataclass
class KeyLog:
    """The observations about messages with keys."""

    puts: dict[str, KeyedPut] = field(default_factory=dict[str, KeyedPut])
    takes: list[KeyedTake] = field(default_factory=list[KeyedTake])
    called_off: dict[str, Action] = field(default_factory=dict[str, Action])
    """The cancellations, by token; committed when the client learned of its success."""
    left: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The tokens that are stored at the end, by queue."""
    leftovers: list[str] = field(default_factory=list[str])
    """Unique keys without a message, and locks without a holder."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    policy = zq.AtLeastOnce(backoff=zq.Fixed(run.random.choice([0, 0.1])))
    for name in (ONCE, LATEST, CALLED_OFF):
        await session.queue(name).configure(zq.QueueConfig(policy=policy, collapse=name == LATEST))


@asynccontextmanager
async def outcome_of(run: Recorder, *several: Action) -> AsyncIterator[None]:
    """Record the result of these actions."""
    status = Status.PENDING
    try:
        yield
        status = Status.COMMITTED
    except zq.NotCommittedError:
        status = Status.NOT_COMMITTED
    except zq.OutcomeUnknownError:
        status = Status.UNKNOWN
    finally:
        for action in several:
            action.status, action.decided = status, run.loop.time()


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, log = run.random, run.history.part(KeyLog)
    mine = f"{client}-{run.token()}"
    for number in range(random.randint(3, 8)):
        await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
        name = random.choice([ONCE, LATEST, CALLED_OFF])
        queue, token = session.queue(name), run.token()
        # Puts with the same key have an order only within one program.
        key = random.choice(KEYS) + (mine if name == LATEST else "")
        made = log.puts[token] = KeyedPut(run.loop.time(), queue=name, key=key, number=number)
        options = zq.PutOptions(key=key, unique=name == ONCE)
        async with outcome_of(run, made):
            try:
                if random.random() < 0.5:
                    message_id = await queue.put(token.encode(), **options)
                else:
                    async with session.transaction() as tx:
                        message_id = tx.put(queue, token.encode(), **options)
            except zq.DuplicateKeyError:
                made.refused = True
                raise
        if name == CALLED_OFF and made.status is Status.COMMITTED and random.random() < 0.6:
            await call_off(run, session, token, message_id)


async def call_off(run: Recorder, session: zq.QueueSession, token: str, message_id: str) -> None:
    """Cancel a message after a moment, directly or in a transaction."""
    random, queue = run.random, session.queue(CALLED_OFF)
    await asyncio.sleep(random.random() * 0.1)
    called_off = run.history.part(KeyLog).called_off
    cancellation = called_off[token] = Action(run.loop.time())
    async with outcome_of(run, cancellation):
        if random.random() < 0.5:
            done = bool(await queue.cancel(id=message_id))
        else:
            async with session.transaction() as tx:
                done = bool(await tx.cancel(queue, id=message_id))
    if cancellation.status is Status.COMMITTED and not done:
        del called_off[token]  # the message was held, or had ended


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random, log = run.random, run.history.part(KeyLog)
    for _ in range(random.randint(3, 8)):
        queue = session.queue(random.choice([ONCE, LATEST, CALLED_OFF]))
        taken: list[KeyedTake] = []
        async with session.transaction(autocommit=False) as tx:
            try:
                messages = await tx.take_many(queue, random.choice([1, 2, 10]), timeout=random.random())
            except (zq.NotCommittedError, zq.ConnectionLostError):
                continue
            taken += [KeyedTake(run.loop.time(), token=message.body.decode()) for message in messages]
            log.takes += taken
            await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
            if random.random() < 0.2:
                await tx.rollback(delay=0)
                for keyed_take in taken:
                    keyed_take.status, keyed_take.decided = Status.NOT_COMMITTED, run.loop.time()
            else:
                async with outcome_of(run, *taken):
                    await tx.commit()


def finish(run: Recorder, nodes: Mapping[str, Znode]) -> None:
    """Record the remaining messages, and the keys that are taken."""
    log = run.history.part(KeyLog)
    for name in (ONCE, LATEST, CALLED_OFF):
        base = f"/zms/{name}"
        items = {path.rpartition("/")[2]: node for path, node in nodes.items() if path.startswith(f"{base}/items/")}
        log.left[name] = {decode(node.data)[1].decode() for node in items.values()}
        parsed = [ItemName.parse(item) for item in items]
        borne = {item.key for item in parsed if item is not None and item.unique}
        log.leftovers += [
            path
            for path in nodes
            if (path.startswith(f"{base}/keys/") and path.rpartition("/")[2] not in borne)
            or (path.startswith(f"{base}/locks/") and nodes[path].owner)
        ]


join(Feature("keys", prepare, [put, put, take, take], finish))
