"""The assertions about queues, and their messages if they fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from aiozkqueue.testing import assert_dead_lettered, assert_empty, assert_put

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import aiozkqueue as zq


class Parcel(BaseModel):
    order: int


@pytest.fixture
async def parcels(queue_session: zq.QueueSession) -> zq.Queue[Parcel]:
    return queue_session.queue("parcels", Parcel)


async def failure(assertion: Awaitable[object]) -> str:
    with pytest.raises(AssertionError) as raised:
        await assertion
    return str(raised.value)


async def reject(session: zq.QueueSession, queue: zq.Queue[Parcel], reason: str) -> None:
    async with session.transaction() as tx:
        message = await tx.take(queue, timeout=30)
        assert message is not None
        tx.reject(message, reason)


async def test_assert_put_finds_a_message_by_value_key_and_headers(parcels: zq.Queue[Parcel]) -> None:
    first = await parcels.put(Parcel(order=1))
    second = await parcels.put(Parcel(order=1), key="a", headers={"to": "Rome", "by": "mail"})
    assert (await assert_put(parcels, Parcel(order=1))).id == first
    assert (await assert_put(parcels, Parcel(order=1), key="a")).id == second
    assert (await assert_put(parcels, headers={"to": "Rome"})).id == second


async def test_a_failed_assert_put_lists_the_messages_that_were_put(parcels: zq.Queue[Parcel]) -> None:
    assert await failure(assert_put(parcels, key="a")) == (
        "queue 'parcels' has no message with key 'a'; it has no messages and no dead letters"
    )
    assert await failure(assert_put(parcels, Parcel(order=1))) == (
        "queue 'parcels' has no message that is Parcel(order=1); it has no messages and no dead letters"
    )
    await parcels.put(Parcel(order=2), key="a", headers={"to": "Rome"})
    assert await failure(assert_put(parcels, Parcel(order=2), key="b", headers={"to": "Oslo"})) == (
        "queue 'parcels' has no message that is Parcel(order=2) with key 'b' and headers {'to': 'Oslo'}; "
        "it has 1 message:\n"
        "  Parcel(order=2), key 'a', headers {'to': 'Rome'}, waiting\n"
        "and no dead letters"
    )


async def test_a_failed_assertion_shows_undecodable_and_delayed_messages(
    queue_session: zq.QueueSession, parcels: zq.Queue[Parcel]
) -> None:
    await queue_session.queue("parcels").put(b"no JSON")
    await parcels.put(Parcel(order=1), delay=60)
    message = await failure(assert_put(parcels, Parcel(order=3)))
    assert (
        "it has 2 messages:\n  b'no JSON', which does not decode, waiting\n  Parcel(order=1), delayed until 20"
        in message
    )


async def test_a_failed_assertion_shows_the_first_messages_and_truncates_long_values(
    queue_session: zq.QueueSession,
) -> None:
    texts = queue_session.queue("texts", str)
    await texts.put_many(["x" * 10_000] * 12)
    message = await failure(assert_put(texts, "y"))
    assert "it has 12 messages, of which the first 10 are:" in message
    assert len(message) < 3_000


async def test_assert_empty_also_counts_claimed_messages(
    queue_session: zq.QueueSession, parcels: zq.Queue[Parcel]
) -> None:
    await assert_empty(parcels)
    await parcels.put(Parcel(order=1))
    async with queue_session.transaction() as tx:
        assert await tx.take(parcels, timeout=30) is not None
        assert await failure(assert_empty(parcels)) == (
            "queue 'parcels' is not empty; it has 1 message:\n  Parcel(order=1), in flight\nand no dead letters"
        )
    await assert_empty(parcels)


async def test_assert_dead_lettered_finds_a_message_by_value_and_reason(
    queue_session: zq.QueueSession, parcels: zq.Queue[Parcel]
) -> None:
    await parcels.put(Parcel(order=1))
    await reject(queue_session, parcels, "no such address")
    await assert_empty(parcels)
    assert (await assert_dead_lettered(parcels, Parcel(order=1), reason="address")).reason == "no such address"
    assert await failure(assert_dead_lettered(parcels, Parcel(order=1), reason="paid")) == (
        "queue 'parcels' has no dead letter that is Parcel(order=1) with reason 'paid'; "
        "it has no messages and 1 dead letter:\n  Parcel(order=1): 'no such address'"
    )
    assert (await assert_dead_lettered(parcels, reason="no such")).value == Parcel(order=1)
    assert "that is Parcel(order=2); it has" in await failure(assert_dead_lettered(parcels, Parcel(order=2)))


async def test_assertions_with_a_timeout_wait_until_they_hold(
    queue_session: zq.QueueSession, parcels: zq.Queue[Parcel]
) -> None:
    sent = queue_session.queue("sent", Parcel)
    await parcels.put(Parcel(order=1))
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(assert_put(sent, Parcel(order=2), timeout=30)),
            group.create_task(assert_empty(parcels, timeout=30)),
            group.create_task(assert_dead_lettered(parcels, Parcel(order=1), timeout=30)),
        ]
        await asyncio.sleep(0.05)
        assert not [task for task in waiting if task.done()]
        await sent.put(Parcel(order=2))
        await reject(queue_session, parcels, "no such address")
