"""Servers that accept small requests only."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.layout import is_bundle_at
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator.requests import Fault

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator.requests import Request
    from aiozkqueue.testing.simulator.server import ServerConnection

LIMIT = 100_000
LARGE = b"x" * 300_000


@pytest.mark.parametrize(
    ("fault", "stored"), [(None, False), (Fault.LOST_BEFORE, False), (Fault.LOST_AFTER, True), (Fault.LATE, None)]
)
def test_a_put_that_is_lost_and_then_refused_by_its_size_reports_whether_it_is_stored(
    fault: Fault | None,
    stored: bool | None,  # noqa: FBT001 - a parameter; None if both outcomes are correct
) -> None:
    async def main() -> tuple[bool, int, int]:
        async with simulated(servers=3) as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"before")
            ensemble = cluster.ensemble
            requests: list[Request] = []

            def judge(_: ServerConnection, request: Request) -> Fault | None:
                if request.size < len(LARGE) or requests:
                    return None
                requests.append(request)
                asyncio.get_running_loop().call_soon(setattr, ensemble, "max_request", LIMIT)
                return fault

            if fault is None:
                ensemble.max_request = LIMIT
            ensemble.judge = judge
            try:
                await jobs.put(LARGE)
            except zq.MessageTooLargeError as error:
                assert "jute.maxbuffer=1048575" in str(error)  # noqa: PT017 - the other outcome is also checked
                returned = False
            else:
                returned = True
            size = await jobs.size()
            await asyncio.sleep(100)  # time for a late copy to arrive
            return returned, size, await jobs.size()

    returned, size, later = run_virtual(main)
    assert stored in {returned, None}
    assert size == later == 1 + returned


def test_a_bundle_that_has_become_larger_than_a_request_does_not_block_its_queue() -> None:
    """All messages have failed, and their holder dies. A single item also stores the attempts and the error."""
    number = 50

    async def main() -> tuple[int, Counter[bytes], set[int]]:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as holder:
            cluster.ensemble.max_request = LIMIT
            jobs = other.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=64, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            await jobs.put_many([b"%02d" % each + bytes(900) for each in range(number)])
            bundled = sum(is_bundle_at(path) for path in cluster.ensemble.tree.nodes)

            async def fail(_: zq.Delivery[bytes]) -> None:
                await asyncio.sleep(0.01)
                raise ValueError("x" * 500)

            async with holder.listener(holder.queue("jobs"), fail, concurrency=number):
                await asyncio.sleep(0.2)
                cluster.expire("holder")
            taken = Counter[bytes]()
            attempts = set[int]()
            while True:
                async with other.transaction() as tx:
                    if not (messages := await tx.take_many(jobs, number, timeout=10)):
                        return bundled, taken, attempts
                    taken.update(message.body[:2] for message in messages)
                    attempts |= {message.attempt for message in messages}

    bundled, taken, attempts = run_virtual(main)
    assert bundled
    assert taken == Counter(b"%02d" % each for each in range(number))
    assert min(attempts) > 1


def test_messages_of_a_bundle_are_returned_in_several_requests_if_they_exceed_one() -> None:
    number = 38

    async def main() -> tuple[int, int]:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect() as holder:
            cluster.ensemble.max_request = LIMIT
            jobs = other.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=64, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            await jobs.put_many([bytes(900)] * number)
            bundled = sum(is_bundle_at(path) for path in cluster.ensemble.tree.nodes)
            with suppress(ValueError):
                async with holder.transaction() as tx:
                    assert len(await tx.take_many(holder.queue("jobs"), number)) == number
                    raise ValueError("x" * 500)
            async with holder.transaction(autocommit=False) as tx, other.transaction() as neighbour:
                assert await tx.take(holder.queue("jobs")) is not None
                await asyncio.sleep(2)
                taken = await neighbour.take_many(jobs, number, timeout=1)
                await tx.rollback(delay=0)
            return bundled, len(taken)

    assert run_virtual(main) == (1, number - 1)


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_a_message_of_a_bundle_that_exceeds_a_request_can_be_cancelled(*, held: bool, history: bool) -> None:
    number = 38

    async def main() -> tuple[zq.Alteration, int, Counter[bytes]]:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as holder:
            cluster.ensemble.max_request = LIMIT
            jobs = other.queue("jobs")
            await jobs.configure(
                zq.QueueConfig(
                    bundle=64, policy=zq.AtLeastOnce(backoff=zq.Fixed(0)), history=zq.History() if history else None
                )
            )
            ids = await jobs.put_many([b"%02d" % each + bytes(900) for each in range(number)])
            with suppress(ValueError):
                async with holder.transaction() as tx:
                    assert len(await tx.take_many(holder.queue("jobs"), number)) == number
                    raise ValueError("x" * 500)
            async with holder.transaction(autocommit=False) as tx:
                assert len(await tx.take_many(holder.queue("jobs"), number)) == number
                if not held:
                    cluster.expire("holder")
                    await asyncio.sleep(20)
                cancelled = await jobs.cancel(id=ids[1], running=True)
                size = await jobs.size()
                with pytest.raises(zq.NotCommittedError):
                    await tx.commit()
            taken = Counter[bytes]()
            while sum(taken.values()) < number - 1:
                async with other.transaction() as tx:
                    messages = await tx.take_many(jobs, number, timeout=60)
                    assert messages
                    taken.update(message.body[:2] for message in messages)
            assert await jobs.size() == 0
            if history:
                assert len([record async for record in jobs.history()]) == number
            return cancelled, size, taken

    cancelled, size, taken = run_virtual(main)
    assert cancelled is zq.Alteration.DONE
    assert size == number - 1
    assert taken == Counter(b"%02d" % each for each in range(number) if each != 1)


@pytest.mark.parametrize("root", ["/zms", "/" + "/".join(["x" * 50] * 4)])
def test_a_ledger_ends_the_largest_page_of_the_largest_bundles_in_requests_of_256_kib(root: str) -> None:
    """With a history, each end is recorded, so the messages of each bundle become single items first."""
    number = 1_000

    async def main() -> tuple[int, int, int]:
        async with simulated() as cluster, cluster.connect(root=root) as session:
            cluster.ensemble.max_request = 256 * 1024
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=64, history=zq.History()))
            await jobs.put_many([bytes(1024)] * number)
            bundled = sum(is_bundle_at(path) for path in cluster.ensemble.tree.nodes)
            ledger = Ledger(core_of(session).handle("jobs"), "A")
            batch = await ledger.next_batch(-1, None)
            (_,) = await ledger.pages(batch)
            ended = await ledger.acknowledge(batch)
            return bundled, ended, await jobs.size()

    bundled, ended, left = run_virtual(main)
    assert (ended, left) == (number, 0)
    assert 0 < bundled <= number // 50
