"""A watch event that arrives while a consumer lists or requests a lock is never lost.

A client reads all data in its socket at once, so an event is processed before the task that awaits the preceding reply
continues. Each run moves the action of another client by a millisecond, through all requests of an idle consumer.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import LockRecord, id_at, key_hash
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble, run_virtual, simulated
from aiozkqueue.zookeeper import Create, Delete, MultiError

if TYPE_CHECKING:
    from collections.abc import Callable

MILLISECONDS = 150
HOUR = 3600.0
#: Seconds within which an idle consumer receives a new message. Nothing else wakes it meanwhile.
SOON = 60.0
ITEMS, LOCKS = "/app/queue", "/app/locks"


def cluster(seed: int | None = None) -> Cluster:
    """Return a cluster. With a seed, all durations vary at random."""
    random = Random(seed)

    def slowly() -> float:
        return 0.004 if seed is None else 0.008 * random.random()

    delays = Delays(slowly, slowly, slowly, slowly, together=lambda: True)
    return Cluster(Ensemble(Random(1), delays=delays), 1)


def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.queue("jobs")


def of_curator(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.curator_queue(ITEMS, lock_path=LOCKS)


async def make_plain(session: zq.QueueSession) -> None:
    await jobs(session).put(b"before")


async def make_grouped(session: zq.QueueSession) -> None:
    await jobs(session).put_many([b"before"], priority=1)
    await jobs(session).put(b"before", group="g")


async def put(session: zq.QueueSession) -> None:
    await jobs(session).put(b"it")


async def put_in_a_group(session: zq.QueueSession) -> None:
    await jobs(session).put(b"it", group="g")


CASES = {"plain": (make_plain, put), "grouped": (make_grouped, put_in_a_group)}


@pytest.mark.parametrize("case", CASES)
def test_a_message_put_while_a_consumer_starts_to_listen_is_taken(case: str) -> None:
    make, act = CASES[case]

    async def main() -> None:
        ensemble = cluster()
        async with ensemble.connect() as producer:
            await make(producer)
            async with producer.transaction() as tx:
                assert await tx.take_many(jobs(producer), 2, timeout=1)
            for millisecond in range(MILLISECONDS):
                async with ensemble.connect() as consumer, consumer.transaction() as tx:
                    taking = asyncio.create_task(tx.take(jobs(consumer), timeout=SOON))
                    await asyncio.sleep(millisecond / 1000)
                    await act(producer)
                    assert await taking is not None, f"put after {millisecond} ms, it was not noticed"

    run_virtual(main, limit=float("inf"))


def test_a_consumer_takes_from_a_queue_resumed_while_it_learns_of_the_pause() -> None:
    async def main() -> None:
        ensemble = cluster()
        async with ensemble.connect() as operator:
            queue = jobs(operator)
            for millisecond in range(MILLISECONDS):
                await queue.put(b"it")
                await queue.configure(zq.QueueConfig(paused=True))
                async with ensemble.connect() as consumer, consumer.transaction() as tx:
                    taking = asyncio.create_task(tx.take(jobs(consumer), timeout=SOON))
                    await asyncio.sleep(millisecond / 1000)
                    await queue.configure(zq.QueueConfig(paused=False))
                    assert await taking is not None, f"resumed after {millisecond} ms, it was not noticed"

    run_virtual(main, limit=float("inf"))


def test_a_policy_chosen_while_the_queue_is_opened_is_stored() -> None:
    policy = zq.ConsumeTimes(7)

    async def main() -> None:
        for millisecond in range(50):
            ensemble = cluster()
            async with ensemble.connect() as session, ensemble.connect() as other:
                await jobs(other).put(b"it")
                opening = asyncio.create_task(jobs(session).put(b"it"))
                await asyncio.sleep(millisecond / 1000)
                await session.queue("jobs", policy=policy).put(b"it")
                await opening
                with pytest.raises(ConfigConflictError):
                    await other.queue("jobs", policy=zq.ConsumeOnce()).put(b"it")

    run_virtual(main, limit=float("inf"))


def curators(number: int) -> tuple[Create, str]:
    """An item of Curator, and its lock."""
    return Create(f"{ITEMS}/queue-", frame([b"it"]), sequential=True), f"{LOCKS}/queue-{number:010d}"


def of_a_group(number: int) -> tuple[Create, str]:
    """An item of a group, and its lock."""
    group = key_hash("g")
    return (
        Create(f"/zms/jobs/items/item-g{group}-i{number}-", b"it", sequential=True),
        f"/zms/jobs/locks/lock-g{group}",
    )


@pytest.mark.parametrize("moment", range(1, 17))
@pytest.mark.parametrize(("queue", "item_of"), [(of_curator, curators), (jobs, of_a_group)], ids=["curator", "group"])
def test_a_lock_removed_as_a_consumer_learns_of_it_does_not_hide_the_message(
    queue: Callable[[zq.QueueSession], zq.Queue[bytes]], item_of: Callable[[int], tuple[Create, str]], moment: int
) -> None:
    """The faster consumer releases the lock without a commit, because it has died or failed."""

    async def main() -> None:
        ensemble = cluster()
        async with ensemble.connect() as peer:
            send = core_of(peer).zookeeper.multi
            await (jobs(peer).put(b"before", group="g") if queue is jobs else queue(peer).put(b"before"))
            async with peer.transaction() as tx:
                assert await tx.take(queue(peer), timeout=1) is not None
            async with ensemble.connect() as consumer:
                for held in range(1, 20):
                    async with consumer.transaction() as tx:
                        taking = asyncio.create_task(tx.take(queue(consumer), timeout=SOON))
                        await asyncio.sleep(1)
                        item, lock = item_of(held)
                        _ = send([item])
                        await asyncio.sleep(moment / 1000)
                        locked = send([Create(lock, LockRecord("another", "peer").encode(), ephemeral=True)])
                        await asyncio.sleep(held / 1000)
                        try:
                            await locked
                        except MultiError:
                            pass  # unless our consumer was quicker
                        else:
                            await send([Delete(lock)])
                        assert await taking is not None, (
                            f"the lock was held for {held} ms, and its removal was not noticed"
                        )

    run_virtual(main, limit=float("inf"))


@pytest.mark.parametrize("seed", range(10))
def test_consumers_that_remove_past_hours_concurrently_do_not_fail_and_keep_the_number_of_messages_put(
    seed: int,
) -> None:
    async def main() -> None:
        ensemble = cluster(seed)
        async with ensemble.connect() as producer:
            for hour in range(1, 6):
                await jobs(producer).put(b"later", delay=hour * HOUR)
            sessions = [ensemble.connect() for _ in range(3)]
            async with sessions[0] as first, sessions[1] as second, sessions[2] as newcomer:

                async def consume(session: zq.QueueSession) -> None:
                    async with jobs(session).consume() as deliveries:
                        async for _ in deliveries:
                            pass

                async def read_figures() -> None:
                    while True:
                        figures.append((await jobs(producer).stats()).put)
                        await asyncio.sleep(600 * random.random())

                figures, random = [5], Random(seed)
                consuming = [asyncio.create_task(consume(first)), asyncio.create_task(consume(second))]
                consuming.append(asyncio.create_task(read_figures()))
                await asyncio.sleep(10 * HOUR)
                consuming.append(asyncio.create_task(consume(newcomer)))
                await asyncio.sleep(SOON)
                await jobs(producer).put(b"it")
                await asyncio.sleep(SOON)
                assert await jobs(producer).size() == 0
                assert sorted(figures) == figures
                assert (await jobs(producer).stats()).put == 6
                for task in consuming:
                    assert not task.done(), task.exception()
                    task.cancel()
                await asyncio.wait(consuming)

    run_virtual(main, limit=float("inf"))


def test_figures_read_while_a_past_hour_is_removed_count_its_messages_once() -> None:
    async def main() -> None:
        ensemble = cluster()
        async with ensemble.connect() as reader, ensemble.connect() as cleaner:
            for after in range(MILLISECONDS):
                await jobs(reader).put(b"later", delay=HOUR)
                await asyncio.sleep(2 * HOUR)
                async with reader.transaction() as tx:
                    await tx.take(jobs(reader))
                await asyncio.sleep(2 * HOUR)

                cleaning = asyncio.create_task(cleaner.admin.clean("jobs"))
                await asyncio.sleep(after / 1000)
                assert (await jobs(reader).stats()).put == after + 1, f"read after {after} ms"
                await cleaning
                assert (await jobs(reader).stats()).put == after + 1

    run_virtual(main, limit=float("inf"))


def test_candidates_of_a_refused_claim_are_claimed_without_the_locked_one() -> None:
    """And the refused locks do not count among those that the session holds."""

    async def main() -> None:
        async with simulated() as servers, servers.connect() as session:
            jobs = session.queue("jobs")
            for queue in (jobs, session.queue("other")):
                await queue.configure(zq.QueueConfig(bundle=1))
            await session.queue("other").put_many([b"%d" % number for number in range(4)])
            zookeeper = await servers.client()
            names = sorted(await zookeeper.children("/zms/other/items"), key=lambda name: name[-10:])
            items = [await zookeeper.read(f"/zms/other/items/{name}") for name in names]
            locked = core_of(session).queue_state("jobs").paths.lock(id_at(f"items/{names[0]}"))

            async def take() -> list[bytes]:
                async with session.transaction() as tx:
                    return [message.body for message in await tx.take_many(jobs, 4, timeout=60)]

            core = core_of(session)
            taking = asyncio.create_task(take())
            await asyncio.sleep(1)  # it waits for an event
            used = core._budgets.of(core.zookeeper.generation).used
            creates = [Create(f"/zms/jobs/items/{name}", item.data) for name, item in zip(names, items, strict=True)]
            await zookeeper.multi([*creates, Create(locked, b"", ephemeral=True)])
            async with asyncio.timeout(5):
                taken = await taking
                while len(taken) < 3:
                    taken += await take()
            assert sorted(taken) == [b"1", b"2", b"3"]
            assert core._budgets.of(core.zookeeper.generation).used == used
            await zookeeper.close()

    run_virtual(main)
