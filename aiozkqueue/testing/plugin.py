"""pytest fixtures: a real ZooKeeper for tests, wherever they run.

The server is, in this order: the one that ``AIOZKQUEUE_ZOOKEEPER`` names (``host:port``, or a list), a container when
a Docker engine answers and `testcontainers` is installed, else the embedded server (``aiozkqueue[embedded]``).

This module is imported in every pytest run wherever the package is installed: it imports nothing that takes time.
"""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from aiozkqueue.testing.configuration import ServerOptions
    from aiozkqueue.testing.frames import ZooKeeperProxy
    from aiozkqueue.testing.server import EmbeddedEnsemble, EmbeddedZooKeeper

#: Names the ZooKeeper to test against, ``host:port`` or a list of them.
ENVIRONMENT = "AIOZKQUEUE_ZOOKEEPER"


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[str]:
    """A ZooKeeper server's connection string; one server for the whole run (for each worker under xdist)."""
    if named := os.environ.get(ENVIRONMENT):
        yield named
        return
    from aiozkqueue.testing.container import container, engine_answers  # noqa: PLC0415 -- see the module's docstring
    from aiozkqueue.testing.runtime import ServerUnavailableError  # noqa: PLC0415
    from aiozkqueue.testing.server import EmbeddedZooKeeper  # noqa: PLC0415

    with ExitStack() as stack:
        if engine_answers():
            hosts = stack.enter_context(container())
        else:
            try:
                hosts = stack.enter_context(EmbeddedZooKeeper()).hosts
            except ServerUnavailableError as error:
                pytest.skip(f"no ZooKeeper: {ENVIRONMENT} is not set, no Docker engine answers, and {error}")
        yield hosts


@pytest.fixture
def queue_root(zookeeper: str) -> Iterator[str]:
    """A path of this test's own, to be given as ``root``; what is below it is deleted after the test."""
    root = f"/test-{uuid.uuid4().hex[:12]}"
    yield root
    from aiozkqueue.testing.cleaning import delete_tree  # noqa: PLC0415 -- see the module's docstring

    delete_tree(zookeeper, root)


def _async_fixture(function: Callable[[str], AsyncIterator[ZooKeeperProxy]]) -> object:
    try:
        import pytest_asyncio  # noqa: PLC0415 -- not everybody has it
    except ImportError:  # then anyio's plugin may run the fixture, and takes pytest's own
        return pytest.fixture(function)
    # In its strict mode, the default, pytest-asyncio runs only what its own decorator made.
    return pytest_asyncio.fixture(function)


@_async_fixture
async def zookeeper_proxy(zookeeper: str) -> AsyncIterator[ZooKeeperProxy]:
    """A misbehaving proxy in front of the server, on the test's own event loop: `ZooKeeperProxy.hosts` leads to it."""
    from aiozkqueue.testing.frames import ZooKeeperProxy  # noqa: PLC0415 -- see the module's docstring

    async with ZooKeeperProxy(zookeeper) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[Callable[..., EmbeddedZooKeeper]]:
    """Starts embedded servers: ``embedded_server(ServerOptions(...))``. All are stopped at the end of the run."""
    from aiozkqueue.testing.runtime import ServerUnavailableError  # noqa: PLC0415 -- see the module's docstring
    from aiozkqueue.testing.server import EmbeddedZooKeeper  # noqa: PLC0415

    with ExitStack() as stack:

        def start(options: ServerOptions | None = None) -> EmbeddedZooKeeper:
            try:
                return stack.enter_context(EmbeddedZooKeeper(options))
            except ServerUnavailableError as error:
                pytest.skip(str(error))

        yield start


@pytest.fixture(scope="session")
def zookeeper_ensemble() -> Iterator[EmbeddedEnsemble]:
    """Three embedded servers that can be killed, paused and restarted. Bring back those that you stop."""
    from aiozkqueue.testing.runtime import ServerUnavailableError  # noqa: PLC0415 -- see the module's docstring
    from aiozkqueue.testing.server import EmbeddedEnsemble  # noqa: PLC0415

    with ExitStack() as stack:
        try:
            ensemble = stack.enter_context(EmbeddedEnsemble())
        except ServerUnavailableError as error:
            pytest.skip(str(error))
        yield ensemble
