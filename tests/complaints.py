"""What a program says on stderr that is its own doing."""

from __future__ import annotations

#: Of the warning, of the same in the log, and of the line of source that Python shows beneath a warning.
_STOOD_STILL = ("the event loop stood still", "BlockedLoopWarning")


def complaints(stderr: str) -> str:
    """Leave out that the machine stood still: a program that is stopped for seconds says so, and is right."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not any(word in line for word in _STOOD_STILL))
