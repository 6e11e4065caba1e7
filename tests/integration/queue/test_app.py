"""An application is declared when a module is imported, and connected later: by a worker, FastAPI or a test."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from fastapi import FastAPI

import aiozkqueue as zq
from aiozkqueue import testing
from aiozkqueue.errors import ConfigConflictError, InvalidNameError, InvalidScheduleError
from aiozkqueue.fastapi import TransactionDep, error_handlers, lifespan
from aiozkqueue.schedule import Jobs
from aiozkqueue.session.connect import ConnectOptions
from aiozkqueue.testing import assert_dead_lettered, assert_empty, assert_put
from tests.web.conftest import serving

if TYPE_CHECKING:
    from datetime import datetime

    from aiozkqueue.testing import QueueServer, TestClock


@dataclass
class Order:
    id: int


@dataclass
class Invoice:
    order: int


@dataclass
class Shop:
    """The declarations of a user's module."""

    app: zq.App
    orders: zq.Queue[Order]
    invoices: zq.Queue[Invoice]


def _shop(hosts: str = "127.0.0.1:1", **options: Any) -> Shop:
    app = zq.App(hosts, **options)
    orders = app.queue("orders", Order, policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    invoices = app.queue("invoices", Invoice)

    @app.listener(orders, concurrency=8)
    async def bill(delivery: zq.Delivery[Order]) -> None:
        if delivery.value.id < 0:
            raise zq.Reject("there is no such order")
        delivery.put(invoices, Invoice(order=delivery.value.id))

    return Shop(app, orders, invoices)


@pytest.fixture
def shop(zookeeper: str, queue_root: str) -> Shop:
    return _shop(zookeeper, root=queue_root, session_timeout=20)


async def test_a_declared_queue_works_while_its_application_is_connected(shop: Shop) -> None:
    with pytest.raises(zq.SessionClosedError, match="its application is not connected"):
        await shop.orders.put(Order(id=1))
    async with shop.app.connect() as session:
        await shop.orders.put(Order(id=1))
        async with session.transaction() as tx:
            message = await tx.take(shop.orders)
            assert message is not None
            assert message.value == Order(id=1)
            tx.put(shop.invoices, Invoice(order=1))
        assert [message.value for message in await shop.invoices.peek()] == [Invoice(order=1)]
        late = shop.app.queue("late")
        await late.put(b"declared while it is connected")
    with pytest.raises(zq.SessionClosedError, match="its application is not connected"):
        await late.size()


async def test_a_running_application_handles_messages_with_the_declared_policy(shop: Shop) -> None:
    async with shop.app.serve():
        await shop.orders.put_many([Order(id=1), Order(id=2), Order(id=-3)])
        await assert_put(shop.invoices, Invoice(order=1), timeout=60)
        await assert_put(shop.invoices, Invoice(order=2), timeout=60)
        await assert_dead_lettered(shop.orders, Order(id=-3), reason="no such order", timeout=60)
        configured = await shop.orders.configuration()
        assert configured.policy == zq.ConsumeTimes(2, backoff=zq.Fixed(0))
        await assert_empty(shop.orders, timeout=60)


async def test_an_application_runs_until_a_signal_arrives(shop: Shop) -> None:
    running = asyncio.create_task(shop.app.run())
    async with zq.connect(shop.app._hosts, **shop.app._options) as session:
        await session.queue("orders", Order).put(Order(id=5))
        await assert_put(session.queue("invoices", Invoice), Invoice(order=5), timeout=60)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 60)


async def test_a_test_runs_an_application_in_memory(queue_session: zq.QueueSession) -> None:
    shop = _shop()
    async with shop.app.serve(queue_session):
        await shop.orders.put(Order(id=7))
        await assert_put(shop.invoices, Invoice(order=7), timeout=60)


async def test_a_test_calls_a_handler_without_a_server() -> None:
    app = zq.App("127.0.0.1:1")
    orders, invoices = app.queue("orders", Order), app.queue("invoices", Invoice)

    @app.listener(orders)
    async def bill(delivery: zq.Delivery[Order]) -> None:
        delivery.put(invoices, Invoice(order=delivery.value.id))

    delivery = testing.delivery(Order(id=1))
    await bill(delivery)
    assert [(put.queue, put.value) for put in delivery.puts] == [("invoices", Invoice(order=1))]
    with pytest.raises(zq.PayloadError, match="not a value for queue 'invoices'"):
        delivery.put(invoices, cast("Invoice", Order(id=1)))


async def test_a_job_is_handled_at_its_time(queue_session: zq.QueueSession, queue_clock: TestClock) -> None:
    app = zq.App("127.0.0.1:1")
    occurrences: list[str] = []
    handled_again = asyncio.Event()

    @app.cron("0 3 * * *", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    async def nightly(delivery: zq.Delivery[bytes]) -> None:
        occurrences.append(delivery.headers["occurrence"])
        if delivery.attempt == 1:
            raise OSError
        handled_again.set()

    async with app.serve(queue_session):
        (job,) = await Jobs(queue_session).list()
        assert (job.name, job.queue, job.cron, job.zone) == ("nightly", "nightly", "0 3 * * *", "UTC")
        queue_clock.advance(24 * 3600)
        async with asyncio.timeout(60):
            await handled_again.wait()
    assert len(occurrences) == 2  # the failed attempt and the next one
    assert len(set(occurrences)) == 1
    assert occurrences[0].endswith("T03:00:00+00:00")
    async with app.serve(queue_session):  # another process declares the same job
        assert [job.cron for job in await Jobs(queue_session).list()] == ["0 3 * * *"]


async def test_a_job_that_is_given_up_calls_its_alarm(queue_session: zq.QueueSession, queue_clock: TestClock) -> None:
    app = zq.App("127.0.0.1:1")
    letters = asyncio.Queue[tuple[str, BaseException | None]]()

    async def alarm(letter: zq.DeadLetter[bytes], error: BaseException | None) -> None:
        letters.put_nowait((letter.headers["occurrence"], error))

    @app.cron("0 3 * * *", policy=zq.ConsumeTimes(1), on_dead=alarm, concurrency=2)
    async def nightly(_: zq.Delivery[bytes]) -> None:
        raise OSError("no disk")

    async with app.serve(queue_session), asyncio.timeout(60):
        queue_clock.advance(24 * 3600)
        occurrence, error = await letters.get()
    assert occurrence.endswith("T03:00:00+00:00")
    assert str(error) == "no disk"


def test_an_alarm_of_the_wrong_shape_is_refused_when_it_is_declared() -> None:
    app = zq.App("127.0.0.1:1")

    async def alarm(letter: object) -> None: ...

    with pytest.raises(zq.InvalidOptionError, match="on_dead is called with two arguments"):
        app.cron("@daily", on_dead=alarm)  # type: ignore[arg-type]  # it is refused at run time
    with pytest.raises(zq.InvalidOptionError, match="on_dead is called with two arguments"):
        app.listener(app.queue("orders"), on_dead=alarm)  # type: ignore[arg-type]  # it is refused at run time


async def test_a_job_does_not_occur_while_its_last_run_lasts_if_it_is_unique(
    queue_session: zq.QueueSession, queue_clock: TestClock
) -> None:
    app = zq.App("127.0.0.1:1")
    begun, go = asyncio.Queue[str](), asyncio.Event()

    @app.cron("0 3 * * *", unique="ignore")
    async def nightly(delivery: zq.Delivery[bytes]) -> None:
        begun.put_nowait(delivery.headers["occurrence"])
        await go.wait()

    async def decided() -> datetime:
        return (await Jobs(queue_session).get("nightly")).decided

    async with app.serve(queue_session), asyncio.timeout(60):
        queue_clock.advance(24 * 3600)
        await begun.get()
        since = await decided()
        queue_clock.advance(24 * 3600)
        while await decided() == since:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        assert await queue_session.queue("nightly").size() == 1
        go.set()
        await testing.assert_empty(queue_session.queue("nightly"), timeout=30)
        queue_clock.advance(24 * 3600)
        await begun.get()


def test_a_job_with_invalid_times_is_refused_when_it_is_declared() -> None:
    app = zq.App("127.0.0.1:1")
    with pytest.raises(InvalidScheduleError, match="25"):
        app.cron("0 25 * * *")
    with pytest.raises(InvalidScheduleError, match="'Mars/Base' is not a known time zone"):
        app.cron("@daily", zone="Mars/Base")
    with pytest.raises(zq.InvalidOptionError, match="missed='some'"):
        app.cron("@daily", missed="some")  # type: ignore[arg-type]
    with pytest.raises(zq.InvalidOptionError, match="tolerance=0"):
        app.cron("@daily", tolerance=0)


def test_a_job_with_an_unknown_mode_of_its_unique_key_is_refused_when_it_is_declared() -> None:
    async def nightly(_: zq.Delivery[bytes]) -> None: ...

    declared = zq.App("127.0.0.1:1").cron("@daily", unique="some")  # type: ignore[arg-type]  # it is refused at run time
    with pytest.raises(zq.InvalidOptionError, match="unique='some'"):
        declared(nightly)


def test_a_program_without_the_extra_can_declare_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    app = zq.App("127.0.0.1:1")

    @app.cron("@daily")
    async def nightly(_: zq.Delivery[bytes]) -> None: ...

    assert repr(app).endswith(": 1 handler>")


async def test_an_endpoint_puts_to_a_declared_queue_in_its_transaction(shop: Shop) -> None:
    web = FastAPI(lifespan=lifespan(shop.app), exception_handlers=error_handlers)

    @web.post("/orders/{order}", status_code=202)
    async def create(order: int, tx: TransactionDep) -> str:
        return tx.put(shop.orders, Order(id=order))

    @web.get("/orders")
    async def waiting() -> int:
        return await shop.orders.size()

    async with serving(web) as (host, port), httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client:
        assert (await client.post("/orders/4")).status_code == 202
        assert (await client.get("/orders")).json() == 1


async def test_an_application_is_connected_once_at_a_time(queue_server: QueueServer) -> None:
    shop = _shop()
    async with queue_server.connect() as session, queue_server.connect() as other:
        with shop.app.bind(session), shop.app.bind(session):
            with pytest.raises(zq.InvalidOptionError, match="already connected"), shop.app.bind(other):
                pass
            with pytest.raises(zq.InvalidOptionError, match="'orders' belongs to another session"):
                async with other.transaction() as tx:
                    tx.put(shop.orders, Order(id=1))
        with shop.app.bind(other):
            await shop.orders.put(Order(id=1))


def test_mistakes_are_refused_when_the_module_is_imported() -> None:
    app, other = zq.App("127.0.0.1:1"), zq.App("127.0.0.1:1")
    orders = app.queue("orders", Order)

    async def handler(delivery: zq.Delivery[Order]) -> None: ...
    async def no_parameter() -> None: ...
    async def two(delivery: zq.Delivery[Order], payments: object) -> None: ...
    async def orders_job(delivery: zq.Delivery[bytes]) -> None: ...
    def sync(delivery: zq.Delivery[Order]) -> None: ...

    with pytest.raises(zq.InvalidOptionError, match="hosts"):
        zq.App("")
    with pytest.raises(zq.InvalidOptionError, match="session_timeout=-1"):
        zq.App("127.0.0.1:1", session_timeout=-1)
    with pytest.raises(InvalidNameError):
        app.queue("a/b")
    with pytest.raises(zq.InvalidOptionError, match=r"app\.queue\(\) of this application"):
        other.listener(orders)
    with pytest.raises(zq.InvalidOptionError, match="concurrency=0"):
        app.listener(orders, concurrency=0)
    with pytest.raises(zq.InvalidOptionError, match="no option 'concurency'"):
        app.listener(orders, concurency=1)  # type: ignore[call-overload]
    with pytest.raises(zq.InvalidOptionError, match="make it an `async def`"):
        app.listener(orders)(sync)  # type: ignore[arg-type]
    for wrong in (no_parameter, two):
        with pytest.raises(zq.InvalidOptionError, match="called with one argument, the delivery"):
            app.listener(orders)(wrong)  # type: ignore[arg-type]
    with pytest.raises(zq.InvalidOptionError, match="queue or a job of this name"):
        app.cron("@daily", name="orders")(orders_job)
    app.cron("@daily", name="nightly")(orders_job)
    with pytest.raises(zq.InvalidOptionError, match="a job of this name takes"):
        app.queue("nightly", Order)
    app.listener(orders)(handler)
    assert repr(app).endswith(": 2 handlers>")


async def test_a_queue_that_conflicts_with_the_stored_policy_is_not_declared(queue_session: zq.QueueSession) -> None:
    await queue_session.queue("orders", policy=zq.ConsumeTimes(3)).put(b"")
    app = zq.App("127.0.0.1:1")
    invoices = app.queue("invoices")
    with app.bind(queue_session), pytest.raises(ConfigConflictError):
        app.queue("orders", policy=zq.ConsumeTimes(5))
    with app.bind(queue_session):
        await invoices.put(b"")


async def test_an_application_that_cannot_be_bound_stays_unconnected(queue_session: zq.QueueSession) -> None:
    await queue_session.queue("orders", policy=zq.ConsumeTimes(3)).put(b"")
    app = zq.App("127.0.0.1:1")
    invoices = app.queue("invoices")
    app.queue("orders", policy=zq.ConsumeTimes(5))
    with pytest.raises(ConfigConflictError), app.bind(queue_session):
        pass
    with pytest.raises(zq.SessionClosedError, match="not connected"):
        await invoices.put(b"")


async def test_an_application_without_handlers_is_not_run(queue_session: zq.QueueSession) -> None:
    app = zq.App("127.0.0.1:1")
    with pytest.raises(zq.InvalidOptionError, match=r"has no handler; declare one with @app\.listener"):
        async with app.serve(queue_session):
            pass


def test_an_application_takes_every_option_of_a_connection() -> None:
    assert ["hosts", *ConnectOptions.__annotations__] == list(inspect.signature(zq.connect).parameters)
