"""Payloads: the conversion to and from the type of a queue, and undecodable bytes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, cast

import pytest
from pydantic import BaseModel, Field, SecretStr, TypeAdapter, field_serializer, model_validator

import aiozkqueue as zq
from aiozkqueue.testing import assert_empty
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.listeners import Batch
    from tests.observer import Observer


class Order(BaseModel):
    id: int


class Express(Order):
    by: datetime


class Aliased(BaseModel):
    order_id: int = Field(alias="orderId")
    customer: str | None = None


class Basket(BaseModel):
    orders: list[Order]


@dataclass
class Point:
    x: float
    y: float


class Refund(BaseModel):
    id: int


class Login(BaseModel):
    password: SecretStr


class Revealed(BaseModel):
    password: SecretStr

    @field_serializer("password")
    def reveal(self, password: SecretStr) -> str:
        return password.get_secret_value()


class Written(BaseModel):
    id: int = Field(serialization_alias="number")


class Incomplete(BaseModel):
    id: int = Field(exclude=True)


Item = TypeVar("Item")


class Box(BaseModel, Generic[Item]):
    item: Item


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Renamed(BaseModel):
    """Its validator raises TypeError for a payload that is no object, such as ``5``."""

    id: int

    @model_validator(mode="before")
    @classmethod
    def rename(cls, data: Any) -> Any:
        if "number" in data:
            data["id"] = data.pop("number")
        return data


WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def round_trip(queue: zq.Queue[Any], value: object) -> object:
    await queue.put(value)
    async with queue.consume(until_idle=0) as deliveries:
        return [delivery.value async for delivery in deliveries][-1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (bytes, b"\x00\xff"),
        (str, "é"),
        (int, 7),
        (float, 7.5),
        (Order, Order(id=1)),
        (Order | Express, Express(id=1, by=WHEN)),
        (list[Order], [Order(id=1), Order(id=2)]),
        (dict[str, Point], {"a": Point(1, 2)}),
        (Aliased, Aliased(orderId=7, customer=None)),
        (tuple[int, str], (1, "a")),
        (datetime, WHEN),
        (int | None, None),
        (Annotated[int, Field(ge=1)], 5),
        (Revealed, Revealed(password=SecretStr("teapot"))),
        (Cat | Dog, Dog()),
        (Box[Order | Express], Box[Order | Express](item=Express(id=1, by=WHEN))),
    ],
    ids=str,
)
async def test_a_value_of_the_queues_type_is_delivered_unchanged(
    kind: Any, value: object, session: zq.QueueSession
) -> None:
    assert await round_trip(session.queue("jobs", kind), value) == value


async def test_an_adapter_can_replace_the_type(session: zq.QueueSession) -> None:
    queue = session.queue("jobs", adapter=TypeAdapter(list[Order]))
    assert await round_trip(queue, [Order(id=1)]) == [Order(id=1)]
    with pytest.raises(zq.InvalidOptionError, match="not both"):
        session.queue("jobs", Order, adapter=TypeAdapter(Order))  # type: ignore[call-overload]
    with pytest.raises(zq.InvalidOptionError, match="give a TypeAdapter as adapter="):
        session.queue("jobs", cast("Any", TypeAdapter(Order)))


async def test_a_payload_is_stored_as_json_by_alias_and_raw_bytes_unchanged(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("orders", Aliased).put(Aliased(orderId=7, customer="é"))
    await session.queue("raw").put(b"\x00\xff")
    for queue, stored in (("orders", '{"orderId":7,"customer":"é"}'.encode()), ("raw", b"\x00\xff")):
        items = await server_view.children(f"{queue_root}/{queue}/items")
        assert await server_view.get(f"{queue_root}/{queue}/items/{items[0]}") == stored


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (Order, Express(id=1, by=WHEN), "by"),
        (Basket, Basket(orders=[Express(id=1, by=WHEN)]), "by"),
        (list[Order], [Order(id=1), Express(id=2, by=WHEN)], "by"),
        (Order, Order.model_construct(id="seven"), "id"),
        (Order, {"id": 1}, "value: Expected `Order`"),
        (int, "7", "int"),
        (Annotated[int, Field(ge=1)], 0, "greater"),
        (bytes, "text", "takes bytes"),
        (bytes, Order(id=1), "takes bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_put_refuses_values_of_another_type_and_values_that_would_lose_fields(
    kind: Any, value: Any, named: str, session: zq.QueueSession
) -> None:
    queue: zq.Queue[Any] = session.queue("jobs", kind)
    with pytest.raises(zq.PayloadError, match=f"(?s)'jobs'.*{named}|{named}.*'jobs'"):
        await queue.put(value)
    with pytest.raises(zq.PayloadError):
        await queue.put_many([value])
    async with session.transaction(autocommit=False) as tx:
        with pytest.raises(zq.PayloadError):
            tx.put(queue, value)
    assert await queue.size() == 0


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (Order | Refund, Refund(id=1), "Refund would be read as Order; distinguish the types"),
        (list[Order | Refund], [Order(id=1), Refund(id=2)], "Refund would be read as Order"),
        (Login, Login(password=SecretStr("hidden")), "pydantic writes SecretStr as asterisks"),
        (dict[str, Login | None], {"a": Login(password=SecretStr("hidden"))}, "pydantic writes SecretStr as asterisks"),
        (Written, Written(id=1), "its type does not read the JSON that it writes: id: Field required"),
        (Incomplete, Incomplete(id=1), "its type does not read the JSON that it writes: id: Field required"),
        (dict[tuple[int, int], str], {(1, 2): "a"}, "its type does not read the JSON that it writes"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_put_refuses_values_that_their_json_does_not_give_back(
    kind: Any, value: Any, reason: str, session: zq.QueueSession
) -> None:
    queue: zq.Queue[Any] = session.queue("jobs", kind)
    with pytest.raises(zq.PayloadError, match=f"not a value for queue 'jobs': {reason}") as raised:
        await queue.put(value)
    assert "hidden" not in str(raised.value)
    assert await queue.size() == 0


async def test_put_many_checks_all_values_before_it_sends_one(session: zq.QueueSession) -> None:
    queue: zq.Queue[Any] = session.queue("jobs", Order)
    values = [*(Order(id=number) for number in range(5000)), {"id": 2}]
    for options in (zq.PutOptions(), zq.PutOptions(priority=1)):
        with pytest.raises(zq.PayloadError) as raised:
            await queue.put_many(iter(values), **options)
        assert raised.value.__notes__ == ["it is value 5000 of the call, counted from 0"]
    assert await queue.size() == 0


async def test_undecodable_payloads_become_dead_letters_with_the_reason_and_stop_no_consumer(
    session: zq.QueueSession,
) -> None:
    orders, raw = session.queue("orders", Order), session.queue("orders")
    await raw.put_many([b"{", b'{"id":1}', b'{"id":"x"}', b'{"id":2}'])
    async with orders.consume(until_idle=0) as deliveries:
        assert [delivery.value.id async for delivery in deliveries] == [1, 2]

    async def both() -> bool:
        return await orders.dead_letters.size() == 2

    await eventually(both)
    letters = await orders.dead_letters.peek()
    assert [dead.body for dead in letters] == [b"{", b'{"id":"x"}']
    assert all("'orders' does not decode" in dead.reason for dead in letters)
    assert "id" in letters[1].reason
    assert [dead.attempts for dead in letters] == [0, 0]
    assert await orders.size() == 0
    with pytest.raises(zq.PayloadError):
        _ = letters[0].value


@pytest.mark.parametrize("way", ["loop", "transaction", "listener", "batch"])
async def test_a_payload_whose_validator_raises_any_error_becomes_a_dead_letter(
    way: str, session: zq.QueueSession
) -> None:
    await session.queue("orders").put_many([b"5", b'{"number":7}'])
    orders = session.queue("orders", Renamed)
    taken: list[int] = []

    async def handle(delivery: zq.Delivery[Renamed]) -> None:
        taken.append(delivery.value.id)

    async def store(batch: Batch[Renamed]) -> None:
        taken.extend(message.value.id for message in batch)

    if way == "loop":
        async with orders.consume(until_idle=0) as deliveries:
            taken += [delivery.value.id async for delivery in deliveries]
    elif way == "transaction":
        async with session.transaction() as tx:
            taken += [message.value.id for message in await tx.take_many(orders, 2, timeout=30)]
    else:
        listener = session.listener(orders, handle) if way == "listener" else session.listener(orders, store, batch=2)
        async with listener:
            await assert_empty(orders, timeout=30)
    await assert_empty(orders, timeout=30)
    assert taken == [7]
    (letter,) = await orders.dead_letters.peek()
    assert "does not decode: " in letter.reason
    assert "rename raised TypeError (test_payloads.py, line " in letter.reason


async def test_undecodable_raise_delivers_the_message_and_reading_its_value_raises(session: zq.QueueSession) -> None:
    await session.queue("orders", policy=zq.AtLeastOnce(backoff=zq.Fixed(60))).put(b"{")
    orders = session.queue("orders", Order, undecodable="raise")
    async with orders.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            assert delivery.body == b"{"
            with pytest.raises(zq.PayloadError, match="'orders'"):
                async with delivery:
                    _ = delivery.value
    assert (await orders.stats()).delayed == 1
    assert await orders.dead_letters.size() == 0


async def test_a_transaction_takes_no_undecodable_message(session: zq.QueueSession) -> None:
    orders, raw = session.queue("orders", Order), session.queue("orders")
    await raw.put_many([b"{", b'{"id":1}'])
    async with session.transaction() as tx:
        message = await tx.take(orders, timeout=30)
        assert message is not None
        assert message.value == Order(id=1)
    async with session.transaction() as tx:
        assert await tx.take(orders) is None


async def test_an_undecodable_peeked_payload_raises_when_it_is_read(session: zq.QueueSession) -> None:
    await session.queue("orders").put(b"{")
    (message,) = await session.queue("orders", Order).peek()
    assert message.body == b"{"
    with pytest.raises(zq.PayloadError):
        _ = message.value


async def test_an_error_about_a_payload_does_not_repeat_it(session: zq.QueueSession) -> None:
    queue: zq.Queue[Any] = session.queue("orders", Order)
    with pytest.raises(zq.PayloadError) as raised:
        await queue.put({"id": "secret"})
    assert "secret" not in str(raised.value)
    with pytest.raises(zq.PayloadError, match="id: Expected `int`") as raised:
        await queue.put(Order.model_construct(id="secret"))
    assert "secret" not in str(raised.value)


async def test_a_payload_that_begins_like_an_envelope_is_delivered_unchanged(session: zq.QueueSession) -> None:
    value = b"\xf5zq1 and so on"
    assert await round_trip(session.queue("jobs"), value) == value


async def test_a_broken_envelope_becomes_a_dead_letter(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await server_view.create(f"{queue_root}/jobs/items/item-0000000001", b"\xf5zq1\xff\xff\xff\xff")
    jobs = session.queue("jobs")
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None

    async def dead() -> bool:
        return await jobs.dead_letters.size() == 1

    await eventually(dead)
    (letter,) = await jobs.dead_letters.peek()
    assert "envelope" in letter.reason
    assert letter.body == b"\xf5zq1\xff\xff\xff\xff"


async def test_a_header_too_large_to_be_rewritten_becomes_a_dead_letter_and_stops_no_consumer(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    """Dead-lettering adds the reason to the header."""
    header = json.dumps({"headers": {"a": "x" * 60_000}}).encode()
    await server_view.create(
        f"{queue_root}/jobs/items/item-0000000001", b"\xf5zq1" + len(header).to_bytes(4, "big") + header
    )
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(1))
    await jobs.put(b"next")
    bodies: list[bytes] = []
    async with jobs.consume(until_idle=0.5) as deliveries:
        async for delivery in deliveries:
            with suppress(ValueError):
                async with delivery:
                    bodies.append(delivery.body)
                    raise ValueError("\x01" * 4096)
    assert bodies == [b"next"]
    reasons = [letter.reason for letter in await jobs.dead_letters.peek()]
    assert len(reasons) == 2
    assert "more than 32768" in reasons[0]


async def test_messages_with_the_largest_headers_are_redriven_and_moved(session: zq.QueueSession) -> None:
    """Redriving and moving add the time of the put to the header."""
    headers = {"a": "x" * (32 * 1024 - len('{"headers":{"a":""}}'))}
    jobs, later = session.queue("jobs"), session.queue("later")
    for body in (b"1", b"2"):
        await jobs.put(body, headers=headers)
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=10)
        assert message is not None
        tx.reject(message, "bad")
    assert await jobs.dead_letters.redrive() == 1

    reference = await session.admin.moves.start("jobs", "later")

    async def moved() -> bool:
        return (await session.admin.moves.status(reference)).state != "running"

    await eventually(moved)
    assert (await session.admin.moves.status(reference)).error is None
    async with session.transaction() as tx:
        found = await tx.take_many(later, 5, timeout=10)
    assert [(message.body, message.headers) for message in found] == [(b"2", headers), (b"1", headers)]


async def test_thousands_of_messages_without_payload_are_taken_by_one_session(session: zq.QueueSession) -> None:
    """The size that a session expects of the next item must not become zero."""
    signals = session.queue("signals")
    await signals.put_many([b""] * 8000)
    taken = 0
    while taken < 8000:
        async with session.transaction() as tx:
            messages = await tx.take_many(signals, 100, timeout=30)
        assert messages
        taken += len(messages)
