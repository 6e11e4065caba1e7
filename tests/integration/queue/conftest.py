"""The fixtures of the queue tests: sessions, sessions that the server ends, and the remaining locks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol

import pytest

import aiozkqueue as zq
from tests.integration.queue.bundles import Stored
from tests.integration.zookeeper.scripted_server import close_elsewhere

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.testing import TestClock, ZooKeeperProxy
    from tests.observer import Observer


class Opener(Protocol):
    """Opens sessions, and closes them at the end of the test."""

    async def __call__(
        self, hosts: str | None = None, *, session_timeout: float = 20, clock: TestClock | None = None
    ) -> zq.QueueSession: ...


@pytest.fixture
async def open_session(
    zookeeper: str,
    queue_root: str,
    zookeeper_proxy: ZooKeeperProxy,  # noqa: ARG001 -- the proxy must outlive the sessions that use it
) -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:

        async def open_one(
            hosts: str | None = None, *, session_timeout: float = 20, clock: TestClock | None = None
        ) -> zq.QueueSession:
            connecting = zq.connect(hosts or zookeeper, root=queue_root, session_timeout=session_timeout, clock=clock)
            return await stack.enter_async_context(connecting)

        yield open_one


@pytest.fixture
async def session(open_session: Opener) -> zq.QueueSession:
    """A session on the root of this test."""
    return await open_session()


@pytest.fixture
async def other(open_session: Opener) -> zq.QueueSession:
    """Another session, as in another process."""
    return await open_session()


class Locks(Protocol):
    async def __call__(self, queue: str = "jobs") -> list[str]: ...


@pytest.fixture
def locks(server_view: Observer, queue_root: str) -> Locks:
    """The locks on a queue, listed by an independent client."""

    async def listed(queue: str = "jobs") -> list[str]:
        return await server_view.children(f"{queue_root}/{queue}/locks")

    return listed


def zookeeper_session(session: zq.QueueSession) -> int:
    """Return the id of the ZooKeeper session of a session."""
    return session._runtime.zookeeper.session_id


@pytest.fixture
def expire(zookeeper: str) -> Callable[[zq.QueueSession], Awaitable[None]]:
    """Ends a session's ZooKeeper session at the server, and waits until the client has a new one."""

    async def end(session: zq.QueueSession) -> None:
        client = session._runtime.zookeeper
        before = await client.wait_connected()
        async with asyncio.timeout(60):
            # Repeated, because a server ignores the other connection if the client has just reconnected.
            while client.generation == before:
                resumable = client._session._resumable  # type: ignore[attr-defined]
                if resumable is not None:  # otherwise the client knows of the end, and opens its next session
                    close_elsewhere(zookeeper, resumable.session_id, resumable.password)
                with suppress(TimeoutError):
                    await asyncio.wait_for(client.wait_connected(after=before), 1)

    return end


async def eventually(condition: Callable[[], Awaitable[bool]], timeout: float = 30) -> None:
    """Wait until the condition holds. Raises: TimeoutError."""
    async with asyncio.timeout(timeout):
        while not await condition():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)


async def no_locks(locks: Locks, timeout: float = 30) -> None:
    """Wait until no lock is left: unneeded claims and claims of ended takers are released a moment later."""

    async def none() -> bool:
        return await locks() == []

    await eventually(none, timeout)


async def take_one(session: zq.QueueSession, queue: str = "jobs", timeout: float = 30) -> zq.Message[bytes]:
    """Take and commit the next message."""
    async with session.transaction() as tx:
        message = await tx.take(session.queue(queue), timeout=timeout)
        assert message is not None
    return message


@pytest.fixture
def stored(server_view: Observer, queue_root: str) -> Stored:
    """The znodes of the queue "jobs", read by an independent client."""
    return Stored(server_view, queue_root)
