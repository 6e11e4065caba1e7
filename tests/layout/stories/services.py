"""The services that are built on queues."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.batches.staging import BatchWriter, fenced_puts
from aiozkqueue.bus import Bus, Buses
from aiozkqueue.errors import NoReplyError
from aiozkqueue.http.core.charts import Charts, Point
from aiozkqueue.http.core.keys import Keys
from aiozkqueue.http.core.permissions import Verb
from aiozkqueue.layout import ClientPaths
from aiozkqueue.layout.moves import MoveEnd, MovePaths, MoveRecord
from aiozkqueue.layout.rates import RatePaths, RateRecord
from aiozkqueue.layout.replies import REPLY, REPLY_TO
from aiozkqueue.layout.samples import SamplePaths, SampleRecord
from aiozkqueue.queue.put.prepare import prepare
from aiozkqueue.sampling import Sampler
from aiozkqueue.schedule import Jobs, Notification, Notifications, Scheduler
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create, SetData

from .story import FAR, WITHIN, Now, Old, Parcel, take, until


class OrderEvent(BaseModel):
    order: int


class OrderPaid(OrderEvent):
    cents: int


class Limited:
    """A rate with a leased slot."""

    queues: tuple[str, ...] = ("limited",)

    async def made(self, old: Old) -> None:
        await self._handle(old.session)

    async def found(self, now: Now) -> None:
        znode = await core_of(now.session).zookeeper.read(RatePaths(core_of(now.session).root).rate("bank"))
        assert RateRecord.decode(znode.data).length == 100_000
        await self._handle(now.session)

    @staticmethod
    async def _handle(session: zq.QueueSession) -> None:
        limited = session.queue("limited")
        await limited.put(b"1")

        async def handle(_: zq.Delivery[bytes]) -> None: ...

        async def done() -> bool:
            return await limited.size() == 0

        async with session.listener(limited, handle, rate=10, rate_name="bank"):
            await until(done)


class Called:
    """A message that asks for a reply."""

    queues: tuple[str, ...] = ("calls",)

    async def made(self, old: Old) -> None:
        calls = old.session.queue("calls")
        with suppress(NoReplyError):
            await calls.call(b"1", timeout=0.5)
        async with calls.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                client = core_of(old.session)
                assert delivery.headers[REPLY_TO].startswith(f"{client.ids.client}/")
                await delivery.rollback(delay=0)
                break

    async def found(self, now: Now) -> None:
        calls = now.session.queue("calls")
        async with calls.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                assert delivery.value == b"1"
                assert delivery.reply(b"to an old client")
                await delivery.commit()
        folder = ClientPaths(core_of(now.session).root, delivery.headers[REPLY_TO].partition("/")[0]).base
        names = await core_of(now.session).zookeeper.children(folder)
        assert [name for name in names if name.startswith(REPLY)]


class Moved:
    """A finished move, and a move whose program died."""

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
        old.known["moved"] = await session.admin.moves.start("moved", "moved-target")

        async def done() -> bool:
            return (await session.admin.moves.status(old.known["moved"])).state == "done"

        await until(done)
        # As `Moves.start` leaves it when its process dies at once.
        record = MoveRecord(MoveEnd("moving"), MoveEnd("moving-target")).encode()
        await core_of(session).zookeeper.multi([Create(MovePaths(core_of(session).root).move("unfinished"), record)])

    async def found(self, now: Now) -> None:
        session = now.session
        ended = await session.admin.moves.status(now.known["moved"])
        assert (ended.source, ended.target, ended.state, ended.moved) == ("moved", "moved-target", "done", 2)
        assert await session.admin.moves.resume() == 1

        async def done() -> bool:
            return (await session.admin.moves.status("unfinished")).state == "done"

        await until(done)
        for name in ("moved", "moving"):
            assert await session.queue(name).size() == 0
            assert [message.body for message in await take(session, session.queue(f"{name}-target"), 2)] == [b"1", b"2"]


class Posted:
    """Events of a bus, for its listeners and for a group."""

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
    """Recurring jobs: one with missed occurrences, and one that is paused."""

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
        assert [(message.value, message.headers["job"], message.headers["to"]) for message in messages] == [
            (Parcel(order=1), "often", "Rome")
        ] * 3
        dates = [datetime.fromisoformat(message.headers["occurrence"]) for message in messages]
        assert dates[2] - dates[0] == timedelta(minutes=2)
        for name in ("nightly", "often"):
            await jobs.remove(name)
        await queue.purge()


class Ran:
    """A recurring job that has put messages."""

    queues: tuple[str, ...] = ("seconds",)

    async def made(self, old: Old) -> None:
        jobs, queue = Jobs(old.session), old.session.queue("seconds")
        await jobs.add("second", "* * * * * *", queue, b"1")
        async with Scheduler(old.session):
            await take(old.session, queue)
        last = (await jobs.pause("second")).last
        assert last is not None
        old.known["second"] = last.isoformat()

    async def found(self, now: Now) -> None:
        jobs = Jobs(now.session)
        last = (await jobs.get("second")).last
        assert last is not None
        assert last.isoformat() == now.known["second"]
        await jobs.remove("second")
        await now.session.queue("seconds").purge()


class Notified:
    """Notifications with search keys."""

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
        old.known["key"] = await Keys(core_of(old.session)).create("shop", ["queue|post|orders*"])

    async def found(self, now: Now) -> None:
        keys = Keys(core_of(now.session))
        assert [(key.name, key.allow) for key in await keys.all()] == [("shop", ("queue|post|orders*",))]
        caller = await keys.caller(now.known["key"])
        assert caller is not None
        assert caller.name == "shop"
        assert caller.permissions.allows(Verb.POST, "orders-1")
        assert not caller.permissions.allows(Verb.POLL, "orders-1")
        assert await keys.revoke("shop") == 1


class Charted:
    """Samples for the charts of the dashboard."""

    queues: tuple[str, ...] = ()

    async def made(self, old: Old) -> None:
        core = core_of(old.session)
        path = SamplePaths(core.root).slot(0)
        record = SampleRecord(0)
        record.add(0, {"charted": (3, 2, 1, 1, 0)})
        record.add(30, {"charted": (4, 2, 2, 0, 1)})
        await core.zookeeper.ensure(SamplePaths(core.root).base)
        await core.zookeeper.multi([Create(path, record.encode())])

    async def found(self, now: Now) -> None:
        charts = Charts(core_of(now.session), Sampler(now.session))
        await charts.load()
        assert charts.points("charted", 0) == [Point(0, 3, 2, 1, 1, 0), Point(30, 4, 2, 2, 0, 1)]


class Streamed:
    """A batch that a stream has prepared and not acknowledged."""

    queues: tuple[str, ...] = ("streamed",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("streamed")
        await queue.put_many([b"1", b"2", b"3"])
        old.known["batch"] = str(await self._ledger(old.session).next_batch(-1, 2))

    async def found(self, now: Now) -> None:
        queue, ledger = now.session.queue("streamed"), self._ledger(now.session)
        (info,) = await queue.admin.ledgers()
        assert info.group == "audit"
        batch = int(now.known["batch"])
        assert await ledger.next_batch(batch - 1, 2) == batch
        assert sum(page.messages for page in await ledger.pages(batch)) == 2
        assert [message.body for message in await take(now.session, queue)] == [b"3"]
        assert await ledger.acknowledge(batch) == 2
        assert await queue.size() == 0

    def _ledger(self, session: zq.QueueSession) -> Ledger:
        return Ledger(core_of(session).handle("streamed"), "audit")


class Divided:
    """A batch of a stream that failed once, was divided, and has been partly read."""

    queues: tuple[str, ...] = ("divided",)

    async def made(self, old: Old) -> None:
        await old.session.queue("divided").put_many([b"%d" % number for number in range(17)])
        ledger = self._ledger(old.session)
        batch = await ledger.next_batch(-1, None)
        for _ in range(2):
            handed = await ledger.hand_out(batch, "stream", 1)
        await handed.reading.of(0, 1).note(core_of(old.session).zookeeper)
        old.known["divided"] = (await ledger.state()).identity

    async def found(self, now: Now) -> None:
        queue, ledger = now.session.queue("divided"), self._ledger(now.session)
        state = await ledger.state()
        assert (state.identity, state.used, state.batches) == (now.known["divided"], True, 2)
        sizes: list[int] = []
        last = -1
        while (batch := await ledger.next_batch(last, None)) != last:
            handed = await ledger.hand_out(batch, "stream", None if sizes else 3)
            sizes.append(sum(page.messages for page in handed.pages))
            await handed.reading.note(core_of(now.session).zookeeper)
            await ledger.acknowledge(batch, "stream")
            last = batch
        assert sum(sizes) == 17
        assert sizes[0] == 1  # the batch had failed again
        assert await queue.size() == 0

    def _ledger(self, session: zq.QueueSession) -> Ledger:
        return Ledger(core_of(session).handle("divided"), "audit")


class SparkBundles:
    """A bundle that a stream has locked and not acknowledged, waiting bundles, and a bundle of a pending batch."""

    queues: tuple[str, ...] = ("spark-bundles",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("spark-bundles")
        await queue.configure(zq.QueueConfig(bundle=3))
        await queue.put_many([b"%d" % number for number in range(9)])
        old.known["bundles"] = str(await self._ledger(old.session).next_batch(-1, 3))
        core = core_of(old.session)
        staging = self._staging(old.session)
        fence = await staging.begin(0, "run")
        assert fence is not None
        await core.zookeeper.multi([Create(f"{staging.path}/p00000")])
        puts = [fence.staged(prepare(core, "spark-bundles", b"of a write", {})) for _ in range(3)]
        await core.settle(fenced_puts(core.ids.next(), puts, fence, SetData(f"{staging.path}/p00000", b"{}", 0)))

    async def found(self, now: Now) -> None:
        queue, ledger = now.session.queue("spark-bundles"), self._ledger(now.session)
        batch = int(now.known["bundles"])
        assert await ledger.next_batch(batch - 1, 3) == batch
        assert sum(page.messages for page in await ledger.pages(batch)) == 3
        stats = await queue.stats()
        assert (stats.size, stats.in_flight, stats.staged) == (12, 3, 1)
        assert [message.body for message in await take(now.session, queue, 6)] == [
            b"%d" % number for number in range(3, 9)
        ]
        assert await ledger.acknowledge(batch) == 3
        assert await queue.size() == 3
        await self._staging(now.session).complete(0)
        assert [message.body for message in await take(now.session, queue, 3)] == [b"of a write"] * 3
        await self._staging(now.session).forget()
        assert await queue.size() == 0

    def _ledger(self, session: zq.QueueSession) -> Ledger:
        return Ledger(core_of(session).handle("spark-bundles"), "audit")

    def _staging(self, session: zq.QueueSession) -> BatchWriter:
        return BatchWriter(core_of(session).handle("spark-bundles"), "write x")


class SparkRefusals:
    """Runs of writes that can no longer begin: one failed before its first task began, and one is complete."""

    queues: tuple[str, ...] = ("spark-refusals",)

    async def made(self, old: Old) -> None:
        numbered, plain = self._writers(old.session)
        await numbered.abort(3, "failed")
        assert await plain.begin(0, "done") is not None
        await plain.complete(0)
        await plain.forget()

    async def found(self, now: Now) -> None:
        numbered, plain = self._writers(now.session)
        for writer, batch, run in ((numbered, 3, "failed"), (plain, 0, "done")):
            with pytest.raises(zq.NotCommittedError, match="has been discarded"):
                await writer.begin(batch, run)
        assert await numbered.begin(3, "next") is not None
        await numbered.complete(3)
        assert await now.session.queue("spark-refusals").size() == 0

    def _writers(self, session: zq.QueueSession) -> tuple[BatchWriter, BatchWriter]:
        handle = core_of(session).handle("spark-refusals")
        return BatchWriter(handle, "application orders"), BatchWriter(handle, "write done")


class Shared:
    """Queues that Curator and kazoo also use, with a dead letter."""

    queues: tuple[str, ...] = ()

    async def made(self, old: Old) -> None:
        for queue in self._queues(old.session):
            await queue.put_many([b"1", b"2"])
            async with old.session.transaction() as tx:
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
