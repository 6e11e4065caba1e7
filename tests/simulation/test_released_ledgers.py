"""The ledger of a stream is released while the stream, or a stream that has replaced it, continues."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack, suppress
from functools import partial

import pytest

import aiozkqueue as zq
from aiozkqueue.batches import making
from aiozkqueue.batches.bundled import locking
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import NotFoundError
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import SetData
from tests.simulation.between import Between

#: More requests than a release makes.
MOST = 60


@pytest.mark.parametrize("sealed", [False, True])
def test_all_messages_are_released_if_a_stream_begins_again_after_any_request(sealed: bool) -> None:  # noqa: FBT001 - a case
    """The batch that is being prepared gets another page meanwhile."""

    async def play(number: int) -> bool:
        cluster = make_cluster()
        cluster.ensemble.delays.network = partial(float, 0.001)
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(cluster.connect()) for _ in range(4)]
            first, operator, second, last = sessions
            jobs = operator.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1))
            await jobs.put_many([b"%d" % digit for digit in range(10)])
            ledger = Ledger(core_of(first).handle("jobs"), "A")
            before = await ledger.next_batch(-1, 3) if sealed else -1
            await ledger.prepare(before, 4)

            async def begin_again() -> None:
                with_another_page = Ledger(core_of(second).handle("jobs"), "A")
                try:
                    await with_another_page.next_batch(before, None)
                except zq.ClaimLostError:
                    return  # the batch has been released again

            between = Between(operator, number, begin_again)
            released = await jobs.admin.release_ledger("A")
            released += await last.queue("jobs").admin.release_ledger("A")
            async with last.transaction() as tx:
                assert len(await tx.take_many(last.queue("jobs"), 20, timeout=1)) == 10, number
            assert released >= 7 if sealed else released >= 4
            return between.reached

    async def main() -> None:
        for number in range(1, MOST):
            if not await play(number):
                return
        pytest.fail("a release made more requests than this test knows")

    run_virtual(main, limit=float("inf"))


@pytest.mark.parametrize("by", ["driver", "operator", "acknowledgement"])
def test_a_bundle_whose_record_an_earlier_program_has_left_at_version_0_is_released(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(
        making,
        "locking",
        lambda *args: [operation for operation in locking(*args) if not isinstance(operation, SetData)],
    )

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=64))
            await jobs.put_many([b"%d" % number for number in range(40)])
            ledger = Ledger(core_of(session).handle("jobs"), "A")
            if by == "driver":
                await ledger.prepare(-1, None)
                assert await ledger.release_unsealed() == 40
            elif by == "operator":
                await ledger.next_batch(-1, None)
                assert await jobs.admin.release_ledger("A") == 40
            else:
                assert await ledger.acknowledge(await ledger.next_batch(-1, None)) == 40
            async with other.transaction() as tx:
                taken = await tx.take_many(other.queue("jobs"), 40, timeout=1)
                assert len(taken) == (0 if by == "acknowledgement" else 40)
            for folder in ("items", "locks", "meta"):
                assert await core_of(other).zookeeper.children(f"/zms/jobs/{folder}") == []

    run_virtual(main)


def test_the_release_of_a_ledger_whose_queue_is_deleted_meanwhile_reports_that_it_is_gone() -> None:
    async def play(number: int) -> bool:
        cluster = make_cluster()
        async with cluster.connect() as session, cluster.connect() as operator, cluster.connect() as other:
            jobs = operator.queue("jobs")
            await jobs.put_many([b"1", b"2"])
            await Ledger(core_of(session).handle("jobs"), "A").next_batch(-1, None)
            between = Between(operator, number, partial(other.queue("jobs").admin.delete, force=True))
            with suppress(NotFoundError, zq.ClaimLostError):
                await jobs.admin.release_ledger("A")
            return between.reached

    async def main() -> None:
        for number in range(1, MOST):
            if not await play(number):
                return
        pytest.fail("a release made more requests than this test knows")

    run_virtual(main)


@pytest.mark.parametrize("group", ["A/batch-0000000000", "A/", "A/../A", "../items", "..", ".", "", "B"])
def test_the_name_of_an_unknown_ledger_changes_nothing(group: str) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put_many([b"1", b"2"])
            ledger = Ledger(core_of(session).handle("jobs"), "A")
            number = await ledger.next_batch(-1, None)
            with pytest.raises(NotFoundError, match=re.escape(f"has no ledger {group!r}")):
                await jobs.admin.release_ledger(group)
            assert await ledger.acknowledge(number) == 2

    run_virtual(main)
