"""Commits abandoned before they are sent, puts cancelled while they wait for room, takes cancelled during a commit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import TransactionClosedError
from aiozkqueue.queue.commit.group_commit import SLOTS
from aiozkqueue.queue.commit.register import FixedOperations
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.put.capacity import CapacityGate
from aiozkqueue.session.internals import state_of, work_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble, Fault, Kind
from aiozkqueue.zookeeper import SetData

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection


def slow_cluster() -> Cluster:
    """Return a cluster in which every network step takes 5 ms."""

    def slowly() -> float:
        return 0.005

    return Cluster(Ensemble(Random(1), delays=Delays(slowly, slowly, slowly, slowly)), 1)


async def occupy_slots(queue: zq.Queue[bytes], puts: asyncio.TaskGroup) -> None:
    """Start a multi under each commit slot."""
    for _ in range(SLOTS):
        puts.create_task(queue.put(b"in progress"))
        await asyncio.sleep(0.0001)


@pytest.mark.timeout(20)
def test_a_commit_that_could_not_be_sent_in_time_uses_no_capacity() -> None:
    async def main() -> tuple[zq.Outcome, zq.Outcome, int]:
        async with slow_cluster().connect() as session:
            busy, small = session.queue("busy"), session.queue("small")
            await small.configure(zq.QueueConfig(max_size=64))  # a session may have four multis in progress
            async with asyncio.TaskGroup() as puts:
                await occupy_slots(busy, puts)  # creates the slots and the queue
            async with asyncio.TaskGroup() as puts:
                await small.put(b"first", timeout=30)  # the size has just been read
                await occupy_slots(busy, puts)
                async with session.transaction(autocommit=False) as tx:
                    for _ in range(3):
                        tx.put(small, b"given up")
                    with pytest.raises(zq.NotCommittedError, match="could not be sent"):
                        await tx.commit(timeout=0)
            await small.put_many([b"job"] * 4)
            return tx.outcome, await session.outcome(tx.id), await small.size()

    assert run_virtual(main) == (zq.Outcome.ROLLED_BACK, zq.Outcome.ROLLED_BACK, 5)


def test_a_commit_that_is_rolled_back_as_it_is_admitted_uses_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session:
            small, acquire = session.queue("small"), CapacityGate.acquire
            await small.configure(zq.QueueConfig(max_size=1))
            async with session.transaction(autocommit=False) as tx:
                tx.put(small, b"given up")

                async def admitted(*args: Any) -> None:
                    await acquire(*args)
                    await tx.rollback()  # by another task, which runs before this one continues

                monkeypatch.setattr(CapacityGate, "acquire", admitted)
                with pytest.raises(zq.NotCommittedError, match="rolled back"):
                    await tx.commit()
            monkeypatch.undo()
            await small.put(b"1", timeout=5)

    run_virtual(main)


@pytest.mark.parametrize("by", ["a transaction", "put"])
def test_a_caller_cancelled_repeatedly_waits_for_the_reply_for_one_session_timeout(by: str) -> None:
    async def main() -> float:
        cluster = slow_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"opens the queue")

            async def commit() -> None:
                async with session.transaction() as tx:
                    tx.put(jobs, b"never answered")

            caller = asyncio.create_task(commit() if by == "a transaction" else jobs.put(b"never answered"))
            await asyncio.sleep(0.007)  # the commit is sent, and not yet answered
            cluster.ensemble.stop(cluster.ensemble.servers[0])
            await asyncio.sleep(10)
            start = asyncio.get_running_loop().time()
            for _ in range(5):
                assert caller.cancel(), "the call has already ended"
                await asyncio.sleep(session._runtime.committer.grace / 6)
            with pytest.raises(asyncio.CancelledError):
                await caller
            return (asyncio.get_running_loop().time() - start) / session._runtime.committer.grace

    assert run_virtual(main) == pytest.approx(1, abs=0.01)


def test_the_error_of_a_put_that_times_out_before_the_size_is_known_does_not_say_full() -> None:
    async def main() -> list[str]:
        errors: list[str] = []
        async with simulated() as cluster, cluster.connect() as session:
            small = session.queue("small")
            await small.configure(zq.QueueConfig(max_size=2))
            await small.put(b"fits")
            cluster.ensemble.stop(cluster.ensemble.servers[0])
            await asyncio.sleep(1)  # the known size is out of date
            with pytest.raises(zq.QueueFullError) as refused:
                await small.put(b"alone", timeout=5)
            errors.append(f"{refused.value}")
            async with session.transaction(autocommit=False) as tx:
                tx.put(small, b"in a transaction")
                with pytest.raises(zq.QueueFullError) as refused:
                    await tx.commit(timeout=3)
                errors.append(f"{refused.value}")
        return errors

    assert run_virtual(main) == [
        f"queue 'small': the capacity check took longer than {seconds} s; "
        "the message was not stored; use a longer timeout"
        for seconds in (5, 3)
    ]


def test_each_interrupted_wait_for_room_reports_its_own_stored_messages() -> None:
    async def main() -> list[list[str]]:
        async with simulated() as cluster, asyncio.TaskGroup() as tasks:

            async def put(queue: zq.Queue[bytes], count: int) -> list[str]:
                with pytest.raises(zq.SessionClosedError) as refused:
                    await queue.put_many([b"job"] * count, timeout=None)
                return getattr(refused.value, "__notes__", [])

            async with cluster.connect() as session:
                small = session.queue("small")
                await small.configure(zq.QueueConfig(max_size=4))
                first = tasks.create_task(put(small, 9))
                await asyncio.sleep(1)
                waiting = [tasks.create_task(put(small, count)) for count in (1, 3)]
                await asyncio.sleep(1)
        return [await each for each in (first, *waiting)]

    assert run_virtual(main) == [["the first 4 of 9 messages had been put before"], [], []]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_claims_released_by_a_cancelled_take_are_not_committed_or_released_again(
    end: Literal["commit", "rollback"],
) -> None:
    """Tasks must not share a transaction. If two do, no message is lost, and no other lock is released."""

    async def main(milliseconds: float) -> tuple[int, list[str]]:
        ends: list[str] = []

        async def consume(queue: zq.Queue[bytes]) -> None:
            async with queue.consume(settle="explicit") as deliveries:
                async for delivery in deliveries:
                    await asyncio.sleep(0.3)  # time for the requests of the other session
                    try:
                        await delivery.commit()
                    except zq.NotCommittedError as error:
                        ends.append(f"{error}")
                    else:
                        ends.append("handled")

        cluster = slow_cluster()
        async with cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig())
            async with session.transaction() as tx:
                assert await tx.take(jobs) is None  # now it is registered as a consumer
            await jobs.put(b"job")
            budget = session._runtime._budgets.of(1)
            used = budget.used
            async with session.transaction(autocommit=False) as tx:
                taking = asyncio.create_task(tx.take_many(jobs, 2, timeout=30))
                while not list(work_of(tx).claims):  # noqa: ASYNC110 - no event reports what a transaction holds
                    await asyncio.sleep(0.001)
                async with asyncio.TaskGroup() as tasks:
                    consuming = tasks.create_task(consume(other.queue("jobs")))
                    tx.put("fresh", b"makes the commit open a queue first")
                    disposition = tasks.create_task(tx.commit() if end == "commit" else tx.rollback(delay=0))
                    await asyncio.sleep(milliseconds / 1000)
                    taking.cancel()
                    with suppress(asyncio.CancelledError):
                        await taking
                    assert taking.cancelled(), "the take has already returned"
                    await disposition
                    await asyncio.sleep(10)
                    consuming.cancel()
            return budget.used - used, ends

    moments = (0.1, 0.5, 1, 2, 4)
    assert {moment: run_virtual(partial(main, moment)) for moment in moments} == dict.fromkeys(
        moments, (0, ["handled"])
    )


@pytest.mark.parametrize("policy", [zq.AtLeastOnce(), zq.ConsumeTimes(1)], ids=["plain", "counting"])
def test_a_message_that_comes_for_a_transaction_that_has_ended_is_released(policy: zq.Policy) -> None:
    async def main() -> bytes | None:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(policy=policy))
            async with session.transaction(autocommit=False) as tx:
                taking = asyncio.create_task(tx.take(jobs, timeout=None))
                await asyncio.sleep(1)
                await tx.rollback()
                await jobs.put(b"1")
                with pytest.raises(TransactionClosedError):
                    await taking
            async with other.transaction() as later:
                message = await later.take(other.queue("jobs"), timeout=10)
            return None if message is None else message.body

    assert run_virtual(main) == b"1"


def test_the_close_of_a_session_waits_for_each_of_its_puts() -> None:
    async def main() -> int:
        async with slow_cluster().connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"opens the queue")
            puts: list[asyncio.Task[str]] = []
            for _ in range(2):
                puts.append(asyncio.create_task(jobs.put(b"in progress")))
                await asyncio.sleep(0.004)
        return len(await asyncio.gather(*puts))

    assert run_virtual(main) == 2


def test_a_write_about_to_be_sent_again_fails_when_its_session_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> str:
        async with simulated() as cluster, cluster.connect() as session:
            await session.queue("jobs").put(b"starts the slots")
            committer, mended = session._runtime.committer, asyncio.get_running_loop().create_future()
            atomic_write = AtomicWrite("t", FixedOperations("t", (), lambda error: zq.NotCommittedError(str(error))))
            close = committer.close

            async def mending() -> None:
                await mended

            def close_session() -> None:
                close()
                if not mended.done():
                    mended.set_result(None)

            committer.submit(atomic_write)
            assert committer.withdraw(atomic_write)  # like a write that was refused
            committer._repairs._start(atomic_write, mending())
            monkeypatch.setattr(committer, "close", close_session)
            waiting = asyncio.create_task(atomic_write.wait())
        async with asyncio.timeout(100):
            await waiting
        return str(atomic_write.error)

    assert "closed before this was sent" in run_virtual(main)


def test_the_error_of_a_put_that_is_not_answered_states_that_its_session_was_closed() -> None:
    async def main() -> str:
        async with simulated() as cluster:
            async with cluster.connect(name="closed") as session:
                jobs = session.queue("jobs")
                await jobs.put(b"first")
                cluster.ensemble.judge = lambda _, request: Fault.SILENCE if request.kind is Kind.MULTI else None
                putting = asyncio.create_task(jobs.put(b"in doubt"))
                await asyncio.sleep(1)
            async with asyncio.timeout(100):
                with pytest.raises(zq.OutcomeUnknownError) as closed:
                    await putting
        return str(closed.value)

    error = run_virtual(main)
    assert "the session was closed before a server answered; it may have been applied" in error
    assert "Cancelled" not in error


def test_a_commit_whose_repair_is_not_answered_fails_when_its_session_is_closed() -> None:
    async def main() -> str:
        async with simulated() as cluster:
            async with cluster.connect(name="closed") as session:
                jobs = session.queue("jobs")
                await jobs.put(b"first")
                zookeeper = await cluster.client()
                await zookeeper.multi([SetData(state_of(jobs).paths.base, b"{}")])  # the commit is refused once
                await zookeeper.close()

                def judge(connection: ServerConnection, request: Request) -> Fault | None:
                    reads = request.kind is Kind.READ and connection.client.name == "closed"
                    return Fault.DROPPED if reads else None

                cluster.ensemble.judge = judge
                tx = await session.transaction(autocommit=False).__aenter__()
                tx.put(jobs, b"never stored")
                committing = asyncio.create_task(tx.commit())
                await asyncio.sleep(1)
            async with asyncio.timeout(100):
                with pytest.raises(zq.SessionClosedError) as closed:
                    await committing
        return str(closed.value)

    assert "nothing was stored" in run_virtual(main)
