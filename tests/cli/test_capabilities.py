"""The options of a queue on the command line: set by `put` and `configure`, shown by `stats`.

The commands run in this process: what starts one is shown elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.cli.app import run
from aiozkqueue.cli.exits import Exit
from aiozkqueue.schedule import Notifications

if TYPE_CHECKING:
    from collections.abc import Callable

    Told = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def told(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Told:
    """Runs a command, and returns what its ``--json`` prints."""
    monkeypatch.setenv("AIOZKQUEUE_HOSTS", zookeeper)
    monkeypatch.setenv("AIOZKQUEUE_ROOT", queue_root)

    def tell(*arguments: str, status: Exit = Exit.OK) -> list[dict[str, Any]]:
        assert run([*arguments, "--json"]) == status
        return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]

    return tell


def test_messages_are_delivered_by_priority_and_not_before_they_are_due(told: Told) -> None:
    told("put", "jobs", "can wait", "--priority", "5")
    told("put", "jobs", "tomorrow", "--delay", "1d", "--ttl", "2d")
    told("put", "jobs", "urgent", "--priority", "-5", "--header", "from=shop", "--header", "note=a=b")
    [stats] = told("stats", "jobs")
    assert (stats["size"], stats["scheduled"], stats["priorities"]) == (3, 1, {"-5": 1, "0": 0, "5": 1})
    taken = told("consume", "jobs")
    assert [(message["body"], message["priority"]) for message in taken] == [("urgent", -5), ("can wait", 5)]
    assert taken[0]["headers"] == {"from": "shop", "note": "a=b"}
    told("put", "jobs", "x", "--header", "no text", status=Exit.USAGE)
    told("put", "jobs", "x", "--at", "2999-01-01T00:00", status=Exit.USAGE)


def test_messages_of_a_group_stay_in_order_and_an_ordered_queue_refuses_priorities(told: Told) -> None:
    for body in "123":
        told("put", "accounts", body, "--group", "a")
    [stats] = told("stats", "accounts")
    assert stats["groups"] == 1
    assert [(message["body"], message["group"]) for message in told("consume", "accounts")] == [
        ("1", "a"),
        ("2", "a"),
        ("3", "a"),
    ]
    told("configure", "ledger", "--create", "--ordered")
    told("put", "ledger", "x", "--priority", "1", status=Exit.USAGE)


def test_messages_with_one_key_collapse_and_expired_messages_are_not_delivered(told: Told) -> None:
    told("configure", "prices", "--create", "--collapse", "--ttl", "inf", "--clean-every", "10m")
    told("configure", "prices", "--history", "1234567,most=7")
    [settings] = told("configure", "prices")
    assert (settings["history"], settings["clean_every"]) == ("1234567,most=7", 600)
    told("put", "prices", "costs 10", "--key", "article 7")
    told("put", "prices", "costs 12", "--key", "article 7")
    told("put", "prices", "too late", "--ttl", "0.001")
    [stats] = told("stats", "prices")
    assert (stats["duplicates"], stats["expired"]) == (1, 1)
    assert [(message["body"], message["key"]) for message in told("consume", "prices")] == [("costs 12", "article 7")]
    assert sorted(record["outcome"] for record in told("history", "prices")) == ["collapsed", "expired", "finished"]
    [stats] = told("stats", "prices")
    assert (stats["records"], stats["size"]) == (3, 0)


def test_notifications_are_scheduled_found_replaced_and_removed(told: Told, zookeeper: str, queue_root: str) -> None:
    async def create() -> None:
        async with zq.connect(zookeeper, root=queue_root) as session:
            await Notifications(session).create("billing", "reminders", bytes)

    def notifications(command: str, *arguments: str, status: Exit = Exit.OK) -> list[dict[str, Any]]:
        return told("notifications", command, "billing", "reminders", *arguments, status=status)

    asyncio.run(create())
    date = "2999-01-01T00:00:00+00:00"
    [scheduled] = notifications("schedule", "pay up", "--at", date, "--key1", "7", "--key2", "tenant", "--token", "t")
    notifications("schedule", "another", "--at", date)
    [found] = notifications("find", "--key2", "tenant")
    assert found == {
        "id": scheduled["id"],
        "date": date,
        "status": "future",
        "attempt": 0,
        "search_key1": "7",
        "search_key2": "tenant",
        "user_token": "t",
        "event": "pay up",
    }
    notifications("update", scheduled["id"], "pay up!")
    assert [other["event"] for other in notifications("find", "--key1", "7", "--key2", "tenant")] == ["pay up!"]
    notifications("remove", scheduled["id"])
    notifications("remove", scheduled["id"], status=Exit.NOTHING)
    [stats] = told("stats", "billing:reminders")
    assert (stats["size"], stats["scheduled"]) == (1, 1)
    notifications("schedule", "x", "--at", "2999-01-01T00:00", status=Exit.USAGE)
