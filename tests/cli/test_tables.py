"""Tables: whole names, times and units in every window, and lines of any length in a pipe."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

import pytest

from aiozkqueue.cli import output
from aiozkqueue.cli.widths import fitted

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

_TIME: Final = output.when(datetime(2026, 11, 27, 8, 30).astimezone())
_STATS: Final = ["queue", "size", "waiting", "in flight", "delayed", "retrying", "dead letters", "consumers", "oldest"]
_HISTORY: Final = ["id", "outcome", "put", "ended", "attempts", "by", "reason"]
_ENDED: Final = ("3FqzK1TXnNzR0000Ab", "finished", _TIME, _TIME, 1, "worker-7.example.com:81234", "")


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("COLUMNS", raising=False)
    return monkeypatch


def printed(capsys: pytest.CaptureFixture[str], columns: list[str], *rows: tuple[object, ...]) -> str:
    output.print_table(columns, rows, frame=columns is not _STATS)
    return capsys.readouterr().out


def test_a_pipe_gets_each_row_on_one_line_of_any_length(
    window: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "the bank is closed " * 40
    for environment in ({}, {"COLUMNS": ""}):
        for name, value in environment.items():
            window.setenv(name, value)
        text = printed(capsys, _HISTORY, (*_ENDED[:-1], reason))
        [row] = [line for line in text.splitlines() if _ENDED[0] in line]
        assert row.count(_TIME) == 2
        assert reason.strip() in row
        assert row.rstrip()[-1] == "│"
    output.print_verdict("works, " * 40, good=True)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_figures_of_queues_fit_80_columns_with_whole_names_and_units(
    window: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    window.setenv("COLUMNS", "80")
    rows = [("shop-invoices", 1, 1, 0, 0, 0, 0, 0, "59.7 s"), ("orders (paused)", 20, 20, 0, 0, 0, 0, 0, "7.2 m")]
    text = printed(capsys, _STATS, *rows)
    assert max(map(len, text.splitlines())) <= 80
    first, second = text.splitlines()[-2:]
    assert first.split()[0] == "shop-invoices"
    assert first.rstrip().endswith("59.7 s")
    assert second.startswith("orders (paused)")
    assert second.rstrip().endswith("7.2 m")
    assert "oldest" in text.split()


def test_a_table_without_room_for_its_times_becomes_a_block_of_lines_per_row(
    window: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    window.setenv("COLUMNS", "80")
    text = printed(capsys, _HISTORY, _ENDED, (*_ENDED[:-1], "the bank is closed"))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if "ended" in line and _TIME in line]) == 2
    assert "worker-7.example.com:81234" in text
    assert "the bank is closed" in text


def test_a_frame_is_omitted_before_a_name_would_wrap(
    window: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ("b2f9c1d05c3a4be1", "shop-invoices", "shop-archive", "done", 12, _TIME)
    columns = ["reference", "from", "to", "state", "moved", "started"]
    for width, framed in (("120", True), ("80", False)):
        window.setenv("COLUMNS", width)
        text = printed(capsys, columns, row)
        assert ("┏" in text) == framed
        [line] = [line for line in text.splitlines() if "shop-invoices" in line]
        assert all(str(cell) in line for cell in row)


def test_only_texts_are_broken_inside_a_word() -> None:
    name, payload = "q" * 60, "x" * 60
    assert fitted(["queue", "payload"], [[name, payload]], 79) == [60, 19]
    assert fitted(["queue", "payload"], [[name, payload]], 78) is None
    assert fitted(["queue", "payload"], [[name, payload]], 500) == [60, 60]
    assert fitted(["queue", "oldest"], [["q", "59.7 s"]], 10) is None
    assert fitted(["queue", "oldest"], [["q", "59.7 s"]], 11) == [5, 6]


def test_the_command_limits_the_width_of_a_pipe_only_on_request(cli: Cli) -> None:
    payload = "a payload that is longer than 80 columns with the id of its message"
    message_id = cli("put", "q", payload).text.strip()
    for columns, lines in (("", 1), ("80", 2)):
        shown = cli("peek", "q", COLUMNS=columns).text
        [row] = [line for line in shown.splitlines() if message_id in line]
        assert (payload[:57] in row) == (lines == 1)
