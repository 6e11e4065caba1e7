"""Commands access queues of Curator and kazoo by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.recipe.queue import LockingQueue

from aiozkqueue.dialects.framing import frame
from aiozkqueue.testing.cleaning import delete_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Cli


@pytest.fixture
def client(zookeeper: str) -> Iterator[KazooClient]:
    kazoo = KazooClient(hosts=zookeeper)
    kazoo.start()
    yield kazoo
    kazoo.stop()
    kazoo.close()


@pytest.fixture
def path(zookeeper: str) -> Iterator[str]:
    top = f"/others-{uuid4().hex[:12]}"
    yield f"{top}/queue"
    delete_tree(zookeeper, top)


def test_a_kazoo_queue_is_read_counted_explained_and_consumed(cli: Cli, client: KazooClient, path: str) -> None:
    kazoo_queue = LockingQueue(client, path)
    kazoo_queue.put(b"low", 200)
    kazoo_queue.put(b"high", 5)
    messages = cli("peek", "--kazoo", path, "--json").records
    assert [message["body"] for message in messages] == ["high", "low"]
    [stats] = cli("stats", "--json", "--kazoo", path).records
    assert (stats["queue"], stats["size"]) == (path, 2)
    explained = cli("why", "--kazoo", path, messages[0]["id"])
    assert explained.status == 0
    assert "waiting" in explained.text
    [state] = cli("state", messages[1]["id"], "--kazoo", path, "--json").records
    assert state["status"] == "waiting"
    assert cli("consume", "--kazoo", path).text == "high\nlow\n"
    assert len(kazoo_queue) == 0


def test_a_message_put_by_the_command_reaches_a_kazoo_client_with_its_priority(
    cli: Cli, client: KazooClient, path: str
) -> None:
    assert cli("put", "--kazoo", path, "usual").status == 0
    assert cli("put", "--kazoo", path, "urgent", "--priority", "3").status == 0
    kazoo_queue = LockingQueue(client, path)
    assert kazoo_queue.get(timeout=10) == b"urgent"
    kazoo_queue.consume()
    assert kazoo_queue.get(timeout=10) == b"usual"


def test_dead_letters_of_a_curator_queue_are_listed_redriven_and_purged(
    cli: Cli, client: KazooClient, path: str
) -> None:
    curator = ("--curator", path, "--lock-path", f"{path}-locks")
    client.create(f"{path}/queue-", b"not Curator's", makepath=True, sequence=True)
    client.create(f"{path}/queue-", b"nor is this", makepath=True, sequence=True)
    assert cli("consume", *curator).status == 1
    letters = cli("dlq", "list", *curator, "--json").records
    assert len(letters) == 2
    assert all("not decode" in letter["reason"] for letter in letters)
    assert cli("dlq", "redrive", *curator, letters[0]["id"]).status == 0
    assert len(client.get_children(path) or ()) == 1
    assert cli("dlq", "purge", *curator, "--yes").status == 0
    assert cli("dlq", "list", *curator).status == 1
    assert cli("purge", *curator, "--yes").status == 0
    assert client.get_children(path) == []


@pytest.mark.parametrize("option", ["--curator", "--kazoo"])
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("history",), ": no message ended in this time, or the queue keeps no history"),
        (("consumers",), " has no consumers"),
        (("dlq", "list"), " has no dead letters"),
    ],
)
def test_commands_that_find_nothing_in_another_programs_queue_exit_with_1(
    cli: Cli, path: str, command: tuple[str, ...], reason: str, option: str
) -> None:
    assert cli("put", option, path, "x").status == 0
    done = cli(*command, option, path)
    assert (done.status, done.text, done.stderr) == (1, "", f"aiozkqueue: queue {path!r}{reason}\n")


def test_the_kind_of_a_curator_queue_is_an_option(cli: Cli, client: KazooClient, path: str) -> None:
    assert cli("put", "later", "--curator", path, "--kind", "delay", "--delay", "1h").status == 0
    names = client.get_children(path) or []
    assert len(names) == 1
    name = names[0]
    assert name.startswith("queue-|")
    assert client.get(f"{path}/{name}")[0] == frame([b"later"])
    [message] = cli("peek", "--curator", path, "--kind", "delay", "--json").records
    assert message["due"] is not None


def test_a_path_without_a_queue_is_reported_and_not_created(cli: Cli, client: KazooClient, path: str) -> None:
    done = cli("peek", "--curator", path)
    assert done.status == 1
    assert f"there is no Curator queue at {path!r}" in done.stderr
    assert cli("stats", "--kazoo", path).status == 1
    assert client.exists(path.rpartition("/")[0]) is None


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("peek",), "Give its name, or --curator PATH or --kazoo PATH"),
        (("peek", "--curator", "/a", "--kazoo", "/b"), "cannot be combined"),
        (("peek", "--curator", "/a", "orders"), "leave out QUEUE"),
        (("stats", "orders", "--kazoo", "/a"), "leave out QUEUE"),
        (("why", "--kazoo", "/a", "orders", "id"), "leave out QUEUE"),
        (("why", "--kazoo", "/a"), "Missing argument 'ID'"),
        (("put", "--curator", "/a", "orders", "body"), "leave out QUEUE"),
        (("peek", "orders", "--lock-path", "/locks"), "give its path with --curator PATH"),
        (("peek", "--kazoo", "/a", "--kind", "delay"), "give its path with --curator PATH"),
        (("peek", "--curator", "/a", "--unlocked"), "give its path with --kazoo PATH"),
        (("peek", "--curator", "a"), "give an absolute path"),
        (("peek", "/app/orders"), "'/app/orders'"),
    ],
)
def test_wrong_usage_is_refused_with_a_remedy(cli: Cli, arguments: tuple[str, ...], advice: str) -> None:
    done = cli(*arguments)
    assert done.status == 2
    assert advice in done.stderr


def test_a_message_held_by_a_kazoo_client_is_shown_as_claimed_by_another_program(
    cli: Cli, client: KazooClient, path: str
) -> None:
    kazoo_queue = LockingQueue(client, path)
    kazoo_queue.put(b"held")
    assert kazoo_queue.get(timeout=10) == b"held"
    [message] = cli("peek", "--kazoo", path, "--json").records
    [explanation] = cli("why", message["id"], "--kazoo", path, "--json").records
    assert explanation["status"] == "in flight"
    assert "claimed by another program" in explanation["now"]
    [stats] = cli("stats", "--kazoo", path, "--json").records
    assert (stats["size"], stats["in_flight"]) == (1, 1)
