"""A command that runs again when files change."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

from aiozkqueue.worker.reload import _Runs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest


async def _no_changes() -> AsyncIterator[object]:
    await asyncio.Event().wait()
    yield None


async def test_a_command_that_a_signal_finds_starting_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs(["sleep", "600"], tmp_path)
    create = asyncio.create_subprocess_exec

    # It passes all options on.
    async def create_while_stopped(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*command, **options)
        runs._stop()  # as by a signal that is handled before the caller has the process
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_while_stopped)
    async with asyncio.timeout(30):
        assert await runs.serve(_no_changes()) == -signal.SIGTERM
