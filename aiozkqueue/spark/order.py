"""The order of events in different processes of one machine, independent of the wall clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

# Linux creates a new boot id at each start of the machine. Processes in one time namespace share a monotonic clock.
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/time")


def moment() -> str:
    """Return a name for this moment, or an empty text if it is unknown. Names with the same first word sort by time."""
    try:
        clock = f"{_BOOT.read_text().strip()}/{_NAMESPACE.readlink()}"
    except OSError:
        return ""
    return f"{clock} {time.monotonic_ns():020}"
