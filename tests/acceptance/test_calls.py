"""Calls: a message and the reply of its handler, which is part of the handler's commit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import aiozkqueue as zq
from aiozkqueue import testing
from aiozkqueue.errors import GivenUpError, NoReplyError
from aiozkqueue.layout.replies import REPLY_TO
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import assert_dead_lettered, assert_empty
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import QueueServer, TestClock
    from tests.observer import Observer

    Expire = Callable[[zq.QueueSession], Awaitable[None]]


@dataclass
class Order:
    id: int


@dataclass
class Quote:
    order: int
    cents: int


async def quote(delivery: zq.Delivery[Order]) -> None:
    assert delivery.reply(Quote(delivery.value.id, 990))
    delivery.put("quoted", b"%d" % delivery.value.id)


async def replies(view: Observer, root: str) -> list[str]:
    """The replies that no caller has read yet."""
    return [path for path in await view.tree(f"{root}/.clients") if "/reply-" in path]


@pytest.mark.parametrize("bundle", [None, 64], ids=["single items", "bundles"])
async def test_a_call_returns_the_reply_of_the_handler(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str, bundle: int | None
) -> None:
    orders = session.queue("orders", Order)
    await orders.configure(zq.QueueConfig(bundle=bundle))
    async with other.listener(other.queue("orders", Order), quote, concurrency=8):
        found = await orders.call(Order(1), Quote, timeout=30)
        assert_type(found, Quote)
        assert found == Quote(1, 990)
        answers = await asyncio.gather(*(orders.call(Order(number), Quote, timeout=30) for number in range(50)))
        assert answers == [Quote(number, 990) for number in range(50)]
        raw = await orders.call(Order(7), timeout=30)
        assert_type(raw, bytes)
        assert raw == b'{"order":7,"cents":990}'
    assert await session.queue("quoted").size() == 52

    async def none_left() -> bool:
        return await replies(server_view, queue_root) == []

    await eventually(none_left)


async def test_a_handler_replies_only_to_calls_and_with_its_commit(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    asked: list[bool] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        asked.append(delivery.reply(b"attempt %d" % delivery.attempt))
        if delivery.attempt < 3:
            raise OSError("not yet")

    async with session.listener(jobs, handler):
        assert await jobs.call(b"1", timeout=30) == b"attempt 3"
        await jobs.put(b"2", headers={REPLY_TO: "/../../somewhere"})
        await assert_empty(jobs, timeout=30)
    assert asked == [True, True, True, False, False, False]


async def test_a_call_without_a_reply_ends_at_its_timeout_and_a_late_reply_is_removed(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    go = asyncio.Event()

    async def slow(delivery: zq.Delivery[bytes]) -> None:
        await go.wait()
        delivery.reply(b"late")

    with pytest.raises(NoReplyError, match="may not have begun") as waiting:
        await jobs.call(b"1", timeout=2)
    assert (await jobs.state(waiting.value.message_id)).status is zq.Status.WAITING
    assert isinstance(waiting.value, TimeoutError)
    async with session.listener(jobs, slow):
        with pytest.raises(NoReplyError):
            await jobs.call(b"2", timeout=2)
        go.set()
        await assert_empty(jobs, timeout=30)
        assert await jobs.call(b"3", timeout=30) == b"late"

        async def none_left() -> bool:
            return await replies(server_view, queue_root) == []

        await eventually(none_left)


async def test_the_timeout_of_a_call_follows_the_clock_of_the_session(
    queue_server: QueueServer, queue_clock: TestClock
) -> None:
    async with queue_server.connect() as session, asyncio.timeout(60):
        calling = asyncio.create_task(session.queue("jobs").call(b"1", timeout=3600))

        async def put() -> bool:
            return await session.queue("jobs").size() == 1

        await eventually(put)
        queue_clock.advance(3601)
        with pytest.raises(NoReplyError):
            await calling


async def test_a_call_that_waits_for_longer_than_a_day_gets_its_reply_despite_the_clean_up(
    queue_server: QueueServer, queue_clock: TestClock
) -> None:
    async with queue_server.connect() as session, queue_server.connect() as operator, asyncio.timeout(60):
        jobs = operator.queue("jobs")
        calling = asyncio.create_task(session.queue("jobs").call(b"hello", timeout=7 * 86400))

        async def put() -> bool:
            return await jobs.size() == 1

        await eventually(put)
        queue_clock.advance(30 * 3600)
        await session.queue("jobs").size()  # its session has sent the write of its znode before this request
        await operator.admin.clean()
        async for delivery in jobs.consume():
            delivery.reply(delivery.value.upper())
            await delivery.commit()
            break
        assert await calling == b"HELLO"


async def test_a_reply_arrives_after_the_callers_zookeeper_session_has_ended(
    session: zq.QueueSession, other: zq.QueueSession, expire: Expire
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        begun.set()
        await go.wait()
        delivery.reply(delivery.value.upper())

    async with other.listener(other.queue("jobs"), handler):
        calling = asyncio.create_task(session.queue("jobs").call(b"hello", timeout=60))
        await asyncio.wait_for(begun.wait(), 30)
        await expire(session)
        go.set()
        assert await calling == b"HELLO"


async def test_a_handler_commits_although_its_caller_is_gone(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        begun.set()
        await go.wait()
        delivery.reply(b"to nobody")
        delivery.put("done", b"1")

    async with other.listener(other.queue("jobs"), handler):
        calling = asyncio.create_task(session.queue("jobs").call(b"1", timeout=60))
        await asyncio.wait_for(begun.wait(), 30)
        calling.cancel()
        await asyncio.wait([calling])
        client = session._core.ids.client
        await server_view.delete_at_once(f"{queue_root}/.clients/{client}")  # as the clean-up does after a day
        go.set()
        await assert_empty(other.queue("jobs"), timeout=30)
    assert await other.queue("done").size() == 1
    assert await replies(server_view, queue_root) == []


async def test_a_call_ends_when_its_session_is_closed(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        calling = asyncio.create_task(session.queue("jobs").call(b"1", timeout=60))

        async def put() -> bool:
            return await session.queue("jobs").size() == 1

        await eventually(put)
    with pytest.raises(zq.SessionClosedError):
        await asyncio.wait_for(calling, 10)


@pytest.mark.parametrize("bundle", [None, 64], ids=["single items", "bundles"])
@pytest.mark.parametrize(
    "how", ["rejected", "rejected in a transaction", "used up", "dropped", "undecodable", "expired"]
)
async def test_a_call_ends_as_soon_as_its_message_is_given_up(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    how: str,
    bundle: int | None,
) -> None:
    policies: dict[str, zq.Policy] = {
        "used up": zq.ConsumeTimes(2, backoff=zq.Fixed(0)),
        "dropped": zq.ConsumeTimes(1, exhausted="drop"),
    }
    config = zq.QueueConfig(bundle=bundle, policy=policies.get(how), history=zq.History(), expired="dead-letter")
    await session.queue("jobs").configure(config)
    called: list[bytes] = []

    async def handler(delivery: zq.Delivery[Any]) -> None:
        called.append(delivery.id.encode())
        if how == "rejected":
            delivery.reply(b"yes")
            raise zq.Reject("no such order")
        raise OSError("no disk")

    async def serve() -> None:
        if how == "rejected in a transaction":
            async with other.transaction() as tx:
                message = await tx.take(other.queue("jobs"), timeout=60)
                assert message is not None
                tx.reject(message, "no such order")
            return
        kind = Order if how == "undecodable" else bytes
        await other.listener(other.queue("jobs", kind), handler).run()

    options: Any = {"ttl": 0.001} if how == "expired" else {}  # Any: keyword arguments of a call
    async with asyncio.timeout(120):
        serving = asyncio.create_task(serve())
        with pytest.raises(GivenUpError) as raised:
            await session.queue("jobs").call(b"1", timeout=100, **options)
    reasons = {
        "rejected": "no such order",
        "rejected in a transaction": "no such order",
        "undecodable": "",
        "expired": "",
    }
    assert reasons.get(how, "no disk") in raised.value.reason
    assert raised.value.reason in str(raised.value)
    if called:
        assert raised.value.message_id.encode() in called
    letters = await session.queue("jobs").dead_letters.peek()
    assert [letter.reason for letter in letters] == ([] if how == "dropped" else [raised.value.reason])
    assert [path for path in await server_view.tree(f"{queue_root}/.clients") if "/failed-" in path] == []
    serving.cancel()
    await asyncio.wait([serving])


@pytest.mark.parametrize("history", [None, zq.History()], ids=["plain", "history"])
@pytest.mark.parametrize("bundle", [None, 64], ids=["single items", "bundles"])
@pytest.mark.parametrize(
    "how", ["cancelled", "cancelled while running", "cancelled in a transaction", "purged", "expired", "expired, taken"]
)
async def test_a_call_ends_as_soon_as_its_message_is_removed(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    how: str,
    bundle: int | None,
    history: zq.History | None,
) -> None:
    jobs = other.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=bundle, history=history))
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        options: Any = {"ttl": 0.001} if how.startswith("expired") else {}  # Any: keyword arguments of a call
        calls = [
            tasks.create_task(raised(session.queue("jobs").call(b"%d" % number, timeout=100, **options)))
            for number in range(33)  # enough for a bundle
        ]

        async def stored() -> bool:
            return len(await jobs.peek(64)) == len(calls)

        await eventually(stored)
        ids = [message.id for message in await jobs.peek(64)]
        items = await server_view.children(f"{queue_root}/jobs/items")
        assert any(name.startswith("bundle-") for name in items) == (bundle is not None and not options)
        match how:
            case "purged":
                assert await jobs.purge() == len(ids)
            case "expired":
                (cleaned,) = await other.admin.clean("jobs")
                assert cleaned.expired == len(ids)
            case "expired, taken":
                async with other.transaction() as tx:
                    assert await tx.take(jobs, timeout=0) is None
            case "cancelled in a transaction":
                async with other.transaction() as tx:
                    for message_id in ids:
                        assert await tx.cancel(jobs, id=message_id)
            case _:
                for message_id in ids:
                    assert await jobs.cancel(id=message_id, running=how == "cancelled while running")
        errors = [await calling for calling in calls]
    assert sorted(error.message_id for error in errors) == sorted(ids)
    (reason,) = {error.reason for error in errors}
    assert reason == {"purged": "it was purged"}.get(how, f"it {'expired' if 'expired' in how else 'was cancelled'}")
    assert [path for path in await server_view.tree(f"{queue_root}/.clients") if "/failed-" in path] == []


async def raised(call: Awaitable[object]) -> GivenUpError:
    """The error of a call."""
    with pytest.raises(GivenUpError) as error:
        await call
    return error.value


async def test_a_message_is_cancelled_although_its_caller_is_gone(
    session: zq.QueueSession, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    jobs = session.queue("jobs")
    async with zq.connect(zookeeper, root=queue_root) as caller:
        with pytest.raises(NoReplyError) as missed:
            await caller.queue("jobs").call(b"1", timeout=0.5)
        client = core_of(caller).ids.client
    await server_view.delete_at_once(f"{queue_root}/.clients/{client}")  # as the clean-up does after a day
    assert await jobs.cancel(id=missed.value.message_id)
    await assert_empty(jobs, timeout=30)


async def test_a_message_is_given_up_although_its_caller_is_gone(
    session: zq.QueueSession, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    jobs = session.queue("jobs")
    async with zq.connect(zookeeper, root=queue_root) as caller:
        with pytest.raises(NoReplyError):
            await caller.queue("jobs").call(b"1", timeout=0.5)
        client = core_of(caller).ids.client
    await server_view.delete_at_once(f"{queue_root}/.clients/{client}")  # as the clean-up does after a day

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        del delivery
        raise zq.Reject("no")

    async with session.listener(jobs, handler):
        await assert_dead_lettered(jobs, b"1", reason="no", timeout=30)
    assert await server_view.children(f"{queue_root}/jobs/locks") == []


async def test_a_rejected_message_gets_no_reply(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        delivery.reply(b"yes")
        raise zq.Reject("no")

    async with session.listener(jobs, handler):
        with pytest.raises(GivenUpError, match="handler replies: no"):
            await jobs.call(b"1", timeout=30)
        await assert_dead_lettered(jobs, b"1", reason="no", timeout=30)


async def test_a_reply_of_another_type_and_bad_options_are_refused(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    options: Any

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        delivery.reply("text")

    async with session.listener(jobs, handler):
        assert await jobs.call(b"1", str, timeout=30) == "text"
        with pytest.raises(zq.PayloadError, match=r"^the reply to message \w+ is not of the type of the call: "):
            await jobs.call(b"1", Quote, timeout=30)
    for options, remedy in (({"timeout": -1}, "timeout"), ({"timeout": 1, "headers": 5}, "headers")):
        with pytest.raises(zq.InvalidOptionError, match=remedy):
            await jobs.call(b"1", **options)


async def test_the_queue_of_an_application_is_called(queue_session: zq.QueueSession) -> None:
    app = zq.App("127.0.0.1:1")
    words = app.queue("words", str)

    @app.listener(words)
    async def measure(delivery: zq.Delivery[str]) -> None:
        delivery.reply(len(delivery.value))

    async with app.serve(queue_session):
        assert await words.call("teapot", int, timeout=30) == 6


async def test_a_test_sees_the_reply_of_a_handler_without_a_server() -> None:
    delivery = testing.delivery(Order(1), headers={REPLY_TO: f"{'a' * 12}/{'b' * 18}"})
    await testing.handle(quote, delivery)
    assert delivery.replied == [Quote(1, 990)]
    assert not testing.delivery(Order(1)).reply(b"nobody has asked")
