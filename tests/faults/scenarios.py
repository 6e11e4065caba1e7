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
    """An operation on its own queues: prepared, run under cancellation, then checked."""

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
        """The attempts that are recorded for the remaining items."""
        return [json.loads(record)["attempts"] for record in await self.account.attempts(self.source)]

    async def moved_or_not(self) -> int:
        """Assert that each message is in one place and no lock is left; return how many have been moved."""
        await self.account.unlocked(self.source)
        left = await self.account.bodies(self.source)
        moved = await self.account.bodies(self.target)
        assert sorted(left + moved) == sorted(self.bodies)
        return len(moved)


class WholeTransaction(Scenario):
    """A transaction that takes, puts and commits."""

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
    """`WholeTransaction` with a policy that records attempts."""

    policy = zq.ConsumeTimes(50)


class FailingTransaction(Scenario):
    """A block that raises and is rolled back."""

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
    """The take is cancelled; then the transaction commits, and removes only the messages that the take returned."""

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
        assert not any(await self.attempted()), "an attempt was counted for a message that was not delivered"


class CountedTakeOnly(TakeOnly):
    """`TakeOnly` with a policy that records attempts."""

    policy = zq.ConsumeTimes(50)


class TakeMany(TakeOnly):
    """A take of more messages than one claim multi locks."""

    limit = 100
    bodies = tuple(b"%03d" % number for number in range(100))


class CountedTakeMany(TakeMany):
    """`TakeMany` with a policy that records attempts."""

    policy = zq.ConsumeTimes(50)


class TakeWaiting(TakeOnly):
    """A take that waits on a queue that is filled meanwhile."""

    async def operate(self) -> None:
        loop = asyncio.get_running_loop()
        filling = loop.create_task(self.queue.put(b"b"), context=Context())  # outside the transaction
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
    """A put: its message is stored once or not at all, and it is stored if the call has returned."""

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
    """Messages put in several requests: the first of them are stored, each once."""

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
    """A commit, and then the end of the block."""

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
    """A rollback: the lock is removed whether or not the caller is cancelled."""

    async def operate(self) -> None:
        await self.transaction.rollback(delay=0)

    async def check(self, *, returned: bool) -> None:
        del returned
        assert self.transaction.outcome is zq.Outcome.ROLLED_BACK
        assert await self.moved_or_not() == 0


class Loop(Scenario):
    """An `async for` loop whose own commits move the messages."""

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
    """A loop that waits for each commit."""

    prefetch = 1


class CrowdedLoop(Loop):
    """A loop with the maximum number of commits in progress."""

    prefetch = 2


class CountedLoop(Loop):
    """`Loop` with a policy that records attempts."""

    policy = zq.ConsumeTimes(50)


class EnteredLoop(Loop):
    """A loop in which a separate block settles each delivery."""

    async def operate(self) -> None:
        async with self.queue.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    await asyncio.sleep(0)
                    delivery.put(self.target, delivery.body)


class Closing(Scenario):
    """`aclose()` while one delivery is unsettled and others are claimed ahead."""

    bodies = (b"a", b"b", b"c", b"d")

    async def prepare(self) -> None:
        await super().prepare()
        self.deliveries = self.queue.consume()
        for _ in range(2):  # the loop commits the first one, which tells it the pace, so it claims more ahead
            delivery = await anext(self.deliveries)
            delivery.put(self.target, delivery.body)

    async def operate(self) -> None:
        await self.deliveries.aclose()

    async def check(self, *, returned: bool) -> None:
        del returned
        assert await self.moved_or_not() == 1


class Listening(Scenario):
    """A listener that runs until it has handled all messages."""

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
    """`Listening` with a policy that records attempts."""

    policy = zq.ConsumeTimes(50)


class ListeningToBatches(Listening):
    """A listener with batches, whose handler fails one message of each batch."""

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
    """`ListeningToBatches` with a policy that records attempts."""

    policy = zq.ConsumeTimes(50)


class ListeningBlock(Listening):
    """A listener that runs during a block and is stopped while it works."""

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
