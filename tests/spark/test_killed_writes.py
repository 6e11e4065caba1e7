"""A write whose driver is killed: the rows are reported, consumers never receive them, and clean-up removes them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import take_one
from tests.spark.hanging_write import ROWS
from tests.spark.local import PROJECT, environment
from tests.spark.orphaned import JVM

if TYPE_CHECKING:
    from pathlib import Path

    from tests.observer import Observer

pytestmark = pytest.mark.timeout(400)


async def killed_write(zookeeper: str, root: str, java: str, folder: Path, view: Observer) -> None:
    """Start a driver, and kill it with its JVM when the rows of one partition are stored."""
    driver = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.spark.hanging_write", zookeeper, root, str(folder)),
        cwd=PROJECT,
        env={**os.environ, **environment(java)},
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        items = f"{root}/orders/items"
        await view.until(lambda: len(view._children(items)) == 1 + ROWS, 240)
        os.kill(int(await asyncio.to_thread((folder / JVM).read_text)), signal.SIGKILL)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        await driver.wait()


@pytest.mark.slow
async def test_the_rows_of_a_killed_write_are_counted_diagnosed_and_cleaned_up(
    zookeeper: str,
    queue_root: str,
    spark_java: str,
    tmp_path: Path,
    server_view: Observer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with zq.connect(zookeeper, root=queue_root, janitor=False) as session:
        orders = session.queue("orders")
        await orders.put(b"seen")
        await killed_write(zookeeper, queue_root, spark_java, tmp_path, server_view)
        assert (await take_one(session, "orders")).body == b"seen"
        async with session.transaction() as tx:
            assert await tx.take(orders) is None
        stats = await orders.stats()
        assert (stats.size, stats.staged) == (ROWS, 1)
        assert [write.messages for write in await orders.admin.unfinished()] == [ROWS]
        (finding,) = [
            candidate for candidate in (await session.admin.diagnose("orders")).findings if "staged" in candidate.text
        ]
        assert finding.text.startswith(f"{ROWS} staged messages")
        assert "ledgers discard orders" in finding.advice
        await session.admin.clean("orders")
        assert await orders.size() == ROWS
        monkeypatch.setattr("aiozkqueue.operations.cleaning.WRITES_KEPT", -60_000)  # a day later
        await session.admin.clean("orders")
        assert await server_view.children(f"{queue_root}/orders/items") == []
        assert (await orders.stats()).staged == 0
