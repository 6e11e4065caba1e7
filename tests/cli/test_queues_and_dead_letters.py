"""A queue as a whole, and its dead letters."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture
async def dead(zookeeper: str, queue_root: str) -> list[str]:
    """The ids of three dead letters in the queue ``q``."""
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("q")
        ids = await queue.put_many([b"a", b"b", b"c"])
        async with queue.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                await delivery.reject(f"{delivery.body.decode()} is no use")
    return ids


@pytest.fixture
async def grouped(zookeeper: str, queue_root: str) -> str:
    """The id of a dead letter of a group in the queue ``q``."""
    async with zq.connect(zookeeper, root=queue_root) as session:
        message_id = await session.queue("q").put(b"d", group="g")
        async with session.queue("q").consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                await delivery.reject("d is no use")
    return message_id


def answered(cli: Cli, answer: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command on a terminal where a user gives this answer."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        return subprocess.run(
            [sys.executable, "-m", "aiozkqueue", *arguments],
            env=cli.environment,
            stdin=theirs,
            capture_output=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)


def test_peek_claims_no_message(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n3\n")
    assert [m["body"] for m in cli("peek", "q", "--limit", "2", "--json").records] == ["1", "2"]
    [stats] = cli("stats", "q", "--json").records
    assert (stats["size"], stats["in_flight"]) == (3, 0)


def test_peek_of_an_empty_queue_fails_with_1(cli: Cli) -> None:
    assert cli("peek", "q").status == 1


def test_tables_show_payloads_without_control_characters_or_markup(cli: Cli) -> None:
    cli("put", "q", "\x1b[31m[bold]red[/bold]")
    assert "\\x1b[31m[bold]red[/bold]" in cli("peek", "q").text


def test_stats_prints_queues_in_the_order_of_the_arguments(cli: Cli) -> None:
    none = cli("stats")
    assert (none.status, "there are no queues" in none.stderr) == (1, True)
    cli("put", "b", "x")
    cli("configure", "a", "--create", "--shards", "1")
    stats = cli("stats", "b", "a", "--json").records
    assert [(s["queue"], s["size"]) for s in stats] == [("b", 1), ("a", 0)]
    assert stats[0]["oldest"] is not None
    assert stats[1]["oldest"] is None
    table = cli("stats", "b", "a").text
    assert all(word in table for word in ("queue", "size", "waiting", "in flight", "dead letters"))
    assert [s["queue"] for s in cli("stats", "--json").records] == ["a", "b"]


def test_stats_fails_for_a_missing_queue_and_shows_the_others(cli: Cli) -> None:
    cli("put", "b", "x")
    done = cli("stats", "a", "b", "--json")
    assert (done.status, [s["queue"] for s in done.records]) == (1, ["b"])
    assert "there is no queue 'a'" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "peek NAME",
        "state NAME ID",
        "why NAME ID",
        "history NAME",
        "consumers NAME",
        "reap NAME",
        "cancel NAME ID",
        "update NAME ID 1",
        "dlq list NAME",
        "dlq redrive NAME",
        "ledgers list NAME",
        "configure NAME",
        "configure NAME --max-size 5",
        "move NAME elsewhere",
        "purge NAME --yes",
        "dlq purge NAME --yes",
        "clean NAME",
        "consume NAME",
    ],
)
def test_commands_on_a_missing_queue_fail_with_the_reason(command: str, cli: Cli, queue_root: str) -> None:
    cli("put", "orders", "x")
    reason = f"there is no queue 'order' below {queue_root}"
    mistyped = cli(*command.replace("NAME", "order").split(), "--json")
    assert (mistyped.status, reason in mistyped.stderr) == (1, True)
    assert "there is no queue" not in cli(*command.replace("NAME", "orders").split(), "--json").stderr
    assert [queue["queue"] for queue in cli("stats", "--json").records if queue["queue"] != "elsewhere"] == ["orders"]


@pytest.mark.parametrize(
    "command",
    ["stats", "peek", "consume", "history", "dlq list", "configure", "pause", "resume", "delete", "unload --to=x"],
)
def test_a_mistyped_queue_name_gets_a_suggestion(command: str, cli: Cli, queue_root: str) -> None:
    cli("put", "orders", "x")
    mistyped = cli(*command.split(), "ordrs")
    error = f"aiozkqueue: there is no queue 'ordrs' below {queue_root}; did you mean 'orders'?"
    assert (mistyped.status, mistyped.stderr.splitlines()[0]) == (1, error)
    assert [queue["queue"] for queue in cli("stats", "--json").records] == ["orders"]


def test_the_suggestion_is_the_most_similar_name_of_a_queue_and_is_omitted_if_none_is(cli: Cli) -> None:
    cli("put", "orders", "x")
    cli("put", "order-lines", "x")
    assert cli("stats", "order-line").stderr.endswith("did you mean 'order-lines'?\n")
    assert cli("stats", "parcels").stderr.endswith("its first put creates it\n")


@pytest.mark.parametrize("command", ["put ordrs x", "configure ordrs --create --max-size 5"])
def test_a_command_that_creates_a_queue_names_a_similar_one(command: str, cli: Cli) -> None:
    cli("put", "orders", "x")
    note = "aiozkqueue: queue 'ordrs' is new; did you mean 'orders'?"
    first = cli(*command.split())
    assert (first.status, note in first.stderr.splitlines()) == (0, True)
    assert note not in cli(*command.split()).stderr.splitlines()


def test_doctor_and_top_suggest_a_name(cli: Cli) -> None:
    cli("put", "orders", "x")
    assert "did you mean 'orders'?" in cli("doctor", "ordrs", "--json").text
    [row] = cli("top", "ordrs", "--once", "--json").records
    assert row["unreadable"].endswith("did you mean 'orders'?")


def test_purge_empties_a_queue_and_prints_the_number_removed(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n3\n")
    assert cli("purge", "q", "--yes", "--json").records == [{"queue": "q", "purged": 3}]
    assert cli("peek", "q").status == 1


def test_purge_refuses_without_a_terminal_to_confirm(cli: Cli) -> None:
    cli("put", "q", "1")
    purge = cli("purge", "q")
    assert purge.status == 2
    assert "--yes" in purge.stderr
    assert cli("peek", "q").status == 0


@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 1), ("y", 0, 0)])
def test_purge_asks_for_confirmation_and_follows_the_answer(cli: Cli, answer: str, status: int, left: int) -> None:
    cli("put", "q", "1")
    done = answered(cli, answer, "purge", "q")
    assert done.returncode == status
    assert b"Delete 1 message of q?" in done.stderr
    assert cli("stats", "q", "--json").records[0]["size"] == left


def test_dead_letters_are_listed_with_their_reasons(cli: Cli, dead: list[str]) -> None:
    letters = cli("dlq", "list", "q", "--json").records
    assert {letter["id"] for letter in letters} == set(dead)
    assert all(f"{letter['body']} is no use" in letter["reason"] for letter in letters)
    assert "b is no use" in cli("dlq", "list", "q").text


@pytest.mark.usefixtures("dead")
def test_a_list_that_leaves_out_dead_letters_says_so(cli: Cli) -> None:
    assert (
        cli("dlq", "list", "q", "--limit", "2").stderr
        == "aiozkqueue: 2 of 3 dead letters are shown; --limit shows more\n"
    )
    assert cli("dlq", "list", "q", "--limit", "3").stderr == ""


@pytest.mark.usefixtures("dead")
def test_an_id_that_is_not_a_dead_letters_is_named(cli: Cli) -> None:
    for command in (("redrive", "q", "NOPE"), ("purge", "q", "NOPE", "--yes")):
        assert cli("dlq", *command).stderr == "aiozkqueue: there is no dead letter NOPE in queue 'q'\n"


def test_an_id_that_is_not_a_dead_letters_is_named_among_those_that_are(cli: Cli, dead: list[str]) -> None:
    for command, done, message_id in (("redrive", "redriven", dead[0]), ("purge", "purged", dead[1])):
        confirmed = ["--yes"] if command == "purge" else []
        result = cli("dlq", command, "q", "NOPE", message_id, *confirmed)
        assert (result.status, result.text) == (0, f"1 {done}\n")
        assert result.stderr == "aiozkqueue: there is no dead letter NOPE in queue 'q'\n"


def test_one_dead_letter_is_redriven_by_its_id(cli: Cli, dead: list[str]) -> None:
    assert cli("dlq", "redrive", "q", dead[1], "--json").records == [{"queue": "q", "redriven": 1}]
    [message] = cli("consume", "q", "--json").records
    assert (message["body"], message["attempt"]) == ("b", 1)


@pytest.mark.usefixtures("dead")
def test_all_dead_letters_are_redriven_up_to_a_limit(cli: Cli) -> None:
    assert cli("dlq", "redrive", "q", "--limit", "2", "--yes").text == "2 redriven\n"
    assert cli("dlq", "redrive", "q", "--yes").text == "1 redriven\n"
    nothing = cli("dlq", "redrive", "q", "--yes")
    assert (nothing.status, nothing.text) == (1, "0 redriven\n")


@pytest.mark.usefixtures("dead")
def test_a_redrive_of_all_dead_letters_needs_a_terminal_or_yes(cli: Cli) -> None:
    for chosen in ((), ("--reason", "no use"), ("--limit", "1")):
        refused = cli("dlq", "redrive", "q", *chosen)
        confirmation = "aiozkqueue: confirmation needs a terminal; add --yes to proceed without it\n"
        assert (refused.status, refused.stderr) == (2, confirmation)
    assert len(cli("dlq", "list", "q", "--json").records) == 3


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize(
    ("options", "question"),
    [
        ((), b"Put 3 dead letters back into q?"),
        (("--limit", "2"), b"Put 2 dead letters back into q?"),
        (("--reason", "b is", "--into", "backorders"), b"Put 1 dead letter of q into backorders?"),
    ],
)
def test_a_redrive_asks_for_confirmation(cli: Cli, options: tuple[str, ...], question: bytes) -> None:
    done = answered(cli, "n", "dlq", "redrive", "q", *options)
    assert (done.returncode, question in done.stderr) == (1, True), done.stderr
    assert len(cli("dlq", "list", "q", "--json").records) == 3


def test_a_dry_run_shows_which_dead_letters_would_be_redriven_and_moves_none(cli: Cli, dead: list[str]) -> None:
    def planned(*options: str) -> list[str]:
        [record] = cli("dlq", "redrive", "q", "--dry-run", "--json", *options).records
        assert record["redriven"] == 0
        return list(record["would_redrive"])

    assert planned() == dead
    assert planned("--limit", "2") == dead[:2]
    assert planned("--reason", "b is") == planned(dead[1], "NOPE") == [dead[1]]
    shown = cli("dlq", "redrive", "q", "--dry-run")
    assert (shown.status, shown.text.splitlines()[-1]) == (0, "3 would be redriven")
    assert all(message_id in shown.text for message_id in dead)
    nothing = cli("dlq", "redrive", "q", "--dry-run", "--reason", "unheard of")
    assert (nothing.status, nothing.text) == (1, "0 would be redriven\n")
    assert len(cli("dlq", "list", "q", "--json").records) == 3


def test_dead_letters_are_purged_by_id_or_all(cli: Cli, dead: list[str]) -> None:
    assert cli("dlq", "purge", "q").status == 2
    assert cli("dlq", "purge", "q", dead[0], "--yes").text == "1 purged\n"
    assert cli("dlq", "purge", "q", "--yes").text == "2 purged\n"
    assert cli("dlq", "list", "q").status == 1


def test_a_table_shows_the_whole_id_next_to_long_payloads(cli: Cli) -> None:
    message_id = cli("put", "q", "a payload that is much longer than the window " * 20).text.strip()
    shown = cli("peek", "q", COLUMNS="80")
    assert message_id in shown.text
    assert "…" not in shown.text.partition(message_id)[0]


def test_a_narrow_window_shows_the_whole_names_of_figures_and_a_line_for_each_queue(cli: Cli) -> None:
    cli("put", "q", "one")
    cli("put", "another", "two")
    narrow, wide = cli("stats", COLUMNS="80").text, cli("stats", COLUMNS="200").text
    for name in ("waiting", "in flight", "delayed", "dead letters", "consumers"):
        assert all(word in narrow for word in name.split())
        assert name in wide
    assert max(map(len, narrow.splitlines())) <= 80
    assert [line.split()[:3] for line in narrow.splitlines()[-2:]] == [["another", "1", "1"], ["q", "1", "1"]]


def test_queues_are_listed_by_name(cli: Cli) -> None:
    none = cli("queues")
    assert (none.status, "there are no queues" in none.stderr) == (1, True)
    cli("put", "b", "one")
    cli("put", "a", "two")
    assert cli("queues").text == "a\nb\n"
    assert [queue["queue"] for queue in cli("queues", "--json").records] == ["a", "b"]


def test_peek_shows_the_options_and_the_status_of_messages_and_filters_by_them(cli: Cli) -> None:
    cli("put", "q", "one", "--key", "k1", "--tag", "region=eu", "--priority", "-5")
    cli("put", "q", "two", "--group", "customer 7")
    cli("put", "q", "three", "--delay", "1h")
    table = cli("peek", "q").text
    for shown in ("status", "priority", "key", "group", "tags", "due", "region=eu", "customer 7", "scheduled", "-5"):
        assert shown in table
    assert "last error" not in table  # a column that no message needs

    def bodies(*options: str) -> list[object]:
        return [message["body"] for message in cli("peek", "q", "--json", *options).records]

    assert bodies("--key", "k1") == bodies("--tag", "region=eu") == ["one"]
    assert bodies("--group", "customer 7") == ["two"]
    assert bodies("--status", "scheduled") == bodies("--status", "delayed") == ["three"]
    assert sorted(map(str, bodies("--status", "waiting"))) == ["one", "two"]
    assert cli("peek", "q", "--key", "other").status == 1


def test_peek_shows_as_many_messages_of_each_status_as_stats_counts(cli: Cli) -> None:
    cli("configure", "q", "--create", "--backoff", "1h")
    cli("put", "q", "one")
    assert cli("consume", "q", "--exec", "exit 1").status == 1
    cli("put", "q", "two", "--delay", "1h")
    cli("put", "q", "three")
    [stats] = cli("stats", "q", "--json").records
    for status in ("waiting", "in flight", "delayed", "retrying", "scheduled"):
        shown = cli("peek", "q", "--status", status, "--json").records
        assert len(shown) == stats[status.replace(" ", "_")], status
    assert sorted(message["status"] for message in cli("peek", "q", "--json").records) == [
        "retrying",
        "scheduled",
        "waiting",
    ]


@pytest.mark.usefixtures("dead")
def test_dead_letters_that_cannot_go_into_another_queue_are_named(cli: Cli, grouped: str) -> None:
    assert cli("configure", "sticky", "--create", "--affinity", "producer").status == 0
    left = cli("dlq", "redrive", "q", "--into", "sticky", "--yes")
    assert (left.status, left.stderr.count("\n")) == (1, 1), left.stderr
    assert "3 of 4 dead letters put into 'sticky'" in left.stderr
    assert f"unchanged: {grouped}." in left.stderr
    assert [letter["id"] for letter in cli("dlq", "list", "q", "--json").records] == [grouped]


@pytest.mark.usefixtures("dead")
def test_dead_letters_are_found_and_redriven_by_their_reason(cli: Cli) -> None:
    assert [letter["body"] for letter in cli("dlq", "list", "q", "--reason", "B is no", "--json").records] == ["b"]
    assert len(cli("dlq", "list", "q", "--search", "no use", "--json").records) == 3
    assert cli("dlq", "list", "q", "--search", "unheard of").status == 1
    assert cli("dlq", "redrive", "q", "--reason", "b is", "--into", "backorders", "--yes").text == "1 redriven\n"
    assert [message["body"] for message in cli("peek", "backorders", "--json").records] == ["b"]
    nothing = cli("dlq", "redrive", "q", "--reason", "unheard of", "--yes")
    assert (nothing.status, nothing.text) == (1, "0 redriven\n")
    both = cli("dlq", "purge", "q", "someid", "--reason", "x", "--yes")
    assert (both.status, "ids cannot be combined with --reason" in both.stderr) == (2, True)
    assert cli("dlq", "purge", "q", "--reason", "a is", "--yes").text == "1 purged\n"
    assert [letter["body"] for letter in cli("dlq", "list", "q", "--json").records] == ["c"]
