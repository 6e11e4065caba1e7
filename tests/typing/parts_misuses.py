"""As misuses.py, for the features around queues."""
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue import testing
from aiozkqueue.bus import Bus
from aiozkqueue.fastapi import in_transaction, lifespan
from aiozkqueue.http.client import QueueServiceClient
from aiozkqueue.schedule import Jobs, Notification, Notifications, Scheduler
from aiozkqueue.spark import register


class Event(BaseModel): order: int
class Paid(Event): cents: int
async def paid(event: Paid) -> None: ...
async def remind(notification: Notification[Paid]) -> None: ...
async def handle(delivery: zq.Delivery[Paid]) -> None: ...


async def misuse(session: zq.QueueSession) -> None:
    jobs, queue = Jobs(session), session.queue("paid", Paid)
    await jobs.add("a", "* * * * *", queue, b"raw")  # refused: a Queue[Paid]
    await jobs.add("a", "* * * * *", "raw", Event(order=1))  # refused: a bare name takes bytes
    await jobs.add("a", "* * * * *", queue, Paid(order=1, cents=1), missed="never")  # refused: skip, last or all
    await jobs.add("a", "* * * * *", queue, Paid(order=1, cents=1), timezone="UTC")  # refused: no such option
    jobs.pause("a")  # refused by pyright: never awaited
    await Scheduler(session).stop()  # refused: not awaitable
    notes = await Notifications(session).create("shop", "dunning", Event)
    await notes.schedule(Event(order=1), "tomorrow")  # refused: a date
    await notes.schedule({"order": 1}, None)  # refused: neither an Event nor a date
    notes.listener(remind)  # refused: it takes Paid, and may get any Event
    bus = Bus(session, "shop", Event)
    await bus.post("paid")  # refused: not an event of this bus
    bus.subscribe(Event, paid)  # refused: it takes Paid, and may get any Event
    async with QueueServiceClient("http://h:8080") as queues:
        await queues.send("q", b"raw")  # refused: not JSON
        await queues.send("q", object())  # refused: not JSON
        await queues.poll("q", ttl=30)  # refused: claim_ttl
        (await queues.poll("q"))[0].body  # refused: payload
    lifespan(2181)  # refused: no servers
    in_transaction(timeout=2)  # refused: commit_timeout
    testing.delivery(Paid(order=1, cents=1), attempts=2)  # refused: attempt
    await testing.handle(handle, testing.delivery(Event(order=1)))  # refused: it reads Paid
    await testing.assert_put(queue, "paid")  # refused: not a Paid
    testing.delivery(b"").outcome = zq.Outcome.COMMITTED  # refused: read-only
    register("local[*]")  # refused by pyright: not a Spark session
