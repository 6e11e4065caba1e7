"""The configuration of a queue on the command line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_configure_changes_the_given_options_only(cli: Cli, zookeeper: str, queue_root: str) -> None:
    assert cli("configure", "q", "--create", "--policy", "consume-times=5", "--backoff", "1,5,60").status == 0
    assert cli("configure", "q", "--max-size", "100").status == 0
    assert cli("configure", "q", "--exhausted", "drop").status == 0

    async def stored() -> zq.QueueConfig:
        async with zq.connect(zookeeper, root=queue_root) as session:
            return await session.queue("q").configuration()

    config = asyncio.run(stored())
    policy = zq.ConsumeTimes(5, backoff=zq.Schedule([1, 5, 60]), exhausted="drop")
    assert (config.policy, config.max_size, config.shards) == (policy, 100, None)


def test_configure_without_options_shows_the_configuration(cli: Cli) -> None:
    cli("configure", "q", "--create", "--max-size", "7", "--backoff", "2")
    [shown] = cli("configure", "q", "--json").records
    assert shown["max_size"] == 7
    assert (shown["policy"], shown["backoff"], shown["exhausted"]) == ("at-least-once", "2", None)
    assert shown["shards"] is None
    values = _table(cli("configure", "q").text)
    assert values["max_size"] == ("7", "")
    assert values["ttl"] == ("unlimited", "default")  # the effective value, although none is stored
    assert values["paused"] == ("no", "default")


def _table(text: str) -> dict[str, tuple[str, str]]:
    """Return the value and the note of each setting."""
    cells = [line.split("│") for line in text.splitlines() if "│" in line]
    return {name.strip(): (value.strip(), default.strip()) for _, name, value, default, _ in cells}


def test_configure_shows_the_policy_that_is_in_force_without_a_choice(cli: Cli) -> None:
    cli("configure", "q", "--create")
    values = _table(cli("configure", "q").text)
    in_force = zq.AtLeastOnce().backoff
    assert isinstance(in_force, zq.Exponential)
    assert values["policy"] == ("at-least-once", "default")
    assert values["backoff"] == (f"{in_force.initial:g}..{in_force.maximum:g}", "default")
    cli("configure", "q", "--backoff", "2")
    values = _table(cli("configure", "q").text)
    assert (values["policy"], values["backoff"]) == (("at-least-once", ""), ("2", ""))


@pytest.mark.parametrize("backoff", ["5", "1,5,60", "1..3600"])
def test_configure_shows_a_policy_as_the_options_that_set_it(backoff: str, cli: Cli) -> None:
    options = ("--policy", "consume-times=5", "--backoff", backoff, "--exhausted", "drop")
    [shown] = cli("configure", "q", "--create", *options, "--json").records
    assert (shown["policy"], shown["backoff"], shown["exhausted"]) == ("consume-times=5", backoff, "drop")


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
def test_invalid_options_are_refused_and_change_nothing(cli: Cli, options: tuple[str, ...]) -> None:
    cli("configure", "q", "--create", "--policy", "at-least-once")
    before = cli("configure", "q", "--json").records
    assert cli("configure", "q", *options).status == 2
    assert cli("configure", "q", "--json").records == before


def test_an_option_that_does_not_fit_the_policy_is_refused_with_its_name(cli: Cli) -> None:
    refused = cli("configure", "q", "--create", "--exhausted", "drop")
    assert refused.status == 2
    assert "the queue's policy is at-least-once: give " in refused.stderr


def test_a_missing_queue_is_created_by_a_put_or_by_an_option(cli: Cli) -> None:
    refused = cli("configure", "nowhere")
    assert (refused.status, refused.text) == (1, "")
    assert refused.stderr.endswith("; its first put creates it, and so does --create\n")
    cli("put", "orders", "x")
    assert cli("configure", "order").stderr.endswith("; did you mean 'orders'?\n")
