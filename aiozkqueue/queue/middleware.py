"""What is done around each call of a listener's handler: for tracing, measuring, opening what a handler needs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .delivery import Delivery

T = TypeVar("T")

Middleware: TypeAlias = Callable[["Delivery[Any]", Callable[[], Awaitable[None]]], Awaitable[None]]
"""``async def around(delivery, call_next)``: awaits ``call_next()`` to have the handler called."""


def check_awaited(function: object, what: str) -> None:
    """Refuse what is called and then awaited, and cannot be: each message would be handled, and fail after that.

    Refused is what is certain: no callable, a generator, a function that says that it returns None.

    Raises:
        InvalidOptionError.
    """
    plain = _plain(function)
    if not (_never_awaited(plain) if isinstance(plain, FunctionType) else not callable(plain)):
        return
    msg = f"{getattr(plain, '__qualname__', None) or repr(plain)}: {what} is awaited; make it an `async def`"
    raise InvalidOptionError(msg)


def name_of(function: object) -> str:
    """Return module and name of a function, a method, or what a partial calls; of another object, its class's."""
    plain = _plain(function)
    if not hasattr(plain, "__qualname__"):
        plain = type(plain)
    return f"{getattr(plain, '__module__', None)}.{getattr(plain, '__qualname__', None)}"


def _plain(function: object) -> object:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__func__", function)  # a method's


def _never_awaited(function: FunctionType) -> bool:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return True
    if inspect.iscoroutinefunction(function) or hasattr(function, "__wrapped__"):  # has another's annotations
        return False
    return function.__annotations__.get("return", ...) in (None, "None")


def wrapped(
    handler: Callable[[Delivery[T]], Awaitable[None]], middleware: Sequence[Middleware]
) -> Callable[[Delivery[T]], Awaitable[None]]:
    """Return the handler with these around it, the first outermost; the handler itself when there are none."""
    for one in reversed(middleware):
        handler = _around(one, handler)
    return handler


def _around(
    one: Middleware, handler: Callable[[Delivery[T]], Awaitable[None]]
) -> Callable[[Delivery[T]], Awaitable[None]]:
    async def call(delivery: Delivery[T]) -> None:
        await one(delivery, partial(handler, delivery))

    return call
