"""Recorded deliveries, for tests of handlers without a server, follow the rules of real deliveries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue import testing
from aiozkqueue.errors import InvalidNameError, TransactionClosedError


class Order(BaseModel):
    id: int


class Invoice(BaseModel):
    order: int


@dataclass
class Point:
    x: int


class Opaque:
    pass


INVOICES = testing.queue("invoices", Invoice)
ORDERS = testing.queue("orders", Order)


def test_a_recorded_delivery_shows_the_values_it_was_created_with() -> None:
    made = testing.delivery(Order(id=1), queue="orders", attempt=3, headers={"trace": "7"})
    assert made.value == Order(id=1)
    assert (made.queue, made.attempt, made.headers, made.body) == ("orders", 3, {"trace": "7"}, b'{"id":1}')
    assert (made.key, made.group, made.priority, made.lost) == (None, None, 0, False)
    assert made.enqueued_at.tzinfo is not None
    assert made.id != testing.delivery(Order(id=1)).id


def test_a_recorded_delivery_has_all_that_a_put_and_a_redelivery_give_a_message() -> None:
    put_at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    made = testing.delivery(
        Order(id=1),
        queue=ORDERS,
        id="gx8YSxIzUYf8000002",
        attempt=2,
        key="customer-7",
        priority=-3,
        headers={"trace": "7"},
        tags={"country": "it", "size": 3},
        enqueued_at=put_at,
        due=put_at + timedelta(hours=1),
    )
    assert (made.queue, made.id, made.attempt) == ("orders", "gx8YSxIzUYf8000002", 2)
    assert (made.key, made.priority, made.headers) == ("customer-7", -3, {"trace": "7"})
    assert made.tags == {"country": "it", "size": 3}
    assert (made.enqueued_at, made.due) == (put_at, put_at + timedelta(hours=1))
    assert (made.value, made.body) == (Order(id=1), b'{"id":1}')
    assert testing.delivery(b"1", group="customer-7").group == "customer-7"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"group": "a", "priority": 1}, "contradicts group='a'"),
        ({"priority": 200}, "priority"),
        ({"tags": {"size": 1.5}}, "tag 'size'"),
        ({"attempt": 0}, "attempt=0"),
        ({"enqueued_at": datetime(2026, 3, 1)}, "enqueued_at"),  # noqa: DTZ001 - the mistake
        ({"delay": 3}, "delivery has no delay; it has id, attempt, key"),
    ],
)
def test_fields_that_no_message_can_have_are_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match=re.escape(expected)):
        testing.delivery(b"1", **fields)


def test_a_delivery_of_a_typed_queue_has_a_value_of_its_type() -> None:
    with pytest.raises(zq.PayloadError, match="orders"):
        testing.delivery(Invoice(order=1), queue=ORDERS)  # type: ignore[misc]


@pytest.mark.parametrize("value", [b"raw", Point(1), [1, 2], "text", None, {"a": 1}])
def test_a_recorded_delivery_can_hold_any_value_that_a_queue_accepts(value: object) -> None:
    assert testing.delivery(value).value == value


async def test_a_handler_that_returns_leaves_a_committed_delivery() -> None:
    async def bill(delivery: zq.Delivery[Order]) -> None:
        delivery.put(INVOICES, Invoice(order=delivery.value.id), key="1")
        delivery.put("log", b"billed")

    made = testing.delivery(Order(id=1))
    await bill(made)
    assert made.puts == [
        testing.Put("invoices", Invoice(order=1), {"key": "1"}),
        testing.Put("log", b"billed", {}),
    ]
    assert made.outcome is zq.Outcome.COMMITTED
    assert not made.settled


async def test_a_block_commits_its_delivery_and_a_second_commit_is_refused() -> None:
    made = testing.delivery(b"1", queue="jobs")
    async with made:
        seen = made.outcome
    assert (seen, made.outcome, made.settled) == (zq.Outcome.OPEN, zq.Outcome.COMMITTED, True)
    with pytest.raises(TransactionClosedError, match=f"message {made.id} of queue 'jobs' is already committed"):
        await made.commit()
    with pytest.raises(TransactionClosedError):
        await made.rollback()
    with pytest.raises(TransactionClosedError):
        await made.reject("late")
    with pytest.raises(TransactionClosedError):
        made.put("other", b"late")


async def test_an_error_in_a_block_rolls_back_and_discards_the_puts() -> None:
    made = testing.delivery(b"1")
    with pytest.raises(KeyError):
        async with made:
            made.put("other", b"never")
            raise KeyError
    assert (made.outcome, made.puts, made.retry_delay) == (zq.Outcome.ROLLED_BACK, [], None)
    await made.rollback()  # a second rollback does nothing, as with a real delivery
    with pytest.raises(TransactionClosedError, match="already rolled back"):
        await made.commit()


async def test_reject_records_its_reason() -> None:
    made = testing.delivery(b"1")
    made.put("other", b"never")
    await made.reject("no such order")
    assert (made.outcome, made.reason, made.puts) == (zq.Outcome.COMMITTED, "no such order", [])


async def test_handle_settles_as_a_listener_does() -> None:
    async def returns(delivery: zq.Delivery[bytes]) -> None:
        assert delivery.outcome is zq.Outcome.OPEN

    async def retries(_: zq.Delivery[bytes]) -> None:
        raise zq.Retry(delay=5)

    async def rejects(_: zq.Delivery[bytes]) -> None:
        raise zq.Reject("bad")

    async def fails(_: zq.Delivery[bytes]) -> None:
        raise KeyError

    async def settles(delivery: zq.Delivery[bytes]) -> None:
        await delivery.rollback(delay=2)

    assert await testing.handle(returns, testing.delivery(b"")) is zq.Outcome.COMMITTED
    retried = testing.delivery(b"")
    assert await testing.handle(retries, retried) is zq.Outcome.ROLLED_BACK
    assert retried.retry_delay == 5
    rejected = testing.delivery(b"")
    assert await testing.handle(rejects, rejected) is zq.Outcome.COMMITTED
    assert rejected.reason == "bad"
    failed = testing.delivery(b"")
    with pytest.raises(KeyError):
        await testing.handle(fails, failed)
    assert failed.outcome is zq.Outcome.ROLLED_BACK
    settled = testing.delivery(b"")
    assert await testing.handle(settles, settled) is zq.Outcome.ROLLED_BACK
    assert settled.retry_delay == 2


def test_puts_are_checked_as_a_real_delivery_checks_them() -> None:
    made = testing.delivery(b"1")
    with pytest.raises(zq.PayloadError, match="'invoices'"):
        made.put(INVOICES, Order(id=1))  # type: ignore[misc]
    with pytest.raises(zq.PayloadError, match="takes bytes"):
        made.put("log", "text")  # type: ignore[call-overload]
    with pytest.raises(InvalidNameError):
        made.put("a/b", b"")
    with pytest.raises(zq.InvalidOptionError, match="dealy"):
        made.put("log", b"", dealy=3)  # type: ignore[call-overload]
    with pytest.raises(zq.MessageTooLargeError, match="'log'"):
        made.put("log", bytes(1024 * 1024))
    assert made.puts == []


def test_the_arguments_of_a_recorded_delivery_or_queue_are_checked() -> None:
    with pytest.raises(zq.InvalidOptionError, match="attempt"):
        testing.delivery(b"", attempt=0)
    with pytest.raises(InvalidNameError):
        testing.delivery(b"", queue=".hidden")
    with pytest.raises(zq.InvalidOptionError, match="pydantic"):
        testing.delivery(Opaque())
    with pytest.raises(InvalidNameError):
        testing.queue("", bytes)


async def test_a_queue_for_tests_has_no_session() -> None:
    with pytest.raises(zq.SessionClosedError, match="made for a test"):
        await INVOICES.put(Invoice(order=1))


async def test_a_rejection_in_a_group_of_exceptions_is_recorded() -> None:
    async def handle(_: object) -> None:
        raise ExceptionGroup("of tasks", [zq.Reject("no such order")])

    delivery = testing.delivery(b"1")
    assert await testing.handle(handle, delivery) is zq.Outcome.COMMITTED
    assert delivery.reason == "no such order"


async def test_a_scheduled_retry_counts_from_the_date_of_the_message() -> None:
    async def fail(_: zq.Delivery[bytes]) -> None:
        raise zq.Retry(schedule=[60, 120])

    now = datetime.now(UTC)
    made = testing.delivery(b"", enqueued_at=now - timedelta(hours=1), due=now)
    await testing.handle(fail, made)
    assert made.retry_delay is not None
    assert 0 < made.retry_delay < 61
    put = testing.delivery(b"", enqueued_at=now - timedelta(hours=1))
    await testing.handle(fail, put)
    assert put.retry_delay == 0


async def test_an_error_after_the_last_scheduled_retry_rolls_the_delivery_back() -> None:
    async def give_up(delivery: zq.Delivery[Order]) -> None:
        delivery.put("log", b"gave up")
        raise OSError("the log is full")

    async def charge(_: zq.Delivery[Order]) -> None:
        raise zq.Retry(schedule=[60], exhausted=give_up)

    delivery = testing.delivery(Order(id=1), attempt=2)
    with pytest.raises(OSError, match="the log is full"):
        await testing.handle(charge, delivery)
    assert (delivery.outcome, delivery.settled, delivery.reason) == (zq.Outcome.ROLLED_BACK, True, None)
    assert (delivery.puts, delivery.retry_delay) == ([], None)
