"""`stats` and `doctor` end within their time budget, and report what they skipped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

QUEUES = [f"q{number:03d}" for number in range(150)]


@pytest.fixture
async def many(zookeeper: str, queue_root: str) -> list[str]:
    """More queues than fit into a budget of a tenth of a second."""
    async with zq.connect(zookeeper, root=queue_root) as session:
        await asyncio.gather(*(session.queue(name).put(b"1") for name in QUEUES))
    return QUEUES


def test_stats_reports_the_number_of_queues_it_skipped(cli: Cli, many: list[str]) -> None:
    shown = cli("stats", "--budget", "0.1", "--json")
    assert len(shown.records) < len(many)
    assert "queues were not checked within the time budget" in shown.stderr
    assert "--budget" in shown.stderr
    whole = cli("stats", "--budget", "10m", "--json")
    assert [(queue["size"], queue["incomplete"]) for queue in whole.records] == [(1, [])] * len(many)
    assert "budget" not in whole.stderr


def test_doctor_names_the_queues_it_skipped(cli: Cli, many: list[str]) -> None:
    shown = cli("doctor", "--budget", "0.1", "--json")
    queues = [record for record in shown.records if record["kind"] == "queue"]
    assert len([queue for queue in queues if queue["complete"]]) < len(many)
    assert "were not checked within the time budget" in shown.text
    table = cli("doctor", "--budget", "0.1")
    assert table.status == 0
    assert "not everything was examined within the time budget" in table.text
    whole = cli("doctor", *many[:3], "--json")
    assert [record["complete"] for record in whole.records if record["kind"] == "queue"] == [True] * 3
    assert "budget" not in whole.text


def test_a_budget_must_be_a_duration(cli: Cli) -> None:
    for command in ("stats", "doctor"):
        refused = cli(command, "--budget", "soon")
        assert refused.status == 2
        assert "not a duration" in refused.stderr
