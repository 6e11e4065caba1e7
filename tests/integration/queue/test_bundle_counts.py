"""The figures of puts and removals count messages, including messages that share a znode."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl

import aiozkqueue as zq
from aiozkqueue.sampling import Sampler, rates_between
from tests.faults.account import multi_of
from tests.integration.queue.bundles import BODIES, NUMBER, Stored, bundled, drain
from tests.integration.queue.conftest import no_locks

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Locks, Opener
    from tests.observer import Observer


async def figures(queue: zq.Queue[bytes]) -> tuple[int, int, int]:
    stats = await queue.stats()
    return stats.put, stats.removed, stats.size


async def test_stats_count_the_messages_of_bundles(
    session: zq.QueueSession, other: zq.QueueSession, stored: Stored
) -> None:
    queue = await bundled(session)
    assert len(await stored.names()) == 2
    assert await figures(queue) == (NUMBER, 0, NUMBER)
    await asyncio.gather(*(other.queue("jobs").put_many(BODIES[:size]) for size in (33, 47, 64, 100)))
    await queue.put(b"single")
    put = NUMBER + 33 + 47 + 64 + 100 + 1
    assert await figures(queue) == (put, 0, put)
    await drain(session, queue)
    assert await figures(queue) == (put, put, 0)


async def test_rates_count_the_messages_of_bundles(session: zq.QueueSession, locks: Locks) -> None:
    queue = await bundled(session)
    sampler = Sampler(session)
    await sampler.sample_all(0.0)
    before = sampler.latest["jobs"]
    await queue.put_many(BODIES)
    async with session.transaction() as tx:
        await tx.take_many(queue, 30)
    await no_locks(locks)  # a message that is returned during a reading is counted twice or not at all
    await sampler.sample_all(0.0)
    after = sampler.latest["jobs"]
    rates, seconds = rates_between(before, after), after.at - before.at
    assert (rates.put * seconds, rates.removed * seconds) == pytest.approx((NUMBER, 30))


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_messages_are_counted_once_when_a_request_or_its_reply_is_lost(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, lost: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = await bundled(session)
    lose = zookeeper_proxy.lose_before if lost == "request" else zookeeper_proxy.lose_after
    fault = lose(multi_of(b"/bundled/"))
    await queue.put_many(BODIES)
    await fault.struck()
    assert await figures(queue) == (2 * NUMBER, 0, 2 * NUMBER)


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_the_counters_are_created_again_if_they_are_missing(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, server_view: Observer, queue_root: str, lost: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = await bundled(session)
    counters = f"{queue_root}/jobs/bundled"
    await server_view.delete_at_once(f"{counters}/5")
    await server_view.delete_at_once(f"{counters}/1")
    lose = zookeeper_proxy.lose_before if lost == "request" else zookeeper_proxy.lose_after
    fault = lose(multi_of(b"/bundled/", without=b"bundle-m"))
    before = (await figures(queue))[0]
    await queue.put_many(BODIES)
    await fault.struck()
    assert (await figures(queue))[0] == before + NUMBER
    assert len(await server_view.children(counters)) == 24


async def test_a_user_who_may_not_write_the_counters_stores_bundles_uncounted(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str, stored: Stored
) -> None:
    queue = await bundled(session)
    allowed = [make_acl("world", "anyone", read=True, admin=True)]
    for name in await server_view.children(f"{queue_root}/jobs/bundled"):
        await server_view.set_acl(f"{queue_root}/jobs/bundled/{name}", allowed)
    for producer in (session, other):
        await producer.queue("jobs").put_many(BODIES)
    assert len(await stored.bundles()) == 6
    assert await figures(queue) == (NUMBER + 4, 0, 3 * NUMBER)


async def test_other_programs_znodes_next_to_the_counters_do_not_block_puts(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    queue = await bundled(session)
    counters = f"{queue_root}/jobs/bundled"
    for name in await server_view.children(counters):
        await server_view.delete_at_once(f"{counters}/{name}")
    for number in range(30):
        await server_view.create(f"{counters}/foreign-{number}", b"")
    await queue.put_many(BODIES)
    await other.queue("jobs").put_many(BODIES)
    assert (await figures(queue))[::2] == (2 * NUMBER + 2, 3 * NUMBER)  # the deleted counts are missing


async def test_a_counters_folder_that_may_have_no_children_does_not_block_puts(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    queue = session.queue("jobs")
    await queue.put(b"first")
    await server_view.create(f"{queue_root}/jobs/bundled", ephemeral=True)
    await queue.configure(zq.QueueConfig(bundle=64))
    await queue.put_many(BODIES)
    assert await queue.size() == NUMBER + 1


async def test_a_user_who_may_not_create_counters_still_gets_bundles(
    session: zq.QueueSession, server_view: Observer, queue_root: str, stored: Stored
) -> None:
    queue = session.queue("jobs")
    await queue.put(b"first")
    allowed = [make_acl("world", "anyone", read=True, write=True, delete=True, admin=True)]
    await server_view.set_acl(f"{queue_root}/jobs", allowed)
    await _put_until_bundled(queue, stored)


@pytest.mark.parametrize("ephemeral", [True, False], ids=["without children", "of another program"])
async def test_a_queue_with_another_znode_instead_of_its_counters_gets_bundles(
    session: zq.QueueSession, server_view: Observer, queue_root: str, stored: Stored, *, ephemeral: bool
) -> None:
    queue = session.queue("jobs")
    await queue.put(b"first")
    await server_view.create(f"{queue_root}/jobs/bundled", ephemeral=ephemeral)
    await _put_until_bundled(queue, stored)


async def _put_until_bundled(queue: zq.Queue[bytes], stored: Stored) -> None:
    async with asyncio.timeout(20):
        while not await stored.bundles():
            await queue.put_many(BODIES)
            await asyncio.sleep(0.05)
