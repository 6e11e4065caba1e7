"""The records of messages and of their consumers on the command line."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.conftest import Cli
    from tests.observer import Observer


@pytest.fixture
async def holding(zookeeper: str, queue_root: str) -> AsyncIterator[str]:
    """The id of the only message of the queue ``q``, which a consumer holds."""
    async with zq.connect(zookeeper, root=queue_root) as session:
        message_id = await session.queue("q").put(b"x")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(session.queue("q"), timeout=10)
            yield message_id
            await tx.rollback(delay=300)


def test_the_history_of_a_queue_without_one_says_how_to_turn_it_on(cli: Cli) -> None:
    cli("put", "q", "x")
    for command in ("history", "report"):
        done = cli(command, "q")
        assert done.stderr.startswith("aiozkqueue: queue 'q' keeps no history; `aiozkqueue configure q --history 7d` ")
        assert (done.status, done.text, done.stderr.count("\n")) == (1, "", 1)


def test_history_is_turned_on_and_shows_a_consumed_message(cli: Cli) -> None:
    assert cli("configure", "q", "--create", "--history", "1h,most=10,payload", "--clean-every", "60").status == 0
    [config] = cli("configure", "q", "--json").records
    assert (config["history"], config["clean_every"]) == ("3600,most=10,payload", 60.0)
    message_id = cli("put", "q", "x").text.strip()
    nothing = cli("history", "q")
    notice = "aiozkqueue: queue 'q': no message ended in this time\n"
    assert (nothing.status, nothing.text, nothing.stderr) == (1, "", notice)
    [waiting] = cli("state", "q", message_id, "--json").records
    assert waiting["status"] == "waiting"
    assert cli("consume", "q", "--limit", "1").status == 0
    [record] = cli("history", "q", "--json").records
    assert (record["id"], record["outcome"], record["attempts"]) == (message_id, "finished", 1)
    assert message_id in cli("history", "q", "--since", "2020-01-01").text
    assert cli("history", "q", "--until", "2020-01-01").status == 1
    for body in ("two", "three"):
        cli("put", "q", body)
        cli("consume", "q", "--limit", "1")
    ended = [record["ended_at"] for record in cli("history", "q", "--json").records]
    assert len(ended) == 3
    assert ended == sorted(ended, reverse=True)  # the newest first; a limit keeps the newest
    assert [record["ended_at"] for record in cli("history", "q", "--json", "--limit", "1").records] == ended[:1]
    [finished] = cli("state", "q", message_id, "--json").records
    assert finished["status"] == "finished"
    assert finished["claimed_by"]["pid"] > 0
    assert cli("configure", "q", "--history", "no").status == 0
    assert cli("configure", "q", "--history", "for ever").status == 2


def test_state_reports_an_unknown_message(cli: Cli) -> None:
    cli("put", "q", "x")
    nothing = cli("state", "q", "nobody", "--json")
    assert (nothing.status, nothing.records[0]["status"]) == (1, "unknown")


async def test_consumers_lists_consumers_with_their_claims(cli: Cli, holding: str) -> None:
    [consumer] = (await asyncio.to_thread(cli, "consumers", "q", "--json")).records
    assert consumer["messages"] == [holding]
    assert holding in (await asyncio.to_thread(cli, "consumers", "q")).text
    [state] = (await asyncio.to_thread(cli, "state", "q", holding, "--json")).records
    assert state["claimed_by"] == {name: consumer[name] for name in ("client", "host", "pid", "name")}
    table = (await asyncio.to_thread(cli, "state", "q", holding)).text
    assert "{" not in table
    assert f"process {consumer['pid']}" in table


def test_a_queue_without_takers_has_no_consumers(cli: Cli) -> None:
    assert cli("consumers", "q").status == 1


def test_clean_reports_the_removed_records(cli: Cli) -> None:
    cli("put", "q", "x")
    [queue, clients] = cli("clean", "--json").records
    assert (queue["queue"], queue["records"], queue["more"]) == ("q", 0, False)
    assert (clients["queue"], clients["clients"]) == (None, 0)
    assert "q" in cli("clean", "q").text


async def test_clean_reports_the_cleaned_queues_although_others_may_not_be_read(
    cli: Cli, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        for name in ("invoices", "orders", "parcels", "stamps"):
            await session.queue(name).put(b"1")
    for name in ("orders", "parcels"):
        await set_acl(server_view, f"{queue_root}/{name}", readable=False)
    cleaned = await asyncio.to_thread(cli, "clean", "--json")
    assert (cleaned.status, [record["queue"] for record in cleaned.records]) == (4, ["invoices", "stamps", None])
    assert all(f"queue '{name}'" in cleaned.stderr for name in ("orders", "parcels"))
    table = await asyncio.to_thread(cli, "clean")
    assert (table.status, "stamps" in table.text) == (4, True)


def test_clean_reports_the_expired_messages_that_it_removed(cli: Cli) -> None:
    assert cli("configure", "q", "--create", "--ttl", "1h", "--expired", "drop").status == 0
    cli("put", "q", "x", "--ttl", "0.001")
    deadline = time.monotonic() + 60
    while cli("stats", "q", "--json").records[0]["expired"] == 0:
        assert time.monotonic() < deadline
    [queue] = cli("clean", "q", "--json").records
    assert queue["expired"] == 1
    cli("put", "q", "x", "--ttl", "0.001")
    while cli("stats", "q", "--json").records[0]["expired"] == 0:
        assert time.monotonic() < deadline
    lines = [re.split(" *[┃│] *", line) for line in cli("clean", "q").text.splitlines()]
    heads, row = (cells for cells in lines if len(cells) > 1)
    assert dict(zip(heads, row, strict=True))["expired"] == "1"


async def test_stats_and_consumers_state_what_may_not_be_read(
    cli: Cli, holding: str, queue_root: str, server_view: Observer
) -> None:
    await asyncio.to_thread(cli, "put", "q", "waits")
    await set_acl(server_view, f"{queue_root}/q/dlq", readable=False)
    stats = await asyncio.to_thread(cli, "stats", "q", "--json")
    [figures] = stats.records
    assert (stats.status, figures["size"], figures["in_flight"]) == (4, 2, 1)
    assert list(figures["unreadable"]) == ["dead_letters"]
    assert (
        f"queue 'q': this user may not read everything for dead_letters: queue 'q': {queue_root}/q/dlq" in stats.stderr
    )
    lock = f"{queue_root}/q/locks/lock-{holding}"
    await set_acl(server_view, lock, readable=False)
    consumers = await asyncio.to_thread(cli, "consumers", "q", "--json")
    [consumer] = consumers.records
    assert (consumers.status, consumer["messages"]) == (0, [])
    assert lock in consumers.stderr
