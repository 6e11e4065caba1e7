"""Programs with the features around queues, and the types of their values. mypy and pyright accept them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_type

from fastapi import FastAPI
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue import testing
from aiozkqueue.bus import Bus
from aiozkqueue.fastapi import SessionDep, TransactionDep, error_handlers, lifespan
from aiozkqueue.http.client import FixedHosts, QueueServiceClient, ServiceError, ServiceMessage, ServiceMove
from aiozkqueue.schedule import Job, Jobs, Notification, NotificationQueue, Notifications, Scheduler
from aiozkqueue.spark import register
from aiozkqueue.spark.audit import Moved, Report, move, report
from aiozkqueue.spark.transfer import Unloaded, load, unload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Event(BaseModel):
    order: int


class Paid(Event):
    cents: int


# A schedule
async def nightly(session: zq.QueueSession) -> Job:
    jobs, reports = Jobs(session), session.queue("reports", Event)
    await jobs.declare("raw", "0 3 * * *", "raw", b"{}", missed="skip")
    job = await jobs.add("nightly", "0 3 * * *", reports, Event(order=0), zone="Europe/Berlin", priority=5, limit=3)
    assert_type(job.next, datetime | None)
    assert_type(await jobs.list(), list[Job])
    async with Scheduler(session):
        await jobs.change("nightly", missed="all", tolerance=timedelta(minutes=5))
    await zq.run(Scheduler(session), session.listener(reports, handle_event))
    return await jobs.pause("nightly")


async def handle_event(delivery: zq.Delivery[Event]) -> None:
    assert_type(delivery.value, Event)


# A date
async def dunning(session: zq.QueueSession) -> zq.Listener[Paid]:
    reminders = await Notifications(session).create("shop", "dunning", Paid)
    assert_type(reminders, NotificationQueue[Paid])
    async with session.transaction() as tx:
        await reminders.schedule(Paid(order=1, cents=990), datetime(2030, 1, 1, tzinfo=UTC), search_key2="1", tx=tx)

    async def remind(notification: Notification[Paid]) -> None:
        assert_type(notification.event.cents, int)
        if notification.delivery is not None:
            notification.delivery.put("letters", b"pay, please")

    assert_type(await reminders.find("1"), list[Notification[Paid]])
    return reminders.listener(remind, concurrency=2)


# Events
async def shop(session: zq.QueueSession) -> list[str]:
    bus = Bus(session, "shop", Event)

    async def everything(event: Event) -> None:
        assert event.order

    async def payments(event: Paid) -> None:
        assert event.cents

    bus.subscribe(Event, everything)
    bus.subscribe(Paid, payments, group="books")
    await bus.join("books")
    async with session.transaction() as tx:
        ids = await bus.post(Paid(order=1, cents=990), tx=tx, priority=3)
    books = bus.listener(group="books")
    assert_type(books, zq.Listener[bytes])
    books.stop()
    return ids


# A call
async def quoted(quotes: zq.Queue[Paid]) -> int | str:
    try:
        return await quotes.call(Paid(order=1, cents=990), int, timeout=5)
    except zq.errors.NoReplyError as error:  # an error that only the module of errors has
        return error.message_id


# Over HTTP
async def elsewhere(url: str, key: str) -> list[ServiceMessage]:
    async with QueueServiceClient(FixedHosts(url), key=key, timeout=5) as queues:
        await queues.send("orders", {"order": 1, "lines": [None, 1.5, "tea"]})
        await queues.send_all({"orders": [1, 2], "others": ["three"]})
        messages = await queues.poll("orders", claim_ttl=timedelta(minutes=1), limit=100, wait=1)
        await queues.acknowledge("orders", [message.id for message in messages])
        try:
            assert_type(await queues.get_move_status(await queues.move_async("orders", "archive")), ServiceMove)
        except ServiceError as error:
            assert_type(error.status, int | None)
        assert_type(await queues.get_message_count("orders"), int)
        return messages


# In a web application
app = FastAPI(lifespan=lifespan("127.0.0.1:2181", session_timeout=5), exception_handlers=error_handlers)


@app.post("/paid", status_code=202)
async def paid(event: Paid, tx: TransactionDep, session: SessionDep) -> dict[str, str]:
    assert_type(tx, zq.Transaction)
    return {"accepted": tx.put(session.queue("paid", Paid), event)}


# A test of one's own code
async def test_an_event_is_handled(session: zq.QueueSession) -> None:
    delivery = testing.delivery(Event(order=1), attempt=2, headers={"from": "web"})
    assert_type(delivery, testing.RecordedDelivery[Event])
    assert_type(await testing.handle(handle_event, delivery), zq.Outcome)
    queue = session.queue("orders", Event)
    await queue.put(Event(order=1), key="1")
    message = await testing.assert_put(queue, Event(order=1), key="1", timeout=5)
    assert_type(message, zq.Message[Event])
    await queue.purge()
    await testing.assert_empty(queue)


def simulated() -> int:
    async def main() -> int:
        async with testing.simulated(seed=7) as cluster, cluster.connect() as session:
            await test_an_event_is_handled(session)
            return await session.queue("orders").size()

    return testing.run_virtual(main)


# With Spark
def by_night(spark: SparkSession, hosts: str) -> Report:
    register(spark)
    options = {"hosts": hosts, "queue": "orders"}
    assert_type(load(spark, ["orders.csv"], options, infer=True), int)
    assert_type(unload(spark, "unloaded", options, schema="id int"), Unloaded)
    assert_type(move(spark, "audited", options, queues=["orders"]), Moved)
    return report(spark, "audited", since=datetime(2030, 1, 1, tzinfo=UTC))
