"""What is done around each call of a listener's handler: for tracing, measuring, opening what a handler needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .delivery import Delivery

T = TypeVar("T")

Middleware: TypeAlias = Callable[["Delivery[Any]", Callable[[], Awaitable[None]]], Awaitable[None]]
"""``async def around(delivery, call_next)``: awaits ``call_next()`` to have the handler called."""


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
