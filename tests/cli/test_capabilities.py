"""The options of a queue on the command line: set by `put` and `configure`, shown by `stats`.

The commands run in this process, because other tests start them as processes.
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

    RunJson = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def run_json(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> RunJson:
    """Runs a command, and returns what its ``--json`` prints."""
    monkeypatch.setenv("AIOZKQUEUE_HOSTS", zookeeper)
    monkeypatch.setenv("AIOZKQUEUE_ROOT", queue_root)

    def run_and_parse(*arguments: str, status: Exit = Exit.OK) -> list[dict[str, Any]]:
        assert run([*arguments, "--json"]) == status
        return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]

    return run_and_parse


def test_messages_are_delivered_by_priority_and_not_before_they_are_due(run_json: RunJson) -> None:
    run_json("put", "jobs", "can wait", "--priority", "5")
    run_json("put", "jobs", "tomorrow", "--delay", "1d", "--ttl", "2d")
    run_json("put", "jobs", "urgent", "--priority", "-5", "--header", "from=shop", "--header", "note=a=b")
    [stats] = run_json("stats", "jobs")
    assert (stats["size"], stats["scheduled"], stats["priorities"]) == (3, 1, {"-5": 1, "0": 0, "5": 1})
    taken = run_json("consume", "jobs")
    assert [(message["body"], message["priority"]) for message in taken] == [("urgent", -5), ("can wait", 5)]
    assert taken[0]["headers"] == {"from": "shop", "note": "a=b"}
    run_json("put", "jobs", "x", "--header", "no text", status=Exit.USAGE)
    run_json("put", "jobs", "x", "--at", "2999-01-01T00:00", status=Exit.USAGE)


def test_messages_of_a_group_stay_in_order_and_an_ordered_queue_refuses_priorities(run_json: RunJson) -> None:
    for body in "123":
        run_json("put", "accounts", body, "--group", "a")
    [stats] = run_json("stats", "accounts")
    assert stats["groups"] == 1
    assert [(message["body"], message["group"]) for message in run_json("consume", "accounts")] == [
        ("1", "a"),
        ("2", "a"),
        ("3", "a"),
    ]
    run_json("configure", "ledger", "--create", "--ordered")
    run_json("put", "ledger", "x", "--priority", "1", status=Exit.USAGE)


def test_messages_with_one_key_collapse_and_expired_messages_are_not_delivered(run_json: RunJson) -> None:
    run_json("configure", "prices", "--create", "--collapse", "--ttl", "inf", "--clean-every", "10m")
    run_json("configure", "prices", "--history", "1234567,most=7")
    [settings] = run_json("configure", "prices")
    assert (settings["history"], settings["clean_every"]) == ("1234567,most=7", 600)
    run_json("put", "prices", "costs 10", "--key", "article 7")
    run_json("put", "prices", "costs 12", "--key", "article 7")
    run_json("put", "prices", "too late", "--ttl", "0.001")
    [stats] = run_json("stats", "prices")
    assert (stats["duplicates"], stats["expired"]) == (1, 1)
    assert [(message["body"], message["key"]) for message in run_json("consume", "prices")] == [
        ("costs 12", "article 7")
    ]
    assert sorted(record["outcome"] for record in run_json("history", "prices")) == ["collapsed", "expired", "finished"]
    [stats] = run_json("stats", "prices")
    assert (stats["records"], stats["size"]) == (3, 0)


def test_notifications_are_scheduled_found_replaced_and_removed(
    run_json: RunJson, zookeeper: str, queue_root: str
) -> None:
    async def create() -> None:
        async with zq.connect(zookeeper, root=queue_root) as session:
            await Notifications(session).create("billing", "reminders", bytes)

    def notifications(command: str, *arguments: str, status: Exit = Exit.OK) -> list[dict[str, Any]]:
        return run_json("notifications", command, "billing", "reminders", *arguments, status=status)

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
    [stats] = run_json("stats", "billing:reminders")
    assert (stats["size"], stats["scheduled"]) == (1, 1)
    notifications("schedule", "x", "--at", "2999-01-01T00:00", status=Exit.USAGE)
