"""`aiozkqueue report`: the figures of a known history."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.cli import bars
from aiozkqueue.cli.report import command
from aiozkqueue.layout import End, HistoryRecord
from tests.histories import record, store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Cli


@pytest.fixture
def orders(zookeeper: str, queue_root: str) -> list[HistoryRecord]:
    """A hundred orders, three dead letters the next day, and an expired message."""
    records = [record(n, waited=10 * n, handled=1000, attempts=1) for n in range(1, 101)]
    records += [
        record(800 + n, waited=5, handled=5, outcome=End.DEAD, attempts=3, reason="<b>no such customer</b>")
        for n in range(3)
    ]
    records.append(record(900, waited=60_000, handled=0, outcome=End.EXPIRED))
    store({"hosts": zookeeper, "root": queue_root}, {"orders": records})
    return records


@pytest.mark.usefixtures("orders")
def test_the_report_shows_times_attempts_dead_letters_and_throughput(cli: Cli) -> None:
    [found] = cli("report", "orders", "--json", TZ="UTC").records
    assert found["ended"] == 104
    assert found["outcomes"] == {"finished": 100, "dead-lettered": 3, "expired": 1}
    assert found["attempts"] == {"0": 1, "1": 100, "3": 3}
    assert (found["retried"], found["retries"]) == (3, 6)
    assert found["waiting"] == {"p50": 0.49, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    assert found["handling"] == {"p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0}
    assert found["dead_letters"] == [{"reason": "<b>no such customer</b>", "messages": 3}]
    assert sum(span["finished"] + span["dead"] + span["other"] for span in found["spans"]) == 104
    assert found["span"] == 15
    shown = cli("report", "orders", TZ="UTC", COLUMNS="100")
    for text in (
        "490 ms",
        "990 ms",
        "no such customer",
        "2026-03-01 23:50:02",
        "dead-lettered",
        "per second, at the peak",
    ):
        assert text in shown.text
    assert shown.stderr == ""


@pytest.mark.usefixtures("orders")
def test_the_report_of_a_day_or_a_range_has_its_ends_alone(cli: Cli) -> None:
    [first] = cli("report", "orders", "--day", "2026-03-01", "--json", TZ="UTC").records
    [second] = cli("report", "orders", "--day", "2026-03-02", "--json", TZ="UTC").records
    assert (first["outcomes"], second["outcomes"]) == ({"finished": 100}, {"dead-lettered": 3, "expired": 1})
    [part] = cli(
        "report", "orders", "--since", "2026-03-01T23:51:00", "--until", "2026-03-02T00:03:22", "--json", TZ="UTC"
    ).records
    assert part["outcomes"] == {"finished": 42, "dead-lettered": 2}
    [elsewhere] = cli("report", "orders", "--day", "2026-03-02", "--json", TZ="Asia/Tokyo").records
    assert elsewhere["ended"] == 104
    nothing = cli("report", "orders", "--day", "2020-01-01")
    assert (nothing.status, nothing.text) == (1, "")
    assert "no message ended in this time" in nothing.stderr
    assert cli("report", "orders", "--day", "2026-03-01", "--since", "2026-03-01").status == 2


@pytest.mark.usefixtures("orders")
def test_the_page_of_a_report_is_self_contained_and_escapes_reasons(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "orders.html"
    assert cli("report", "orders", "--html", str(page)).status == 0
    html = page.read_text()
    assert "<svg" in html
    assert "&lt;b&gt;no such customer&lt;/b&gt;" in html
    assert "<b>no such" not in html
    for what in ("<script", "src=", "href=", "@import", "url("):
        assert what not in html
    for title in ("Throughput", "Times", "Attempts", "Dead letters by reason", "Outcomes"):
        assert f"<h2>{title}</h2>" in html


def test_a_report_of_real_work_counts_what_was_done(cli: Cli) -> None:
    assert cli("configure", "q", "--create", "--history", "1h").status == 0
    for _ in range(3):
        cli("put", "q", "x")
    assert cli("consume", "q", "--limit", "2").status == 0
    [found] = cli("report", "q", "--json").records
    assert (found["ended"], found["outcomes"]) == (2, {"finished": 2})
    assert 0 <= found["waiting"]["p50"] <= found["waiting"]["p99"] < 120


def test_a_report_of_an_unknown_queue_suggests_a_name(cli: Cli) -> None:
    cli("put", "orders", "x")
    missing = cli("report", "ordres")
    assert missing.status == 1
    assert "did you mean 'orders'" in missing.stderr


@pytest.mark.usefixtures("orders")
def test_a_report_that_takes_long_shows_how_many_records_are_read(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: list[float | None] = []
    steps: list[float] = []

    class Bar:
        def advance(self, amount: float) -> None:
            steps.append(amount)

    @contextmanager
    def progress(_: str, total: float | None) -> Iterator[Bar]:
        totals.append(total)
        yield Bar()

    monkeypatch.setattr(bars, "BAR_DELAY", 0)
    monkeypatch.setattr(command, "_STEP", 10)
    monkeypatch.setattr(bars, "progress", progress)

    async def read(since: datetime | None) -> int:
        async with zq.connect(zookeeper, root=queue_root) as session:
            found = await command._read(session, session.queue("orders"), since, None)
            assert found is not None
            return found.ended

    assert asyncio.run(read(None)) == 104
    assert asyncio.run(read(datetime(2026, 3, 2, 0, 5, tzinfo=UTC))) == 1
    assert (totals, sum(steps)) == ([104], 100)
