"""A refused commit: the queue of the refused operation is repaired, and the whole commit is sent again."""

from __future__ import annotations

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import state_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.zookeeper import Delete


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("unique", [False, True])
def test_a_commit_recreates_the_znodes_that_its_puts_lack_whatever_else_it_does(
    *, counted: bool, cancels: bool, unique: bool
) -> None:
    async def main() -> tuple[zq.Outcome, list[int]]:
        async with simulated() as cluster, cluster.connect() as session:
            operator = await cluster.client()
            jobs, missing, results = (session.queue(name) for name in ("jobs", "others", "results"))
            if counted:
                await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(3)))
            other = await missing.put(b"to be cancelled")
            await jobs.put_many([b"1", b"2"])
            await results.configure(zq.QueueConfig())  # the queue is known to exist
            async with session.transaction() as tx:
                assert len(await tx.take_many(jobs, 2, timeout=30)) == 2
                if cancels:
                    assert await tx.cancel(missing, id=other) is zq.Alteration.DONE
                for value in (b"1", b"2"):
                    if unique:
                        tx.put(results, value, unique=True)
                    else:
                        tx.put(results, value)
                await operator.multi([Delete(state_of(results).paths.items)])
            await operator.close()
            return tx.outcome, [await queue.size() for queue in (jobs, missing, results)]

    assert run_virtual(main) == (zq.Outcome.COMMITTED, [0, 0 if cancels else 1, 2])
