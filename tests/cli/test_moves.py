"""A queue's messages are moved to another, and the moves listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


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


def test_a_queue_is_not_moved_to_itself(cli: Cli) -> None:
    refused = cli("move", "q", "q")
    assert refused.status == 2
    assert "cannot move queue 'q' to itself" in refused.stderr


@pytest.mark.parametrize("queues", [("/app/orders", "orders"), ("orders", "/app/orders")])
def test_a_path_is_refused_with_the_reason_and_what_to_do(cli: Cli, queues: tuple[str, str]) -> None:
    refused = cli("move", *queues)
    assert refused.status == 2
    assert "'/app/orders'" in refused.stderr
    assert "have no place for the id, headers, group" in refused.stderr
    assert "take and put in a transaction" in refused.stderr
