"""What is decided for a queue, from the command line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_options_change_what_they_say_and_leave_the_rest(cli: Cli, zookeeper: str, queue_root: str) -> None:
    assert cli("configure", "q", "--policy", "consume-times=5", "--backoff", "1,5,60").status == 0
    assert cli("configure", "q", "--max-size", "100").status == 0
    assert cli("configure", "q", "--exhausted", "drop").status == 0

    async def stored() -> zq.QueueConfig:
        async with zq.connect(zookeeper, root=queue_root) as session:
            return await session.queue("q").configuration()

    config = asyncio.run(stored())
    policy = zq.ConsumeTimes(5, backoff=zq.Schedule([1, 5, 60]), exhausted="drop")
    assert (config.policy, config.max_size, config.shards) == (policy, 100, None)


def test_without_options_it_shows_what_is_decided(cli: Cli) -> None:
    cli("configure", "q", "--max-size", "7", "--backoff", "2")
    [shown] = cli("configure", "q", "--json").records
    assert shown["max_size"] == 7
    assert "Fixed(2.0)" in shown["policy"]
    assert shown["shards"] is None
    assert "max_size" in cli("configure", "q").text


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "consume-times"),
        ("--policy", "never"),
        ("--policy", "consume-once", "--backoff", "1"),
        ("--policy", "at-least-once", "--exhausted", "drop"),
        ("--backoff", "soon"),
        ("--backoff", "60..1"),
        ("--max-size", "-1"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(cli: Cli, options: tuple[str, ...]) -> None:
    cli("configure", "q", "--policy", "at-least-once")
    before = cli("configure", "q", "--json").records
    assert cli("configure", "q", *options).status == 2
    assert cli("configure", "q", "--json").records == before


def test_what_a_policy_has_no_place_for_names_the_policy_that_the_queue_has(cli: Cli) -> None:
    refused = cli("configure", "q", "--exhausted", "drop")
    assert refused.status == 2
    assert "the queue's policy is at-least-once: give " in refused.stderr
