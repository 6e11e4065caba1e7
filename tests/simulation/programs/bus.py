"""A bus: events posted alone and in transactions, a subscriber that fails, and a group that joins meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.bus.events import DONE
from aiozkqueue.session.internals import core_of
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from aiozkqueue.session.delivery import Delivery
    from tests.simulation.recorder import Recorder

GROUP = "late"


class Event(BaseModel):
    """An event."""

    token: str


@dataclass(slots=True)
class Post:
    """One post."""

    began: float
    status: Status = Status.PENDING
    decided: float = float("inf")


@dataclass(slots=True)
class Call:
    """One delivery of an event to the subscribers."""

    token: str
    attempt: int
    done: set[str]
    """The finished subscribers that the message lists."""
    called: set[str] = field(default_factory=set[str])
    succeeded: set[str] = field(default_factory=set[str])


@dataclass
class BusLog:
    """The observations of the bus."""

    posts: dict[str, Post] = field(default_factory=dict[str, Post])
    joined: float = float("inf")
    """The time when the group had joined."""
    looks: list[tuple[float, list[str]]] = field(default_factory=list[tuple[float, list[str]]])
    """The contents of the group's queue, from which no session takes, at several times."""
    calls: list[Call] = field(default_factory=list[Call])


class Recording(Bus[Event]):
    """Records the calls of its subscribers."""

    def __init__(self, run: Recorder, session: zq.QueueSession) -> None:
        super().__init__(session, "bus", Event, policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
        self._run = run
        self._call = Call("", 0, set())
        for name in ("good", "flaky", "shy"):
            self.subscribe(Event, getattr(self, name), name=name)

    async def _handle(self, delivery: Delivery[bytes], group: str | None) -> None:
        token = Event.model_validate_json(delivery.value).token
        self._call = Call(token, delivery.attempt, set(delivery.headers.get(DONE, "").split()))
        self._run.history.part(BusLog).calls.append(self._call)
        await super()._handle(delivery, group)

    async def good(self, _: Event) -> None:
        await self._called("good", 0.0)

    async def flaky(self, _: Event) -> None:
        await self._called("flaky", 0.6)

    async def shy(self, _: Event) -> None:
        await self._called("shy", 0.3)

    async def _called(self, name: str, fails: float) -> None:
        call, random = self._call, self._run.random
        call.called.add(name)
        await asyncio.sleep(random.random() * 0.02)
        if random.random() < fails:
            raise zq.Retry(delay=random.choice([None, 0, 0.05]))
        call.succeeded.add(name)


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await Recording(run, session).groups()


async def post(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random, log = run.random, run.history.part(BusLog)
    bus = Bus(session, "bus", Event, policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    for _ in range(random.randint(2, 6)):
        await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
        token = run.token()
        made = log.posts[token] = Post(run.loop.time())
        try:
            if random.random() < 0.5:
                await bus.post(Event(token=token))
            else:
                async with session.transaction() as tx:
                    await bus.post(Event(token=token), tx=tx)
                    await asyncio.sleep(random.random() * 0.05)
        except zq.NotCommittedError:
            made.status = Status.NOT_COMMITTED
        except zq.OutcomeUnknownError:
            made.status = Status.UNKNOWN
        else:
            made.status = Status.COMMITTED
        made.decided = run.loop.time()
    await record_queues(run, session, bus)


async def handle(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    bus = Recording(run, session)
    async with bus.listener():
        await asyncio.sleep(run.random.random() * 3)
    await record_queues(run, session, bus)


async def become_a_group(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    log = run.history.part(BusLog)
    await asyncio.sleep(run.random.random() * 0.3)
    bus = Bus(session, "bus", Event)
    await bus.join(GROUP)
    log.joined = min(log.joined, run.loop.time())


async def record_queues(run: Recorder, session: zq.QueueSession, bus: Bus[Event]) -> None:
    at, queue = run.loop.time(), bus.queue(GROUP)
    await core_of(session).zookeeper.sync(f"/zms/{queue.name}")  # a lagging server shows an earlier state
    messages = await queue.peek(10_000)
    run.history.part(BusLog).looks.append(
        (at, [Event.model_validate_json(message.value).token for message in messages])
    )


join(Feature("bus", prepare, [post, post, handle, handle, become_a_group]))
