"""The contents of messages, and the options of their puts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of

from .story import FAR, LONG, WITHIN, Now, Old, Parcel, take, until


class Payloads:
    """Plain bytes, JSON, bytes that begin like an envelope, headers, and several priorities."""

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
        """Return a payload that is the bytes of an envelope."""
        node = next(path for path in await self._items(old) if old.known["envelope"] in path)
        body = (await core_of(old.session).zookeeper.read(node)).data
        old.known["like an envelope"] = body.decode("latin-1")
        return body

    async def _items(self, old: Old) -> list[str]:
        items = core_of(old.session).queue_state("payloads").paths.items
        return [f"{items}/{name}" for name in await core_of(old.session).zookeeper.children(items)]


class Scheduled:
    """Delayed messages, and messages with a lifetime."""

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
            await now.session.admin.clean("scheduled")
            return [dead.body for dead in await queue.dead_letters.peek()] == [b"short"]

        await until(expired)
        now.clock.advance(FAR - datetime.now(UTC))
        assert [message.body for message in await take(now.session, queue)] == [b"far"]
        await queue.dead_letters.purge()


class Keyed:
    """A unique key that is taken, and a collapsing key with several messages."""

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


class PutBefore:
    """A dead letter that was put back behind a newer message of its key, which counts as older."""

    queues: tuple[str, ...] = ("put-before",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("put-before")
        await queue.configure(zq.QueueConfig(collapse=True))
        await queue.put(b"older", key="k")
        async with old.session.transaction() as tx:
            message = await tx.take(queue, timeout=WITHIN)
            assert message is not None
            tx.reject(message, "not now")
        await queue.put(b"newer", key="k")
        assert await queue.dead_letters.redrive() == 1

    async def found(self, now: Now) -> None:
        queue = now.session.queue("put-before")
        assert [message.body for message in await queue.peek()] == [b"newer", b"older"]
        assert [message.body for message in await take(now.session, queue)] == [b"newer"]
        assert await queue.size() == 0


class Sticky:
    """A message that only the node that put it may take."""

    queues: tuple[str, ...] = ("sticky",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("sticky")
        await queue.configure(zq.QueueConfig(affinity="producer"))
        await queue.put(b"1")

    async def found(self, now: Now) -> None:
        queue = now.session.queue("sticky")
        assert (await queue.stats()).bound == 1
        async with now.session.transaction() as tx:
            assert await tx.take(queue) is None
        now.clock.advance(timedelta(days=30))
        assert await queue.admin.reap() == 1
        assert [message.body for message in await take(now.session, queue)] == [b"1"]


class UrgentLater:
    """Delayed messages with priorities."""

    queues: tuple[str, ...] = ("urgent-later",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("urgent-later")
        for body, priority in ((b"less", 5), (b"urgent", -5)):
            await queue.put(body, at=FAR, priority=priority)

    async def found(self, now: Now) -> None:
        queue = now.session.queue("urgent-later")
        assert {message.body: message.priority for message in await queue.peek()} == {b"less": 5, b"urgent": -5}
        now.clock.advance(FAR - datetime.now(UTC))
        assert [message.body for message in await take(now.session, queue, 2)] == [b"urgent", b"less"]


class Tagged:
    """Tags, and consumers with filters."""

    queues: tuple[str, ...] = ("tagged",)

    async def made(self, old: Old) -> None:
        queue = old.session.queue("tagged")
        await queue.put(b"1", tags={"country": "it", "weight": 3})
        await queue.put(b"2", tags={"country": "no", "weight": 5})

    async def found(self, now: Now) -> None:
        queue = now.session.queue("tagged")
        async with now.session.transaction() as tx:
            message = await tx.take(queue, timeout=WITHIN, filters=zq.Filter("country", "eq", "no"))
            assert message is not None
            assert (message.body, message.tags) == (b"2", {"country": "no", "weight": 5})
        await queue.put(b"3", tags={"country": "it", "weight": 3})  # relies on the existing record
        assert [message.body for message in await take(now.session, queue, 2)] == [b"1", b"3"]


class Spread:
    """A full, paused queue with shards."""

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
        async with now.session.transaction() as tx:
            assert await tx.take(queue) is None
        await queue.configure(zq.QueueConfig(shards=4, max_size=12, paused=False))
        assert sorted(message.value for message in await take(now.session, queue, 12)) == [*range(12)]
        await queue.put(12)
        await take(now.session, queue)
