"""A queue with bundles, and calls that change bundles in every possible way."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiozkqueue as zq
from aiozkqueue.layout import is_bundle_at
from aiozkqueue.testing.simulator import Cluster, SimulatedClient
from aiozkqueue.testing.simulator.requests import Kind
from aiozkqueue.zookeeper import Check
from tests.simulation.features_subjects import Ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import ModuleType

    from aiozkqueue.testing.simulator import Request

#: The number of messages of each bundle.
SIZE = 3
#: The initial messages of the queue.
FIRST = [b"b%d" % number for number in range(2 * SIZE)]
#: Sets of messages that keep the order of their puts, whichever consumer held them: those of a bundle or of a put.
TOGETHER = [{"b0", "b1", "b2"}, {"b3", "b4", "b5"}, {f"n{number}" for number in range(1, 8)}]
#: Seconds, longer than a session keeps claimed messages for which no taker comes.
UNUSED = 0.3
#: Seconds after which a claim that begins now has been sent, and not answered.
CLAIMING = 0.012
#: Seconds after which the attempt of that claim is being recorded.
RECORDING = 0.0135


class BundledQueue:
    """A queue with two bundles, and a transaction that may hold messages of them."""

    def __init__(
        self, session: zq.QueueSession, ids: list[str], tx: zq.Transaction, held: list[zq.Message[bytes]]
    ) -> None:
        self._session = session
        self._queue = session.queue("jobs")
        self._ids = ids
        self._tx = tx
        self._held = held

    async def put_bundle(self) -> None:
        """Put messages that become one bundle."""
        await self._queue.put_many([b"n1", b"n2", b"n3"])

    async def put_around_another(self) -> None:
        """Put two runs of messages that become bundles, and a message with a key between them."""
        async with self._session.transaction() as tx:
            for number in range(1, 8):
                options: zq.PutOptions = {"key": "k"} if number == 4 else {}
                tx.put(self._queue, b"n%d" % number, **options)

    async def claim(self) -> None:
        """Claim a bundle, and release its first message without a delay."""
        async with self._session.transaction() as tx:
            await tx.take(self._queue)
            await tx.rollback(delay=0)

    async def end_some(self) -> None:
        """Finish the held messages; other messages of the bundle remain."""
        await self._tx.commit()

    async def end_after_release(self) -> None:
        """Finish a message of a bundle whose lock was released by force; the commit is refused."""
        await self._queue.admin.release_claims()
        try:
            await self._tx.commit()
        except zq.ClaimLostError:
            return
        raise AssertionError(self._tx.outcome)

    async def end_last(self) -> None:
        """Finish all messages of a bundle."""
        await self._tx.commit()

    async def end_of_two(self) -> None:
        """Finish messages of two bundles in one multi."""
        await self._tx.commit()

    async def end_beside_a_refused_one(self) -> None:
        """Finish one message in a multi with the end of another message, which is refused."""
        async with self._session.transaction(autocommit=False) as refused:
            await refused.take(self._queue)
            refused.put("results", b"r2", key="k", unique=True)
            error, _ = await asyncio.gather(self._tx.commit(), refused.commit(), return_exceptions=True)
            if refused.outcome is zq.Outcome.OPEN:
                await refused.rollback(delay=0)
        if error is not None:
            raise error
        for _ in range(10):  # the figure is exact while no message changes its state
            if await self._queue.size() == 2 * SIZE - 1:
                return
            await asyncio.sleep(UNUSED)
        raise AssertionError(await self._queue.size())

    async def release_later(self) -> None:
        """Have the held messages redelivered later, as single items."""
        await self._tx.rollback(delay=0.1)

    async def reject_one(self) -> None:
        """Make a held message a dead letter."""
        self._tx.reject(self._held[0], "bad")
        await self._tx.commit()

    async def return_the_rest(self) -> None:
        """Wait until the messages without a taker are single items, and finish the held one."""
        await asyncio.sleep(UNUSED)
        await self._tx.commit()

    async def return_untouched(self) -> None:
        """Claim a bundle for a taker that is cancelled before the answer arrives; the whole bundle is unlocked."""
        await self._take_cancelled(CLAIMING)
        await asyncio.sleep(UNUSED)

    async def return_recorded(self) -> None:
        """Claim a bundle for a taker that is cancelled while the attempt is recorded; the attempt does not count."""
        zookeeper = self._session._runtime.zookeeper
        generation = zookeeper.generation
        cancelled = await self._take_cancelled(RECORDING)
        for _ in range(10):
            await asyncio.sleep(UNUSED)
            first, *_ = await self._queue.peek(1)
            if not cancelled or zookeeper.generation != generation or first.attempt == 0:
                return
        raise AssertionError(first.attempt)

    async def _take_cancelled(self, after: float) -> bool:
        """Cancel a take after some seconds; return whether it was still waiting."""
        async with self._session.transaction(autocommit=False) as tx:
            taking = asyncio.create_task(tx.take(self._queue))
            await asyncio.sleep(after)
            taking.cancel()
            await asyncio.wait({taking})
            await tx.rollback(delay=0)
        return taking.cancelled()

    async def dissolve(self) -> None:
        """Claim from a bundle whose holder has died, and finish its first message."""
        async with self._session.transaction() as tx:
            await tx.take(self._queue)

    async def unbundle(self) -> None:
        """Dissolve all bundles."""
        await self._queue.admin.unbundle()

    async def cancel_one(self) -> None:
        """Remove the second message of a bundle."""
        await self._queue.cancel(id=self._ids[1])

    async def update_one(self) -> None:
        """Change the second message of a bundle."""
        await self._queue.update(b"changed", id=self._ids[1])

    async def move(self) -> None:
        """Move all messages to another queue."""
        moves = self._session.admin.moves
        reference = await moves.start("jobs", "results")
        for _ in range(20):
            if (await moves.status(reference)).state == "done":
                assert await self._queue.size() == 0
                break
            await asyncio.sleep(UNUSED)

    async def purge(self) -> None:
        """Remove all messages."""
        await self._queue.purge()

    async def release_claims(self) -> None:
        """Release the locks of bundles by force."""
        await self._queue.admin.release_claims()


@asynccontextmanager
async def _fresh(session: zq.QueueSession, held: int = 0) -> AsyncIterator[Ready]:
    """Prepare two bundles, and a transaction that holds this many of their messages."""
    queue = session.queue("jobs")
    await queue.purge()
    await queue.configure(zq.QueueConfig(bundle=SIZE))
    ids = await queue.put_many(FIRST)
    async with session.transaction(autocommit=False) as tx:
        messages = await tx.take_many(queue, held) if held else []
        if held:
            tx.put("results", b"r1")
        try:
            yield Ready(BundledQueue(session, ids, tx, messages), session, {})
        finally:
            if tx.outcome is zq.Outcome.OPEN:
                await tx.rollback(delay=0)


@asynccontextmanager
async def _beside_a_key(session: zq.QueueSession) -> AsyncIterator[Ready]:
    """Prepare the same with one held message, and a unique key that is taken."""
    await session.queue("results").put(b"r", key="k", unique=True)
    async with _fresh(session, 1) as ready:
        yield ready


@asynccontextmanager
async def _abandoned(session: zq.QueueSession, *, dies: bool = True) -> AsyncIterator[Ready]:
    """Prepare the same. Another session has finished one message, and holds another one or has died with it."""
    zookeeper = session._runtime.zookeeper
    assert isinstance(zookeeper, SimulatedClient)
    ensemble = cast("Any", zookeeper.session._servers)
    async with _fresh(session) as ready, AsyncExitStack() as stack:
        holder = await stack.enter_async_context(Cluster(ensemble, "holder").connect(name="holder"))
        async with holder.transaction() as tx:
            await tx.take(holder.queue("jobs"))
        other = await stack.enter_async_context(holder.transaction(autocommit=False))
        await other.take_many(holder.queue("jobs"), SIZE - 1)
        stack.push_async_callback(other.rollback, delay=0)
        if dies:
            ensemble.expire(holder._runtime.zookeeper.session_id)
        yield ready


#: The number of messages that the transaction holds, for the calls in which it is not the default.
HELD = {
    "end_some": SIZE - 1,
    "end_last": SIZE,
    "end_of_two": SIZE + 1,
    "end_after_release": 1,
    "release_later": 1,
    "reject_one": 1,
    "return_the_rest": 1,
}
#: For some calls, the number of messages, from the first one, that takers may have received.
TAKEN = {**HELD, "claim": 1}
#: For calls that finish one of several messages, these messages. If the outcome of recording an attempt stays unknown,
#: the take continues with the next message.
NEXT = {"BundledQueue.dissolve": {"b1", "b2"}}
SUBJECTS: dict[type | ModuleType, Callable[[zq.QueueSession], Any]] = {BundledQueue: _fresh}
#: The preparation of the queue for some of the calls.
SPECIAL: dict[str, Callable[[zq.QueueSession], Any]] = {
    **{f"BundledQueue.{name}": partial(_fresh, held=held) for name, held in HELD.items()},
    "BundledQueue.end_beside_a_refused_one": _beside_a_key,
    "BundledQueue.dissolve": _abandoned,
    "BundledQueue.release_claims": partial(_abandoned, dies=False),
}
#: Calls of several steps.
GRADUAL = {"BundledQueue.purge", "BundledQueue.move"}

#: The changes to bundles that each call makes without a fault.
CHANGES: dict[str, list[str]] = {
    "cancel_one": ["Create record", "Delete record", "Delete bundle"],
    "claim": ["Create record", "SetData record"],
    "dissolve": ["Create record", "Delete record", "Delete bundle"],
    "end_after_release": ["SetData record", "SetData record", "Delete record", "Delete bundle"],
    "end_beside_a_refused_one": ["SetData record"] * 4,  # the last one records the error of the refused commit
    "end_last": ["Delete record", "Delete bundle"],
    "end_of_two": ["Delete record", "Delete bundle", "SetData record"],
    "end_some": ["SetData record"],
    "move": ["Create record", "Delete record", "Delete bundle"] * 2,
    "purge": ["Create record", "Delete record", "Delete bundle"] * 2,
    "put_around_another": ["Create bundle", "Create bundle"],
    "put_bundle": ["Create bundle"],
    "reject_one": ["SetData record"],
    "release_claims": ["SetData record"],
    "release_later": ["SetData record"],
    "return_recorded": ["Create record", "SetData record", "Delete record", "Delete bundle"],
    "return_the_rest": ["SetData record", "Delete record", "Delete bundle"],
    "return_untouched": ["Create record", "Delete record"],
    "unbundle": ["Create record", "Delete record", "Delete bundle"] * 2,
    "update_one": ["Create record", "Delete record", "Delete bundle"],
}


def changes_of(sent: list[Request]) -> list[str]:
    """Return the changes of bundles and of their records by these requests, in order."""
    return [
        f"{type(operation).__name__} {'record' if '/meta/' in operation.path else 'bundle'}"
        for request in sent
        if request.kind is Kind.MULTI
        for operation in request.argument
        if is_bundle_at(operation.path) and not isinstance(operation, Check)
    ]
