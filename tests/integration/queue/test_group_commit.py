"""Writes that are ready at the same moment share a request, and a failed write does not fail the others."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.commit.group_commit import SLOTS
from aiozkqueue.queue.commit.multi import GROUP_BYTES
from aiozkqueue.testing import Direction, Opcode
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from aiozkqueue.testing.frames import Request
    from tests.integration.queue.conftest import Locks, Opener
    from tests.observer import Observer


class Commits:
    """The multis under commit slots that pass through a proxy: each begins with the write of a slot."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, request: Request) -> bool:
        # The first operation of a multi: its type, whether it is the last one, an error code; then the path.
        if request.opcode == Opcode.MULTI and struct.unpack_from(">i", request.body)[0] == Opcode.SET_DATA:
            (length,) = struct.unpack_from(">i", request.body, 9)
            if b"/slot-" in request.body[13 : 13 + length]:
                self.sizes.append(len(request.body))
        return False

    @property
    def number(self) -> int:
        return len(self.sizes)


@pytest.fixture
def proxy(zookeeper_proxy: ZooKeeperProxy) -> ZooKeeperProxy:
    return zookeeper_proxy


@pytest.fixture
def commits(proxy: ZooKeeperProxy) -> Commits:
    counted = Commits()
    proxy.lose_before(counted, times=None)  # it only counts, and loses no request
    return counted


@pytest.fixture
async def session(open_session: Opener, proxy: ZooKeeperProxy, commits: Commits) -> zq.QueueSession:
    del commits
    return await open_session(proxy.hosts)


async def stored(view: Observer, root: str, queue: str = "jobs") -> list[bytes]:
    """Return the bodies on the server, in the order of their sequence numbers."""
    path = f"{root}/{queue}/items"
    names = sorted(await view.children(path), key=lambda name: name[-10:])
    return [await view.get(f"{path}/{name}") for name in names]


async def slot_versions(view: Observer, root: str, session: zq.QueueSession) -> int:
    base = f"{root}/.clients/{session._runtime.ids.client}"
    return sum([await view.version(f"{base}/{slot}") for slot in await view.children(base)])


async def test_concurrent_puts_share_multis(
    session: zq.QueueSession, commits: Commits, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    before, versions = commits.number, await slot_versions(server_view, queue_root, session)
    bodies = [b"%03d" % number for number in range(500)]
    ids = await asyncio.gather(*(jobs.put(body) for body in bodies))
    assert len(set(ids)) == 500
    sent = commits.number - before
    assert sent <= 10
    assert await slot_versions(server_view, queue_root, session) - versions == sent
    assert Counter(await stored(server_view, queue_root)) == Counter([b"first", *bodies])


async def test_concurrent_transactions_share_multis(
    session: zq.QueueSession, commits: Commits, server_view: Observer, queue_root: str, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    bodies = [b"%03d" % number for number in range(256)]
    await jobs.put_many(bodies)
    held: list[bytes] = []
    go = asyncio.Event()

    async def move() -> None:
        async with session.transaction() as tx:
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            tx.put("results", message.value)
            held.append(message.value)
            await go.wait()

    async def all_held() -> bool:
        return len(held) == len(bodies)

    moving = [asyncio.create_task(move()) for _ in bodies]
    await eventually(all_held)
    before = commits.number
    go.set()
    await asyncio.gather(*moving)
    assert commits.number - before <= 256 / 10
    assert await stored(server_view, queue_root) == []
    assert Counter(await stored(server_view, queue_root, "results")) == Counter(bodies)
    assert await locks() == []


async def test_a_failing_member_does_not_fail_the_others(
    session: zq.QueueSession, other: zq.QueueSession, commits: Commits, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    bodies = [b"%03d" % number for number in range(40)]
    await jobs.put_many(bodies)
    blocks = [session.transaction(autocommit=False) for _ in bodies]
    transactions = [await block.__aenter__() for block in blocks]
    held: list[zq.Message[bytes]] = []
    for number, tx in enumerate(transactions):
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        held.append(message)
        tx.put("results", b"%03d" % number)
    # An operator releases three of the claims by force and removes one item by hand.
    for number in (3, 20, 39):
        name = next(n for n in await server_view.children(f"{queue_root}/jobs/items") if held[number].id in n)
        path = f"{queue_root}/jobs/items/{name}"
        await server_view.delete(f"{queue_root}/jobs/locks/lock-{held[number].id}")
        await server_view.set(path, await server_view.get(path))
    name = next(n for n in await server_view.children(f"{queue_root}/jobs/items") if held[10].id in n)
    await server_view.delete(f"{queue_root}/jobs/items/{name}")
    before = commits.number
    outcomes = await asyncio.gather(*(tx.commit() for tx in transactions), return_exceptions=True)
    failed = {number for number, outcome in enumerate(outcomes) if outcome is not None}
    assert failed == {3, 10, 20, 39}
    assert {type(outcomes[number]) for number in failed} == {zq.ClaimLostError}
    assert commits.number - before <= 20
    for number, tx in enumerate(transactions):
        assert tx.outcome is (zq.Outcome.ROLLED_BACK if number in failed else zq.Outcome.COMMITTED)
    results = await stored(server_view, queue_root, "results")
    assert Counter(results) == Counter(b"%03d" % number for number in range(40) if number not in failed)
    assert sorted(await stored(server_view, queue_root)) == sorted(held[number].value for number in (3, 20, 39))
    for block in blocks:
        await block.__aexit__(None, None, None)
    other_jobs = other.queue("jobs")
    async with other_jobs.consume(until_idle=0) as deliveries:
        assert len([delivery async for delivery in deliveries]) == 3


async def test_a_single_commit_is_sent_at_once(session: zq.QueueSession, proxy: ZooKeeperProxy) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    loop = asyncio.get_running_loop()
    proxy.delay(0.05)  # in each direction
    puts, commits = list[float](), list[float]()
    # One round trip takes 0.1 s. It is repeated, since the machine may stall.
    while max(min(puts, default=1), min(commits, default=1)) >= 0.19:
        assert len(puts) < 50, (puts, commits)
        start = loop.time()
        await jobs.put(b"alone")
        puts.append(loop.time() - start)
        async with session.transaction(autocommit=False) as tx:
            tx.put(jobs, b"more")
            start = loop.time()
            await tx.commit()
            commits.append(loop.time() - start)
    proxy.heal()


async def test_writes_submitted_while_multis_are_pending_share_the_next_multi(
    session: zq.QueueSession, proxy: ZooKeeperProxy, commits: Commits, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    before = commits.number
    proxy.stall(Direction.TO_CLIENT)  # no reply arrives until all puts have been submitted
    putting = []
    for number in range(60):
        putting.append(asyncio.create_task(jobs.put(b"%02d" % number)))
        await asyncio.sleep(0.001)
    proxy.heal()
    await asyncio.gather(*putting)
    assert commits.number - before <= SLOTS + 1  # one under each slot, and one with the puts submitted meanwhile
    assert len(await stored(server_view, queue_root)) == 61


async def test_puts_awaited_in_sequence_keep_their_order(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")

    async def put_in_order(task: int) -> None:
        for number in range(20):
            await jobs.put(b"%02d-%02d" % (task, number))

    await asyncio.gather(*(put_in_order(task) for task in range(16)))
    everything = await stored(server_view, queue_root)
    for task in range(16):
        own = [body for body in everything if body.startswith(b"%02d-" % task)]
        assert own == [b"%02d-%02d" % (task, number) for number in range(20)]


async def test_a_change_of_configuration_is_repaired_and_fails_no_member(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    await other.queue("jobs").configure(zq.QueueConfig(policy=zq.ConsumeTimes(3)))
    bodies = [b"%03d" % number for number in range(300)]

    async def put_in_transaction(body: bytes) -> None:
        async with session.transaction() as tx:
            tx.put(jobs, body)
            tx.put("untouched", body)

    await asyncio.gather(
        *(jobs.put(body) for body in bodies[:150]), *(put_in_transaction(body) for body in bodies[150:])
    )
    assert Counter(await stored(server_view, queue_root)) == Counter([b"first", *bodies])
    assert Counter(await stored(server_view, queue_root, "untouched")) == Counter(bodies[150:])


async def test_large_writes_are_sent_alone_and_no_multi_exceeds_its_limit(
    session: zq.QueueSession, commits: Commits, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    before = commits.number
    large = [bytes([number]) * 700_000 for number in range(3)]
    middle = [bytes([number]) * 100_000 for number in range(8)]
    small = [b"%02d" % number for number in range(50)]
    await asyncio.gather(*(jobs.put(body) for body in (*large, *middle, *small)))
    sizes = sorted(commits.sizes[before:])
    assert [size for size in sizes if size > GROUP_BYTES] == pytest.approx([700_000] * 3, rel=0.01)
    assert len(sizes) <= 12
    assert Counter(await stored(server_view, queue_root)) == Counter([b"first", *large, *middle, *small])


@pytest.mark.parametrize(("size", "requests"), [(200, 1), (1024, 3)])
@pytest.mark.parametrize("bundle", [1, 64])
async def test_a_thousand_small_messages_are_one_request_and_larger_ones_few(
    session: zq.QueueSession, commits: Commits, *, size: int, requests: int, bundle: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    await jobs.configure(zq.QueueConfig(bundle=bundle))
    await jobs.put(b"second")  # reads the configuration
    before = commits.number
    bodies = [b"%04d" % number + bytes(size - 4) for number in range(1000)]
    await jobs.put_many(bodies)
    assert commits.number - before == requests
    assert max(commits.sizes[before:]) < GROUP_BYTES
    async with session.transaction() as tx:
        assert [message.body for message in await tx.take_many(jobs, 2)] == [b"first", b"second"]
        taken = await tx.take_many(jobs, 500)
        assert [message.body for message in taken] == bodies[: len(taken)]


async def test_a_lost_reply_leaves_each_member_applied_once(
    session: zq.QueueSession, proxy: ZooKeeperProxy, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    bodies = [b"%03d" % number for number in range(200)]
    proxy.lose_after(Opcode.MULTI, nth=1, times=1)
    proxy.lose_before(Opcode.MULTI, nth=3, times=1)
    await asyncio.gather(*(jobs.put(body) for body in bodies))
    assert Counter(await stored(server_view, queue_root)) == Counter([b"first", *bodies])
