"""Requests of streams and writes that an ACL refuses, without Spark."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kazoo.security import ACL, Id, Permissions
from pyspark.sql.streaming.datasource import ReadAllAvailable

from aiozkqueue.errors import AccessDeniedError
from tests.spark.calls import Partition, rows_of, use, writer_of
from tests.spark.test_batch import drained, put
from tests.spark.test_contract import stream_of

if TYPE_CHECKING:
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)


async def deny(view: Observer, path: str, right: int) -> None:
    """Give everybody all rights to a znode but this one."""
    await view.set_acl(path, [ACL(Permissions.ALL & ~right, Id("world", "anyone"))])


async def test_a_stream_that_may_not_measure_the_time_of_the_server_is_refused_with_the_znode(
    options: dict[str, str], server_view: Observer
) -> None:
    await asyncio.to_thread(put, options, b"1")
    await deny(server_view, f"{options['root']}/orders/due", Permissions.WRITE)
    driver = stream_of(options)
    with pytest.raises(AccessDeniedError, match=r"queue 'orders': .*/orders/due: not allowed by the znode's ACL"):
        await asyncio.to_thread(driver.latestOffset, driver.initialOffset(), ReadAllAvailable())
    await asyncio.to_thread(driver.stop)


@pytest.mark.parametrize("more", [{}, {"writeId": "nightly"}], ids=["no id", "writeId"])
async def test_a_write_whose_rows_are_visible_does_not_fail_if_its_records_may_not_be_removed(
    options: dict[str, str],
    server_view: Observer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    more: dict[str, str],
) -> None:
    use(Partition, monkeypatch)
    writer = writer_of({**options, **more})
    written = await asyncio.to_thread(writer.write, rows_of([b"1", b"2", b"3"]))
    sinks = f"{options['root']}/orders/sinks"
    for name in await server_view.children(sinks):
        await deny(server_view, f"{sinks}/{name}", Permissions.DELETE)
    await deny(server_view, sinks, Permissions.DELETE)
    await asyncio.to_thread(writer.commit, [written])
    assert "the write is complete, but its records were not removed" in caplog.text
    assert sorted(await asyncio.to_thread(drained, options)) == [b"1", b"2", b"3"]
