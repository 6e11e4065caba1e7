"""What programs store, one story a feature: `made` is run once for each version of the layout, by the code of its time;
`found` by the code of today, on what any version has stored.

A story reads what it finds, takes it, settles it, and leaves its queues without a trace of it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus, Buses
from aiozkqueue.http.keys import Keys
from aiozkqueue.http.permissions import Verb
from aiozkqueue.layout.moves import MovePaths, MoveRecord
from aiozkqueue.queue.ledger import Ledger
from aiozkqueue.schedule import Jobs, Notification, Notifications, Scheduler
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import TestClock

T = TypeVar("T")

#: Due after every run of these tests.
FAR = datetime(2060, 1, 1, tzinfo=UTC)
#: A lease or a life that lasts as long: thirty years, the most there is.
LONG = 10**9
WITHIN = 30.0


@dataclass
class Old:
    """A program of the version that is written down."""

    session: zq.QueueSession
    known: dict[str, str] = field(default_factory=dict)
    open: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What is left open until everything has been written down."""


@dataclass
class Now:
    """A program of today, on what the old one has left. That one lives until `gone` is called."""

    session: zq.QueueSession
    known: dict[str, str]
    clock: TestClock
    gone: Callable[[], Awaitable[None]]


class Story(Protocol):
    """A feature's."""

    queues: tuple[str, ...]
    """Of which nothing is left in the end but their names."""

    async def made(self, old: Old) -> None: ...
    async def found(self, now: Now) -> None: ...


async def take(session: zq.QueueSession, queue: zq.Queue[T], count: int = 1) -> list[zq.Message[T]]:
    """Take and commit so many, one after the other."""
    taken: list[zq.Message[T]] = []
    for _ in range(count):
        async with session.begin() as tx:
            message = await tx.take(queue, timeout=WITHIN)
            assert message is not None, f"{queue}: {len(taken)} of {count}"
            taken.append(message)
    return taken


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN):
        while not await condition():  # noqa: ASYNC110 - what others do is seen by looking
            await asyncio.sleep(0.02)


class Parcel(BaseModel):
    order: int


class Payloads:
    """Bare bytes, JSON, what begins as an envelope does, headers; and several priorities."""

    queues: tuple[str, ...] = ("payloads",)

    async def made(self, old: Old) -> None:
        raw, parcels = old.session.queue("payloads"), old.session.queue("payloads", Parcel)
        await raw.put(b"bare \xff")
        old.known["envelope"] = await raw.put(b"tea", headers={"to": "Rome"}, key="k")
        await raw.put((await self._envelope(old)), priority=3)
        await parcels.put(Parcel(order=1), priority=-3)

    async def found(self, now: Now) -> None:
        raw, parcels = now.session.queue("payloads"), now.session.queue("payloads", Parcel)
        assert (await raw.stats()).size == 4
        (first,) = await take(now.session, parcels)
        assert first.value == Parcel(order=1)
        bare, with_headers, like_an_envelope = await take(now.session, raw, 3)
        assert bare.body == b"bare \xff"
        assert (with_headers.id, with_headers.body) == (now.known["envelope"], b"tea")
        assert (with_headers.headers, with_headers.key) == ({"to": "Rome"}, "k")
        assert like_an_envelope.body == now.known["like an envelope"].encode("latin-1")

    async def _envelope(self, old: Old) -> bytes:
        """The bytes of an envelope, as a payload."""
        node = next(path for path in await self._items(old) if old.known["envelope"] in path)
        body = (await old.session.engine.zookeeper.read(node)).data
        old.known["like an envelope"] = body.decode("latin-1")
        return body

    async def _items(self, old: Old) -> list[str]:
        items = old.session.engine.store("payloads").paths.items
        return [f"{items}/{name}" for name in await old.session.engine.zookeeper.children(items)]


class Attempts:
    """Hand-overs that were counted, and the word of the last failure."""

    queues: tuple[str, ...] = ("attempts",)
    policy = zq.ConsumeTimes(3, backoff=zq.Schedule([0.05, 1]))

    async def made(self, old: Old) -> None:
        queue = old.session.queue("attempts", policy=self.policy)
        await queue.put(b"1")
        async with queue.consume(until_idle=0.02) as deliveries:
            async for delivery in deliveries:
                with pytest.raises(RuntimeError):
                    async with delivery:
                        raise RuntimeError("the bank is closed")
                break

    async def found(self, now: Now) -> None:
        queue = now.session.queue("attempts", policy=self.policy)
        assert (await queue.configuration()).policy == self.policy
        (waiting,) = await queue.peek()
        assert waiting.attempt == 1
        assert "the bank is closed" in (waiting.error or "")
        for attempt in (2, 3):
            async with now.session.transaction() as tx:
                message = await tx.take(queue, timeout=WITHIN)
                assert message is not None
                assert message.attempt == attempt
                await tx.rollback(delay=0)
        async with now.session.begin() as tx:
            assert await tx.take(queue, timeout=1) is None
        (dead,) = await queue.dead_letters.peek()
        assert dead.attempts == 3
        assert await queue.dead_letters.redrive() == 1
        await take(now.session, queue)


class Held:
    """A message that a live program of the old version holds, and its entry in the registry."""

    queues: tuple[str, ...] = ("held",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("held")
        old.known["held"] = await queue.put(b"1")
        tx = await old.open.enter_async_context(old.session.transaction())
        assert await tx.take(queue) is not None
        old.open.push_async_callback(tx.rollback)

    async def found(self, now: Now) -> None:
        queue = now.session.queue("held")
        assert await queue.claimed() == 1
        (holder,) = await queue.consumers()
        assert holder.host == "old-host"
        assert holder.messages == (now.known["held"],)
        assert (await queue.state(now.known["held"])).status is zq.Status.CLAIMED
        async with now.session.begin() as tx:
            assert await tx.take(queue) is None
        await now.gone()
        (message,) = await take(now.session, queue)
        assert message.id == now.known["held"]


class DeadLetters:
    """Dead letters, with their reasons."""

    queues: tuple[str, ...] = ("dead",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("dead", Parcel)
        await queue.put_many([Parcel(order=1), Parcel(order=2)], headers={"to": "Rome"})
        async with old.session.begin() as tx:
            for message in await tx.take_many(queue, 2, timeout=WITHIN):
                tx.reject(message, f"no such order: {message.value.order}")

    async def found(self, now: Now) -> None:
        queue = now.session.queue("dead", Parcel)
        first, second = await queue.dead_letters.peek()
        assert (first.value, first.reason, first.headers) == (Parcel(order=1), "no such order: 1", {"to": "Rome"})
        assert await queue.dead_letters.redrive([first.id]) == 1
        assert await queue.dead_letters.purge([second.id]) == 1
        (message,) = await take(now.session, queue)
        assert (message.id, message.value) == (first.id, first.value)


class PastEnds:
    """The history of messages that have ended."""

    queues: tuple[str, ...] = ("ended",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("ended")
        await queue.configure(zq.QueueConfig(history=zq.History(lifetime=LONG, payload=True)))
        for word in ("finished", "dead", "cancelled"):
            old.known[f"history {word}"] = await queue.put(word.encode(), key=word)
            if word == "cancelled":
                await queue.cancel(key=word)
                continue
            async with old.session.begin() as tx:
                message = await tx.take(queue, timeout=WITHIN)
                assert message is not None
                if word == "dead":
                    tx.reject(message, "because")

    async def found(self, now: Now) -> None:
        queue = now.session.queue("ended")
        records = {record.id: record async for record in queue.history()}
        ends = {word: records[now.known[f"history {word}"]] for word in ("finished", "dead", "cancelled")}
        assert [one.outcome for one in ends.values()] == [zq.End.FINISHED, zq.End.DEAD, zq.End.CANCELLED]
        assert (ends["finished"].payload, ends["finished"].key) == (b"finished", "finished")
        assert ends["dead"].reason == "because"
        assert (await queue.state(now.known["history finished"])).status is zq.Status.FINISHED
        assert await queue.dead_letters.purge() == 1


class Scheduled:
    """What is due later, and what lives only for some time."""

    queues: tuple[str, ...] = ("scheduled",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("scheduled")
        await queue.configure(zq.QueueConfig(expired="dead-letter"))
        await queue.put(b"short", ttl=0.05)
        await queue.put(b"long", ttl=LONG)
        await queue.put(b"far", at=FAR)

    async def found(self, now: Now) -> None:
        queue = now.session.queue("scheduled")
        assert (await queue.stats()).scheduled == 1
        assert FAR in [message.due for message in await queue.peek()]
        assert [message.body for message in await take(now.session, queue)] == [b"long"]

        async def expired() -> bool:
            await now.session.clean("scheduled")
            return [dead.body for dead in await queue.dead_letters.peek()] == [b"short"]

        await until(expired)
        now.clock.advance(FAR - datetime.now(UTC))
        assert [message.body for message in await take(now.session, queue)] == [b"far"]
        await queue.dead_letters.purge()


class Grouped:
    """Groups, one of which waits for its first message's retry; and a queue with an order."""

    queues: tuple[str, ...] = (
        "grouped",
        "ordered",
    )

    async def made(self, old: Old) -> None:
        grouped, ordered = old.session.queue("grouped"), old.session.queue("ordered")
        for number in range(4):
            await grouped.put(str(number).encode(), group="ab"[number % 2])
        async with old.session.transaction() as tx:
            message = await tx.take(grouped, timeout=WITHIN)
            assert message is not None
            old.known["failed"] = message.body.decode()
            await tx.rollback(delay=0.05)
        await ordered.configure(zq.QueueConfig(ordered=True))
        await ordered.put_many([b"0", b"1", b"2"])

    async def found(self, now: Now) -> None:
        grouped, ordered = now.session.queue("grouped"), now.session.queue("ordered")
        assert (await grouped.stats()).groups == 2
        bodies = [message.body for message in await take(now.session, grouped, 4)]
        assert bodies.index(b"0") < bodies.index(b"2")
        assert bodies.index(b"1") < bodies.index(b"3")
        assert [message.body for message in await take(now.session, ordered, 3)] == [b"0", b"1", b"2"]


class Keyed:
    """A unique key that is taken; and one message for several of a key."""

    queues: tuple[str, ...] = (
        "unique",
        "collapsing",
    )

    async def made(self, old: Old) -> None:
        unique, collapsing = old.session.queue("unique"), old.session.queue("collapsing")
        old.known["unique"] = await unique.put(b"1", key="k", unique=True)
        await collapsing.configure(zq.QueueConfig(collapse=True))
        for body in (b"1", b"2", b"3"):
            await collapsing.put(body, key="k")

    async def found(self, now: Now) -> None:
        unique, collapsing = now.session.queue("unique"), now.session.queue("collapsing")
        with pytest.raises(zq.DuplicateKeyError):
            await unique.put(b"2", key="k", unique=True)
        assert await unique.put(b"2", key="k", unique="ignore") == now.known["unique"]
        await take(now.session, unique)
        await unique.put(b"2", key="k", unique=True)
        await take(now.session, unique)
        assert [message.body for message in await take(now.session, collapsing)] == [b"3"]
        assert await collapsing.size() == 0


class Tagged:
    """Tags, by which consumers choose."""

    queues: tuple[str, ...] = ("tagged",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("tagged")
        await queue.put(b"1", filters={"country": "it", "weight": 3})
        await queue.put(b"2", filters={"country": "no", "weight": 5})

    async def found(self, now: Now) -> None:
        queue = now.session.queue("tagged")
        async with now.session.begin() as tx:
            message = await tx.take(queue, timeout=WITHIN, filters=zq.Filter("country", "eq", "no"))
            assert message is not None
            assert (message.body, message.filters) == (b"2", {"country": "no", "weight": 5})
        await queue.put(b"3", filters={"country": "it", "weight": 3})  # rests on the record that is there
        assert [message.body for message in await take(now.session, queue, 2)] == [b"1", b"3"]


class Leased:
    """A lease that lasts, and one that has ended."""

    queues: tuple[str, ...] = ("leased",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("leased")
        await queue.put_many([b"1", b"2"])
        (lasting,) = await queue.leases.take(lifetime=LONG, timeout=WITHIN)
        (ended,) = await queue.leases.take(lifetime=0.05, timeout=WITHIN)
        old.known |= {"lasting": lasting.token, "ended": ended.token, "ended body": ended.body.decode()}

    async def found(self, now: Now) -> None:
        queue = now.session.queue("leased")
        (again,) = await take(now.session, queue)
        assert again.body == now.known["ended body"].encode()
        assert again.attempt == 2
        async with now.session.begin() as tx:
            assert await tx.take(queue) is None
        await queue.leases.renew([now.known["lasting"]], lifetime=60)
        await queue.leases.acknowledge([now.known["lasting"], now.known["ended"]])
        assert await queue.size() == 0


class Spread:
    """A queue in shards, with as many messages as it takes, that is paused."""

    queues: tuple[str, ...] = ("spread",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("spread", int)
        await queue.configure(zq.QueueConfig(shards=4, max_size=12))
        await queue.put_many(range(12))
        await queue.configure(zq.QueueConfig(shards=4, max_size=12, paused=True))

    async def found(self, now: Now) -> None:
        queue = now.session.queue("spread", int)
        config = await queue.configuration()
        assert (config.shards, config.max_size, config.paused) == (4, 12, True)
        with pytest.raises(zq.QueueFullError):
            await queue.put(12)
        async with now.session.begin() as tx:
            assert await tx.take(queue) is None
        await queue.configure(zq.QueueConfig(shards=4, max_size=12, paused=False))
        assert sorted(message.value for message in await take(now.session, queue, 12)) == [*range(12)]
        await queue.put(12)
        await take(now.session, queue)


class Moved:
    """A move that has ended, and one whose program died."""

    queues: tuple[str, ...] = (
        "moved",
        "moved-target",
        "moving",
        "moving-target",
    )

    async def made(self, old: Old) -> None:
        session = old.session
        for name in ("moved", "moving"):
            await session.queue(name).put_many([b"1", b"2"])
        old.known["moved"] = await session.moves.start("moved", "moved-target")

        async def done() -> bool:
            return (await session.moves.status(old.known["moved"])).state == "done"

        await until(done)
        # As `Moves.start` leaves it when its process dies at once.
        record = MoveRecord("moving", "moving-target").encode()
        await session.engine.zookeeper.multi([Create(MovePaths(session.engine.root).move("unfinished"), record)])

    async def found(self, now: Now) -> None:
        session = now.session
        ended = await session.moves.status(now.known["moved"])
        assert (ended.source, ended.target, ended.state, ended.moved) == ("moved", "moved-target", "done", 2)
        assert await session.moves.resume() == 1

        async def done() -> bool:
            return (await session.moves.status("unfinished")).state == "done"

        await until(done)
        for name in ("moved", "moving"):
            assert await session.queue(name).size() == 0
            assert [one.body for one in await take(session, session.queue(f"{name}-target"), 2)] == [b"1", b"2"]


class OrderEvent(BaseModel):
    order: int


class OrderPaid(OrderEvent):
    cents: int


class Posted:
    """Events of a bus, for its own listeners and for a group."""

    queues: tuple[str, ...] = ()

    async def made(self, old: Old) -> None:
        bus = Bus(old.session, "orders", OrderEvent)
        await bus.join("billing")
        await bus.post(OrderPaid(order=1, cents=5))

    async def found(self, now: Now) -> None:
        assert await Buses(now.session).list() == ["orders"]
        bus = Bus(now.session, "orders", OrderEvent)
        seen: list[tuple[str, OrderPaid]] = []

        async def noted(event: OrderPaid) -> None:
            seen.append(("", event))

        async def billed(event: OrderPaid) -> None:
            seen.append(("billing", event))

        bus.subscribe(OrderPaid, noted)
        bus.subscribe(OrderPaid, billed, group="billing")
        async with bus.listener(), bus.listener(group="billing"):

            async def both() -> bool:
                return len(seen) == 2 and not await bus.queue().size() and not await bus.queue("billing").size()

            await until(both)
        paid = OrderPaid(order=1, cents=5)
        assert dict(seen) == {"": paid, "billing": paid}


class Recurring:
    """Jobs that recur: one that has been missed ever since, and one that is paused."""

    queues: tuple[str, ...] = ("reports",)

    async def made(self, old: Old) -> None:
        jobs, queue = Jobs(old.session), old.session.queue("reports", Parcel)
        await jobs.add("often", "* * * * *", queue, Parcel(order=1), missed="all", limit=3, headers={"to": "Rome"})
        await jobs.add("nightly", "0 3 * * *", queue, Parcel(order=2), zone="Europe/Berlin")
        await jobs.pause("nightly")

    async def found(self, now: Now) -> None:
        jobs, queue = Jobs(now.session), now.session.queue("reports", Parcel)
        nightly = await jobs.get("nightly")
        assert (nightly.cron, nightly.zone, nightly.paused) == ("0 3 * * *", "Europe/Berlin", True)
        assert [job.name for job in await jobs.list()] == ["nightly", "often"]
        async with Scheduler(now.session):
            messages = await take(now.session, queue, 3)
        assert [(one.value, one.headers["job"], one.headers["to"]) for one in messages] == [
            (Parcel(order=1), "often", "Rome")
        ] * 3
        dates = [datetime.fromisoformat(one.headers["occurrence"]) for one in messages]
        assert dates[2] - dates[0] == timedelta(minutes=2)
        for name in ("nightly", "often"):
            await jobs.remove(name)
        await queue.purge()


class Notified:
    """Notifications, found by their keys."""

    queues: tuple[str, ...] = ("billing:reminders",)

    async def made(self, old: Old) -> None:
        reminders = await Notifications(old.session).create("billing", "reminders", Parcel)
        old.known["reminder"] = await reminders.schedule(
            Parcel(order=1), FAR, search_key1="account-1", search_key2="customer-7", user_token="token"
        )
        await reminders.schedule(Parcel(order=2), FAR, search_key1="account-2", search_key2="customer-7")
        await reminders.schedule(Parcel(order=3), FAR - timedelta(days=1), search_key2="customer-8")

    async def found(self, now: Now) -> None:
        notifications = Notifications(now.session)
        assert await notifications.list() == [("billing", "reminders")]
        reminders = await notifications.get("billing", "reminders", Parcel)
        (first,) = await reminders.find("customer-7", search_key1="account-1")
        assert (first.id, first.event, first.effective_date) == (now.known["reminder"], Parcel(order=1), FAR)
        assert (first.user_token, first.status) == ("token", "future")
        assert await reminders.update(first.id, Parcel(order=11))
        assert await reminders.remove_all("customer-7", search_key1="account-2") == 1
        assert await reminders.ready(FAR) == 2
        seen: list[int] = []

        async def remind(notification: Notification[Parcel]) -> None:
            seen.append(notification.event.order)

        async with reminders.listener(remind, concurrency=1):
            now.clock.advance(FAR - datetime.now(UTC) + timedelta(days=1))

            async def handled() -> bool:
                return await reminders.queue.size() == 0

            await until(handled)
        assert sorted(seen) == [3, 11]


class HttpKeys:
    """Keys of the HTTP service."""

    queues: tuple[str, ...] = ()

    async def made(self, old: Old) -> None:
        old.known["key"] = await Keys(old.session.engine).create("shop", ["queue|post|orders*"])

    async def found(self, now: Now) -> None:
        keys = Keys(now.session.engine)
        assert [(one.name, one.allow) for one in await keys.all()] == [("shop", ("queue|post|orders*",))]
        caller = await keys.caller(now.known["key"])
        assert caller is not None
        assert caller.name == "shop"
        assert caller.permissions.allows(Verb.POST, "orders-1")
        assert not caller.permissions.allows(Verb.POLL, "orders-1")
        assert await keys.revoke("shop") == 1


class Streamed:
    """A batch that a stream has made and not acknowledged."""

    queues: tuple[str, ...] = ("streamed",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("streamed")
        await queue.put_many([b"1", b"2", b"3"])
        old.known["batch"] = str(await self._ledger(old.session).next_batch(-1, 2))

    async def found(self, now: Now) -> None:
        queue, ledger = now.session.queue("streamed"), self._ledger(now.session)
        (info,) = await queue.ledgers()
        assert info.group == "audit"
        batch = int(now.known["batch"])
        assert await ledger.next_batch(batch - 1, 2) == batch
        assert sum(page.items for page in await ledger.pages(batch)) == 2
        assert [message.body for message in await take(now.session, queue)] == [b"3"]
        assert await ledger.acknowledge(batch) == 2
        assert await queue.size() == 0

    def _ledger(self, session: zq.QueueSession) -> Ledger:
        return Ledger(session.engine, session.engine.store("streamed"), "audit")


class Shared:
    """Queues that Curator and kazoo use, too, with the dead letter of one."""

    queues: tuple[str, ...] = ()

    async def made(self, old: Old) -> None:
        for queue in self._queues(old.session):
            await queue.put_many([b"1", b"2"])
            async with old.session.begin() as tx:
                message = await tx.take(queue, timeout=WITHIN)
                assert message is not None
                tx.reject(message, "because")

    async def found(self, now: Now) -> None:
        for queue in self._queues(now.session):
            assert [(dead.body, dead.reason) for dead in await queue.dead_letters.peek()] == [(b"1", "because")]
            assert [message.body for message in await take(now.session, queue)] == [b"2"]
            assert await queue.dead_letters.redrive() == 1
            assert [message.body for message in await take(now.session, queue)] == [b"1"]

    def _queues(self, session: zq.QueueSession) -> list[zq.Queue[bytes]]:
        return [
            session.curator_queue("/app/curator", lock_path="/app/curator-locks"),
            session.kazoo_queue("/app/kazoo"),
        ]


STORIES: list[Story] = [
    Payloads(),
    Attempts(),
    DeadLetters(),
    PastEnds(),
    Scheduled(),
    Grouped(),
    Keyed(),
    Tagged(),
    Leased(),
    Spread(),
    Moved(),
    Posted(),
    Recurring(),
    Notified(),
    HttpKeys(),
    Streamed(),
    Shared(),
    Held(),  # the last: what comes after it would be inside its transaction
]
