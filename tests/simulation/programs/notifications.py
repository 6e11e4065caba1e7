"""A notification queue whose entries are scheduled, replaced, removed and handled concurrently."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.queue.commit.register import server_time
from aiozkqueue.schedule import Notification, NotificationQueue, Notifications
from aiozkqueue.session.internals import core_of
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder


@dataclass(slots=True)
class Entry:
    """One notification."""

    date: datetime
    removed: float = float("inf")
    """The time when a removal was reported."""
    replaced: float = float("inf")
    """The time when a replacement was reported."""


@dataclass(slots=True)
class Shown:
    """A notification that a handler has received."""

    id: str
    event: bytes
    session: int
    """The ZooKeeper session that holds it."""
    at: float
    until: float = float("inf")


@dataclass
class NotificationLog:
    """The observations about notifications, by id."""

    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    handled: list[Shown] = field(default_factory=list[Shown])
    changes: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    """The id, begin and end of each reported removal and replacement."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every preparation
    # A policy that counts would detect a change when it records the attempt.
    await Notifications(session).create("s", "n", bytes, policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))


async def schedule(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random, log = run.random, run.history.part(NotificationLog)
    queue: NotificationQueue[bytes] = NotificationQueue(session, "s", "n", bytes)
    for _ in range(random.randint(2, 5)):
        now = await server_time(core_of(session), "notifications")
        date = datetime.fromtimestamp(now / 1000, UTC) + timedelta(seconds=random.choice([-1, 0.02, 0.3]))
        with suppress(zq.OutcomeUnknownError):
            entry_id = await queue.schedule(b"old", date, search_key2=random.choice(["x", "y"]))
            log.entries[entry_id] = Entry(date)
        await asyncio.sleep(random.random() * 0.1)


async def change(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random, log = run.random, run.history.part(NotificationLog)
    queue: NotificationQueue[bytes] = NotificationQueue(session, "s", "n", bytes)
    for _ in range(8):
        await asyncio.sleep(random.random() * 0.1)
        waiting = [entry_id for entry_id, entry in log.entries.items() if entry.removed == float("inf")]
        if not waiting:
            continue
        chosen, began = random.choice(waiting), run.loop.time()
        with suppress(zq.OutcomeUnknownError):
            if random.random() < 0.5:
                if await queue.update(chosen, b"new"):
                    log.changes.append((chosen, began, run.loop.time()))
                    log.entries[chosen].replaced = min(log.entries[chosen].replaced, run.loop.time())
            elif await queue.remove(chosen):
                log.changes.append((chosen, began, run.loop.time()))
                log.entries[chosen].removed = run.loop.time()


async def handle(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random, log = run.random, run.history.part(NotificationLog)
    queue: NotificationQueue[bytes] = NotificationQueue(session, "s", "n", bytes)

    async def handler(notification: Notification[bytes]) -> None:
        zookeeper = core_of(session).zookeeper
        shown = Shown(notification.id, notification.event, zookeeper.session_id, run.loop.time())
        log.handled.append(shown)
        await asyncio.sleep(random.random() * 0.2)
        shown.until = run.loop.time()
        if random.random() < 0.3:
            raise zq.Retry(delay=random.choice([0, 0.05]))

    async with queue.listener(handler, concurrency=2):
        await asyncio.sleep(random.random() * 2)


join(Feature("notifications", prepare, [schedule, change, change, handle, handle]))
