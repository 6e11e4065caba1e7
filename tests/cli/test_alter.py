"""Waiting messages are found by key, replaced and removed with the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_a_waiting_message_is_updated_and_cancelled(cli: Cli) -> None:
    message_id = cli("put", "jobs", "one", "--key", "k", "--unique", "raise", "--ttl", "600").text.strip()
    assert cli("put", "jobs", "two", "--key", "k", "--unique", "ignore").text.strip() == message_id
    refused = cli("put", "jobs", "two", "--key", "k", "--unique", "raise")
    assert refused.status != 0
    assert message_id in refused.stderr
    assert 'use unique="ignore" to keep it' in refused.stderr
    unknown = cli("put", "jobs", "two", "--key", "k", "--unique", "reject")
    assert unknown.stderr == "aiozkqueue: Invalid value for '--unique': 'reject' is not one of 'raise', 'ignore'.\n"
    assert cli("update", "jobs", message_id, "new").status == 0
    assert [message["body"] for message in cli("peek", "jobs", "--json").records] == ["new"]
    assert cli("cancel", "jobs", "k", "--key", "--json").records == [{"queue": "jobs", "key": "k", "outcome": "done"}]
    another = cli("put", "jobs", "three").text.strip()
    assert cli("cancel", "jobs", another, "--running").status == 0
    repeated = cli("cancel", "jobs", message_id)
    assert (repeated.status, repeated.stderr) == (1, f"aiozkqueue: message {message_id} is not in queue 'jobs'\n")
    assert cli("cancel", "jobs", message_id, "--json").records == [
        {"queue": "jobs", "id": message_id, "outcome": "not found"}
    ]
    assert cli("cancel", "jobs", "k", "--key").stderr == "aiozkqueue: no message with key 'k' is in queue 'jobs'\n"
