"""The observations of a stream's batches, from which the rules for streams derive the owner of each message."""

from __future__ import annotations

from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.programs.streamed import GROUP, STREAMED, Batches, observe
from tests.simulation.programs.streams import prepare, release
from tests.simulation.stories.acts import move
from tests.simulation.workload import LIMIT, Run


def test_a_batch_that_a_lagging_server_never_showed_is_observed_as_released() -> None:
    """The batch is created and released before the first server has applied either change."""

    async def main() -> None:
        run = Run("lagging", size=3)
        run.disturbances.calm = True
        async with run.cluster.connect(name="driver") as session:
            await prepare(run, session)
            await session.queue(STREAMED).put(b"m1")
            await move(run, session, "driver", run.ensemble.servers[1])
            run.ensemble.servers[0].lag = LIMIT
            ledger = Ledger(core_of(session).handle(STREAMED), GROUP)
            number = await ledger.next_batch(-1, None)
            observe(run)
            batches = run.history.part(Batches)
            assert [list(held) for held in batches.held.values()] == [["m1"]]
            await release(run, session)
            assert batches.given_back == {number}
            assert not batches.begun

    run_virtual(main, limit=10 * LIMIT)


def test_a_message_that_a_consumer_ends_during_a_release_was_not_acknowledged_by_the_stream() -> None:
    """Another consumer takes and commits the message before the call of the operator returns."""

    async def main() -> None:
        run = Run("consumed", size=1)
        run.disturbances.calm = True
        batches = run.history.part(Batches)
        async with run.cluster.connect(name="driver") as session:
            await prepare(run, session)
            await session.queue(STREAMED).put(b"m1")
            number = await Ledger(core_of(session).handle(STREAMED), GROUP).next_batch(-1, None)
            observe(run)
            batches.releasing += 1
            await session.queue(STREAMED).admin.release_ledger(GROUP)
            async with session.transaction() as tx:
                assert await tx.take(session.queue(STREAMED), timeout=1) is not None
                await tx.commit()
            observe(run)
        assert batches.given_back == {number}
        assert not batches.begun

    run_virtual(main, limit=LIMIT)
