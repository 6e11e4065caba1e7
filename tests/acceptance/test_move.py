"""Moves: all messages of a queue move to another in the background; no crash loses or duplicates a message."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl

import aiozkqueue as zq
from aiozkqueue.errors import InvalidNameError, UnknownMoveError
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from aiozkqueue.admin import MoveStatus
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)


async def ended(session: zq.QueueSession, reference: str, timeout: float = 60) -> MoveStatus:
    async def over() -> bool:
        return (await session.admin.moves.status(reference)).state != "running"

    await eventually(over, timeout)
    return await session.admin.moves.status(reference)


async def drained(session: zq.QueueSession, queue: str) -> list[zq.Delivery[bytes]]:
    async with session.queue(queue).consume(until_idle=0) as deliveries:
        return [delivery async for delivery in deliveries]


async def test_a_move_keeps_all_messages_unchanged(session: zq.QueueSession, other: zq.QueueSession) -> None:
    source = session.queue("source")
    ids = [await source.put(b"%d" % number, headers={"n": str(number)}, key=f"k{number}") for number in range(5)]
    before = {message.id: message.enqueued_at for message in await source.peek()}
    reference = await session.admin.moves.start("source", session.queue("target"))
    status = await ended(other, reference)
    assert (status.source, status.target, status.state, status.moved) == ("source", "target", "done", 5)
    assert status.ended is not None
    assert status.ended >= status.started
    assert await source.size() == 0
    found = await drained(other, "target")
    assert [delivery.id for delivery in found] == ids
    assert [(message.body, message.headers["n"], message.key, message.attempt) for message in found] == [
        (b"%d" % number, str(number), f"k{number}", 1) for number in range(5)
    ]
    assert {message.id: message.enqueued_at for message in found} == before


async def test_a_move_that_does_not_decode_is_neither_listed_nor_changed_and_others_are_finished(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("source").put(b"1")
    broken = {"empty": b"", "text": b"nonsense", "list": b"[]", "other": b'{"from": 1}'}
    for name, data in broken.items():
        await server_view.create(f"{queue_root}/.moves/{name}", data)
    reference = await session.admin.moves.start("source", "target")
    assert (await ended(session, reference)).state == "done"
    assert await session.admin.moves.resume() == 0
    assert [move.reference for move in await session.admin.moves.all()] == [reference]
    for name, data in broken.items():
        assert await server_view.get(f"{queue_root}/.moves/{name}") == data


async def test_a_move_of_another_user_is_not_listed_and_others_are_continued(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("source").put(b"1")
    await ended(session, reference := await session.admin.moves.start("source", "target"))
    await server_view.create(sealed := f"{queue_root}/.moves/{'0' * 18}", b"{}")
    await set_acl(server_view, sealed, readable=False)
    assert [status.reference for status in await session.admin.moves.all()] == [reference]
    assert await session.admin.moves.resume() == 0
    with pytest.raises(zq.AccessDeniedError):
        await session.admin.moves.status("0" * 18)


async def test_a_move_whose_record_an_acl_protects_is_made_and_does_not_try_to_record_it_endlessly(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await session.queue("source").put_many([b"1", b"2"])
    async with other.transaction(autocommit=False) as tx:
        assert await tx.take(other.queue("source"), timeout=10)
        reference = await session.admin.moves.start("source", "target")
        await eventually(lambda: _moved(session, reference, 1))
        protected = make_acl("world", "anyone", read=True, create=True, delete=True)  # not: to write
        await server_view.set_acl(f"{queue_root}/.moves/{reference}", [protected])
        await tx.rollback(delay=0)

    async def released() -> bool:
        return (await session.admin.moves.status(reference)).unattended

    await eventually(released, 30)
    assert await session.queue("target").size() == 2
    assert "its record cannot be written" in caplog.text


async def test_leased_messages_are_moved_without_their_leases(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    source = session.queue("source")
    await source.put_many([b"1", b"2"])
    leases = await source.leases.take(10, lifetime=600)
    assert len(leases) == 2
    assert (await ended(session, await session.admin.moves.start("source", "target"))).moved == 2
    assert len(await session.queue("target").leases.take(10)) == 2
    for folder in ("items", "locks", "due", "meta"):
        assert await server_view.children(f"{queue_root}/source/{folder}") == [], folder


async def test_a_message_that_a_transaction_holds_is_moved_after_its_release(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("source").put_many([b"1", b"2"])
    async with other.transaction(autocommit=False) as tx:
        held = await tx.take(other.queue("source"), timeout=10)
        assert held is not None
        reference = await session.admin.moves.start("source", "target")
        await eventually(lambda: _moved(session, reference, 1))
        assert (await session.admin.moves.status(reference)).state == "running"
        await tx.rollback(delay=0)
    assert (await ended(session, reference)).moved == 2


async def test_a_target_that_was_deleted_during_a_move_is_created_again_only_for_a_message(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    source, target = session.queue("source"), session.queue("target")
    await source.put_many([b"1", b"2"])
    async with other.transaction() as held:
        assert await held.take(other.queue("source"), timeout=10) is not None
        reference = await session.admin.moves.start("source", "target")
        await eventually(lambda: _moved(session, reference, 1))
        async with session.transaction() as tx:
            assert await tx.take(target, timeout=10) is not None
        await target.admin.delete()
    assert (await ended(session, reference)).moved == 1
    assert not await target.exists()


async def test_a_move_of_an_empty_queue_does_not_create_its_target(session: zq.QueueSession) -> None:
    await session.queue("source").configure(zq.QueueConfig(max_size=10))
    assert (await ended(session, await session.admin.moves.start("source", "target"))).state == "done"
    assert not await session.queue("target").exists()


async def test_a_large_message_is_moved_from_a_queue_whose_history_keeps_payloads(session: zq.QueueSession) -> None:
    """A request has no space for its payload twice, so the record of a moved message has no payload."""
    source, body = session.queue("source"), b"x" * 600_000
    await source.configure(zq.QueueConfig(history=zq.History(payload=True)))
    await source.put(body)
    status = await ended(session, await session.admin.moves.start("source", "target"))
    assert (status.state, status.error) == ("done", None)
    assert [message.body for message in await session.queue("target").peek()] == [body]
    (record,) = [record async for record in source.history()]
    assert (record.outcome, record.reason, record.payload) == (zq.End.REMOVED, "moved to target", None)


async def test_messages_put_after_the_start_of_a_move_stay(session: zq.QueueSession, other: zq.QueueSession) -> None:
    await session.queue("source").put(b"old")
    async with other.transaction(autocommit=False) as tx:
        assert await tx.take(other.queue("source"), timeout=10) is not None
        reference = await session.admin.moves.start("source", "target")
        await session.queue("source").put(b"new")
        await tx.rollback(delay=0)
    assert (await ended(session, reference)).moved == 1
    assert [message.body for message in await session.queue("source").peek()] == [b"new"]


async def test_messages_of_a_queue_that_was_created_again_during_a_move_stay(
    session: zq.QueueSession, other: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    """The new queue numbers its messages from 0, as the old one did."""
    source = other.queue("source")
    await source.put(b"held")
    await source.put(b"free")
    async with other.transaction() as tx:
        assert await tx.take(source, timeout=30) is not None
        async with zq.connect(zookeeper, root=queue_root, janitor=False) as mover:
            reference = await mover.admin.moves.start("source", "target")

            async def all_but_one() -> bool:
                return (await session.admin.moves.status(reference)).moved == 1

            await eventually(all_but_one)
    await source.admin.delete()
    new = [await source.put(b"new %d" % number) for number in range(3)]
    assert await session.admin.moves.resume() == 1
    status = await ended(session, reference)
    assert (status.state, status.moved) == ("done", 1)
    assert [message.id for message in await source.peek()] == new


@pytest.mark.parametrize("config", [zq.QueueConfig(collapse=True), zq.QueueConfig()], ids=["collapse", "unique"])
async def test_a_message_that_is_updated_during_a_move_is_moved(
    session: zq.QueueSession, other: zq.QueueSession, config: zq.QueueConfig
) -> None:
    """A message whose payload is its key gets another znode when it is updated."""
    source, target = session.queue("source"), session.queue("target")
    await source.configure(config)
    await target.configure(zq.QueueConfig(max_size=1))
    message_id = await source.put(b"old", unique=not config.collapse)
    await target.put(b"fills the target")
    reference = await session.admin.moves.start("source", "target")
    await eventually(lambda: _waits_for_capacity(target), 30)
    assert await other.queue("source").update(b"new", id=message_id)
    await other.queue("source").put(b"put after the start of the move")
    async with other.transaction() as tx:
        assert await tx.take(other.queue("target"), timeout=30) is not None
    status = await ended(session, reference)
    assert (status.state, status.moved) == ("done", 1)
    assert [(message.id, message.body) for message in await target.peek()] == [(message_id, b"new")]
    assert [message.body for message in await source.peek()] == [b"put after the start of the move"]


async def test_two_runners_of_one_move_move_each_message_once(session: zq.QueueSession, other: zq.QueueSession) -> None:
    await session.queue("source").put_many([b"%d" % number for number in range(500)])
    reference = await session.admin.moves.start("source", "target")
    await other.admin.moves._finish(reference, await other._runtime.zookeeper.wait_connected())
    await ended(session, reference)
    found = Counter(delivery.body for delivery in await drained(session, "target"))
    assert found == Counter(b"%d" % number for number in range(500))


MOVER = """
import asyncio, sys
import aiozkqueue as zq

async def main() -> None:
    async with zq.connect(sys.argv[1], root=sys.argv[2], session_timeout=2) as session:
        print(await session.admin.moves.start("source", "target"), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_move_whose_process_is_killed_is_finished_by_another(
    session: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    await session.queue("source").put_many([b"%d" % number for number in range(3000)])
    mover = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MOVER, zookeeper, queue_root, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert mover.stdout is not None
        reference = (await asyncio.wait_for(mover.stdout.readline(), 60)).decode().strip()
        await eventually(lambda: _moved(session, reference, 1), 60)
    finally:
        os.kill(mover.pid, signal.SIGKILL)
        await mover.wait()

    async def resumed() -> bool:
        return await session.admin.moves.resume() == 1

    if (await session.admin.moves.status(reference)).state == "running":  # the move may have ended before the kill
        await eventually(resumed, 60)
    status = await ended(session, reference)
    assert (status.state, await session.queue("source").size()) == ("done", 0)
    found = Counter(delivery.body for delivery in await drained(session, "target"))
    assert found == Counter(b"%d" % number for number in range(3000))


async def test_invalid_moves_are_refused_before_anything_is_written(session: zq.QueueSession) -> None:
    with pytest.raises(zq.InvalidOptionError, match="cannot move queue 'one' to itself"):
        await session.admin.moves.start("one", session.queue("one"))
    with pytest.raises(InvalidNameError):
        await session.admin.moves.start("one", "../two")
    for source, target in (("/app/jobs", "one"), ("one", "/app/jobs")):
        with pytest.raises(zq.InvalidOptionError, match=r"give `session.curator_queue\('/app/jobs'\)` or"):
            await session.admin.moves.start(source, target)
    for unknown in ("nothing", "", "a/b"):
        with pytest.raises(UnknownMoveError, match="there is no move"):
            await session.admin.moves.status(unknown)
    assert await session.admin.moves.all() == []


async def _waits_for_capacity(queue: zq.Queue[bytes]) -> bool:
    return (await queue.stats()).waiting_producers > 0


async def _moved(session: zq.QueueSession, reference: str, least: int) -> bool:
    return (await session.admin.moves.status(reference)).moved >= least
