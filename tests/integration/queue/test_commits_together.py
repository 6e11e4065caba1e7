"""Commits and puts of many tasks in one request: each task gets the outcome of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.commit.register import FixedOperations
from aiozkqueue.queue.commit.repairs import MAX_REPAIRS
from aiozkqueue.queue.put.prepare import prepare
from aiozkqueue.session.internals import core_of
from aiozkqueue.session.unit_of_work import UnitOfWork
from aiozkqueue.testing import Direction, Opcode
from aiozkqueue.zookeeper import Check
from tests.integration.queue.bundles import BODIES, Stored, bundled, drain
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener

TASKS = 40
OWN = BODIES[:TASKS]


class Takers:
    """Transactions that each hold one message of a bundle and commit together, with or without a result each."""

    def __init__(
        self, session: zq.QueueSession, queue: zq.Queue[bytes], number: int = TASKS, *, results: bool = False
    ) -> None:
        self._session = session
        self._queue = queue
        self._results = session.queue("results") if results else None
        self._missing = number
        self.all_hold = asyncio.Event()
        self.go = asyncio.Event()

    async def take_and_commit(self, timeout: float | None = None) -> bytes:
        async with self._session.transaction() as tx:
            message = await tx.take(self._queue, timeout=20)
            assert message is not None
            self._missing -= 1
            if not self._missing:
                self.all_hold.set()
            await self.go.wait()
            if self._results is not None:
                tx.put(self._results, message.value)
            try:
                await tx.commit(timeout=timeout)
            except zq.QueueError as error:
                error.add_note(message.id)
                raise
            return message.value


async def results_of(session: zq.QueueSession) -> list[bytes]:
    """Return the results that are stored."""
    return [message.value for message in await session.queue("results").peek(2 * TASKS)]


with_and_without_results = pytest.mark.parametrize("results", [False, True], ids=["", "results"])


@with_and_without_results
async def test_many_commits_are_applied(session: zq.QueueSession, stored: Stored, *, results: bool) -> None:
    takers = Takers(session, await bundled(session, OWN), results=results)
    commits = [asyncio.create_task(takers.take_and_commit()) for _ in OWN]
    await takers.all_hold.wait()
    takers.go.set()
    assert sorted(await asyncio.gather(*commits)) == sorted(OWN)
    assert await stored.is_empty()
    assert sorted(await results_of(session)) == (sorted(OWN) if results else [])


@with_and_without_results
async def test_each_commit_of_a_lost_bundle_names_its_own_message(
    session: zq.QueueSession, other: zq.QueueSession, *, results: bool
) -> None:
    takers = Takers(session, await bundled(session, OWN), results=results)
    commits = [asyncio.create_task(takers.take_and_commit()) for _ in OWN]
    await takers.all_hold.wait()
    assert await other.queue("jobs").admin.release_claims() == TASKS
    takers.go.set()
    errors = await asyncio.gather(*commits, return_exceptions=True)
    assert {type(error) for error in errors} == {zq.ClaimLostError}
    for error in errors:
        assert isinstance(error, zq.ClaimLostError)
        (message_id,) = error.__notes__
        assert message_id in str(error)
    assert await results_of(session) == []
    assert sorted(await drain(other, other.queue("jobs"), 2)) == sorted(OWN)


@with_and_without_results
@pytest.mark.parametrize("lose", ["lose_before", "lose_after"])
async def test_many_commits_are_applied_once_when_a_message_on_the_wire_is_lost(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, stored: Stored, lose: str, *, results: bool
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    takers = Takers(session, await bundled(session, OWN), results=results)
    commits = [asyncio.create_task(takers.take_and_commit()) for _ in OWN]
    await takers.all_hold.wait()
    getattr(zookeeper_proxy, lose)(Opcode.MULTI)
    takers.go.set()
    assert sorted(await asyncio.gather(*commits)) == sorted(OWN)
    assert await stored.is_empty()
    assert sorted(await results_of(session)) == (sorted(OWN) if results else [])


@with_and_without_results
@pytest.mark.parametrize("impatient", [1, pytest.param(2, marks=pytest.mark.slow), TASKS - 1])
async def test_one_of_many_commits_can_be_withdrawn_while_another_one_is_unanswered(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, stored: Stored, impatient: int, *, results: bool
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = await bundled(session, OWN)
    async with session.transaction() as first:
        assert await first.take(queue) is not None
        takers = Takers(session, queue, TASKS - 1, results=results)
        commits = [
            asyncio.create_task(takers.take_and_commit(0.2 if number == impatient else None))
            for number in range(1, TASKS)
        ]
        await takers.all_hold.wait()
        zookeeper_proxy.stall(Direction.TO_CLIENT)
        unanswered = asyncio.create_task(first.commit())
        await asyncio.sleep(0.1)
        takers.go.set()
        with pytest.raises(zq.NotCommittedError):
            await commits[impatient - 1]
        zookeeper_proxy.heal()
        await unanswered
    del commits[impatient - 1]
    values = [OWN[0], *await asyncio.gather(*commits)]
    assert await drain(session, queue, 5) == [value for value in OWN if value not in values]
    assert len(values) == TASKS - 1
    assert await stored.is_empty()
    assert sorted(await results_of(session)) == (sorted(values[1:]) if results else [])


@with_and_without_results
async def test_a_cancelled_commit_of_many_is_applied_or_not_and_the_others_are(
    session: zq.QueueSession, stored: Stored, *, results: bool
) -> None:
    queue = await bundled(session, OWN)
    takers = Takers(session, queue, results=results)
    commits = [asyncio.create_task(takers.take_and_commit()) for _ in OWN]
    await takers.all_hold.wait()
    takers.go.set()
    await asyncio.sleep(0)
    commits[7].cancel()
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    values = [value for value in outcomes if isinstance(value, bytes)]
    assert len(values) >= TASKS - 1
    left = await drain(session, queue)
    assert len(set(left)) == len(left)
    assert not set(left) & set(values)
    assert await stored.is_empty()
    if results:
        assert sorted(await results_of(session)) == sorted(set(OWN) - set(left))


@with_and_without_results
async def test_many_commits_are_applied_after_the_configuration_has_changed(
    session: zq.QueueSession, other: zq.QueueSession, *, results: bool
) -> None:
    """A history adds operations to each end and each put, so they are composed separately."""
    takers = Takers(session, await bundled(session, OWN), results=results)
    commits = [asyncio.create_task(takers.take_and_commit()) for _ in OWN]
    await takers.all_hold.wait()
    history = zq.QueueConfig(bundle=64, history=zq.History())
    await other.queue("jobs").configure(history)
    await other.queue("results").configure(history)
    takers.go.set()
    assert sorted(await asyncio.gather(*commits)) == sorted(OWN)
    assert await drain(session, session.queue("jobs"), 0) == []
    assert sorted(await results_of(session)) == (sorted(OWN) if results else [])


async def test_puts_to_a_queue_that_became_bounded_are_refused_separately(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=64))
    await jobs.put(b"first")
    await other.queue("jobs").configure(zq.QueueConfig(max_size=11))
    outcomes = await asyncio.gather(*(jobs.put(body) for body in OWN), return_exceptions=True)
    stored = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert {type(outcome) for outcome in outcomes} == {str, zq.QueueFullError}
    assert len(stored) == 10
    assert {message.id for message in await jobs.peek(2 * TASKS)} >= set(stored)
    assert await jobs.size() == 11


@pytest.mark.parametrize("lose", ["lose_before", "lose_after"])
async def test_puts_of_many_tasks_are_stored_once_when_a_message_on_the_wire_is_lost(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, lose: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    getattr(zookeeper_proxy, lose)(Opcode.MULTI)
    ids = await asyncio.gather(*(queue.put(body) for body in BODIES))
    contents = await queue.peek(2 * len(BODIES))
    assert sorted((message.id, message.value) for message in contents) == sorted(zip(ids, BODIES, strict=True))


@pytest.mark.parametrize("earlier", [0, 1])
async def test_a_transaction_with_many_queues_commits_after_all_of_them_were_configured(
    session: zq.QueueSession, other: zq.QueueSession, earlier: int
) -> None:
    """There are more queues than repairs of one write, and the server reports only the first queue that has changed."""
    queues = [session.queue(f"q{number}") for number in range(MAX_REPAIRS * 2)]
    await asyncio.gather(*(queue.put(b"first") for queue in queues))
    await asyncio.gather(*(other.queue(queue.name).configure(zq.QueueConfig(max_size=9)) for queue in queues[earlier:]))
    async with session.transaction() as tx:
        for queue in queues:
            tx.put(queue, b"second")
    assert [await queue.size() for queue in queues] == [2] * len(queues)


async def test_a_transaction_puts_the_first_delayed_messages_of_many_queues(session: zq.QueueSession) -> None:
    """In each queue, the znode for the hour does not exist yet."""
    queues = [session.queue(f"q{number}") for number in range(MAX_REPAIRS * 2)]
    async with session.transaction() as tx:
        for queue in queues:
            tx.put(queue, b"later", delay=3600)
    assert [await queue.size() for queue in queues] == [1] * len(queues)


@pytest.mark.parametrize("end", ["reject", "release"])
async def test_commits_that_end_their_message_in_another_way_do_not_consume_it(
    session: zq.QueueSession, end: str
) -> None:
    queue = await bundled(session, OWN)

    async def take_and_end() -> bytes:
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=20)
            assert message is not None
            if end == "reject":
                tx.reject(message, "wrong")
            else:
                tx.release(message, delay=3600)
            return message.value

    assert sorted(await asyncio.gather(*(take_and_end() for _ in OWN))) == sorted(OWN)
    stats = await queue.stats()
    assert (stats.dead_letters, stats.delayed) == ((TASKS, 0) if end == "reject" else (0, TASKS))


async def test_a_commit_with_one_put_and_a_condition_is_refused_with_the_condition(session: zq.QueueSession) -> None:
    await session.queue("jobs").configure(zq.QueueConfig(bundle=64))
    core = core_of(session)
    await core.queue_state("jobs").open()
    work = UnitOfWork(core, core.ids.next())
    condition = FixedOperations("condition", (Check("/zms/missing"),), lambda error: zq.ConflictError(str(error)))
    work.add_puts([prepare(core, session.queue("jobs"), b"1", {})], condition)
    with pytest.raises(zq.ConflictError):
        await work.commit()
    assert await session.queue("jobs").size() == 0


async def test_commits_with_replies_are_no_part_of_a_shared_write(session: zq.QueueSession, stored: Stored) -> None:
    queue = await bundled(session, OWN)
    await queue.purge()
    calls = [asyncio.create_task(queue.call(body, timeout=20)) for body in OWN]

    async def all_put() -> bool:
        return await queue.size() == TASKS

    await eventually(all_put)
    assert len(await stored.bundles()) == 1

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        delivery.reply(b"reply to " + delivery.value)

    async with session.listener(queue, handle, concurrency=TASKS):
        assert await asyncio.gather(*calls) == [b"reply to " + body for body in OWN]
