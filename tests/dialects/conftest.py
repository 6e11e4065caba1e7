"""The fixtures of these tests: sessions, the real clients, and a separate path for each test.

A JVM that compiles its driver takes seconds to start, so tests share one, and the fixture closes everything that a test
has opened in it. A test that kills its peer starts its own.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest

from aiozkqueue.testing.cleaning import delete_tree
from tests.integration.queue.conftest import expire, open_session, other, session
from tests.integration.zookeeper.scripted_server import close_elsewhere

from .peers import Curator, Kazoo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = TypeVar("P", Curator, Kazoo)

__all__ = ["expire", "open_session", "other", "session"]


class StartCurator(Protocol):
    """Starts a JVM with Curator, killed at the end of the test."""

    async def __call__(self) -> Curator: ...


class StartKazoo(Protocol):
    """Starts a process with kazoo, killed at the end of the test."""

    async def __call__(self) -> Kazoo: ...


class Die(Protocol):
    """Kills a peer and ends its session at the server, so that the test does not wait for the session timeout."""

    async def __call__(self, peer: Curator | Kazoo) -> None: ...


@pytest.fixture
def path(zookeeper: str) -> Iterator[str]:
    """The path of the other program's queue."""
    top = f"/foreign-{uuid.uuid4().hex[:12]}"
    yield f"{top}/queue"
    delete_tree(zookeeper, top)


@contextmanager
def shared(start: Callable[[], P]) -> Iterator[Callable[[], P]]:
    """Return a function that returns a running peer, which it starts if necessary."""
    peers: list[P] = []

    def alive() -> P:
        if not peers or not peers[-1].alive:
            peers.append(start())
        return peers[-1]

    yield alive
    for peer in peers:
        peer.kill()


@pytest.fixture(scope="session")
def shared_curator(zookeeper: str) -> Iterator[Callable[[], Curator]]:
    with shared(lambda: Curator(zookeeper)) as alive:
        yield alive


@pytest.fixture(scope="session")
def shared_kazoo(zookeeper: str) -> Iterator[Callable[[], Kazoo]]:
    with shared(lambda: Kazoo(zookeeper)) as alive:
        yield alive


@pytest.fixture
def curator(shared_curator: Callable[[], Curator], path: str) -> Iterator[Curator]:
    """The shared JVM with Curator; everything that this test opens in it is closed."""
    del path  # so that the path is removed after the peer has closed its queues
    peer = shared_curator()
    yield peer
    peer.reset()


@pytest.fixture
def kazoo(shared_kazoo: Callable[[], Kazoo], path: str) -> Iterator[Kazoo]:
    """The shared process with kazoo; everything that this test holds in it is released."""
    del path  # so that the path is removed after the peer has released its messages
    peer = shared_kazoo()
    yield peer
    peer.reset()


@pytest.fixture
def start_curator(zookeeper: str) -> Iterator[StartCurator]:
    with ExitStack() as stack:

        async def start() -> Curator:
            peer = await asyncio.to_thread(Curator, zookeeper)
            stack.callback(peer.kill)
            return peer

        yield start


@pytest.fixture
def start_kazoo(zookeeper: str) -> Iterator[StartKazoo]:
    with ExitStack() as stack:

        async def start() -> Kazoo:
            peer = await asyncio.to_thread(Kazoo, zookeeper)
            stack.callback(peer.kill)
            return peer

        yield start


@pytest.fixture
def die(zookeeper: str) -> Die:
    async def dying(peer: Curator | Kazoo) -> None:
        session_id, password = await peer.session()
        await asyncio.to_thread(peer.kill)
        close_elsewhere(zookeeper, session_id, password)

    return dying
