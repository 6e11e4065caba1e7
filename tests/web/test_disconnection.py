"""Whether a request's client has gone, asked of servers that send messages in every way that ASGI allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request

from aiozkqueue.disconnection import MOST, is_disconnected

if TYPE_CHECKING:
    from collections.abc import Iterable

BODY = {"type": "http.request", "body": b"x", "more_body": True}
GONE = {"type": "http.disconnect"}


def request_of(messages: Iterable[dict[str, Any]]) -> Request:
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)  # as behind a middleware
        for message in left:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


@pytest.mark.parametrize(
    ("messages", "gone"),
    [([], False), ([BODY], False), ([GONE], True), ([BODY, GONE], True), ([BODY] * (MOST - 2) + [GONE], True)],
    ids=["silent", "body", "gone", "gone after a body", "gone after a long body"],
)
async def test_a_client_is_gone_if_the_server_says_so(messages: list[dict[str, Any]], gone: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert await is_disconnected(request_of(messages)) is gone


async def test_a_client_that_sends_without_end_does_not_hold_up_the_answer() -> None:
    endless = iter(lambda: BODY, None)
    async with asyncio.timeout(10):
        assert not await is_disconnected(request_of(endless))
