"""Bad input raises a typed error with its subject and a remedy; nothing is lost, and the connection stays open."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ForwardRef
from unittest.mock import AsyncMock

import pytest
from pydantic import BaseModel, TypeAdapter

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.errors import InvalidNameError, TransactionClosedError
from aiozkqueue.schedule import Jobs, NotificationQueue, Notifications
from aiozkqueue.zookeeper import Acl
from tests.integration.queue.conftest import Locks, eventually, zookeeper_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

MIB = 1024 * 1024


class Notice(BaseModel):
    number: int


async def no_handler(_: zq.Delivery[bytes]) -> None: ...


@pytest.fixture(autouse=True)
async def _nothing_lost_and_the_connection_kept(session: zq.QueueSession) -> AsyncIterator[None]:
    before = session.queue("before")
    identity = await before.put(b"1")
    client = session._runtime.zookeeper
    expected = (zookeeper_session(session), client.generation, client._session.connection)  # type: ignore[attr-defined]
    yield
    assert [message.id for message in await before.peek()] == [identity]
    assert expected == (zookeeper_session(session), client.generation, client._session.connection)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("hosts", "named"),
    [
        ("", "''"),
        (",", "','"),
        ("h1:2181,", "empty"),
        ("h1:port", "'port'"),
        ("h1:0", "'0'"),
        ("h1:70000", "'70000'"),
        ("::1:2181", "brackets"),
        ("[::1:2181", "brackets"),
        ("h 1", "'h 1'"),
        ("h1/a//b", "path"),
        ("h1/a,h2", "chroot"),
        (None, "NoneType"),
        (b"h1", "bytes"),
    ],
)
async def test_invalid_hosts_are_refused_at_once(hosts: Any, named: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match="hosts") as raised:
        zq.connect(hosts)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"root": "zms"}, "root"),
        ({"root": "/"}, "root"),
        ({"root": "/a/"}, "root"),
        ({"root": "/a/../b"}, "root"),
        ({"root": "/zookeeper"}, "root"),
        ({"session_timeout": 0}, "session_timeout"),
        ({"session_timeout": -1}, "session_timeout"),
        ({"session_timeout": None}, "session_timeout"),
        ({"session_timeout": "10"}, "session_timeout"),
        ({"connect_timeout": math.nan}, "connect_timeout"),
        ({"connect_timeout": True}, "connect_timeout"),
        ({"tls": True}, "tls takes an ssl.SSLContext"),
        ({"auth": zq.Auth.digest("alice", "secret")}, "auth takes a list of Auth"),
        ({"auth": ["digest:alice:secret"]}, "auth takes a list of Auth"),
        ({"auth": "digest:alice:secret"}, "auth takes a list of Auth"),
        ({"auth": None}, "auth takes a list of Auth"),
        ({"acl": zq.Acl.creator()}, "acl takes a list of Acl"),
    ],
    ids=str,
)
async def test_invalid_options_of_connect_are_refused_at_once(options: dict[str, Any], named: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match=named) as raised:
        zq.connect("127.0.0.1", **options)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["", ".clients", "a/b", "é", "a b", "x" * 256, "a\x00", "..", None, 7, b"jobs"])
async def test_invalid_names_are_refused(name: Any, session: zq.QueueSession) -> None:
    with pytest.raises(InvalidNameError, match="is not a valid queue name: use 1 to 255"):
        session.queue(name)
    if isinstance(name, str):
        async with session.transaction(autocommit=False) as tx:
            with pytest.raises(InvalidNameError):
                tx.put(name, b"1")


async def test_a_type_that_pydantic_does_not_know_is_refused(session: zq.QueueSession) -> None:
    class Opaque:
        pass

    with pytest.raises(zq.InvalidOptionError, match=r"'jobs'.*Opaque"):
        session.queue("jobs", Opaque)
    with pytest.raises(zq.InvalidOptionError, match="'jobs'"):
        session.queue("jobs", 7)  # type: ignore[call-overload]


class Unfinished(BaseModel):
    order: Nope  # type: ignore[name-defined]  # noqa: F821 - undefined on purpose


class Early(BaseModel):
    order: Late


EARLY = TypeAdapter(list[Early])


class Late(BaseModel):
    number: int


@pytest.mark.parametrize("type_", [list["Nope"], Unfinished, dict[str, Unfinished]], ids=str)  # type: ignore[name-defined]  # noqa: F821 - undefined on purpose
async def test_a_type_that_is_not_fully_defined_is_refused_when_the_queue_is_made(
    session: zq.QueueSession,
    type_: Any,  # type checkers also reject most of them
) -> None:
    for _ in range(2):
        with pytest.raises(zq.InvalidOptionError, match=r"'jobs'.*(Nope|Unfinished).* is not fully defined"):
            session.queue("jobs", type_)
    with pytest.raises(zq.InvalidOptionError, match=r"'jobs'.* is not fully defined"):
        session.queue("jobs", adapter=TypeAdapter(type_))


@pytest.mark.parametrize("type_", ["Late", ForwardRef("Late")], ids=["text", "reference"])
async def test_the_name_of_a_type_is_refused_with_the_remedy(
    session: zq.QueueSession,
    type_: Any,  # type checkers also reject it
) -> None:
    with pytest.raises(zq.InvalidOptionError) as refused:
        session.queue("jobs", type_)
    assert str(refused.value) == (
        "queue 'jobs': 'Late' is the name of a type, not a type: give the type itself, without quotes"
    )


@pytest.mark.parametrize("type_", [7, object(), list["Nope"], Unfinished], ids=["number", "object", "list", "model"])  # type: ignore[name-defined]  # noqa: F821 - undefined on purpose
async def test_the_error_of_a_wrong_type_is_one_line_without_an_address(
    session: zq.QueueSession,
    type_: Any,  # type checkers also reject most of them
) -> None:
    with pytest.raises(zq.InvalidOptionError) as refused:
        session.queue("jobs", type_)
    assert str(refused.value).startswith("queue 'jobs': ")
    assert "\n" not in str(refused.value)
    assert "https://" not in str(refused.value)


async def test_a_type_that_has_been_completed_is_accepted(session: zq.QueueSession) -> None:
    await session.queue("jobs", Early).put(Early(order=Late(number=1)))
    await session.queue("jobs", adapter=EARLY).put([Early(order=Late(number=2))])
    assert await session.queue("jobs").size() == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dealy", 3),
        ("key", ""),
        ("key", 7),
        ("key", "x" * 2000),
        ("headers", {"a": 1}),
        ("headers", {1: "a"}),
        ("headers", ["a"]),
        ("headers", {"a": "\ud800"}),
        ("headers", {"a": "x" * 40_000}),
        ("priority", 128),
        ("delay", -5),
        ("at", datetime(2030, 1, 1)),  # noqa: DTZ001 - naive on purpose
        ("group", ""),
        ("ttl", timedelta(seconds=-1)),
        ("tags", 3),
        ("unique", "perhaps"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_invalid_put_options_are_refused(option: str, value: object, session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    options: dict[str, Any] = {option: value}
    with pytest.raises(zq.InvalidOptionError, match=option):
        await jobs.put(b"1", **options)
    async with session.transaction(autocommit=False) as tx:
        with pytest.raises(zq.InvalidOptionError, match=option):
            tx.put(jobs, b"1", **options)
    assert await jobs.size() == 0


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"delay": -1}, "give a finite number of seconds, 0 or more"),
        ({"delay": "5s"}, "takes seconds (float or timedelta), not str"),
        ({"delay": math.inf}, "give a finite number of seconds"),
        ({"ttl": 0}, "ttl=0: it must be seconds from 0.001 to 10**9, as a number or timedelta, or math.inf (forever)"),
        ({"ttl": timedelta(0)}, "ttl=0.0: it must be seconds from 0.001 to 10**9"),
        ({"headers": {"tries": 3}}, "headers['tries']: 3: give a str"),
    ],
    ids=str,
)
async def test_the_values_that_an_error_suggests_are_accepted(
    options: dict[str, Any], advice: str, session: zq.QueueSession
) -> None:
    with pytest.raises(zq.InvalidOptionError, match=re.escape(advice)):
        await session.queue("jobs").put(b"1", **options)


async def test_the_error_for_a_size_that_is_too_large_names_the_maximum() -> None:
    with pytest.raises(zq.InvalidOptionError, match=r"max_size=1000000000000: .* from 0 \(no limit\) to 2147483647"):
        zq.QueueConfig(max_size=10**12)


async def test_an_unset_password_is_refused() -> None:
    unset: Any = os.environ.get("AIOZKQUEUE_NO_SUCH_VARIABLE")
    for credentials in (zq.Auth.digest, zq.Auth.sasl):
        with pytest.raises(zq.InvalidOptionError, match="the password is NoneType: it must be a str"):
            credentials("alice", unset)


async def test_an_error_shows_a_key_that_is_not_text_unchanged(session: zq.QueueSession) -> None:
    number: Any = 7  # type checkers reject a key that is not text
    with pytest.raises(zq.InvalidOptionError, match="key=7: give a non-empty str"):
        await session.queue("jobs").put(b"1", key=number)


async def test_invalid_durations_and_counts_are_refused(session: zq.QueueSession) -> None:
    jobs: Any = session.queue("jobs")
    maker: Any = session
    invalid_durations: list[Any] = [-1, math.nan, "1", timedelta(seconds=-1), True]
    for bad in invalid_durations:
        async with session.transaction(autocommit=False) as tx:
            take: Any = tx.take
            with pytest.raises(zq.InvalidOptionError, match="timeout"):
                await take(jobs, timeout=bad)
            with pytest.raises(zq.InvalidOptionError, match="delay"):
                await tx.rollback(delay=bad)
            with pytest.raises(zq.InvalidOptionError, match="timeout"):
                await tx.commit(timeout=bad)
        with pytest.raises(zq.InvalidOptionError, match="timeout"):
            await jobs.put(b"1", timeout=bad)
        with pytest.raises(zq.InvalidOptionError, match="until_idle"):
            jobs.consume(until_idle=bad)
        with pytest.raises(zq.InvalidOptionError, match="drain_timeout"):
            maker.listener(jobs, no_handler, drain_timeout=bad)
    invalid_counts: list[Any] = [0, -1, 1.5, True, None]
    for bad in invalid_counts:
        async with session.transaction(autocommit=False) as tx:
            take_many: Any = tx.take_many
            with pytest.raises(zq.InvalidOptionError, match="limit"):
                await take_many(jobs, bad)
        with pytest.raises(zq.InvalidOptionError, match="prefetch"):
            jobs.consume(prefetch=bad)
        with pytest.raises(zq.InvalidOptionError, match="limit"):
            await jobs.peek(bad)
        with pytest.raises(zq.InvalidOptionError, match="concurrency"):
            maker.listener(jobs, no_handler, concurrency=bad)
    with pytest.raises(zq.InvalidOptionError, match="settle"):
        jobs.consume(settle="never")
    with pytest.raises(zq.InvalidOptionError, match="on_lost"):
        maker.listener(jobs, no_handler, on_lost="ignore")
    with pytest.raises(zq.InvalidOptionError, match="undecodable"):
        maker.queue("jobs", undecodable="ignore")
    with pytest.raises(zq.InvalidOptionError, match="QueueConfig"):
        await jobs.configure({"policy": None})
    with pytest.raises(zq.InvalidOptionError, match="takes a queue"):
        maker.listener("jobs", no_handler)


@pytest.mark.parametrize("policy", ["at-least-once", 3, zq.ConsumeTimes], ids=str)
async def test_a_value_that_is_not_a_policy_is_refused(policy: Any, session: zq.QueueSession) -> None:
    with pytest.raises(zq.InvalidOptionError, match="policy"):
        session.queue("jobs", policy=policy)
    with pytest.raises(zq.InvalidOptionError, match="policy"):
        session.queue("jobs").consume(policy=policy)
    with pytest.raises(zq.InvalidOptionError, match="policy"):
        session.listener(session.queue("jobs"), no_handler, policy=policy)


async def test_a_value_that_is_not_a_queue_is_refused(session: zq.QueueSession) -> None:
    async with session.transaction(autocommit=False) as tx:
        anything: Any = tx
        for value in (None, 7, b"jobs"):
            with pytest.raises(zq.InvalidOptionError, match="queue"):
                anything.put(value, b"1")
            with pytest.raises(zq.InvalidOptionError, match="queue"):
                await anything.take(value)
        with pytest.raises(zq.InvalidOptionError, match="queue"):
            await anything.take("jobs")


async def test_an_object_of_another_session_is_refused(session: zq.QueueSession, other: zq.QueueSession) -> None:
    """The other session may use another ensemble or root, so a put by the name alone would go to the wrong queue."""
    refused = pytest.raises(zq.InvalidOptionError, match="'jobs' belongs to another session")
    jobs, own = other.queue("jobs"), session.queue("jobs")
    async with session.transaction() as tx:
        with refused:
            tx.put(jobs, b"1")
        with refused:
            await tx.take(jobs)
        with refused:
            await tx.take_many(jobs, 2)
        with refused:
            await tx.cancel(jobs, key="1")
        with refused:
            await tx.update(jobs, b"2", key="1")
    with refused:
        session.listener(jobs, no_handler)
    with refused:
        await session.admin.moves.start(jobs, "others")
    with refused:
        await Jobs(session).add("job", "* * * * *", jobs, b"1")
    async with other.transaction(autocommit=False) as other_tx:
        with pytest.raises(zq.InvalidOptionError, match=f"{other_tx.id} belongs to another session"):
            await NotificationQueue(session, "s", "n", bytes).schedule(b"1", datetime.now(UTC), tx=other_tx)
    assert not await jobs.exists()
    assert not await own.exists()


# Handlers


def not_async(_: zq.Delivery[bytes]) -> None: ...


def returns_what_is_awaited(delivery: zq.Delivery[bytes]) -> Awaitable[None]:
    return no_handler(delivery)


@functools.wraps(not_async)
def wraps_another(delivery: zq.Delivery[bytes]) -> Awaitable[None]:
    return no_handler(delivery)


async def yields(_: zq.Delivery[bytes]) -> AsyncIterator[None]:
    yield


def returns_without_annotation(delivery: zq.Delivery[bytes]):  # type: ignore[no-untyped-def]  # noqa: ANN201 - without annotation on purpose
    delivery.put("seen", delivery.body)


def returns_it_or_nothing(delivery: zq.Delivery[bytes]) -> Any:  # type checkers accept it
    return no_handler(delivery) or None


def returns_it_sometimes(delivery: zq.Delivery[bytes]) -> Any:  # type checkers accept it
    if delivery.body:
        return no_handler(delivery)
    return None


def only_raises(_: zq.Delivery[bytes]) -> Any:  # type checkers accept it
    raise zq.Reject("not today")


class NotAsync:
    def __call__(self, delivery: zq.Delivery[bytes]) -> None:
        delivery.put("seen", delivery.body)


class Handlers:
    def not_async(self, _: zq.Delivery[bytes]) -> None: ...

    async def is_async(self, _: zq.Delivery[bytes]) -> None: ...

    async def __call__(self, _: zq.Delivery[bytes]) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        not_async,
        yields,
        Handlers().not_async,
        functools.partial(not_async),
        7,
        returns_without_annotation,
        lambda _: None,
        functools.partial(returns_without_annotation),
        NotAsync(),
    ],
    ids=[
        "function",
        "generator",
        "method",
        "partial",
        "number",
        "says nothing",
        "lambda",
        "partial that says nothing",
        "object",
    ],
)
async def test_a_handler_that_is_not_async_is_refused_before_it_handles_a_message(
    handler: Any,  # type checkers also reject most of them
    session: zq.QueueSession,
) -> None:
    jobs = session.queue("jobs")
    with pytest.raises(zq.InvalidOptionError, match="a handler must be awaitable; make it an `async def`"):
        session.listener(jobs, handler)
    with pytest.raises(zq.InvalidOptionError, match="a middleware must be awaitable"):
        session.listener(jobs, no_handler, middleware=[handler])


async def test_a_handler_whose_annotations_exist_only_for_type_checkers_is_accepted_or_refused_like_any_other(
    session: zq.QueueSession,
) -> None:
    program = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiozkqueue import Delivery


def returns_an_awaitable(delivery: Delivery[bytes]) -> Awaitable[None]: ...


def forgets_async(delivery: Delivery[bytes]) -> None: ...
"""
    if sys.version_info < (3, 14):  # since 3.14, annotations are postponed without an import
        program = f"from __future__ import annotations\n{program}"
    handlers: dict[str, Any] = {}
    # Dont_inherit, since this module postpones its annotations.
    exec(compile(program, "handlers.py", "exec", dont_inherit=True), handlers)
    jobs = session.queue("jobs")
    session.listener(jobs, handlers["returns_an_awaitable"]).stop()
    with pytest.raises(zq.InvalidOptionError, match="forgets_async: a handler must be awaitable"):
        session.listener(jobs, handlers["forgets_async"])


async def test_a_subscriber_or_notification_handler_that_is_not_async_is_refused(
    session: zq.QueueSession,
) -> None:
    handler: Any = returns_without_annotation
    with pytest.raises(
        zq.InvalidOptionError,
        match="returns_without_annotation: a subscriber must be awaitable; make it an `async def`",
    ):
        Bus(session, "events", Notice).subscribe(Notice, handler)
    reminders = await Notifications(session).create("shop", "reminders", Notice)
    with pytest.raises(
        zq.InvalidOptionError, match="returns_without_annotation: a handler must be awaitable; make it an `async def`"
    ):
        reminders.listener(handler)


async def test_a_handler_that_yields_is_refused(session: zq.QueueSession) -> None:
    with pytest.raises(
        zq.InvalidOptionError, match="yields: a handler must be awaitable; make it an `async def` that does no"
    ):
        session.listener(session.queue("jobs"), yields)  # type: ignore[arg-type]  # the refused handler


@pytest.mark.parametrize("middleware", [no_handler, iter([no_handler]), 7], ids=["function", "iterator", "number"])
async def test_middleware_that_is_not_a_list_is_refused(middleware: Any, session: zq.QueueSession) -> None:
    with pytest.raises(zq.InvalidOptionError, match=r"middleware takes a list, such as middleware=\[timed\], not "):
        session.listener(session.queue("jobs"), no_handler, middleware=middleware)


@pytest.mark.parametrize(
    "handler",
    [
        no_handler,
        returns_what_is_awaited,
        wraps_another,
        functools.partial(no_handler),
        Handlers().is_async,
        Handlers(),
        returns_it_or_nothing,
        returns_it_sometimes,
        only_raises,
        AsyncMock(),
    ],
    ids=[
        "function",
        "returns it",
        "wraps it",
        "partial",
        "method",
        "object",
        "or nothing",
        "sometimes",
        "only raises",
        "mock",
    ],
)
async def test_any_callable_that_returns_an_awaitable_is_a_handler(
    handler: Any,  # these callables have no common type
    session: zq.QueueSession,
) -> None:
    jobs = session.queue("handled-jobs")
    await jobs.put(b"1")

    async def done() -> bool:
        return await jobs.size() == 0

    async with session.listener(jobs, handler):
        await eventually(done)


# Sizes


async def test_a_message_larger_than_zookeeper_accepts_is_refused_before_it_is_sent(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    for size in (MIB, MIB - 1024, 10 * MIB):
        with pytest.raises(zq.MessageTooLargeError, match=f"'jobs'.*{size} bytes.*elsewhere"):
            await jobs.put(bytes(size))
        async with session.transaction(autocommit=False) as tx:
            with pytest.raises(zq.MessageTooLargeError):
                tx.put(jobs, bytes(size))
    with pytest.raises(zq.MessageTooLargeError):
        await jobs.put_many([b"small", bytes(MIB)])
    assert await jobs.size() == 0


async def test_the_largest_message_can_be_put_taken_and_dead_lettered(session: zq.QueueSession, locks: Locks) -> None:
    jobs = session.queue("jobs")
    largest = session._runtime.max_message
    await jobs.put(bytes(largest - 40_000), headers={"a": "x" * 30_000}, key="k" * 1024)
    await jobs.put(bytes(largest))
    async with session.transaction() as tx:
        first = await tx.take(jobs)
        assert first is not None
        tx.reject(first, "é" * 3000)
    async with session.transaction() as tx:
        second = await tx.take(jobs)
        assert second is not None
        tx.reject(second, "too large for us")
    assert [len(dead.body) for dead in await jobs.dead_letters.peek()] == [largest - 40_000, largest]
    assert await jobs.dead_letters.redrive() == 2
    assert (await jobs.size(), await locks()) == (2, [])


async def test_a_transaction_larger_than_one_request_is_refused_and_can_continue(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        tx.put("results", bytes(600_000))
        with pytest.raises(zq.TransactionTooLargeError, match=r"'results'.*commit in parts"):
            tx.put("results", bytes(600_000))
        tx.put("results", b"small")
        await tx.commit()
    assert (await jobs.size(), await session.queue("results").size(), await locks()) == (0, 2, [])


async def test_a_transaction_with_too_many_rejects_is_refused_and_its_messages_are_redelivered(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    for _ in range(3):
        await jobs.put(bytes(400_000))
    with pytest.raises(zq.TransactionTooLargeError, match=r"transaction.*in parts"):
        async with session.transaction() as tx:
            for message in await tx.take_many(jobs, 3):
                tx.reject(message, "large")
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    assert (await jobs.size(), await jobs.dead_letters.size()) == (3, 0)
    stats = await jobs.stats()
    assert (stats.in_flight, len(await locks())) == (0, stats.delayed)


async def test_a_transaction_of_many_small_messages_commits(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        for _ in range(3000):
            tx.put("jobs", b"x" * 20)
    assert await session.queue("jobs").size() == 3000
    assert await session.queue("jobs").purge() == 3000


@pytest.mark.parametrize("wrong", ["abc", b"abc", bytearray(b"a"), memoryview(b"a"), {"a": 1}, 5, None])
async def test_one_value_instead_of_several_is_refused_and_nothing_is_stored(
    session: zq.QueueSession, wrong: Any, queue_root: str
) -> None:
    untyped: zq.Queue[Any] = session.queue("untyped", Any)
    curators: Any = session.curator_queue(f"{queue_root}/curators", type=Any)
    for call in (
        untyped.put_many(wrong),
        curators.put_many(wrong),
        curators.put_multi(wrong),
        untyped.leases.acknowledge(wrong),
        untyped.leases.renew(wrong),
    ):
        with pytest.raises(zq.InvalidOptionError, match="takes a collection of"):
            await call
    if wrong is not None:
        with pytest.raises(zq.InvalidOptionError, match="takes a collection of message ids"):
            await untyped.dead_letters.purge(wrong)
    assert await untyped.exists() is False
    assert await curators.size() == 0


async def test_put_many_splits_values_that_exceed_one_request(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    ids = await jobs.put_many([bytes(300_000)] * 5 + [b""] * 2500)
    assert len(set(ids)) == await jobs.size() == 2505
    assert [message.id for message in await jobs.peek(2505)] == ids


async def test_more_locks_than_a_session_may_hold_are_refused(session: zq.QueueSession) -> None:
    async with session.transaction(autocommit=False) as tx:
        with pytest.raises(zq.TransactionTooLargeError, match="take and commit in parts"):
            await tx.take_many(session.queue("jobs"), 100_000)


# Finished


async def test_a_finished_transaction_refuses_further_calls(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2"])
    for finish, state in ((zq.Transaction.commit, "committed"), (zq.Transaction.rollback, "rolled back")):
        async with session.transaction() as tx:
            message = await tx.take(jobs)
            assert message is not None
            await finish(tx)
        refusal = f"transaction {tx.id} is already {state}; begin a new transaction"
        with pytest.raises(TransactionClosedError, match=refusal):
            await tx.take(jobs)
        with pytest.raises(TransactionClosedError, match=refusal):
            tx.put("results", b"1")
        with pytest.raises(TransactionClosedError, match=refusal):
            tx.reject(message, "late")
        with pytest.raises(TransactionClosedError, match=refusal):
            tx.release(message)
        with pytest.raises(TransactionClosedError, match=refusal):
            await tx.commit()
    await tx.rollback()  # a rollback after the end changes nothing
    with pytest.raises(RuntimeError):  # the error is also a RuntimeError
        await tx.commit()


async def test_a_committed_transaction_cannot_be_rolled_back(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        tx.put("jobs", b"1")
    with pytest.raises(TransactionClosedError, match="already committed"):
        await tx.rollback()


async def test_two_tasks_that_commit_the_same_transaction_commit_it_once(session: zq.QueueSession) -> None:
    async with session.transaction(autocommit=False) as tx:
        tx.put("jobs", b"1")
        answers = await asyncio.gather(tx.commit(), tx.commit(), return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), TransactionClosedError]
    assert await session.queue("jobs").size() == 1


async def test_a_message_of_another_transaction_cannot_be_settled_by_this_one(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as holder, session.transaction(autocommit=False) as tx:
        message = await holder.take(jobs)
        assert message is not None
        refusal = f"{message.id} of queue 'jobs' was not taken by transaction {tx.id}"
        with pytest.raises(zq.InvalidOptionError, match=refusal):
            tx.reject(message, "no")
        with pytest.raises(zq.InvalidOptionError, match=refusal):
            tx.release(message)
        await holder.rollback(delay=0)
        await tx.rollback()
    assert await jobs.size() == 1


async def test_an_acl_that_the_servers_do_not_support_is_named(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root, acl=[Acl.all("unheard-of", "x")]) as session:
        with pytest.raises(zq.AccessDeniedError, match=r"do not support the ACL of the new znode; give connect\(\) an"):
            await session.queue("jobs").put(b"1")


async def test_settling_a_delivery_twice_raises(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2", b"3"])
    async with jobs.consume(settle="explicit") as deliveries:
        committed, rolled_back, rejected = [await anext(deliveries) for _ in range(3)]
        await committed.commit()
        await rolled_back.rollback(delay=0)
        await rejected.reject("bad")
        for delivery, state in ((committed, "committed"), (rolled_back, "rolled back"), (rejected, "committed")):
            with pytest.raises(
                TransactionClosedError, match=f"message {delivery.id} of queue 'jobs' is already {state}"
            ):
                await delivery.commit()
            with pytest.raises(TransactionClosedError):
                await delivery.reject("again")
            with pytest.raises(TransactionClosedError):
                delivery.put("results", b"late")
    assert (await jobs.size(), await jobs.dead_letters.size()) == (1, 1)


async def test_a_delivery_that_outlives_its_handler_says_until_when_it_can_be_settled(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    kept: list[zq.Delivery[bytes]] = []

    async def keep(delivery: zq.Delivery[bytes]) -> None:
        kept.append(delivery)

    async def handled() -> bool:
        return await jobs.size() == 0

    await jobs.put(b"1")
    async with session.listener(jobs, keep):
        await eventually(handled)
    with pytest.raises(TransactionClosedError, match="a listener settles a delivery when its handler has returned"):
        await kept[0].commit()


async def test_a_session_or_a_transaction_without_its_block_names_the_block(session: zq.QueueSession) -> None:
    opening: Any = zq.connect("127.0.0.1:2181")
    beginning: Any = session.transaction()
    for block, member, usage in (
        (opening, "queue", "async with aiozkqueue.connect(...) as session:"),
        (beginning, "put", "async with session.transaction() as tx:"),
    ):
        with pytest.raises(AttributeError, match=rf"no attribute '{member}'; use `{re.escape(usage)}`"):
            getattr(block, member)
