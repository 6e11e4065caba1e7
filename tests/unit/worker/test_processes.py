"""The supervisor of several worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.worker.processes import supervise

if TYPE_CHECKING:
    from pathlib import Path


async def until_exists(path: Path) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - a process creates it
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("attempt", range(5))
async def test_processes_that_end_at_the_same_moment_end_the_command_with_their_status(
    tmp_path: Path, attempt: int
) -> None:
    """All processes wait for the same end of file, so when the first is reaped, others have also ended."""
    gate = tmp_path / f"gate{attempt}"
    os.mkfifo(gate)
    waiting = ["sh", "-c", 'read line < "$1"; exit 3', "sh", str(gate)]
    opening = [
        sys.executable,
        "-c",
        "import os, sys, time; time.sleep(0.3); open(sys.argv[1], 'w'); sys.exit(3)",
        str(gate),
    ]
    assert await supervise([*[waiting] * 12, opening]) == 3


async def test_a_process_that_was_killed_by_a_signal_without_a_name_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = signal.SIGRTMIN + 6
    killed = f'if [ -e "$1" ]; then exit 3; fi; touch "$1"; kill -{number} $$'
    assert await supervise([["sh", "-c", killed, "sh", str(tmp_path / "first")], ["sleep", "60"]]) == 3
    assert f"was killed by signal {number}: starting another" in caplog.text


async def test_processes_are_stopped_when_their_supervisor_is_cancelled(tmp_path: Path) -> None:
    started, stopped = tmp_path / "started", tmp_path / "stopped"
    waiting = 'trap \'touch "$2"; exit\' TERM; touch "$1"; while :; do sleep 0.1; done'
    task = asyncio.create_task(supervise([["sh", "-c", waiting, "sh", str(started), str(stopped)]]))
    await until_exists(started)
    task.cancel()
    await asyncio.wait([task])
    assert await asyncio.to_thread(stopped.exists), "the call returned before its process had ended"


async def test_a_cancelled_supervisor_kills_a_process_that_ignores_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.worker.processes.ENDING", 0.3)
    number = tmp_path / "pid"
    ignoring = 'trap "" TERM; echo $$ > "$1.new"; mv "$1.new" "$1"; while :; do sleep 0.1; done'
    task = asyncio.create_task(supervise([["sh", "-c", ignoring, "sh", str(number)]]))
    await until_exists(number)
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(int(await asyncio.to_thread(number.read_text)), 0)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_each_signal_that_stops_the_supervisor_stops_its_processes_by_sigterm(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The processes are in other process groups, so a closing terminal does not signal them."""
    started, stopped = tmp_path / "started", tmp_path / "stopped"
    waiting = 'trap \'touch "$2"; exit\' TERM; touch "$1"; while :; do sleep 0.1; done'
    supervised = ["sh", "-c", waiting, "sh", str(started), str(stopped)]
    program = (
        "import asyncio, sys; from aiozkqueue.worker.processes import supervise; asyncio.run(supervise([sys.argv[1:]]))"
    )
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *supervised)
    await until_exists(started)
    supervisor.send_signal(number)
    assert await supervisor.wait() == 0
    await until_exists(stopped)


@pytest.mark.usefixtures("terminal")
async def test_a_supervisor_under_nohup_ignores_a_closing_terminal() -> None:
    program = "from aiozkqueue.worker.stops import stop_signals; print(*(one.name for one in stop_signals()))"
    for command, expected in (([], "SIGTERM SIGINT SIGHUP"), (["nohup"], "SIGTERM SIGINT")):
        asked = await asyncio.create_subprocess_exec(
            *command, sys.executable, "-c", program, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await asked.communicate()
        assert printed.decode().strip() == expected
