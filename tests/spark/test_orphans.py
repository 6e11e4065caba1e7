"""Spark's Python processes while ZooKeeper is down: they end with their JVM, and wait no longer than configured."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import aiozkqueue as zq
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.connection import linked
from aiozkqueue.spark.options import Content, parse_options
from aiozkqueue.spark.reading import QueueReader
from aiozkqueue.spark.sink import QueueStreamWriter
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.spark.writing import staging_of
from aiozkqueue.testing import ZooKeeperProxy
from tests.spark.calls import BODY, Partition, rows_of, use, writer_of
from tests.spark.local import PROJECT, environment
from tests.spark.orphaned import JVM
from tests.spark.processes import children
from tests.spark.test_batch import drained, put
from tests.spark.test_contract import stream_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.spark.streaming import LedgerShare

pytestmark = pytest.mark.timeout(300)


class SecondBatch(Partition):
    """The context of a task in the second batch of a query."""

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return "1" if name == "streaming.sql.batchId" else super().getLocalProperty(name)


def sink_of(options: dict[str, str]) -> QueueStreamWriter:
    return QueueStreamWriter(BODY, parse_options(options), "query")


#: Seconds within which a condition must become true, even on a busy machine.
PATIENCE = 120


async def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(done):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def lives(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
async def test_a_driver_whose_jvm_is_killed_while_zookeeper_is_down_leaves_no_process(
    zookeeper: str, options: dict[str, str], spark_java: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(put, options, b"1")
    async with ZooKeeperProxy(zookeeper) as proxy:
        driver = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.spark.orphaned", proxy.hosts, options["root"], str(tmp_path)),
            cwd=PROJECT,
            env={**os.environ, **environment(spark_java)},
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            await until((tmp_path / JVM).exists, "the stream has not begun")
            jvm = int(await asyncio.to_thread((tmp_path / JVM).read_text))
            proxy.refuse()
            proxy.reset_connections()
            orphans = await asyncio.to_thread(children, jvm)
            assert orphans, "the source has no process"
            os.kill(jvm, signal.SIGKILL)
            await until(lambda: not any(map(lives, orphans)), "a process of Spark's is left")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            await driver.wait()


async def test_drivers_tasks_and_writers_fail_after_the_outage_timeout(
    zookeeper: str, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(put, options, b"1", b"2")
    async with ZooKeeperProxy(zookeeper) as proxy:
        given = {**options, "hosts": proxy.hosts, "outageTimeout": "0.5", "sessionTimeout": "3"}
        parsed = await asyncio.to_thread(parse_options, given)  # reads the time zone's file
        reader = QueueStreamReader(default_schema(parsed.content), parsed)
        end = await asyncio.to_thread(reader.latestOffset, reader.initialOffset(), ReadAllAvailable())
        (share,) = await asyncio.to_thread(reader.partitions, reader.initialOffset(), end)
        task = reader.read(share)
        batch = await asyncio.to_thread(next, task, None)
        assert batch is not None
        links = linked(parsed)
        writer = await asyncio.to_thread(links.__enter__)
        staging = await asyncio.to_thread(writer.call, staging_of, writer, "writer")
        proxy.refuse()
        proxy.reset_connections()
        for waits in (
            lambda: reader.commit(end),
            lambda: next(task, None),
            lambda: writer.call(staging.begin, 0, "run"),
        ):
            with pytest.raises(zq.ConnectionLostError, match=r"no server of .* for 0.5 seconds.*outageTimeout"):
                await asyncio.wait_for(asyncio.to_thread(waits), PATIENCE)
        assert "outageTimeout" in caplog.text
        await asyncio.wait_for(asyncio.to_thread(links.__exit__, None, None, None), PATIENCE)
        await asyncio.wait_for(asyncio.to_thread(reader.stop), PATIENCE)


async def test_commits_and_later_tasks_that_begin_in_an_outage_wait_for_its_end(
    zookeeper: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(SecondBatch, monkeypatch)
    copies, invoices = {**options, "queue": "copies", "writeId": "nightly"}, {**options, "queue": "invoices"}
    schema = default_schema(Content.ITEMS)
    driver = await asyncio.to_thread(stream_of, options)
    shares: list[LedgerShare] = []
    start = driver.initialOffset()
    for body in (b"1", b"2"):
        await asyncio.to_thread(put, options, body)
        end = await asyncio.to_thread(driver.latestOffset, start, ReadAllAvailable())
        shares += await asyncio.to_thread(driver.partitions, start, end)
        await asyncio.to_thread(list, driver.read(shares[-1]))
        start = end
    (folder,) = await asyncio.to_thread(QueueReader(schema, parse_options(options)).partitions)
    await asyncio.to_thread(driver.stop)
    written = await asyncio.to_thread(writer_of(copies).write, rows_of([b"1"]))
    sunk = await asyncio.to_thread(lambda: sink_of(invoices).write(rows_of([b"1"])))
    async with ZooKeeperProxy(zookeeper) as proxy:
        hasty = {"hosts": proxy.hosts, "connectTimeout": "0.5", "outageTimeout": str(PATIENCE)}
        reader = QueueReader(schema, parse_options({**options, **hasty}))
        works: list[Callable[[], object]] = [
            lambda: sum(rows.num_rows for rows in stream_of({**options, **hasty}).read(shares[1])),
            lambda: writer_of({**copies, **hasty}).commit([written]),
            lambda: sink_of({**invoices, **hasty}).commit([sunk], 1),
            lambda: sink_of({**options, **hasty, "queue": "letters"}).write(rows_of([b"1"])),
        ]
        proxy.refuse()
        waiting = [asyncio.ensure_future(asyncio.to_thread(work)) for work in works]
        assert await asyncio.wait(waiting, timeout=2) == (set(), {*waiting})
        for begins in (  # nothing shows yet that this process can reach the servers
            lambda: list(stream_of({**options, **hasty}).read(shares[0])),
            lambda: list(reader.read(folder)),
            lambda: writer_of({**copies, **hasty}).write(rows_of([b"1"])),
        ):
            with pytest.raises(zq.ConnectionLostError, match=r"within 0\.5 s"):
                await asyncio.to_thread(begins)
        await proxy.listen()
        done = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
        assert done[:3] == [1, None, None]
    assert await asyncio.to_thread(drained, copies) == [b"1"]
    assert await asyncio.to_thread(drained, invoices) == [b"1"]
