"""Queues in another program's layout with our features: transactions, retries, dead letters, unsupported options."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame
from aiozkqueue.errors import ConfigConflictError, NotFoundError, UnknownMoveError
from aiozkqueue.operations.cleaning import clean_queue
from aiozkqueue.session.internals import handle_of, state_of

from .test_kazoo import awaited, drained

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)

CORRUPT = {
    "another version": bytes.fromhex("0001000201000000017802"),
    "an unknown opcode": bytes.fromhex("0001000107"),
    "a negative length": bytes.fromhex("0001000101ffffffff02"),
    "a length beyond the end": bytes.fromhex("00010001010000ffff7802"),
    "no end": bytes.fromhex("00010001010000000178"),
    "nothing": b"",
}


def locked(session: zq.QueueSession, path: str) -> zq.CuratorQueue[bytes]:
    return session.curator_queue(path, lock_path=f"{path}-locks")


async def test_a_message_moves_from_a_curator_queue_to_a_native_and_a_kazoo_one_in_one_commit(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    source, native = locked(session, f"{path}-1"), session.queue("native")
    target = session.kazoo_queue(f"{path}-2")
    await source.put(b"moves")
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(source, timeout=30)
        assert message is not None
        tx.put(native, message.body)
        tx.put(target, message.body, priority=7)
        await tx.rollback(delay=0)
    assert (await source.size(), await native.size(), await target.size()) == (1, 0, 0)
    async with session.transaction() as tx:
        message = await tx.take(source, timeout=30)
        assert message is not None
        tx.put(native, message.body)
        tx.put(target, message.body, priority=7)
    assert (await source.size(), await native.size(), await target.size()) == (0, 1, 1)
    assert await server_view.children(f"{path}-1-locks") == []
    assert await drained(session, target) == await drained(session, native) == [b"moves"]


async def test_several_messages_in_one_item_are_committed_one_by_one(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    queue = locked(session, path)
    await queue.put_multi([b"one", b"two", b"three"])
    async with session.transaction() as tx:
        assert (await tx.take(queue, timeout=30)) is not None
    names = await server_view.children(path)
    assert [await server_view.get(f"{path}/{name}") for name in names] == [frame([b"two"]), frame([b"three"])]
    async with session.transaction() as tx:
        message = await tx.take(queue, timeout=30)
        assert message is not None
        tx.reject(message, "not this one")
    assert await drained(session, queue) == [b"three"]
    (dead,) = await queue.dead_letters.peek()
    assert (dead.body, dead.reason) == (b"two", "not this one")


@pytest.mark.parametrize("what", CORRUPT)
async def test_a_corrupt_item_becomes_a_dead_letter_and_stops_no_consumer(
    session: zq.QueueSession, path: str, server_view: Observer, what: str
) -> None:
    queue = locked(session, path)
    await queue.put(b"before")
    await server_view.create(f"{path}/queue-0000000007", CORRUPT[what])
    await server_view.create(f"{path}/not-an-item", b"of somebody else")
    await queue.put(b"behind")
    await server_view.create(f"{path}/queue-9000000000", frame([]))  # an item without messages
    assert sorted(await drained(session, queue)) == [b"before", b"behind"]
    async with asyncio.timeout(60):
        while await server_view.children(path) != ["not-an-item"]:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
    (dead,) = await queue.dead_letters.peek()
    assert dead.body == CORRUPT[what]
    assert dead.reason.startswith("the stored bytes do not decode: ")
    assert await queue.dead_letters.redrive() == 1
    (name,) = [name for name in await server_view.children(path) if name.startswith("queue-")]
    assert await server_view.get(f"{path}/{name}") == CORRUPT[what]


async def test_a_failed_message_keeps_its_place_and_priority_and_is_counted(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    queue = session.kazoo_queue(path, policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0.3)))
    await queue.put(b"poison", priority=5)
    await queue.put(b"fine", priority=500)
    (name, *_) = await server_view.children(f"{path}/entries")
    attempts, fine = [], 0
    async with queue.consume() as deliveries:
        async for delivery in deliveries:
            async with delivery:
                if delivery.body == b"poison":
                    attempts.append((delivery.id, delivery.attempt))
                    await delivery.rollback()
                else:
                    fine += 1
            if (len(attempts), fine) == (2, 1):
                deliveries.stop()
    assert attempts == [(name, 1), (name, 2)]
    (dead,) = await queue.dead_letters.peek()
    assert (dead.body, dead.attempts) == (b"poison", 2)
    assert "2 of 2" in dead.reason
    assert await queue.dead_letters.redrive() == 1
    assert [entry[:9] for entry in await server_view.children(f"{path}/entries")] == ["entry-005"]


async def test_a_retry_is_held_by_an_ephemeral_lock_that_ends_with_the_session(
    session: zq.QueueSession, open_session: Opener, path: str, server_view: Observer
) -> None:
    owner = await open_session()
    queue = locked(owner, path)
    await queue.put(b"fails")
    async with owner.transaction(autocommit=False) as tx:
        assert await tx.take(queue, timeout=30) is not None
        await tx.rollback(delay=3600)
    assert len(await server_view.ephemerals(f"{path}-locks")) == 1
    assert await drained(session, locked(session, path)) == []
    await owner._runtime.close()
    assert await awaited(session, locked(session, path), 1) == [b"fails"]


async def test_an_expired_session_loses_its_retry_locks_and_continues(
    session: zq.QueueSession, path: str, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    queue = locked(session, path)
    await queue.put(b"fails")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(queue, timeout=30) is not None
        await tx.rollback(delay=1.5)
    states: list[zq.ConnectionState] = []
    forget = session.on_connection_state(states.append)
    await expire(session)
    assert await awaited(session, queue, 1) == [b"fails"]
    await asyncio.sleep(1.6)  # the retry of the ended session has no effect
    await queue.put(b"next")
    assert await awaited(session, queue, 1) == [b"next"]
    forget()
    assert states[0] is zq.ConnectionState.SUSPENDED
    assert states[-1] is zq.ConnectionState.RECONNECTED
    assert zq.ConnectionState.LOST in states


async def test_a_put_creates_a_vanished_queue_again(session: zq.QueueSession, path: str, server_view: Observer) -> None:
    queue = locked(session, path)
    await queue.put(b"1")
    waiting = asyncio.create_task(awaited(session, queue, 2))
    async with asyncio.timeout(60):
        while await server_view.children(path):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
    await server_view.delete(path)
    await server_view.delete(f"{path}-locks")
    await queue.put(b"2")
    assert await waiting == [b"1", b"2"]


async def test_an_item_locked_by_another_program_is_not_touched(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    queue = locked(session, path)
    await queue.put_many([b"held", b"free"])
    held = (await server_view.children(path))[0]
    await server_view.create(f"{path}-locks/{held}", b"10.0.0.1", ephemeral=True)
    assert await drained(session, queue) == [b"free"]
    assert (await queue.size(), await queue.claimed(), await queue.purge()) == (1, 1, 0)
    waiting = asyncio.create_task(awaited(session, queue, 1))
    await asyncio.sleep(0.3)
    await server_view.delete(f"{path}-locks/{held}")  # its holder failed or died
    assert await waiting == [b"held"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("headers", {"a": "b"}),
        ("group", "g"),
        ("ttl", 5),
        ("unique", True),
        ("unique", 0),
        ("priority", 3),
        ("priority", False),
        ("delay", 1),
    ],
)
async def test_values_that_do_not_fit_the_layout_are_refused_before_anything_is_sent(
    session: zq.QueueSession, path: str, option: str, value: object
) -> None:
    queue = locked(session, path)
    with pytest.raises(zq.InvalidOptionError, match=f"does not support {option}="):
        await queue.put(b"x", **{option: value})  # type: ignore[arg-type]
    assert await queue.size() == 0


async def test_a_message_shows_the_priority_or_the_id_that_its_item_has(session: zq.QueueSession, path: str) -> None:
    ids = session.curator_queue(f"{path}/ids", lock_path=f"{path}/id-locks", kind="id")
    urgent = session.curator_queue(f"{path}/priorities", lock_path=f"{path}/priority-locks", kind="priority")
    jobs = session.kazoo_queue(f"{path}/jobs")
    await ids.put(b"x", key="a/b")
    await urgent.put_multi([b"x", b"y"], priority=-(2**31))
    await jobs.put(b"x", priority=7)
    await jobs.put(b"y")

    def shown(messages: Sequence[zq.Message[bytes]]) -> list[tuple[str | None, int]]:
        return [(message.key, message.priority) for message in messages]

    expected: list[tuple[zq.Queue[bytes], list[tuple[str | None, int]]]] = [
        (ids, [("a_b", 0)]),
        (urgent, [(None, -(2**31))] * 2),
        (jobs, [(None, 7), (None, 100)]),
    ]
    for queue, wanted in expected:
        assert shown(await queue.peek()) == wanted
        async with session.transaction() as tx:
            messages = await tx.take_many(queue, 10, timeout=30)
            assert shown(messages) == wanted
            for message in messages:
                tx.reject(message, "no")
        assert await queue.dead_letters.size() == len(wanted)
        assert await queue.dead_letters.redrive() == len(wanted)
        assert sorted(shown(await queue.peek()), key=str) == sorted(wanted, key=str)


async def test_settings_and_calls_that_foreign_queues_do_not_support_are_refused(
    session: zq.QueueSession, path: str
) -> None:
    queue = locked(session, path)
    with pytest.raises(zq.InvalidOptionError, match="shards=3"):
        await queue.configure(zq.QueueConfig(shards=3))
    with pytest.raises(zq.InvalidOptionError, match="leases are not supported"):
        queue.leases  # noqa: B018 - the access raises
    with pytest.raises(zq.InvalidOptionError, match="no tags"):
        async with session.transaction() as tx:
            await tx.take(queue, filters=zq.Filter("kind", "eq", "x"))
    with pytest.raises(ConfigConflictError, match=r"used .* with .*, not with .*locking=False"):
        session.kazoo_queue(path, locking=False)
    for wrong in ("orders", "/", "/a//b", "/a/"):
        with pytest.raises(zq.InvalidOptionError, match="absolute path"):
            session.curator_queue(wrong)
    with pytest.raises(zq.InvalidOptionError, match="locks nothing"):
        session.curator_queue(path, lock_path="/locks", kind="simple")
    with pytest.raises(zq.InvalidOptionError, match="give one of"):
        session.curator_queue(path, kind="barrier")  # type: ignore[call-overload]


@pytest.mark.parametrize("below", ["{shard}-locks", "{path}/locks", "{path}/locks/{name}", "{path}", "{shard}"])
async def test_lock_paths_that_a_sharder_would_take_for_queues_are_refused_before_anything_is_created(
    session: zq.QueueSession, path: str, server_view: Observer, below: str
) -> None:
    def locks(shard: str) -> str:
        return below.format(shard=shard, path=path, name=shard.rpartition("/")[2])

    with pytest.raises(zq.InvalidOptionError, match=r"would treat|uses every child"):
        session.curator_shards(path, lock_path=locks)
    shard = f"{path}/queue-{uuid4()}"
    with pytest.raises(zq.InvalidOptionError, match=r"lock_path=.*(a path elsewhere|elsewhere)"):
        session.curator_queue(shard, lock_path=locks(shard))
    assert not await server_view.exists(path)


async def test_a_lock_path_among_the_items_is_refused_and_a_lock_folder_below_a_queue_is_not(
    session: zq.QueueSession, path: str
) -> None:
    for locks in (path, f"{path}/queue-locks"):
        with pytest.raises(zq.InvalidOptionError, match="would treat the locks there as items"):
            session.curator_queue(path, lock_path=locks)
    queue = session.curator_queue(path, lock_path=f"{path}/locks")
    await queue.put(b"taken")
    assert await awaited(session, queue, 1) == [b"taken"]
    shards = session.curator_shards(f"{path}-shards", lock_path=lambda shard: f"{shard}/locks")
    await shards.put(b"taken")
    (shard,) = await shards.queues()
    assert await awaited(session, shard, 1) == [b"taken"]


@pytest.mark.parametrize(
    ("items", "locks"),
    [("{path}", "{path}/locks"), ("{path}", "{path}/of/locks"), ("{path}/items", "{path}")],
    ids=["locks below the items", "locks further below", "items below the locks"],
)
async def test_a_folder_of_locks_below_a_queue_counts_as_no_message(
    session: zq.QueueSession, other: zq.QueueSession, path: str, server_view: Observer, items: str, locks: str
) -> None:
    items, locks = items.format(path=path), locks.format(path=path)
    await server_view.create(f"{items}/queue-0000000000", frame([b"first"]))  # a Java producer creates no lock path
    unopened = other.curator_queue(items, lock_path=locks)
    assert await unopened.size() == (await unopened.stats()).size == 1
    queue = session.curator_queue(items, lock_path=locks)
    await queue.configure(zq.QueueConfig(max_size=2))
    await queue.put(b"second", timeout=10)
    async with session.transaction() as tx:
        assert await tx.take(queue, timeout=10) is not None
        stats = await queue.stats()
        assert (stats.size, stats.waiting, stats.in_flight, await queue.claimed()) == (2, 1, 1, 1)
    assert await awaited(session, queue, 1) == [b"second"]
    stats = await queue.stats()
    assert (await queue.size(), stats.size, stats.waiting, stats.in_flight, stats.removed) == (0, 0, 0, 0, stats.put)
    assert stats.oldest is None


async def test_puts_skip_item_names_that_are_already_taken(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    """If a queue was copied to another ensemble with the names of its items, its counter is lower than these."""
    copied = range(30, 30 + 3 * 64)
    for number in copied:
        await server_view.create(f"{path}/queue-{number:010d}", frame([b"copied"]))
    queue = locked(session, path)
    await queue.put_many([b"put"] * len(copied))
    assert await server_view.children(path) == [f"queue-{30 + number:010d}" for number in range(2 * len(copied))]
    assert sorted(await drained(session, queue)) == [b"copied"] * len(copied) + [b"put"] * len(copied)


async def test_clean_up_removes_only_the_attempts_of_messages_that_a_peer_consumed(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    queue = session.kazoo_queue(path, policy=zq.ConsumeTimes(9, backoff=zq.Fixed(0)))
    await queue.put_many([b"consumed by a peer", b"waits"])
    async with session.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(queue, 2, timeout=30)) == 2
        await tx.rollback()
    gone, waits = await server_view.children(f"{path}/entries")
    await server_view.delete(f"{path}/entries/{gone}")
    cleaned = await clean_queue(handle_of(queue), late=0)
    assert cleaned.attempts == cleaned.total == 1
    metas = await server_view.children(f"{state_of(queue).paths.base}/meta")
    assert metas == [f"meta-{waits}"]
    (message,) = await queue.peek()
    assert (message.body, message.attempt) == (b"waits", 1)


@pytest.mark.parametrize("key", ["caf\udce9", "a\x00b", "a\x01b", "\uf8ff"])
async def test_an_id_that_no_path_can_contain_is_refused_and_the_session_goes_on(
    session: zq.QueueSession, path: str, key: str
) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks", kind="id")
    with pytest.raises(zq.InvalidOptionError, match="characters that ZooKeeper accepts"):
        await queue.put(b"x", key=key)
    await queue.put(b"x", key="café")
    assert await queue.size() == 1


@pytest.mark.parametrize("wrong", ["/app/..", "/app/./x", "/app/caf\udce9", "/app/a\x00b"])
async def test_a_path_that_zookeeper_refuses_is_refused_at_once(session: zq.QueueSession, wrong: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match="path"):
        session.curator_queue(wrong)
    with pytest.raises(zq.InvalidOptionError, match="path"):
        session.kazoo_queue(wrong)
    with pytest.raises(zq.InvalidOptionError, match="path"):
        session.curator_queue("/app/q", lock_path=wrong)


@pytest.mark.parametrize("name", ["caf\udce9", "a\x00b"])
async def test_a_name_that_no_znode_can_have_is_not_found(session: zq.QueueSession, name: str) -> None:
    await session.queue("jobs").put(b"1")
    with pytest.raises(NotFoundError):
        await session.queue("jobs").admin.release_ledger(name)
    with pytest.raises(NotFoundError):
        await session.queue("jobs").admin.discard_unfinished(name)
    with pytest.raises(UnknownMoveError):
        await session.admin.moves.status(name)


@pytest.mark.parametrize("of", ["kazoo", "curator"])
async def test_a_retry_with_headers_leaves_the_item_as_the_other_program_has_stored_it(
    session: zq.QueueSession, path: str, server_view: Observer, of: str
) -> None:
    queue = session.kazoo_queue(path) if of == "kazoo" else locked(session, path)
    await queue.configure(zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
    await queue.put(b"job")
    items = f"{path}/entries" if of == "kazoo" else path
    (name,) = await server_view.children(items)
    stored = await server_view.get(f"{items}/{name}")
    async with queue.consume() as deliveries:
        delivery = await anext(deliveries)
        with pytest.raises(zq.InvalidOptionError, match="does not store headers"):
            async with delivery:
                raise zq.Retry(delay=0, headers={"step": "2"})
        assert await server_view.get(f"{items}/{name}") == stored
        delivery = await anext(deliveries)
        assert (delivery.body, delivery.attempt) == (b"job", 2)
        await delivery.commit()


@pytest.mark.parametrize("program", ["curator", "curator's simple queue", "kazoo", "kazoo without locks"])
async def test_a_queue_is_not_created_among_the_items_of_another_programs_queue(
    session: zq.QueueSession, queue_root: str, server_view: Observer, program: str
) -> None:
    path = f"{queue_root}/jobs"
    theirs = (
        session.curator_queue(path, kind="simple" if "simple" in program else "queue")
        if "curator" in program
        else session.kazoo_queue(path, locking=program == "kazoo")
    )
    await theirs.put(b"theirs")
    before = await server_view.children(path)
    jobs = session.queue("jobs")
    refusal = f"queue 'jobs': {path} is a queue of Curator or kazoo.*choose another root or name"
    with pytest.raises(zq.InvalidOptionError, match=refusal):
        await jobs.put(b"ours")
    with pytest.raises(zq.InvalidOptionError, match=refusal):
        async with session.transaction() as tx:
            await tx.take(jobs, timeout=0)
    with pytest.raises(zq.InvalidOptionError, match=refusal):
        await jobs.configure(zq.QueueConfig(shards=2))
    assert await server_view.children(path) == before
    async with session.transaction() as tx:
        message = await tx.take(theirs, timeout=30)
        assert message is not None
        assert message.body == b"theirs"


async def test_a_commit_leaves_a_message_that_was_put_under_the_name_of_one_that_a_peer_took(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    """The server removes the empty container of Curator's simple queue, and the next one numbers its items from 0."""
    queue = session.curator_queue(path, kind="simple")
    await queue.put(b"first")
    (name,) = await server_view.children(path)
    with pytest.raises(zq.ClaimLostError):
        async with session.transaction() as tx:
            assert await tx.take(queue, timeout=30) is not None
            tx.put("results", b"result")
            await server_view.delete(f"{path}/{name}")
            await server_view.delete(path)
            await server_view.create(path)
            await server_view.create(f"{path}/{name}", b"second")
    assert await session.queue("results").size() == 0
    async with session.transaction() as tx:
        message = await tx.take(queue, timeout=30)
        assert message is not None
        assert message.body == b"second"
