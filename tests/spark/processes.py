"""The processes of the machine, from /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children(parent: int) -> dict[int, str]:
    """The processes that have this parent, with their command lines."""
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(process.name)] = (process / "cmdline").read_text()
    return found
