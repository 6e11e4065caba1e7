"""Operators move dead letters and single messages to another queue, unchanged and always in exactly one of the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import InvalidNameError, NotRedrivenError
from aiozkqueue.operations.alter import Alteration, AlterationTarget, move
from aiozkqueue.session.internals import core_of

if TYPE_CHECKING:
    from tests.observer import Observer


async def test_dead_letters_are_redriven_into_another_queue(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    orders, repaired = session.queue("orders"), session.queue("repaired")
    ids = await orders.put_many([b"1", b"2"], key="k", headers={"trace": "t"})
    async with session.transaction() as tx:
        for message in await tx.take_many(orders, 2):
            tx.reject(message, "broken")
    assert await orders.dead_letters.redrive([ids[0]], into="repaired") == 1
    (letter,) = await orders.dead_letters.peek()
    assert letter.id == ids[1]
    (message,) = await repaired.peek()
    assert (message.id, message.body, message.key, message.headers) == (ids[0], b"1", "k", {"trace": "t"})
    assert message.attempt == 0
    assert await orders.size() == 0
    assert await server_view.children(f"{queue_root}/repaired/locks") == []
    with pytest.raises(InvalidNameError):
        await orders.dead_letters.redrive(into="no/name")
    await repaired.configure(zq.QueueConfig(max_size=1))
    with pytest.raises(zq.QueueFullError):
        await orders.dead_letters.redrive(into="repaired")
    assert await orders.dead_letters.size() == 1


async def test_dead_letters_that_cannot_go_into_another_queue_stay_and_the_others_go(
    session: zq.QueueSession,
) -> None:
    orders, sticky = session.queue("orders"), session.queue("sticky")
    await sticky.configure(zq.QueueConfig(affinity="producer"))
    ids = [await orders.put(b"%d" % number, group=f"g{number}" if number in {1, 3} else None) for number in range(5)]
    async with session.transaction() as tx:
        for message in await tx.take_many(orders, 5, timeout=30):
            tx.reject(message, "broken")
    with pytest.raises(NotRedrivenError, match=r"3 of 5 dead letters.*is sticky") as left:
        await orders.dead_letters.redrive(into="sticky")
    assert left.value.done == 3
    assert sorted(left.value.errors) == sorted((ids[1], ids[3]))
    assert sorted([letter.id for letter in await orders.dead_letters.peek()]) == sorted((ids[1], ids[3]))
    assert sorted([message.body for message in await sticky.peek()]) == [b"0", b"2", b"4"]
    assert await orders.dead_letters.redrive() == 2


async def test_a_waiting_message_is_moved_and_one_in_flight_is_not(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    orders, archive = session.queue("orders"), session.queue("archive")
    first, second = await orders.put_many([b"1", b"2"], headers={"a": "b"}, group="g")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(orders, timeout=30)
        assert await move(core_of(session), AlterationTarget(orders, first, None), "archive") is Alteration.HELD
        await tx.rollback(delay=0)
    assert await move(core_of(session), AlterationTarget(orders, second, None), "archive") is Alteration.DONE
    assert await move(core_of(session), AlterationTarget(orders, second, None), "archive") is Alteration.NOT_FOUND
    (moved,) = await archive.peek()
    assert (moved.id, moved.body, moved.group, moved.headers) == (second, b"2", "g", {"a": "b"})
    assert [message.id for message in await orders.peek()] == [first]
    for queue in ("orders", "archive"):
        assert await server_view.children(f"{queue_root}/{queue}/locks") == []


async def test_a_message_that_does_not_exist_is_not_moved_and_creates_no_queue(session: zq.QueueSession) -> None:
    orders = session.queue("orders")
    await orders.put(b"1")
    wanted = AlterationTarget(orders, "a" * 18, None)
    assert await move(core_of(session), wanted, "archive") is Alteration.NOT_FOUND
    assert not await session.queue("archive").exists()


async def test_a_message_of_a_bundle_is_moved_alone(session: zq.QueueSession) -> None:
    orders = session.queue("orders")
    await orders.configure(zq.QueueConfig(bundle=16))
    ids = await orders.put_many([b"%d" % number for number in range(10)])
    assert await move(core_of(session), AlterationTarget(orders, ids[3], None), "archive") is Alteration.DONE
    assert [message.body for message in await session.queue("archive").peek()] == [b"3"]
    assert await orders.size() == 9
