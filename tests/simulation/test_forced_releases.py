"""Forced releases while messages are removed and return under the same ids: a message has one holder at any time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

import aiozkqueue as zq
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble, run_virtual, simulated

#: Seconds of a network message between an operator and the servers, twenty times those of the other clients.
FAR = 0.02
#: The steps after which the message is rejected: during all requests of the operator up to its change.
MOMENTS = 16


def _near() -> float:
    return FAR / 20


def _far() -> float:
    return FAR


@pytest.mark.parametrize("later", [1, 3, 5])
def test_a_message_redriven_during_a_forced_release_never_has_two_holders(later: int) -> None:
    """The message is held when the operator lists the locks, dead when it lists the items, and then held again."""

    async def main() -> None:
        near = Delays(_near, _near, _near, _near)
        for moment in range(MOMENTS):
            cluster = Cluster(Ensemble(Random(1), delays=replace(near, network=_far)), 1)
            async with cluster.connect() as operator:
                jobs = operator.queue("jobs")
                cluster.ensemble.delays = near
                await jobs.put(b"job")
                async with cluster.connect() as first, cluster.connect() as second, cluster.connect() as third:
                    await _play(jobs, [first, second, third], (moment + 0.5) * FAR, later * FAR)

    run_virtual(main, limit=float("inf"))


async def _play(jobs: zq.Queue[bytes], sessions: list[zq.QueueSession], moment: float, later: float) -> None:
    first, second, third = sessions
    async with first.transaction(autocommit=False) as before:
        message = await before.take(first.queue("jobs"), timeout=1)
        assert message is not None
        forcing = asyncio.create_task(jobs.admin.release_claims())
        await asyncio.sleep(moment)
        before.reject(message, "to come back under the same id")
        try:
            await before.commit()
        except zq.ClaimLostError:
            await forcing
            return
    await asyncio.sleep(later)
    await second.queue("jobs").dead_letters.redrive()
    async with second.transaction(autocommit=False) as own, third.transaction(autocommit=False) as other:
        assert await own.take(second.queue("jobs"), timeout=1) is not None
        await forcing
        given_to_another = await other.take(third.queue("jobs"), timeout=1) is not None
        if given_to_another:
            with pytest.raises(zq.ClaimLostError):
                await own.commit()
            await other.commit()
        else:
            await own.commit()
            await other.rollback()
    assert await jobs.size() == 0


def test_a_transaction_that_takes_a_message_again_after_a_forced_release_is_refused() -> None:
    """Otherwise, its commit would end the message once with the puts of both deliveries."""

    async def main() -> tuple[list[bytes], zq.Outcome, int, int]:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as operator:
            jobs, results = session.queue("jobs"), session.queue("results")
            await jobs.configure(zq.QueueConfig(bundle=2))
            await results.put(b"makes the queue")
            await jobs.put_many([b"1", b"2"])
            taken: list[bytes] = []
            with pytest.raises(zq.ClaimLostError):
                async with session.transaction() as tx:
                    while len(taken) < 2:
                        message = await tx.take(jobs, timeout=10)
                        assert message is not None
                        taken.append(message.body)
                        tx.put(results, message.body)
                        if len(taken) == 1:
                            await operator.queue("jobs").admin.release_claims()
                            await asyncio.sleep(1)  # the session has noticed
            return taken, tx.outcome, await jobs.size(), await results.size()

    assert run_virtual(main, limit=100) == ([b"1", b"1"], zq.Outcome.ROLLED_BACK, 2, 1)


def test_a_forced_release_of_a_bundle_is_shown_to_the_sessions_that_remove_locks_without_an_item() -> None:
    """They remove a lock only if none was released by force since: the znode of the locks counts these releases."""

    async def main() -> tuple[int, int]:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=2))
            await jobs.put_many([b"1", b"2"])
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs, timeout=5) is not None
                before = cluster.ensemble.tree.nodes["/zms/jobs/locks"].version
                assert await jobs.admin.release_claims() == 2
                after = cluster.ensemble.tree.nodes["/zms/jobs/locks"].version
                await tx.rollback()
            return before, after

    before, after = run_virtual(main, limit=100)
    assert after == before + 1
