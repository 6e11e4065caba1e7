"""Objects for the features' public coroutines: leases, moves, jobs, notifications, buses."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.admin import Moves
from aiozkqueue.bus import Bus, Buses
from aiozkqueue.schedule import Jobs, NotificationQueue, Notifications, Scheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import ModuleType

#: The duration of every lease, which ends before the checks.
LEASE = 2.0
#: The start of a year. No job occurs during the test, so the coroutine makes all changes.
YEARLY = "0 0 1 1 *"
LATER = datetime(2999, 1, 1, tzinfo=UTC)


class Ready(NamedTuple):
    """An object, and possible arguments of its coroutines."""

    subject: Any
    session: zq.QueueSession
    extras: dict[str, Any]


class Event(BaseModel):
    """An event."""

    text: str


@asynccontextmanager
async def of_leases(session: zq.QueueSession) -> AsyncIterator[Ready]:
    leases = session.queue("jobs").leases
    (held,) = await leases.take(lifetime=LEASE)
    yield Ready(leases, session, {"tokens": [held.token], "leases": [held]})


@asynccontextmanager
async def of_moves(session: zq.QueueSession) -> AsyncIterator[Ready]:
    moves = session.admin.moves
    reference = await moves.start("nothing", "nowhere")
    await asyncio.sleep(1)  # the lease has ended
    yield Ready(moves, session, {"reference": reference})


@asynccontextmanager
async def of_jobs(session: zq.QueueSession) -> AsyncIterator[Ready]:
    jobs = Jobs(session)
    await jobs.add("old", YEARLY, "results", b"")
    yield Ready(jobs, session, {})


@asynccontextmanager
async def of_scheduler(session: zq.QueueSession) -> AsyncIterator[Ready]:
    await Jobs(session).add("old", YEARLY, "results", b"")
    scheduler = Scheduler(session)
    asyncio.get_running_loop().call_later(1, scheduler.stop)
    yield Ready(scheduler, session, {})


@asynccontextmanager
async def of_notifications(session: zq.QueueSession) -> AsyncIterator[Ready]:
    notifications = Notifications(session)
    await notifications.create("billing", "old", bytes)
    yield Ready(notifications, session, {})


@asynccontextmanager
async def of_notification_queue(session: zq.QueueSession) -> AsyncIterator[Ready]:
    reminders = await Notifications(session).create("billing", "old", bytes)
    known = await reminders.schedule(b"known", LATER, search_key1="7", search_key2="tenant")
    yield Ready(reminders, session, {"notification_id": known})


@asynccontextmanager
async def of_bus(session: zq.QueueSession) -> AsyncIterator[Ready]:
    bus = Bus(session, "events", Event)
    await bus.join("old")
    yield Ready(bus, session, {})


@asynccontextmanager
async def of_buses(session: zq.QueueSession) -> AsyncIterator[Ready]:
    await Bus(session, "events", Event).join("old")
    yield Ready(Buses(session), session, {})


SUBJECTS: dict[type | ModuleType, Callable[[zq.QueueSession], Any]] = {
    zq.Leases: of_leases,
    Moves: of_moves,
    Jobs: of_jobs,
    Scheduler: of_scheduler,
    Notifications: of_notifications,
    NotificationQueue: of_notification_queue,
    Bus: of_bus,
    Buses: of_buses,
}

#: The arguments of parameters, by name.
ARGUMENTS: dict[str, Callable[[Ready], Any]] = {
    "tokens": lambda ready: ready.extras["tokens"],
    "leases": lambda ready: ready.extras["leases"],
    "lifetime": lambda _: LEASE,
    "source": lambda _: "jobs",
    "target": lambda _: "results",
    "reference": lambda ready: ready.extras["reference"],
    "name": lambda _: "old",
    "cron": lambda _: "0 0 2 1 *",
    "service": lambda _: "billing",
    "type": lambda _: bytes,
    "event": lambda _: b"new",
    "at": lambda _: LATER,
    "search_key2": lambda _: "tenant",
    "notification_id": lambda ready: ready.extras["notification_id"],
    "group": lambda _: "old",
    "bus": lambda _: "events",
}

#: Arguments that differ for one coroutine.
IN: dict[str, dict[str, Any]] = {
    "Jobs.add": {"name": "new"},
    "Notifications.create": {"name": "new"},
    "Bus.post": {"event": Event(text="new")},
    "Bus.join": {"group": "new"},
    "Bus.subscribe": {"kind": Event},
    "Queue.call": {"timeout": 0.5},
}
