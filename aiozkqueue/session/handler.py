"""Handlers of listeners: the check of a handler before any message is taken, and its time limit."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import TYPE_CHECKING, Any

from aiozkqueue.errors import InvalidOptionError

from .middleware import check_awaited, name_of

if sys.version_info >= (3, 14):
    from annotationlib import Format

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.runtime.clock import Clock


def check_handler(handler: object, takes: str = "the delivery") -> None:
    """Reject a handler that cannot be awaited, or cannot be called with one argument. Raises: InvalidOptionError."""
    check_awaited(handler, "a handler")
    _check_call(handler, 1, f"a handler is called with one argument, {takes}")


def check_alarm(on_dead: object) -> None:
    """Reject an ``on_dead`` that cannot be awaited, or called with two arguments. Raises: InvalidOptionError."""
    check_awaited(on_dead, "on_dead")
    _check_call(on_dead, 2, "on_dead is called with two arguments, the dead letter and the error")


def _check_call(function: object, arguments: int, rule: str) -> None:
    try:
        signature = _signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(*[object()] * arguments)
    except TypeError as error:
        raise InvalidOptionError(f"{name_of(function)}{signature}: {rule}: {error}") from error


def _signature(handler: Any) -> inspect.Signature:  # noqa: ANN401 - any callable
    if sys.version_info >= (3, 14):  # some names of its annotations may exist only for type checkers
        return inspect.signature(handler, annotation_format=Format.FORWARDREF)
    return inspect.signature(handler)


def time_limits(
    clock: Clock, limit: float | None
) -> list[Callable[[object, Callable[[], Awaitable[None]]], Awaitable[None]]]:
    """Return a middleware that cancels the handler after ``limit`` seconds, and fails its work by TimeoutError.

    None: there is no limit, and no middleware.
    """
    if limit is None:
        return []

    async def within(_: object, call_next: Callable[[], Awaitable[None]]) -> None:
        scope = asyncio.timeout(None)
        try:
            async with scope:
                timer = clock.call_later(limit, lambda: scope.reschedule(0))
                try:
                    await call_next()
                finally:
                    timer.cancel()
        except TimeoutError as error:
            if scope.expired():
                msg = f"the handler did not finish within {limit:g} s"
                raise TimeoutError(msg) from error.__cause__  # the cancellation, which shows where the handler waited
            raise

    return [within]
