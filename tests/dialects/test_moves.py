"""Moves between our queues and those of Curator and kazoo, while the real clients put, hold and consume."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame
from aiozkqueue.errors import UnknownMoveError
from aiozkqueue.operations import mover
from aiozkqueue.operations import transfer as transferring
from aiozkqueue.session.internals import core_of

from .test_kazoo import drained, taken, wait_for_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.admin import MoveStatus
    from aiozkqueue.dialects import CuratorKind
    from tests.observer import Observer

    from .conftest import Die, StartCurator
    from .peers import Curator, Kazoo

pytestmark = pytest.mark.timeout(180)

BODIES = [b"plain", b"", b"\x00\xff\x01", b"\x00\x01\x00\x01", b"\xf5zq1", b"a" * 2000]


def locked(session: zq.QueueSession, path: str, kind: CuratorKind = "queue") -> zq.CuratorQueue[bytes]:
    return session.curator_queue(path, lock_path=f"{path}-locks", kind=kind)


async def ended(session: zq.QueueSession, reference: str) -> MoveStatus:
    async with asyncio.timeout(60):
        while (status := await session.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
    return status


async def moved(session: zq.QueueSession, source: zq.Queue[bytes], target: zq.Queue[bytes]) -> int:
    """Move all messages, and return their number."""
    status = await ended(session, await session.admin.moves.start(source, target))
    assert (status.state, status.error) == ("done", None)
    assert (status.source, status.target) == (source.name, target.name)
    return status.moved


async def emptied(session: zq.QueueSession, queue: zq.Queue[bytes]) -> list[bytes]:
    """Take all waiting messages, many at a time."""
    bodies: list[bytes] = []
    while await queue.size():
        async with session.transaction() as tx:
            bodies += [message.body for message in await tx.take_many(queue, 1000, timeout=30)]
    return bodies


# -- from other programs' queues


@pytest.mark.parametrize("locking", [True, False])
async def test_messages_of_kazoo_are_moved_to_a_native_queue_with_priority_and_time(
    session: zq.QueueSession,
    kazoo: Kazoo,
    path: str,
    server_view: Observer,
    locking: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    path = f"{path}-locking" if locking else path
    source, target = session.kazoo_queue(path, locking=locking), session.queue("target")
    for body in BODIES:
        await kazoo.ask("put", path, body.hex(), 100)
    await kazoo.ask("put", path, b"urgent".hex(), 7)
    await kazoo.ask("put", path, b"late".hex(), 200)
    times = {message.body: message.enqueued_at for message in await source.peek(100)}
    assert await moved(session, source, target) == len(BODIES) + 2
    assert await source.size() == 0
    assert await server_view.children(f"{path}/taken" if locking else path) == []
    found = await taken(session, target, None)
    assert [message.body for message in found] == [b"urgent", *BODIES, b"late"]
    assert [message.priority for message in found] == [-93, *[0] * len(BODIES), 100]
    assert {message.body: message.enqueued_at for message in found} == times
    assert len({message.id for message in found}) == len(found)


async def test_a_move_keeps_priorities_times_and_ids_of_curator_queues(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    due = due.replace(microsecond=due.microsecond // 1000 * 1000)
    milliseconds = round(due.timestamp() * 1000)
    options = {"priority": -5, "delay": milliseconds, "id": "order-7"}
    found: dict[str, zq.Message[bytes]] = {}
    for kind, option in options.items():
        at = f"{path}-{kind}"
        await curator.ask("open", kind, kind, at, f"{at}-locks", 0)
        await curator.ask("put", kind, kind.encode().hex(), option)
        source = session.curator_queue(at, lock_path=f"{at}-locks", kind=kind)  # type: ignore[call-overload]
        target = session.queue(f"target-{kind}")
        assert await moved(session, source, target) == 1
        (found[kind],) = await target.peek()
    assert [found[kind].body for kind in options] == [b"priority", b"delay", b"id"]
    assert (found["priority"].priority, found["delay"].due, found["id"].key) == (-5, due, "order-7")


async def test_unlocked_curator_and_kazoo_queues_are_moved(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    for body in (b"one", b"two"):
        await curator.ask("offer", path, body.hex())
    source, target = session.curator_queue(path, kind="simple"), session.kazoo_queue(f"{path}-k", locking=False)
    assert await moved(session, source, target) == 2
    assert await curator.ask("poll", path, 0) == "none"
    assert await drained(session, target) == [b"one", b"two"]


@pytest.mark.parametrize("compressed", [False, True])
async def test_each_message_of_an_item_is_moved_to_its_own_item_in_order(
    session: zq.QueueSession,
    path: str,
    server_view: Observer,
    compressed: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    source = session.curator_queue(path, lock_path=f"{path}-locks", compressed=compressed)
    await source.put(b"before")
    await source.put_multi([b"one", b"two", b"three"])
    await source.put_multi([])
    await source.put(b"behind")
    target = session.curator_queue(f"{path}-2", kind="priority")
    assert await moved(session, source, target) == 5
    assert await server_view.children(path) == await server_view.children(f"{path}-locks") == []
    assert len(await server_view.children(f"{path}-2")) == 5
    assert await drained(session, target) == [b"before", b"one", b"two", b"three", b"behind"]


async def test_an_item_too_large_for_one_request_is_moved_in_parts_and_in_order(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    source, target = locked(session, path), session.queue("target")
    small, large = [b"%d" % number for number in range(4000)], [b"%d" % number * 100_000 for number in range(9)]
    await source.put_multi(small)
    await source.put_multi(large)
    await source.put(b"behind")
    assert await moved(session, source, target) == 4010
    assert await server_view.children(path) == []
    assert await emptied(session, target) == [*small, *large, b"behind"]


async def test_a_bounded_target_takes_the_messages_of_one_item_as_it_has_capacity(
    session: zq.QueueSession, other: zq.QueueSession, path: str
) -> None:
    source, target = locked(session, path), session.queue("narrow")
    await target.configure(zq.QueueConfig(max_size=2))
    await source.put_multi([b"%d" % number for number in range(6)])
    reference = await session.admin.moves.start(source, target)
    async with asyncio.timeout(60):
        got = [message.body for message in await _awaited(other, "narrow", 6)]
    assert got == [b"%d" % number for number in range(6)]
    assert (await ended(session, reference)).moved == 6
    assert await source.size() == 0


async def _awaited(session: zq.QueueSession, queue: str, count: int) -> list[zq.Message[bytes]]:
    return await taken(session, session.queue(queue), count)


# -- to other programs' queues


async def test_kazoo_gets_moved_messages_most_urgent_first(session: zq.QueueSession, kazoo: Kazoo, path: str) -> None:
    path = f"{path}-locking"
    source = session.queue("source")
    for body in BODIES:
        await source.put(body)
    await source.put(b"urgent", priority=-1)
    await source.put(b"late", priority=127)
    await kazoo.ask("put", path, b"in between".hex(), 101)
    assert await moved(session, source, session.kazoo_queue(path)) == len(BODIES) + 2
    got = await kazoo.ask("drain", path, 1)
    assert [bytes.fromhex(body) for body in got] == [b"urgent", *BODIES, b"in between", b"late"]


async def test_curator_consumers_get_moved_messages(session: zq.QueueSession, curator: Curator, path: str) -> None:
    source, soon = session.queue("source"), datetime.now(UTC) + timedelta(seconds=2)
    kinds: dict[CuratorKind, zq.PutOptions] = {
        "queue": {},
        "priority": {"priority": 3},
        "delay": {"at": soon},
        "id": {"key": "a"},
    }
    for kind, options in kinds.items():
        await source.put(kind.encode(), **options)
        at = f"{path}-{kind}"
        assert await moved(session, source, session.curator_queue(at, lock_path=f"{at}-locks", kind=kind)) == 1
        await curator.ask("consume", kind, kind, at, f"{at}-locks", "show", 1)
        assert await curator.shown(kind) == [kind.encode()]
    assert datetime.now(UTC) > soon - timedelta(milliseconds=1)


async def test_a_move_between_queues_of_one_kind_keeps_names_except_the_number(
    session: zq.QueueSession, path: str
) -> None:
    pairs: list[tuple[zq.Queue[bytes], zq.Queue[bytes], zq.PutOptions]] = [
        (session.kazoo_queue(f"{path}-1", locking=False), session.kazoo_queue(f"{path}-2"), {"priority": 999}),
        (locked(session, f"{path}-3", "priority"), locked(session, f"{path}-4", "priority"), {"priority": 2**31 - 1}),
        (locked(session, f"{path}-5", "delay"), locked(session, f"{path}-6", "delay"), {"delay": 3600}),
        (locked(session, f"{path}-7", "id"), locked(session, f"{path}-8", "id"), {"key": "a/b"}),
    ]
    for source, target, options in pairs:
        await source.put(b"x", **options)
        (before,) = await source.peek()
        assert await moved(session, source, target) == 1
        (after,) = await target.peek()
        assert (after.body, after.id[:-10]) == (b"x", before.id[:-10])


async def test_a_move_from_curator_to_kazoo_keeps_the_offset_from_the_default_priority(
    session: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    source, target = locked(session, path, "priority"), session.kazoo_queue(f"{path}-locking")
    await source.put(b"usual")
    await source.put(b"urgent", priority=-100)
    await source.put_multi([b"late", b"later"], priority=899)
    assert await moved(session, source, target) == 4
    names = [message.id[:9] for message in await target.peek()]
    assert names == ["entry-000", "entry-100", "entry-999", "entry-999"]
    assert await kazoo.ask("drain", f"{path}-locking", 1) == [
        body.hex() for body in (b"urgent", b"usual", b"late", b"later")
    ]


# -- messages held by other programs


async def test_a_message_held_by_curator_stays_until_it_is_handled_and_the_rest_is_moved(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    source, target = locked(session, path), session.queue("target")
    await source.put(b"held")
    await curator.ask("consume", "c", "queue", path, f"{path}-locks", "hold", 1)
    assert await curator.shown("c") == [b"held"]
    await source.put(b"free")
    (held, free) = await server_view.children(path)
    reference = await session.admin.moves.start(source, target)
    await server_view.gone(f"{path}/{free}")
    await wait_for_size(target, 1)
    assert await server_view.exists(f"{path}/{held}")
    assert (await session.admin.moves.status(reference)).state == "running"
    await curator.ask("go", "c")
    assert (await ended(session, reference)).moved == 1
    assert await drained(session, target) == [b"free"]
    assert await curator.shown_until_now("c") == []


async def test_messages_of_a_dead_curator_are_moved_when_its_session_ends(
    session: zq.QueueSession, start_curator: StartCurator, die: Die, path: str
) -> None:
    curator, source, target = await start_curator(), locked(session, path), session.queue("target")
    await source.put(b"held")
    await curator.ask("consume", "c", "queue", path, f"{path}-locks", "hold", 1)
    assert await curator.shown("c") == [b"held"]
    reference = await session.admin.moves.start(source, target)
    await session.queue("other").put(b"x")
    assert (await session.admin.moves.status(reference)).state == "running"
    await die(curator)
    assert (await ended(session, reference)).moved == 1
    assert await drained(session, target) == [b"held"]


async def test_a_message_held_by_kazoo_stays_until_its_release(
    session: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    path = f"{path}-locking"
    source, target = session.kazoo_queue(path), session.queue("target")
    await source.put(b"held")
    assert await kazoo.get(path) == b"held"
    await source.put(b"free")
    reference = await session.admin.moves.start(source, target)
    await wait_for_size(target, 1)
    assert (await session.admin.moves.status(reference)).state == "running"
    await kazoo.ask("release", path)
    assert (await ended(session, reference)).moved == 2
    assert await drained(session, target) == [b"free", b"held"]
    assert await kazoo.get(path, 0.1) is None


@pytest.mark.parametrize("beside", ["-locks", None])
async def test_each_of_a_thousand_messages_is_either_consumed_by_curator_or_moved_once(
    session: zq.QueueSession,
    other: zq.QueueSession,
    curator: Curator,
    path: str,
    server_view: Observer,
    beside: str | None,
) -> None:
    locks = beside and f"{path}{beside}"
    source, target = session.curator_queue(path, lock_path=locks), session.queue("target")
    bodies = {b"%d" % number for number in range(1000)}
    await source.put_many(sorted(bodies)[:700])
    for number in range(0, 300, 10):
        await source.put_multi(sorted(bodies)[700 + number : 710 + number])
    await curator.ask("consume", "c", "queue", path, locks or "-", "slow100", 4)  # 25 s, so the moves find messages
    references = [await session.admin.moves.start(source, target)]
    source_of_other = other.curator_queue(path, lock_path=locks)
    references.append(await other.admin.moves.start(source_of_other, "target"))
    statuses = [await ended(session, reference) for reference in references]
    assert [status.error for status in statuses] == [None, None]
    await server_view.until(lambda: not server_view._children(path), 60)
    in_target = await emptied(session, target)
    shown = await curator.shown_until_now("c")
    async with asyncio.timeout(60):  # without locks, Curator deletes an item before it handles its ten messages
        while len(shown) + len(in_target) < len(bodies):
            await asyncio.sleep(0.1)
            shown += await curator.shown_until_now("c")
    assert sorted([*shown, *in_target]) == sorted(bodies)
    assert sum(status.moved for status in statuses) == len(in_target) > 0
    assert len(shown) > 0


MOVER = """
import asyncio, sys
import aiozkqueue as zq

async def main() -> None:
    async with zq.connect(sys.argv[1], root=sys.argv[2], session_timeout=2) as session:
        source = session.curator_queue(sys.argv[3], lock_path=sys.argv[3] + "-locks")
        print(await session.admin.moves.start(source, "target"), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_move_from_a_queue_that_curator_consumes_is_finished(
    session: zq.QueueSession, curator: Curator, zookeeper: str, queue_root: str, path: str, server_view: Observer
) -> None:
    source, target = locked(session, path), session.queue("target")
    bodies = sorted(b"%d" % number for number in range(3000))
    await source.put_many(bodies[:1500])
    for number in range(1500, 3000, 100):
        await source.put_multi(bodies[number : number + 100])
    await curator.ask("consume", "c", "queue", path, f"{path}-locks", "slow5", 2)
    (first,) = await curator.shown("c")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MOVER, zookeeper, queue_root, path, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    reference = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    async with asyncio.timeout(60):
        while await target.size() == 0:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.005)
    process.kill()
    await process.wait()
    await server_view.gone(f"{queue_root}/.moves/{reference}/runner")
    if (await session.admin.moves.status(reference)).state == "running":  # the move may have ended before the signal
        assert await session.admin.moves.resume() == 1
    assert (await ended(session, reference)).state == "done"
    await wait_for_size(source, 0)
    shown = await curator.shown_until_now("c")
    assert sorted([first, *shown, *await emptied(session, target)]) == bodies


async def test_each_of_five_hundred_unlocked_messages_is_either_taken_by_kazoo_or_moved_once(
    session: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    source, target = session.kazoo_queue(path, locking=False), session.queue("target")
    bodies = sorted(b"%d" % number for number in range(500))
    await source.put_many(bodies)
    reference = await session.admin.moves.start(source, target)
    got: list[bytes] = []
    while (body := await kazoo.get(path)) is not None:
        got.append(body)
    assert (await ended(session, reference)).error is None
    assert sorted([*got, *await drained(session, target)]) == bodies


async def split(server_view: Observer, path: str, name: str, bodies: list[bytes]) -> None:
    """Split an item in a transaction, as a consumer does."""
    parts = {f"{path}/{name}-p{number:08d}": frame([body]) for number, body in enumerate(bodies)}
    await server_view.replace([f"{path}/{name}", f"{path}-locks/{name}"], parts)


async def test_an_item_split_after_the_start_of_a_move_is_moved_and_a_later_put_is_not(
    session: zq.QueueSession, other: zq.QueueSession, path: str, server_view: Observer
) -> None:
    source, target, theirs = locked(session, path), session.queue("target"), locked(other, path)
    await source.put_multi([b"one", b"two", b"three"])
    (name,) = await server_view.children(path)
    lock = f"{path}-locks/{name}"
    await server_view.create(lock, b"somebody", ephemeral=True)  # the move must wait
    await source.put(b"free")
    reference = await session.admin.moves.start(source, target)
    await wait_for_size(target, 1)
    await theirs.put_multi([b"later", b"still later"])
    await split(server_view, path, name, [b"one", b"two", b"three"])
    assert (await ended(session, reference)).moved == 4
    assert await drained(session, target) == [b"free", b"one", b"two", b"three"]
    assert await drained(session, source) == [b"later", b"still later"]


async def test_a_move_from_a_copied_queue_leaves_later_puts_with_lower_numbers(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    source, target = locked(session, path), session.queue("target")
    copied = "queue-0000000050"
    await server_view.create(f"{path}/{copied}", frame([b"one", b"two"]))
    await server_view.create(f"{path}-locks/{copied}", b"somebody", ephemeral=True)
    await source.put(b"free")
    reference = await session.admin.moves.start(source, target)
    await wait_for_size(target, 1)
    await source.put(b"later")
    await split(server_view, path, copied, [b"one", b"two"])
    assert (await ended(session, reference)).moved == 3
    assert await drained(session, target) == [b"free", b"one", b"two"]
    assert await drained(session, source) == [b"later"]


async def test_parts_of_items_put_after_a_counter_reset_are_not_moved(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    source, target = locked(session, path), session.queue("target")
    await source.put_many([b"one", b"two"])
    (name, _) = await server_view.children(path)
    await server_view.create(f"{path}-locks/{name}", b"somebody", ephemeral=True)
    reference = await session.admin.moves.start(source, target)
    await wait_for_size(target, 1)
    await server_view.delete_at_once(path)  # as if the item was consumed and the server removed the empty folder
    await server_view.create(f"{path}/{name}", frame([b"three"]))
    await server_view.create(f"{path}/{name}-p00000000", frame([b"four"]))
    await server_view.delete(f"{path}-locks/{name}")
    assert (await ended(session, reference)).moved == 1
    assert sorted(await drained(session, source)) == [b"four", b"three"]


# -- refused moves


@pytest.mark.parametrize(
    ("options", "has"),
    [
        ({"headers": {"a": "b", "c": "d"}}, r"has headers \(a, c\)"),
        ({"key": "k"}, "has a key"),
        ({"key": "k", "unique": True}, "has a unique key and a key"),
        ({"group": "g"}, "has a group"),
        ({"delay": 3600}, "has a delay, to 20"),
        ({"ttl": 60}, "has a lifetime"),
        ({"tags": {"color": "red"}}, "has tags"),
    ],
)
async def test_a_move_that_would_lose_message_options_is_refused_before_anything_is_sent(
    session: zq.QueueSession, path: str, server_view: Observer, queue_root: str, options: zq.PutOptions, has: str
) -> None:
    source = session.queue("source")
    await source.put(b"fits")
    message_id = await source.put(b"does not", **options)
    for target in (session.kazoo_queue(path), session.curator_queue(path + "-2")):
        with pytest.raises(zq.InvalidOptionError, match=has) as refused:
            await session.admin.moves.start(source, target)
        assert f"message {message_id} of queue 'source'" in str(refused.value)
        assert "take it and put its replacement in one transaction" in str(refused.value)
        assert not await server_view.exists(target.name)
    assert await source.size() == 2
    assert await server_view.children(f"{queue_root}/.moves") == []


async def test_a_message_too_large_for_the_target_is_refused_before_anything_is_sent(
    session: zq.QueueSession, path: str, server_view: Observer, queue_root: str
) -> None:
    size = core_of(session).max_message
    native, kazoo, curator = session.queue("native"), session.kazoo_queue(path), locked(session, f"{path}-2")
    await kazoo.put(b"x" * size)
    for target in (native, curator):
        with pytest.raises(
            zq.MessageTooLargeError, match=r"item entry-100-0000000000 .* put into queue .* takes \d+ bytes"
        ):
            await session.admin.moves.start(kazoo, target)
    await native.put(b"x" * size)
    with pytest.raises(zq.MessageTooLargeError, match="put a reference to it"):
        await session.admin.moves.start(native, curator)
    assert await kazoo.size() == await native.size() == 1
    assert await server_view.children(f"{queue_root}/.moves") == []


async def test_priorities_and_ids_that_the_target_cannot_have_are_refused(session: zq.QueueSession, path: str) -> None:
    urgent, kazoo, ids = session.queue("urgent"), session.kazoo_queue(path), locked(session, f"{path}-2", "id")
    await urgent.put(b"x", priority=-101)
    with pytest.raises(zq.InvalidOptionError, match="kazoo's LockingQueue takes an integer from 0"):
        await session.admin.moves.start(urgent, kazoo)
    with pytest.raises(zq.InvalidOptionError, match="DistributedIdQueue takes an id with each put"):
        await session.admin.moves.start(urgent, ids)
    await kazoo.put(b"x", priority=228)
    with pytest.raises(zq.InvalidOptionError, match=r"priority 228 .* priorities 0 to 227 can be moved"):
        await session.admin.moves.start(kazoo, "target")
    curator = locked(session, f"{path}-4", "priority")
    await curator.put(b"x", priority=128)
    with pytest.raises(zq.InvalidOptionError, match=r"priority 128 .* priorities -128 to 127 can be moved"):
        await session.admin.moves.start(curator, "target")
    await ids.put(b"x", key="a")
    with pytest.raises(zq.InvalidOptionError, match=r"item queue-.*has a key"):
        await session.admin.moves.start(ids, kazoo)
    ordered, prioritized = session.queue("ordered"), session.kazoo_queue(f"{path}-3")
    await ordered.configure(zq.QueueConfig(ordered=True))
    await prioritized.put(b"x", priority=101)
    with pytest.raises(zq.InvalidOptionError, match="queue 'ordered' is ordered"):
        await session.admin.moves.start(prioritized, ordered)


async def test_a_corrupt_item_is_refused_at_the_start_of_a_move_and_stays_if_found_later(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    source, target = locked(session, path), session.queue("target")
    await source.put_many([b"held", b"fine"])
    (held, _) = await server_view.children(path)
    await server_view.create(f"{path}-locks/{held}", b"somebody", ephemeral=True)
    reference = await session.admin.moves.start(source, target)
    await wait_for_size(target, 1)
    await server_view.set(f"{path}/{held}", b"no frame")
    await server_view.delete(f"{path}-locks/{held}")
    status = await ended(session, reference)
    assert (status.state, status.moved) == ("failed", 1)
    assert f"1 message left in {path}; one of them: item {held} of queue" in (status.error or "")
    assert await server_view.children(path) == [held]
    with pytest.raises(zq.PayloadError, match=rf"item {held} of queue .*: the stored bytes do not decode"):
        await session.admin.moves.start(source, target)


async def test_a_move_between_queues_with_the_same_item_folder_is_refused(session: zq.QueueSession, path: str) -> None:
    kazoo, simple = session.kazoo_queue(path), session.curator_queue(f"{path}/entries", kind="simple")
    for source, target in ((kazoo, kazoo), (kazoo, simple), (simple, kazoo)):
        with pytest.raises(zq.InvalidOptionError, match=r"cannot move queue .* to itself"):
            await session.admin.moves.start(source, target)


# -- changes during a move


async def test_a_lock_folder_removed_by_the_server_is_created_again(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    source, target = locked(session, path), session.queue("target")
    await source.put(b"one")
    await server_view.delete(f"{path}-locks")  # as the server removes an empty container
    assert await moved(session, source, target) == 1
    await source.put(b"two")
    await server_view.delete(f"{path}-locks")
    assert await source.purge() == 1


async def test_a_new_item_under_a_reused_name_is_not_touched_by_a_move(
    session: zq.QueueSession,
    path: str,
    server_view: Observer,
    expire: Callable[[zq.QueueSession], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target, transfer = locked(session, path), session.queue("target"), transferring.transfer

    async def frozen(*arguments: Any) -> list[bool | zq.QueueError]:
        monkeypatch.setattr(mover, "transfer", transfer)
        await expire(session)  # as of a process that is paused for longer than its session timeout
        await server_view.delete_at_once(path)  # as if the item was consumed and the server removed the empty folder
        await server_view.create(f"{path}/{name}", frame([b"new"]))
        return await transfer(*arguments)

    await source.put(b"old")
    (name,) = await server_view.children(path)
    monkeypatch.setattr(mover, "transfer", frozen)
    assert await moved(session, source, target) == 0
    assert await drained(session, target) == []
    assert await drained(session, source) == [b"new"]


async def test_a_move_of_an_earlier_layout_is_resumed_and_an_unknown_one_is_left(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("old").put(b"x")
    stored = b'{"source":"old","target":"new","state":"running","moved":0}'
    unknown = b'{"source":{"path":"/q","program":"rabbit"},"target":"new","state":"running","moved":0}'
    await server_view.create(f"{queue_root}/.moves/earlier", stored)
    await server_view.create(f"{queue_root}/.moves/unknown", unknown)
    assert await session.admin.moves.resume() == 1
    assert (await ended(session, "earlier")).moved == 1
    with pytest.raises(UnknownMoveError):
        await session.admin.moves.status("unknown")
    assert await server_view.get(f"{queue_root}/.moves/unknown") == unknown


async def test_a_session_with_another_layout_of_the_queue_leaves_the_move_to_others(
    session: zq.QueueSession,
    other: zq.QueueSession,
    path: str,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await session.kazoo_queue(path).put(b"x")
    other.kazoo_queue(path, locking=False)
    record = f'{{"source":{{"path":"{path}","program":"kazoo","locking":true}},"target":"new","state":"running"}}'
    await server_view.create(f"{queue_root}/.moves/one", record.encode())
    with caplog.at_level(logging.WARNING):
        assert await other.admin.moves.resume() == 1
        async with asyncio.timeout(30):
            while "move one is left to another session" not in caplog.text:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
    await server_view.gone(f"{queue_root}/.moves/one/runner")
    assert (await session.admin.moves.status("one")).state == "running"
    assert await session.admin.moves.resume() == 1
    assert (await ended(session, "one")).moved == 1
