"""Single keys from the terminal, while a command runs."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call ``press`` with each character that is typed, without waiting for the end of a line; Ctrl-C stays a signal.

    Nothing happens if stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        yield
        return
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        for character in os.read(terminal, 64).decode(errors="ignore"):
            press(character)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
