"""The figures of queues, refreshed repeatedly."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli
    from tests.observer import Observer


def test_top_shows_rates_of_all_clients_between_two_refreshes(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n3")
    top = cli.start("top", "--json", "--interval", "0.5")
    assert top.stdout is not None
    first = json.loads(top.stdout.readline())
    assert (first["queue"], first["size"], first["in_rate"]) == ("q", 3, None)
    assert first["oldest_age"] >= 0
    cli("put", "q", "--lines", stdin=b"x\n" * 40)
    cli("consume", "q", "--limit", "10")
    arrived = left = 0.0
    depth = 3
    while depth != 33 or not left:
        row = json.loads(top.stdout.readline())
        depth, arrived, left = row["size"], arrived + row["in_rate"], left + row["out_rate"]
    # Looks are half a second apart and more, and what came between two of them is counted once.
    assert 0 < arrived <= 40 / 0.5
    assert 0 < left <= 10 / 0.5
    top.send_signal(signal.SIGINT)
    top.communicate(timeout=90)
    assert top.returncode == 0


def test_top_prints_one_table_of_all_queues_to_a_pipe(cli: Cli) -> None:
    cli("put", "orders", "x")
    cli("put", "invoices", "x")
    cli("pause", "invoices")
    shown = cli("top", "--interval", "0.1")
    assert shown.status == 0
    assert "orders" in shown.text
    assert "invoices (paused)" in shown.text
    assert shown.text.endswith("┘\n")
    assert cli("top", "orders", "--once", "--json", "--interval", "0.1").records[0]["in_rate"] == 0


async def test_top_shows_the_other_queues_if_one_cannot_be_read(
    cli: Cli, server_view: Observer, queue_root: str
) -> None:
    for queue in ("broken", "orders"):
        assert (await asyncio.to_thread(cli, "put", queue, "x")).status == 0
    await server_view.set(f"{queue_root}/broken", b"{")
    shown = await asyncio.to_thread(cli, "top", "--once", "--interval", "0.1")
    assert shown.status == 0
    assert "orders" in shown.text
    broken, orders = (await asyncio.to_thread(cli, "top", "--once", "--json", "--interval", "0.1")).records
    assert (orders["queue"], orders["size"]) == ("orders", 1)
    assert broken["queue"] == "broken"
    assert "does not decode" in broken["unreadable"]
    stats = await asyncio.to_thread(cli, "stats", "--json")
    assert [record["queue"] for record in stats.records] == ["orders"]
    assert "does not decode" in stats.stderr
    assert stats.status != 0


@pytest.mark.parametrize(("begun", "completed"), [("pau", "pause"), ("wor", "worker")])
def test_the_shell_completes_commands(cli: Cli, begun: str, completed: str) -> None:
    done = cli(_AIOZKQUEUE_COMPLETE="complete_bash", COMP_WORDS=f"aiozkqueue {begun}", COMP_CWORD="1")
    assert done.text.split() == [completed]
