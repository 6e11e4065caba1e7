"""A peer with Curator's protocol next to our consumers: it locks, reads, works and deletes, and sometimes fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame, unframe
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.zookeeper import Create, Delete, EventKind, MultiError, NoNodeError
from tests.simulation.rules.dialects import Shared
from tests.simulation.stories import story
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import WatchEvent
    from tests.simulation.history import History

PATH, LOCKS = "/app/queue", "/app/locks"
ITEMS = 12


@story
def a_peer_consumes_the_same_curator_queue(seed: int | str) -> History:
    """Two of our sessions and a peer drain one queue; sometimes a session rolls back, or the peer fails."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        shared = run.history.part(Shared)
        async with (
            run.cluster.connect(name="one") as first,
            run.cluster.connect(name="two") as two,
            run.cluster.connect(name="peer") as peer,
        ):
            queue = first.curator_queue(PATH, lock_path=LOCKS)
            for number in range(ITEMS):
                shared.put.add(f"m{number}")
                await queue.put(f"m{number}".encode())
            await asyncio.gather(_ours(run, shared, first), _ours(run, shared, two), _peer(run, shared, peer))
            shared.left += await core_of(first).zookeeper.children(PATH) + await core_of(first).zookeeper.children(
                LOCKS
            )
        run.finish()
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def a_peer_releases_an_item_that_we_try_to_lock(seed: int | str) -> History:
    """A peer locks an item before our waiting consumer does, and fails at once; no other consumer exists."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        shared, chance, scale = run.history.part(Shared), run.random.random, run.disturbances.scale
        async with run.cluster.connect(name="ours") as ours, run.cluster.connect(name="peer") as peer:
            queue, send = ours.curator_queue(PATH, lock_path=LOCKS), core_of(peer).zookeeper.multi
            assert await queue.size() == 0
            for number in range(ITEMS):
                body = f"m{number}"
                shared.put.add(body)
                async with ours.transaction() as tx:
                    taking = asyncio.create_task(tx.take(queue, timeout=30))
                    await asyncio.sleep(1)
                    _ = send([Create(f"{PATH}/queue-", frame([body.encode()]), sequential=True)])
                    await asyncio.sleep(chance() * 2 * scale)
                    lock = f"{LOCKS}/queue-{number:010d}"
                    with suppress(MultiError):  # unless our consumer is faster
                        await send([Create(lock, b"10.0.0.1", ephemeral=True)])
                        await asyncio.sleep(chance() * 2 * scale)
                        await send([Delete(lock)])
                    message = await taking
                if message is None:
                    break
                shared.consumed[message.body.decode()] += 1
        run.finish()
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def a_peer_locks_deleted_items(seed: int | str) -> History:
    """A consumer waits while a peer locks items of an old listing; then the queue is recreated with the same names."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        shared, chance, scale = run.history.part(Shared), run.random.random, run.disturbances.scale
        async with run.cluster.connect(name="ours") as ours, run.cluster.connect(name="peer") as peer:
            queue, zookeeper = ours.curator_queue(PATH, lock_path=LOCKS), core_of(peer).zookeeper
            taking = asyncio.create_task(_take(shared, ours, 2 * ITEMS))
            await _put(shared, queue, range(ITEMS))
            while await zookeeper.children(PATH) or await zookeeper.children(LOCKS):  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(scale)
            watch = await zookeeper.watch(LOCKS, _lock_watcher(shared, peers_of := set[str]()), recursive=True)
            for number in run.random.choices(range(ITEMS), k=2 * ITEMS):
                peers_of.add(name := f"queue-{number:010d}")
                with suppress(MultiError):  # our consumer has locked it, which is a violation
                    await zookeeper.multi([Create(f"{LOCKS}/{name}", b"10.0.0.1", ephemeral=True)])
                    await asyncio.sleep(chance() * 2 * scale)
                    await zookeeper.multi([Delete(f"{LOCKS}/{name}")])
                await asyncio.sleep(chance() * 2 * scale)
                peers_of.discard(name)
            await asyncio.sleep(8 * scale)
            watch.cancel()
            await zookeeper.multi([Delete(PATH), Create(PATH)])
            for number in range(ITEMS, 2 * ITEMS):
                name = f"queue-{number - ITEMS:010d}"
                item = Create(f"{PATH}/queue-", frame([f"m{number}".encode()]), sequential=True)
                shared.put.add(f"m{number}")
                await zookeeper.multi([item, Create(f"{LOCKS}/{name}", b"10.0.0.1", ephemeral=True)])
                await asyncio.sleep(chance() * 2 * scale)
                await zookeeper.multi([Delete(f"{LOCKS}/{name}")])  # the peer fails, and leaves the item
            await taking
        run.finish()
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def items_hold_several_messages(seed: int | str) -> History:
    """One consumer that prefetches empties a queue whose items have several messages."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        shared, random, scale = run.history.part(Shared), run.random, run.disturbances.scale
        async with run.cluster.connect(name="ours") as ours:
            queue = ours.curator_queue(PATH, lock_path=LOCKS)
            while len(shared.expected) < 4 * ITEMS:
                several = [f"m{len(shared.expected) + number}" for number in range(random.choice([1, 1, 2, 3, 7]))]
                shared.expected += several
                await queue.put_multi([body.encode() for body in several])
            shared.put.update(shared.expected)
            async with queue.consume(prefetch=random.choice([1, 4, 16])) as deliveries:
                async for delivery in deliveries:
                    body = delivery.body.decode()
                    shared.got.append(body)
                    shared.consumed[body] += 1
                    await asyncio.sleep(random.random() * scale)
                    if len(shared.got) == len(shared.expected):
                        deliveries.stop()
        run.finish()
        return run.history

    return run_virtual(main, limit=LIMIT)


async def _put(shared: Shared, queue: zq.Queue[bytes], numbers: range) -> None:
    for number in numbers:
        shared.put.add(f"m{number}")
        await queue.put(f"m{number}".encode())


async def _take(shared: Shared, session: zq.QueueSession, count: int) -> None:
    """Take this many messages, each in its own transaction; stop if none arrives for a long time."""
    queue = session.curator_queue(PATH, lock_path=LOCKS)
    for _ in range(count):
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=30)
        if message is None:
            return
        shared.consumed[message.body.decode()] += 1


def _lock_watcher(shared: Shared, peers: set[str]) -> Callable[[WatchEvent], None]:
    """Return a watcher that records our locks; ``peers`` are the items that the peer currently locks."""

    def record(event: WatchEvent) -> None:
        name = event.path.rpartition("/")[2]
        if event.kind is EventKind.CREATED and name not in peers:
            shared.in_vain.append(name)

    return record


async def _ours(run: Run, shared: Shared, session: zq.QueueSession) -> None:
    queue = session.curator_queue(PATH, lock_path=LOCKS)
    while sum(shared.consumed.values()) < ITEMS:
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(queue, timeout=0.2)
            if message is None:
                await tx.rollback()
                continue
            body = message.body.decode()
            if body in shared.by_peer:
                shared.taken_from_peer.append(body)
            await asyncio.sleep(run.random.random() * 4 * run.disturbances.scale)
            if run.random.random() < 0.25:
                await tx.rollback(delay=run.random.choice([0, 0.05]))
                continue
            try:
                await tx.commit()
            except zq.ClaimLostError:
                shared.taken_from_peer.append(body)
            else:
                shared.consumed[body] += 1


async def _peer(run: Run, shared: Shared, session: zq.QueueSession) -> None:
    """Take as Curator does in its safe mode, request by request."""
    zookeeper = core_of(session).zookeeper
    while sum(shared.consumed.values()) < ITEMS:
        for name in sorted(await zookeeper.children(PATH)):
            lock = f"{LOCKS}/{name}"
            try:
                await zookeeper.multi([Create(lock, b"10.0.0.1", ephemeral=True)])
            except MultiError:
                continue
            body = None
            with suppress(NoNodeError):
                body = unframe((await zookeeper.read(f"{PATH}/{name}")).data)[0].decode()
            if body is not None:
                shared.by_peer.add(body)
                await asyncio.sleep(run.random.random() * 8 * run.disturbances.scale)
                shared.by_peer.discard(body)
                if run.random.random() < 0.7:  # otherwise the peer fails, and leaves the item
                    with suppress(MultiError):
                        await zookeeper.multi([Delete(f"{PATH}/{name}")])
                        shared.consumed[body] += 1
            with suppress(MultiError):
                await zookeeper.multi([Delete(lock)])
        await asyncio.sleep(4 * run.disturbances.scale)
