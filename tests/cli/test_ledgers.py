"""Messages held by streams are listed and released."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.session.internals import core_of
from tests.integration.queue.test_staged_batches import Writer

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_messages_held_by_an_abandoned_stream_are_shown_and_released(cli: Cli, zookeeper: str, queue_root: str) -> None:
    async def abandon() -> None:
        async with zq.connect(zookeeper, root=queue_root) as session:
            await Ledger(core_of(session).handle("orders"), "nightly").next_batch(-1, 2)

    cli("put", "orders", "--lines", stdin=b"1\n2\n3\n")
    assert cli("ledgers", "list", "orders").status == 1
    asyncio.run(abandon())
    [listed] = cli("ledgers", "list", "orders", "--json").records
    assert (listed["group"], listed["batches"], listed["messages"]) == ("nightly", 1, 2)
    assert [stats["ledgers"] for stats in cli("stats", "orders", "--json").records] == [1]
    assert "nightly" in cli("ledgers", "list", "orders").text
    assert cli("ledgers", "release", "orders", "nightly", "--yes").text == "2 released\n"
    assert [stats["in_flight"] for stats in cli("stats", "orders", "--json").records] == [0]
    missing = cli("ledgers", "release", "orders", "weekly", "--yes")
    assert missing.status == 1
    assert "no ledger 'weekly'" in missing.stderr


def test_the_pending_batch_of_an_interrupted_write_is_shown_and_removed(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    async def cut_off() -> str:
        async with zq.connect(zookeeper, root=queue_root) as session:
            writer = Writer(session, name="stream of orders")
            await writer.put(await writer.begin(7), "a", "b")
            return writer.staging.writer

    cli("put", "orders", "--lines", stdin=b"seen\n")
    writer = asyncio.run(cut_off())
    [listed] = cli("ledgers", "list", "orders", "--json").records
    assert (listed["writer"], listed["name"], listed["batch"], listed["messages"]) == (writer, "stream of orders", 7, 2)
    assert "stream of orders" in cli("ledgers", "list", "orders").text
    [before] = cli("stats", "orders", "--json").records
    assert (before["size"], before["staged"], before["staged_messages"]) == (3, 1, 2)
    assert "staged" in cli("stats", "orders").text
    refused = cli("ledgers", "discard", "orders", writer)
    assert refused.status != 0
    assert "--yes" in refused.stderr
    assert cli("ledgers", "discard", "orders", writer, "--yes").text == "2 removed\n"
    [after] = cli("stats", "orders", "--json").records
    assert (after["size"], after["staged"]) == (1, 0)
    assert cli("ledgers", "list", "orders").status == 1
    missing = cli("ledgers", "discard", "orders", "nobody", "--yes")
    assert missing.status == 1
    assert "no writer 'nobody'" in missing.stderr
