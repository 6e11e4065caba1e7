"""The programs that users write first run against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue import testing
from aiozkqueue.bus import Bus
from aiozkqueue.schedule import Notifications
from tests.typing import parts, programs
from tests.typing.programs import HandlerError, Invoice, Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
    from contextlib import AbstractAsyncContextManager


@pytest.fixture(autouse=True)
def connect(monkeypatch: pytest.MonkeyPatch, zookeeper: str, queue_root: str) -> Callable[..., object]:
    """Connect the programs to the test's server and root, instead of their addresses."""
    connect = zq.connect

    def connect_here(_: str) -> AbstractAsyncContextManager[zq.QueueSession]:
        return connect(zookeeper, root=queue_root, session_timeout=20)

    monkeypatch.setattr(zq, "connect", connect_here)
    return connect_here


@pytest.fixture
async def session() -> AsyncIterator[zq.QueueSession]:
    async with zq.connect("anywhere") as session:
        yield session


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 -- the server makes it true
            await asyncio.sleep(0.02)


async def stop(program: asyncio.Task[None]) -> None:
    program.cancel()
    with pytest.raises(asyncio.CancelledError):
        await program


async def test_the_worker_ships_every_order_and_gets_a_failed_one_again(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = session.queue("orders", Order)
    shipped: list[int] = []
    failed: list[int] = []

    async def ship(order: Order) -> None:
        if order.id == 2 and not failed:
            failed.append(2)
            raise HandlerError
        shipped.append(order.id)

    monkeypatch.setattr(programs, "ship", ship)
    working = asyncio.create_task(programs.worker())
    await orders.put_many([Order(id=1), Order(id=2), Order(id=3)])

    async def empty() -> bool:
        return await orders.size() == 0

    await until(empty)
    assert (sorted(shipped), failed) == ([1, 2, 3], [2])
    await stop(working)


async def test_the_web_application_puts_an_order_in_the_requests_transaction(session: zq.QueueSession) -> None:
    async with programs.app.router.lifespan_context(programs.app) as state:

        async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            # The server's part of the lifespan protocol, which httpx does not implement.
            await programs.app({**scope, "state": dict(state or {})}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            answer = await client.post("/orders", json={"id": 7})
        assert answer.status_code == 202
        # The commit happened before the response.
        (message,) = await session.queue("orders", Order).peek()
        assert (message.id, message.value, message.key) == (answer.json()["accepted"], Order(id=7), "7")


async def test_the_pipeline_turns_every_order_into_an_invoice(session: zq.QueueSession) -> None:
    running = asyncio.create_task(programs.pipeline(session))
    await session.queue("orders", Order).put_many([Order(id=number) for number in range(5)])
    invoices = session.queue("invoices", Invoice)

    async def all_there() -> bool:
        return await invoices.size() == 5

    await until(all_there)
    assert sorted(message.value.order for message in await invoices.peek()) == [0, 1, 2, 3, 4]
    await stop(running)
    assert await session.queue("orders").size() == 0


async def test_the_join_takes_from_two_queues_and_rejects_the_payments(session: zq.QueueSession) -> None:
    orders, payments = session.queue("orders", Order), session.queue("payments", Order | Invoice)
    await orders.put(Order(id=1))
    await payments.put_many([Invoice(order=8), Order(id=9)])
    await programs.join(session, orders, payments)
    assert (await orders.size(), await payments.size()) == (0, 0)
    assert [(dead.value, dead.reason) for dead in await payments.dead_letters.peek()] == [
        (Invoice(order=8), "no such order"),
        (Order(id=9), "no such order"),
    ]


async def test_the_service_serves_its_queues_until_a_signal_arrives(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    billed: list[Order] = []

    async def bill(delivery: zq.Delivery[Order]) -> None:
        billed.append(delivery.value)

    monkeypatch.setattr(programs, "bill", bill)
    orders, invoices, raw = session.queue("orders", Order), session.queue("invoices", Invoice), session.queue("raw")
    await orders.put_many([Order(id=1), Order(id=2)])
    await invoices.put(Invoice(order=1))
    await raw.put(b"\x00")
    serving = asyncio.create_task(programs.service())

    async def served() -> bool:
        return (await orders.size(), await raw.size(), (await invoices.stats()).delayed) == (0, 0, 1)

    await until(served)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 60)
    assert sorted(order.id for order in billed) == [1, 2]
    assert await invoices.size() == 1  # its handler raised Retry(delay=5)


async def test_the_handlers_test_needs_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    invoices = testing.queue("invoices", Invoice)

    async def bill(delivery: zq.Delivery[Order]) -> None:
        delivery.put(invoices, Invoice(order=delivery.value.id))

    monkeypatch.setattr(programs, "bill", bill)
    await programs.test_bill()


async def test_an_event_of_the_shop_is_on_its_bus_and_in_its_group(session: zq.QueueSession) -> None:
    assert len(await parts.shop(session)) == 2
    bus = Bus(session, "shop", parts.Event)
    assert [await bus.queue(group).size() for group in (None, "books")] == [1, 1]


async def test_a_reminder_waits_for_its_date(session: zq.QueueSession) -> None:
    (await parts.dunning(session)).stop()
    reminders = await Notifications(session).get("shop", "dunning", parts.Paid)
    (reminder,) = await reminders.find()
    assert (reminder.event, reminder.effective_date.year) == (parts.Paid(order=1, cents=990), 2030)


def test_the_users_test_passes_on_a_simulated_ensemble() -> None:
    assert parts.simulated() == 0
