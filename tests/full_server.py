"""A ZooKeeper server that accepts one connection from each address, and resets all others."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions, ServerUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def full_server() -> AsyncIterator[str]:
    """Run the server, and yield its address."""
    options = ServerOptions(fsync=False, settings={"maxClientCnxns": 1})
    try:
        server = await EmbeddedZooKeeper(options).__aenter__()
    except ServerUnavailableError as error:
        pytest.skip(str(error))  # the error names the missing part
    async with server:
        yield server.hosts
