"""Progress bars on stderr. They are shown only if stderr is a terminal. Rich is imported only to draw."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from rich.progress import Progress, TaskID

#: Seconds after which work shows its progress.
BAR_DELAY: Final = 2.0


class Bar:
    """A progress bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float = 1) -> None:
        """Add to the completed work."""
        self._progress.advance(self._task, amount)

    def reach(self, done: float, total: float) -> None:
        """Set the completed work, and the total known so far."""
        self._progress.update(self._task, completed=done, total=total)

    def describe(self, text: str) -> None:
        """Set the description of the current step."""
        self._progress.update(self._task, description=text)


@contextmanager
def progress(text: str, total: float | None) -> Iterator[Bar]:
    """Show a bar on stderr during the work, if it is a terminal."""
    from rich.console import Console  # noqa: PLC0415 - imported only to draw
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - imported only to draw

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    shown = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    # Before version 15 of rich, even a bar that is disabled ends with an empty line.
    with shown if console.is_terminal else nullcontext():
        yield Bar(shown, shown.add_task(text, total=total))


@contextmanager
def waiting(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show a bar without an end on stderr during the block, if it takes more than `BAR_DELAY` seconds.

    Nothing is shown if stderr is not a terminal. ``stream`` replaces stderr.
    """
    where: TextIO = stream or sys.stderr
    if not where.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - imported only to draw
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - imported only to draw

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = Progress(*columns, console=Console(file=where), transient=True)
    shown.add_task(text, total=None)
    timer = threading.Timer(BAR_DELAY, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        shown.stop()


async def watched(text: str, work: Awaitable[int], total: int, remaining: Callable[[], Awaitable[int]]) -> int:
    """Await work that takes messages away, and return its result.

    Work of more than `BAR_DELAY` seconds has a bar, which follows the number of remaining messages.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=BAR_DELAY)
        if not task.done():
            with progress(text, total) as bar:
                while not task.done():
                    bar.reach(max(0, total - await remaining()), total)
                    await asyncio.wait([task], timeout=0.5)
        return await task
    finally:
        task.cancel()
