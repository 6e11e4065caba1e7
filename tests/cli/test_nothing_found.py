"""A command that finds nothing says so in one line on stderr, prints nothing to stdout, and exits with 1."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.schedule import Notifications

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

REMINDERS = "notification queue 'reminders' of service 'billing'"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("queues", "there are no queues"),
        ("stats", "there are no queues"),
        ("top --once", "there are no queues"),
        ("jobs list", "there are no jobs"),
        ("bus list", "there are no buses"),
        ("notifications list", "there are no notification queues"),
        ("keys list", "there are no API keys"),
        ("moves", "there were no moves in the last week"),
        ("pins list", "there are no pins"),
    ],
)
def test_an_empty_listing_says_that_there_is_nothing_below_the_root(
    cli: Cli, queue_root: str, command: str, reason: str
) -> None:
    for form in ([], ["--json"]):
        done = cli(*command.split(), *form)
        assert (done.status, done.text, done.stderr) == (1, "", f"aiozkqueue: {reason} below {queue_root}\n")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("peek q", "queue 'q' has no messages"),
        ("peek q --key k", "queue 'q' has no matching messages"),
        ("consume q", "queue 'q' has no messages"),
        ("consumers q", "queue 'q' has no consumers"),
        ("dlq list q", "queue 'q' has no dead letters"),
        ("dlq list q --reason no", "queue 'q' has no matching dead letters"),
        (
            "ledgers list q",
            "Spark holds no messages of queue 'q', and no batch of a writer is incomplete",
        ),
    ],
)
def test_an_empty_listing_about_a_queue_names_the_queue(cli: Cli, command: str, reason: str) -> None:
    assert cli("configure", "q", "--create").status == 0
    for form in ([], ["--json"]):
        done = cli(*command.split(), *form)
        assert (done.status, done.text, done.stderr) == (1, "", f"aiozkqueue: {reason}\n")


async def test_a_notification_queue_without_entries_is_named(cli: Cli, zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        await Notifications(session).create("billing", "reminders", bytes)
    for options, which in (((), "no entries"), (("--key2", "k"), "no matching entries")):
        done = await asyncio.to_thread(cli, "notifications", "find", "billing", "reminders", *options)
        assert (done.status, done.text, done.stderr) == (1, "", f"aiozkqueue: {REMINDERS} has {which}\n")


def test_a_consumer_that_gets_nothing_says_where_the_messages_are(cli: Cli) -> None:
    cli("put", "q", "later", "--delay", "1h")
    nothing = cli("consume", "q")
    reason = "queue 'q' has 1 message, but none can be taken now; aiozkqueue peek q shows their states"
    assert (nothing.status, nothing.text, nothing.stderr) == (1, "", f"aiozkqueue: {reason}\n")
    cli("put", "q", "now", "--tag", "size=3")
    unmatched = cli("consume", "q", "--filter", "size>5")
    why = "none that can be taken now matches the filters; aiozkqueue peek q shows their states"
    assert (unmatched.status, unmatched.stderr) == (1, f"aiozkqueue: queue 'q' has 2 messages, but {why}\n")
