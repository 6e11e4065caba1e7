"""No claim is applied after a pause has been applied, whatever the session is doing when it learns of the pause."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import state_of, work_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble

#: Seconds of a network message between a client and the server.
WAY = 0.005
#: The pause begins this many milliseconds after the first take: before, during and after each of its requests.
OFFSETS = range(120)


def _way() -> float:
    return WAY


def _none() -> float:
    return 0.0


@pytest.mark.parametrize("config", [zq.QueueConfig(collapse=True), zq.QueueConfig(bundle=1)], ids=["collapse", "plain"])
def test_a_session_that_pauses_a_queue_claims_nothing_that_it_has_chosen_before(config: zq.QueueConfig) -> None:
    """Between the choice of the candidates and their claim, the session reads the duplicates that the claim removes."""
    for offset in OFFSETS:
        late = run_virtual(partial(claimed_late, config, offset / 1000))
        assert late == [], f"paused after {offset} ms"


async def claimed_late(config: zq.QueueConfig, offset: float) -> list[int]:
    """Return the late claims, as the milliseconds between the pause and each."""
    cluster = Cluster(Ensemble(Random(1), delays=Delays(_way, _none, _none, _none)), 1)
    async with cluster.connect() as session:
        jobs = session.queue("jobs")
        await jobs.configure(config)
        await state_of(jobs).admit_pending_batches()  # so that the choice of candidates takes another request
        for number in range(6):
            for body in (b"older", b"newer"):
                await jobs.put(body, key=f"{number}" if config.collapse else None)
        claims: list[int] = []

        async def take() -> None:
            while True:
                async with session.transaction() as tx:
                    if await tx.take(jobs, timeout=0.5) is None:
                        return
                    claims.extend(claim.claimed_at or 0 for claim in work_of(tx).claims)

        taking = asyncio.create_task(take())
        await asyncio.sleep(offset)
        await jobs.configure(zq.QueueConfig(paused=True))
        paused = cluster.ensemble.now()
        await taking
        return [claimed - paused for claimed in claims if claimed > paused]
