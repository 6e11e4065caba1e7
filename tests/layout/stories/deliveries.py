"""The state of messages that were taken."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq

from .story import LONG, WITHIN, Now, Old, Parcel, take


class Attempts:
    """Counted attempts, and the error of the last failure."""

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
            async with now.session.transaction(autocommit=False) as tx:
                message = await tx.take(queue, timeout=WITHIN)
                assert message is not None
                assert message.attempt == attempt
                await tx.rollback(delay=0)
        async with now.session.transaction() as tx:
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
        tx = await old.open.enter_async_context(old.session.transaction(autocommit=False))
        assert await tx.take(queue) is not None
        old.open.push_async_callback(tx.rollback)

    async def found(self, now: Now) -> None:
        queue = now.session.queue("held")
        assert await queue.claimed() == 1
        (holder,) = await queue.admin.consumers()
        assert holder.host == "old-host"
        assert holder.messages == (now.known["held"],)
        assert (await queue.state(now.known["held"])).status is zq.Status.IN_FLIGHT
        async with now.session.transaction() as tx:
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
        async with old.session.transaction() as tx:
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
            async with old.session.transaction() as tx:
                message = await tx.take(queue, timeout=WITHIN)
                assert message is not None
                if word == "dead":
                    tx.reject(message, "because")

    async def found(self, now: Now) -> None:
        queue = now.session.queue("ended")
        records = {record.id: record async for record in queue.history()}
        ends = {word: records[now.known[f"history {word}"]] for word in ("finished", "dead", "cancelled")}
        assert [end.outcome for end in ends.values()] == [zq.End.FINISHED, zq.End.DEAD, zq.End.CANCELLED]
        assert (ends["finished"].payload, ends["finished"].key) == (b"finished", "finished")
        assert ends["dead"].reason == "because"
        assert (await queue.state(now.known["history finished"])).status is zq.Status.FINISHED
        assert await queue.dead_letters.purge() == 1


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
        async with old.session.transaction(autocommit=False) as tx:
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
        async with now.session.transaction() as tx:
            assert await tx.take(queue) is None
        await queue.leases.renew([now.known["lasting"]], lifetime=60)
        await queue.leases.acknowledge([now.known["lasting"], now.known["ended"]])
        assert await queue.size() == 0


class Bundled:
    """A bundle that no session holds, one whose holder was forced out, and one that a live program holds."""

    queues: tuple[str, ...] = ("bundled", "bundled-left", "bundled-held")
    policy = zq.ConsumeTimes(3, backoff=zq.Fixed(0))
    bodies = (b"1", b"2", b"3", b"4")

    async def made(self, old: Old) -> None:
        for name in self.queues:
            queue = old.session.queue(name)
            await queue.configure(zq.QueueConfig(bundle=4, policy=self.policy))
            *_, old.known[name] = await queue.put_many(self.bodies)
        for name in ("bundled-left", "bundled-held"):
            await asyncio.create_task(
                self._half_done(old, name)
            )  # so that puts of later stories are not in its transaction
        assert await old.session.queue("bundled-left").admin.release_claims() == 3

    async def found(self, now: Now) -> None:
        waiting, left, held = (now.session.queue(name) for name in self.queues)
        assert (await waiting.configuration()).bundle == 4
        assert (await waiting.stats()).size == 4
        assert [content.id for content in await waiting.peek()][-1] == now.known["bundled"]
        assert [message.body for message in await take(now.session, waiting, 4)] == [*self.bodies]
        assert await left.size() == 3
        again = await take(
            now.session, left, 3
        )  # the order is not fixed, because the program that stored them is also registered
        assert sorted((message.body, message.attempt) for message in again) == [(body, 2) for body in self.bodies[1:]]
        assert await held.claimed() == 3
        assert (await held.state(now.known["bundled-held"])).status is zq.Status.IN_FLIGHT
        async with now.session.transaction() as tx:
            assert await tx.take(held) is None
        await now.gone()
        again = await take(now.session, held, 3)
        assert sorted((message.body, message.attempt) for message in again) == [(body, 2) for body in self.bodies[1:]]

    async def _half_done(self, old: Old, name: str) -> None:
        """Finish one message of a bundle, and keep the others."""
        queue = old.session.queue(name)
        await take(old.session, queue)
        tx = await old.open.enter_async_context(old.session.transaction(autocommit=False))
        assert len(await tx.take_many(queue, 3)) == 3
        old.open.push_async_callback(tx.rollback)
