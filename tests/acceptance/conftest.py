"""The fixtures of the acceptance tests: sessions on a separate root, as in the queue tests, and a clock.

A test about delays, lifetimes or leases moves the clock, so it does not depend on the speed of the machine.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import TestClock
from tests.integration.queue.conftest import expire, locks, open_session, other, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["expire", "locks", "open_session", "other", "session"]


class OnClock(Protocol):
    """Opens sessions with the test's clock, and closes them at the end of the test."""

    async def __call__(self, *, node: str | None = None) -> zq.QueueSession: ...


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
async def on_clock(zookeeper: str, queue_root: str, clock: TestClock) -> AsyncIterator[OnClock]:
    async with AsyncExitStack() as stack:

        async def open_one(*, node: str | None = None) -> zq.QueueSession:
            connecting = zq.connect(zookeeper, root=queue_root, clock=clock, node=node, session_timeout=20)
            return await stack.enter_async_context(connecting)

        yield open_one
