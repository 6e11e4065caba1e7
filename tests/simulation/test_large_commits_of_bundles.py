"""Large commits of messages of bundles, while another commit about the same bundle is in progress."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated

MESSAGES = [b"%d" % number for number in range(8)]
LARGE = bytes(450_000)


async def left_after(*, rejected: bool) -> tuple[zq.Outcome, zq.Outcome, list[bytes]]:
    """Take a message in each of two transactions, commit both together, the second one with a large message, and close.

    The second commit also moves a large message. If that is ``rejected`` too, the commit is larger than a request may
    be. Returns the outcomes, and the messages that the next session finds.
    """
    async with simulated() as cluster:
        cluster.ensemble.delays.network = lambda: 0.01
        async with cluster.connect(name="first") as session:
            jobs, bulk = session.queue("jobs"), session.queue("bulk")
            await jobs.configure(zq.QueueConfig(bundle=len(MESSAGES), policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            await jobs.put_many(MESSAGES)
            await bulk.put(LARGE)
            await session.queue("results").put(b"")  # the queue is open by now
            async with session.transaction(autocommit=False) as small, session.transaction(autocommit=False) as large:
                await small.take(jobs)
                await large.take(jobs)
                if rejected and (message := await large.take(bulk)) is not None:
                    large.reject(message, "unknown")
                large.put("results", LARGE)
                large.put("results", LARGE)
                committing = asyncio.create_task(small.commit())
                await asyncio.sleep(0.001)  # the first commit is in progress
                with suppress(zq.TransactionTooLargeError):
                    await large.commit()
                await committing
        async with cluster.connect(name="second") as session, session.transaction() as tx:
            left = [message.body for message in await tx.take_many(session.queue("jobs"), 100, timeout=20)]
        return small.outcome, large.outcome, sorted(left)


def test_messages_of_a_bundle_that_two_commits_have_removed_do_not_come_again() -> None:
    found = run_virtual(lambda: left_after(rejected=False), limit=200)
    assert found == (zq.Outcome.COMMITTED, zq.Outcome.COMMITTED, MESSAGES[2:])


def test_a_message_of_a_bundle_whose_commit_was_too_large_is_not_lost() -> None:
    found = run_virtual(lambda: left_after(rejected=True), limit=200)
    assert found == (zq.Outcome.COMMITTED, zq.Outcome.ROLLED_BACK, MESSAGES[1:])
