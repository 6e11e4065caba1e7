"""The stderr of a program, without what a slow machine adds to it."""

from __future__ import annotations

#: The patterns of the warning, of its log record, and of the line of source code that Python shows below a warning.
_STOOD_STILL = ("the event loop was blocked", "BlockedLoopWarning")


def complaints(stderr: str) -> str:
    """Remove the warnings about a paused machine, which a program that was stopped for seconds rightly logs."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not any(word in line for word in _STOOD_STILL))
