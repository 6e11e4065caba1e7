"""What streams hold is listed, and given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.queue.ledger import Ledger

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_what_an_abandoned_stream_holds_is_shown_and_released(cli: Cli, zookeeper: str, queue_root: str) -> None:
    async def abandon() -> None:
        async with zq.connect(zookeeper, root=queue_root) as session:
            await Ledger(session.engine, session.engine.store("orders"), "nightly").next_batch(-1, 2)

    cli("put", "orders", "--lines", stdin=b"1\n2\n3\n")
    assert cli("ledgers", "list", "orders").status == 1
    asyncio.run(abandon())
    [listed] = cli("ledgers", "list", "orders", "--json").records
    assert (listed["group"], listed["batches"], listed["messages"]) == ("nightly", 1, 2)
    assert [stats["ledgers"] for stats in cli("stats", "orders", "--json").records] == [1]
    assert "nightly" in cli("ledgers", "list", "orders").text
    assert cli("ledgers", "release", "orders", "nightly", "--yes").text == "2 released\n"
    assert [stats["claimed"] for stats in cli("stats", "orders", "--json").records] == [0]
    missing = cli("ledgers", "release", "orders", "weekly", "--yes")
    assert missing.status == 1
    assert "no ledger 'weekly'" in missing.stderr
