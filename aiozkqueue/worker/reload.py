"""Restarts a command when Python files change, during development. Needs the extra ``reload``."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast

from aiozkqueue.extras import needs

from .stops import on_stop_signals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

log: Final = logging.getLogger(__name__)


async def reloading(command: Sequence[str], folder: Path) -> int:
    """Run a command; stop it and run it again when Python files below the folder change. Returns its exit status.

    It is stopped by SIGTERM, and waited for. If it ends by itself, for example after a syntax error was saved, the next
    change starts it again. SIGTERM, SIGINT and SIGHUP stop it, and end this as well.

    Raises:
        MissingExtraError: the package that watches files is not installed.
    """
    with needs("reload"):
        import watchfiles  # noqa: PLC0415 - an extra
    # Its type refers to one of trio, which may not be installed.
    watch = cast("Any", watchfiles).awatch
    changes: AsyncIterator[object] = watch(folder, watch_filter=watchfiles.PythonFilter())
    return await _Runs(command, folder).serve(changes)


class _Runs:
    """The processes of the command, one after the other."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._over = asyncio.Event()
        self._stop_requested = True
        """Whether the process was asked to stop."""

    async def serve(self, changes: AsyncIterator[object]) -> int:
        on_stop_signals(self._stop)
        watching = asyncio.create_task(self._watch(changes))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait((watching, over), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            over.cancel()
            await asyncio.gather(watching, over, return_exceptions=True)
            if not self._stop_requested:
                self._signal()
            status = await self._end()
        return status

    def _stop(self) -> None:
        self._over.set()
        self._signal()

    async def _watch(self, changes: AsyncIterator[object]) -> None:
        log.info("restarts when Python files below %s change", self._folder)
        while True:
            changed = asyncio.ensure_future(anext(changes))
            try:
                # Files are watched before the process starts, so no change is missed.
                await asyncio.sleep(0)
                await self._start()
                await changed
            finally:
                changed.cancel()
                await asyncio.gather(changed, return_exceptions=True)
            log.info("changed: restarting")
            self._signal()
            await self._end()

    async def _start(self) -> None:
        # In a separate process group: a terminal's Ctrl-C arrives only here, and is passed on once.
        self._stop_requested = False
        self._process = await asyncio.create_subprocess_exec(*self._command, process_group=0)
        if self._over.is_set():  # by a signal that did not find the process yet
            self._signal()

    def _signal(self) -> None:
        self._stop_requested = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def _end(self) -> int:
        return 0 if self._process is None else await self._process.wait()
