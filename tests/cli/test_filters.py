"""Tags and filters from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_a_consumer_takes_messages_that_pass_its_filters(cli: Cli) -> None:
    for name in ("low", "standard", "high"):
        cli("put", "q", name, "--tag", f"class={name}", "--tag", "size=5")
    enum = ("--enum", "class=low,standard,high")
    assert cli("consume", "q", *enum, "--filter", "class<=standard", "--filter", "size>4").text == "low\nstandard\n"
    assert cli("consume", "q", *enum, "--filter", "class=low").status == 1
    assert cli("consume", "q").text == "high\n"


def test_an_enum_that_no_filter_uses_takes_no_message(cli: Cli) -> None:
    cli("put", "q", "high", "--tag", "class=high")
    for arguments, said in (
        (["--enum", "class"], "--enum class: expected TAG=LOW,…,HIGH, with each name once"),
        (["--enum", "class=low,high"], "--enum class: no --filter compares this tag"),
    ):
        done = cli("consume", "q", *arguments)
        assert (done.status, done.text) == (2, "")
        assert done.stderr == f"aiozkqueue: {said}\n"
    assert cli("consume", "q").text == "high\n"


def test_a_full_queue_exits_as_a_conflict_and_is_shown_in_stats(cli: Cli) -> None:
    cli("configure", "q", "--create", "--max-size", "2")
    full = cli("put", "q", "--lines", "--timeout", "0", stdin=b"1\n2\n3\n")
    assert full.status == 5
    assert "is full" in full.stderr
    assert "the first 2 of 3 messages had been put before" in full.stderr
    [stats] = cli("stats", "q", "--json").records
    assert (stats["max_size"], stats["remaining_capacity"], stats["waiting_producers"]) == (2, 0, 0)
    assert "0 of 2" in cli("stats", "q").text


@pytest.mark.parametrize(
    "arguments",
    [
        ("put", "q", "x", "--tag", "class"),
        ("put", "q", "x", "--tag", "=low"),
        ("put", "q", "x", "--tag", "a=1", "--tag", "a=2"),
        ("consume", "q", "--filter", "class"),
        ("consume", "q", "--enum", "class=low,high", "--filter", "class=medium"),
        ("consume", "q", "--enum", "class=low,low", "--filter", "class=low"),
        ("consume", "q", "--enum", "class"),
        ("consume", "q", "--enum", "class=low,high"),
        ("consume", "q", "--enum", "clas=low,high", "--filter", "class<=low"),
        ("consume", "q", "--enum", "class=low,high", "--enum", "class=low", "--filter", "class=low"),
    ],
)
def test_invalid_tags_and_filters_are_usage_errors(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments).status == 2
    assert cli("peek", "q").status == 1
