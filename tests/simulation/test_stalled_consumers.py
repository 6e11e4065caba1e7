"""Consumers get every free message, whatever happens to the queue while they wait."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
from aiozkqueue.session.internals import core_of
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@asynccontextmanager
async def listening(
    session: zq.QueueSession, handler: Callable[[zq.Delivery[bytes]], Awaitable[None]], concurrency: int = 1
) -> AsyncIterator[zq.Listener[bytes]]:
    async with session.listener(session.queue("jobs"), handler, concurrency=concurrency) as listener:
        yield listener


@pytest.mark.parametrize("wait", [0, 600])
def test_delayed_messages_that_another_session_releases_are_taken_in_a_queue_with_priorities(wait: float) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        taker, holder, operator = sessions
        jobs = operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
        await jobs.put(b"urgent", priority=5)
        failing, taken = asyncio.Event(), list[bytes]()

        async def fail(_: zq.Delivery[bytes]) -> None:
            await failing.wait()
            raise OSError

        async def take(timeout: float) -> bool:
            async with taker.transaction() as tx:
                message = await tx.take(taker.queue("jobs"), timeout=timeout)
                taken.extend([] if message is None else [message.body])
                return message is not None

        async with listening(holder, fail, 8) as listener:
            await asyncio.sleep(1)
            await jobs.put_many([b"%d" % number for number in range(8)], delay=1)
            for _ in range(6):
                await take(0.5)
            await asyncio.sleep(1)
            listener.stop()
            failing.set()
        await asyncio.sleep(1)
        while await take(wait):
            pass
        assert await jobs.size() == 0, taken

    play(program)


def test_a_consumer_is_idle_after_its_queue_with_a_delayed_message_was_created_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds, serve = 0, ClaimDispatcher._serve

    async def counted(self: ClaimDispatcher) -> None:
        nonlocal rounds
        rounds += 1
        await serve(self)

    monkeypatch.setattr(ClaimDispatcher, "_serve", counted)

    async def program(sessions: list[zq.QueueSession]) -> None:
        consumer, operator = sessions
        done: list[bytes] = []

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            done.append(delivery.body)

        async with listening(consumer, handle):
            await operator.queue("jobs").put(b"later", delay=4)
            await asyncio.sleep(1)
            await operator.queue("jobs").admin.delete(force=True)
            await operator.queue("jobs").put(b"new")
            await asyncio.sleep(600)
        assert done == [b"new"]
        assert rounds < 100

    play(program, 2)


@pytest.mark.parametrize(("before", "after"), [(None, True), (True, False)])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("rest", [0, 0.01, 0.02, 0.04, 1])
def test_a_taker_continues_after_the_order_was_switched_while_its_session_held_a_message(
    before: bool | None,  # noqa: FBT001 - a case
    after: bool,  # noqa: FBT001 - a case
    end: str,
    rest: float,
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        consumer, operator = sessions
        jobs, mine = operator.queue("jobs"), consumer.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1, ordered=before, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
        await jobs.put(b"1")
        taken: list[bytes] = []

        async def take() -> None:
            async with consumer.transaction() as tx:
                message = await tx.take(mine, timeout=600)
                taken.extend([] if message is None else [message.body])

        async with consumer.transaction(autocommit=False) as held:
            assert await held.take(mine, timeout=5) is not None
            await jobs.configure(zq.QueueConfig(ordered=after))
            await jobs.put(b"2")
            waiting = asyncio.create_task(take())
            await asyncio.sleep(rest)
            await (held.commit() if end == "commit" else held.rollback(delay=0))
        await waiting
        assert len(taken) == 1

    play(program, 2)


def test_the_messages_of_other_nodes_are_taken_once_the_affinity_is_turned_off() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, consumer, operator = sessions
        await operator.queue("jobs").configure(zq.QueueConfig(bundle=1, affinity="producer"))
        await producer.queue("jobs").put_many([b"1", b"2"])
        done: list[bytes] = []

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            done.append(delivery.body)

        async with listening(consumer, handle):
            await asyncio.sleep(1)
            await operator.queue("jobs").configure(zq.QueueConfig(affinity="any"))
            await asyncio.sleep(60)
        assert sorted(done) == [b"1", b"2"]

    play(program, options=({"node": "1"}, {"node": "2"}, {"node": "3"}))


def test_a_take_of_many_ends_at_a_pause_with_the_messages_that_it_has() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        consumer, operator = sessions
        await operator.queue("jobs").configure(zq.QueueConfig(bundle=10))
        await operator.queue("jobs").put_many([b"%d" % number for number in range(10)])
        loop = asyncio.get_running_loop()
        async with consumer.transaction() as tx:
            assert len(await tx.take_many(consumer.queue("jobs"), 3)) == 3
            await operator.queue("jobs").configure(zq.QueueConfig(paused=True))
            began = loop.time()
            taken: list[Any] = await tx.take_many(consumer.queue("jobs"), 20, timeout=60)
            assert loop.time() - began < 5 or not taken

    play(program, 2)


@pytest.mark.parametrize("offset", [number / 1000 for number in range(10, 64, 4)])
def test_an_idle_session_sends_nothing_for_a_bundle_of_a_deleted_queue(offset: float) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        consumer, operator = sessions
        jobs = operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=4))
        await jobs.put_many([b"%d" % number for number in range(4)])
        async with consumer.transaction() as tx:
            assert await tx.take(consumer.queue("jobs"), timeout=1) is not None
        await asyncio.sleep(offset)
        await jobs.admin.delete(force=True)
        await asyncio.sleep(60)
        zookeeper, sent = core_of(consumer).zookeeper, list[str]()
        exists = zookeeper.exists

        async def counted(path: str, **options: Any) -> object:
            sent.append(path)
            return await exists(path, **options)

        zookeeper.exists = counted  # type: ignore[method-assign, assignment]
        await asyncio.sleep(60)
        assert len(sent) < 10
        await jobs.put(b"new")
        async with consumer.transaction() as tx:
            message = await tx.take(consumer.queue("jobs"), timeout=5)
            assert message is not None
            assert message.body == b"new"

    play(program, 2)
