"""The figures of queues, refreshed repeatedly."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from aiozkqueue.cli.app import run
from aiozkqueue.cli.top_screen import Screen
from tests.cli.conftest import NEW_PROCESS

if TYPE_CHECKING:
    from aiozkqueue.cli.output import Json
    from tests.cli.conftest import Cli
    from tests.observer import Observer


def test_top_shows_rates_of_all_clients_between_two_refreshes(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n3")
    top = cli.start("top", "--json", "--interval", "0.5")
    assert top.stdout is not None
    first = json.loads(top.stdout.readline())
    assert (first["queue"], first["size"], first["in_rate"]) == ("q", 3, None)
    assert first["oldest_age"] >= 0
    cli("put", "q", "--lines", stdin=b"x\n" * 40)
    cli("consume", "q", "--limit", "10")
    arrived = left = 0.0
    depth = 3
    while depth != 33 or not left:
        row = json.loads(top.stdout.readline())
        depth, arrived, left = row["size"], arrived + row["in_rate"], left + row["out_rate"]
    # Refreshes are at least half a second apart, and the messages between two of them are counted once.
    assert 0 < arrived <= 40 / 0.5
    assert 0 < left <= 10 / 0.5
    top.send_signal(signal.SIGINT)
    top.communicate(timeout=90)
    assert top.returncode == 0


def test_top_prints_one_table_of_all_queues_to_a_pipe(cli: Cli) -> None:
    cli("put", "orders", "x")
    cli("put", "invoices", "x")
    cli("pause", "invoices")
    shown = cli("top", "--interval", "0.1")
    assert shown.status == 0
    assert "orders" in shown.text
    assert "invoices (paused)" in shown.text
    assert cli("top", "typo", "--interval", "0.1").status == 1
    narrow = cli("top", "--interval", "0.1", COLUMNS="80").text
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert {"orders", "invoices", "consumers", "delayed"} <= set(narrow.split())
    assert cli("top", "orders", "--once", "--json", "--interval", "0.1").records[0]["in_rate"] == 0


def test_a_long_table_of_top_does_not_block_the_session_that_read_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cli("put", "q", "1")

    def print_slowly(*_: object, **__: object) -> None:
        end = time.monotonic() + 3
        while time.monotonic() < end:  # as a table of some thousand queues takes
            pass

    monkeypatch.setattr("aiozkqueue.cli.top._print", print_slowly)
    for name in ("AIOZKQUEUE_HOSTS", "AIOZKQUEUE_ROOT"):
        monkeypatch.setenv(name, cli.environment[name])
    assert run(["top", "--once", "--interval", "0.1", "--session-timeout", "4"]) == 0
    assert "blocked" not in caplog.text


async def test_top_shows_the_other_queues_if_one_cannot_be_read(
    cli: Cli, server_view: Observer, queue_root: str
) -> None:
    for queue in ("broken", "orders"):
        assert (await asyncio.to_thread(cli, "put", queue, "x")).status == 0
    await server_view.set(f"{queue_root}/broken", b"{")
    shown = await asyncio.to_thread(cli, "top", "--once", "--interval", "0.1")
    assert shown.status == 0
    assert "orders" in shown.text
    broken, orders = (await asyncio.to_thread(cli, "top", "--once", "--json", "--interval", "0.1")).records
    assert (orders["queue"], orders["size"]) == ("orders", 1)
    assert broken["queue"] == "broken"
    assert "does not decode" in broken["unreadable"]
    stats = await asyncio.to_thread(cli, "stats", "--json")
    assert [record["queue"] for record in stats.records] == ["orders"]
    assert "does not decode" in stats.stderr
    assert stats.status != 0


def test_top_on_a_terminal_has_a_header_and_follows_keys(cli: Cli) -> None:
    for queue in ("orders", "invoices"):
        cli("put", queue, "x")
    cli("put", "invoices", "x")
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [*NEW_PROCESS, "top", "--interval", "0.2"],
        env=os.environ | cli.environment | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)

    def until(text: str) -> str:
        """Read the output of the terminal until it contains a text."""
        shown = ""
        while text not in shown:
            assert select.select([main], [], [], 60)[0], shown
            shown += os.read(main, 65536).decode()
        return shown

    with process:
        first = until("s: sort (by name)")
        assert "every 0.2 s" in first
        assert "2 queues" in first
        assert first.index("invoices") < first.index("orders")
        os.write(main, b"s")
        until("s: sort (by size)")
        os.write(main, b"/ord")
        until("filter: ord")
        os.write(main, b"\r")
        assert "1 queue (1 hidden by the filter)" in until("/: filter 'ord'")
        os.write(main, b"p")
        until("on hold")
        os.write(main, b"q")
        assert process.wait(60) == 0
    os.close(main)


def test_the_screen_of_top_sorts_and_marks_what_needs_attention() -> None:
    ended: list[bool] = []
    changes: list[bool] = []
    screen = Screen("head", lambda: ended.append(True), lambda: changes.append(True))

    def row(queue: str, **figures: float | None) -> dict[str, Json]:
        names = ("size", "waiting", "in_flight", "delayed", "retrying", "dead_letters", "consumers")
        nothing = dict.fromkeys(names, 0) | {"in_rate": 0.0, "out_rate": 0.0, "oldest_age": None}
        return {"queue": queue, "paused": False, "incomplete": [], **nothing, **figures}

    def shown() -> str:
        console = Console(width=160, force_terminal=True, color_system="standard")
        with console.capture() as capture:
            console.print(screen.render())
        return capture.get()

    for rate in (1.0, 8.0, 4.0):
        screen.show([row("a", size=1, out_rate=rate), row("b", size=9, waiting=9), row("c", dead_letters=2)], "12:00")
    assert "▂█▅" in shown()
    assert "size 10" in shown()
    assert "\x1b[1;31m" in shown()  # queue b has no consumer
    assert "\x1b[31m" in shown()  # queue c has dead letters
    assert shown().index("\na ") < shown().index("\nb ")
    screen.press("s")
    assert shown().index("\nb ") < shown().index("\na ")
    for key in ("/", "x", "\x7f", "c", "\r"):
        screen.press(key)
    assert "1 queue (2 hidden by the filter)" in shown()
    screen.press("q")
    assert ended
    assert len(changes) == 7


@pytest.mark.parametrize(("begun", "completed"), [("pau", "pause"), ("wor", "worker")])
def test_the_shell_completes_commands(cli: Cli, begun: str, completed: str) -> None:
    done = cli(_AIOZKQUEUE_COMPLETE="complete_bash", COMP_WORDS=f"aiozkqueue {begun}", COMP_CWORD="1")
    assert done.text.split() == [completed]
