"""Writes whose outcome stays unknown: attempts are counted, delays are kept, no other lock is removed, loops go on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.runtime.clock import TRUSTED
from aiozkqueue.schedule import Jobs, Scheduler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Fault, Kind
from aiozkqueue.zookeeper import Create, Delete, SetData

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.testing.simulator import Cluster, Request
    from aiozkqueue.testing.simulator.server import ServerConnection
    from aiozkqueue.zookeeper import Operation, ZooKeeper


#: Seconds until a redelivery.
DELAY = 600


def delays(operations: Sequence[Operation]) -> bool:
    """Whether a multi delays a message."""
    return any(isinstance(each, Create) and "/due/" in each.path for each in operations)


def delays_at_curator(operations: Sequence[Operation]) -> bool:
    """Whether a multi delays a message of the queue of Curator's."""
    return any(isinstance(each, SetData) and each.path.startswith("/app/jobs/queue-") for each in operations)


def samples_time(operations: Sequence[Operation]) -> bool:
    """Whether a multi only writes a commit slot."""
    return len(operations) == 1 and isinstance(operations[0], SetData) and "/slot-" in operations[0].path


class LostAnswers:
    """Has the outcome of the first multi of the session ``holder`` that is ``chosen`` stay unknown."""

    def __init__(
        self, cluster: Cluster, chosen: Callable[[Sequence[Operation]], bool] = delays, *, applied: bool = True
    ) -> None:
        self._chosen = chosen
        self._fault = Fault.LOST_AFTER if applied else Fault.LOST_BEFORE
        self._slots: set[str] = set()
        self._sent = asyncio.Event()
        self._removed = asyncio.Event()
        cluster.ensemble.judge = self._judge

    def _judge(self, connection: ServerConnection, request: Request) -> Fault | None:
        if connection.client.name != "holder":
            return None
        if self._sent.is_set():
            return None if self._removed.is_set() else Fault.LOST_BEFORE
        if request.kind is not Kind.MULTI or not self._chosen(request.argument):
            return None
        self._slots.update(
            each.path for each in request.argument if isinstance(each, SetData) and "/slot-" in each.path
        )
        self._sent.set()
        return self._fault

    async def remove_slot(self, zookeeper: ZooKeeper) -> None:
        """Remove the commit slot, which knows the outcome, before the session reads it."""
        await self._sent.wait()
        await asyncio.sleep(0.01)
        await zookeeper.multi([Delete(slot) for slot in self._slots])
        self._removed.set()


async def roll_back(tx: zq.Transaction, answers: LostAnswers, other: zq.QueueSession) -> None:
    """Roll back with a delay; the outcome stays unknown."""
    undoing = asyncio.ensure_future(tx.rollback(delay=DELAY))
    await answers.remove_slot(core_of(other).zookeeper)
    await undoing


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("apart", [0.0, 0.01], ids=["in one millisecond", "later"])
def test_a_rollback_of_unknown_outcome_counts_the_attempt_and_keeps_its_delay(apart: float, *, applied: bool) -> None:
    """In one millisecond, the locks of the claim and of the delay have the same name, owner and time of creation."""

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as session:
            await session.queue("jobs").put(b"a")
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(session.queue("jobs"), timeout=30) is not None
                await asyncio.sleep(apart)
                await roll_back(tx, LostAnswers(cluster, applied=applied), other)
            assert (await other.queue("jobs").stats()).delayed == 1
            async with other.transaction() as tx:
                assert await tx.take(other.queue("jobs"), timeout=DELAY - 50) is None
                again = await tx.take(other.queue("jobs"), timeout=100)
                assert again is not None
                assert again.attempt == 2

    run_virtual(main)


def test_a_group_whose_delay_was_not_applied_stays_locked_for_up_to_a_minute() -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as session:
            await session.queue("jobs").put(b"a", group="g")
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(session.queue("jobs"), timeout=30) is not None
                await roll_back(tx, LostAnswers(cluster, applied=False), other)
            async with other.transaction() as tx:
                assert await tx.take(other.queue("jobs"), timeout=50) is None
                assert await tx.take(other.queue("jobs"), timeout=20) is not None

    run_virtual(main)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_a_message_that_an_unknown_commit_delays_keeps_its_delay_if_the_commit_was_applied(*, applied: bool) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1))
            await jobs.put_many([b"later", b"done"])
            async with session.transaction(autocommit=False) as tx:
                later, _ = await tx.take_many(jobs, 2, timeout=30)
                tx.release(later, delay=DELAY)
                answers = LostAnswers(cluster, applied=applied)
                committing = asyncio.ensure_future(tx.commit())
                await answers.remove_slot(core_of(other).zookeeper)
                with pytest.raises(zq.OutcomeUnknownError):
                    await committing
            async with other.transaction() as tx:  # its messages are released in the background
                taken = await tx.take_many(other.queue("jobs"), 2, timeout=DELAY / 2)
                found = {(message.value, message.attempt) for message in taken}
                assert found == (set() if applied else {(b"later", 2), (b"done", 2)})
            assert (await jobs.stats()).delayed == (1 if applied else 0)

    run_virtual(main)


@pytest.mark.parametrize("by", ["rollback", "commit"])
@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_a_message_of_curator_is_locked_for_the_delay_of_a_release_of_unknown_outcome(
    by: str, *, applied: bool
) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as session:
            jobs = session.curator_queue("/app/jobs", lock_path="/app/locks")
            theirs = other.curator_queue("/app/jobs", lock_path="/app/locks")
            await jobs.put(b"a")
            async with session.transaction(autocommit=False) as tx:
                message = await tx.take(jobs, timeout=30)
                assert message is not None
                answers = LostAnswers(cluster, delays_at_curator, applied=applied)
                if by == "commit":
                    tx.release(message, delay=100)
                ending = asyncio.ensure_future(tx.commit() if by == "commit" else tx.rollback(delay=100))
                await answers.remove_slot(core_of(other).zookeeper)
                with suppress(zq.OutcomeUnknownError):
                    await ending
            async with other.transaction() as tx:
                assert await tx.take(theirs, timeout=90) is None
                assert await tx.take(theirs, timeout=60) is not None

    run_virtual(main)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_a_delayed_put_is_stored_although_the_write_that_samples_the_time_has_an_unknown_outcome(
    *, applied: bool
) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as session:
            jobs = session.queue("jobs")
            await jobs.put(b"now")
            await asyncio.sleep(2 * TRUSTED)
            answers = LostAnswers(cluster, samples_time, applied=applied)
            putting = asyncio.ensure_future(jobs.put(b"later", delay=DELAY))
            await answers.remove_slot(core_of(other).zookeeper)
            await putting
            assert (await jobs.stats()).delayed == 1

    run_virtual(main)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_a_scheduler_goes_on_if_the_write_that_samples_the_time_has_an_unknown_outcome(*, applied: bool) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as session:
            await Jobs(other).declare("hourly", "0 * * * *", "jobs", b"x")
            answers = LostAnswers(cluster, samples_time, applied=applied)
            async with Scheduler(session):
                await answers.remove_slot(core_of(other).zookeeper)
                async with other.transaction() as tx:
                    assert await tx.take(other.queue("jobs"), timeout=3700) is not None

    run_virtual(main, limit=10_000)
