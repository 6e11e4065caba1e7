"""Our and other programs' consumers on one queue: each message once, locks respected, dead holders replaced."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

from .test_kazoo import awaited, wait_for_size

if TYPE_CHECKING:
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

    from .conftest import Die, StartCurator, StartKazoo
    from .peers import Curator, Kazoo

pytestmark = pytest.mark.timeout(180)

MESSAGES = 1000


async def consumed(queue: zq.Queue[bytes], bodies: list[bytes]) -> None:
    """Take messages until the queue is empty, whichever consumer takes them."""
    consumer = queue.consume(prefetch=4)

    async def stop_when_empty() -> None:
        try:
            await wait_for_size(queue, 0)
        finally:
            consumer.stop()

    stopping = asyncio.create_task(stop_when_empty())
    async with consumer as deliveries:
        bodies.extend([delivery.body async for delivery in deliveries])
    await stopping


def each_once(bodies: list[bytes]) -> bool:
    return Counter(bodies) == Counter(b"%d" % number for number in range(MESSAGES))


async def test_two_sessions_and_curator_threads_take_each_of_a_thousand_messages_once(
    session: zq.QueueSession, other: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    locks = f"{path}-locks"
    queues = [opened.curator_queue(path, lock_path=locks) for opened in (session, other)]
    await queues[0].put_many([b"%d" % number for number in range(MESSAGES)])
    # So that each has at least one message, however fast they are.
    ours = [await awaited(session, queues[0], 1), list[bytes]()]
    await curator.ask("consume", "c", "queue", path, locks, "show", 4)
    theirs = await curator.shown("c")
    await asyncio.gather(*(consumed(queue, bodies) for queue, bodies in zip(queues, ours, strict=True)))
    await server_view.until(lambda: not server_view._children(path))
    theirs += await curator.shown_until_now("c")
    assert each_once([*ours[0], *ours[1], *theirs]), (len(ours[0]), len(ours[1]), len(theirs))
    await server_view.until(lambda: not server_view._children(locks))


async def test_two_sessions_and_kazoo_take_each_of_a_thousand_messages_once(
    session: zq.QueueSession, other: zq.QueueSession, kazoo: Kazoo, path: str, server_view: Observer
) -> None:
    path = f"{path}-locking"
    queues = [opened.kazoo_queue(path) for opened in (session, other)]
    await queues[0].put_many([b"%d" % number for number in range(MESSAGES)])
    # So that each has at least one message, however fast they are.
    ours = [await awaited(session, queues[0], 1), list[bytes]()]
    first = await kazoo.get(path, 30)
    assert first is not None
    assert await kazoo.ask("consume", path)
    theirs, *_ = await asyncio.gather(
        kazoo.ask("drain", path, 1), *(consumed(queue, bodies) for queue, bodies in zip(queues, ours, strict=True))
    )
    assert each_once([first, *ours[0], *ours[1], *(bytes.fromhex(body) for body in theirs)])
    assert await server_view.children(f"{path}/entries") == []
    assert await server_view.children(f"{path}/taken") == []


async def test_we_take_a_message_held_by_curator_only_after_curator_is_killed(
    session: zq.QueueSession,
    curator: Curator,
    start_curator: StartCurator,
    die: Die,
    path: str,
    server_view: Observer,
) -> None:
    """We notice the end at once. An idle Curator notices it at the next put, since it watches items and not locks.

    Curators behave in the same way without us, as the second queue shows.
    """
    holder, locks, curators_only = await start_curator(), f"{path}-locks", f"{path}-2"
    queue = session.curator_queue(path, lock_path=locks)
    await queue.put(b"held")
    await holder.ask("open", "q", "queue", curators_only, f"{curators_only}-locks", 0)
    await holder.ask("put", "q", b"held".hex())
    await holder.ask("consume", "c", "queue", path, locks, "hold", 1)
    await holder.ask("consume", "d", "queue", curators_only, f"{curators_only}-locks", "hold", 1)
    assert await holder.shown("c") == await holder.shown("d") == [b"held"]
    await curator.ask("consume", "idle", "queue", curators_only, f"{curators_only}-locks", "show", 1)
    async with asyncio.timeout(60):  # until it has found the message locked, and waits
        while await curator.ask("cached", "idle") != "1" or await curator.ask("waiting", "idle") != "true":  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
    async with session.transaction() as tx:
        assert await tx.take(queue, timeout=1) is None
        waiting = asyncio.create_task(tx.take(queue, timeout=60))
        await die(holder)
        taken = await waiting
    assert taken is not None
    assert taken.body == b"held"
    assert await queue.size() == 0
    await server_view.until(lambda: not server_view._children(f"{curators_only}-locks"))
    await asyncio.sleep(1)
    assert await curator.shown_until_now("idle") == []
    assert len(await server_view.children(curators_only)) == 1
    await curator.ask("open", "q", "queue", curators_only, f"{curators_only}-locks", 0)
    await curator.ask("put", "q", b"wakes it".hex())
    assert await curator.shown("idle", 2) == [b"held", b"wakes it"]


async def test_we_take_a_message_held_by_kazoo_only_after_a_kill_or_a_release(
    session: zq.QueueSession, start_kazoo: StartKazoo, die: Die, path: str
) -> None:
    kazoo, path = await start_kazoo(), f"{path}-locking"
    queue = session.kazoo_queue(path)
    await queue.put_many([b"released", b"held"])
    assert await kazoo.get(path) == b"released"
    async with session.transaction() as tx:
        message = await tx.take(queue, timeout=30)
        assert message is not None
        assert message.body == b"held"
        waiting = asyncio.create_task(tx.take(queue, timeout=60))
        assert await kazoo.ask("release", path)
        message = await waiting
        assert message is not None
        assert message.body == b"released"
    await queue.put(b"of the dead")
    assert await kazoo.get(path, 30) == b"of the dead"
    async with session.transaction() as tx:
        assert await tx.take(queue, timeout=0.5) is None
        waiting = asyncio.create_task(tx.take(queue, timeout=60))
        await die(kazoo)
        message = await waiting
    assert message is not None
    assert message.body == b"of the dead"


async def test_kazoo_takes_a_message_that_we_hold_only_after_its_release(
    kazoo: Kazoo, open_session: Opener, path: str
) -> None:
    path, session = f"{path}-locking", await open_session()
    queue = session.kazoo_queue(path)
    await queue.put(b"held")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(queue, timeout=30) is not None
        assert await kazoo.get(path, 1) is None
        waiting = asyncio.create_task(kazoo.get(path, 30))
        await tx.rollback(delay=0)
    assert await waiting == b"held"


async def test_curator_waits_for_the_end_of_our_delayed_retry(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks)
    await queue.put(b"again")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(queue, timeout=30) is not None
        begun = time.monotonic()
        await tx.rollback(delay=2)
    await curator.ask("consume", "c", "queue", path, locks, "show", 1)
    assert await curator.shown("c") == [b"again"]
    assert time.monotonic() - begun > 1.99


async def test_a_commit_fails_as_a_whole_if_a_peer_took_a_message_of_an_unlocked_queue(
    session: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    queue, results = session.kazoo_queue(path, locking=False), session.queue("results")
    await queue.put(b"taken twice")
    with pytest.raises(zq.ClaimLostError):
        async with session.transaction() as tx:
            assert await tx.take(queue, timeout=30) is not None
            tx.put(results, b"result")
            assert await kazoo.get(path) == b"taken twice"
    assert (await queue.size(), await results.size()) == (0, 0)


@pytest.mark.parametrize("kind", ["kazoo", "curator"])
async def test_messages_of_our_killed_process_go_to_any_other_consumer(
    session: zq.QueueSession,
    kazoo: Kazoo,
    curator: Curator,
    zookeeper: str,
    queue_root: str,
    path: str,
    kind: str,
    server_view: Observer,
) -> None:
    """The process holds messages in two queues; the peer takes over those of one, and we those of the other."""
    for_peer, for_us = f"{path}-1-locking", f"{path}-2-locking"

    def of(place: str) -> zq.Queue[bytes]:
        if kind == "kazoo":
            return session.kazoo_queue(place)
        return session.curator_queue(place, lock_path=f"{place}-locks")

    async def hold_and_be_killed(place: str) -> None:
        await of(place).put(b"held")
        holder = [sys.executable, "-m", "tests.dialects.holder", zookeeper, queue_root, place, kind]
        process = await asyncio.create_subprocess_exec(*holder, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"held\n"
        finally:
            process.kill()
            await process.wait()

    await asyncio.gather(hold_and_be_killed(for_peer), hold_and_be_killed(for_us))
    async with session.transaction() as tx:
        message = await tx.take(of(for_us), timeout=60)
    assert message is not None
    assert message.body == b"held"
    if kind == "kazoo":
        assert await kazoo.get(for_peer, 60) == b"held"
        assert await kazoo.ask("consume", for_peer)
    else:
        locks = f"{for_peer}-locks"
        await curator.ask("consume", "c", "queue", for_peer, locks, "show", 1)
        await server_view.until(lambda: not server_view._children(locks))
        # An idle Curator does not notice the removal of a lock, only the next put.
        await of(for_peer).put(b"wakes it")
        await server_view.until(lambda: not server_view._children(for_peer))
        assert sorted(await curator.shown_until_now("c")) == [b"held", b"wakes it"]
    assert (await of(for_peer).size(), await of(for_us).size()) == (0, 0)
