"""A queue is paused and resumed with the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_a_follower_of_a_paused_queue_says_why_it_waits(cli: Cli) -> None:
    cli("put", "q", "hello")
    cli("pause", "q")
    follower = cli.start("consume", "q", "--follow", "--limit", "1")
    assert follower.stderr is not None
    notice = b"aiozkqueue: queue 'q' is paused; aiozkqueue resume q ends the pause\n"
    assert follower.stderr.readline() == notice
    cli("resume", "q")
    assert (follower.communicate(timeout=90)[0], follower.returncode) == (b"hello\n", 0)


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(cli: Cli, queue_root: str) -> None:
    cli("put", "q", "hello")
    paused = cli("pause", "queue", "q")
    assert paused.status == 1
    assert paused.stderr.splitlines() == [
        f"aiozkqueue: there is no queue 'queue' below {queue_root}; its first put creates it",
        "aiozkqueue: queue 'q' is paused",
    ]
    consumed = cli("consume", "q")
    notice = "aiozkqueue: queue 'q' is paused; aiozkqueue resume q ends the pause\n"
    assert (consumed.status, consumed.text, consumed.stderr) == (1, "", notice)
    assert cli("stats", "q", "--json").records[0]["paused"] is True
    assert "q (paused)" in cli("stats", "q").text
    assert cli("resume", "q").status == 0
    assert cli("consume", "q").text == "hello\n"
    assert [(queue["queue"], queue["paused"]) for queue in cli("stats", "--json").records] == [("q", False)]
    for command, now in (("pause", True), ("resume", False)):
        done = cli(command, "queue", "q", "--json")
        assert (done.status, done.records) == (1, [{"queue": "q", "paused": now}])
        assert len(done.stderr.splitlines()) == 1
