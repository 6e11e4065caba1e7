"""Middleware: code around each call of a listener's handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def test_the_first_middleware_is_outermost_and_sees_how_the_delivery_ends(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    calls: list[str] = []

    async def outer(delivery: zq.Delivery[Any], call_next: Callable[[], Awaitable[None]]) -> None:
        calls.append("outer")
        try:
            await call_next()
            await delivery.commit()
        finally:
            calls.append(delivery.outcome.value)

    async def inner(delivery: zq.Delivery[Any], call_next: Callable[[], Awaitable[None]]) -> None:
        calls.append(f"inner {delivery.attempt}")
        await call_next()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        calls.append("handler")
        if delivery.attempt == 1:
            msg = "not yet"
            raise RuntimeError(msg)
        delivery.put("results", delivery.value)

    async def done() -> bool:
        return await session.queue("results").size() == 1 and calls[-1] == "committed"

    await jobs.put(b"1")
    async with session.listener(jobs, handler, middleware=[outer, inner]):
        await eventually(done, 30)
    assert calls == ["outer", "inner 1", "handler", "open", "outer", "inner 2", "handler", "committed"]


async def test_an_exception_of_a_middleware_counts_as_one_of_the_handler(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")

    async def refuse(_delivery: zq.Delivery[Any], _call_next: Callable[[], Awaitable[None]]) -> None:
        raise zq.Reject("not signed")

    async def handler(_delivery: zq.Delivery[bytes]) -> None:
        raise AssertionError

    async def dead() -> bool:
        return await jobs.dead_letters.size() == 1

    await jobs.put(b"1")
    async with session.listener(jobs, handler, middleware=[refuse]):
        await eventually(dead, 30)
    [letter] = await jobs.dead_letters.peek()
    assert letter.reason == "not signed"
