"""Durations and moments have the same syntax in every option."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

OPTIONS = [
    ("put", "q", "x", "--delay"),
    ("put", "q", "x", "--ttl"),
    ("put", "q", "x", "--timeout"),
    ("put", "q", "x", "--session-timeout"),
    ("put", "q", "x", "--connect-timeout"),
    ("configure", "q", "--backoff"),
    ("configure", "q", "--reap-after"),
    ("jobs", "add", "nightly", "@daily", "q", "--tolerance"),
    ("top", "--once", "--interval"),
    ("worker", "nothing:here", "--drain-timeout"),
    ("dump", "1", "--timeout"),
]


@pytest.mark.parametrize("option", OPTIONS, ids=" ".join)
def test_an_invalid_duration_is_refused_with_an_example_before_connecting(cli: Cli, option: tuple[str, ...]) -> None:
    done = cli(*option, "15 minutes", AIOZKQUEUE_HOSTS="127.0.0.1:1")
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert option[-1] in done.stderr
    assert "such as 15m" in done.stderr


@pytest.mark.parametrize(
    ("option", "duration"),
    [
        (("top", "--once", "--interval"), "0"),
        (("put", "q", "x", "--connect-timeout"), "0s"),
        (("dump", "1", "--timeout"), "inf"),
        (("jobs", "add", "nightly", "@daily", "q", "--tolerance"), "0.5s"),
    ],
)
def test_a_duration_out_of_range_is_refused_with_the_allowed_range(
    cli: Cli, option: tuple[str, ...], duration: str
) -> None:
    done = cli(*option, duration)
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert "give " in done.stderr


def test_duration_units_are_accepted(cli: Cli) -> None:
    cli("configure", "q", "--create", "--backoff", "1..1h")
    assert cli("configure", "q", "--json").records[0]["backoff"] == "1..3600"
    cli("configure", "q", "--backoff", "1,5s,1m")
    assert cli("configure", "q", "--json").records[0]["backoff"] == "1,5,60"
    assert cli("jobs", "add", "nightly", "@daily", "q", "--tolerance", "2m").status == 0
    assert cli("top", "q", "--once", "--interval", "0.2s", AIOZKQUEUE_CONNECT_TIMEOUT="1m").status == 0


MOMENTS = [
    ("put", "q", "x", "--at"),
    ("notifications", "ready", "billing", "reminders", "--at"),
    ("notifications", "schedule", "billing", "reminders", "x", "--at"),
    ("notifications", "find", "billing", "reminders", "--until"),
]


@pytest.mark.parametrize("option", MOMENTS, ids=" ".join)
def test_a_moment_without_a_zone_is_refused_by_the_name_of_its_option(cli: Cli, option: tuple[str, ...]) -> None:
    done = cli(*option, "2030-01-31T08:00", AIOZKQUEUE_HOSTS="127.0.0.1:1")
    assert done.status == 2
    assert option[-1] in done.stderr
    assert "'2030-01-31T08:00' is not an ISO 8601 time with a zone" in done.stderr
