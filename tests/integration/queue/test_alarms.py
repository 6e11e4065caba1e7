"""Alarms: each message that is given up causes one log error, one event in Sentry, and one call of `on_dead`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from sentry_sdk.envelope import Envelope

    from tests.integration.queue.conftest import Opener


class Sent(Transport):
    """A transport that stores the events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event: Any = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture
def sentry() -> Iterator[Sent]:
    """Sentry with its default settings, as a program sets it up."""
    sent = Sent()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(dsn="https://key@sentry.example.com/1", transport=sent)
        yield sent
        sentry_sdk.get_client().close(timeout=0)
        sentry_sdk.init()


def facts_of(event: dict[str, Any]) -> tuple[str | None, str]:
    """Return the exception and the message id of an event."""
    exceptions = event.get("exception", {}).get("values", [])
    return exceptions[-1]["type"] if exceptions else None, event["extra"]["message_id"]


async def serve(
    session: zq.QueueSession,
    queue: zq.Queue[Any],
    handler: Callable[[zq.Delivery[Any]], Awaitable[None]],
    until: Callable[[], Awaitable[bool]],
    **options: Any,
) -> None:
    async with session.listener(queue, handler, **options):
        await eventually(until, 30)


def holds(queue: zq.Queue[Any], count: int) -> Callable[[], Awaitable[bool]]:
    async def dead() -> bool:
        return await queue.dead_letters.size() == count

    return dead


async def test_sentry_shows_one_event_for_each_message_that_is_given_up(session: zq.QueueSession, sentry: Sent) -> None:
    numbers = session.queue("numbers", int, policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    raw = session.queue("numbers")
    ids = [await raw.put(body) for body in (b"1", b"2", b"3", b"4", b"no number")]

    async def handler(delivery: zq.Delivery[int]) -> None:
        if delivery.value == 1:
            raise zq.Reject("no such order")
        if delivery.value == 2:
            raise OSError("the mail server is down")
        if delivery.value == 3:
            raise zq.Retry(schedule=[0]) from TimeoutError("the bank is slow")
        if delivery.attempt == 1:
            raise ValueError("only the first time")

    async def done() -> bool:
        return await numbers.size() == 0

    await serve(session, numbers, handler, done)
    assert await numbers.dead_letters.size() == 4
    assert sorted(map(facts_of, sentry.events)) == sorted(
        [
            ("Reject", ids[0]),
            ("OSError", ids[1]),
            ("TimeoutError", ids[2]),
            ("PayloadError", ids[4]),
        ]
    )
    assert {event["level"] for event in sentry.events} == {"error"}


async def test_sentry_shows_a_message_whose_processes_died(
    session: zq.QueueSession, open_session: Opener, sentry: Sent, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce(exhausted="drop"))
    message_id = await jobs.put(b"x")
    first = await open_session()
    async with first.transaction(autocommit=False) as tx:
        assert await tx.take(first.queue("jobs"), timeout=10)
        await expire(first)
        await tx.rollback()

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise AssertionError("it was delivered before")

    async def dropped() -> bool:
        return await jobs.size() == 0

    await serve(session, jobs, handler, dropped)
    assert [facts_of(event) for event in sentry.events] == [(None, message_id)]


async def test_a_failed_attempt_is_a_warning_and_a_retry_is_information(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs", int, policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    failing, asking = await jobs.put(1), await jobs.put(2)

    async def handler(delivery: zq.Delivery[int]) -> None:
        if delivery.attempt == 1:
            if delivery.value == 1:
                raise OSError("the mail server is down")
            raise zq.Retry(delay=0.01) from TimeoutError("the bank is slow")

    async def done() -> bool:
        return await jobs.size() == 0

    caplog.set_level(logging.INFO, "aiozkqueue")
    await serve(session, jobs, handler, done)
    records = {
        vars(record)["message_id"]: record
        for record in caplog.records
        if vars(record).get("message_id") in {failing, asking}
    }
    assert {name: record.levelname for name, record in records.items()} == {failing: "WARNING", asking: "INFO"}
    assert records[asking].getMessage() == (
        f"queue jobs: handler asked for a retry of message {asking}, attempt 1: again after 0.01 s; "
        "error: TimeoutError: the bank is slow"
    )


async def test_on_dead_gets_each_message_that_is_given_up_with_its_error(session: zq.QueueSession) -> None:
    numbers = session.queue("numbers", int, policy=zq.ConsumeTimes(1))
    got: list[tuple[bytes, str, BaseException | None]] = []

    async def alarm(letter: zq.DeadLetter[int], error: BaseException | None) -> None:
        assert await numbers.dead_letters.size() > 0  # it is stored already
        got.append((letter.body, letter.reason, error))

    async def handler(delivery: zq.Delivery[int]) -> None:
        if delivery.value == 1:
            await delivery.reject("no such order")
        else:
            raise OSError("the mail server is down")

    for body in (b"1", b"2", b"no number"):
        await session.queue("numbers").put(body)
    await serve(session, numbers, handler, holds(numbers, 3), on_dead=alarm)
    assert [(body, type(error)) for body, _, error in sorted(got, key=lambda event: event[0])] == [
        (b"1", type(None)),
        (b"2", OSError),
        (b"no number", zq.PayloadError),
    ]
    letters = await numbers.dead_letters.peek()
    assert sorted(reason for _, reason, _ in got) == sorted(letter.reason for letter in letters)


async def test_a_listener_ends_when_its_alarms_have_ended(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce())
    called: list[str] = []

    async def alarm(letter: zq.DeadLetter[bytes], _: BaseException | None) -> None:
        listener.stop()
        await asyncio.sleep(0.3)
        called.append(letter.id)

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise OSError("the mail server is down")

    message_id = await jobs.put(b"x")
    listener = session.listener(jobs, handler, on_dead=alarm)
    await listener.run()
    assert called == [message_id]


async def test_an_alarm_that_fails_is_logged_and_the_listener_continues(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce())

    async def alarm(_: zq.DeadLetter[bytes], error: BaseException | None) -> None:
        raise ConnectionError("no pager") from error

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise OSError("the mail server is down")

    await jobs.put_many([b"x", b"y"])
    await serve(session, jobs, handler, holds(jobs, 2), on_dead=alarm)
    assert sum("on_dead failed for message" in record.getMessage() for record in caplog.records) == 2


async def test_an_alarm_must_be_awaitable(session: zq.QueueSession) -> None:
    async def handler(_: zq.Delivery[bytes]) -> None: ...

    def alarm(*_: object) -> None: ...

    with pytest.raises(zq.InvalidOptionError, match="on_dead must be awaitable"):
        session.listener(session.queue("jobs"), handler, on_dead=alarm)  # type: ignore[arg-type]


async def test_an_alarm_must_take_the_letter_and_the_error(session: zq.QueueSession) -> None:
    async def handler(_: zq.Delivery[bytes]) -> None: ...

    async def alarm(_: object) -> None: ...

    wrong: Any = alarm  # type checkers reject it
    with pytest.raises(zq.InvalidOptionError, match="called with two arguments, the dead letter and the error"):
        session.listener(session.queue("jobs"), handler, on_dead=wrong)
