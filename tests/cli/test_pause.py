"""A queue is paused and resumed with the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(cli: Cli) -> None:
    cli("put", "q", "hello")
    assert cli("pause", "q", "other").stderr.splitlines() == [
        "aiozkqueue: queue 'q' is paused",
        "aiozkqueue: queue 'other' is paused; it is new",  # a name that was mistyped, perhaps
    ]
    assert cli("consume", "q").status == 1
    assert cli("stats", "q", "--json").records[0]["paused"] is True
    assert "q (paused)" in cli("stats", "q").text
    assert cli("resume", "q").status == 0
    assert cli("consume", "q").text == "hello\n"
    assert [one["paused"] for one in cli("stats", "q", "other", "--json").records] == [False, True]
