"""Middleware: functions around each call of a listener's handler, for tracing, measuring or setup."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from aiozkqueue.errors import InvalidOptionError

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

if TYPE_CHECKING:
    from .delivery import Delivery

T = TypeVar("T")

Middleware: TypeAlias = Callable[["Delivery[Any]", Callable[[], Awaitable[None]]], Awaitable[None]]
"""``async def around(delivery, call_next)``: awaits ``call_next()`` to have the handler called."""


def check_awaited(function: object, what: str) -> None:
    """Reject a function whose result cannot be awaited: each message would fail after it was handled.

    It accepts an ``async def``, and a function that returns something by its annotation. It rejects a generator, a
    function that returns None, and a function or lambda without an annotation.

    Raises:
        InvalidOptionError.
    """
    plain = _plain(function)
    body: object = plain if isinstance(plain, FunctionType) else getattr(type(plain), "__call__", None)  # noqa: B004 - its code
    never = isinstance(body, FunctionType) and _never_awaited(body, object_called=body is not plain)
    if callable(plain) and not never:
        return
    name = getattr(plain, "__qualname__", None) or repr(plain)
    yields = " that does not yield" if isinstance(body, FunctionType) and _yields(body) else ""
    msg = f"{name}: {what} must be awaitable; make it an `async def`{yields}"
    raise InvalidOptionError(msg)


def check_middleware(middleware: object) -> None:
    """Refuse a middleware list that is not a list of awaitable functions. Raises: InvalidOptionError."""
    if not isinstance(middleware, Sequence):  # an iterator would be used up by the check
        msg = f"middleware takes a list, such as middleware=[timed], not {type(middleware).__name__}"
        raise InvalidOptionError(msg)
    for layer in cast("Sequence[object]", middleware):
        check_awaited(layer, "a middleware")


def name_of(function: object) -> str:
    """Return the module and name of a function, a method or a partial's function; else of the object's class."""
    plain = _plain(function)
    if not hasattr(plain, "__qualname__"):
        plain = type(plain)
    return f"{getattr(plain, '__module__', None)}.{getattr(plain, '__qualname__', None)}"


def _plain(function: object) -> object:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__func__", function)  # a method's


def _yields(function: FunctionType) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _never_awaited(function: FunctionType, *, object_called: bool) -> bool:
    if _yields(function):
        return True
    if inspect.iscoroutinefunction(function) or hasattr(function, "__wrapped__"):  # a decorator copies annotations
        return False
    unknown = ... if object_called else None  # a mock's `__call__` has no annotation and may return an awaitable
    return _annotations(function).get("return", unknown) in (None, "None")


def _annotations(function: FunctionType) -> dict[str, Any]:
    if sys.version_info >= (3, 14):  # reading them evaluates them, and some of the names exist only for type checkers
        return get_annotations(function, format=Format.FORWARDREF)
    return function.__annotations__


def wrapped(
    handler: Callable[[T], Awaitable[None]],
    middleware: Sequence[Callable[[T, Callable[[], Awaitable[None]]], Awaitable[None]]],
) -> Callable[[T], Awaitable[None]]:
    """Return the handler wrapped in the middleware, the first outermost; the handler itself if there is none."""
    for layer in reversed(middleware):
        handler = _around(layer, handler)
    return handler


def _around(
    layer: Callable[[T, Callable[[], Awaitable[None]]], Awaitable[None]], handler: Callable[[T], Awaitable[None]]
) -> Callable[[T], Awaitable[None]]:
    async def call(subject: T) -> None:
        await layer(subject, partial(handler, subject))

    return call
