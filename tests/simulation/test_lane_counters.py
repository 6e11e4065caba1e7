"""Lanes whose counters are near their end. The session reads the counters from some of the replies to puts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import LANE_END
from aiozkqueue.queue.commit import bundle_puts, create_items
from aiozkqueue.queue.commit.group_commit import FULL_GROUP
from aiozkqueue.queue.commit.multi import RESULTS_EVERY
from aiozkqueue.session.internals import state_of
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("before", [0, 1])
def test_lanes_change_their_generation_in_time_despite_other_commits_between_the_puts(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The session reads the replies to every nth large multi of puts, and does not count multis of other kinds."""
    for module in (bundle_puts, create_items):
        monkeypatch.setattr(module, "LANE_END_DIGITS", f"{0:010d}")

    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as session:
            jobs, results = session.queue("jobs"), session.queue("others")
            await jobs.configure(zq.QueueConfig(shards=128))
            await results.put(b"makes the queue")
            for _ in range(before):
                await results.put(b"")
            for _ in range(10 * RESULTS_EVERY):
                await asyncio.gather(*(jobs.put(b"") for _ in range(FULL_GROUP)))
                await results.put(b"every other commit is of this")
            await jobs.configuration()  # reads the counter again
            return len(state_of(jobs).config.generations)

    assert run_virtual(main) >= 5


def test_a_lane_that_gets_its_messages_from_handlers_that_reply_changes_its_generation_in_time() -> None:
    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as session:
            results, requests = session.queue("results"), session.queue("requests")
            await results.put(b"makes the queue")
            cluster.ensemble.tree.nodes["/zms/results/items"].creates = LANE_END

            async def handle(delivery: zq.Delivery[bytes]) -> None:
                delivery.put(results, b"")
                delivery.reply(b"done")

            async with session.listener(requests, handle):
                assert await requests.call(b"", timeout=20) == b"done"
            await results.configuration()  # reads the counter again
            return len(state_of(results).config.generations)

    assert run_virtual(main, limit=100) == 1


@pytest.mark.parametrize(
    ("use", "items"),
    [
        (lambda session: session.curator_queue("/app/q", lock_path="/app/q-locks"), "/app/q"),
        (lambda session: session.kazoo_queue("/app/q"), "/app/q/entries"),
    ],
    ids=["curator", "kazoo"],
)
def test_a_queue_of_another_program_never_gets_a_lane_that_this_program_does_not_know(
    use: Callable[[zq.QueueSession], zq.Queue[bytes]], items: str
) -> None:
    async def main() -> tuple[int, int]:
        async with simulated() as cluster, cluster.connect() as session:
            queue = use(session)
            await queue.put(b"makes the queue")
            cluster.ensemble.tree.nodes[items].creates = LANE_END
            for _ in range(3):
                await queue.put(b"")
                await queue.configuration()  # reads the counter again
            return len(state_of(queue).config.generations), len(cluster.ensemble.tree.children(items))

    assert run_virtual(main, limit=100) == (0, 4)
