"""`--json`: results for scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.cli import json_fields
from tests.cli.completion_table import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Cli

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli.md"


def test_every_command_has_the_option_except_those_that_the_page_lists() -> None:
    [text] = re.findall(r"Every command has this\s+option except (.*?)\. A payload", PAGE.read_text(), re.DOTALL)
    listed = set(re.findall("`(.*?)`", text))
    assert {name for name, command in _commands() if "--json" not in _options(command)} == listed


def test_the_page_states_the_fields_of_every_command_that_has_the_option() -> None:
    stated = {command for command, _ in json_fields.documented()}
    assert stated == {name for name, command in _commands() if "--json" in _options(command)}


def _commands() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, entry in table()["commands"].items():
        if "commands" in entry:
            yield from ((f"{name} {member}", found) for member, found in entry["commands"].items())
        else:
            yield name, entry


def _options(command: dict[str, Any]) -> set[str]:
    return {
        name for option in command["options"] for name in ([option] if isinstance(option, str) else option["names"])
    }


def test_a_deletion_is_reported_as_an_object(cli: Cli) -> None:
    cli("put", "q", "x")
    refused = cli("delete", "q", "--yes", "--json")
    assert (refused.status, refused.records) == (5, [])
    done = cli("delete", "q", "--yes", "--force", "--json")
    assert (done.status, done.records, done.stderr) == (0, [{"queue": "q", "deleted": True}], "")


def test_unbundled_queues_are_reported_as_objects(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n")
    done = cli("unbundle", "nowhere", "q", "--json")
    assert (done.status, done.records) == (1, [{"queue": "q", "held_bundles": 0}])
    assert "there is no queue 'nowhere'" in done.stderr


def test_a_removed_job_is_reported_as_an_object(cli: Cli) -> None:
    assert cli("jobs", "add", "nightly", "0 3 * * *", "reports", "x").status == 0
    assert cli("jobs", "remove", "nightly", "--json").records == [{"name": "nightly", "removed": True}]
    repeated = cli("jobs", "remove", "nightly", "--json")
    assert (repeated.status, repeated.records) == (1, [])
