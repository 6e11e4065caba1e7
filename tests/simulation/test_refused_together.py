"""Many writes that ZooKeeper refuses for one cause: one refusal applies to all writes that it concerns."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.commit.repairs import MAX_REPAIRS
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.testing.simulator.requests import Kind
from aiozkqueue.zookeeper import Create, Delete
from tests.simulation.test_denied_records import Denied

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator.requests import Fault, Request
    from aiozkqueue.testing.simulator.server import ServerConnection

pytestmark = pytest.mark.timeout(120)

WRITES = 200
#: Maximum number of multis for these writes. The tests guard against one multi per write.
FEW = 20
#: The number of queues or hours, larger than the number of times that a write may be refused.
MANY = 2 * MAX_REPAIRS


class Multis:
    """Counts the multis that create a znode with this pattern in its path."""

    def __init__(self, kind: str) -> None:
        self._kind = re.compile(kind)
        self.seen = 0

    def __call__(self, _: ServerConnection, request: Request) -> Fault | None:
        if request.kind is Kind.MULTI:
            self.seen += any(isinstance(each, Create) and self._kind.search(each.path) for each in request.argument)
        return None


def test_the_first_delayed_messages_of_an_hour_are_put_in_few_requests() -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"earlier", delay=50 * 3600)  # the queue has delayed messages in another hour
            multis = cluster.ensemble.judge = Multis("/later/.*/item-")
            delayed = [jobs.put(b"%d" % each, delay=3600) for each in range(WRITES)]
            await asyncio.gather(*delayed, *(jobs.put(b"now") for _ in range(WRITES)))
            assert multis.seen <= FEW
            stats = await jobs.stats()
            assert (stats.scheduled, stats.size) == (WRITES + 1, 2 * WRITES + 1)

    run_virtual(main)


@pytest.mark.parametrize("held", [False, True])
def test_puts_with_one_unique_key_are_refused_in_few_requests(*, held: bool) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"other", key="other", unique=True)
            first = [await jobs.put(b"first", key="k", unique=True)] if held else []
            multis = cluster.ensemble.judge = Multis("/keys/.")
            puts = (jobs.put(b"%d" % each, key="k", unique=True) for each in range(WRITES))
            results = await asyncio.gather(*puts, return_exceptions=True)
            stored = first + [each for each in results if isinstance(each, str)]
            refused = [each for each in results if isinstance(each, zq.DuplicateKeyError)]
            assert multis.seen <= FEW
            assert len(stored) == 1
            assert len(refused) == len(results) - len(stored) + len(first)
            assert {each.message_id for each in refused} == set(stored)
            assert await jobs.size() == 2

    run_virtual(main)


def test_puts_that_ignore_a_taken_key_return_its_holder_in_few_requests() -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"other", key="other", unique=True)
            multis = cluster.ensemble.judge = Multis("/keys/.")
            puts = (jobs.put(b"%d" % each, key="k", unique="ignore") for each in range(WRITES))
            assert len(set(await asyncio.gather(*puts))) == 1
            assert multis.seen <= FEW
            assert await jobs.size() == 2

    run_virtual(main)


def test_bundled_puts_that_are_refused_with_another_put_are_repaired_with_it() -> None:
    """A put with a key comes before and after them, so their bundle is between the operations of these puts."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            for _ in range(2):  # the first commit allows bundles
                await jobs.put_many([b"%d" % each for each in range(WRITES)])
            await jobs.put(b"first", key="first", unique=True)
            await jobs.purge()
            await core_of(session).zookeeper.multi([Delete("/zms/jobs/items")])  # as an operator may do by mistake
            plain = (jobs.put(b"%d" % each) for each in range(WRITES))
            await asyncio.gather(jobs.put(b"a", key="a", unique=True), *plain, jobs.put(b"b", key="b", unique=True))
            assert await jobs.size() == WRITES + 2

    run_virtual(main)


@pytest.mark.parametrize("before", [0, WRITES // 2, WRITES])
def test_a_put_that_an_acl_refuses_does_not_fail_the_bundled_puts_of_another_queue(before: int) -> None:
    """Their bundle comes right before the refused put, which has no options."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs, denied = session.queue("jobs"), session.queue("denied")
            for _ in range(4):  # the first commit allows bundles, and the last one knows that
                await jobs.put_many([b"%d" % each for each in range(WRITES)])
            await jobs.purge()
            await denied.configure(zq.QueueConfig(bundle=1))
            await denied.put(b"first")
            Denied(session, lambda operation: "/denied/items/" in operation.path)
            puts = [jobs.put(b"%d" % each) for each in range(WRITES)]
            puts.insert(before, denied.put(b"second"))
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert isinstance(results.pop(before), zq.AccessDeniedError)
            assert [each for each in results if not isinstance(each, str)] == []
            assert await jobs.size() == WRITES

    run_virtual(main)


@pytest.mark.parametrize("transactions", [1, 2])
def test_a_transaction_puts_the_first_messages_of_many_hours(transactions: int) -> None:
    """With two transactions, each hour is missing for both."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"earlier", delay=500 * 3600)  # the queue has delayed messages
            multis = cluster.ensemble.judge = Multis("/later/.*/item-")

            async def put() -> None:
                async with session.transaction() as tx:
                    for hour in range(MANY):
                        tx.put(jobs, b"%d" % hour, delay=hour * 3600 + 60)

            await asyncio.gather(*(put() for _ in range(transactions)))
            assert multis.seen <= FEW
            assert (await jobs.stats()).scheduled == transactions * MANY + 1

    run_virtual(main)


def test_a_transaction_puts_the_first_messages_of_many_queues_with_shards() -> None:
    """Each queue lacks the lane that the put has chosen."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            queues = [session.queue(f"q{number}") for number in range(MANY)]
            for queue in queues:
                await queue.configure(zq.QueueConfig(shards=4))
            multis = cluster.ensemble.judge = Multis("/lanes/.*/item-")
            async with session.transaction() as tx:
                for queue in queues:
                    tx.put(queue, b"first")
            assert multis.seen <= FEW
            assert [await queue.size() for queue in queues] == [1] * MANY

    run_virtual(main)


@pytest.mark.parametrize("rejected", [False, True])
def test_a_transaction_ends_the_first_messages_of_an_hour_in_many_queues_with_a_history(*, rejected: bool) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            queues = [session.queue(f"q{number}") for number in range(MANY)]
            for queue in queues:
                await queue.configure(zq.QueueConfig(history=zq.History()))
                await queue.put(b"first")
            multis = cluster.ensemble.judge = Multis("/history/.*/")
            async with session.transaction() as tx:
                for queue in queues:
                    message = await tx.take(queue)
                    assert message is not None
                    if rejected:
                        tx.reject(message, "bad")
            assert multis.seen <= FEW
            assert [len([record async for record in queue.history()]) for queue in queues] == [1] * MANY

    run_virtual(main)


@pytest.mark.parametrize("together", ["put_many", "transaction"])
def test_many_messages_that_are_put_again_with_unique_keys_are_left_out(together: str) -> None:
    """Each key is in use. Two messages of the second put are new."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            bodies = [b"%d" % number for number in range(MANY)]
            first = await jobs.put_many(bodies, unique="ignore")
            multis = cluster.ensemble.judge = Multis("/keys/.")
            again = [b"new", *bodies, b"newer"]
            if together == "put_many":
                ids = await jobs.put_many(again, unique="ignore")
                assert ids[1:-1] == first
            else:
                async with session.transaction() as tx:
                    for body in again:
                        tx.put(jobs, body, unique="ignore")
            assert multis.seen <= FEW
            assert sorted(message.body for message in await jobs.peek(3 * MANY)) == sorted(again)
            with pytest.raises(zq.DuplicateKeyError):
                await jobs.put_many(bodies, unique=True)

    run_virtual(main)


def test_a_transaction_ends_many_messages_whose_unique_keys_were_deleted_by_hand() -> None:
    """Each missing key refuses the commit once, because a refusal does not show whether other keys are missing."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs, zookeeper = session.queue("jobs"), core_of(session).zookeeper
            await jobs.put_many([b"%d" % number for number in range(MANY)], unique=True)
            for key in await zookeeper.children("/zms/jobs/keys"):
                await zookeeper.multi([Delete(f"/zms/jobs/keys/{key}")])
            async with session.transaction() as tx:
                assert len(await tx.take_many(jobs, MANY)) == MANY
            assert await jobs.size() == 0

    run_virtual(main)


def test_a_transaction_puts_many_combinations_of_tags_whose_records_are_gone() -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs, zookeeper = session.queue("jobs"), core_of(session).zookeeper
            for _ in range(2):
                async with session.transaction() as tx:
                    for number in range(MANY):
                        tx.put(jobs, b"", tags={"number": str(number)})
                for record in await zookeeper.children("/zms/jobs/filters"):  # as clean-up does if they are not in use
                    await zookeeper.multi([Delete(f"/zms/jobs/filters/{record}")])
            assert await jobs.size() == 2 * MANY

    run_virtual(main)
