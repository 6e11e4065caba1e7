"""The fixtures of the fault tests: a fast server, a proxy in front of it, and an independent view of its znodes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing import ServerOptions, ZooKeeperProxy
from tests.faults.account import Account
from tests.observer import observer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiozkqueue.testing import EmbeddedZooKeeper


@pytest.fixture(scope="session")
def quick(embedded_server: Callable[..., EmbeddedZooKeeper]) -> str:
    """A server with short ticks, which allow short session timeouts; without fsync, since no test stops the machine."""
    return embedded_server(ServerOptions(tick_time=0.1, fsync=False)).hosts


@pytest.fixture
async def proxy(quick: str) -> AsyncIterator[ZooKeeperProxy]:
    """A proxy in front of the quick server."""
    async with ZooKeeperProxy(quick) as between:
        yield between


@pytest.fixture
def root() -> str:
    """A separate root for this test."""
    return f"/faults-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def account(quick: str, root: str) -> AsyncIterator[Account]:
    """The contents below the root, read by an independent client that bypasses the proxy."""
    async with observer(quick) as view:
        yield Account(view, root)
