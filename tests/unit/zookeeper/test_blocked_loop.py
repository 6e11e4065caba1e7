"""The report of a blocked event loop."""

from __future__ import annotations

import asyncio
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiozkqueue.errors import BlockedLoopWarning
from aiozkqueue.zookeeper import heartbeat
from aiozkqueue.zookeeper.states import StateMachine

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper.connection import Connection


@dataclass
class Unconnected:
    """A session with a short timeout and without a connection."""

    timeout: float = 0.3
    states: StateMachine = field(default_factory=StateMachine)
    connection: Connection | None = None


async def test_each_block_is_logged_with_its_time_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A text with the time of each block is shown for each, and Python keeps every text that it has shown."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        beating = asyncio.create_task(heartbeat.run(Unconnected()))
        for block in (0.2, 0.3, 0.4):
            await asyncio.sleep(0.05)  # longer than a tick
            end = time.monotonic() + block
            while time.monotonic() < end:
                pass
        await asyncio.sleep(0.05)
        beating.cancel()
    assert [warning.category for warning in shown] == [BlockedLoopWarning]
    logged = [record.getMessage() for record in caplog.records if "was blocked for " in record.getMessage()]
    assert len(logged) >= 3, "the machine may have stalled, too"
