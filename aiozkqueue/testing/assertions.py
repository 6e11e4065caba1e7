"""Assertions about queues, on the simulator or a real server. A failed assertion shows the queue's messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiozkqueue import PayloadError, Status
from aiozkqueue.arguments import required_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import EllipsisType

    from aiozkqueue import DeadLetter, Message, Queue, Seconds

T = TypeVar("T")
R = TypeVar("R")

#: The maximum number of messages of a queue that are examined, oldest first.
MOST: Final = 1000
#: The number of messages that a failed assertion shows.
_DESCRIBED: Final = 10
_SHOWN: Final = 200
_POLL: Final = 0.02


async def assert_put(
    queue: Queue[T],
    value: T | EllipsisType = ...,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: Seconds = 0,
) -> Message[T]:
    """Assert that a message equal to ``value`` is in the queue, and return the oldest one.

    The message may be available, delayed or held by a consumer. The 1,000 oldest messages are examined.

    Args:
        queue: the queue that should have the message.
        value: the expected value; any value matches if omitted.
        key: the expected key; None matches any key, or no key.
        headers: the headers that the message should have, among others.
        timeout: seconds, in real time, to wait for the message.

    Raises:
        AssertionError: no such message; lists the messages found.
        AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
    """
    __tracebackhide__ = True
    wanted = dict(headers or {})

    async def search() -> Message[T] | None:
        for message in await queue.peek(MOST):
            if _is(message, value) and key in (None, message.key) and wanted.items() <= message.headers.items():
                return message
        return None

    if found := await _within(timeout, search):
        return found
    sought = _sought(value, {"key": key, "headers": wanted or None})
    raise AssertionError(f"queue {queue.name!r} has no message{sought}; {await _describe(queue)}")


async def assert_empty(queue: Queue[Any], *, timeout: Seconds = 0) -> None:
    """Assert that the queue has no message: none available, delayed or held. Dead letters do not count.

    ``timeout`` is the number of seconds, in real time, to wait until the queue is empty.

    Raises:
        AssertionError: the queue has messages; lists them.
        AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
    """
    __tracebackhide__ = True

    async def search() -> bool:
        return await queue.size() == 0

    if not await _within(timeout, search):
        raise AssertionError(f"queue {queue.name!r} is not empty; {await _describe(queue)}")


async def assert_dead_lettered(
    queue: Queue[T], value: T | EllipsisType = ..., *, reason: str | None = None, timeout: Seconds = 0
) -> DeadLetter[T]:
    """Assert that a message equal to ``value`` is among the queue's dead letters, and return the oldest one.

    Args:
        queue: the queue that should have the dead letter.
        value: the expected value; any value matches if omitted.
        reason: a text that the dead letter's reason should contain.
        timeout: seconds, in real time, to wait for the dead letter.

    Raises:
        AssertionError: no such dead letter; lists those found.
        AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
    """
    __tracebackhide__ = True

    async def search() -> DeadLetter[T] | None:
        for dead in await queue.dead_letters.peek(MOST):
            if _is(dead, value) and (reason is None or reason in dead.reason):
                return dead
        return None

    if found := await _within(timeout, search):
        return found
    sought = _sought(value, {"reason": reason})
    raise AssertionError(f"queue {queue.name!r} has no dead letter{sought}; {await _describe(queue)}")


async def _within(timeout: Seconds, search: Callable[[], Awaitable[R]]) -> R:
    """Call ``search`` until its result is true or the timeout has passed, and return the result."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + required_seconds(timeout, "timeout")
    while not (found := await search()) and loop.time() < deadline:  # noqa: ASYNC110 - others put there, unseen from here
        await asyncio.sleep(_POLL)
    return found


async def _describe(queue: Queue[Any]) -> str:
    """Describe the messages and dead letters of a queue, for a failed assertion."""
    waiting = [f"{_content(message)}, {await _state(queue, message)}" for message in await queue.peek(_DESCRIBED)]
    dead = [f"{_content(letter)}: {_short(letter.reason)}" for letter in await queue.dead_letters.peek(_DESCRIBED)]
    messages = _listed("message", await queue.size(), waiting)
    return f"it has {messages}and {_listed('dead letter', await queue.dead_letters.size(), dead).rstrip()}"


def _listed(noun: str, count: int, lines: list[str]) -> str:
    counted = f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
    if not lines:
        return f"{counted} "
    first = "" if count <= len(lines) else f", of which the first {len(lines)} are"
    return "".join([f"{counted}{first}:\n", *(f"  {line}\n" for line in lines)])


def _content(message: Message[Any]) -> str:
    try:
        text = _short(message.value)
    except PayloadError:
        text = f"{_short(message.body)}, which does not decode"
    if message.key is not None:
        text += f", key {message.key!r}"
    if message.headers:
        text += f", headers {_short(dict(message.headers))}"
    return text


async def _state(queue: Queue[Any], message: Message[Any]) -> str:
    status = (await queue.state(message.id)).status
    word = "already gone" if status is Status.UNKNOWN else status.value
    until = "" if message.due is None else f" until {message.due:%Y-%m-%d %H:%M:%S} UTC"
    return f"{word}{until}" + (f", last failed with {_short(message.error)}" if message.error else "")


def _sought(value: object, options: Mapping[str, object]) -> str:
    given = " and ".join(f"{name} {_short(option)}" for name, option in options.items() if option is not None)
    return ("" if value is ... else f" that is {_short(value)}") + (f" with {given}" if given else "")


def _is(message: Message[Any], value: object) -> bool:
    try:
        return value is ... or bool(message.value == value)
    except PayloadError:
        return False


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
