"""The messages of a queue are moved to another queue, and moves are listed."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.recipe.queue import LockingQueue

import aiozkqueue as zq
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Cli
    from tests.observer import Observer


def test_a_queue_is_moved_to_another(cli: Cli) -> None:
    cli("put", "old", "--lines", stdin=b"1\n2\n3\n")
    [moved] = cli("move", "old", "new", "--json").records
    assert (moved["from"], moved["to"], moved["state"], moved["moved"], moved["error"]) == (
        "old",
        "new",
        "done",
        3,
        None,
    )
    assert [stats["size"] for stats in cli("stats", "old", "new", "--json").records] == [0, 3]
    assert [listed["reference"] for listed in cli("moves", "--json").records] == [moved["reference"]]
    assert "old" in cli("moves", "--resume").text


def test_a_move_that_no_session_works_on_is_named_with_the_command_that_continues_it(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    cli("put", "old", "--lines", stdin=b"1\n2\n3\n")
    cli("configure", "new", "--create", "--max-size", "1")

    async def begin() -> str:
        """Move what fits, and end the session."""
        async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
            reference = await session.admin.moves.start("old", "new")
            while not await session.queue("new").size():  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
            status = await session.admin.moves.status(reference)
            assert (status.state, status.unattended) == ("running", False)
        return reference

    reference = asyncio.run(begin())
    assert f"no session works on move {reference}; aiozkqueue moves --resume" in cli("moves").stderr
    assert [move["unattended"] for move in cli("moves", "--json").records] == [True]
    findings = {record.get("subject"): record for record in cli("doctor", "--json").records}
    assert findings[f"move {reference}"]["severity"] == "warning"
    assert "from old to new has not ended" in findings[f"move {reference}"]["text"]
    cli("configure", "new", "--max-size", "10")
    resumed = cli("moves", "--resume")
    assert (resumed.status, resumed.stderr) == (0, "")
    assert [(move["state"], move["unattended"]) for move in cli("moves", "--json").records] == [("done", False)]
    assert [stats["size"] for stats in cli("stats", "old", "new", "--json").records] == [0, 3]


async def test_the_reason_of_a_failed_move_is_printed_once(cli: Cli, server_view: Observer, queue_root: str) -> None:
    await asyncio.to_thread(cli, "put", "old", "1")
    await asyncio.to_thread(cli, "put", "new", "1")
    await set_acl(server_view, f"{queue_root}/new", readable=False)
    moved = await asyncio.to_thread(cli, "move", "old", "new")
    assert moved.status == 1
    lines = moved.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["aiozkqueue", "aiozkqueue"], lines
    assert lines[0] == "aiozkqueue: moved 0 messages from old to new"
    assert "queue 'new'" in lines[1]


async def test_a_move_that_no_session_may_continue_is_named_and_not_awaited(
    cli: Cli, zookeeper: str, server_view: Observer, queue_root: str
) -> None:
    await asyncio.to_thread(cli, "put", "old", "1")
    await asyncio.to_thread(cli, "configure", "new", "--create", "--max-size", "0")
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
        reference = await session.admin.moves.start("old", "new")
    await set_acl(server_view, f"{queue_root}/.moves/{reference}", readable=True)
    resumed = await asyncio.to_thread(cli, "moves", "--resume")
    assert f"move {reference} is left to another session" in resumed.stderr
    assert "use the credentials of a user whom the ACL allows" in resumed.stderr
    assert f"no session works on move {reference}" in resumed.stderr


def test_a_queue_is_not_moved_to_itself(cli: Cli) -> None:
    refused = cli("move", "q", "q")
    assert refused.status == 2
    assert "cannot move queue 'q' to itself" in refused.stderr


@pytest.mark.parametrize("queues", [("/app/orders", "orders"), ("orders", "/app/orders")])
def test_a_path_without_its_program_is_refused_with_the_option_to_give(cli: Cli, queues: tuple[str, str]) -> None:
    refused = cli("move", *queues)
    assert refused.status == 2
    assert "'/app/orders'" in refused.stderr
    assert "--from-curator or --from-kazoo" in refused.stderr


@pytest.fixture
def client(zookeeper: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper, timeout=30.0)
    client.start(60)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def path(client: KazooClient) -> Iterator[str]:
    top = f"/foreign-{uuid.uuid4().hex[:12]}"
    yield f"{top}/queue"
    with suppress(NoNodeError):
        client.delete(top, recursive=True)


def test_a_kazoo_queue_is_moved_to_a_native_queue_and_then_to_a_curator_queue(
    cli: Cli, client: KazooClient, path: str
) -> None:
    queue = LockingQueue(client, path)
    queue.put_all([b"1", b"2"])
    queue.put(b"urgent", 1)
    [moved] = cli("move", "--from-kazoo", path, "orders", "--json").records
    assert (moved["from"], moved["to"], moved["state"], moved["moved"]) == (path, "orders", "done", 3)
    done = cli(
        "move", "orders", "--to-curator", f"{path}-2", "--to-lock-path", f"{path}-locks", "--to-kind", "priority"
    )
    assert (done.status, done.stderr) == (0, f"aiozkqueue: moved 3 messages from orders to {path}-2\n")
    target = ("--curator", f"{path}-2", "--lock-path", f"{path}-locks", "--kind", "priority")
    assert cli("consume", *target).text == "urgent\n1\n2\n"
    assert [move["from"] for move in cli("moves", "--json").records] == [path, "orders"]


def test_a_message_that_does_not_fit_into_another_programs_queue_is_not_moved(cli: Cli, path: str) -> None:
    cli("put", "orders", "--header", "a=b", "x")
    refused = cli("move", "orders", "--to-kazoo", path, "--to-unlocked")
    assert refused.status == 2
    assert "has headers (a) and cannot be moved to queue" in refused.stderr
    assert cli("moves").status == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "Missing argument 'FROM'. Give its name, or --from-curator PATH or --from-kazoo PATH"),
        (("orders",), "Missing argument 'TO'. Give its name, or --to-curator PATH or --to-kazoo PATH"),
        (("--from-kazoo", "/a"), "Missing argument 'TO'"),
        (("one", "two", "--to-kazoo", "/a"), "unexpected argument 'two': options already name TO"),
        (("--from-kazoo", "/a", "--from-curator", "/b", "one"), "--from-curator and --from-kazoo cannot be combined"),
        (("one", "two", "--to-kind", "id"), "give its path with --to-curator PATH"),
    ],
)
def test_move_requires_one_name_for_each_of_its_queues(cli: Cli, arguments: tuple[str, ...], error: str) -> None:
    refused = cli("move", *arguments)
    assert refused.status == 2
    assert error in " ".join(refused.stderr.replace("│", " ").split())
