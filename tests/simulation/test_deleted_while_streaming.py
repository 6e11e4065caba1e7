"""A queue is deleted by force and created again while an earlier Spark process still runs."""

from __future__ import annotations

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.staging import BatchWriter, Fence, FencedError, fenced_puts
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import Create, Delete, SetData


async def put_row(session: zq.QueueSession, fence: Fence, part: str) -> None:
    """Put one row of a pending batch."""
    core = core_of(session)
    puts = [fence.staged(prepare(core, "jobs", b"row", {}))]
    await make_ready(puts)
    await core.settle(fenced_puts(core.ids.next(), puts, fence, SetData(part, b"{}", 0)))


async def begun(session: zq.QueueSession, run: str) -> tuple[BatchWriter, Fence]:
    """Begin a batch with one part."""
    writer = BatchWriter(core_of(session).handle("jobs"), "write w")
    fence = await writer.begin(0, run)
    assert fence is not None
    await core_of(session).zookeeper.multi([Create(f"{writer.path}/p")])
    return writer, fence


def test_a_task_of_a_write_from_before_the_deletion_puts_nothing_into_the_new_queue() -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as task, cluster.connect() as other:
            jobs = other.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1))
            old, before = await begun(task, "run 1")
            await jobs.admin.delete(force=True)
            await jobs.configure(zq.QueueConfig(bundle=1))
            new, after = await begun(other, "run 2")
            assert (before.path, before.version) == (after.path, after.version)
            with pytest.raises(FencedError):
                await put_row(task, before, f"{old.path}/p")
            with pytest.raises(zq.NotCommittedError):
                await old.renew(0, "run 1")
            await put_row(other, after, f"{new.path}/p")
            async with other.transaction() as tx:
                assert await tx.take(jobs, timeout=1) is None
            await new.complete(0)
            assert await jobs.size() == 1

    run_virtual(main)


def test_a_write_whose_lock_was_removed_manually_is_given_up() -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as task:
            writer, fence = await begun(task, "run")
            assert await writer.renew(0, "run") == fence
            await core_of(task).zookeeper.multi([Delete(fence.lock)])
            with pytest.raises(FencedError):
                await put_row(task, fence, f"{writer.path}/p")
            with pytest.raises(zq.NotCommittedError):
                await writer.renew(0, "run")

    run_virtual(main)
