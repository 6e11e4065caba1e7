"""Combined features: the options of a message work together, and outlive the session that put it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock

CONFIG = zq.QueueConfig(
    policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0.05)),
    max_size=4,
    history=zq.History(payload=True),
    collapse=True,
    ttl=timedelta(hours=1),
    expired="dead-letter",
)


def options() -> zq.PutOptions:
    """Every option of a put. Messages with the same key collapse only if they also have the same date."""
    return {
        "priority": -7,
        "key": "article 7",
        "tags": {"size": 3},
        "headers": {"by": "price list"},
        "at": datetime.now(UTC) + timedelta(seconds=0.3),
        "ttl": 600,
    }


async def test_one_message_has_a_priority_a_date_a_key_tags_headers_and_a_lifetime_in_a_transaction(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    prices, other_prices = session.queue("prices"), other.queue("prices")
    await prices.configure(CONFIG)
    async with session.transaction() as tx:
        how = options()
        old = tx.put(prices, b"costs 10", **how)
        new = tx.put(prices, b"costs 12", **how)
        tx.put(prices, b"only one", key="once", unique=True)
        tx.put(prices, b"gone at once", ttl=0.001)
    stats = await prices.stats()
    assert (stats.size, stats.remaining_capacity, stats.unique_keys, stats.tags) == (4, 0, 1, 1)
    with pytest.raises(zq.QueueFullError):
        await prices.put(b"more")
    async with other_prices.consume(filters=zq.Filter("size", "ge", 3), settle="explicit", prefetch=1) as deliveries:
        first = await anext(deliveries)
        assert (first.id, first.body, first.priority, first.key) == (new, b"costs 12", -7, "article 7")
        assert (first.headers, first.tags, first.attempt) == ({"by": "price list"}, {"size": 3}, 1)
        await first.rollback()
        redelivered = await anext(deliveries)
        assert (redelivered.id, redelivered.attempt) == (new, 2)
        await redelivered.commit()
    async with other.transaction() as tx:
        rest = await tx.take_many(other_prices, 10, timeout=30)
        assert [message.body for message in rest] == [b"only one"]
    ended = {record.id: record.outcome async for record in prices.history()}
    assert (ended[old], ended[new]) == (zq.End.COLLAPSED, zq.End.FINISHED)
    assert sorted(outcome.value for outcome in ended.values()) == ["collapsed", "dead-lettered", "finished", "finished"]
    assert [letter.body for letter in await prices.dead_letters.peek()] == [b"gone at once"]


async def test_the_options_of_a_message_outlive_its_session(
    zookeeper: str, queue_root: str, on_clock: OnClock, clock: TestClock
) -> None:
    other = await on_clock()
    async with zq.connect(zookeeper, root=queue_root, clock=clock) as session:
        prices = session.queue("prices")
        await prices.configure(CONFIG)
        await prices.put(b"too late", ttl=0.001)
        failing = await prices.put(b"fails", key="once", unique=True)

        async def handler(_: zq.Delivery[bytes]) -> None:
            listener.stop()
            raise zq.Retry(schedule=[100, 1000])

        listener = session.listener(prices, handler)
        await listener.run()
        old, priced = await prices.put_many([b"costs 10", b"costs 12"], **options())
        assert await prices.update(b"costs 13", id=priced)

    other_prices = other.queue("prices")
    stats = await other_prices.stats()
    assert (stats.size, stats.remaining_capacity, stats.retrying, stats.unique_keys) == (3, 1, 1, 1)
    with pytest.raises(zq.DuplicateKeyError):
        await other_prices.put(b"again", key="once", unique=True)
    clock.advance(100)
    taken = dict[str, tuple[bytes, int]]()
    async with other_prices.consume(settle="explicit") as deliveries:
        async for delivery in deliveries:
            taken[delivery.id] = (delivery.body, delivery.attempt)
            await delivery.commit()
            if len(taken) == 2:
                break
    assert taken == {priced: (b"costs 13", 1), failing: (b"fails", 2)}
    ended = {record.id: record.outcome.value async for record in other_prices.history()}
    assert ended.pop(old) == "collapsed"
    assert sorted(ended.values()) == ["dead-lettered", "finished", "finished"]
