"""A taker is killed at any request: the newest of each set of duplicates is still delivered, once."""

from __future__ import annotations

import pytest

import aiozkqueue as zq
from tests.simulation.killing import When, killed_at


async def _put(session: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(collapse=True, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
    for number in range(3):
        await queue.put(b"k%d" % number, key="k")
        await queue.put(b"l%d" % number, key="l", unique="ignore")


async def _take(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        await tx.take_many(session.queue("jobs"), 2, timeout=5)
        tx.put("done", b"yes")


async def _check_state(session: zq.QueueSession) -> list[str]:
    left: list[bytes] = []
    async with session.transaction() as tx:
        while messages := await tx.take_many(session.queue("jobs"), 10, timeout=30):
            left += [message.body for message in messages]
    left.sort()
    done = await session.queue("done").size()
    expected = [] if done else [b"k2", b"l0"]
    found = [] if left == expected else [f"{left} is left, the commit was {'' if done else 'not '}applied"]
    zookeeper, paths = session._runtime.zookeeper, session._runtime.queue_state("jobs").paths
    for folder in (paths.items, paths.locks, paths.metas, paths.keys):
        found += [f"{folder}/{name} is left" for name in await zookeeper.children(folder)]
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("when", When)
def test_each_set_of_duplicates_is_delivered_once_whenever_a_consumer_is_killed(when: When) -> None:
    number = 0
    while True:
        number += 1
        reached, found = killed_at(number, when, before=_put, work=_take, after=_check_state)
        assert not found, f"killed at request {number}, {when.name}: {found}"
        if not reached:
            break
    assert number > 5
