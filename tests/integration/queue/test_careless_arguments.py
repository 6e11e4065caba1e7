"""Arguments of a careless caller: texts of an enumeration, texts for truth values, numbers beyond all floats, reuse."""

from __future__ import annotations

import enum
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus, Buses
from aiozkqueue.errors import NotFoundError
from aiozkqueue.schedule import Jobs, Notifications, Scheduler
from aiozkqueue.testing import TestClock, delivery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BEYOND = 10**400


class Name(str, enum.Enum):  # noqa: UP042 - `StrEnum` is formatted as its value, this one as its name
    """How many programs keep the names of their queues."""

    ORDERS = "orders"
    COPIES = "copies"
    MORE = "more"
    GROUP = "billing"
    KEY = "customer-7"
    ROOT = "/shop"


class Event(BaseModel):
    number: int = 1


class Array:
    """As an array of numpy: a comparison has no truth value."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # as numpy's


async def no_handler(_: object) -> None: ...


async def test_a_queue_named_by_an_enumeration_is_the_queue_of_that_text(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    orders = session.queue(Name.ORDERS, str)
    await orders.put("1", key=Name.KEY)
    async with session.transaction() as tx:
        tx.put(Name.COPIES, b"2")
    assert await other.queues() == ["copies", "orders"]
    assert await other.queue("orders", str).cancel(key="customer-7") is zq.Alteration.DONE
    assert type(orders.name) is str
    assert [cleaned.queue for cleaned in await session.admin.clean(Name.ORDERS)] == ["orders"]
    assert [facts.name for facts in (await session.admin.diagnose(Name.ORDERS)).queues] == ["orders"]
    with pytest.raises(NotFoundError, match="'orders' has no ledger 'billing'"):
        await orders.admin.release_ledger(Name.GROUP)


async def test_dead_letters_go_to_the_queue_that_an_enumeration_names(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    orders = session.queue(Name.ORDERS, str)
    await orders.put("1")
    async with session.transaction() as tx:
        message = await tx.take(orders, timeout=30)
        assert message is not None
        tx.reject(message, "no")
    assert await orders.dead_letters.redrive(into=Name.MORE) == 1
    assert await other.queue("more", str).size() == 1


async def test_a_move_reaches_the_queue_that_an_enumeration_names(session: zq.QueueSession) -> None:
    await session.queue("orders").put(b"1")
    reference = await session.admin.moves.start(Name.ORDERS, Name.MORE)
    status = await session.admin.moves.status(reference)
    assert (status.source, status.target) == ("orders", "more")


async def test_jobs_notifications_and_buses_have_the_names_of_an_enumeration(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await Jobs(session).add(Name.ORDERS, "* * * * *", Name.COPIES, b"x")
    assert [job.name for job in await Jobs(other).list()] == ["orders"]
    notices = await Notifications(session).create(Name.GROUP, Name.MORE, str)
    await notices.schedule("x", datetime.now(UTC), search_key1=Name.GROUP, search_key2=Name.KEY)
    found = await (await Notifications(other).get("billing", "more", str)).find("customer-7", search_key1="billing")
    assert [notification.event for notification in found] == ["x"]
    await Bus(session, Name.ORDERS, Event).join(Name.GROUP)
    assert await Buses(other).queues("orders") == {None: "orders", "billing": "orders@billing"}


async def test_an_enumeration_names_the_root(zookeeper: str) -> None:
    async with zq.connect(zookeeper, root=Name.ROOT, session_timeout=20) as session:
        await session.queue("orders").put(b"1")
        assert session.queue("orders").admin is not None
        assert await session.queues() == ["orders"]
        await session.queue("orders").admin.delete(force=True)


@pytest.mark.parametrize("text", ["false", "", 0])
async def test_a_truth_value_must_be_one_before_anything_is_removed(session: zq.QueueSession, text: Any) -> None:
    jobs = session.queue("jobs", str)
    message_id = await jobs.put("1")
    calls: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("force", lambda: jobs.admin.delete(force=text)),
        ("running", lambda: jobs.cancel(id=message_id, running=text)),
        ("history", lambda: Notifications(session).create("a", "b", str, history=text)),
        ("newest_first", lambda: anext(jobs.history(newest_first=text))),
    ]
    for option, call in calls:
        with pytest.raises(zq.InvalidOptionError, match=f"{option} takes True or False"):
            await call()
    with pytest.raises(zq.InvalidOptionError, match="autocommit takes True or False"):
        session.transaction(autocommit=text)
    with pytest.raises(zq.InvalidOptionError, match="janitor takes True or False"):
        zq.connect("h1", janitor=text)
    assert await jobs.size() == 1


@pytest.mark.parametrize("sign", [1, -1])
async def test_a_number_of_seconds_beyond_all_floats_is_refused(session: zq.QueueSession, sign: int) -> None:
    jobs, seconds = session.queue("jobs", str), sign * BEYOND
    careless: Any = session
    with pytest.raises(zq.InvalidOptionError, match="delay"):
        await jobs.put("1", delay=seconds)
    with pytest.raises(zq.InvalidOptionError, match="session_timeout"):
        zq.connect("h1", session_timeout=seconds)
    with pytest.raises(zq.InvalidOptionError, match="batch_wait"):
        careless.listener(jobs, no_handler, batch_wait=seconds)
    with pytest.raises(zq.InvalidOptionError, match="by="):
        TestClock().advance(seconds)
    assert not await jobs.exists()


async def test_a_count_beyond_all_lists_shows_everything(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", str)
    await jobs.put("1")
    assert [message.value for message in await jobs.peek(BEYOND)] == ["1"]
    assert await jobs.dead_letters.peek(sys.maxsize + 1) == []


async def test_a_value_that_cannot_be_compared_is_refused_by_name(session: zq.QueueSession) -> None:
    jobs, array = session.queue("jobs", str), Array()
    given: Any = array
    for option in ("ttl", "unique"):
        with pytest.raises(zq.InvalidOptionError, match=option):
            await jobs.put("1", **{option: given})
    with pytest.raises(zq.InvalidOptionError, match="group"):
        await jobs.put("1", group=given, delay=5)
    with pytest.raises(zq.InvalidOptionError, match="settle"):
        jobs.consume(settle=given)
    with pytest.raises(zq.InvalidOptionError, match="undecodable"):
        session.queue("jobs", str, undecodable=given)
    with pytest.raises(zq.InvalidOptionError, match="on_lost"):
        session.listener(jobs, no_handler, on_lost=given)
    with pytest.raises(zq.InvalidOptionError, match="missed"):
        await Jobs(session).add("j", "* * * * *", jobs, "x", missed=given)
    with pytest.raises(zq.InvalidOptionError, match="exhausted"):
        zq.ConsumeTimes(1, exhausted=given)
    with pytest.raises(zq.InvalidOptionError, match="not a value of 'size'"):
        zq.OrderedEnum("size", ["small", "large"]).at_least(given)
    assert not await jobs.exists()


@pytest.mark.parametrize("wrong", [5, "session", None, Array()], ids=lambda wrong: type(wrong).__name__)
def test_features_of_a_session_refuse_anything_else(wrong: Any) -> None:
    for feature in (Jobs, Notifications, Scheduler, Buses, lambda given: Bus(given, "bus", Event)):
        with pytest.raises(zq.InvalidOptionError, match=rf"takes a session.*not {type(wrong).__name__}"):
            feature(wrong)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"clock": 5}, "clock takes a Clock"),
        ({"clock": 0}, "clock takes a Clock"),
        ({"clock": TestClock}, "clock takes a Clock"),
        ({"node": 5}, "node takes"),
        ({"node": b"host"}, "node takes"),
        ({"node": ""}, "node=''"),
        ({"node": "\ud800"}, "valid Unicode"),
        ({"tracing": "true"}, "tracing takes"),
        ({"tracing": 1}, "tracing takes"),
        ({"auth": ""}, "auth takes a list"),
    ],
)
def test_connect_refuses_wrong_objects_at_once(options: dict[str, Any], named: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match=named):
        zq.connect("h1", **options)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: zq.Acl("world", None), "Acl: the id is NoneType"),  # type: ignore[arg-type]  # the mistake
        (lambda: zq.Acl("", "anyone"), "Acl needs a scheme"),
        (lambda: zq.Acl("world", "anyone", 0), "permissions=0"),  # type: ignore[arg-type]  # the mistake
        (lambda: zq.Acl("world", "anyone", "r"), "permissions='r'"),  # type: ignore[arg-type]  # the mistake
        (lambda: zq.Acl.digest("u", None), "Acl: the password is NoneType"),  # type: ignore[arg-type]  # the mistake
        (lambda: zq.Acl.digest("u", "secret\ud800"), "lone surrogates"),
        (lambda: zq.Auth.digest("u", "secret\ud800"), "lone surrogates"),
        (lambda: zq.Auth.parse(b"digest:u:secret"), "credentials are a str"),  # type: ignore[arg-type]  # the mistake
        (lambda: zq.Auth.parse_all(None), "credentials are a str"),  # type: ignore[arg-type]  # the mistake
    ],
)
def test_credentials_and_rights_are_checked_when_they_are_made(make: Callable[[], object], named: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match=named) as raised:
        make()
    assert "secret" not in str(raised.value)


def test_collections_must_be_collections() -> None:
    for wrong in (5, None, "small"):
        given: Any = wrong
        with pytest.raises(zq.InvalidOptionError, match="OrderedEnum 'size': values takes a collection"):
            zq.OrderedEnum("size", given)
        with pytest.raises(zq.InvalidOptionError, match=r"delays=.*it must be a sequence of seconds"):
            zq.Schedule(given)
    raw: Any = bytearray(b"\x01")
    with pytest.raises(zq.InvalidOptionError, match=r"delays=.*it must be a sequence of seconds"):
        zq.Schedule(raw)
    with pytest.raises(zq.InvalidOptionError, match="schedule takes a list"):
        zq.Retry(schedule=raw)


def test_what_a_retry_calls_at_its_end_must_be_callable() -> None:
    wrong: Any = "give_up"
    with pytest.raises(zq.InvalidOptionError, match="exhausted takes an async function"):
        zq.Retry(schedule=[1], exhausted=wrong)


async def test_a_coroutine_function_is_no_callback_for_the_connection(session: zq.QueueSession) -> None:
    with pytest.raises(zq.InvalidOptionError, match="nothing awaits it"):
        session.on_connection_state(no_handler)


async def test_a_block_that_has_begun_cannot_begin_again(session: zq.QueueSession) -> None:
    jobs, block = session.queue("jobs", str), session.transaction()
    async with block as tx:
        tx.put(jobs, "1")
        with pytest.raises(zq.InvalidOptionError, match=r"session\.transaction\(\) for each block"):
            async with block:
                pass
    assert await jobs.size() == 1
    async with block as tx:
        tx.put(jobs, "2")
    assert await jobs.size() == 2


async def test_a_session_that_is_open_cannot_be_opened_again(zookeeper: str, queue_root: str) -> None:
    connecting = zq.connect(zookeeper, root=queue_root, session_timeout=20)
    async with connecting as session:
        with pytest.raises(zq.InvalidOptionError, match="open already"):
            async with connecting:
                pass
        await session.queue("jobs").put(b"1")
    async with connecting as again:
        assert await again.queue("jobs").size() == 1
    with pytest.raises(zq.SessionClosedError):
        await session.queues()


async def test_a_wait_of_batches_is_checked_without_batches(session: zq.QueueSession) -> None:
    careless: Any = session
    with pytest.raises(zq.InvalidOptionError, match="batch_wait"):
        careless.listener(session.queue("jobs"), no_handler, batch_wait="soon")


async def test_a_bus_refuses_a_wrong_policy_at_once(session: zq.QueueSession) -> None:
    wrong: Any = 5
    with pytest.raises(zq.InvalidOptionError, match="policy"):
        Bus(session, "bus", Event, policy=wrong)


def test_a_recorded_delivery_has_a_queue_and_an_id() -> None:
    wrong: Any = 5
    with pytest.raises(zq.InvalidOptionError, match="queue takes a queue or its name"):
        delivery("x", queue=wrong)
    with pytest.raises(zq.InvalidOptionError, match="id takes"):
        delivery("x", id=wrong)
