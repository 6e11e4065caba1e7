"""Where every task of a loop waits: the stack of awaits, which a traceback of the task alone does not show."""

from __future__ import annotations

import asyncio
import linecache
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue import Delivery

from .dumps import answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

#: Deeper than the awaits of any program; a cyclic chain ends here.
_DEEPEST: Final = 200


@contextmanager
def dumping(number: signal.Signals = signal.SIGUSR1) -> Iterator[None]:
    """At this signal, write the `dump` to stderr and to the caller's file, even while a handler blocks the loop.

    For the main thread, inside of a running loop.
    """
    loop = asyncio.get_running_loop()

    def received(_number: int, frame: FrameType | None) -> None:
        # This runs between two instructions, so it also works if Python code blocks the loop.
        text = dump(loop, frame)
        sys.stderr.write(text)
        sys.stderr.flush()
        answer(text)

    before = signal.signal(number, received)
    try:
        yield
    finally:
        signal.signal(number, before)


def dump(loop: asyncio.AbstractEventLoop, running: FrameType | None = None) -> str:
    """Describe where each task waits, tasks that handle a message first; ``running`` is the running task."""
    now = asyncio.current_task(loop)
    entries: list[tuple[bool, str]] = []
    tasks = asyncio.all_tasks(loop)
    for task in sorted(tasks, key=lambda pending: pending.get_name()):
        frames = _frames(task)
        if task is now:
            frames += _inner(running, frames)
        handled = _handled(frames)
        lines = [_line(frame) for frame in frames]
        state = "runs" if task is now else "waits"
        entries.append((handled is None, f"task {task.get_name()} {state}{handled or ''}:\n{''.join(lines)}"))
    entries.sort(key=lambda entry: entry[0])
    return f"{len(tasks)} tasks\n" + "".join(text for _, text in entries)


def _frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of a task's coroutine and of its awaits, the outermost first."""
    frames: list[FrameType] = []
    awaited: object = task.get_coro()
    while awaited is not None and len(frames) < _DEEPEST:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                frames.append(frame)
                awaited = getattr(
                    awaited, "ag_await" if kind == "ag" else "cr_await" if kind == "cr" else "gi_yieldfrom"
                )
                break
        else:
            break
    return frames


def _inner(running: FrameType | None, frames: list[FrameType]) -> list[FrameType]:
    """Return the running frames that a task's own frames have called, the outermost first."""
    inner: list[FrameType] = []
    while running is not None and running not in frames:
        inner.append(running)
        running = running.f_back
    return [] if running is None else inner[::-1]


def _handled(frames: list[FrameType]) -> str | None:
    """Return a description of the message that a task's frames handle."""
    for frame in frames:
        for value in frame.f_locals.values():
            if isinstance(value, Delivery):
                return f", message {value.id} of queue {value.queue}, attempt {value.attempt}"
    return None


def _line(frame: FrameType) -> str:
    code: CodeType = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    source = f"    {text}\n" if text else ""
    return f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}\n{source}'
