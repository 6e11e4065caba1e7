"""What these tests share: sessions, the real clients, and paths of each test's own."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from aiozkqueue.testing.cleaning import delete_tree
from tests.integration.queue.conftest import expire, open_session, other, session

from .peers import Curator, Kazoo, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["expire", "open_session", "other", "session"]


class StartCurator(Protocol):
    """Starts a JVM with Curator, killed at the end of the test."""

    async def __call__(self, timeout: float = 10.0) -> Curator: ...


class StartKazoo(Protocol):
    """Starts a process with kazoo, killed at the end of the test."""

    async def __call__(self, timeout: float = 10.0) -> Kazoo: ...


@pytest.fixture
def path(zookeeper: str) -> Iterator[str]:
    """Where the other program's queue lies."""
    top = f"/foreign-{uuid.uuid4().hex[:12]}"
    yield f"{top}/queue"
    delete_tree(zookeeper, top)


@pytest.fixture
async def start_curator(zookeeper: str) -> AsyncIterator[StartCurator]:
    async with AsyncExitStack() as stack:

        async def start(timeout: float = 10.0) -> Curator:
            peer = await Curator.start(zookeeper, timeout)
            await stack.enter_async_context(running(peer))
            return peer

        yield start


@pytest.fixture
async def start_kazoo(zookeeper: str) -> AsyncIterator[StartKazoo]:
    async with AsyncExitStack() as stack:

        async def start(timeout: float = 10.0) -> Kazoo:
            peer = await Kazoo.start(zookeeper, timeout)
            await stack.enter_async_context(running(peer))
            return peer

        yield start
