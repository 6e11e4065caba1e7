"""The order of two events on one machine, in separate processes, whatever happens to the wall clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

# Linux draws it at each start of the machine. All of the machine's processes have the same monotonic clock.
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def moment() -> str:
    """Return a name of this moment, empty if unknown. Names with the same first word sort in the order of time."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        return ""
    return f"{boot} {time.monotonic_ns():020}"
