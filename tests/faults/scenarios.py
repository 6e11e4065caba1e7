"""The operations that are cancelled, and the state that must hold after a cancellation at any moment."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, ClassVar

import aiozkqueue as zq

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.listeners import Batch
    from tests.faults.account import Account


class Scenario:
    """Prepared, operated under cancellation, then checked: on queues of its own."""

    policy: ClassVar[zq.Policy | None] = None
    bodies: ClassVar[Sequence[bytes]] = (b"a",)

    def __init__(self, session: zq.QueueSession, account: Account, number: int) -> None:
        self.session = session
        self.account = account
        self.source = f"source-{number}"
        self.target = f"target-{number}"
        if self.policy is None:
            self.queue = session.queue(self.source)
        else:
            self.queue = session.queue(self.source, policy=self.policy)

    async def prepare(self) -> None:
        await self.queue.put_many(self.bodies)

    async def operate(self) -> None:
        raise NotImplementedError

    async def check(self, *, returned: bool) -> None:
        raise NotImplementedError

    async def attempted(self) -> list[int]:
        """The attempts recorded of each item that is still there."""
        return [json.loads(record)["attempts"] for record in await self.account.attempts(self.source)]

    async def moved_or_not(self) -> int:
        """Assert that each message is in one place and no lock is left; tell how many have been moved."""
        await self.account.unlocked(self.source)
        left = await self.account.bodies(self.source)
        moved = await self.account.bodies(self.target)
        assert sorted(left + moved) == sorted(self.bodies)
        return len(moved)


class WholeTransaction(Scenario):
    """Begin, take, put, commit."""

    transaction: zq.Transaction | None = None

    async def operate(self) -> None:
        async with self.session.transaction() as tx:
            self.transaction = tx
            message = await tx.take(self.queue)
            assert message is not None
            tx.put(self.target, message.body)

    async def check(self, *, returned: bool) -> None:
        moved = 0
        if self.transaction is not None:
            outcome = await self.session.outcome(self.transaction.id, timeout=30)
            moved = await self.moved_or_not()
            assert outcome is (zq.Outcome.COMMITTED if moved else zq.Outcome.ROLLED_BACK)
        assert moved or not returned


class CountedTransaction(WholeTransaction):
    """The same where attempts are recorded before the message is shown."""

    policy = zq.ConsumeTimes(50)


class FailingTransaction(Scenario):
    """A block that raises: rolled back."""

    async def operate(self) -> None:
        with suppress(ZeroDivisionError):
            async with self.session.transaction() as tx:
                assert await tx.take(self.queue) is not None
                raise ZeroDivisionError

    async def check(self, *, returned: bool) -> None:
        del returned
        if not await self.account.view.children(self.account.path(self.source, "due")):
            assert await self.moved_or_not() == 0
        assert await self.account.bodies(self.source) == list(self.bodies)
        assert await self.account.view.ephemerals(self.account.path(self.source, "locks")) == {}


class TakeOnly(Scenario):
    """A take is cancelled, and the transaction goes on and commits: it removes what it was shown, and nothing else."""

    limit = 1

    def __init__(self, session: zq.QueueSession, account: Account, number: int) -> None:
        super().__init__(session, account, number)
        self.block = session.transaction(autocommit=False)
        self.shown: list[bytes] = []

    async def prepare(self) -> None:
        await super().prepare()
        self.transaction = await self.block.__aenter__()

    async def operate(self) -> None:
        messages = await self.transaction.take_many(self.queue, self.limit)
        self.shown = [message.body for message in messages]

    async def check(self, *, returned: bool) -> None:
        assert bool(self.shown) == returned, (self.shown, returned)
        await self.transaction.commit()
        await self.block.__aexit__(None, None, None)
        await self.account.unlocked(self.source)
        assert sorted([*self.shown, *await self.account.bodies(self.source)]) == sorted(self.bodies)
        assert not any(await self.attempted()), "an attempt was counted for what nobody was shown"


class CountedTakeOnly(TakeOnly):
    """The same where attempts are recorded before the message is shown."""

    policy = zq.ConsumeTimes(50)


class TakeMany(TakeOnly):
    """More than one claim holds."""

    limit = 100
    bodies = tuple(b"%03d" % number for number in range(100))


class CountedTakeMany(TakeMany):
    """The same where attempts are recorded."""

    policy = zq.ConsumeTimes(50)


class TakeWaiting(TakeOnly):
    """A patient take, on a queue that is filled while it waits."""

    async def operate(self) -> None:
        filling = asyncio.get_running_loop().create_task(self.queue.put(b"b"), context=Context())  # of no transaction
        try:
            message = await self.transaction.take(self.queue, timeout=30)
            self.shown = [] if message is None else [message.body]
        finally:
            self.put = filling

    async def prepare(self) -> None:
        self.transaction = await self.block.__aenter__()

    async def check(self, *, returned: bool) -> None:
        await self.put
        self.bodies = (b"b",)  # type: ignore[misc]
        await super().check(returned=returned)


class Put(Scenario):
    """One message put: there once, or not at all; there when the call returned."""

    bodies = ()

    async def prepare(self) -> None:
        await self.queue.put(b"first")

    async def operate(self) -> None:
        await self.queue.put(b"second")

    async def check(self, *, returned: bool) -> None:
        bodies = await self.account.bodies(self.source)
        assert bodies[0] == b"first"
        assert bodies[1:] in ([b"second"], []) if not returned else [[b"second"]]


class PutMany(Scenario):
    """Several messages put in several requests: a beginning of them, each once."""

    values = tuple(bytes([number]) * 100_000 for number in range(6))

    async def prepare(self) -> None:
        await self.queue.exists()

    async def operate(self) -> None:
        await self.queue.put_many(self.values)

    async def check(self, *, returned: bool) -> None:
        bodies = await self.account.bodies(self.source)
        assert tuple(bodies) == self.values[: len(bodies)]
        assert not returned or len(bodies) == len(self.values)


class Commit(Scenario):
    """A commit, then whatever the block does when it is left."""

    async def prepare(self) -> None:
        await super().prepare()
        self.block = self.session.transaction(autocommit=False)
        self.transaction = await self.block.__aenter__()
        message = await self.transaction.take(self.queue)
        assert message is not None
        self.transaction.put(self.target, message.body)

    async def operate(self) -> None:
        await self.transaction.commit()

    async def check(self, *, returned: bool) -> None:
        outcome = await self.session.outcome(self.transaction.id, timeout=30)
        if outcome is zq.Outcome.OPEN:
            await self.transaction.rollback(delay=0)
            outcome = self.transaction.outcome
        moved = await self.moved_or_not()
        assert outcome is (zq.Outcome.COMMITTED if moved else zq.Outcome.ROLLED_BACK)
        assert moved or not returned


class Rollback(Commit):
    """A rollback: whatever becomes of its caller, the lock goes."""

    async def operate(self) -> None:
        await self.transaction.rollback(delay=0)

    async def check(self, *, returned: bool) -> None:
        del returned
        assert self.transaction.outcome is zq.Outcome.ROLLED_BACK
        assert await self.moved_or_not() == 0


class Loop(Scenario):
    """`async for`, each message moved by the commit that the loop makes."""

    bodies = (b"a", b"b", b"c", b"d")
    prefetch = 32

    async def operate(self) -> None:
        async with self.queue.consume(prefetch=self.prefetch, until_idle=0) as deliveries:
            async for delivery in deliveries:
                delivery.put(self.target, delivery.body)

    async def check(self, *, returned: bool) -> None:
        moved = await self.moved_or_not()
        assert not returned or moved == len(self.bodies)


class LoopOneByOne(Loop):
    """Each commit is waited for."""

    prefetch = 1


class CrowdedLoop(Loop):
    """As many commits in progress as may be."""

    prefetch = 2


class CountedLoop(Loop):
    """The same where attempts are recorded."""

    policy = zq.ConsumeTimes(50)


class EnteredLoop(Loop):
    """Each delivery is settled by a separate block."""

    async def operate(self) -> None:
        async with self.queue.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    await asyncio.sleep(0)
                    delivery.put(self.target, delivery.body)


class Closing(Scenario):
    """`aclose()` with one delivery in hand and others claimed ahead."""

    bodies = (b"a", b"b", b"c", b"d")

    async def prepare(self) -> None:
        await super().prepare()
        self.deliveries = self.queue.consume()
        for _ in range(2):  # the first is committed by the loop, which shows a pace, and more is claimed ahead
            delivery = await anext(self.deliveries)
            delivery.put(self.target, delivery.body)

    async def operate(self) -> None:
        await self.deliveries.aclose()

    async def check(self, *, returned: bool) -> None:
        del returned
        assert await self.moved_or_not() == 1


class Listening(Scenario):
    """A listener that runs until it has handled all."""

    bodies = (b"a", b"b", b"c", b"d")

    async def operate(self) -> None:
        await self.listener().run()

    def listener(self) -> zq.Listener[bytes]:
        handled: list[bytes] = []

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            await asyncio.sleep(0)
            delivery.put(self.target, delivery.body)
            handled.append(delivery.body)
            if len(handled) == len(self.bodies):
                listener.stop()

        listener = self.session.listener(self.queue, handle, concurrency=2)
        return listener

    async def check(self, *, returned: bool) -> None:
        moved = await self.moved_or_not()
        assert not returned or moved == len(self.bodies)


class CountedListening(Listening):
    """The same where attempts are recorded."""

    policy = zq.ConsumeTimes(50)


class ListeningToBatches(Listening):
    """A listener with batches, whose handler fails a message of each."""

    def listener(self) -> zq.Listener[bytes]:
        handled: set[bytes] = set()

        async def handle(batch: Batch[bytes]) -> None:
            await asyncio.sleep(0)
            for message in batch[:-1] if len(batch) > 1 else batch:
                batch.put(self.target, message.body)
                handled.add(message.body)
            if len(batch) > 1:
                batch.fail(batch[-1], zq.Retry(delay=0))
            if len(handled) == len(self.bodies):
                listener.stop()

        listener = self.session.listener(self.queue, handle, batch=3, batch_wait=0.01, concurrency=2)
        return listener


class CountedListeningToBatches(ListeningToBatches):
    """The same where attempts are recorded."""

    policy = zq.ConsumeTimes(50)


class ListeningBlock(Listening):
    """A listener in the background of a block, stopped while it works."""

    async def operate(self) -> None:
        async with self.listener():
            await asyncio.sleep(0.002)

    async def check(self, *, returned: bool) -> None:
        del returned
        await self.moved_or_not()


SCENARIOS: list[type[Scenario]] = [
    WholeTransaction,
    CountedTransaction,
    FailingTransaction,
    TakeOnly,
    CountedTakeOnly,
    TakeMany,
    CountedTakeMany,
    TakeWaiting,
    Put,
    PutMany,
    Commit,
    Rollback,
    Loop,
    LoopOneByOne,
    CrowdedLoop,
    CountedLoop,
    EnteredLoop,
    Closing,
    Listening,
    CountedListening,
    ListeningToBatches,
    CountedListeningToBatches,
    ListeningBlock,
]
