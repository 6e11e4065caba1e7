"""The persistent bus: typed events, several subscribers, and groups that each receive every event."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest
from kazoo.security import make_acl
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus, Buses
from aiozkqueue.errors import AlreadyExistsError, InvalidNameError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

T = TypeVar("T")

pytestmark = pytest.mark.timeout(90)


class Event(BaseModel):
    order: int


class Placed(Event):
    lines: int = 1


class Shipped(Event):
    carrier: str


class ShippedAbroad(Shipped):
    country: str


class Changed(Event, Generic[T]):
    now: T


class Log:
    """A subscriber that records the events of its calls."""

    def __init__(self, fails: int = 0) -> None:
        self.events: list[Event] = []
        self.calls = 0
        self._fails = fails

    async def __call__(self, event: Event) -> None:
        self.calls += 1
        if self.calls <= self._fails:
            raise OSError("not now")
        self.events.append(event)

    async def got(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.events) < count:  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.01)


async def emptied(bus: Bus[Event], group: str | None = None) -> None:
    async with asyncio.timeout(30):
        while await bus.queue(group).size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)


async def test_reading_and_leaving_groups_create_no_bus(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    bus = Bus(session, "mistyped", Event)
    assert await bus.groups() == []
    with pytest.raises(NotFoundError, match="bus 'mistyped' has no group 'mail'"):
        await bus.leave("mail")
    assert await Buses(session).list() == []
    assert not await server_view.exists(f"{queue_root}/.buses")
    await bus.join("mail")
    assert await bus.groups() == ["mail"]
    await bus.leave("mail")
    assert await bus.groups() == []


async def test_a_subscriber_gets_events_of_its_type_and_of_subclasses(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    every, placed, shipped = Log(), Log(), Log()
    bus.subscribe(Event, every, name="every")
    bus.subscribe(Placed, placed, name="placed")
    bus.subscribe(Shipped, shipped, name="shipped")
    events = [
        Placed(order=1, lines=3),
        Shipped(order=1, carrier="x"),
        ShippedAbroad(order=2, carrier="y", country="NP"),
    ]
    for event in events:
        await bus.post(event)
    async with bus.listener():
        await every.got(3)
        await emptied(bus)
    assert every.events == events
    assert (placed.events, shipped.events) == (events[:1], events[1:])
    assert type(shipped.events[1]) is ShippedAbroad


async def test_a_subscriber_of_a_generic_type_gets_the_events_of_its_parameters_only(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    prices, texts = Log(), Log()
    bus.subscribe(Changed[dict[str, int]], prices, name="prices")
    bus.subscribe(Changed[dict[str, str]], texts, name="texts")
    changed = Changed[dict[str, int]](order=1, now={"cents": 5})
    await bus.post(changed)
    await bus.post(Changed[dict[str, str]](order=1, now={"name": "tea"}))
    async with bus.listener():
        await emptied(bus)
    assert (prices.events, texts.calls) == ([changed], 1)


async def test_a_retry_calls_only_the_subscribers_that_failed(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    first, failing, last = Log(), Log(fails=2), Log()
    bus.subscribe(Event, first, name="first")
    bus.subscribe(Event, failing, name="failing")
    bus.subscribe(Event, last, name="last")
    await bus.post(Placed(order=1))
    async with bus.listener():
        await failing.got(1)
        await emptied(bus)
    assert (first.calls, failing.calls, last.calls) == (1, 3, 1)


async def test_a_subscriber_that_keeps_failing_is_called_four_times_and_the_dead_letter_lists_finished_ones(
    session: zq.QueueSession,
) -> None:
    bus = Bus(session, "orders", Event)
    good, bad = Log(), Log(fails=4)
    bus.subscribe(Event, good, name="good")
    bus.subscribe(Event, bad, name="bad")
    await bus.post(Placed(order=1))
    letters = bus.queue().dead_letters
    async with bus.listener():
        await emptied(bus)
        assert (good.calls, bad.calls, await letters.size()) == (1, 4, 1)
        assert "OSError: not now" in (await letters.peek())[0].reason
        assert await letters.redrive() == 1
        await bad.got(1)
        await emptied(bus)
    assert (good.calls, bad.calls) == (1, 5)


async def test_an_event_that_a_subscriber_rejects_becomes_a_dead_letter_when_no_subscriber_must_be_retried(
    session: zq.QueueSession,
) -> None:
    bus, calls = Bus(session, "orders", Event), list[str]()
    good, failing = Log(), Log(fails=1)

    async def reject(event: Event) -> None:
        calls.append(f"{event.order}")
        raise zq.Reject("no such customer")

    bus.subscribe(Event, good, name="good")
    bus.subscribe(Event, reject)
    bus.subscribe(Placed, failing, name="failing")
    await bus.post(Shipped(order=1, carrier="x"))
    await bus.post(Placed(order=2))
    letters = bus.queue().dead_letters
    async with bus.listener():
        await emptied(bus)
        assert [letter.reason for letter in await letters.peek()] == ["no such customer"] * 2
        assert (calls, good.calls, failing.calls) == (["1", "2", "2"], 2, 2)
        assert await letters.redrive() == 2
        await emptied(bus)
    assert (len(calls), good.calls, failing.calls) == (5, 2, 2), "a redriven event keeps the finished subscribers"


async def test_a_subscriber_that_hangs_is_retried_alone_and_its_dead_letter_raises_an_alarm(
    session: zq.QueueSession,
) -> None:
    bus = Bus(session, "orders", Event, policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    first, alarms = Log(), asyncio.Queue[tuple[str, BaseException | None]]()

    async def hangs(_: Event) -> None:
        await asyncio.sleep(3600)

    async def alarm(letter: zq.DeadLetter[bytes], error: BaseException | None) -> None:
        await alarms.put((letter.id, error))

    bus.subscribe(Event, first, name="first")
    bus.subscribe(Event, hangs)
    ids = await bus.post(Placed(order=1))
    async with bus.listener(timeout=0.2, on_dead=alarm), asyncio.timeout(60):
        dead, error = await alarms.get()
    assert ([dead], type(error)) == (ids, TimeoutError)
    assert first.calls == 1


async def test_a_subscriber_may_reject_an_event_in_a_task_group(session: zq.QueueSession) -> None:
    bus, calls = Bus(session, "orders", Event), list[int]()

    async def reject(event: Event) -> None:
        calls.append(event.order)
        raise ExceptionGroup("of tasks", [zq.Reject("no such customer")])

    bus.subscribe(Event, reject)
    await bus.post(Placed(order=1))
    async with bus.listener():
        await emptied(bus)
    assert [letter.reason for letter in await bus.queue().dead_letters.peek()] == ["no such customer"]
    assert calls == [1]


async def test_a_listener_stopped_during_an_event_records_the_finished_subscribers(session: zq.QueueSession) -> None:
    bus, first, second, hangs = Bus(session, "shop", Event), Log(), Log(), asyncio.Event()

    async def hang(_: Event) -> None:
        hangs.set()
        await asyncio.Event().wait()

    bus.subscribe(Event, first, name="first")
    bus.subscribe(Event, hang, name="second")
    await bus.post(Placed(order=1))
    async with bus.listener(drain_timeout=0):
        await hangs.wait()
    later = Bus(session, "shop", Event)
    later.subscribe(Event, first, name="first")
    later.subscribe(Event, second, name="second")
    async with later.listener():
        await second.got(1)
        await emptied(later)
    assert first.calls == 1


async def test_another_process_takes_over_and_calls_only_the_subscribers_that_failed(open_session: Opener) -> None:
    dying, successor = [Bus(await open_session(), "orders", Event) for _ in range(2)]
    good, failing = Log(), Log(fails=1)
    failing_called = asyncio.Event()

    async def fails_here(event: Event) -> None:
        failing_called.set()
        await failing(event)

    for bus, handler in ((dying, fails_here), (successor, failing)):
        bus.subscribe(Event, good, name="good")
        bus.subscribe(Event, handler, name="failing")
    await dying.post(Placed(order=1))
    listener = dying.listener()
    async with listener:
        await failing_called.wait()
        listener.stop()
    async with successor.listener():
        await failing.got(1)
    assert (good.calls, failing.calls) == (1, 2)


async def test_a_group_gets_every_event_posted_after_it_joined(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    bus, other_bus = Bus(session, "orders", Event), Bus(other, "orders", Event)
    await bus.post(Placed(order=1))
    await other_bus.join("audit")
    await other_bus.join("audit")
    await bus.post(Placed(order=2))  # by a process that has not read the new group
    await other_bus.join("mail")
    await bus.post(Placed(order=3))
    assert await bus.groups() == ["audit", "mail"]
    logs: dict[str | None, Log] = {None: Log(), "audit": Log(), "mail": Log()}
    for group, log in logs.items():
        bus.subscribe(Event, log, name="log", group=group)
    async with bus.listener(), bus.listener(group="audit"), bus.listener(group="mail"):
        for group, count in ((None, 3), ("audit", 2), ("mail", 1)):
            await logs[group].got(count)
            await emptied(bus, group)
    orders = {group: [event.order for event in log.events] for group, log in logs.items()}
    assert orders == {None: [1, 2, 3], "audit": [2, 3], "mail": [3]}
    await bus.leave("mail")
    await other_bus.post(Placed(order=4))
    assert [await bus.queue(group).size() for group in (None, "audit", "mail")] == [1, 1, 0]
    with pytest.raises(NotFoundError, match="mail"):
        await bus.leave("mail")


async def test_a_listener_of_a_group_that_has_not_joined_logs_a_warning(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus(session, "orders", Event)
    await bus.join("audit")
    bus.subscribe(Event, Log(), name="every", group="audti")
    async with bus.listener(), bus.listener(group="audit"), bus.listener(group="audti"), asyncio.timeout(30):
        while not (warnings := [record for record in caplog.records if record.levelno == logging.WARNING]):  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)
    assert [record.getMessage() for record in warnings] == [
        "bus orders: group audti has not joined, so its listener gets no new events; await bus.join('audti') once"
    ]


async def test_an_event_posted_in_a_transaction_is_stored_only_if_it_commits(
    session: zq.QueueSession,
) -> None:
    bus = Bus(session, "orders", Event)
    await bus.join("audit")
    async with session.transaction() as tx:
        await bus.post(Placed(order=1), tx=tx)
        tx.put("invoices", b"1")
        assert await bus.queue().size() == 0
    with pytest.raises(OSError, match="no"):
        async with session.transaction() as tx:
            await bus.post(Placed(order=2), tx=tx)
            raise OSError("no")
    sizes = [await queue.size() for queue in (bus.queue(), bus.queue("audit"), session.queue("invoices"))]
    assert sizes == [1, 1, 1]


async def test_a_transaction_does_not_commit_when_a_group_has_joined_since_its_post(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    bus = Bus(session, "orders", Event)
    with pytest.raises(zq.NotCommittedError, match="group"):
        async with session.transaction() as tx:
            await bus.post(Placed(order=1), tx=tx)
            await Bus(other, "orders", Event).join("audit")
    assert await bus.queue().size() == 0
    async with session.transaction() as tx:
        await bus.post(Placed(order=1), tx=tx)
    assert [await bus.queue().size(), await bus.queue("audit").size()] == [1, 1]


async def test_an_event_can_be_posted_by_the_commit_of_a_delivery(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    carts = session.queue("carts")
    await carts.put(b"7")
    async with carts.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            async with delivery:
                await bus.post(Placed(order=int(delivery.value)), tx=delivery)
    assert [await carts.size(), await bus.queue().size()] == [0, 1]


async def test_an_event_without_subscribers_is_consumed(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    await bus.post(Placed(order=1))
    async with bus.listener():
        await emptied(bus)
    assert await bus.queue().dead_letters.size() == 0


async def test_an_unreadable_event_becomes_a_dead_letter_and_the_next_is_delivered(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    every = Log()
    bus.subscribe(Event, every, name="every")
    queue = bus.queue()
    await queue.put(b"{}", headers={"bus-event": "Cancelled Thing"})
    await queue.put(b"{}", headers={"bus-event": "Placed Event"})
    await queue.put(b"no header at all")
    await bus.post(Placed(order=1))
    async with bus.listener():
        await every.got(1)
        await emptied(bus)
    assert await queue.dead_letters.size() == 3


async def test_an_event_of_a_newer_version_is_read_as_the_nearest_known_type(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    shipped = Log()
    bus.subscribe(Shipped, shipped, name="shipped")
    await bus.queue().put(
        b'{"order": 1, "carrier": "x", "altitude": 9}', headers={"bus-event": "ShippedByBalloon Shipped Event"}
    )
    async with bus.listener():
        await shipped.got(1)
    assert shipped.events == [Shipped(order=1, carrier="x")]


async def test_a_subscriber_can_choose_when_it_is_called_again(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    loop = asyncio.get_running_loop()
    calls: list[float] = []

    async def later(_: Event) -> None:
        calls.append(loop.time())
        if len(calls) == 1:
            raise zq.Retry(delay=0.5)

    bus.subscribe(Event, later)
    await bus.post(Placed(order=1))
    async with bus.listener():
        await emptied(bus)
    assert calls[1] - calls[0] > 0.45


async def test_a_failed_function_for_used_up_retries_does_not_call_finished_subscribers_again(
    session: zq.QueueSession,
) -> None:
    bus = Bus(session, "orders", Event, policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    second_time, given_up = Log(fails=1), list[int]()

    async def give_up(delivery: zq.Delivery[bytes]) -> None:
        given_up.append(delivery.attempt)
        if len(given_up) == 1:
            raise OSError("not now")

    async def failing(_: Event) -> None:
        raise zq.Retry(schedule=[0], exhausted=give_up)

    bus.subscribe(Event, second_time, name="second")
    bus.subscribe(Event, failing)
    await bus.post(Placed(order=1))
    async with bus.listener():
        await emptied(bus)
    assert given_up == [2, 3]
    assert second_time.calls == 2  # the attempt whose retries were used up was its last


async def test_a_post_that_cannot_be_stored_raises(
    session: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    bus = Bus(session, "orders", Event)

    class Foreign(BaseModel):
        x: int

    with pytest.raises(zq.InvalidOptionError, match="Foreign"):
        await bus.post(Foreign(x=1))  # type: ignore[arg-type]
    with pytest.raises(zq.PayloadError):
        await bus.post(Placed.model_construct(order="not a number"))
    with pytest.raises(zq.MessageTooLargeError):
        await bus.post(Shipped(order=1, carrier="x" * 2_000_000))
    await expire(session)
    await bus.post(Placed(order=1))
    assert await bus.queue().size() == 1


@pytest.mark.parametrize("transactional", [False, True])
async def test_the_full_queue_of_a_group_that_has_left_does_not_refuse_events(
    session: zq.QueueSession, other: zq.QueueSession, *, transactional: bool
) -> None:
    bus, operator = Bus(session, "orders", Event), Bus(other, "orders", Event)
    await operator.join("audit")
    await operator.queue("audit").configure(zq.QueueConfig(max_size=1))
    await bus.post(Placed(order=1))
    with pytest.raises(zq.QueueFullError, match="orders@audit"):
        await bus.post(Placed(order=2))
    await operator.leave("audit")
    async with session.transaction() as tx:
        await bus.post(Placed(order=3), tx=tx if transactional else None)
    assert await bus.queue().size() == 2


async def test_a_group_beyond_the_limit_of_the_bus_is_refused_and_the_bus_remains_usable(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    bus = Bus(session, "orders", Event)
    with pytest.raises(zq.InvalidOptionError, match="use fewer groups"):
        for number in range(1000):
            await bus.join(f"{number:0180}")
    groups = await Bus(other, "orders", Event).groups()
    assert 300 < len(groups) < 1000
    await bus.leave(groups[0])
    assert len(await bus.post(Placed(order=1))) == len(groups)


@pytest.mark.parametrize("name", ["no/bus", "a@b", "", None, 5, ["a"], b"a"])
async def test_bad_names_are_refused(session: zq.QueueSession, name: Any) -> None:
    with pytest.raises(InvalidNameError):
        Bus(session, name, Event)
    bus = Bus(session, "orders", Event)
    with pytest.raises(InvalidNameError):
        await bus.join(name)
    assert await bus.groups() == []
    with pytest.raises(zq.InvalidOptionError):
        bus.subscribe(Event, Log(), name=f"{name} !")


async def test_two_subscribers_with_the_same_name_are_refused(session: zq.QueueSession) -> None:
    bus = Bus(session, "orders", Event)
    bus.subscribe(Event, Log(), name="log")
    bus.subscribe(Event, Log(), name="log", group="audit")
    with pytest.raises(AlreadyExistsError, match="log"):
        bus.subscribe(Placed, Log(), name="log")


@pytest.mark.parametrize("call", ["post", "post in a transaction", "join"])
async def test_a_bus_that_an_acl_does_not_let_this_user_create_is_named(
    session: zq.QueueSession, server_view: Observer, queue_root: str, call: str
) -> None:
    await session.queue("other").put(b"")
    await server_view.create(f"{queue_root}/.buses")
    await server_view.set_acl(f"{queue_root}/.buses", [make_acl("world", "anyone", read=True)])
    bus = Bus(session, "orders", Event)
    async with session.transaction(autocommit=False) as tx:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "post": lambda: bus.post(Placed(order=1)),
            "post in a transaction": lambda: bus.post(Placed(order=1), tx=tx),
            "join": lambda: bus.join("audit"),
        }
        assert await bus.groups() == []
        with pytest.raises(zq.AccessDeniedError, match=rf"bus 'orders': .*no right to create .*{queue_root}/\.buses"):
            await calls[call]()
