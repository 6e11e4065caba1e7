"""Tasks that begin after their write has ended are refused and leave nothing, and the next run writes each row once.

Most tests use the classes that Spark calls, without Spark.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.sink import QueueStreamWriter
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from tests.spark.calls import BODY, Partition, rows_of, use, writer_of
from tests.spark.late import ENDED
from tests.spark.local import PROJECT, environment
from tests.spark.test_batch import drained, state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiozkqueue.spark.writing import QueueWriter
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)

BODIES = [b"%d" % number for number in range(5)]
KINDS = {"no id": {}, "id": {"writeId": "once"}, "version": {"txnAppId": "app", "txnVersion": "3"}}
kinds = pytest.mark.parametrize("more", KINDS.values(), ids=KINDS.keys())


@pytest.fixture(autouse=True)
def one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Partition, monkeypatch)


@pytest.fixture
async def proxy(zookeeper: str) -> AsyncIterator[ZooKeeperProxy]:
    async with ZooKeeperProxy(zookeeper) as between:
        yield between


def is_refused(writer: QueueWriter | QueueStreamWriter) -> None:
    with pytest.raises(zq.NotCommittedError, match="has been discarded"):
        writer.write(rows_of(BODIES))


def write(options: dict[str, str]) -> None:
    """Write the rows in a separate run, which succeeds."""
    writer = writer_of(options)
    writer.commit([writer.write(rows_of(BODIES))])


async def remains(view: Observer, root: str) -> list[str]:
    """Return the items and locks of a queue."""
    return [name for folder in ("items", "locks") for name in await view.children(f"{root}/orders/{folder}")]


@kinds
async def test_a_task_that_begins_after_its_write_has_failed_is_refused_and_leaves_nothing(
    zookeeper: str, queue_root: str, server_view: Observer, more: dict[str, str]
) -> None:
    options = {"hosts": zookeeper, "root": queue_root, "queue": "orders", **more}
    writer = await asyncio.to_thread(writer_of, options)
    for _ in range(2):
        await asyncio.to_thread(writer.abort, [])
        await asyncio.to_thread(is_refused, writer)
        assert await remains(server_view, queue_root) == []
    await asyncio.to_thread(write, options)
    with suppress(zq.NotCommittedError):  # Spark ignores the report, because it comes too late
        assert (await asyncio.to_thread(writer.write, rows_of(BODIES))).rows == 0
    assert await asyncio.to_thread(state, options) == (5, 0)
    assert Counter(await asyncio.to_thread(drained, options)) == Counter(BODIES)


@kinds
async def test_a_second_attempt_of_a_task_that_begins_after_its_write_is_complete_leaves_nothing(
    zookeeper: str, queue_root: str, more: dict[str, str]
) -> None:
    options = {"hosts": zookeeper, "root": queue_root, "queue": "orders", **more}
    writer = await asyncio.to_thread(writer_of, options)
    await asyncio.to_thread(writer.commit, [await asyncio.to_thread(writer.write, rows_of(BODIES))])
    with suppress(zq.NotCommittedError):
        assert (await asyncio.to_thread(writer.write, rows_of(BODIES))).rows == 0
    assert await asyncio.to_thread(state, options) == (5, 0)
    assert Counter(await asyncio.to_thread(drained, options)) == Counter(BODIES)


@kinds
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_write_that_fails_between_any_two_requests_of_a_task_leaves_nothing(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, server_view: Observer, when: str, more: dict[str, str]
) -> None:
    refused = 0
    for nth in count(1):
        root = f"{queue_root}/{nth}"
        options = {"hosts": zookeeper, "root": root, "queue": "orders", **more}
        slow = await asyncio.to_thread(writer_of, {**options, "hosts": proxy.hosts})
        fault = (proxy.hold_request if when == "before" else proxy.hold_reply)(Opcode.MULTI, nth=nth)
        task = asyncio.ensure_future(asyncio.to_thread(slow.write, rows_of(BODIES)))
        struck = asyncio.ensure_future(fault.struck(60))
        await asyncio.wait({task, struck}, return_when=asyncio.FIRST_COMPLETED)
        ended = not struck.done()
        driver = writer_of(options)
        vars(driver).update(
            vars(slow), _options=driver._options
        )  # the writer of the task, which does not use the proxy
        await asyncio.to_thread(driver.abort, [])
        fault.release()
        proxy.heal()
        if ended:
            struck.cancel()
        try:
            await task
        except zq.NotCommittedError:
            refused += 1
        assert await remains(server_view, root) == [], nth
        await asyncio.to_thread(is_refused, slow)
        await asyncio.to_thread(write, options)
        assert Counter(await asyncio.to_thread(drained, options)) == Counter(BODIES), nth
        if ended:
            break
    assert refused > 4


@kinds
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failed_write_whose_driver_loses_any_request_or_reply_refuses_late_tasks(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, server_view: Observer, when: str, more: dict[str, str]
) -> None:
    for begun in (False, True):
        for nth in count(1):
            root = f"{queue_root}/{begun}-{nth}"
            options = {"hosts": zookeeper, "root": root, "queue": "orders", **more}
            driver = await asyncio.to_thread(writer_of, {**options, "hosts": proxy.hosts})
            task = writer_of(options)
            vars(task).update(vars(driver), _options=task._options)
            if begun:
                await asyncio.to_thread(task.write, rows_of(BODIES))
            fault = (proxy.lose_before if when == "before" else proxy.lose_after)(Opcode.MULTI, nth=nth)
            await asyncio.to_thread(driver.abort, [])
            lost = len(fault.requests)
            proxy.heal()
            await asyncio.to_thread(is_refused, task)
            assert await remains(server_view, root) == [], nth
            await asyncio.to_thread(write, options)
            assert Counter(await asyncio.to_thread(drained, options)) == Counter(BODIES), nth
            if not lost:
                break
        assert nth > 1


async def test_a_late_task_of_a_replaced_or_failed_run_does_not_take_over_the_batch_of_its_successor(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    options = {"hosts": zookeeper, "root": queue_root, "queue": "orders", "txnAppId": "app", "txnVersion": "1"}
    killed, failed, successor = [await asyncio.to_thread(writer_of, options) for _ in range(3)]
    await asyncio.to_thread(killed.write, rows_of(BODIES))
    await asyncio.to_thread(failed.write, rows_of(BODIES))
    await asyncio.to_thread(is_refused, killed)
    await asyncio.to_thread(failed.abort, [])
    await asyncio.to_thread(is_refused, failed)
    report = await asyncio.to_thread(successor.write, rows_of(BODIES))
    for late in (killed, failed):
        await asyncio.to_thread(is_refused, late)
        await asyncio.to_thread(late.abort, [])
    await asyncio.to_thread(successor.commit, [report])
    assert Counter(await asyncio.to_thread(drained, options)) == Counter(BODIES)
    assert await remains(server_view, queue_root) == []


@pytest.mark.slow
def test_a_task_that_spark_lets_run_after_its_write_has_failed_is_refused(
    zookeeper: str, queue_root: str, spark_java: str, tmp_path: Path
) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.spark.late", zookeeper, queue_root, str(tmp_path)],
        cwd=PROJECT,
        env={**os.environ, **environment(spark_java)},
        check=True,
        timeout=170,
    )
    assert "has been discarded" in (tmp_path / ENDED).read_text()
    assert state({"hosts": zookeeper, "root": queue_root, "queue": "orders"}) == (0, 0)


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_late_task_of_a_failed_micro_batch_is_refused(
    zookeeper: str,
    queue_root: str,
    server_view: Observer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    begun: bool,
    reported: bool,
) -> None:
    options = {"hosts": zookeeper, "root": queue_root, "queue": "orders"}

    def writer() -> QueueStreamWriter:
        return QueueStreamWriter(BODY, parse_options(options), "origin")

    late, aborting = (
        await asyncio.to_thread(writer),
        await asyncio.to_thread(writer),
    )  # Spark creates another writer to abort the batch
    report = await asyncio.to_thread(late.write, rows_of(BODIES)) if begun else None
    await asyncio.to_thread(aborting.abort, [None, report if reported else None], 0)
    await asyncio.to_thread(is_refused, late)
    assert await remains(server_view, queue_root) == []
    again = await asyncio.to_thread(writer)
    monkeypatch.setattr(Partition, "run", "second")
    report = await asyncio.to_thread(again.write, rows_of(BODIES))
    monkeypatch.setattr(Partition, "run", "run")
    await asyncio.to_thread(is_refused, late)
    await asyncio.to_thread(again.commit, [report], 0)
    assert Counter(await asyncio.to_thread(drained, options)) == Counter(BODIES)
    assert await remains(server_view, queue_root) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failed_micro_batch_whose_driver_loses_any_request_or_reply_refuses_late_tasks(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, server_view: Observer, when: str
) -> None:
    for nth in count(1):
        root = f"{queue_root}/{nth}"
        options = {"hosts": zookeeper, "root": root, "queue": "orders"}
        late, driver = [
            await asyncio.to_thread(QueueStreamWriter, BODY, parse_options({**options, "hosts": hosts}), "origin")
            for hosts in (zookeeper, proxy.hosts)
        ]
        fault = (proxy.lose_before if when == "before" else proxy.lose_after)(Opcode.MULTI, nth=nth)
        await asyncio.to_thread(driver.abort, [None], 0)
        lost = len(fault.requests)
        proxy.heal()
        await asyncio.to_thread(is_refused, late)
        assert await remains(server_view, root) == [], nth
        if not lost:
            break
    assert nth > 1
